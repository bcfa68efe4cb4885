"""Inputs with other sizes of the dynamic axes, and what a model that rejects some of them shows about its sizes.

An axis that no probe moves is not proved: if the model refuses every other size, the recipe has to name one.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from onnx_ci.collection.axis_sizes import AxisSize, MultipleOf, above, axis_size, below, permitted
from onnx_ci.pipeline.domains.axes import InputAxes
from onnx_ci.pipeline.domains.input_domains import UNKNOWN, InputDomains
from onnx_ci.pipeline.inputs.probes import Following, Inputs, InputStatus, Probe, Prober, is_same
from onnx_ci.pipeline.inputs.random_values import random_inputs
from onnx_ci.pipeline.inputs.special_rows import SpecialRows
from onnx_ci.pipeline.model.call import PrepareError


@dataclass(frozen=True, kw_only=True)
class SizeRelation:
    """What a model requires of the sizes of an axis, although it is not declared. It is then used as if it were."""

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
    rows: SpecialRows | None = None,
    *,
    is_large: bool = False,
) -> ResizedProbes:
    """Inputs with other sizes of the dynamic axes: all axes together, then each alone, at larger sizes and at the smallest.

    Axes of the same name always have the same size, and those with an expression the size that follows. An axis that only
    inputs of ``following`` have takes the size that belongs to the others. If the model rejects sizes, multiples and relations
    between two or three axes are tried, too. On a large example, smaller sizes are preferred, once one input has larger ones of
    all axes.

    If there are special values in ``rows`` of the probes, the other axes are tried beside the smallest batch, which is less
    work. Only the batch is made smaller for them: beside half of the width, twice the height would be no larger image, and
    beside a width of 1, many an operator does nothing.
    """
    attempts = _Attempts(prober, axes, following, domains, rows or SpecialRows(prober, axes))
    choices = _Choices(attempts.sizes, axes)
    are_moved = attempts.attempt(choices.larger())
    choices.prefers_small = is_large and are_moved is not None
    relations = [relation for name in attempts.order if (relation := _move_alone(name, attempts, choices))]
    if not are_moved:  # by now, some multiples are known, which are smaller than twice the size
        next(filter(None, map(attempts.attempt, (choices.larger(), *choices.others()))), None)
    if not any(map(choices.listed, attempts.sizes)):
        attempts.attempt(choices.smallest())
    return attempts.result([*relations, *_equations(attempts, choices)])


def _move_alone(name: str, attempts: _Attempts, choices: _Choices) -> SizeRelation | None:
    """Try other sizes of one variable; return of which number the model accepts multiples only."""
    if listed := choices.listed(name):
        for each in listed:
            attempts.attempt_one(name, each)
        return None
    multiples = choices.multiples(name)
    size = next((size for size in choices.of_one(name, multiples) if attempts.attempt_one(name, size)), None)
    relation = None
    if size is not None and size in multiples:
        requires = MultipleOf(number=multiples[size])
        relation = SizeRelation(name=name, requires=requires, refused=attempts.refused(name))
        choices.restrict(name, requires)
    smallest = choices.smallest()[name]
    if attempts.attempt_one(name, smallest):
        attempts.try_others_beside(name, smallest)
    if (largest := choices.permitted[name][-1]) <= 4 * attempts.sizes[name] and not choices.prefers_small:
        attempts.attempt_one(name, largest)  # where a range ends that is declared, unless that is much more work
    return relation


_Change = tuple[tuple[str, int], ...]
"""Sizes other than the example's, each with the name of its variable."""


class _Attempts:
    """The inputs of other sizes on which the model was run."""

    def __init__(self, prober: Prober, axes: InputAxes, following: Following, domains: InputDomains, rows: SpecialRows) -> None:
        self._axes, self._following, self._domains, self._rows = axes, following, domains, rows
        self._example = prober.example.inputs
        self._follow = set(following(self._example))
        self._sizes_of_example = axes.sizes_in(self._example)
        self.sizes = axes.free_sizes(self._example, self._follow)
        """The sizes of the free variables in the example."""
        self._beside: Mapping[str, int] = {}
        """The sizes that other variables have while a single one is tried."""
        self._probes: dict[_Change, Probe | None] = {}

    def result(self, relations: Iterable[SizeRelation]) -> ResizedProbes:
        """The probes of all sizes that the model accepts."""
        return ResizedProbes(
            probes=tuple(filter(None, self._probes.values())),
            tried={
                name: sorted({size for change in self._probes for each, size in change if each == name}) for name in self.sizes
            },
            relations=tuple(relations),
        )

    @property
    def order(self) -> list[str]:
        """The variables in the order in which each is tried alone: the batch first."""
        return sorted(self.sizes, key=lambda name: name != self._rows.batch)

    @property
    def unmoved(self) -> list[str]:
        """The variables that the model accepts at the example's size only, or at 1, which may be broadcast.

        That it accepts twice the size of several says nothing about one of them: they may have to be equal.
        """
        changes = (change for change, probe in self._probes.items() if probe)
        moved = {
            name
            for change in changes
            if len(change) == 1 or any(size != 2 * self.sizes[each] for each, size in change)
            for name, size in change
            if size > 1
        }
        return [name for name in self.sizes if name not in moved]

    def refused(self, name: str) -> tuple[int, ...]:
        """The sizes of a variable that the model rejects if no other one changes."""
        changes = (dict(change) for change, probe in self._probes.items() if not probe)
        return tuple(sorted(change[name] for change in changes if change.keys() - self._beside.keys() == {name}))

    def leave_out(self, name: str, required: AxisSize) -> None:
        """Leave out the probes in which a variable has another size than the model requires of all others."""
        for change in self._probes:
            sizes = {**self.sizes, **dict(change)}
            if required.at(sizes) != sizes[name]:
                self._probes[change] = None

    def try_others_beside(self, name: str, size: int) -> None:
        """From now on, try single variables beside this size of another one, if that is the batch, and its rows are used."""
        if self._rows.are_used and name == self._rows.batch:
            self._beside = {name: size}

    def attempt_one(self, name: str, size: int) -> Probe | None:
        """The probe with another size of a single variable."""
        return self.attempt({**self._beside, name: size})

    def attempt(self, sizes: Mapping[str, int]) -> Probe | None:
        """The probe with other sizes of variables, or ``None`` if the model rejects them."""
        change = tuple((name, sizes[name]) for name in self.sizes if sizes.get(name, self.sizes[name]) != self.sizes[name])
        if change and change not in self._probes:
            fitted = self._axes.fitted(self._example, {**self._sizes_of_example, **dict(change)}, dict(change))
            if fitted is None:
                return None
            label = ",".join(f"{name}={size}" for name, size in change)
            probe = self._rows.first_accepted(label, dict(change), self._values(fitted))
            # A model that computes nothing but NaN, as `steps / (steps - 1)` does for a single step, shows little.
            if probe and all(each.numel() and bool(each.isnan().all()) for each in probe.reference.own):
                probe = replace(probe, legality=InputStatus.DEGENERATE)
            self._probes[change] = probe
        return self._probes.get(change)

    def _values(self, tensors: Inputs) -> list[Inputs]:
        """Values for inputs of other sizes, in the order of trying: repeated slices could hide errors, so new ones first."""
        fresh = random_inputs(tensors, self._domains)
        declared = self._domains.drawn(tensors, seed=1, only_declared=True)
        values = [
            fresh,
            [fresh[index] if index in self._domains else tensor for index, tensor in enumerate(tensors)],
            [declared.get(index, tensor) for index, tensor in enumerate(tensors)],
        ]
        completed: list[Inputs] = []
        for inputs in values if self._follow else ():
            with contextlib.suppress(PrepareError):  # of a recipe that computes them for the example's sizes only
                computed = self._following(inputs)
                completed.append([computed.get(index, tensor) for index, tensor in enumerate(inputs)])
        distinct: list[Inputs] = []  # what the model rejects need not be tried again
        for attempt in (*completed, *values):
            if not any(all(map(is_same, attempt, earlier)) for earlier in distinct):
                distinct.append(attempt)
        return distinct


MOST_LISTED = 16
"""How many of the sizes that are declared one by one are tried."""
_FACTORS = (2, 4, 8, 16, 32)
"""The multiples that a model may need."""


class _Choices:
    """Chooses sizes for the variables, of which it gets those of the example."""

    def __init__(self, sizes: Mapping[str, int], axes: InputAxes) -> None:
        self._sizes = sizes
        self._axes = axes
        self.permitted = {name: axes.permitted(name) for name in sizes}
        """The sizes that each variable can have, as far as is known."""
        self.prefers_small = False
        """Whether the sizes of one variable are preferred that are less work than others."""

    def is_declared(self, name: str) -> bool:
        """Whether the recipe declares the sizes of a variable."""
        return name in self._axes.declared

    def listed(self, name: str) -> Sequence[int]:
        """The sizes that are declared one by one; of many, the ends and some between them."""
        declared = self._axes.declared.get(name)
        one_by_one = declared if isinstance(declared, tuple) else ()
        if len(one_by_one) <= MOST_LISTED:
            return one_by_one
        ordered = sorted(one_by_one)
        return [ordered[number * (len(ordered) - 1) // (MOST_LISTED - 1)] for number in range(MOST_LISTED)]

    def restrict(self, name: str, requires: MultipleOf) -> None:
        """From now on, choose among the sizes that the model requires."""
        self.permitted[name] = permitted(requires, *self._axes.limits.get(name, ()))

    def smallest(self) -> dict[str, int]:
        """The smallest size of each variable."""
        return {name: self.permitted[name][0] for name in self._sizes}

    def larger(self) -> dict[str, int]:
        """Sizes of all variables at once that differ from the example's and from each other."""
        sizes = enumerate(self._sizes.items())
        larger = {name: above(self.permitted[name], size, 1 + position) for position, (name, size) in sizes}
        return larger | self._listed()

    def others(self) -> Iterator[dict[str, int]]:
        """More of them: twice the example's, which some models require, then smaller ones."""
        doubled = {
            name: 2 * size if 2 * size in self.permitted[name] else above(self.permitted[name], size)
            for name, size in self._sizes.items()
        }
        yield doubled | self._listed()
        sizes = enumerate(self._sizes.items())
        smaller = {name: below(self.permitted[name], size, 1 + position) for position, (name, size) in sizes}
        yield smaller | self._listed()

    def _listed(self) -> dict[str, int]:
        """The first of the sizes that are declared one by one."""
        return {name: listed[0] for name in self._sizes if (listed := self.listed(name))}

    def of_one(self, name: str, multiples: Iterable[int]) -> Sequence[int]:
        """Sizes for one variable, in the order of trying.

        The first is above twice the size and no multiple of it, so that it reveals both a frozen branch and a frozen multiple.
        """
        size, every = self._sizes[name], self.permitted[name]
        others = (above(every, 2 * size), above(every, size), *multiples, 2 * size, below(every, size), 3 * size, size // 2)
        small = (above(every, size // 4), above(every, size)) if self.prefers_small else ()
        return [other for other in (*small, *others) if other in every and other != size]

    def multiples(self, name: str) -> dict[int, int]:
        """Sizes that show which multiple a model needs, with that multiple. They are above twice the size."""
        if self.is_declared(name):
            return {}
        size, every = self._sizes[name], self.permitted[name]
        return {2 * size + factor: factor for factor in _FACTORS if size % factor == 0 and 2 * size + factor in every}


def _equations(attempts: _Attempts, choices: _Choices) -> list[SizeRelation]:
    """Relations of axes that the model rejects at other sizes, each alone, to one or two others of these axes."""
    equations: dict[str, AxisSize] = {}
    relations = []
    smallest = choices.smallest()
    for name in sorted(attempts.unmoved, key=lambda name: -attempts.sizes[name]):
        if choices.is_declared(name):
            continue
        for required in _candidates(name, attempts):
            larger = {other: above(choices.permitted[other], 2 * attempts.sizes[other]) for other in required.names}
            if _attempt_with(equations | {name: required}, larger, attempts):
                relations.append(SizeRelation(name=name, requires=required, refused=attempts.refused(name)))
                equations[name] = required
                # A size of 1 that was accepted is broadcast, which is not what the axis is for.
                attempts.leave_out(name, required)
                for other in required.names:
                    _attempt_with(equations, {other: larger[other]}, attempts)
                    _attempt_with(equations, {other: smallest[other]}, attempts)
                break
    if equations:
        _attempt_with(equations, smallest, attempts)
    return relations


def _attempt_with(equations: Mapping[str, AxisSize], change: Mapping[str, int], attempts: _Attempts) -> Probe | None:
    """The probe with other sizes of some variables, and the sizes derived from these."""
    sizes = {**attempts.sizes, **change}
    for name, required in equations.items():
        sizes[name] = required.at(sizes) or sizes[name]
    return attempts.attempt(sizes)


def _candidates(name: str, attempts: _Attempts) -> Iterator[AxisSize]:
    """What the size of an axis could be, so that it is the example's: a sum or a multiple of others."""
    size, sizes = attempts.sizes[name], attempts.sizes
    others = [other for other in attempts.unmoved if other != name and other.isidentifier()]
    for terms in itertools.chain(itertools.combinations(others, 2), itertools.combinations(others, 1)):
        rest = size - sum(sizes[term] for term in terms)
        if rest >= 0:
            yield axis_size(" + ".join([*terms, *([str(rest)] if rest else [])]))
    for other in others:
        if 0 < sizes[other] < size and size % sizes[other] == 0:
            yield axis_size(f"{size // sizes[other]}*{other}")
