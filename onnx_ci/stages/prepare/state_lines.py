"""The lines of a model's code that change its state, and those that draw random numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from onnx_ci.results.records import SourceLine
from onnx_ci.stages.model.live_model import Call, OperatorMode, PrepareError, force_eager, run_tree, written_to
from onnx_ci.stages.model.module import weights_of
from onnx_ci.stages.model.places import CallPlaces


def lines_that_change_state(call: Call) -> list[SourceLine]:
    """Run the model, and return the lines that set an attribute of a module or write to a parameter or a buffer."""
    lines: dict[SourceLine, None] = {}
    places = CallPlaces(call.model)
    storages = {weight.untyped_storage().data_ptr() for weight in weights_of(call.model) if weight.layout is torch.strided}

    def note() -> None:
        _, source = places.now()
        if source is not None:
            lines[source] = None

    class Writes(OperatorMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            written = written_to(func, args, kwargs or {})
            if any(each.layout is torch.strided and each.untyped_storage().data_ptr() in storages for each in written):
                note()
            return func(*args, **(kwargs or {}))

    with _attributes_noted(note), force_eager(), Writes(), contextlib.suppress(PrepareError):  # type: ignore[no-untyped-call]
        run_tree(call)
    return [*lines]


def lines_that_draw(call: Call) -> list[SourceLine]:
    """Run the model, and return the lines that draw random numbers with torch."""
    lines: dict[SourceLine, None] = {}
    places = CallPlaces(call.model)

    class Draws(OperatorMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if torch.Tag.nondeterministic_seeded in func.tags:
                _, source = places.now()
                if source is not None:
                    lines[source] = None
            return func(*args, **(kwargs or {}))

    with force_eager(), Draws(), contextlib.suppress(PrepareError):  # type: ignore[no-untyped-call]
        run_tree(call)
    return [*lines]


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
