"""Global state of a process that a recipe can change: what it was before, what has changed, and how to undo that."""

from __future__ import annotations

import contextlib
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from onnx_ci.owners import is_library


@dataclass(frozen=True)
class _State:
    """One piece of global state of the process."""

    name: str
    read: Callable[[], Any]
    """Returns its value; a mapping if it has named parts."""
    write: Callable[[Any], object]

    def current(self) -> Any:
        """Its value, or :data:`_UNREADABLE`."""
        try:
            return self.read()
        except OSError:  # the working directory was removed
            return _UNREADABLE


_UNREADABLE = object()


def _environment() -> dict[str, str]:
    # torch sets this variable itself when it first compiles something.
    return {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}


def _set_environment(variables: dict[str, str]) -> None:
    for name in _environment().keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def _symbolics_of_project() -> dict[str, Any]:
    """The project's ``torch.onnx.register_custom_op_symbolic``, by operator and opset: ``aten::relu 9``.

    A library registers its own when it is imported, which happens only once.
    """
    # torch has functions to register and to unregister them, but none that lists them.
    registration = sys.modules.get("torch.onnx._internal.torchscript_exporter.registration")
    if registration is None:
        return {}  # nothing is registered: registering imports the module
    registry = registration.registry._registry
    return {
        f"{name} {opset}": function
        for name in sorted(registry)
        for opset, function in sorted(registry[name]._functions._overrides.items())
        if not (isinstance(function, types.FunctionType) and is_library(function.__module__))
    }


def _set_symbolics_of_project(functions: dict[str, Any]) -> None:
    for key in _symbolics_of_project():
        torch.onnx.unregister_custom_op_symbolic(*_name_and_opset(key))  # type: ignore[attr-defined]
    for key, function in functions.items():
        name, opset = _name_and_opset(key)
        torch.onnx.register_custom_op_symbolic(name, function, opset)  # type: ignore[attr-defined]


def _name_and_opset(key: str) -> tuple[str, int]:
    name, _, opset = key.rpartition(" ")
    return name, int(opset)


_SET_BY_BACKEND = "set for each backend"


def _matmul_precision() -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch 2.9 warns of its own function
            return torch.get_float32_matmul_precision()
    except RuntimeError:  # the newer API has set different values for the backends
        return _SET_BY_BACKEND


def _set_matmul_precision(precision: str) -> None:
    if precision != _SET_BY_BACKEND:
        torch.set_float32_matmul_precision(precision)


_STATES = (
    _State("the working directory", Path.cwd, os.chdir),
    _State("the environment", _environment, _set_environment),
    _State("the exporter's custom symbolic functions", _symbolics_of_project, _set_symbolics_of_project),
    _State("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    _State("torch's default device", torch.get_default_device, torch.set_default_device),
    _State("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    _State("torch's grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    _State("torch's deterministic algorithms", torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    _State("torch's float32 matmul precision", _matmul_precision, _set_matmul_precision),
)


@dataclass(frozen=True)
class _Change:
    """One piece of global state that a block has changed."""

    state: _State
    before: Any
    after: Any

    @property
    def parts(self) -> list[str]:
        """The names of the parts that have changed; an empty one for a state without parts."""
        if not isinstance(self.after, Mapping):
            return [""]
        return sorted(key for key in {*self.before, *self.after} if self.before.get(key) != self.after.get(key))

    def describe(self, parts: Sequence[str]) -> str:
        """What has changed, of these parts."""
        if self.after is _UNREADABLE:
            return self.state.name
        is_whole = not isinstance(self.after, Mapping)
        return f"{self.state.name} ({f'from {self.before} to {self.after}' if is_whole else ', '.join(parts)})"

    def undo(self) -> bool:
        """Restore it, except for what was changed again after the block. Whether something was restored."""
        now = self.state.current()
        if isinstance(self.after, Mapping):
            undone = [key for key in self.parts if now.get(key) == self.after.get(key)]
            others = {key: value for key, value in now.items() if key not in undone}
            self.state.write(others | {key: self.before[key] for key in undone if key in self.before})
            return bool(undone)
        if now == self.after:
            with contextlib.suppress(OSError):  # the working directory was removed
                self.state.write(self.before)
        return bool(now == self.after)


@dataclass
class Changes:
    """The global state that a block has changed; set when the block ends."""

    descriptions: tuple[str, ...] = ()
    has_imported: bool = False
    """Whether the block has imported modules, which may have made some of the changes."""
    _changes: tuple[_Change, ...] = ()

    def undo(self) -> None:
        """Restore what the block changed, except for what was changed again after it."""
        for change in self._changes:
            change.undo()

    def without_imports(self, repeat: Callable[[], Changes]) -> Self:
        """The same without what imports have changed, which a block changes once in a process, and so not when it is repeated.

        An import of scikit-learn sets KMP_INIT_AT_FORK, for example, and one of OpenCV sets LD_LIBRARY_PATH. Whoever writes a
        recipe that imports them can do nothing about it.
        """
        if not self.descriptions or not self.has_imported:
            return self
        undone = [change for change in self._changes if change.undo()]
        try:
            changed = {(change.state.name, part) for change in repeat()._changes for part in change.parts}
        finally:
            for change in undone:
                if change.after is not _UNREADABLE:
                    _Change(change.state, change.after, change.before).undo()
        again = [(each, [part for part in each.parts if (each.state.name, part) in changed]) for each in self._changes]
        return replace(self, descriptions=tuple(change.describe(parts) for change, parts in again if parts))


@contextlib.contextmanager
def watched() -> Iterator[Changes]:
    """Record which global state the block changes. Seeds are left out: every recipe runs under its own."""
    before, modules = [state.read() for state in _STATES], len(sys.modules)
    device = torch.get_default_device()
    result = Changes()
    try:
        yield result
    finally:
        now = [state.current() for state in _STATES]
        if torch.get_default_device().type == "meta":  # tensors on it have no values, so that nothing could be computed
            torch.set_default_device(device)
        changes = [_Change(*each) for each in zip(_STATES, before, now, strict=True) if each[1] != each[2]]
        result.descriptions = tuple(each.describe(each.parts) for each in changes)
        result.has_imported = len(sys.modules) > modules
        result._changes = tuple(changes)
