"""Which lines of the model's code a file has as they were on the example, proven by running the model so.

An exporter writes down what the code does on the example. Where Python reads a number from a tensor, decides something, counts
tensors or makes new ones, the file may go on with the example's. So the model runs on the example and on the failing input, and
what each line gets there is recorded. Lines that get the same are not to blame. Each of the others is a suspect: the model runs
on the failing input once more, and that line alone gets what it got on the example. If the model then computes what the file
computes, the line is a cause. Lost writes are tried in the same way: the model runs without them.

Of a file that fails, it is known only that it does and, from dynamo, at which line of the model. There, the first line counts
with which the model fails at that line, too, or that gets another number of tensors: the model may do with fewer, but a file
cannot split a tensor into another number of parts. Lines about which the exporter has warned are tried first.

If no line alone explains the file, several are tried together, and those are left out that are not needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import itertools
import sys
import traceback
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch

from onnx_ci.matrix.drift_limit import DriftLimit
from onnx_ci.pipeline.compare.drift import compare_refined
from onnx_ci.pipeline.inputs.probes import Inputs, Probe
from onnx_ci.pipeline.model.call import PrepareError, with_inputs
from onnx_ci.pipeline.model.operators import tensor_leaves
from onnx_ci.pipeline.model.places import CallPlaces, innermost, is_of_toolchain, source_line
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.model.running import force_eager, run, run_tree
from onnx_ci.pipeline.model.tensors import Outputs, has_noise, largest_value
from onnx_ci.pipeline.reduce.program import is_in_place, is_random, mapped
from onnx_ci.pipeline.reference.reference import proportional_reference
from onnx_ci.pipeline.trace import tracked_numbers
from onnx_ci.pipeline.trace.tracked_numbers import (
    NumbersMode,
    plain_number,
    reported_functions,
    reporting_to,
    tracked_conversions,
)
from onnx_ci.processes.clock import CLOCK
from onnx_ci.results.records import Culprit, Frozen, FrozenKind, SourceLine

_MOST_RUNS = 200
_MOST_IN_PAIRS = 10
"""Of how many suspects, the likeliest, pairs are tried."""
_NEAR = 1e-3
"""How far two outputs may be apart whose noise is not known, as a share of the largest element."""
_MOST_NUMBERS = 4
"""How many numbers of a line a message shows."""


class _Kind(enum.IntEnum):
    """What a line gets, in the order in which lines are suspected."""

    DECISION = enum.auto()
    """The outcome of a condition."""
    NUMBER = enum.auto()
    """A number that Python reads from a tensor, or makes of a size."""
    COUNT = enum.auto()
    """A number of tensors that Python sees."""
    WRITE = enum.auto()
    """Nothing: it changes a tensor."""
    ARGUMENTS = enum.auto()
    """Numbers that it gives to a function of torch."""
    CONSTANT = enum.auto()
    """A tensor that is made of no other tensor."""


@dataclass(frozen=True)
class _Line:
    """A line of code, and what it gets."""

    is_in_torch: bool
    """Whether torch's own code gets it, in a call of this line."""
    kind: _Kind
    file: str
    number: int
    caller: SourceLine | None
    """The innermost line of the project that leads there: several may call a library's line."""


@dataclass(frozen=True)
class _Place:
    """Where a line is, for messages."""

    function: str
    """What it calls: ``torch.Tensor.reshape``; empty for Python's own operators."""
    module: str
    source: SourceLine | None


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What the lines get in one run, in their order."""

    values: Mapping[_Line, Sequence[Any]]
    places: Mapping[_Line, _Place]
    is_accepted: bool


class Replay:
    """A model that runs on one input with some of its lines as on the example.

    Args:
        model: the model.
        example: the input with which it was exported.
        probe: the input on which it runs.
        outputs: the names of its outputs.
        outputs_of_file: what the file computes on the input; ``None`` if it fails.
        fails_at: the line that made the node at which it fails, if that is known.
        max_drift: the largest drift that passes.
        deadline: when to stop, by :func:`time.thread_time`.
    """

    def __init__(
        self,
        model: RecipeModel,
        example: Probe,
        probe: Probe,
        *,
        outputs: Sequence[str],
        outputs_of_file: Sequence[torch.Tensor] | None,
        fails_at: SourceLine | None = None,
        max_drift: DriftLimit,
        deadline: float,
    ) -> None:
        self._model, self._example, self._probe, self._names = model, example, probe, outputs
        self._of_file, self._max_drift, self._deadline = outputs_of_file, max_drift, deadline
        self._fails_at = fails_at
        self._namespaces: dict[int, dict[str, Any]] = {}
        self._runs = 0
        self.differences: dict[SourceLine, Frozen] = {}
        """What lines get there that is not what they got on the example. That alone does not make them a cause."""
        self.suspects: Collection[SourceLine | None] = ()
        """The lines that may be a cause."""
        self._lines_of_shapes: dict[str, tuple[_Line, ...]] = {}
        """By output, the first lines that explain its shape in the file."""
        self.causes_of_shapes: dict[str, tuple[Culprit, ...]] = {}
        """By output, the line that explains its shape in the file, where its values have another fault, too."""

    def causes(self, wrong: Collection[str], warned: Collection[SourceLine]) -> dict[str, tuple[Culprit, ...]]:
        """For each output that is explained, the lines that are its cause, in the order of the code's run.

        Args:
            wrong: the names of the outputs that are wrong, or of all outputs if the file fails.
            warned: the lines about which the exporter has warned, which are tried first.
        """
        self._recorded(self._example.inputs)  # which shows where numbers are converted
        example = self._recorded(self._example.inputs)
        own = self._recorded(self._probe.inputs)
        if not own.is_accepted:
            return {}
        wrong = {*wrong} - self._explained((), example)
        suspects = _suspects(own, example, warned)
        self.suspects = {own.places[line].source for line in suspects}
        for line in reversed(suspects):
            source = own.places[line].source
            if source is not None and line.kind is not _Kind.WRITE and not line.is_in_torch:
                self.differences[source] = _frozen(line.kind, own.values[line], example.values.get(line, ()))
        causes: dict[str, tuple[_Line, ...]] = {}
        for lines in self._candidates(suspects):
            if lines and (explained := self._explained(lines, example) & (wrong - causes.keys())):
                needed = self._needed(lines, example, explained)
                causes |= dict.fromkeys(explained, needed)
            if causes.keys() >= wrong or self._is_over:
                break
        self.causes_of_shapes = {
            name: (_culprit(lines[0], own, example),) for name, lines in self._lines_of_shapes.items() if len(lines) == 1
        }
        order = {line: position for position, line in enumerate(own.values)}
        return {
            name: tuple(_culprit(line, own, example) for line in sorted(lines, key=lambda line: order[line]))
            for name, lines in causes.items()
        }

    @property
    def _is_over(self) -> bool:
        return CLOCK.thread_time() > self._deadline or self._runs > _MOST_RUNS

    def _candidates(self, suspects: Sequence[_Line]) -> Iterator[tuple[_Line, ...]]:
        """What may explain the file: single lines, then all of the kinds that exporters freeze, all writes, and pairs."""
        yield from ((line,) for line in suspects)
        if self._of_file is not None:  # otherwise, anything that raises would do
            of_library: dict[tuple[_Kind, str, int], list[_Line]] = {}
            for line in suspects:
                of_library.setdefault((line.kind, line.file, line.number), []).append(line)
            yield from (tuple(lines) for lines in of_library.values() if len(lines) > 1)
            read = tuple(line for line in suspects if line.kind in (_Kind.DECISION, _Kind.NUMBER, _Kind.COUNT))
            yield read if len(read) > 1 else ()
            yield tuple(line for line in suspects if line.kind is _Kind.WRITE)
            yield from itertools.combinations(suspects[:_MOST_IN_PAIRS], 2)

    def _needed(self, lines: tuple[_Line, ...], example: _Run, explained: Collection[str]) -> tuple[_Line, ...]:
        """Those of the lines without which the outputs are not explained."""
        for line in lines[::-1]:
            fewer = tuple(each for each in lines if each != line)
            if fewer and not self._is_over and self._explained(fewer, example) >= {*explained}:
                lines = fewer
        return lines

    def _explained(self, lines: tuple[_Line, ...], example: _Run) -> set[str]:
        """The outputs that the model computes as the file does, if these lines get what they got on the example."""
        self._runs += 1
        as_on_example = {line: example.values.get(line, ()) for line in lines}
        mode = self._mode(self._probe.inputs, as_on_example)
        try:
            outputs = self._run(mode)
        except PrepareError as error:
            is_alike = self._of_file is None and not self._is_over and self._is_where_file_fails(error)
            return {*self._names} if is_alike else set()
        if self._of_file is None:
            return {*self._names} if mode.has_other_count else set()
        if len(outputs) != len(self._names):
            return set()
        for name, output, of_file in zip(self._names, outputs, self._of_file, strict=True):
            if output.shape == of_file.shape:
                self._lines_of_shapes.setdefault(name, lines)
        reference = proportional_reference(outputs, self._example.reference)
        if reference is None:  # the noise is not known
            values = zip(self._names, outputs, self._of_file, strict=True)
            return {name for name, own, of_file in values if _is_near(own, of_file)}
        as_replayed = dataclasses.replace(self._probe, reference=reference, refinements=())
        return {*self._names} - compare_refined(self._names, self._of_file, as_replayed, self._max_drift).failing_outputs

    def _is_where_file_fails(self, error: PrepareError) -> bool:
        """Whether the model fails at the line at which the file does, or in what that line calls, as far as that is known.

        Dynamo writes down the lines of forward, not those of other functions that forward calls.
        """
        if self._fails_at is None or error.__context__ is None:
            return True
        stack = traceback.walk_tb(error.__context__.__traceback__)
        lines = (source_line(frame.f_code.co_filename, number) for frame, number in stack)
        return any((line.file, line.line) == (self._fails_at.file, self._fails_at.line) for line in lines)

    def _mode(self, inputs: Inputs, given: Mapping[_Line, Sequence[Any]]) -> _LinesMode:
        return _LinesMode(with_inputs(self._model.fresh(), inputs), given, self._deadline)

    def _recorded(self, inputs: Inputs) -> _Run:
        mode = self._mode(inputs, {})
        try:
            self._run(mode)
            is_accepted = True
        except PrepareError:
            is_accepted = False
        self._namespaces |= mode.namespaces
        return _Run(values=mode.values, places=mode.places, is_accepted=is_accepted)

    def _run(self, mode: _LinesMode) -> Outputs:
        with contextlib.ExitStack() as stack:
            stack.enter_context(force_eager())
            stack.enter_context(tracked_conversions(self._namespaces.values()))
            stack.enter_context(reported_functions(self._namespaces.values()))
            stack.enter_context(reporting_to(mode))
            stack.enter_context(mode)
            return run(mode.model_call, seed=self._model.recipe.seed)


def _is_near(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two outputs are equal but for rounding, whatever that is in the model: to a thousandth of the largest element."""
    if tensor.shape != other.shape or not has_noise(tensor):
        return tensor.shape == other.shape and torch.equal(tensor, other)
    atol = largest_value(tensor) * _NEAR
    return torch.allclose(tensor.double(), other.double(), rtol=0.0, atol=atol, equal_nan=True)


def _suspects(own: _Run, example: _Run, warned: Collection[SourceLine]) -> list[_Line]:
    """The lines that get something else than on the example, and those that write into tensors, the likeliest first."""

    def is_suspect(line: _Line) -> bool:
        return line.kind is _Kind.WRITE or not _is_same(own.values[line], example.values.get(line, ()))

    def rank(line: _Line) -> tuple[Any, ...]:
        return line.is_in_torch, own.places[line].source not in warned, line.kind

    return sorted(filter(is_suspect, own.values), key=rank)


def _is_same(values: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(values) == len(others) and all(map(_is_equal, values, others))


def _is_equal(value: Any, other: Any) -> bool:
    if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
        return value.shape == other.shape and torch.equal(value, other)
    if not (_is_number(value) and _is_number(other)):  # of numpy, or several
        try:
            np.testing.assert_equal(value, other)
        except Exception:  # any object can be returned by a function, and refuse a comparison
            return False
        return True
    return bool(value == other) or (value != value and other != other)


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


def _culprit(line: _Line, own: _Run, example: _Run) -> Culprit:
    place = own.places[line]
    return Culprit(
        nodes=(),
        operators=(place.function,) if place.function else (),
        module=place.module,
        source=place.source,
        frozen=_frozen(line.kind, own.values[line], example.values.get(line, ())),
    )


def _frozen(kind: _Kind, here: Sequence[Any], there: Sequence[Any]) -> Frozen:
    if kind is _Kind.WRITE:
        return Frozen(kind=FrozenKind.WRITE, here=(), on_example=())
    is_choice = kind is _Kind.DECISION and bool(here and there) and here[0] != there[0]  # `or` and `and` may end early
    counted = (_Kind.NUMBER, _Kind.COUNT)  # tolist() reads as many numbers as there are, and a loop unpacks as many rows
    is_read = kind in counted and not all(map(_is_equal, here, there))
    if len(here) != len(there) and not (is_choice or is_read):
        kinds = FrozenKind.LOOP if here and there else FrozenKind.BRANCH
        return Frozen(kind=kinds, here=(len(here),), on_example=(len(there),))
    value, on_example = next(pair for pair in zip(here, there, strict=False) if not _is_equal(*pair))
    if kind is _Kind.DECISION:
        return Frozen(kind=FrozenKind.CONDITION, here=(float(value),), on_example=(float(on_example),))
    if kind is _Kind.COUNT:
        return Frozen(kind=FrozenKind.TENSORS, here=(value,), on_example=(on_example,))
    if kind is _Kind.CONSTANT or (kind is _Kind.NUMBER and not _is_number(value)):
        return Frozen(kind=FrozenKind.CONSTANT, here=(), on_example=())
    pairs = [(value, on_example)] if kind is _Kind.NUMBER else [*zip(value, on_example, strict=False)]
    different = [(float(a), float(b)) for a, b in pairs if a != b][:_MOST_NUMBERS]
    return Frozen(kind=FrozenKind.NUMBER, here=tuple(a for a, _ in different), on_example=tuple(b for _, b in different))


# --- what lines get ---------------------------------------------------------------------------------------------------

_WRAPPERS = frozenset({str(torch.overrides.__file__), str(torch._tensor.__file__), __file__, tracked_numbers.__file__})
"""The files whose frames are between the model's code and the place where it is noticed what it gets."""


class _LinesMode(NumbersMode):
    """Records what each line gets, and gives some lines what they got in another run.

    Args:
        model_call: the call that runs while the mode is active.
        given: what lines get instead, in order; a line that writes writes nothing.
        deadline: when the run ends with an error, by :func:`time.thread_time`: other numbers can make it endless.
    """

    def __init__(self, model_call: Any, given: Mapping[_Line, Sequence[Any]], deadline: float) -> None:
        super().__init__()
        self.model_call, self._given, self._deadline = model_call, given, deadline
        self.values: dict[_Line, list[Any]] = {}
        self.places: dict[_Line, _Place] = {}
        self.namespaces: dict[int, dict[str, Any]] = {}
        """The namespaces of the functions that run, by their ids."""
        self.has_other_count = False
        """Whether a line got another number of tensors than it would have got here."""
        self._call_places = CallPlaces(model_call.model)
        self._counts: Counter[_Line] = Counter()

    def call(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Call a function of torch, or do as in the other run."""
        if name in ("__get__", "__set__", "size", "dim", "stride", "storage_offset", "__index__"):
            return func(*args, **kwargs)
        title = torch.overrides.resolve_name(func) or name
        if args and isinstance(args[0], torch.Tensor) and is_in_place(name) and self._got(_Kind.WRITE, None, title)[1]:
            return None if name == "__setitem__" else args[0]
        leaves: list[Any] = []
        mapped((args, kwargs), leaves.append)
        numbers = tuple(plain_number(leaf) for leaf in leaves if _is_argument(leaf))
        if numbers:
            given, is_given = self._got(_Kind.ARGUMENTS, numbers, title)
            if is_given and len(given) == len(numbers):
                rest = iter(given)
                args, kwargs = mapped((args, kwargs), lambda leaf: next(rest) if _is_argument(leaf) else leaf)
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and not tensor_leaves((args, kwargs)) and not is_random(name):
            given, is_given = self._got(_Kind.CONSTANT, result.detach().clone(), title)
            return given.clone() if is_given else result
        if isinstance(result, (tuple, list)) and result and all(isinstance(each, torch.Tensor) for each in result):
            given, is_given = self._got(_Kind.COUNT, len(result), title)
            self.has_other_count |= is_given and given != len(result)
            return type(result)(result[:given]) if is_given and type(result) in (tuple, list) else result
        return result

    def tested(self, outcome: bool, args: Any) -> bool:
        """See :class:`NumbersMode`."""
        return bool(self._got(_Kind.DECISION, outcome)[0])

    def compared(self, outcome: bool, gap: float, total: float, *, by_sizes: bool) -> bool:
        """See :class:`~onnx_ci.pipeline.trace.tracked_numbers.Listener`."""
        return bool(self._got(_Kind.DECISION, outcome)[0])

    def converted(self, value: Any, function: str) -> Any:
        """See :class:`~onnx_ci.pipeline.trace.tracked_numbers.Listener`."""
        return self._got(_Kind.NUMBER, value, function)[0]

    def read(self, value: Any, name: str) -> Any:
        """See :class:`NumbersMode`."""
        return value if name in ("size", "numel", "nelement") else self._got(_Kind.NUMBER, value, name)[0]

    def _got(self, kind: _Kind, value: Any, function: str = "") -> tuple[Any, bool]:
        """What the line that runs gets, and whether that is from the other run. ``value`` is what it would get here."""
        if CLOCK.thread_time() > self._deadline:
            raise TimeoutError
        frame, is_in_torch = _frame_of_code()
        if frame is None:
            return value, False
        self.namespaces[id(frame.f_globals)] = frame.f_globals
        stack = itertools.takewhile(lambda place: place[0].f_code is not run_tree.__code__, traceback.walk_stack(frame))
        caller = innermost((each.f_code.co_filename, number) for each, number in stack)
        line = _Line(is_in_torch, kind, frame.f_code.co_filename, frame.f_lineno, caller)
        if line not in self.values:
            self.places[line] = _Place(function, *self._call_places.now())
        self.values.setdefault(line, []).append(value)
        number = self._counts[line]  # of the line's runs
        self._counts[line] += 1
        given = self._given.get(line)
        if given is None:
            return value, False
        if kind is _Kind.WRITE:
            return None, True
        if kind is _Kind.NUMBER and given and number >= len(given):  # of more rows than the example's, all are as its last
            return given[-1], True
        return (given[number], True) if number < len(given) else (value, False)


def _frame_of_code() -> tuple[FrameType | None, bool]:
    """The innermost frame of the model's code that is not of torch, and whether torch's code is between it and here."""
    frame: FrameType | None = sys._getframe(1)
    is_in_torch = False
    while frame is not None and frame.f_code is not run_tree.__code__:
        file = frame.f_code.co_filename
        if file not in _WRAPPERS:
            if not is_of_toolchain(file):
                return frame, is_in_torch
            is_in_torch = True
        frame = frame.f_back
    return None, is_in_torch


def _is_argument(leaf: Any) -> bool:
    return _is_number(leaf) and not isinstance(leaf, bool)
