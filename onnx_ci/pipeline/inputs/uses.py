"""What a model does with the elements of its inputs: which it uses as indices, and which it tests for NaN or infinity.

Observed in one run in eager mode, operator by operator. What counts is an element of an input itself, wherever a view or a copy
has moved it: that a model tests what it has computed says nothing about the values that its inputs can have.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from onnx_ci.pipeline.inputs.probes import is_integer
from onnx_ci.pipeline.model.operators import OperatorMode, named_arguments, tensor_leaves, written_to

_Numbers = MutableMapping[torch.Tensor, torch.Tensor]


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


class UsesObserver(OperatorMode):  # type: ignore[no-untyped-call]
    """Observes the uses of the tensors ``inputs`` in the run of a model that happens within it."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inputs = [(tensor.shape, tensor.dtype) for tensor in inputs]
        # Each element of an input has a number, by which it is known wherever it is moved to; 0 is any other value. The maps
        # are weak, so that observing a run needs little more memory than the run.
        self._firsts = [1]
        self._moved: _Numbers = WeakIdKeyDictionary()
        self._computed: _Numbers = WeakIdKeyDictionary()
        """Results of arithmetic with constants, which are NaN where the element is."""
        self._magnitudes: _Numbers = WeakIdKeyDictionary()
        """Absolute values of elements."""
        self._largest: MutableMapping[torch.Tensor, tuple[torch.Tensor, int]] = WeakIdKeyDictionary()
        """The largest of elements, or what is computed from it: their numbers, and how many indices there are up to it."""
        self._from_data: MutableMapping[torch.Tensor, bool] = WeakIdKeyDictionary()
        """The tensors that depend on the inputs."""
        for tensor in inputs:
            first = self._firsts[-1]
            self._firsts.append(first + tensor.numel())
            numbers = torch.arange(first, self._firsts[-1], device=tensor.device).view(tensor.shape)
            self._moved[tensor] = torch.empty_like(tensor, dtype=torch.int64).copy_(numbers)  # in the layout of the input
            self._from_data[tensor] = True
        self._vocabularies: dict[int, int] = {}
        self._rows: dict[int, int] = {}
        self._overwriting: set[int] = set()
        self._tested: dict[float, list[torch.Tensor]] = {}

    def uses(self) -> tuple[InputUse, ...]:
        """What was observed, by the position of the input."""
        return tuple(
            InputUse(
                vocabulary=self._vocabularies.get(index),
                rows=self._rows.get(index),
                overwrites=index in self._overwriting,
                tested=dict(self._tested_elements(index)),
            )
            for index in range(len(self._inputs))
        )

    def _tested_elements(self, index: int) -> Iterator[tuple[float, torch.Tensor]]:
        shape, dtype = self._inputs[index]
        first, end = self._firsts[index : index + 2]
        for value, tested in self._tested.items() if dtype.is_floating_point else ():
            elements = torch.zeros(end - first, dtype=torch.bool)
            for numbers in tested:
                elements[numbers[(numbers >= first) & (numbers < end)] - first] = True
            if bool(elements.any()):
                yield value, elements.view(shape)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        arguments = named_arguments(func, args, kwargs)
        if not any(operand in self._from_data for operand in tensor_leaves(arguments)):
            return func(*args, **kwargs)
        name = func.name().partition(".")[0].removeprefix("aten::").rstrip("_")  # relu_ is relu, in place
        self._note_indices(name, arguments)
        self._note_tests(name, arguments)
        result, written = func(*args, **kwargs), written_to(func, args, kwargs)
        largest = self._largest_of(name, arguments, tensor_leaves(result))
        followed = [*self._followed(func, name, arguments, tensor_leaves(result), is_in_place=bool(written))]
        for tensor in (*tensor_leaves(result), *written):
            self._from_data[tensor] = True
            for numbers_of in self._maps:
                numbers_of.pop(tensor, None)
            self._largest.pop(tensor, None)
        for numbers_of, tensor, numbers in followed:
            numbers_of[tensor] = numbers
        if largest is not None:
            self._largest[result] = largest
        return result

    # --- where elements are moved to --------------------------------------------------------------------------------------

    @property
    def _maps(self) -> tuple[_Numbers, ...]:
        return self._moved, self._computed, self._magnitudes

    def _followed(
        self, func: Any, name: str, arguments: Mapping[str, Any], results: Sequence[torch.Tensor], *, is_in_place: bool
    ) -> Iterator[tuple[_Numbers, torch.Tensor, torch.Tensor]]:
        """The ``results`` whose elements are those of inputs, or computed from them, each with its map and numbers."""
        operand: Any = arguments.get("self")
        if name in _COPIES:
            yield from ((numbers_of, results[0], numbers_of[operand]) for numbers_of in self._maps if operand in numbers_of)
        elif name in _MOVES or (func.is_view and "dtype" not in arguments):
            for numbers_of in self._maps:
                yield from ((numbers_of, *pair) for pair in _moved_by(func, arguments, results, numbers_of))
        elif name == "abs" and operand in self._moved:
            yield self._magnitudes, results[0], self._moved[operand]
        elif name in _ARITHMETIC:
            data = [each for each in tensor_leaves(arguments) if each in self._from_data]
            numbers = self._numbers_if_nan(data[0]) if len(data) == 1 and results[0].is_floating_point() else None
            if numbers is not None:
                yield self._computed, results[0], numbers.expand(results[0].shape)
        elif len(results) == 1 and not is_in_place:  # such as a clamp of indices that are within its bounds
            for each in tensor_leaves(arguments) if is_integer(results[0]) else ():
                is_same = each.dtype == results[0].dtype and each.shape == results[0].shape and torch.equal(each, results[0])
                if each in self._moved and is_same:
                    yield self._moved, results[0], self._moved[each]
                    break

    def _numbers_if_nan(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The numbers of the elements that a tensor is NaN for; ``None`` if it can also be NaN for other reasons."""
        return self._moved.get(tensor, self._computed.get(tensor))

    # --- indices ----------------------------------------------------------------------------------------------------------

    def _note_indices(self, name: str, arguments: Mapping[str, Any]) -> None:
        if name == "_local_scalar_dense" and (number := arguments["self"]) in self._largest:
            self._note_rows(self._rows, *self._largest[number])
        for indices, rows in _choices(arguments):
            if is_integer(indices) and indices in self._moved:
                is_lookup = "weight" in arguments
                self._note_rows(self._vocabularies if is_lookup else self._rows, self._moved[indices], rows)
                if name in _OVERWRITES and _SOURCES & arguments.keys() and not arguments.get("accumulate"):
                    self._overwriting.update(self._integer_inputs(self._moved[indices]))

    def _largest_of(
        self, name: str, arguments: Mapping[str, Any], results: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, int] | None:
        """The entry of :attr:`_largest` for the result of an operator, if it is one."""
        operand: Any = arguments.get("self")
        if len(results) != 1 or results[0].numel() != 1 or not is_integer(results[0]):
            return None
        if name in ("max", "amax") and operand in self._moved and int(operand.min()) == 0:  # lengths are larger
            return self._moved[operand], int(results[0]) + 1
        return self._largest.get(operand) if name in _ARITHMETIC | _COPIES or name == "view" else None

    def _note_rows(self, rows_of: dict[int, int], numbers: torch.Tensor, rows: int) -> None:
        for index in self._integer_inputs(numbers):
            rows_of[index] = min(rows, rows_of.get(index, rows))

    def _integer_inputs(self, numbers: torch.Tensor) -> Iterator[int]:
        """The inputs with integers that have some of these elements."""
        for index, (_, dtype) in enumerate(self._inputs):
            is_of_input = (numbers >= self._firsts[index]) & (numbers < self._firsts[index + 1])
            if not dtype.is_floating_point and bool(is_of_input.any()):
                yield index

    # --- tests ------------------------------------------------------------------------------------------------------------

    def _note_tests(self, name: str, arguments: Mapping[str, Any]) -> None:
        operand: Any = arguments.get("self")
        other = arguments.get("other")
        if name in _TESTS_FOR_NAN or (name in ("eq", "ne") and operand is other):
            for tensor in (operand, other):
                if isinstance(tensor, torch.Tensor) and (numbers := self._numbers_if_nan(tensor)) is not None:
                    self._note_test(math.nan, numbers)
        for value in _tested_infinities(name, arguments):
            if operand in self._moved:
                self._note_test(value, self._moved[operand])
            elif operand in self._magnitudes:
                self._note_test(math.inf, self._magnitudes[operand])
                self._note_test(-math.inf, self._magnitudes[operand])

    def _note_test(self, value: float, numbers: torch.Tensor) -> None:
        self._tested.setdefault(value, []).append(numbers.cpu())


_COPIES = frozenset({"clone", "_to_copy"})
_MOVES = frozenset({"_unsafe_view", "cat", "flip", "gather", "index", "index_select", "repeat", "roll", "stack"})
_ARITHMETIC = frozenset({"add", "sub", "rsub", "mul", "div", "neg"})
_OVERWRITES, _SOURCES = frozenset({"scatter", "index_copy", "index_put", "put"}), {"src", "source", "values"}
_TESTS_FOR_NAN = frozenset({"isnan", "nan_to_num", "nansum", "nanmedian", "fmax", "fmin"})
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


def _moved_by(
    func: Any, arguments: Mapping[str, Any], results: Sequence[torch.Tensor], numbers_of: _Numbers
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The results of an operator that only moves elements, each with the numbers of these."""
    moved = {name: value for name, value in arguments.items() if name in ("self", "tensors")}
    if not any(tensor in numbers_of for tensor in tensor_leaves(moved)):
        return
    numbers = pytree.tree_map(lambda tensor: numbers_of.get(tensor, torch.zeros_like(tensor, dtype=torch.int64)), moved)
    with contextlib.suppress(RuntimeError):  # a view that the layout of the numbers does not allow
        yield from zip(results, tensor_leaves(func(**{**arguments, **numbers})), strict=True)


def _choices(arguments: Mapping[str, Any]) -> Iterator[tuple[torch.Tensor, int]]:
    """The integers that an operator uses as indices, each with the number of rows among which it chooses."""
    chosen, dim, weight = (arguments.get(name) for name in ("self", "dim", "weight"))
    index, indices = arguments.get("index"), arguments.get("indices")
    if isinstance(weight, torch.Tensor) and isinstance(indices, torch.Tensor):
        yield indices, weight.shape[0]
    elif isinstance(chosen, torch.Tensor) and isinstance(index, torch.Tensor):
        yield index, chosen.numel() if dim is None or not chosen.dim() else chosen.shape[dim]
    elif isinstance(chosen, torch.Tensor) and isinstance(indices, list | tuple):
        for axis, each in enumerate(indices):
            if isinstance(each, torch.Tensor):
                if each.dtype in (torch.bool, torch.uint8):  # a mask, which stands for as many axes as it has
                    return
                yield each, chosen.shape[axis]


def _tested_infinities(name: str, arguments: Mapping[str, Any]) -> Iterator[float]:
    """The infinite values for which an operator tests its operand."""
    match name:
        case "isinf":
            yield from (math.inf, -math.inf)
        case "isposinf":
            yield math.inf
        case "isneginf":
            yield -math.inf
        case "nan_to_num":
            yield from (value for key, value in _REPLACED.items() if arguments.get(key) is not None)
        case _ if name in _COMPARISONS:
            other = arguments.get("other")
            constant = other.item() if isinstance(other, torch.Tensor) and other.numel() == 1 else other
            if isinstance(constant, float) and math.isinf(constant):
                yield constant


_REPLACED = {"posinf": math.inf, "neginf": -math.inf}
"""Arguments of ``nan_to_num``. Without them, an infinity becomes a number that is nearly one, and what follows overflows."""
