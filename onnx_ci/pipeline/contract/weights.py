"""Whether the weights in a file are the model's own, value by value, and each is stored once.

Almost every tensor of a file equals a weight in some layout, which costs one comparison. Most others were computed from
weights, and nothing is said about them: exporters and optimizers evaluate what depends on weights alone, and keep names, so a
tensor that is close to a weight need not be wrong.

A finding needs a weight that the tensor must be. The tensor has its name, is close to it, or shares most elements with it. And
a run of the model shows that every use combines the weight with data, in operators that exporters translate as they are
(:mod:`onnx_ci.pipeline.contract.weight_uses`). A weight with the BatchNorm behind its layer folded in is right, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from onnx_ci.onnx_model.weights import CLOSE, Array, StoredWeight, is_close, stored_weights
from onnx_ci.pipeline.contract.weight_uses import FoldedNorm, WeightUses, likely_norms, recorded_weight_uses
from onnx_ci.pipeline.model.module import unlike_others
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.results.records import Finding
from onnx_ci.results.rules import finding
from onnx_ci.text import count, listed

_ROUNDING = 2.0**-18
"""How far a weight with a folded BatchNorm may be from ours, relative to the terms it is computed from: 32 units of float32."""

_SAMPLE = 256
"""How many elements are compared to rule out most weights."""

_LEAST_SHARE = 1 / 4
"""With a smaller share of close elements in a sample, a tensor does not come from a weight."""

_DISTINCTIVE = 3
"""How many different uneven numbers two tensors must share for one to come from the other."""


@dataclass(frozen=True, kw_only=True)
class _Expected:
    """What a tensor of the file should contain if it is a certain weight."""

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
    def size(self) -> float:
        """The mean distance of the elements: of several explanations, the smallest counts."""
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
        differs, expected = ~_equal(self.stored.array, self.expected), self.expected.array
        distance = np.where(differs, np.abs(self.stored.array.astype(np.float64) - expected), -1.0)
        place = np.unravel_index(int(np.argmax(np.nan_to_num(distance, nan=np.inf))), distance.shape)
        where = f" at [{', '.join(map(str, place))}]" if place else ""
        return (
            f"{int(differs.sum())} of {count(differs.size, 'value')} differ, by up to {distance[place]:.3g}: "
            f"{self.stored.array[place]:.9g} instead of {expected[place]:.9g}{where}"
        )


def compare_weights(path: Path, model: RecipeModel) -> list[Finding]:
    """Findings about tensors that must be weights and differ from them, by rounding, and about weights that are repeated."""
    weights = _ModelWeights(model.pristine.model)
    if not weights.arrays:
        return []
    unequal: list[StoredWeight] = []
    copies: dict[str, list[StoredWeight]] = {}
    for stored in stored_weights(path):
        if not stored.array.ndim or not stored.array.size:
            continue  # a single number identifies no weight
        if (name := weights.equal_to(stored)) is None:
            unequal.append(stored)
        else:
            copies.setdefault(name, []).append(stored)
    weights.are_others = 2 * sum(map(weights.has_its_name, unequal)) > len(copies)
    return [*_mismatches(unequal, weights, model), *_repeated(copies, weights)]


def _mismatches(unequal: Sequence[StoredWeight], weights: _ModelWeights, model: RecipeModel) -> list[Finding]:
    """Findings about tensors that equal no weight."""
    if any(map(weights.suspects, unequal)):
        norms = weights.by_size(likely_norms(model.pristine.model))
        unequal = [stored for stored in unequal if not weights.contain_folded(stored, norms.get(stored.array.size, []))]
    if not any(map(weights.suspects, unequal)):
        return []
    doubtful = {name: weights.tensors[name] for stored in unequal for name in weights.suspects(stored)}
    uses = recorded_weight_uses(model.fresh(), doubtful)
    by_rounding: dict[str | None, list[_Mismatch]] = {}
    for stored in unequal:
        if (mismatch := weights.mismatch(stored, uses)) is not None:
            by_rounding.setdefault(mismatch.rounding, []).append(mismatch)
    return [_report(rounding, mismatches, are_others=weights.are_others) for rounding, mismatches in by_rounding.items()]


_SMALL = 8192
"""How many elements a weight has at most that may be stored several times: so many each exporter folds (onnxscript 0.7)."""


def _repeated(copies: Mapping[str, Sequence[StoredWeight]], weights: _ModelWeights) -> list[Finding]:
    """A finding if weights are stored more often than the model has them. ``copies`` are the tensors that equal each weight."""
    repeated: dict[str, Sequence[StoredWeight]] = {}
    bytes_more = 0
    for name, array in weights.arrays.items():
        if array.size <= _SMALL or len(copies.get(name, ())) < 2:
            continue
        equal = [other for other in weights.arrays if weights.are_equal(name, other)]
        of_all = [stored for other in equal for stored in copies.get(other, ())]
        if len(of_all) > len(equal) and equal[0] not in repeated and _are_distinctive(array.astype(np.float64)):
            repeated[equal[0]] = of_all
            bytes_more += (len(of_all) - len(equal)) * array.nbytes
    if not repeated:
        return []
    largest = max(repeated, key=lambda name: weights.arrays[name].nbytes)
    names = [repr(stored.name) for stored in repeated[largest]]
    also = f"; so are {count(len(repeated) - 1, 'other weight')}" if len(repeated) > 1 else ""
    how_often = f"the weight {largest!r} is stored {len(names)} times, as {listed(names)}{also}"
    details = {"weights": {name: [each.name for each in of_all] for name, of_all in repeated.items()}, "bytes": bytes_more}
    return [finding("repeated-weight", f"{how_often}: {bytes_more:,} bytes more than the model has", details=details)]


_NAMED = 3
"""How many further weights a message names."""


_OTHERS = "The file has other weights than the model: export it again, or let the recipe load the checkpoint that was exported."


def _report(rounding: str | None, mismatches: Sequence[_Mismatch], *, are_others: bool) -> Finding:
    first = mismatches[0]
    further = [repr(name) for name in dict.fromkeys(each.expected.weight for each in mismatches[1:])]
    also = "; also " + ", ".join(further[:_NAMED]) if further else ""
    more = f" and {len(further) - _NAMED} more" if len(further) > _NAMED else ""
    cause = f", which is the rounding of {rounding}" if rounding else ""
    return finding(
        "weight-mismatch",
        f"tensor {first.stored.name!r} of the file is the weight {first.expected.weight!r}, but {first}{cause}{also}{more}",
        remedy=_OTHERS if are_others else None,
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
        self._in_file: set[str] = set()
        """The weights that one of the tensors compared so far equals."""
        self.are_others = False
        """Whether the file seems to have the weights of another checkpoint: then a tensor's name is enough."""
        first: dict[int, str] = {}
        for name, tensor in itertools.chain(
            model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
        ):
            self._names[name] = first.setdefault(id(tensor), name)
            is_plain = unlike_others(tensor) is None and tensor.dtype in (torch.float32, torch.float64)
            if self._names[name] == name and is_plain and tensor.numel() > 0:
                self.tensors[name] = tensor.detach()
                self.arrays[name] = array = tensor.detach().cpu().numpy()
                self._by_start.setdefault(_start(array), []).append(name)
                self._by_size.setdefault(array.size, []).append(name)

    def equal_to(self, stored: StoredWeight) -> str | None:
        """The weight that a tensor equals, in any layout: the one with its name, if there are several."""
        array = stored.array
        # Transposing and reshaping keep the first element in its place.
        for name in sorted(self._by_start.get(_start(array), ()), key=lambda name: name != self._names.get(stored.name)):
            if any(np.array_equal(array, layout, equal_nan=True) for layout in _layouts(self.arrays[name], array)):
                self._in_file.add(name)
                return name
        return None

    def has_its_name(self, stored: StoredWeight) -> bool:
        """Whether a tensor has the name and the shape of a weight."""
        weight = self.arrays.get(self._names.get(stored.name, ""))
        return weight is not None and weight.shape == stored.array.shape

    def are_equal(self, first: str, second: str) -> bool:
        """Whether two weights have the same values, in any layout."""
        one, other = self.arrays[first], self.arrays[second]
        return first == second or any(np.array_equal(layout, other) for layout in _layouts(one, other))

    def by_size(self, norms: Iterable[FoldedNorm]) -> dict[int, list[FoldedNorm]]:
        """The norms by the sizes of the weight and the bias that they are folded into."""
        norms_by_size: dict[int, list[FoldedNorm]] = {}
        for norm in norms:
            for size in {self.tensors[norm.weight].numel(), norm.shift.numel()} if norm.weight in self.tensors else ():
                norms_by_size.setdefault(size, []).append(norm)
        return norms_by_size

    def contain_folded(self, stored: StoredWeight, norms: list[FoldedNorm]) -> bool:
        """Whether a tensor equals a weight into which one of ``norms`` is folded.

        That norm is put last: files have weights in the model's order, so the next tensor is most likely of the next norm.
        """
        for index, norm in enumerate(norms):
            if any(_equal(stored.array, each).all() for each in self._folded(norm, stored.array)):
                norms.append(norms.pop(index))
                return True
        return False

    def suspects(self, stored: StoredWeight) -> list[str]:
        """The weights that a tensor may come from: those of its size that are similar to it, or that no tensor equals."""
        return [
            name
            for name in self._by_size.get(stored.array.size, ())
            if name not in self._in_file or any(self._is_related(stored, each) for each in self._expected(name, stored.array))
        ]

    def mismatch(self, stored: StoredWeight, uses: WeightUses) -> _Mismatch | None:
        """What is wrong with a tensor that equals no weight; ``None`` if that is not beyond doubt."""
        if self.contain_folded(stored, [*uses.norms]):
            return None
        folded = itertools.chain.from_iterable(self._folded(norm, stored.array) for norm in uses.norms)
        plain = [each for name in self._by_size.get(stored.array.size, ()) for each in self._expected(name, stored.array)]
        related = [
            each for each in (*plain, *folded) if self._is_related(stored, each, is_in_order=each.weight not in uses.reshaped)
        ]
        if not related or any(expected.weight not in uses.direct for expected in related):
            return None
        return min((_Mismatch(stored=stored, expected=each) for each in related), key=lambda mismatch: mismatch.size)

    def _is_related(self, stored: StoredWeight, expected: _Expected, *, is_in_order: bool = True) -> bool:
        """Whether a tensor must come from a weight: it is close everywhere or, if the order is known, equal in most places.

        The values must identify the weight, unless the tensor has its name.
        """
        array = stored.array
        if self.are_others and self.has_its_name(stored):
            return self._names[stored.name] == expected.weight
        places = _sample(array)
        if not _is_similar(array[places], expected.array[places]):
            return False
        is_named = self._names.get(stored.name) == expected.weight
        values, weight = array.astype(np.float64), expected.array.astype(np.float64)
        if is_close(values, weight) or (is_named and is_close(values, weight, any_spread=True)):
            return is_named or _are_distinctive(weight)
        equal = _equal(array, expected) & (weight != 0)
        return is_in_order and 2 * int(equal.sum()) >= equal.size and (is_named or _are_distinctive(weight[equal]))

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
                for layout, factor in zip(_layouts(weight, stored), _layouts(factors, stored), strict=True):
                    places = _sample(stored)
                    if _is_similar(stored[places], layout[places] * factor[places]):
                        array = layout * factor
                        yield _Expected(weight=norm.weight, array=array, rounding=np.abs(array) * _ROUNDING)
        bias = None if norm.bias is None else self.arrays.get(norm.bias)
        name = norm.bias or norm.norm_bias
        if name is not None and shift.size == stored.size and (bias is None) == (norm.bias is None):
            scaled = 0.0 if bias is None else bias * scale
            rounding = (np.abs(scaled) + terms) * _ROUNDING
            folded = (scaled + shift).reshape(stored.shape)
            yield _Expected(weight=name, array=folded, rounding=rounding.reshape(stored.shape))


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
    return np.unravel_index(np.linspace(0, array.size - 1, min(array.size, _SAMPLE)).astype(int), array.shape)


def _is_similar(values: Array, weight: Array) -> bool:
    """Whether a tensor may come from a weight, as far as a sample of both shows."""
    return bool(np.mean(np.abs(values - weight) <= np.abs(weight) * CLOSE) >= _LEAST_SHARE)


def _equal(stored: Array, expected: _Expected) -> Array:
    """Which elements are right; NaN equals NaN."""
    if isinstance(expected.rounding, float):
        equal: Array = stored == expected.array
    else:
        equal = np.abs(stored - expected.array) <= expected.rounding
    return equal | (np.isnan(stored) & np.isnan(expected.array))


def _are_distinctive(values: Array) -> bool:
    """Whether values identify a weight: constants, and simple fractions such as those of a filter, occur in several."""
    uneven = values[values * 256 % 1 != 0]
    return len(np.unique(uneven)) >= _DISTINCTIVE
