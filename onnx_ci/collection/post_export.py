"""Post-export passes as recipes declare them: what happens to an exported file before it ships. Does not import torch."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from onnx_ci.errors import RecipeError, did_you_mean
from onnx_ci.plugins import PASSES

LossyType = Literal["float16", "int8"]
"""What a lossy pass rounds to."""
EXPORT = "export"
"""Stands for the exporter's own file where passes are named."""
_NAME = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True, kw_only=True)
class GraphPass:
    """One step between the exporter's file and the file that ships. Created by :func:`graph_pass`.

    An entry point of the group ``onnx_ci.passes`` names an object of this class.
    """

    name: str
    transform: Callable[..., Any]
    """The function that makes the new file; see :func:`graph_pass`."""
    lossy: LossyType | None = None
    """What the pass rounds to; ``None`` if it keeps the numbers."""
    keep_io_types: bool = True
    """Whether inputs and outputs keep their types; otherwise a float16 pass makes those of float32 float16."""
    max_drift: float | None = None
    """The largest drift that passes, for every output; ``None`` for the default."""
    domains: tuple[str, ...] = ()
    """Domains of operators that the pass may introduce."""
    opset: int | None = None
    """The opset that the pass converts files to; ``None`` if it keeps theirs."""
    is_static: bool = False
    """Whether activations are quantized by ranges from a calibration. Otherwise each tensor's own range is used."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keywords for the function."""


BUILT_IN = tuple(PASSES.ours)


def graph_pass(
    what: str | Callable[..., Any],
    /,
    *,
    name: str | None = None,
    lossy: LossyType | None = None,
    keep_io_types: bool | None = None,
    max_drift: float | None = None,
    domains: str | Sequence[str] = (),
    opset: int | None = None,
    **options: Any,
) -> GraphPass:
    """A post-export pass with options, for ``@recipe(then=[...])``.

    Args:
        what: the name of a built-in pass, ``onnxsim``, ``onnxslim``, ``ort-optimized``, ``float16``, ``int8-dynamic`` or
            ``int8-static``, or of one that an installed package adds. Or a function that takes a model and returns one. It
            gets a ``ModelProto`` with its weights or, if it annotates its parameter as ``Path`` or ``str``, the path of a copy
            of the file. If its first two parameters are annotated so, it reads the file at the first path and writes the new
            file to the second. Without a default, a parameter ``keep_io_types`` gets that of the pass, and a parameter
            ``feeds`` a function that returns the inputs for a calibration: a list with a dictionary of numpy arrays by name
            for each.
        name: the name of a function's pass in ids and reports, unique in a recipe. Default: the function's name.
        lossy: what a function rounds to, ``"float16"`` or ``"int8"``. Its file is judged in units of that rounding.
        keep_io_types: whether inputs and outputs keep their types. Default: yes, except for ``float16``.
        max_drift: the largest drift that passes. Default: the limit of the exporter's own file, or 4 after a lossy pass.
        domains: domains of operators that the pass may introduce, besides those that a pass with a name is known for.
        opset: the opset that the pass converts files to. Default: it keeps theirs.
        **options: for a pass with a name, keywords for its package, such as ``per_channel=True`` for
            ``onnxruntime.quantization`` or ``level="basic"`` for ``ort-optimized``.

    Raises:
        RecipeError: there is no such pass, or an option is invalid.
    """
    if isinstance(what, str):
        if what not in PASSES:
            raise RecipeError(f"there is no post-export pass {what!r}{did_you_mean(what, PASSES)}")
        declared: GraphPass = dataclasses.replace(PASSES.load(what), name=what)
        if name is not None or lossy is not None:
            raise RecipeError(f"the pass {what!r} is known by its name: it takes neither name nor lossy")
        if keep_io_types is not None and declared.lossy != "float16":
            raise RecipeError(f"the pass {what!r} takes no keep_io_types")
    elif callable(what):
        if options:
            raise RecipeError(f"a function's pass has no option {next(iter(options))!r}; bind it with functools.partial")
        declared = _function(what, name or getattr(what, "__name__", None), lossy)
    else:
        raise RecipeError(f"a post-export pass is the name of a built-in one or a function, not {what!r}")
    if max_drift is not None and (isinstance(max_drift, bool) or not 0 < max_drift < float("inf")):
        raise RecipeError(f"max_drift must be a number above 0, not {max_drift!r}")
    if opset is not None and (isinstance(opset, bool) or not isinstance(opset, int) or opset < 1):
        raise RecipeError(f"opset must be a whole number above 0, not {opset!r}")
    return dataclasses.replace(
        declared,
        keep_io_types=declared.keep_io_types if keep_io_types is None else keep_io_types,
        max_drift=declared.max_drift if max_drift is None else max_drift,
        domains=(*declared.domains, *((domains,) if isinstance(domains, str) else domains)),
        opset=declared.opset if opset is None else opset,
        options={**declared.options, **options},
    )


def _function(function: Callable[..., Any], name: str | None, lossy: LossyType | None) -> GraphPass:
    """The pass of a function."""
    if name is None or not _NAME.fullmatch(name):
        raise RecipeError(f"the pass {function!r} needs a name: onnx_ci.graph_pass(function, name='fuse')")
    if name in (*BUILT_IN, EXPORT):
        raise RecipeError(f"the name {name!r} is taken: give the pass another one, onnx_ci.graph_pass(function, name=...)")
    if lossy not in (None, "float16", "int8"):
        raise RecipeError(f"lossy must be 'float16' or 'int8', not {lossy!r}")
    feeds = None
    with contextlib.suppress(TypeError, ValueError):  # a function of C may have no signature
        feeds = inspect.signature(function).parameters.get("feeds")
    is_static = lossy == "int8" and feeds is not None and feeds.default is feeds.empty
    return GraphPass(name=name, transform=function, lossy=lossy, is_static=is_static)


def passes_of(value: Any) -> tuple[GraphPass, ...]:
    """The passes that ``@recipe(then=value)`` declares. Raises ``RecipeError``."""
    entries = value if isinstance(value, (list, tuple)) else [value]
    passes = tuple(entry if isinstance(entry, GraphPass) else graph_pass(entry) for entry in entries)
    names = [each.name for each in passes]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise RecipeError(f"then has two passes {repeated[0]!r}; every name must be unique")
    return passes
