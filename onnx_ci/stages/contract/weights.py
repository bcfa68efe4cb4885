"""Whether the weights in a file are the model's own, value by value.

A tensor of the file that equals a weight of the model, in any layout, is right; that is almost all of them, and takes one
comparison each. Of the others, most were computed from weights, and nothing is said about them. A finding needs a weight that
the tensor must be: one that it has the name of, is close to, or shares most elements with; and a model that uses this weight in
no way by which another tensor could come from it (:mod:`onnx_ci.stages.model.weight_uses`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from onnx_ci.onnx_model.weights import CLOSE, Array, StoredWeight, is_close, stored_weights
from onnx_ci.results.records import Finding
from onnx_ci.results.rules import finding
from onnx_ci.stages.model.weight_uses import FoldedNorm, WeightUses, likely_norms, weight_uses
from onnx_ci.stages.prepare.prepare import Prepared
from onnx_ci.text import count

_ROUNDING = 2.0**-18
"""How far a weight with a folded BatchNorm may be from ours, relative to the terms it is computed from: 32 units of float32."""

_SAMPLE = 256
"""How many elements are compared to rule out most weights."""

_LEAST_SHARE = 1 / 4
"""The share of close elements in a sample below which tensors are unrelated; of all elements, half must be equal."""

_DISTINCTIVE = 3
"""How many different uneven numbers two tensors must share for one to come from the other."""


@dataclass(frozen=True, kw_only=True)
class _Expected:
    """What a tensor of the file may have to contain."""

    weight: str
    array: Array
    rounding: Array | float = 0.0
    """How far right elements may be from it."""


@dataclass(frozen=True, kw_only=True)
class _Mismatch:
    """A tensor of the file that must be a weight of the model, and is not equal to it."""

    stored: StoredWeight
    expected: _Expected

    @property
    def _differs(self) -> Array:
        return ~_equal(self.stored.array, self.expected)

    @property
    def size(self) -> float:
        """The share of elements that differ, and by how much: of several explanations, the smallest counts."""
        return float(np.abs(self.stored.array.astype(np.float64) - self.expected.array).mean())

    @property
    def rounding(self) -> str | None:
        """The precision that the weight was rounded to, if that explains the difference."""
        values = self.stored.array.astype(np.float32)
        if not is_close(values.astype(np.float64), self.expected.array.astype(np.float64)):
            return None
        if not (values.view(np.uint32) & 0xFFFF).any():
            return "bfloat16"
        return "float16" if np.array_equal(values, values.astype(np.float16)) else None

    def __str__(self) -> str:
        differs, expected = self._differs, self.expected.array
        distance = np.where(differs, np.abs(self.stored.array.astype(np.float64) - expected), -1.0)
        place = np.unravel_index(int(np.argmax(np.nan_to_num(distance, nan=np.inf))), distance.shape)
        where = f" at [{', '.join(map(str, place))}]" if place else ""
        return (
            f"{int(differs.sum())} of {count(differs.size, 'value')} differ, by up to {distance[place]:.3g}: "
            f"{self.stored.array[place]:.9g} instead of {expected[place]:.9g}{where}"
        )


def compare_weights(path: Path, prepared: Prepared) -> list[Finding]:
    """Every weight of the file that must be one of the model's and differs from it, by what explains the difference.

    Args:
        path: a file that the checker accepts, not converted to a lower precision.
        prepared: the recipe, with the weights that the file should have.
    """
    weights = _ModelWeights(prepared.pristine.model)
    if not weights.arrays:
        return []
    # A single number identifies no weight.
    unexplained = [each for each in stored_weights(path) if each.array.ndim and not weights.contain(each)]
    if any(map(weights.suspects, unexplained)):
        norms = weights.by_size(likely_norms(prepared.pristine.model))
        unexplained = [each for each in unexplained if not weights.contain_folded(each, norms.get(each.array.size, []))]
    if not any(map(weights.suspects, unexplained)):
        return []
    doubtful = {name: weights.tensors[name] for each in unexplained for name in weights.suspects(each)}
    uses = weight_uses(prepared.fresh(), doubtful)
    mismatches = [each for each in (weights.mismatch(stored, uses) for stored in unexplained) if each is not None]
    by_rounding: dict[str | None, list[_Mismatch]] = {}
    for each in mismatches:
        by_rounding.setdefault(each.rounding, []).append(each)
    return [_report(rounding, found) for rounding, found in by_rounding.items()]


_NAMED = 3
"""How many further weights a message names."""


def _report(rounding: str | None, mismatches: Sequence[_Mismatch]) -> Finding:
    first = mismatches[0]
    others = [repr(name) for name in dict.fromkeys(each.expected.weight for each in mismatches[1:])]
    also = "; also " + ", ".join(others[:_NAMED]) if others else ""
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    cause = f", which is the rounding of {rounding}" if rounding else ""
    return finding(
        "weight-mismatch",
        f"tensor {first.stored.name!r} of the file is the weight {first.expected.weight!r}, but {first}{cause}{also}{more}",
        details={"weights": {each.expected.weight: each.stored.name for each in mismatches}, "rounding": rounding},
    )


class _ModelWeights:
    """The floating parameters and buffers of a model. Of shared ones, the first name counts."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.arrays: dict[str, Array] = {}
        self._names: dict[str, str] = {}
        self._by_start: dict[tuple[int, float], list[str]] = {}
        self._by_size: dict[int, list[str]] = {}
        self._found: set[str] = set()
        first: dict[int, str] = {}
        for name, tensor in itertools.chain(
            model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
        ):
            self._names[name] = first.setdefault(id(tensor), name)
            if self._names[name] == name and _is_comparable(tensor):
                self.tensors[name] = tensor.detach()
                self.arrays[name] = array = tensor.detach().cpu().numpy()
                self._by_start.setdefault(_start(array), []).append(name)
                self._by_size.setdefault(array.size, []).append(name)

    def contain(self, stored: StoredWeight) -> bool:
        """Whether a tensor equals a weight, in any layout."""
        array = stored.array
        if not array.size:
            return True
        # Transposing and reshaping keep the first element in its place.
        for name in sorted(self._by_start.get(_start(array), ()), key=lambda name: name != self._names.get(stored.name)):
            if any(np.array_equal(array, layout) for layout in _layouts(self.arrays[name], array)):
                self._found.add(name)
                return True
        return False

    def by_size(self, norms: Iterable[FoldedNorm]) -> dict[int, list[FoldedNorm]]:
        """The norms by the size of what they make: of a weight, and of a bias."""
        found: dict[int, list[FoldedNorm]] = {}
        for norm in norms:
            for size in {self.tensors[norm.weight].numel(), norm.shift.numel()} if norm.weight in self.tensors else ():
                found.setdefault(size, []).append(norm)
        return found

    def contain_folded(self, stored: StoredWeight, norms: list[FoldedNorm]) -> bool:
        """Whether a tensor equals a weight into which one of ``norms`` is folded.

        That one is put last: files have weights in the model's order, so the next tensor is most likely of the next norm.
        """
        for index, norm in enumerate(norms):
            if any(_equal(stored.array, each).all() for each in self._folded(norm, stored.array)):
                norms.append(norms.pop(index))
                return True
        return False

    def suspects(self, stored: StoredWeight) -> list[str]:
        """The weights that a tensor may have been made from: those of its size that are similar to it or not in the file."""
        return [
            name
            for name in self._by_size.get(stored.array.size, ())
            if name not in self._found or any(self._is_related(stored, each) for each in self._expected(name, stored.array))
        ]

    def mismatch(self, stored: StoredWeight, uses: WeightUses) -> _Mismatch | None:
        """What is wrong with a tensor that equals no weight; ``None`` if that is not beyond doubt."""
        if self.contain_folded(stored, [*uses.norms]):
            return None
        folded = itertools.chain.from_iterable(self._folded(norm, stored.array) for norm in uses.norms)
        own = [each for name in self._by_size.get(stored.array.size, ()) for each in self._expected(name, stored.array)]
        related = [
            each for each in (*own, *folded) if self._is_related(stored, each, is_in_order=each.weight not in uses.reshaped)
        ]
        if not related or any(each.weight not in uses.direct for each in related):
            return None
        return min((_Mismatch(stored=stored, expected=each) for each in related), key=lambda each: each.size)

    def _is_related(self, stored: StoredWeight, expected: _Expected, *, is_in_order: bool = True) -> bool:
        """Whether a tensor must come from a weight: it is close everywhere or, if the order is known, equal in most places.

        The values must identify the weight, unless the tensor has its name.
        """
        array = stored.array
        places = _sample(array)
        if not _is_similar(array[places], expected.array[places]):
            return False
        is_named = self._names.get(stored.name) == expected.weight
        one, other = array.astype(np.float64), expected.array.astype(np.float64)
        if is_close(one, other) or (is_named and is_close(one, other, any_spread=True)):
            return is_named or _are_distinctive(other)
        equal = _equal(array, expected) & (other != 0)
        return is_in_order and 2 * int(equal.sum()) >= equal.size and (is_named or _are_distinctive(other[equal]))

    def _expected(self, name: str, stored: Array) -> Iterator[_Expected]:
        for layout in _layouts(self.arrays[name], stored):
            yield _Expected(weight=name, array=layout)

    def _folded(self, norm: FoldedNorm, stored: Array) -> Iterator[_Expected]:
        """A layer's weight and bias with the BatchNorm that follows it."""
        scale, shift, terms = norm.scale.numpy(), norm.shift.numpy(), norm.terms.numpy()
        weight = self.arrays.get(norm.weight)
        if weight is not None and weight.size == stored.size:
            for axis in [axis for axis in range(min(weight.ndim, 2)) if weight.shape[axis] == scale.size]:
                factors = scale.astype(weight.dtype).reshape([-1 if each == axis else 1 for each in range(weight.ndim)])
                factors = np.broadcast_to(factors, weight.shape)
                for one, factor in zip(_layouts(weight, stored), _layouts(factors, stored), strict=True):
                    places = _sample(stored)
                    if _is_similar(stored[places], one[places] * factor[places]):
                        array = one * factor
                        yield _Expected(weight=norm.weight, array=array, rounding=np.abs(array) * _ROUNDING)
        bias = None if norm.bias is None else self.arrays.get(norm.bias)
        name = norm.bias or norm.norm_bias
        if name is not None and shift.size == stored.size and (bias is None) == (norm.bias is None):
            scaled = 0.0 if bias is None else bias * scale
            rounding = (np.abs(scaled) + terms) * _ROUNDING
            array = (scaled + shift).reshape(stored.shape)
            yield _Expected(weight=name, array=array, rounding=rounding.reshape(stored.shape))


def _is_comparable(tensor: torch.Tensor) -> bool:
    is_plain = tensor.layout is torch.strided and tensor.device.type != "meta" and tensor.numel() > 0
    return is_plain and tensor.dtype in (torch.float32, torch.float64)


def _start(array: Array) -> tuple[int, float]:
    """What an array has in common with its transpositions: its size and its first element."""
    return array.size, float(np.float32(array[(0,) * array.ndim]))


_MAX_AXES = 5
"""Weights with more axes are compared in their own order only."""


def _layouts(array: Array, stored: Array) -> Iterator[Array]:
    """Views of a weight with the shape of a tensor: with its elements in order, and with its axes in another order."""
    if array.size != stored.size:
        return
    array = array.astype(stored.dtype, copy=False)
    yield array.reshape(stored.shape)
    squeezed, shape = array.squeeze(), stored.squeeze().shape
    if not 2 <= squeezed.ndim <= _MAX_AXES:
        return
    for axes in itertools.permutations(range(squeezed.ndim)):
        transposed = squeezed.transpose(axes)
        if transposed.shape == shape and list(axes) != sorted(axes):
            yield transposed.reshape(stored.shape)


def _sample(array: Array) -> tuple[Array, ...]:
    """The places of some elements, spread over the array."""
    return np.unravel_index(np.linspace(0, array.size - 1, min(array.size, _SAMPLE)).astype(int), array.shape)


def _is_similar(one: Array, other: Array) -> bool:
    """Whether the elements of a sample do not rule out that one tensor comes from the other."""
    return bool(np.mean(np.abs(one - other) <= np.abs(other) * CLOSE) >= _LEAST_SHARE)


def _equal(stored: Array, expected: _Expected) -> Array:
    """Which elements are right; NaN equals NaN."""
    if isinstance(expected.rounding, float):
        equal: Array = stored == expected.array
    else:
        equal = np.abs(stored - expected.array) <= expected.rounding
    return equal | (np.isnan(stored) & np.isnan(expected.array))


def _are_distinctive(values: Array) -> bool:
    """Whether values identify a tensor: constants, and simple fractions such as those of a filter, occur in others, too."""
    uneven = values[values * 256 % 1 != 0]
    return len(np.unique(uneven)) >= _DISTINCTIVE
