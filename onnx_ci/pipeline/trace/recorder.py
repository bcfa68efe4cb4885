"""Records a run of a model in eager mode.

Two modes see what a model calls: one the functions of torch, and one the operators below them, also those of scripted code and
of code in C++. Sizes and single values that a function returns are handed out as tracked numbers
(:mod:`~onnx_ci.pipeline.trace.tracked_numbers`), which report what Python does with them.

What a mode cannot see, such as compiled code and tensors that are made in C++, appears as a constant.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from typing import Any, Self

import torch
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from onnx_ci.pipeline.model.call import Call, PrepareError, input_tensors
from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.module import named_weights_of
from onnx_ci.pipeline.model.operators import Intervention, OperatorCall, tensor_leaves
from onnx_ci.pipeline.model.running import force_eager, in_small_operators, run_tree
from onnx_ci.pipeline.trace.call_places import CallPlaces
from onnx_ci.pipeline.trace.received import Kind, Received, numbers_in, with_numbers
from onnx_ci.pipeline.trace.trace import (
    Comparison,
    Decision,
    Event,
    FunctionCall,
    NumberRead,
    Operator,
    Place,
    Ref,
    Role,
    Trace,
    UnseenRead,
    Value,
    is_in_place,
    is_repeatable,
    mapped,
    refs_in,
)
from onnx_ci.pipeline.trace.tracked_numbers import Origin, Values, plain_number, reporting_to, tracked, tracked_conversions

MOST_EVENTS = 10**5
"""How many events a trace has at most."""
MOST_KEPT = 2**16
"""How many elements a tensor has at most whose numbers are kept."""

Keep = Callable[[torch.Tensor, Role], Any]
"""What a trace keeps of the numbers of a value with a role."""
Answers = Callable[[Received], Any]
"""What the code gets in place of what it would get, of the same kind; of a write, whether it takes place."""


def keep_indices(tensor: torch.Tensor, role: Role) -> torch.Tensor | None:
    """A copy of a single number, or of integers that are not too many: they may be indices."""
    is_index = not (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel() <= MOST_KEPT
    is_kept = tensor.layout is torch.strided and (is_index or tensor.numel() == 1)
    return tensor.detach().to("cpu", copy=True) if is_kept else None


class Tracer:
    """Records runs of a model on other inputs."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._converting: dict[int, dict[str, Any]] = {}
        """The namespaces of functions that convert sizes or tensors by ``int``, ``float`` or ``len``, by their ids."""
        self.must_repeat = False
        """Whether the last run has shown another of them, so that it is not recorded how its numbers are converted."""

    def trace(self, inputs: Sequence[torch.Tensor]) -> Trace:
        """A run on ``inputs``, repeated if it shows where the model converts numbers. What raises rejects them."""
        try:
            self._copies.try_on_cpu(inputs)
        except PrepareError:
            return Trace(is_accepted=False)
        trace, _ = self.record(self._copies.running(inputs))
        return self.record(self._copies.running(inputs))[0] if self.must_repeat else trace

    def record(self, call: Call, *, seed: int = 0) -> tuple[Trace, Any]:
        """Run a call once. What it returns comes with the trace, and is ``None`` if it raises."""
        recorder, result = Recorder(call), None
        conversions = tracked_conversions(self._converting.values())
        with contextlib.suppress(PrepareError), force_eager(), in_small_operators(), conversions, recorder:
            result = run_tree(call, seed=seed)
            recorder.returned(result)
        self.must_repeat = not recorder.converting.keys() <= self._converting.keys()
        self._converting |= recorder.converting
        return recorder.trace, result


class Recorder:
    """Records what happens while it is entered.

    Without functions among its ``kinds``, the code of the model runs as it does without a recorder, and what Python reads is
    not recorded either. Without operators, a tensor is one value however often it is written to.
    """

    def __init__(
        self,
        call: Call,
        keep: Keep = keep_indices,
        *,
        answers: Answers | None = None,
        kinds: Collection[type[Event]] = (FunctionCall, Operator),
    ) -> None:
        self._keep, self._answers, self._kinds, self._operators = keep, answers, kinds, _Operators(self)
        self._events: list[Event] = []
        self._values: list[Value] = []
        # Weak, so that recording a run needs little more memory than the run.
        self._positions: MutableMapping[torch.Tensor, int] = WeakIdKeyDictionary()
        """The value that each tensor is at the moment."""
        self._place: Place | None = None
        """That of the function that runs, and of the operators in it."""
        self._is_paused = False
        """Whether the operators that run are the recorder's own."""
        self._sharing: dict[int, MutableMapping[torch.Tensor, bool]] = {}
        """The tensors that share memory, by the first value in it."""
        self._sized_by_values: set[int] = set()
        """The values whose sizes depend on the values of others, as those of ``nonzero``."""
        self._weights: dict[int, torch.Tensor] = {}
        """The weights by their addresses."""
        self.trace = Trace(values=self._values, events=self._events, is_accepted=False)
        self.converting: dict[int, dict[str, Any]] = {}
        """The namespaces of functions that convert numbers, by their ids."""
        self._places = CallPlaces(call.model)
        self._modes = contextlib.ExitStack()
        for tensor in input_tensors(call):
            self._add(tensor, Role.INPUT)
        self.trace.inputs = tuple(range(len(self._values)))
        for name, weight in named_weights_of(call.model).items():
            if weight not in self._positions and not is_lazy(weight):
                self._add(weight, Role.WEIGHT, name=name)
            if (address := _address(weight)) is not None:
                self._weights.setdefault(address, weight)

    def __enter__(self) -> Self:
        if FunctionCall in self._kinds:
            for context in (reporting_to(self), _Functions(self)):
                self._modes.enter_context(context)
        if Operator in self._kinds:
            self._modes.enter_context(self._operators)
        return self

    def __exit__(self, *exception: object) -> None:
        self._modes.close()

    @property
    def namespaces(self) -> dict[int, dict[str, Any]]:
        """The namespaces of the functions in which something has happened, by their ids."""
        return {id(namespace): namespace for namespace in self._places.namespaces.values()}

    def returned(self, result: Any) -> None:
        """Note what the model has returned."""
        self.trace.is_accepted = True
        self.trace.outputs = tuple(self._positions.get(tensor) for tensor in tensor_leaves(result))

    def _note(self, event: Event) -> None:
        if self._has_room:
            self._events.append(event)
        if not self._has_room:
            self.trace.is_complete = False

    @property
    def _has_room(self) -> bool:
        return len(self._events) < MOST_EVENTS

    @contextlib.contextmanager
    def _own_work(self) -> Iterator[None]:
        """What the recorder itself does is not recorded. A class of tensors can refuse it: then an event is missing."""
        self._is_paused, before = True, self._is_paused
        try:
            yield
        except Exception:
            self.trace.is_complete = False
        finally:
            self._is_paused = before

    def _add(self, tensor: torch.Tensor, role: Role, *, name: str = "", shown: torch.Tensor | None = None) -> int:
        """A new value for a tensor; ``shown`` is the tensor in whose memory it is."""
        position = memory = len(self._values)
        if shown is not None:
            memory = self._values[self._positions[shown]].memory
            self._sharing.setdefault(memory, WeakIdKeyDictionary()).update({shown: True, tensor: True})
        is_plain, kept = _address(tensor) is not None, None
        with contextlib.suppress(RuntimeError):  # a tensor without numbers, or of a type that cannot be copied
            kept = self._keep(tensor, role) if is_plain else None
        shape = () if tensor.is_nested else tuple(map(int, tensor.shape))
        stride = tensor.stride() if is_plain else None
        self._values.append(Value(role, shape, tensor.dtype, stride=stride, name=name, memory=memory, kept=kept))
        self._positions[tensor] = position
        return position

    def _position(self, tensor: torch.Tensor) -> int:
        """The value that a tensor is; one that was not seen before is a constant, or shows a weight."""
        position = self._positions.get(tensor)
        if position is not None:
            return position
        address = _address(tensor)
        return self._add(tensor, Role.CONSTANT, shown=None if address is None else self._weights.get(address))

    def _described(self, value: Any) -> Any:
        """Arguments or results with each tensor as a reference, and each tracked number as a plain one."""

        def described(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return Ref(self._position(leaf))
            if isinstance(leaf, (tuple, list)):  # one with names
                return tuple(map(self._described, leaf))
            return leaf if (number := plain_number(leaf)) is None else number

        return mapped(value, described)

    def _described_arguments(self, args: Any, kwargs: Any) -> tuple[Any, Any, Place] | None:
        """What a call gets and where it is, before it writes to anything; ``None`` if a tensor cannot be described."""
        with self._own_work():
            return self._described(args), self._described(kwargs), self._place or self._places.now()
        return None

    def operator(self, call: OperatorCall) -> Any:
        """Call an operator, and record it."""
        if self._is_paused or not self._has_room:
            return call.run()
        arguments = self._described_arguments(call.args, call.kwargs)
        result = call.run()
        with self._own_work():
            written = self._overwritten(call.written)
            shown = next(iter(call.operands), None) if call.is_view else None
            role = Role.RESULT if call.operands else Role.CREATED
            results = []
            for tensor in [result] if isinstance(result, torch.Tensor) else tensor_leaves(result):
                position = self._positions.get(tensor)
                results.append(self._add(tensor, role, shown=shown) if position is None else position)
                self.trace.elements += tensor.numel()
            if self._gets_size_from_values(call):
                self._sized_by_values.update(results)
            if arguments is not None:
                args, kwargs, place = arguments
                self._note(Operator(OperatorCall(call.operator, args, kwargs), tuple(results), written, place))
        return result

    def _gets_size_from_values(self, call: OperatorCall) -> bool:
        if torch.Tag.dynamic_output_shape in call.operator.tags:
            is_index = call.name == "aten::index"  # by booleans or by integers
            return not is_index or any(each.dtype in (torch.bool, torch.uint8) for each in call.operands[1:])
        return bool(self._sized_by_values) and any(self._positions.get(each) in self._sized_by_values for each in call.operands)

    def higher_order(self, call: OperatorCall) -> None:
        """Record an operator that takes functions; the operators that these call follow."""
        if not self._is_paused and (arguments := self._described_arguments(call.args, call.kwargs)) is not None:
            args, kwargs, place = arguments
            self._note(Operator(OperatorCall(call.operator, args, kwargs), (), place=place))

    def _overwritten(self, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """New values for tensors that were written to, and for the others in the same memory."""
        written = []
        for tensor in tensors:
            memory = self._values[self._positions[tensor]].memory
            others = [each for each in self._sharing.get(memory, ()) if each is not tensor]
            for each in (tensor, *others):
                written.append(self._add(each, Role.RESULT))
                self._values[-1].memory = memory
        return tuple(written)

    def function(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Call a function of torch, or do what is answered, and record it if it makes tensors or writes to one."""
        if self._is_paused or not self._has_room:
            return func(*args, **kwargs)
        if self._answers is None or name in _WITHOUT_ANSWERS:
            return self._called(func, name, args, kwargs)
        is_written = bool(args) and isinstance(args[0], torch.Tensor) and is_in_place(name)
        function, place = torch.overrides.resolve_name(func) or name, self._places.now()
        args, kwargs = mapped((args, kwargs), lambda leaf: self._unseen_constant(leaf, place))
        if is_written and not self._answered(Kind.WRITE, True, place, function):
            return None if name == "__setitem__" else args[0]
        numbers = numbers_in((args, kwargs))
        if numbers and (others := self._answered(Kind.ARGUMENTS, numbers, place, function)) is not numbers:
            args, kwargs = with_numbers((args, kwargs), others)
        result = self._called(func, name, args, kwargs)
        if isinstance(result, torch.Tensor):
            is_constant = is_repeatable(name) and not tensor_leaves((args, kwargs))
            return self._constant(result, place, function) if is_constant else result
        if type(result) in (tuple, list) and result and all(isinstance(each, torch.Tensor) for each in result):
            return result[: self._answered(Kind.COUNT, len(result), place, function)]
        return result

    def _called(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        arguments = self._described_arguments(args, kwargs)
        before, self._place = self._place, None if arguments is None else arguments[2]
        try:
            result = func(*args, **kwargs)
        finally:
            self._place = before
        is_tensor = isinstance(result, torch.Tensor)
        is_noted = is_tensor or (isinstance(result, (tuple, list)) and tensor_leaves(result)) or is_in_place(name)
        if is_noted and arguments is not None:
            with self._own_work():
                for tensor in [result] if is_tensor else tensor_leaves(result):
                    if tensor not in self._positions:  # operators are not recorded, or not those in compiled code
                        self._add(tensor, Role.RESULT if tensor_leaves((args, kwargs)) else Role.CREATED)
                comparison = None
                if is_tensor and result.dtype is torch.bool and _address(result) is not None:
                    comparison = _comparison(name, [*args, *kwargs.values()])
                described, described_keywords, place = arguments
                self._note(FunctionCall(func, described, described_keywords, self._described(result), comparison, place))
        return result

    def _unseen_constant(self, leaf: Any, place: Place) -> Any:
        """What code gets in place of a tensor that no mode has seen being made, as numpy and scripted functions make them."""
        if not isinstance(leaf, torch.Tensor) or leaf in self._positions or _address(leaf) in self._weights:
            return leaf
        with self._own_work():
            self._note(FunctionCall(None, (), {}, self._described(leaf), place=place))
        return self._constant(leaf, place)

    def _constant(self, tensor: torch.Tensor, place: Place, function: str = "") -> torch.Tensor:
        answer: torch.Tensor = self._answered(Kind.CONSTANT, tensor, place, function)
        with self._own_work():
            self._position(answer)  # it is not asked about again
        return answer

    def _answered(self, kind: Kind, value: Any, place: Place, function: str = "") -> Any:
        return value if self._answers is None else self._answers(Received(kind, value, function, place))

    def tested(self, outcome: bool, name: str, args: Sequence[Any]) -> bool:
        """Record what a test of tensors has just decided."""
        place = self._places.now()
        outcome = self._answered(Kind.DECISION, outcome, place)
        with self._own_work():
            tested = tuple(refs_in(self._described(args)))
            comparison = _comparison("eq" if name == "__contains__" else "", args)
            if len(args) == 1 and args[0].dtype is not torch.bool:  # of one number, whether it is zero
                comparison = comparison._replace(gaps=(comparison.total,))
            self._note(Decision(outcome, comparison, tested, place=place))
        return outcome

    def compared(self, outcome: bool, gap: float, origin: Origin) -> bool:
        """Record what a tracked number has just decided."""
        place, total = self._places.now(), _finite(gap + origin.divided)
        outcome = self._answered(Kind.DECISION, outcome, place)
        comparison = Comparison((_finite(gap),), total, _finite(origin.period))
        self._note(Decision(outcome, comparison, origin.values, by_sizes=origin.by_sizes, place=place))
        return outcome

    def converted(self, value: Any, function: str) -> Any:
        """Record that a number was made plain, and where."""
        place = self._places.now()
        if place.frames and not place.is_in_torch:
            namespace = self._places.namespaces[place]
            self.converting[id(namespace)] = namespace
        return self.read(value, function)

    def read(self, value: Any, function: str) -> Any:
        """Record a number that Python reads."""
        place = self._places.now()
        value = self._answered(Kind.NUMBER, value, place, function)
        self._note(NumberRead(value, function, place))
        return value

    def number_of(self, tensor: torch.Tensor, number: Any, *, by_sizes: bool) -> Any:
        """A size or a value of a tensor, tracked."""
        values = self.positions_of(tensor)
        return tracked(number, Origin(by_sizes and self._sized_by_values.isdisjoint(values), values))

    def positions_of(self, tensor: torch.Tensor) -> Values:
        """The value that a tensor is, if it was seen before."""
        position = self._positions.get(tensor)
        return () if position is None else (position,)

    def read_unseen(self, function: str, values: Values) -> None:
        """Record that Python reads numbers in a way that hides what it does with them."""
        if not self._is_paused:
            self._note(UnseenRead(function, values, self._places.now()))


def _address(tensor: torch.Tensor) -> int | None:
    """Where the numbers of a tensor are in memory; ``None`` if they are not in one place, or not its own."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, ValueError):  # one that torch.func wraps, or a parameter that is not initialized
        return None


class _Operators(Intervention):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def run(self, call: OperatorCall) -> Any:
        return self._recorder.operator(call)

    def run_higher_order(self, call: OperatorCall) -> Any:
        self._recorder.higher_order(call)
        return call.run()


_TESTS = frozenset({"__bool__", "item", "is_nonzero", "equal", "allclose", "__contains__"})
_SIZES = frozenset({"size", "numel", "nelement"})
_VALUES = frozenset({"item", "tolist"})
_UNSEEN = frozenset({"numpy", "__array__", "__dlpack__", "storage", "untyped_storage"})
"""Functions that give all numbers to code that no mode sees."""
_CONVERTERS = frozenset({"__int__", "__float__", "__len__", "__index__"})
_WITHOUT_ANSWERS = _TESTS | _SIZES | _VALUES | _CONVERTERS | {"__get__", "__set__", "dim", "stride", "storage_offset"}
"""Functions that take no numbers and make no tensors, or are asked about when they have returned."""


class _Functions(TorchFunctionMode):
    """Records the functions of torch, and hands out sizes and single values as tracked numbers."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__format__" and not args[0].dim():  # torch's reads the number where no mode sees it
            self._read_unseen("format", args[0])
            return format(self._recorder.converted(args[0].item(), "format"), *args[1:])
        if name in _UNSEEN:
            self._read_unseen(name, args[0])
        result = self._recorder.function(func, name, args, kwargs or {})
        if isinstance(result, torch.Tensor):
            return result
        if isinstance(result, torch.Size):
            return torch.Size([self._recorder.number_of(args[0], size, by_sizes=True) for size in result])
        if type(result) is bool and name in _TESTS:
            return self._recorder.tested(result, name, args)
        if name in _CONVERTERS:
            return self._recorder.converted(result, name.strip("_"))
        if name in _SIZES:
            return self._recorder.number_of(args[0], result, by_sizes=True)
        return self._handed_out(self._recorder.read(result, name), args[0]) if name in _VALUES else result

    def _handed_out(self, value: Any, tensor: torch.Tensor) -> Any:
        if isinstance(value, list):
            return [self._handed_out(each, tensor) for each in value]
        return self._recorder.number_of(tensor, value, by_sizes=False)

    def _read_unseen(self, name: str, tensor: torch.Tensor) -> None:
        self._recorder.read_unseen(name, self._recorder.positions_of(tensor))


_COMPARISONS = frozenset({"gt", "ge", "lt", "le", "eq", "ne"})
"""The operators, too: as functions of torch, some of them are called ``__eq__`` and the like."""


def _comparison(name: str, args: Sequence[Any]) -> Comparison:
    """How the function ``name`` computes a boolean tensor from ``args``."""
    if name.strip("_") in _COMPARISONS:
        left, right = (torch.as_tensor(operand) for operand in args[:2])
        if not left.is_complex() and not right.is_complex():
            gap = left.double() - right.double()
            ends = (gap.min(), gap.max()) if gap.numel() else ()
            return Comparison(tuple(dict.fromkeys(map(_finite, ends))), _total(gap))
    return Comparison((), sum(map(_total, tensor_leaves(args))))


def _total(tensor: torch.Tensor) -> float:
    """A number that changes with the values of a tensor: the value itself if it has only one. NaN and infinity do not count."""
    values = (tensor.detach().abs() if tensor.is_complex() else tensor.detach()).double()
    return float(values[values.abs() <= sys.float_info.max].sum())


def _finite(value: Any) -> float:
    """A number as it is if it is finite, and zero otherwise, because NaN is not equal to itself."""
    return float(value) if math.isfinite(value) else 0.0
