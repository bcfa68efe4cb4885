"""Domains of inputs that a recipe does not declare, inferred from their names, data types, values and use.

If in doubt, a domain is small: what it leaves out is not tried, or is only a warning. Within the domain, the eager model
decides: it rejects what it cannot use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from onnx_ci.collection.domains import Boxes, Domain, Integers, Lengths, Mask, OneHot, Permutations, Segments, Unchanged
from onnx_ci.pipeline.domains.uses import InputUse
from onnx_ci.pipeline.model.tensors import is_float8


@dataclass(frozen=True, kw_only=True)
class Inferred:
    """A domain, and what it is inferred from."""

    domain: Domain
    reason: str
    """``inferred: named a mask``."""
    is_drawn: bool = True
    """Whether random values come from the whole domain; otherwise they are like the example's."""


@dataclass(frozen=True, kw_only=True)
class _Example:
    """The example's value of one input, and what is known about the input."""

    tensor: torch.Tensor
    name_parts: frozenset[str]
    """The words of its name in snake case or camel case, in lower case: ``attention`` and ``mask``."""
    lengths_of: str | None
    """The axis of another input whose size is the largest of its values."""
    use: InputUse
    """How the model uses it."""

    def is_named(self, *parts: str) -> bool:
        return not self.name_parts.isdisjoint(parts)

    @property
    def rows(self) -> torch.Tensor:
        """Its values as rows along the last axis."""
        return self.tensor.reshape(-1, self.tensor.shape[-1]) if self.tensor.dim() else self.tensor.reshape(1, 1)


def inferred_domains(
    names: Sequence[str | None],
    example: Sequence[torch.Tensor],
    axes: Mapping[str, Mapping[int, str]],
    uses: Sequence[InputUse] = (),
) -> dict[int, Inferred]:
    """What can be inferred about the inputs, by position."""
    domains = {}
    for index, (name, tensor) in enumerate(zip(names, example, strict=True)):
        if not tensor.numel() or tensor.is_complex() or is_float8(tensor):
            continue
        of_input = _Example(
            tensor=tensor,
            name_parts=frozenset(part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name or "")),
            lengths_of=_lengths_of(index, names, example, axes),
            use=uses[index] if uses else InputUse(),
        )
        if inferred := next(filter(None, (rule(of_input) for rule in _RULES)), None):
            domains[index] = inferred
    return domains


def _lengths_of(
    index: int, names: Sequence[str | None], example: Sequence[torch.Tensor], axes: Mapping[str, Mapping[int, str]]
) -> str | None:
    """The dynamic axis of another input whose size is the largest value of a list of integers; ``None`` if there is none."""
    tensor = example[index]
    if tensor.dtype not in (torch.int64, torch.int32) or tensor.dim() > 1 or int(tensor.min()) < 1:
        return None
    largest = int(tensor.max())
    for position, (name, values) in enumerate(zip(names, example, strict=True)):
        for axis, label in axes.get(name or "", {}).items():
            if position != index and axis and values.shape[axis] == largest:
                return label
    return None


_HIDDEN = -9e3
_TOO_MANY_FOR_CHANCE = 5
_LENGTHS = ("len", "lens", "length", "lengths")
_NEVER_NEGATIVE = (
    *("id", "ids", "idx", "index", "indices", "indexes", "token", "tokens", "label", "labels", "position", "positions", "pos"),
    *("step", "steps", "timestep", "timesteps", "count", "counts", "num", "size", "sizes", "class", "classes", *_LENGTHS),
)


def _embedded(example: _Example) -> Inferred | None:
    rows = example.use.vocabulary
    if rows is None or not 0 <= int(example.tensor.min()) <= int(example.tensor.max()) < rows:
        return None
    return Inferred(domain=Integers(low=0, high=rows, ascending=False), reason="inferred: looked up in an embedding")


def _one_hot(example: _Example) -> Inferred | None:
    rows = example.rows
    has_rows = example.tensor.dim() >= 2 and rows.shape[-1] >= 3 and len(rows) >= 2
    if not has_rows or not _is_binary(rows) or not bool(((rows != 0).sum(-1) == 1).all()):
        return None
    return Inferred(domain=OneHot(), reason="inferred: each row has a single one")


def _is_binary(tensor: torch.Tensor) -> bool:
    return bool(((tensor == 0) | (tensor == 1)).all())


def _mask(example: _Example) -> Inferred | None:
    tensor, is_named, is_boolean = example.tensor, example.is_named("mask", "masks"), example.tensor.dtype == torch.bool
    is_index = example.use.rows is not None
    is_number = tensor.is_floating_point() or tensor.numel() == 1 or is_index or example.is_named(*_NEVER_NEGATIVE)
    if not _is_binary(tensor) or (is_number and not is_named and not is_boolean):
        return None
    rows = example.rows != 0
    has_full, has_empty = bool(rows.all(-1).any()), bool((~rows).all(-1).any())
    means_hidden = not has_full and (has_empty or example.is_named("pad", "padding"))
    first_values = {bool(value) for value in rows[:, 0]} if rows.shape[-1] > 1 else set()
    return Inferred(
        domain=Mask(
            min_true=0 if has_empty or means_hidden else 1,
            min_false=1 if means_hidden else 0,
            starts_with=first_values.pop() if len(first_values) == 1 else None,
        ),
        reason=f"inferred: {'named a mask' if is_named else 'boolean' if is_boolean else 'zeros and ones'}",
    )


def _additive_mask(example: _Example) -> Inferred | None:
    is_hidden = example.tensor < _HIDDEN
    if not example.tensor.is_floating_point() or not is_hidden.any() or not ((example.tensor == 0) | is_hidden).all():
        return None
    return Inferred(domain=Unchanged(), reason="inferred: zeros and large negative numbers, a mask that is added")


def _boxes(example: _Example) -> Inferred | None:
    if not example.tensor.is_floating_point() or not example.is_named("box", "boxes", "bbox", "bboxes", "roi", "rois"):
        return None
    columns = example.tensor.shape[-1] if example.tensor.dim() else 0
    if columns == 5:
        return Inferred(domain=Unchanged(), reason="inferred: named boxes, with the number of a picture")
    if columns != 4 or bool((example.tensor < 0).any()):
        return None
    first, second = example.rows[:, :2], example.rows[:, 2:]
    are_corners = bool((first <= second).all())
    farthest = (second if are_corners else first + second).amax(0).tolist()
    within = (max(farthest[0], 1.0), max(farthest[1], 1.0))
    return Inferred(domain=Boxes(format="xyxy" if are_corners else "xywh", within=within), reason="inferred: named boxes")


def _lengths(example: _Example) -> Inferred | None:
    if example.lengths_of is None or not (example.is_named(*_LENGTHS) or example.tensor.dim()):
        return None
    of = example.lengths_of
    return Inferred(domain=Lengths(of=of), reason=f"inferred: the largest is the size of {of!r}")


def _permutation(example: _Example) -> Inferred | None:
    if example.tensor.is_floating_point() or example.tensor.dim() == 0 or example.tensor.shape[-1] < _TOO_MANY_FOR_CHANCE:
        return None
    places = torch.arange(example.tensor.shape[-1])
    if not (example.rows.sort(-1).values == places).all() or (example.rows == places).all():
        return None
    return Inferred(domain=Permutations(), reason="inferred: each row has every position once")


def _offsets(example: _Example) -> Inferred | None:
    if example.tensor.is_floating_point() or not example.is_named("offset", "offsets", "boundaries", "splits", "indptr", "cu"):
        return None
    if bool((example.rows.diff(dim=-1) < 0).any()):
        return None
    low, high = int(example.tensor.min()), int(example.tensor.max())
    return Inferred(domain=Integers(low=low, high=high + 1, ascending=True), reason="inferred: named offsets, and sorted")


def _index(example: _Example) -> Inferred | None:
    use, rows = example.use, example.rows
    if use.rows is None:
        return None
    if use.overwrites and bool((rows.sort(-1).values.diff(dim=-1) > 0).all()):  # no row has the same number twice
        return None
    steps, low, high = rows.diff(dim=-1), int(rows.min()), int(rows.max())
    if not 0 <= low <= high < use.rows:
        return None
    is_sorted = steps.numel() > 0 and bool((steps >= 0).all())
    domain: Domain = Integers(low=0, high=use.rows * (2 if use.grows else 1), ascending=is_sorted)
    if use.grows and is_sorted and bool((steps <= 1).all()) and not bool(rows[:, 0].any()):
        domain = Segments()
    return Inferred(domain=domain, reason="inferred: used as an index")


def _not_negative(example: _Example) -> Inferred | None:
    if example.tensor.is_floating_point() or not example.is_named(*_NEVER_NEGATIVE) or int(example.tensor.min()) < 0:
        return None
    domain = Integers(low=0, high=torch.iinfo(example.tensor.dtype).max, ascending=False)
    return Inferred(domain=domain, reason="inferred: not negative, by its name", is_drawn=False)


_RULES = (_embedded, _one_hot, _mask, _additive_mask, _boxes, _lengths, _permutation, _offsets, _index, _not_negative)
