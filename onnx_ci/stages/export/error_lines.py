"""The line of the model that an exporter's error is about."""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from onnx_ci.processes.capture import captured
from onnx_ci.results.records import SourceLine
from onnx_ci.stages.export.places import innermost, is_in_project
from onnx_ci.stages.prepare.prepare import Prepared


def was_unhandled(error: BaseException | None) -> bool:
    """Whether an error is why another one was raised while it was handled: not if it is the model's code that handles it."""
    if error is None or error.__traceback__ is None:
        return error is not None
    return not is_in_project(error.__traceback__.tb_frame.f_code.co_filename)


def line_of_error(chain: Sequence[BaseException]) -> SourceLine | None:
    """The innermost line of the model's code that raised an error, or else the one that the exporter was converting.

    Args:
        chain: the error, what it was raised from, and so on.
    """
    frames = [[*traceback.walk_tb(link.__traceback__)][::-1] for link in reversed(chain)]
    raised = (innermost((frame.f_code.co_filename, line) for frame, line in each) for each in frames)
    values = (value for each in frames for frame, _ in each for value in frame.f_locals.values())
    converted = (innermost(_places_of_node(value)) for value in values)
    return next(filter(None, itertools.chain(raised, converted)), None)


_FX_PLACE = re.compile(r'File "(.+?)", line (\d+), in ')
_TORCHSCRIPT_PLACE = re.compile(r"^(.+)\((\d+)\): ", re.MULTILINE)


def _places_of_node(value: object) -> list[tuple[str, int]]:
    """The lines that made a node of a graph, innermost first; empty for anything else."""
    if isinstance(value, torch.fx.Node):
        found = _FX_PLACE.findall(value.meta.get("stack_trace") or "")[::-1]
    elif isinstance(value, torch._C.Node):
        found = _TORCHSCRIPT_PLACE.findall(str(value.sourceRange()))
    else:
        return []
    return [(file, int(line)) for file, line in found]


# --- sizes that torch.export fixes --------------------------------------------------------------------------------------


def line_that_fixes(prepared: Prepared, dimension: str) -> SourceLine | None:
    """The line of the project because of which ``torch.export`` fixes a size that should be dynamic, if it can be told.

    The error does not say it, so the model is traced again while the guards that ``torch.export`` logs are observed.

    Args:
        prepared: the recipe.
        dimension: the size, as the error calls it without ``inputs`` in front: ``['x'].shape[0]``.
    """
    call = prepared.fresh()
    guards = _Guards()
    with (
        captured(),
        _filtered(logging.getLogger("torch.fx.experimental.symbolic_shapes"), guards),
        contextlib.suppress(Exception),
    ):
        torch.export.export(
            call.model, tuple(call.args), call.kwargs or None, dynamic_shapes=_hints(prepared.dynamic_shapes), strict=False
        )
    return guards.fixed.get(dimension)


def _hints(shapes: Any) -> Any:
    """The names of axes as hints, which is how torch.onnx passes them on."""
    return torch.utils._pytree.tree_map_only(str, lambda _: torch.export.Dim.DYNAMIC, shapes)


_SYMBOL = re.compile(r"create_symbol (\w+) = .+? for L(\S*)\.size\(\)\[(\d+)\]")
_FIXED = re.compile(r"Eq\((\w+), \d+\) \[guard added\]")


@dataclass
class _Guards(logging.Filter):
    """Reads what is logged about sizes, and keeps it out of the log."""

    fixed: dict[str, SourceLine] = field(default_factory=dict)
    """The line that fixed each size first."""
    _symbols: dict[str, str] = field(default_factory=dict)

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if made := _SYMBOL.search(message):
            self._symbols[made[1]] = f"{made[2]}.shape[{made[3]}]"
        elif (fixed := _FIXED.search(message)) and fixed[1] in self._symbols:
            # What calls the second trace is not part of the model.
            called = itertools.takewhile(_is_in_trace, traceback.walk_stack(sys._getframe()))
            source = innermost((frame.f_code.co_filename, line) for frame, line in called)
            if source is not None:
                self.fixed.setdefault(self._symbols[fixed[1]], source)
        return False


def _is_in_trace(called: tuple[FrameType, int]) -> bool:
    return called[0].f_code is not line_that_fixes.__code__


@contextlib.contextmanager
def _filtered(logger: logging.Logger, filter: logging.Filter) -> Iterator[None]:
    """Pass everything that is logged, from level INFO on, through a filter."""
    level = logger.level
    logger.addFilter(filter)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeFilter(filter)
