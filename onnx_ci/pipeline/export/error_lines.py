"""The line of the model that an exporter's error is about.

The traceback holds it, or the node that was being converted. Where ``torch.export`` fixes a size, the error names no line, so
the model is traced again: that a size is replaced by a number is logged while the line runs. Cells that pass pay nothing for
either.
"""

from __future__ import annotations

import contextlib
import dis
import itertools
import logging
import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import onnx
import torch

from onnx_ci.pipeline.model.call import Call, PrepareError
from onnx_ci.pipeline.model.places import calls_module, innermost, is_in_project
from onnx_ci.pipeline.model.running import force_eager, run_tree
from onnx_ci.pipeline.trace.recorder import Recorder
from onnx_ci.pipeline.trace.trace import FunctionCall, Operator, UnseenRead
from onnx_ci.processes.capture import captured
from onnx_ci.results.records import SourceLine


def was_unhandled(error: BaseException | None) -> bool:
    """Whether an exporter failed because of this error: not if the model's own code was handling it."""
    if error is None or error.__traceback__ is None:
        return error is not None
    return not is_in_project(error.__traceback__.tb_frame.f_code.co_filename)


def line_of_error(chain: Sequence[BaseException]) -> SourceLine | None:
    """The innermost line of the model's code that raised an error, or else the one that the exporter was converting."""
    stacks = [[*traceback.walk_tb(link.__traceback__)][::-1] for link in reversed(chain)]
    raised = map(_line_in, stacks)
    values = (value for stack in stacks for frame, _ in stack for value in frame.f_locals.values())
    converted = (innermost(_places_of_node(value)) for value in values)
    return next(filter(None, itertools.chain(raised, converted)), None)


def _line_in(stack: Sequence[tuple[FrameType, int]]) -> SourceLine | None:
    """The innermost line of a stack, which is given innermost first.

    Where no line is the user's, only those within calls of modules are the model's; others are those of an exporter's library.
    """
    places = [(frame.f_code.co_filename, line) for frame, line in stack]
    if any(is_in_project(file) for file, _ in places):
        return innermost(places)
    calls = [position for position, (frame, _) in enumerate(stack) if calls_module(frame)]
    return innermost(places[: calls[-1]]) if calls else None


_FX_PLACE = re.compile(r'File "(.+?)", line (\d+), in ')
_TORCHSCRIPT_PLACE = re.compile(r"^(.+)\((\d+)\): ", re.MULTILINE)


def _places_of_node(value: object) -> list[tuple[str, int]]:
    """The lines that made a node of a graph, innermost first; empty for anything else."""
    if isinstance(value, torch.fx.Node):
        return _places_in(value.meta.get("stack_trace") or "")
    if isinstance(value, torch.Node):
        return [(file, int(line)) for file, line in _TORCHSCRIPT_PLACE.findall(str(value.sourceRange()))]
    return []


def _places_in(stack_trace: str) -> list[tuple[str, int]]:
    return [(file, int(line)) for file, line in _FX_PLACE.findall(stack_trace)[::-1]]


def line_of_node(node: onnx.NodeProto) -> SourceLine | None:
    """The line that made a node of a file, if dynamo has written the stack of the call into the node."""
    stacks = (each.value for each in node.metadata_props if each.key == "pkg.torch.onnx.stack_trace")
    return innermost(_places_in(next(stacks, "")))


def line_of_call(call: Call, *names: str, is_only: bool = False) -> SourceLine | None:
    """The first line that calls ``aten.kthvalue.default`` or ``numpy``, of several names the first; or only if it is alone."""
    recorder = Recorder(call, kinds=[Operator, FunctionCall, UnseenRead])
    with contextlib.suppress(PrepareError), force_eager(), recorder:
        run_tree(call)
    calls = [(str(each.call.operator), each.place) for each in recorder.trace.of_kind(Operator)]
    calls += [(each.name, each.place) for each in recorder.trace.of_kind(FunctionCall)]
    calls += [(each.function, each.place) for each in recorder.trace.of_kind(UnseenRead)]
    lines = dict.fromkeys(place.source for name in names for called, place in calls if called == name)
    return next(iter(lines), None) if len(lines) == 1 or not is_only else None


def line_of_return(module: torch.nn.Module) -> SourceLine | None:
    """The last line at which ``forward`` returns."""
    code = getattr(module.forward, "__code__", None)
    if not isinstance(code, CodeType):
        return None
    returns = [step.positions for step in dis.get_instructions(code) if step.opname.startswith("RETURN")]
    return innermost((code.co_filename, each.lineno or 0) for each in returns[-1:] if each)


def line_that_fixes(call: Call, dynamic_shapes: tuple[Any, ...] | None, dimension: str) -> SourceLine | None:
    """The line of the project that makes ``torch.export`` fix a size that should be dynamic; ``None`` if it is not known.

    The copy of the model in ``call`` is traced. The size is named as in the error without ``inputs``: ``['x'].shape[0]``.
    """
    guards = _Guards()
    # As torch.onnx passes dynamic axes on to torch.export: as hints, in place of their names.
    hints = torch.utils._pytree.tree_map_only(str, lambda _: torch.export.Dim.DYNAMIC, dynamic_shapes)
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level = logger.level
    logger.addFilter(guards)
    logger.setLevel(logging.INFO)
    try:
        with captured(), contextlib.suppress(Exception):
            torch.export.export(call.model, tuple(call.args), call.kwargs or None, dynamic_shapes=hints, strict=False)
    finally:
        logger.setLevel(level)
        logger.removeFilter(guards)
    return guards.fixed.get(dimension)


_SYMBOL = re.compile(r"create_symbol (\w+) = .+? for L(\S*)\.size\(\)\[(\d+)\]")
_FIXED = re.compile(r"set_replacement (\w+) = \d+ ")


@dataclass
class _Guards(logging.Filter):
    """Reads what is logged about sizes, and keeps it out of the log."""

    fixed: dict[str, SourceLine] = field(default_factory=dict)
    """The line that fixed each size first."""
    _symbols: dict[str, str] = field(default_factory=dict)

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if symbol := _SYMBOL.search(message):
            self._symbols[symbol[1]] = f"{symbol[2]}.shape[{symbol[3]}]"
        elif (fixed := _FIXED.search(message)) and fixed[1] in self._symbols:
            frames = traceback.walk_stack(sys._getframe())
            # Frames outside of the second trace are not of the model.
            of_trace = itertools.takewhile(lambda place: place[0].f_code is not line_that_fixes.__code__, frames)
            source = innermost((frame.f_code.co_filename, line) for frame, line in of_trace)
            if source is not None:
                self.fixed.setdefault(self._symbols[fixed[1]], source)
        return False
