"""What a model calls, as a short program of torch's functions that stands alone."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from onnx_ci.pipeline.trace.trace import leaves_in
from onnx_ci.results.records import SourceLine


class Data(enum.Enum):
    """How the values of an operand are drawn."""

    LIKE_RECORDED = "like recorded"
    """Of the kind and the range that the model has there."""
    UNIFORM = "uniform"
    """Anything within the range that the model has there."""
    LARGE = "large"
    """A hundred times as large."""
    ZERO = "zero"


@dataclass(frozen=True, kw_only=True)
class Operand:
    """A tensor that a program is given: an input, or a weight."""

    name: str
    shape: tuple[int, ...]
    shape_at_export: tuple[int, ...]
    """Its shape on the example that the program is exported with; a size that differs there is dynamic."""
    dtype: torch.dtype
    is_weight: bool
    low: float
    """The smallest of its finite values; 0 if it has none."""
    high: float
    spread: float
    """Their standard deviation."""


@dataclass(frozen=True, kw_only=True)
class Name:
    """A tensor among the arguments or results of a call."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Size:
    """A number among the arguments that follows from a size: ``x.shape[axis] * factor + more``."""

    tensor: str
    axis: int
    factor: int = 1
    more: int = 0


@dataclass(frozen=True, kw_only=True)
class FunctionCall:
    """One call of a function of torch.

    ``args``, ``kwargs`` and ``result`` consist of names, sizes, numbers, texts, data types and slices, and of tuples
    and lists of these.
    """

    function: str
    """``torch.nn.functional.conv2d``, ``torch.Tensor.add``."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any
    """``None`` if the call only writes into its first argument."""
    writes: str | None
    """The tensor that it changes, if any."""
    source: SourceLine | None
    module: str

    @property
    def uses(self) -> tuple[str, ...]:
        """The names of the tensors that it takes, in order."""
        return tuple(dict.fromkeys(names_in((self.args, tuple(self.kwargs.values())))))

    @property
    def makes(self) -> frozenset[str]:
        """The names of the tensors that it computes."""
        return frozenset(names_in(self.result))


@dataclass(frozen=True, kw_only=True)
class Program:
    """Calls in order, with everything that they need."""

    operands: Mapping[str, Operand]
    """What is known about each tensor by name, those that calls compute included."""
    calls: tuple[FunctionCall, ...]
    outputs: tuple[str, ...]
    data: Data = Data.LIKE_RECORDED
    seed: int = 0

    @property
    def is_dynamic(self) -> bool:
        """Whether it is exported with other sizes than it is run with."""
        return any(each.shape != each.shape_at_export for each in self.inputs)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The tensors that it needs from outside, weights aside."""
        return tuple(each for each in self._operands_from_outside() if not each.is_weight)

    @property
    def weights(self) -> tuple[Operand, ...]:
        """The weights that it needs."""
        return tuple(each for each in self._operands_from_outside() if each.is_weight)

    def _operands_from_outside(self) -> Iterator[Operand]:
        names: set[str] = set()
        for call in self.calls:
            yield from (self.operands[name] for name in call.uses if name not in names)
            names |= {*call.uses, *call.makes}

    def part(self, positions: Iterable[int]) -> Program:
        """The program of some calls. Its inputs are what other calls compute, its outputs what they or the caller use."""
        chosen = {*positions}
        calls = tuple(call for position, call in enumerate(self.calls) if position in chosen)
        others = (call for position, call in enumerate(self.calls) if position not in chosen)
        computed = {name for call in calls for name in (*call.makes, call.writes) if name is not None}
        used_outside = {*self.outputs}.union(*(call.uses for call in others))
        outputs = sorted(computed & used_outside) or sorted(computed.difference(*(call.uses for call in calls)))
        return dataclasses.replace(self, calls=calls, outputs=tuple(outputs))


def names_in(value: Any) -> Iterator[str]:
    """The names of the tensors in a nested argument or result."""
    leaves = (leaf for leaf in leaves_in(value) if isinstance(leaf, (Name, Size)))
    return (leaf.name if isinstance(leaf, Name) else leaf.tensor for leaf in leaves)
