"""What torch does again for each export with dynamo although the result is always the same, done once.

For each export, torch builds a registry of the functions that translate operators. A recipe may change it: with
``custom_translation_table``, or by registering functions with torchlib. So torch still builds it for each export, from what is
registered then. Only reading the source and the signatures of torchlib's own functions, which takes more than half of the time
of a small export, is done once. Functions of anybody else are read each time.

The files are the same, byte by byte. The names that are replaced are private to torch and onnxscript. A version that lacks one
does that work again. Outside of an export nothing is replaced, so neither recipes nor other users of torch see it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_TORCHLIB = ("onnxscript.function_libs.torch_lib.", "torch.onnx._internal.exporter._torchlib.")
"""How the names of the modules begin whose functions are torchlib's own."""


class _Replacement(NamedTuple):
    """An attribute of a module or class that has another value while an export runs."""

    owner: Any
    name: str
    original: object
    value: object


@contextlib.contextmanager
def done_once() -> Iterator[None]:
    """Within the block, exports with dynamo do not repeat what an earlier one has done in this process or before its fork.

    Nor does each say which operators it leaves out without torchvision. What somebody else has replaced stays.
    """
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    applied = [each for each in _replacements() if vars(each.owner).get(each.name) is each.original]
    logger.addFilter(_is_not_about_torchvision)
    try:
        for owner, name, _, value in applied:
            setattr(owner, name, value)
        yield
    finally:
        logger.removeFilter(_is_not_about_torchvision)
        for owner, name, original, value in applied:
            if vars(owner).get(name) is value:
                setattr(owner, name, original)


def _is_not_about_torchvision(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("torchvision is not installed")


@functools.cache
def read_torchlib() -> None:
    """Do now what can be done before an export, so that later forks of this process have it, too."""
    with contextlib.suppress(Exception), done_once():
        importlib.import_module("torch.onnx._internal.exporter._registration").ONNXRegistry.from_torchlib()


@functools.cache
def _replacements() -> tuple[_Replacement, ...]:
    """What this version of torch and onnxscript has of the repetitions."""
    replacements: list[_Replacement] = []
    for of_repetition in (_sources, _signatures):
        with contextlib.suppress(Exception):
            replacements.append(of_repetition())
    return tuple(replacements)


def _sources() -> _Replacement:
    """The source of each function, which onnxscript parses to learn its domain."""
    from onnxscript._internal.values import TracedOnnxFunction

    original = vars(TracedOnnxFunction)["function_ir"]
    value = property(_once_for_torchlib(original.fget))
    return _Replacement(TracedOnnxFunction, "function_ir", original, value)


def _signatures() -> _Replacement:
    """The ONNX signature of each function, which torch derives from its annotations."""
    schemas = importlib.import_module("torch.onnx._internal.exporter._schemas")
    if hasattr(schemas, "op_signature_from_function"):
        read = schemas.op_signature_from_function
        return _Replacement(schemas, "op_signature_from_function", read, _once_for_torchlib(read))
    value = staticmethod(_once_for_torchlib(schemas.OpSignature.from_function))  # torch 2.9
    original = vars(schemas.OpSignature)["from_function"]
    return _Replacement(schemas.OpSignature, "from_function", original, value)


def _once_for_torchlib(read: Callable[..., Any]) -> Callable[..., Any]:
    """``read``, which remembers its results for torchlib's own functions."""
    results: dict[object, tuple[object, Any]] = {}

    @functools.wraps(read)
    def read_once(function: object, *args: Any, **kwargs: Any) -> Any:
        if not str(getattr(function, "__module__", "")).startswith(_TORCHLIB):
            return read(function, *args, **kwargs)
        key = id(function), args, *sorted(kwargs.items())
        if key not in results:
            results[key] = function, read(function, *args, **kwargs)  # while the function is kept, no other object has its id
        return results[key][1]

    return read_once
