"""What a model does with the elements of its inputs: which it uses as indices, and which it tests for NaN or infinity.

Read from a trace, operator by operator. What counts is an element of an input itself, wherever a view or a copy has moved it:
that a model tests what it has computed says nothing about the values that its inputs can have.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_ci.pipeline.trace.recorder import Tracer
from onnx_ci.pipeline.trace.trace import Operator, Ref, Trace, refs_in


@dataclass(frozen=True, kw_only=True)
class InputUse:
    """How a model uses one input."""

    vocabulary: int | None = None
    """The number of rows of the smallest embedding in which it is looked up."""
    rows: int | None = None
    """Among how many rows it chooses otherwise, as an index; the least if there are several."""
    overwrites: bool = False
    """Whether these rows are overwritten, so that the order matters if the same index occurs twice."""
    grows: bool = False
    """Whether the model accepts a larger index than any of the example: the number of rows follows from the indices."""
    tested: Mapping[float, torch.Tensor] = field(default_factory=dict)
    """The elements, as a mask, that the model tests for a value: for NaN, infinity or its negative."""


def uses_of(trace: Trace) -> tuple[InputUse, ...]:
    """How the model of ``trace`` uses each of its inputs."""
    operators = [*trace.of_kind(Operator)]
    if not any(map(_is_telling, operators)):
        return tuple(InputUse() for _ in trace.inputs)
    elements = _Elements(trace)
    for operator in operators:
        elements.follow(operator)
    return elements.uses()


def uses_of_inputs(tracer: Tracer, trace: Trace, example: Sequence[torch.Tensor]) -> tuple[InputUse, ...]:
    """How a model uses its inputs, and whether it accepts larger indices than the example's, which takes a run for each."""
    uses = [*uses_of(trace)]
    for index, (tensor, use) in enumerate(zip(example, uses, strict=False)):
        if use.rows is not None and use.vocabulary is None and int(tensor.max()) + 1 == use.rows:
            larger = tensor.flatten().clone()
            larger[-1] = use.rows
            grown = tracer.trace([*example[:index], larger.view(tensor.shape), *example[index + 1 :]])
            uses[index] = replace(use, grows=grown.is_accepted)
    return tuple(uses)


def _is_telling(operator: Operator) -> bool:
    """Whether an operator can choose by indices, or test for a value."""
    is_choice = not operator.arguments.keys().isdisjoint(("index", "indices")) or operator.name in ("max", "amax")
    return is_choice or operator.name in _TESTS_FOR_NAN | _TESTS_FOR_INFINITY.keys() | _COMPARISONS


_Numbers = dict[int, torch.Tensor]
"""The numbers of elements, by the position of the value that has them."""


class _Elements:
    """Follows the elements of inputs through the operators of a trace.

    Each element of an input has a number, by which it is known wherever it is moved to; 0 is any other value.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace, self._values = trace, trace.values
        self._firsts = [1]
        self._moved: _Numbers = {}
        self._computed: _Numbers = {}
        """Results of arithmetic with constants, which are NaN where the element is."""
        self._magnitudes: _Numbers = {}
        """Absolute values of elements."""
        self._largest: dict[int, tuple[torch.Tensor, int]] = {}
        """The largest of elements, or what is computed from it: their numbers, and how many indices there are up to it."""
        self._from_data = {*trace.inputs}
        """The values that depend on the inputs."""
        for position in trace.inputs:
            shape, first = self._values[position].shape, self._firsts[-1]
            self._firsts.append(first + math.prod(shape))
            numbers = torch.arange(first, self._firsts[-1]).view(shape)
            if stride := self._values[position].stride:  # in the layout of the input
                like = torch.empty_strided(shape, stride, dtype=torch.int64, device="meta")
                numbers = torch.empty_like(like, device="cpu").copy_(numbers)
            self._moved[position] = numbers
        self._vocabularies: dict[int, int] = {}
        self._rows: dict[int, int] = {}
        self._overwriting: set[int] = set()
        self._tested: dict[float, list[torch.Tensor]] = {}

    def uses(self) -> tuple[InputUse, ...]:
        """What the operators show, by the position of the input."""
        return tuple(
            InputUse(
                vocabulary=self._vocabularies.get(index),
                rows=self._rows.get(index),
                overwrites=index in self._overwriting,
                tested=dict(self._tested_elements(index)),
            )
            for index in range(len(self._trace.inputs))
        )

    def _tested_elements(self, index: int) -> Iterator[tuple[float, torch.Tensor]]:
        value = self._values[self._trace.inputs[index]]
        first, end = self._firsts[index : index + 2]
        for number, tested in self._tested.items() if value.dtype.is_floating_point else ():
            elements = torch.zeros(end - first, dtype=torch.bool)
            for numbers in tested:
                elements[numbers[(numbers >= first) & (numbers < end)] - first] = True
            if bool(elements.any()):
                yield number, elements.view(value.shape)

    def follow(self, operator: Operator) -> None:
        """Note what an operator does with elements, and where it moves them to."""
        if self._from_data.isdisjoint(operator.operands):
            return
        self._note_indices(operator)
        self._note_tests(operator)
        for numbers_of, position, numbers in [*self._followed(operator)]:
            numbers_of[position] = numbers
        if largest := self._largest_of(operator):
            self._largest[operator.results[0]] = largest
        self._from_data.update(operator.results, operator.written)

    def _followed(self, operator: Operator) -> Iterator[tuple[_Numbers, int, torch.Tensor]]:
        """The results whose elements are those of inputs, or computed from them, each with its map and numbers."""
        name, arguments, results, values = operator.name, operator.arguments, operator.results, self._values
        maps, operand = (self._moved, self._computed, self._magnitudes), _position(arguments.get("self"))
        if not results:
            return
        if name in _COPIES:
            yield from ((numbers_of, results[0], numbers_of[operand]) for numbers_of in maps if operand in numbers_of)
        elif name in _MOVES or (operator.call.is_view and "dtype" not in arguments):
            for numbers_of in maps:
                yield from ((numbers_of, *pair) for pair in self._moved_by(operator, numbers_of))
        elif name == "abs" and operand in self._moved:
            yield self._magnitudes, results[0], self._moved[operand]
        elif name in _ARITHMETIC:
            data = [each for each in operator.operands if each in self._from_data]
            numbers = self._numbers_if_nan(data[0]) if len(data) == 1 and values[results[0]].dtype.is_floating_point else None
            if numbers is not None:
                yield self._computed, results[0], numbers.expand(values[results[0]].shape)
        elif len(results) == 1 and not operator.written and values[results[0]].is_integer:
            for each in operator.operands:  # such as a clamp of indices that are within its bounds
                kept, result = values[each].kept, values[results[0]].kept
                is_same = kept is not None and result is not None and kept.dtype == result.dtype and torch.equal(kept, result)
                if each in self._moved and is_same:
                    yield self._moved, results[0], self._moved[each]
                    break

    def _moved_by(self, operator: Operator, numbers_of: _Numbers) -> Iterator[tuple[int, torch.Tensor]]:
        """The results of an operator that only moves elements, each with the numbers of these."""
        arguments = operator.arguments
        moved = {name: value for name, value in arguments.items() if name in ("self", "tensors")}
        if not any(position in numbers_of for position in refs_in(moved)):
            return

        def numbers(ref: Ref) -> torch.Tensor:
            return numbers_of.get(ref.value, torch.zeros(self._values[ref.value].shape, dtype=torch.int64))

        def kept(ref: Ref) -> Any:
            return self._values[ref.value].kept

        others = pytree.tree_map_only(Ref, kept, {name: value for name, value in arguments.items() if name not in moved})
        with contextlib.suppress(RuntimeError):  # a view that the layout of the numbers does not allow
            results = operator.call.operator(**others, **pytree.tree_map_only(Ref, numbers, moved))
            yield from zip(operator.results, pytree.tree_leaves(results), strict=True)

    def _numbers_if_nan(self, position: int | None) -> torch.Tensor | None:
        """The numbers of the elements that a value is NaN for; ``None`` if it can also be NaN for other reasons."""
        return None if position is None else self._moved.get(position, self._computed.get(position))

    def _note_indices(self, operator: Operator) -> None:
        arguments = operator.arguments
        if operator.name == "_local_scalar_dense" and (number := _position(arguments["self"])) in self._largest:
            self._note_rows(self._rows, *self._largest[number])
        for indices, rows in self._choices(arguments):
            if self._values[indices].is_integer and indices in self._moved:
                is_lookup = "weight" in arguments
                self._note_rows(self._vocabularies if is_lookup else self._rows, self._moved[indices], rows)
                if operator.name in _OVERWRITES and _SOURCES & arguments.keys() and not arguments.get("accumulate"):
                    self._overwriting.update(self._integer_inputs(self._moved[indices]))

    def _choices(self, arguments: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
        """The integers that an operator uses as indices, each with the number of rows among which it chooses."""
        chosen, weight, index = (_position(arguments.get(name)) for name in ("self", "weight", "index"))
        indices, dim = arguments.get("indices"), arguments.get("dim")
        if weight is not None and isinstance(indices, Ref):
            yield indices.value, self._values[weight].shape[0]
        elif chosen is not None and index is not None:
            shape = self._values[chosen].shape
            yield index, math.prod(shape) if dim is None or not shape else shape[dim]
        elif chosen is not None and isinstance(indices, list | tuple):
            for size, each in zip(self._values[chosen].shape, indices, strict=False):
                if isinstance(each, Ref):
                    if self._values[each.value].dtype in (torch.bool, torch.uint8):  # a mask stands for as many axes as it has
                        return
                    yield each.value, size

    def _largest_of(self, operator: Operator) -> tuple[torch.Tensor, int] | None:
        """The entry of :attr:`_largest` for the result of an operator, if it is one."""
        operand = _position(operator.arguments.get("self"))
        result = self._values[operator.results[0]] if len(operator.results) == 1 else None
        if operand is None or result is None or math.prod(result.shape) != 1 or not result.is_integer:
            return None
        if operator.name in ("max", "amax") and operand in self._moved:
            kept = self._values[operand].kept
            starts_at_zero = kept is not None and result.kept is not None and int(kept.min()) == 0  # lengths are larger
            return (self._moved[operand], int(result.kept) + 1) if starts_at_zero else None
        return self._largest.get(operand) if operator.name in _ARITHMETIC | _COPIES | {"view"} else None

    def _note_rows(self, rows_of: dict[int, int], numbers: torch.Tensor, rows: int) -> None:
        for index in self._integer_inputs(numbers):
            rows_of[index] = min(rows, rows_of.get(index, rows))

    def _integer_inputs(self, numbers: torch.Tensor) -> Iterator[int]:
        """The inputs with integers that have some of these elements."""
        for index, position in enumerate(self._trace.inputs):
            is_of_input = (numbers >= self._firsts[index]) & (numbers < self._firsts[index + 1])
            if not self._values[position].dtype.is_floating_point and bool(is_of_input.any()):
                yield index

    def _note_tests(self, operator: Operator) -> None:
        arguments = operator.arguments
        operand, other = _position(arguments.get("self")), _position(arguments.get("other"))
        is_with_itself = operator.name in ("eq", "ne") and operand is not None and operand == other
        if operator.name in _TESTS_FOR_NAN or is_with_itself:
            for position in (operand, other):
                if (numbers := self._numbers_if_nan(position)) is not None:
                    self._tested.setdefault(math.nan, []).append(numbers)
        for infinity in self._tested_infinities(operator.name, arguments):
            if operand in self._moved:
                self._tested.setdefault(infinity, []).append(self._moved[operand])
            elif operand in self._magnitudes:
                for either in (math.inf, -math.inf):
                    self._tested.setdefault(either, []).append(self._magnitudes[operand])

    def _tested_infinities(self, name: str, arguments: Mapping[str, Any]) -> Iterator[float]:
        yield from _TESTS_FOR_INFINITY.get(name, ())
        if name == "nan_to_num":
            yield from (value for key, value in _REPLACED.items() if arguments.get(key) is not None)
        if name in _COMPARISONS:
            constant = arguments.get("other")
            if isinstance(constant, Ref):
                kept = self._values[constant.value].kept
                constant = kept.item() if kept is not None and kept.numel() == 1 else None
            if isinstance(constant, float) and math.isinf(constant):
                yield constant


def _position(argument: Any) -> int | None:
    return argument.value if isinstance(argument, Ref) else None


_COPIES = frozenset({"clone", "_to_copy"})
_MOVES = frozenset({"_unsafe_view", "cat", "flip", "gather", "index", "index_select", "repeat", "roll", "stack"})
_ARITHMETIC = frozenset({"add", "sub", "rsub", "mul", "div", "neg"})
_OVERWRITES, _SOURCES = frozenset({"scatter", "index_copy", "index_put", "put"}), {"src", "source", "values"}
_TESTS_FOR_NAN = frozenset({"isnan", "nan_to_num", "nansum", "nanmedian", "fmax", "fmin"})
_TESTS_FOR_INFINITY = {"isinf": (math.inf, -math.inf), "isposinf": (math.inf,), "isneginf": (-math.inf,)}
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_REPLACED = {"posinf": math.inf, "neginf": -math.inf}
"""Arguments of ``nan_to_num``. Without them, an infinity becomes a number that is nearly one, and what follows overflows."""
