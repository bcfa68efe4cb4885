"""The lines of a model's code that change its state, and those that draw random numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from onnx_ci.pipeline.model.call import Call, PrepareError
from onnx_ci.pipeline.model.module import weights_of
from onnx_ci.pipeline.model.operators import OperatorMode, written_to
from onnx_ci.pipeline.model.places import CallPlaces
from onnx_ci.pipeline.model.running import force_eager, run_tree
from onnx_ci.results.records import SourceLine


def lines_that_change_state(call: Call) -> list[SourceLine]:
    """Run the model, and return the lines that set an attribute of a module or write to a parameter or a buffer."""
    storages = {weight.untyped_storage().data_ptr() for weight in weights_of(call.model) if weight.layout is torch.strided}

    def writes_to_state(func: Any, args: Any, kwargs: Any) -> bool:
        written = written_to(func, args, kwargs)
        return any(each.layout is torch.strided and each.untyped_storage().data_ptr() in storages for each in written)

    lines = _Lines(call, writes_to_state)
    with _attributes_noted(lines.note):
        lines.run()
    return [*lines.lines]


def lines_that_draw(call: Call) -> list[SourceLine]:
    """Run the model, and return the lines that draw random numbers with torch."""
    lines = _Lines(call, lambda func, args, kwargs: torch.Tag.nondeterministic_seeded in func.tags)
    lines.run()
    return [*lines.lines]


class _Lines(OperatorMode):
    """Notes the lines that call certain operators.

    Args:
        is_noted: whether a call of an operator is noted, by the operator and its arguments.
    """

    def __init__(self, call: Call, is_noted: Callable[[Any, Any, Any], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._call, self._is_noted, self._places = call, is_noted, CallPlaces(call.model)
        self.lines: dict[SourceLine, None] = {}
        """The lines, in the order of the run."""

    def run(self) -> None:
        """Run the model. What it raises ends the run."""
        with force_eager(), self, contextlib.suppress(PrepareError):
            run_tree(self._call)

    def note(self) -> None:
        """Note the line that runs."""
        _, source = self._places.now()
        if source is not None:
            self.lines[source] = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._is_noted(func, args, kwargs or {}):
            self.note()
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _attributes_noted(note: Callable[[], None]) -> Iterator[None]:
    """Call ``note`` for each attribute of a module that is set within the context."""
    as_usual = torch.nn.Module.__setattr__

    def noting(self: torch.nn.Module, name: str, value: Any) -> None:
        note()
        as_usual(self, name, value)

    torch.nn.Module.__setattr__ = noting  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.__setattr__ = as_usual  # type: ignore[method-assign]
