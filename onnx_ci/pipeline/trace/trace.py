"""A recorded run of a model: which functions and operators it calls, where, on which values, and what Python reads and decides.

Everything here is plain data, and can be written by hand. :mod:`~onnx_ci.pipeline.trace.recorder` records it.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple, TypeVar

import torch

from onnx_ci.pipeline.model.operators import OperatorCall
from onnx_ci.pipeline.model.places import innermost
from onnx_ci.results.records import SourceLine


class Frame(NamedTuple):
    """A call in progress."""

    code: CodeType
    offset: int
    """The offset of the instruction that runs, the same in each run."""

    @property
    def line(self) -> int:
        """The number of its line."""
        lines = (line for start, end, line in self.code.co_lines() if start <= self.offset < end)
        return next(lines, None) or self.code.co_firstlineno


@dataclass(frozen=True)
class Place:
    """Where something happens: in which calls, the innermost first. The same helper called on two lines is two places."""

    frames: tuple[Frame, ...]
    """The calls of the project's and of libraries' code, up to the call of the model. Torch's own are left out."""
    module: str = ""
    """The path of the innermost module that runs: ``layer1.0.conv1``; empty for the model itself."""
    is_in_torch: bool = False
    """Whether torch's own code gets what happens, in a call of the innermost frame."""

    @functools.cached_property
    def line(self) -> tuple[str, int]:
        """The file and the number of the line of the innermost call."""
        return (self.frames[0].code.co_filename, self.frames[0].line) if self.frames else ("", 0)

    @functools.cached_property
    def source(self) -> SourceLine | None:
        """The innermost line of the user's code, or of a library's if there is none."""
        return innermost((frame.code.co_filename, frame.line) for frame in self.frames)

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:  # that of a code object is computed from all its instructions
        return hash((self.module, self.is_in_torch, *((id(frame.code), frame.offset) for frame in self.frames)))


NOWHERE = Place(())
"""The place of what no code of a model does."""


class Role(enum.Enum):
    """Where a value comes from."""

    INPUT = "input"
    WEIGHT = "weight"
    """A parameter or a buffer."""
    CONSTANT = "constant"
    """Any other tensor that no recorded call makes."""
    CREATED = "created"
    """Made by a call of no other tensor, such as ``torch.ones``."""
    RESULT = "result"


@dataclass(slots=True)
class Value:
    """A tensor as it is between two writes: what is written to becomes another value."""

    role: Role
    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...] | None = None
    """``None`` for a layout that has none, such as a sparse one."""
    name: str = ""
    """Of a weight, its first name in the model."""
    memory: int = 0
    """The position of the first value in the same memory: that of which it is a view, or which was written to."""
    kept: Any = None
    """What the recorder was asked to keep of its numbers."""

    @property
    def is_integer(self) -> bool:
        """Whether it has integers; booleans are none."""
        return not (self.dtype.is_floating_point or self.dtype.is_complex or self.dtype is torch.bool)


@dataclass(frozen=True, slots=True)
class Ref:
    """A value among the arguments or results of a call, by its position in :attr:`Trace.values`."""

    value: int


@dataclass(frozen=True, slots=True)
class Operator:
    """A call of an operator, as torch's dispatcher sees it.

    One that takes functions, such as ``torch.cond``, comes before the operators that these call, and has no results.
    """

    call: OperatorCall
    """With each tensor as a :class:`Ref`."""
    results: tuple[int, ...]
    """The values among its results, flattened. Of one that works in place, the value that its argument has become."""
    written: tuple[int, ...] = ()
    """What the values that it writes to become, and those of tensors in the same memory."""
    place: Place = NOWHERE

    @property
    def name(self) -> str:
        """Its name without overload; torch's own have no namespace, and ``add_``, in place, is called ``add``."""
        return self.call.name.removeprefix("aten::").rstrip("_")

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Its arguments by name, defaults included."""
        return self.call.arguments

    @property
    def operands(self) -> tuple[int, ...]:
        """The values among its arguments."""
        return tuple(refs_in((self.call.args, self.call.kwargs)))


class Comparison(NamedTuple):
    """What a boolean was computed from."""

    gaps: tuple[float, ...]
    """The left minus the right side, the lowest and the highest if tensors were compared; empty for other tests."""
    total: float
    """A number that changes with what was compared or tested: the sum of all gaps, tested tensors, and divided numbers."""
    period: float = 0.0
    """The number by which what is compared was divided, so that many sizes decide alike; 0 if it was not."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a function of torch from Python, that makes tensors or writes to one."""

    function: Any
    """``None`` where a tensor appears that no mode has seen being made."""
    args: tuple[Any, ...]
    """Tensors are :class:`Ref`; tracked numbers are plain."""
    kwargs: Mapping[str, Any]
    result: Any
    """Its result, with each tensor as a :class:`Ref`."""
    comparison: Comparison | None = None
    """For a boolean result, what it was computed from."""
    place: Place = NOWHERE

    @property
    def name(self) -> str:
        """The name of the function alone: ``add_``."""
        return getattr(self.function, "__name__", "")

    @property
    def written(self) -> Ref | None:
        """The first argument, if the function works in place."""
        is_written = is_in_place(self.name) and self.args and isinstance(self.args[0], Ref)
        return self.args[0] if is_written else None


@dataclass(frozen=True, slots=True)
class Decision:
    """A condition that Python has decided."""

    outcome: bool
    comparison: Comparison
    """What decided, unless that is booleans whose comparisons are known."""
    tested: tuple[int, ...] = ()
    """The tensors that were tested, or from which the numbers were read that were compared."""
    by_sizes: bool = False
    """Whether it was decided by sizes alone, not by the values of tensors."""
    place: Place = NOWHERE


@dataclass(frozen=True, slots=True)
class NumberRead:
    """A number that Python has read from a tensor, or made of a size; of several, nested lists."""

    value: Any
    function: str
    """What gave it: ``item``, ``tolist``, ``int``, ``range``."""
    place: Place = NOWHERE


@dataclass(frozen=True, slots=True)
class UnseenRead:
    """Numbers of tensors that Python has read as a text or an array: what it decides by them is not recorded."""

    function: str
    """What gave them: ``numpy``, ``format``."""
    values: tuple[int, ...]
    place: Place = NOWHERE


Event = Operator | FunctionCall | Decision | NumberRead | UnseenRead
EventT = TypeVar("EventT", bound=Event)


@dataclass(kw_only=True)
class Trace:
    """A run of a model."""

    values: Sequence[Value] = ()
    """The inputs first."""
    events: Sequence[Event] = ()
    """What happened, in order. A function comes after the operators that it calls."""
    inputs: tuple[int, ...] = ()
    outputs: tuple[int | None, ...] = ()
    """The values that the model returned; ``None`` for one that was not seen before."""
    is_accepted: bool = True
    """Whether the model returned; otherwise it raised after the last event."""
    is_complete: bool = True
    """Whether all events are recorded. The last ones are missing if there are too many, or if a tensor cannot be described."""
    elements: int = 0
    """How many elements all operators of the run computed."""

    @property
    def from_inputs(self) -> frozenset[int]:
        """The values that are computed from the inputs."""
        computed = {*self.inputs}
        for event in self.of_kind(Operator):
            if not computed.isdisjoint(event.operands):
                computed.update(event.results, event.written)
        return frozenset(computed)

    def of_kind(self, kind: type[EventT]) -> Iterator[EventT]:
        """The events of a kind, in order."""
        return (event for event in self.events if type(event) is kind)


_NOT_IN_PLACE = frozenset({"__invert__", "__index__", "__int__", "__iter__"})
"""Methods whose names look like ``__iadd__`` by chance."""
_RANDOM = ("rand", "bernoulli", "dropout", "multinomial", "normal_", "poisson_", "uniform_")
"""Parts of the names of random functions, each with or without the underscore of those that work in place."""


def is_in_place(name: str) -> bool:
    """Whether a function of torch with this name changes its first argument: ``add_``, ``__iadd__``, ``__setitem__``."""
    is_operator = name.startswith("__i") and name not in _NOT_IN_PLACE
    return is_operator or name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def is_random(name: str) -> bool:
    """Whether the results of a function of torch with this name are random."""
    return any(part in f"{name}_" for part in _RANDOM)


def is_repeatable(name: str) -> bool:
    """Whether a function of torch with this name makes the same tensors each time, apart from its arguments."""
    return not (is_random(name) or is_uninitialized(name))


def is_uninitialized(name: str) -> bool:
    """Whether the results of a function or operator with this name are what was in their memory before: ``empty_like``."""
    return "empty" in name


def mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """A nested argument with each leaf replaced; a ``torch.Size`` becomes a tuple."""
    if type(value) in (tuple, list, torch.Size):
        return (list if type(value) is list else tuple)([mapped(each, leaf) for each in value])
    if isinstance(value, slice):
        return slice(*(mapped(each, leaf) for each in (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return {key: mapped(each, leaf) for key, each in value.items()}
    return leaf(value)


def leaves_in(arguments: Any) -> list[Any]:
    """What nested arguments consist of, in order."""
    leaves: list[Any] = []
    mapped(arguments, leaves.append)
    return leaves


def refs_in(arguments: Any) -> Iterator[int]:
    """The values among nested arguments, in order."""
    return (leaf.value for leaf in leaves_in(arguments) if isinstance(leaf, Ref))
