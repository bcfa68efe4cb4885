"""Inputs with other sizes of the dynamic axes, and what a model that rejects some of them shows about its sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from onnx_ci.collection.axis_sizes import AxisSize, DeclaredSizes, MultipleOf, above, axis_size, below, permitted, solve
from onnx_ci.stages.inputs.domains import UNKNOWN, InputDomains
from onnx_ci.stages.inputs.probes import Probe, Prober, is_same, random_inputs
from onnx_ci.stages.model.live_model import PrepareError

# --- the axes of inputs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Place:
    """A dynamic axis of an input."""

    index: int
    """The position of the input."""
    axis: int
    size: AxisSize


@dataclass(frozen=True, kw_only=True)
class InputAxes:
    """The dynamic axes of inputs. Their sizes follow from those of variables."""

    places: tuple[Place, ...]
    declared: Mapping[str, DeclaredSizes] = field(default_factory=dict)
    """The sizes that a variable can have, by its name, if they are declared."""
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The smallest and the largest size that a variable can have, if they are declared."""
    fixed: frozenset[str] = frozenset()
    """Variables that keep their size."""

    def sizes_in(self, inputs: Sequence[torch.Tensor], indices: Collection[int] | None = None) -> dict[str, int]:
        """The sizes of the variables in ``inputs``, of which those at ``indices`` determine them (default: all)."""
        places = (place for place in self.places if indices is None or place.index in indices)
        return solve((place.size, inputs[place.index].shape[place.axis]) for place in places)

    def free_sizes(self, inputs: Sequence[torch.Tensor], following: Collection[int]) -> dict[str, int]:
        """The sizes of the variables in ``inputs`` that are not fixed, and that not only inputs at ``following`` have."""
        independent = {name for place in self.places if place.index not in following for name in place.size.names}
        return {name: size for name, size in self.sizes_in(inputs).items() if name in independent - self.fixed}

    def fitted(
        self,
        inputs: Sequence[torch.Tensor],
        sizes: Mapping[str, int],
        changed: Collection[str],
        *,
        least: int = 1,
        most: float = math.inf,
    ) -> list[torch.Tensor] | None:
        """The inputs with the sizes that follow from those of the variables.

        Args:
            sizes: the sizes of all variables.
            changed: the variables that have other sizes in ``inputs``; axes without them are left as they are.
            least: the smallest size; ``None`` is returned if one would be smaller.
            most: how many elements an input may have; ``None`` is returned if one would have more.
        """
        tensors = list(inputs)
        for place in self.places:
            if not any(name in changed for name in place.size.names):
                continue
            size, tensor = place.size.at(sizes), tensors[place.index]
            if size is None or size < least or size * (tensor.numel() // max(tensor.shape[place.axis], 1)) > most:
                return None
            tensors[place.index] = resized(tensors[place.index], place.axis, size)
        return tensors

    def first_sizes(self, name: str) -> Sequence[int]:
        """The sizes that are listed for a variable, or the two smallest that it can have."""
        declared = self.declared.get(name)
        return declared if isinstance(declared, tuple) else self.permitted(name)[:2]

    def permitted(self, name: str) -> range:
        """The sizes that a variable can have, if they are not listed one by one."""
        declared = self.declared.get(name)
        return permitted(None if isinstance(declared, tuple) else declared, *self.limits.get(name, ()))


def resized(tensor: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """``tensor`` with ``size`` along ``axis``, by repeating its slices."""
    old = tensor.shape[axis]
    if size == old:
        return tensor
    if old == 0:
        return tensor.new_zeros([size if i == axis else n for i, n in enumerate(tensor.shape)])
    return tensor.index_select(axis, torch.arange(size) % old)


# --- probes -----------------------------------------------------------------------------------------------------------

Following = Callable[[Sequence[torch.Tensor]], Mapping[int, torch.Tensor]]
"""From inputs to those among them that a recipe computes from the others, by position, such as the mask of a cache."""


class Rows(Protocol):
    """Rows of inputs that a model computes each by itself, so that some of them can try other things."""

    batch: str
    """The variable that is the number of rows of each input; empty if there is none."""
    are_used: bool
    """Whether there are probes with such rows."""

    def probe(self, name: str, change: Mapping[str, int], inputs: Sequence[torch.Tensor]) -> Probe | None:
        """A probe that tries other things, too, or ``None`` if there is none.

        Args:
            name: the name of the probe of ``inputs``.
            change: the sizes of variables, which are not the example's.
        """


@dataclass(frozen=True, kw_only=True)
class SizeRelation:
    """What a model requires of the sizes of an axis, although it is not declared."""

    name: str
    """The axis."""
    requires: MultipleOf | AxisSize
    refused: tuple[int, ...]
    """Sizes of the axis that the model rejects."""


@dataclass(frozen=True, kw_only=True)
class ResizedProbes:
    """Inputs with other sizes of the dynamic axes."""

    probes: tuple[Probe, ...] = ()
    tried: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The sizes that were tried, by the name of the axis."""
    relations: tuple[SizeRelation, ...] = ()
    separated: Callable[[], tuple[Probe, ...]] = tuple
    """Makes the same probes, of which none tries other things, too."""
    has_random_values: bool = False
    """Whether one of them, in which all axes have other sizes at once, has random values in all inputs."""

    def untested(self, probes: Iterable[Probe], axes: InputAxes) -> Iterator[tuple[str, Sequence[int]]]:
        """The axes that have the same size in all ``probes``, by name, each with the sizes that were tried."""
        sizes = [axes.sizes_in(probe.inputs) for probe in probes]
        for name, tried in self.tried.items():
            if len({each.get(name) for each in sizes}) == 1:
                yield name, tried


def resized_probes(
    prober: Prober,
    axes: InputAxes,
    following: Following = lambda inputs: {},
    domains: InputDomains = UNKNOWN,
    rows: Rows | None = None,
) -> ResizedProbes:
    """Inputs with other sizes of the dynamic axes: all axes together, then each alone, at larger sizes and at the smallest.

    Axes of the same name always have the same size, and those with an expression the size that follows. An axis that only
    inputs of ``following`` have takes the size that belongs to the others. If the model rejects sizes, multiples and
    relations between two or three axes are tried, too.

    Args:
        following: the inputs that belong to the sizes of others.
        domains: what is known about the inputs.
        rows: rows that can try other things, too. If there are, the other axes are tried beside the smallest batch.
    """
    attempts = _Attempts(prober, axes, following, domains, rows)
    sizes = attempts.sizes
    is_listed = {name: isinstance(axes.declared.get(name), tuple) for name in sizes}
    every = {name: axes.permitted(name) for name in sizes}
    are_moved = attempts.attempt(_larger_sizes(sizes, axes, every))
    has_random_values = attempts.has_random_values
    smallest = {name: each[0] for name, each in every.items()}
    relations = []
    batch = "" if rows is None else rows.batch
    for name in sorted(sizes, key=lambda name: name != batch):
        size = sizes[name]
        multiples = {} if name in axes.declared else _multiples(size, every[name])
        candidates = _sizes_of_one_axis(name, size, axes, multiples)
        other = next((each for each in candidates if attempts.attempt_one(name, each)), None)
        if other in multiples:
            requires = MultipleOf(number=multiples[other])
            every[name] = permitted(requires, *axes.limits.get(name, ()))
            smallest[name] = every[name][0]
            relations.append(SizeRelation(name=name, requires=requires, refused=attempts.refused(name)))
        if not is_listed[name]:
            accepted = attempts.attempt_one(name, smallest[name])
            if rows is not None and rows.are_used and name == batch and accepted:
                attempts.beside = {batch: smallest[batch]}
    if not are_moved:  # by now, some multiples are known, which are smaller than twice the size
        others = _larger_sizes(sizes, axes, every), *_other_sizes(sizes, axes, every)
        next(filter(None, map(attempts.attempt, others)), None)
    if not any(is_listed.values()):
        attempts.attempt(smallest)
    relations += _learn_from_pairs(attempts, axes, smallest)
    return replace(attempts.made(relations), has_random_values=has_random_values)


_Sizes = tuple[tuple[str, int], ...]
"""The sizes of variables that are not the example's, each with the variable's name."""


def _name(sizes: _Sizes) -> str:
    return ",".join(f"{name}={size}" for name, size in sizes)


class _Attempts:
    """Inputs of other sizes that the model was run on."""

    def __init__(self, prober: Prober, axes: InputAxes, following: Following, domains: InputDomains, rows: Rows | None) -> None:
        self._prober, self._axes, self._following, self._domains, self._rows = prober, axes, following, domains, rows
        self._example = prober.example.inputs
        self._follow = set(following(self._example))
        self._known = axes.sizes_in(self._example)
        self.sizes = axes.free_sizes(self._example, self._follow)
        """The sizes of the variables in the example, but for those that are fixed or follow."""
        self.beside: Mapping[str, int] = {}
        """Sizes that other variables have while a single one is tried."""
        self.has_random_values = False
        """Whether a probe has random values in all inputs."""
        self._found: dict[_Sizes, Probe | None] = {}
        self._usual_values: dict[_Sizes, Sequence[Sequence[torch.Tensor]]] = {}
        """The values of the probes that try other things, too, if they did not."""

    def made(self, relations: Iterable[SizeRelation] = ()) -> ResizedProbes:
        """The probes of all sizes that the model accepts."""
        found = {key: probe for key, probe in self._found.items() if probe is not None}

        def separated() -> tuple[Probe, ...]:
            usual = {key: self._usual(key, values) for key, values in self._usual_values.items() if key in found}
            return tuple(filter(None, (found | usual).values()))

        return ResizedProbes(
            probes=tuple(found.values()),
            separated=separated,
            tried={name: sorted({size for key in self._found for each, size in key if each == name}) for name in self.sizes},
            relations=tuple(relations),
        )

    @property
    def unmoved(self) -> list[str]:
        """The variables that the model accepts at the example's size only, or at 1, which may be broadcast."""
        moved = {name for key, probe in self._found.items() if probe for name, size in key if size > 1}
        return [name for name in self.sizes if name not in moved]

    def leave_out(self, relation: SizeRelation) -> None:
        """Leave out the probes whose sizes are not in a relation that the model requires of all others."""
        for key in self._found:
            sizes = {**self.sizes, **dict(key)}
            if isinstance(relation.requires, AxisSize) and relation.requires.at(sizes) != sizes[relation.name]:
                self._found[key] = None

    def refused(self, name: str) -> tuple[int, ...]:
        """The sizes of a variable that the model rejects if no other one changes."""
        keys = (dict(key) for key, probe in self._found.items() if not probe)
        return tuple(sorted(key[name] for key in keys if key.keys() - self.beside.keys() == {name}))

    def attempt_one(self, name: str, size: int) -> Probe | None:
        """The probe with another size of a single variable."""
        return self.attempt({**self.beside, name: size})

    def attempt(self, change: Mapping[str, int]) -> Probe | None:
        """The probe with other sizes of variables, or ``None`` if the model rejects them."""
        key = tuple((name, change[name]) for name in self.sizes if change.get(name, self.sizes[name]) != self.sizes[name])
        if key and key not in self._found:
            changed = dict(key)
            tensors = self._axes.fitted(self._example, {**self._known, **changed}, changed)
            if tensors is None:
                return None
            values = self._values(tensors)
            found = self._rows.probe(_name(key), changed, values[0]) if self._rows else None
            if found is not None:
                self._usual_values[key] = values
            self._found[key] = found or self._usual(key, values)
        return self._found.get(key)

    def _usual(self, key: _Sizes, values: Sequence[Sequence[torch.Tensor]]) -> Probe | None:
        """The probe of the first values that the model accepts."""
        for inputs in values:
            if probe := self._prober.probe(_name(key), inputs, quick=True):
                self.has_random_values = self.has_random_values or inputs is values[0]
                return probe
        return None

    def _values(self, tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        """Values for inputs of other sizes, in the order of trying: repeated slices could hide errors, so new ones first."""
        fresh = random_inputs(tensors, self._domains)
        declared = self._domains.drawn(tensors, seed=1, only_declared=True)
        values = [
            fresh,
            [fresh[i] if i in self._domains else tensor for i, tensor in enumerate(tensors)],
            [declared.get(i, tensor) for i, tensor in enumerate(tensors)],
        ]
        values = [*filter(None, map(self._completed, values)), *values] if self._follow else values
        # Without domains some are the same: what the model rejects need not be tried again.
        return [each for at, each in enumerate(values) if not any(all(map(is_same, each, other)) for other in values[:at])]

    def _completed(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        try:
            given = self._following(inputs)
        except PrepareError:  # a recipe that computes them for the example's sizes only
            return None
        return [given.get(index, tensor) for index, tensor in enumerate(inputs)]


def _larger_sizes(sizes: Mapping[str, int], axes: InputAxes, every: Mapping[str, range]) -> dict[str, int]:
    """Sizes of all axes at once that differ from the example's and from each other.

    Args:
        every: the sizes that each axis can have.
    """
    larger = {name: above(every[name], size, 1 + position) for position, (name, size) in enumerate(sizes.items())}
    return larger | _listed_sizes(sizes, axes)


def _other_sizes(sizes: Mapping[str, int], axes: InputAxes, every: Mapping[str, range]) -> Iterator[dict[str, int]]:
    """More of them: twice the example's, which some models require, then smaller ones."""
    doubled = {name: 2 * size if 2 * size in every[name] else above(every[name], size) for name, size in sizes.items()}
    smaller = {name: below(every[name], size, 1 + position) for position, (name, size) in enumerate(sizes.items())}
    for each in (doubled, smaller):
        yield each | _listed_sizes(sizes, axes)


def _listed_sizes(sizes: Mapping[str, int], axes: InputAxes) -> dict[str, int]:
    """The first of the sizes that are declared one by one."""
    return {name: listed[0] for name in sizes if isinstance(listed := axes.declared.get(name), tuple)}


def _sizes_of_one_axis(name: str, size: int, axes: InputAxes, multiples: Iterable[int]) -> Sequence[int]:
    """Sizes for one axis, in the order of trying.

    The first is above twice the size and not a multiple of it, so that it reveals both a frozen branch and a frozen multiple.
    """
    declared = axes.declared.get(name)
    if isinstance(declared, tuple):
        return declared
    every = axes.permitted(name)
    others = (above(every, 2 * size), above(every, size), *multiples, 2 * size, below(every, size), 3 * size, size // 2)
    return [other for other in others if other in every and other != size]


_FACTORS = (2, 4, 8, 16, 32)


def _multiples(size: int, every: range) -> dict[int, int]:
    """Sizes above twice the size that reveal of which number a model requires multiples, each with that number."""
    return {2 * size + factor: factor for factor in _FACTORS if size % factor == 0 and 2 * size + factor in every}


# --- relations between axes -------------------------------------------------------------------------------------------


def _learn_from_pairs(attempts: _Attempts, axes: InputAxes, smallest: Mapping[str, int]) -> list[SizeRelation]:
    """Relations of axes that the model rejects at other sizes, each alone, to one or two others of these axes.

    Args:
        smallest: the smallest size of each variable.
    """
    relations: list[SizeRelation] = []

    def attempt(change: Mapping[str, int]) -> Probe | None:
        sizes = {**attempts.sizes, **change}
        for relation in relations:
            if isinstance(relation.requires, AxisSize):
                sizes[relation.name] = relation.requires.at(sizes) or sizes[relation.name]
        return attempts.attempt(sizes)

    for name in sorted(attempts.unmoved, key=lambda name: -attempts.sizes[name]):
        if name in axes.declared:
            continue
        refused = attempts.refused(name)
        for requires in _candidates(name, attempts):
            relations.append(SizeRelation(name=name, requires=requires, refused=refused))
            larger = {each: above(axes.permitted(each), 2 * attempts.sizes[each]) for each in requires.names}
            if attempt(larger):
                # A size of 1 that was accepted is broadcast, which is not what the axis is for.
                attempts.leave_out(relations[-1])
                for each in requires.names:
                    attempt({each: larger[each]})
                    attempt({each: smallest[each]})
                break
            relations.pop()
    if relations:
        attempt(smallest)
    return relations


def _candidates(name: str, attempts: _Attempts) -> Iterator[AxisSize]:
    """What the size of an axis could be, so that it is the example's: a sum or a multiple of others."""
    size, sizes = attempts.sizes[name], attempts.sizes
    others = [each for each in attempts.unmoved if each != name and each.isidentifier()]
    for terms in itertools.chain(itertools.combinations(others, 2), itertools.combinations(others, 1)):
        rest = size - sum(sizes[each] for each in terms)
        if rest >= 0:
            yield axis_size(" + ".join([*terms, *([str(rest)] if rest else [])]))
    for each in others:
        if 0 < sizes[each] < size and size % sizes[each] == 0:
            yield axis_size(f"{size // sizes[each]}*{each}")
