"""Which lines of the model's code a file has as they were on the example, proven by running the model so.

An exporter writes down what the code does on the example. Where Python reads a number from a tensor, decides something, counts
tensors or makes new ones, the file may go on with the example's. So the model runs on the example and on the failing input, and
what each line gets there is recorded. Lines that get the same are not to blame. Each of the others is a suspect: the model runs
on the failing input once more, and that line alone gets what it got on the example. If the model then computes what the file
computes, the line is a cause. Lost writes are tried in the same way: the model runs without them.

Of a file that fails, it is known only that it does and, from dynamo, at which line of the model. There, the first line counts
with which the model fails at that line, too, or that gets another number of tensors: the model may do with fewer, but a file
cannot split a tensor into another number of parts. Lines about which the exporter has warned are tried first.

If no line alone explains the file, several are tried together, and those are left out that are not needed. A line about which
the exporter has warned counts as well if the model fails without it: torch refuses an index of -1 that ONNX Runtime takes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import traceback
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from onnx_ci.matrix.drift_limit import DriftLimit
from onnx_ci.pipeline.compare.drift import compare_refined
from onnx_ci.pipeline.inputs.probes import Inputs, Probe
from onnx_ci.pipeline.model.call import Call, PrepareError, with_inputs
from onnx_ci.pipeline.model.places import calls_module, source_line
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.model.running import force_eager, run
from onnx_ci.pipeline.model.tensors import Outputs, are_near
from onnx_ci.pipeline.reference.reference import proportional_reference
from onnx_ci.pipeline.trace.received import Kind, Received, received
from onnx_ci.pipeline.trace.recorder import Recorder
from onnx_ci.pipeline.trace.trace import FunctionCall, Role, Trace, leaves_in
from onnx_ci.pipeline.trace.tracked_numbers import reported_functions, tracked_conversions
from onnx_ci.processes.clock import CLOCK
from onnx_ci.results.records import Culprit, Frozen, FrozenKind, SourceLine

_MOST_RUNS = 200
_MOST_IN_PAIRS = 10
"""Of how many suspects, the likeliest, pairs are tried."""
_MOST_NUMBERS = 4
"""How many numbers of a line a message shows."""
_READ = (Kind.DECISION, Kind.NUMBER, Kind.COUNT)
"""What exporters write down as it is on the example."""


class _Key(NamedTuple):
    """What makes two lines the same. Several calls of one line are one suspect, because a message names the line."""

    kind: Kind
    is_in_torch: bool
    """Whether torch's own code gets it, in a call of the line."""
    line: tuple[str, int]
    """The file and the number."""
    source: SourceLine | None
    """The innermost line of the project that leads there: several may call a library's line."""


def _key(what: Received) -> _Key:
    return _Key(what.kind, what.place.is_in_torch, what.place.line, what.place.source)


@dataclass(kw_only=True, eq=False)
class Line:
    """A line of code, and what it gets in two runs, each in order."""

    key: _Key
    function: str
    """What gives it: ``torch.Tensor.reshape``; empty for Python's own operators."""
    module: str
    here: list[Any] = field(default_factory=list)
    on_example: list[Any] = field(default_factory=list)

    @property
    def differs(self) -> bool:
        """Whether it gets something else in one run than in the other."""
        return len(self.here) != len(self.on_example) or not all(map(_is_equal, self.here, self.on_example))

    @property
    def frozen(self) -> Frozen:
        """What it gets there that is not what it gets on the example."""
        kind, here, there = self.key.kind, self.here, self.on_example
        if kind is Kind.WRITE:
            return Frozen(kind=FrozenKind.WRITE, here=(), on_example=())
        is_choice = kind is Kind.DECISION and bool(here and there) and here[0] != there[0]  # `or` and `and` may end early
        counted = (Kind.NUMBER, Kind.COUNT)  # tolist() reads as many numbers as there are, and a loop unpacks as many rows
        is_read = kind in counted and not all(map(_is_equal, here, there))
        if len(here) != len(there) and not (is_choice or is_read):
            kinds = FrozenKind.LOOP if here and there else FrozenKind.BRANCH
            return Frozen(kind=kinds, here=(len(here),), on_example=(len(there),))
        value, on_example = next(pair for pair in zip(here, there, strict=False) if not _is_equal(*pair))
        if kind is Kind.DECISION:
            return Frozen(kind=FrozenKind.CONDITION, here=(float(value),), on_example=(float(on_example),))
        if kind is Kind.COUNT:
            return Frozen(kind=FrozenKind.TENSORS, here=(value,), on_example=(on_example,))
        numbers, others = leaves_in(value), leaves_in(on_example)
        if kind is Kind.CONSTANT or not all(map(_is_number, numbers)):
            return Frozen(kind=FrozenKind.CONSTANT, here=(), on_example=())
        pairs = [each for each in zip(numbers, others, strict=False) if isinstance(value, list) or not _is_equal(*each)]
        different = [(float(a), float(b)) for a, b in pairs or [(len(numbers), len(others))]][:_MOST_NUMBERS]
        return Frozen(kind=FrozenKind.NUMBER, here=tuple(a for a, _ in different), on_example=tuple(b for _, b in different))

    @property
    def culprit(self) -> Culprit:
        """The line as the cause of a fault."""
        operators = (self.function,) if self.function else ()
        return Culprit(nodes=(), operators=operators, module=self.module, source=self.key.source, frozen=self.frozen)


def differences(trace: Trace, example: Trace) -> list[Line]:
    """The lines that get something else in a run than on the example, and those that write into tensors, in their order.

    Lines that only the example reaches come last, and get nothing ``here``.
    """
    lines: dict[_Key, Line] = {}
    for recorded in (trace, example):
        for each in received(recorded):
            if each.place.frames:
                new = Line(key=_key(each), function=each.function, module=each.place.module)
                line = lines.setdefault(new.key, new)
                (line.here if recorded is trace else line.on_example).append(each.value)
    return [each for each in lines.values() if each.key.kind is Kind.WRITE or each.differs]


class AsOnExample:
    """Answers with what some lines get on the example. A line that writes writes nothing.

    After the deadline, the run ends with an error: other numbers can make it endless.
    """

    def __init__(self, lines: Sequence[Line], deadline: float) -> None:
        self._given = {line.key: line.on_example for line in lines}
        self._deadline = deadline
        self._counts: Counter[_Key] = Counter()
        self.has_other_count = False
        """Whether a line got another number of tensors than it would have got here."""

    def __call__(self, what: Received) -> Any:
        """What the code gets."""
        if CLOCK.thread_time() > self._deadline:
            raise TimeoutError
        key = _key(what)
        given = self._given.get(key)
        if given is None:
            return what.value
        if what.kind is Kind.WRITE:
            return False
        number = self._counts[key]  # of the line's runs
        self._counts[key] += 1
        if number >= len(given):  # of more rows than the example's, all are as its last
            return given[-1] if what.kind is Kind.NUMBER and given else what.value
        value = given[number]
        self.has_other_count |= what.kind is Kind.COUNT and value != what.value
        if what.kind is Kind.CONSTANT:
            return value.clone()
        return what.value if what.kind is Kind.ARGUMENTS and len(value) != len(what.value) else value


@dataclass(kw_only=True)
class Replay:
    """A model that runs on one input with some of its lines as on the example."""

    model: RecipeModel
    example: Probe
    """The input with which it was exported."""
    probe: Probe
    outputs: Sequence[str]
    outputs_of_file: Sequence[torch.Tensor] | None
    """What the file computes on the input; ``None`` if it fails."""
    fails_at: Culprit | None = None
    """The node at which it fails, with the line or the module that made it, as far as that is known."""
    max_drift: DriftLimit
    deadline: float
    """When to stop, by :func:`time.thread_time`."""
    differences: dict[SourceLine, Frozen] = field(default_factory=dict)
    """What lines get there that is not what they got on the example. That alone does not make them a cause."""
    suspects: Collection[SourceLine | None] = ()
    """The lines that may be a cause."""
    causes_of_shapes: dict[str, tuple[Culprit, ...]] = field(default_factory=dict)
    """By output, the line that explains its shape in the file, where its values have another fault, too."""
    _lines_of_shapes: dict[str, tuple[Line, ...]] = field(default_factory=dict)
    """By output, the first lines that explain its shape in the file."""
    _unreached: Sequence[Line] = ()
    """Those of the lines that only the example reaches. The run may get there if another line is as on the example."""
    _namespaces: dict[int, dict[str, Any]] = field(default_factory=dict)
    _runs: int = 0
    _fatal: list[Line] = field(default_factory=list)
    """The lines with which the model fails, and the file does not."""

    def causes(self, wrong: Collection[str], warned: Collection[SourceLine]) -> dict[str, tuple[Culprit, ...]]:
        """For each output that is explained, the lines that are its cause, in the order of the code's run.

        If the file fails, all outputs are wrong. The lines about which the exporter has warned are tried first.
        """
        self._recorded(self.example.inputs)  # which shows where numbers are converted
        example = self._recorded(self.example.inputs)
        own = self._recorded(self.probe.inputs)
        if not own.is_accepted:
            return {}
        wrong = {*wrong} - self._explained(())
        lines = differences(own, example)
        self._unreached = [line for line in lines if not line.here and line.key.kind in _READ]
        suspects = sorted(
            (line for line in lines if line.here),
            key=lambda line: (line.key.is_in_torch, line.key.source not in warned, line.key.kind),
        )
        self.suspects = {line.key.source for line in suspects}
        for line in reversed(suspects):
            if line.key.source is not None and line.key.kind is not Kind.WRITE and not line.key.is_in_torch:
                self.differences[line.key.source] = line.frozen
        causes: dict[str, tuple[Line, ...]] = {}
        for tried in self._candidates(suspects):
            if tried and (explained := self._explained(tried) & (wrong - causes.keys())):
                causes |= dict.fromkeys(explained, self._needed(tried, explained))
            if causes.keys() >= wrong or self._is_over:
                break
        if not causes and (fatal := [one for one in self._fatal if one.key.source in warned]):
            causes = dict.fromkeys(wrong, (fatal[0],))
        self.causes_of_shapes = {name: (one[0].culprit,) for name, one in self._lines_of_shapes.items() if len(one) == 1}
        return {name: tuple(line.culprit for line in sorted(of_name, key=lines.index)) for name, of_name in causes.items()}

    @property
    def _is_over(self) -> bool:
        return CLOCK.thread_time() > self.deadline or self._runs > _MOST_RUNS

    def _candidates(self, suspects: Sequence[Line]) -> Iterator[tuple[Line, ...]]:
        """What may explain the file: single lines, then all of the kinds that exporters freeze, all writes, and pairs."""
        yield from ((line,) for line in suspects)
        if self.outputs_of_file is not None:  # otherwise, anything that raises would do
            of_library: dict[tuple[Kind, tuple[str, int]], list[Line]] = {}
            for line in suspects:
                of_library.setdefault((line.key.kind, line.key.line), []).append(line)
            yield from (tuple(lines) for lines in of_library.values() if len(lines) > 1)
            read = tuple(line for line in suspects if line.key.kind in _READ)
            yield read if len(read) > 1 else ()
            yield tuple(line for line in suspects if line.key.kind is Kind.WRITE)
            yield from itertools.combinations(suspects[:_MOST_IN_PAIRS], 2)

    def _needed(self, lines: tuple[Line, ...], explained: Collection[str]) -> tuple[Line, ...]:
        """Those of the lines without which the outputs are not explained."""
        for line in lines[::-1]:
            fewer = tuple(each for each in lines if each != line)
            if fewer and not self._is_over and self._explained(fewer) >= {*explained}:
                lines = fewer
        return lines

    def _explained(self, lines: tuple[Line, ...]) -> set[str]:
        """The outputs that the model computes as the file does, if these lines get what they got on the example."""
        self._runs += 1
        answers = AsOnExample((*lines, *self._unreached), self.deadline)
        call, recorder = self._recorder(self.probe.inputs, answers)
        try:
            outputs = self._run(call, recorder)
        except PrepareError as error:
            if self._is_over:
                return set()
            if self.outputs_of_file is not None:
                self._fatal += lines
                return set()
            return {*self.outputs} if self._is_where_file_fails(error, call.model) else set()
        if self.outputs_of_file is None:
            return {*self.outputs} if answers.has_other_count else set()
        if len(outputs) != len(self.outputs):
            return set()
        for name, output, of_file in zip(self.outputs, outputs, self.outputs_of_file, strict=True):
            if output.shape == of_file.shape:
                self._lines_of_shapes.setdefault(name, lines)
        reference = proportional_reference(outputs, self.example.reference)
        if reference is None:  # the noise is not known
            values = zip(self.outputs, outputs, self.outputs_of_file, strict=True)
            return {name for name, own, of_file in values if own.shape == of_file.shape and are_near(own, of_file)}
        as_replayed = dataclasses.replace(self.probe, reference=reference, refinements=())
        compared = compare_refined(self.outputs, self.outputs_of_file, as_replayed, self.max_drift)
        return {*self.outputs} - compared.failing_outputs

    def _is_where_file_fails(self, error: PrepareError, model: torch.nn.Module) -> bool:
        """Whether the model fails where the file does, at its line or in what that calls, or in its module, if that is known.

        Dynamo writes down the lines of forward, not those of other functions that forward calls; TorchScript the modules.
        """
        if self.fails_at is None or error.__context__ is None:
            return True
        stack = [*traceback.walk_tb(error.__context__.__traceback__)]
        if (at := self.fails_at.source) is not None:
            lines = (source_line(frame.f_code.co_filename, number) for frame, number in stack)
            return any((line.file, line.line) == (at.file, at.line) for line in lines)
        called = [frame.f_locals.get("self") for frame, _ in stack if calls_module(frame)]
        return not called or called[-1] is dict(model.named_modules()).get(self.fails_at.module)

    def _recorded(self, inputs: Inputs) -> Trace:
        call, recorder = self._recorder(inputs, AsOnExample((), self.deadline))
        with contextlib.suppress(PrepareError):
            recorder.returned(self._run(call, recorder))
        self._namespaces |= recorder.namespaces
        return recorder.trace

    def _recorder(self, inputs: Inputs, answers: AsOnExample) -> tuple[Call, Recorder]:
        """A call, and what records it: of the numbers of tensors, only those of new ones can differ between two runs."""
        call = with_inputs(self.model.fresh(), inputs)
        return call, Recorder(call, _keep_created, answers=answers, kinds=[FunctionCall])

    def _run(self, call: Call, recorder: Recorder) -> Outputs:
        namespaces = self._namespaces.values()
        with force_eager(), tracked_conversions(namespaces), reported_functions(namespaces), recorder:
            return run(call, seed=self.model.recipe.seed)


def _keep_created(tensor: torch.Tensor, role: Role) -> torch.Tensor | None:
    return tensor.detach().clone() if role in (Role.CREATED, Role.CONSTANT) else None


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
