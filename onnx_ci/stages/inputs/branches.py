"""Inputs that take the other side of branches on sizes and values, of which the exporters freeze one side.

A branch depends on the input if what it compares differs between inputs that are known. If all of them take the same side, the
other one is sought: along the sizes of the dynamic axes and the values of the inputs, towards where the sides of the comparison
are equal. What the model rejects there is no input; what it accepts is a probe like any other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType

import torch

from onnx_ci.collection.axis_sizes import above
from onnx_ci.stages.inputs.conditions import Condition, condition_at
from onnx_ci.stages.inputs.decisions import Decision, Observation, Observer, Site
from onnx_ci.stages.inputs.domains import UNKNOWN, InputDomains
from onnx_ci.stages.inputs.probes import Probe, Prober, is_same
from onnx_ci.stages.inputs.sizes import Following, InputAxes
from onnx_ci.stages.inputs.special_values import Legality, is_float
from onnx_ci.stages.model.copies import Copies
from onnx_ci.stages.model.live_model import PrepareError, is_finite

Inputs = Sequence[torch.Tensor]

MAX_RUNS = 48
"""How many runs of the model may be spent on searching for the other sides of a recipe's branches."""

MAX_STEPS = 3
"""How many times a search along one direction is corrected."""

MAX_ELEMENTS = 2**20
"""How many elements larger inputs may have."""

MAX_WORK = 2**28
"""How many elements the model may compute on larger inputs, which is predicted from smaller ones: a few tenths of a second."""

GROWTH = 4
"""The factor by which sizes grow at most between two runs, so that the second can be predicted from the first."""


@dataclass(frozen=True, kw_only=True)
class UntakenBranch:
    """A branch that depends on the input, but goes the same way on all inputs that are known."""

    condition: Condition
    outcome: bool
    """How it is always decided."""
    by_sizes: bool
    """Whether it depends on sizes alone, not on values."""


@dataclass(frozen=True, kw_only=True)
class Branches:
    """What was found about the branches of a model."""

    probes: tuple[Probe, ...] = ()
    """Inputs that take sides that no other probe takes."""
    untaken: tuple[UntakenBranch, ...] = ()
    """Branches of which no input takes the other side."""


@dataclass(frozen=True, kw_only=True)
class _Try:
    """A run of the search."""

    inputs: Inputs
    seen: Observation
    is_aimed: bool
    """Whether the other side would be taken, as far as can be calculated."""


@dataclass(frozen=True, kw_only=True)
class _Direction:
    """Inputs along a number: a size, or by how much the values of inputs are changed."""

    inputs: Callable[[float], Inputs | None]
    """The inputs at a number, or ``None`` if there are none."""
    start: float
    """The number of the example."""
    second: float
    """Another number, which shows how a comparison depends on it."""
    is_integer: bool = False
    sizes: int = 0
    """How many sizes it changes; 0 for values."""
    limit: float = math.inf
    """The number of the largest sizes that the axes may have, which larger numbers lead to as well."""

    def around(self, root: float) -> tuple[float, float, float]:
        """Numbers to try if the sides of a comparison are equal at ``root``: beyond it, exactly there, and before it."""
        beyond = math.copysign(1, root - self.start) if self.is_integer else 0.1 * (root - self.start)
        exactly = round(root) if self.is_integer else root
        return exactly + beyond, exactly, exactly - beyond


class BranchFinder:
    """Finds inputs for both sides of those branches of a model that depend on its input.

    Args:
        copies: the model.
        prober: makes the probes.
        axes: the dynamic axes of the inputs.
        following: the inputs that belong to the sizes of others.
        domains: what is known about the inputs.
    """

    def __init__(
        self,
        copies: Copies,
        prober: Prober,
        axes: InputAxes,
        following: Following = lambda inputs: {},
        domains: InputDomains = UNKNOWN,
    ) -> None:
        self._copies, self._prober, self._following, self._domains = copies, prober, following, domains
        self._example = prober.example.inputs
        self._axes, self._known_sizes = axes, axes.sizes_in(self._example)
        self._observer = Observer()
        self._compared: list[Observation] = []
        """What the model decides on the probes, the example first."""
        self._by_shapes: dict[tuple[torch.Size, ...], Observation] = {}
        """What it decides on the first probe with inputs of these shapes."""
        self._conditions: dict[tuple[CodeType, int], Condition] = {}
        self._tried: list[tuple[Inputs, bool, Observation]] = []
        """The inputs of the search, whether the run counted elements, and what it decided."""
        self._runs_left = MAX_RUNS

    @property
    def decides_by_values(self) -> bool:
        """Whether the model decides by values on the example, other than to reject some."""
        return not all(each.by_sizes for each in self._decided_on_example)

    @functools.cached_property
    def _decided_on_example(self) -> list[Decision]:
        """What the model decides on the example, but for mere checks."""
        self._compare(self._example)
        decisions = self._compared[0].decisions.items()
        return [each for site, made in decisions if not self._condition(site).only_checks for each in made]

    def find(self, probes: Sequence[Probe], *, search: bool = True) -> Branches:
        """Find the branches of which ``probes``, the example first, take one side only.

        Args:
            search: whether inputs that take the other sides are sought.
        """
        decided = self._decided_on_example
        if not decided:
            return Branches()  # without a decision, the model takes the same path for every input
        by_sizes = all(each.by_sizes for each in decided)
        if by_sizes and not self._known_sizes:
            return Branches()
        telling = self._telling(probes[1:], by_sizes)
        for probe in telling.values():
            self._compare(probe.inputs)
        if not self._one_sided():
            return Branches()  # as in most models: nothing that is decided depends on the input
        for probe in probes[1:]:
            if probe.name not in telling and self._one_sided():
                self._compare(probe.inputs)
        made: list[Probe] = []
        untaken: list[UntakenBranch] = []
        tried: set[object] = set()
        while site := next((each for each in self._one_sided() if self._question(each) not in tried), None):
            tried.add(self._question(site))
            condition = self._condition(site)
            found, is_impossible = self._other_side(site, _name(condition, made)) if search else (None, False)
            if found is not None:
                made.append(found)
            elif not is_impossible:
                decision = self._decisions(site)[0]
                untaken.append(UntakenBranch(condition=condition, outcome=decision.outcome, by_sizes=decision.by_sizes))
        return Branches(probes=tuple(made), untaken=tuple(untaken))

    def _telling(self, probes: Sequence[Probe], by_sizes: bool) -> dict[str, Probe]:
        """The probes, by name, that show what depends on the input.

        They have the largest size of each axis and, unless only sizes matter, other values of each input.
        """
        sizes = [self._axes.sizes_in(probe.inputs) for probe in probes]
        found = [
            max(zip(sizes, probes, strict=True), key=lambda pair, name=name: pair[0].get(name, 0))[1]  # type: ignore[misc]
            for name in self._known_sizes
            if probes
        ]
        for index, example in enumerate(() if by_sizes else self._example):
            if not any(_changes(probe, index, example) for probe in found):
                found += [probe for probe in probes if _changes(probe, index, example)][:1]
        return {probe.name: probe for probe in found}

    def _compare(self, inputs: Inputs) -> None:
        """Learn what the model decides on the inputs of a probe."""
        seen = self._observe(inputs)
        self._compared.append(seen)
        self._by_shapes.setdefault(_shapes(inputs), seen)

    def _observe(self, inputs: Inputs, *, is_counted: bool = False) -> Observation:
        try:
            self._copies.try_on_cpu(inputs)
        except PrepareError:
            return Observation(is_accepted=False, elements=0)
        return self._observer.observe(lambda: self._copies.running(inputs), is_counted=is_counted)

    def _condition(self, site: Site) -> Condition:
        place = site.code, site.offset
        if place not in self._conditions:
            self._conditions[place] = condition_at(*place)
        return self._conditions[place]

    # --- what the probes show -----------------------------------------------------------------------------------------

    def _decisions(self, site: Site) -> list[Decision]:
        return [each for seen in self._compared for each in seen.decisions.get(site, ())]

    def _one_sided(self) -> list[Site]:
        """The sites that depend on the input, and at which all probes take the same side."""
        sites = dict.fromkeys(site for seen in self._compared for site in seen.decisions)
        same = (site for site in sites if len({each.outcome for each in self._decisions(site)}) == 1)
        return [site for site in same if self._depends_on_input(site) and not self._condition(site).only_checks]

    def _question(self, site: Site) -> object:
        """What distinguishes a search from others: submodules often decide the same."""
        return site.code, site.offset, self._decisions(site)[0]

    def _depends_on_input(self, site: Site) -> bool:
        """Whether what is compared at a site differs between two probes."""
        first, *others = (seen.decisions[site] for seen in self._compared if site in seen.decisions)
        pairs = (pair for run in others for pair in zip(first, run, strict=False))
        return any((one.gaps, one.total) != (other.gaps, other.total) for one, other in pairs)

    # --- the search ---------------------------------------------------------------------------------------------------

    def _other_side(self, site: Site, name: str) -> tuple[Probe | None, bool]:
        """A probe that takes the other side of a branch, and whether the model shows that no input takes it.

        It does so by rejecting inputs that would, or by returning without getting there: other branches may exclude it.
        """
        first, is_impossible = self._decisions(site)[0], False
        for each in self._tries(site, first):
            decisions = each.seen.decisions.get(site, ())
            is_taken = any(decision.outcome is not first.outcome for decision in decisions)
            if is_taken and each.seen.is_accepted:
                if probe := self._prober.probe(name, each.inputs, quick=True):
                    self._compared.append(each.seen)
                    is_empty = any(not new.numel() and old.numel() for new, old in zip(each.inputs, self._example, strict=True))
                    return replace(probe, legality=Legality.DEGENERATE if is_empty else Legality.LEGAL), False
            elif is_taken or (each.is_aimed and not (decisions and each.seen.is_accepted)):
                is_impossible = True
                if first.by_sizes and each.seen.is_accepted:
                    break  # the sizes that would take it lead elsewhere
        return None, is_impossible

    def _tries(self, site: Site, decision: Decision) -> Iterator[_Try]:
        """Runs on inputs that may take the other side of a branch."""
        if decision.gaps:
            for direction in () if decision.by_sizes else self._values():
                yield from self._along(direction, site)
            yield from self._along_sizes(site)
        if not decision.by_sizes:
            for inputs in self._single_values(decision):
                yield from self._try(inputs)

    def _along_sizes(self, site: Site) -> Iterator[_Try]:
        """Runs along each size alone, then along all, unless a single one decides, and the other side is out of its reach."""
        names = self._free_sizes
        deciding = []
        for name in names:
            tried = []
            for each in self._along(self._resizing([name]), site):
                tried.append(each)
                yield each
            if any(_gaps(each.seen, site) not in ((), _gaps(self._compared[0], site)) for each in tried):
                deciding.append(tried)
        is_out_of_reach = len(deciding) == 1 and all(each.seen.is_accepted and not each.is_aimed for each in deciding[0])
        if len(names) > 1 and not is_out_of_reach:
            yield from self._along(self._resizing(names), site)

    def _along(self, direction: _Direction, site: Site) -> Iterator[_Try]:
        """Runs along a direction, towards where the sides of the comparison at ``site`` are equal."""
        seen = {direction.start: self._compared[0]}
        if direction.sizes and self._decisions(site)[0].by_sizes:
            inputs = direction.inputs(direction.second)
            if inputs is not None and _shapes(inputs) in self._by_shapes:
                seen[direction.second] = self._by_shapes[_shapes(inputs)]
                yield _Try(inputs=inputs, seen=seen[direction.second], is_aimed=False)

        def towards(target: float, *, is_aimed: bool) -> Iterator[_Try]:
            while target not in seen:
                number = self._affordable(direction, seen, target) if direction.sizes else target
                if number is None:
                    return
                is_there = number == target <= direction.limit
                tried = [*self._try(direction.inputs(number), is_counted=direction.sizes > 0, is_aimed=is_aimed and is_there)]
                if not tried:
                    return
                seen[number] = tried[0].seen
                yield from tried

        yield from towards(direction.second, is_aimed=False)
        for position in range(len(self._decisions(site)[0].gaps)):
            for _ in range(MAX_STEPS):
                known = [(at, gap) for at, each in seen.items() if (gap := _gap(each, site, position)) is not None]
                root = _root(known)
                if root is None:
                    break
                beyond, exactly, before = direction.around(root)
                if {beyond, exactly, before} <= seen.keys():
                    break
                yield from towards(beyond, is_aimed=True)
                yield from towards(exactly, is_aimed=True)
                yield from towards(before, is_aimed=False)
                # Sizes after a stride, and values after a saturation, change in steps.
                further = exactly + 0.5 * (exactly - direction.start)
                yield from towards(round(further) if direction.is_integer else further, is_aimed=False)

    def _affordable(self, direction: _Direction, seen: dict[float, Observation], target: float) -> float | None:
        """The next number on the way to ``target`` of those that were ``seen``; ``None`` if the model would compute too much.

        That is known at once if the work would be too much even if it grew no faster than so far. For the next number it is
        taken to grow with each size, and with the square of one, as attention does.
        """
        start, largest = direction.start, max(seen)
        if target <= largest:
            return target
        for number in (start, largest):
            if not seen[number].elements:
                inputs = self._example if number == start else direction.inputs(number)
                counted = next(self._try(inputs, is_counted=True), None)
                if counted is None:
                    return None
                seen[number] = counted.seen
        work = seen[largest].elements
        if largest > start:
            growth = (work - seen[start].elements) / (largest - start)
            if work + growth * (target - largest) > MAX_WORK:
                return None
        number = min(target, GROWTH * max(largest, 1))
        return None if work * (number / max(largest, 1)) ** (direction.sizes + 1) > MAX_WORK else number

    def _try(self, inputs: Inputs | None, *, is_counted: bool = False, is_aimed: bool = False) -> Iterator[_Try]:
        """A run on ``inputs``, if they exist and runs are left. Directions can cross: no inputs are run twice."""
        if inputs is None:
            return
        known = (seen for others, counted, seen in self._tried if counted >= is_counted and all(map(is_same, inputs, others)))
        seen = next(known, None)
        if seen is None and self._runs_left:
            self._runs_left -= 1
            seen = self._observe(inputs, is_counted=is_counted)
            self._tried.append((inputs, is_counted, seen))
        if seen is not None:
            yield _Try(inputs=inputs, seen=seen, is_aimed=is_aimed)

    # --- directions ---------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _free_sizes(self) -> list[str]:
        """The dynamic axes whose sizes follow from nothing else."""
        return [*self._axes.free_sizes(self._example, set(self._following(self._example)))]

    def _resizing(self, names: Sequence[str]) -> _Direction:
        """The sizes of some dynamic axes together, in proportion."""
        start = self._known_sizes[names[0]]

        def resize(number: float) -> Inputs | None:
            factor = number / max(start, 1)
            return self._resized({name: round(factor * max(self._known_sizes[name], 1)) for name in names})

        limits = [self._axes.permitted(name)[-1] * start / max(self._known_sizes[name], 1) for name in names]
        return _Direction(
            inputs=resize, start=start, second=2 * start + 1, is_integer=True, sizes=len(names), limit=min(limits)
        )

    def _resized(self, sizes: Mapping[str, int]) -> Inputs | None:
        """The example with other sizes; ``None`` if it would be too large, or cannot have these."""
        permitted = {name: self._axes.permitted(name) for name in sizes}
        nearest = {
            name: size if size in permitted[name] or not size else above(permitted[name], size) for name, size in sizes.items()
        }
        most = max(MAX_ELEMENTS, GROWTH * max(tensor.numel() for tensor in self._example))
        tensors = self._axes.fitted(self._example, {**self._known_sizes, **nearest}, nearest, least=0, most=most)
        if tensors is None:
            return None
        try:
            drawn = self._domains.drawn(tensors, seed=1)
            tensors = [drawn.get(index, tensor) for index, tensor in enumerate(tensors)]
            given = self._following(tensors)
        except PrepareError:  # what the recipe computes for other sizes fails
            return None
        return [given.get(index, tensor) for index, tensor in enumerate(tensors)]

    def _values(self) -> Iterator[_Direction]:
        """Floats multiplied and increased, all inputs together and each alone; integers increased, each input alone."""
        floats = [index for index, tensor in enumerate(self._example) if is_float(tensor)]
        for chosen in [*([floats] if len(floats) > 1 else ()), *([index] for index in floats)]:
            yield _Direction(inputs=self._changing(chosen, torch.mul), start=1, second=2)
            yield _Direction(inputs=self._changing(chosen, torch.add), start=0, second=1)
        for index, tensor in enumerate(self._example):
            if _is_number(tensor):
                yield _Direction(inputs=self._changing([index], torch.add), start=0, second=1, is_integer=True)

    def _changing(
        self, chosen: Sequence[int], change: Callable[[torch.Tensor, float], torch.Tensor]
    ) -> Callable[[float], Inputs | None]:
        def inputs(number: float) -> Inputs | None:
            changed = list(self._example)
            for index in chosen:
                old = changed[index]
                new = (change(old.double(), number) if is_float(old) else change(old.long(), int(number))).to(old.dtype)
                if not torch.equal(is_finite(new), is_finite(old)):
                    return None
                changed[index] = new
            return self._domains.legal(changed, self._example)

        return inputs

    def _single_values(self, decision: Decision) -> Iterator[Inputs]:
        """The example with one other value at the end: not a number or infinite; the integer that would make sides equal."""
        for index, tensor in enumerate(self._example):
            values: Sequence[float] = ()
            if is_float(tensor) and not decision.gaps:
                values = (math.nan, math.inf, -math.inf)
            elif _is_number(tensor) and decision.gaps:
                ends = (int(tensor.min()), int(tensor.max()))
                wanted = (end - round(gap) for end, gap in zip(ends, decision.gaps, strict=False))
                limits = torch.iinfo(tensor.dtype)
                values = [each for each in dict.fromkeys(wanted) if limits.min <= each <= limits.max]
            elif not _is_number(tensor) and not is_float(tensor):
                values = (1, 0)
            for value in values if tensor.numel() else ():
                changed = tensor.clone(memory_format=torch.contiguous_format)
                changed.view(-1)[-1] = value
                yield self._domains.legal([changed if i == index else t for i, t in enumerate(self._example)], self._example)


def _shapes(inputs: Inputs) -> tuple[torch.Size, ...]:
    return tuple(tensor.shape for tensor in inputs)


def _changes(probe: Probe, index: int, example: torch.Tensor) -> bool:
    """Whether a probe has other values than ``example`` in one of its inputs."""
    return not is_same(probe.inputs[index], example)


def _is_number(tensor: torch.Tensor) -> bool:
    """Whether a tensor contains integers other than those of a mask, or is a single one."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool or not tensor.numel():
        return False
    return not tensor.dim() or not {int(tensor.min()), int(tensor.max())} <= {0, 1}


def _name(condition: Condition, made: Sequence[Probe]) -> str:
    """The name of a probe for a branch, unlike those of the others."""
    name = f"branch at {condition.path.name}:{condition.line}"
    number = 1 + sum(each.name.startswith(name) for each in made)
    return f"{name} ({number})" if number > 1 else name


def _gaps(seen: Observation, site: Site) -> tuple[tuple[float, ...], ...]:
    """The gaps of all decisions at a site."""
    return tuple(each.gaps for each in seen.decisions.get(site, ()))


def _gap(seen: Observation, site: Site, position: int) -> float | None:
    """The gap at ``site`` that is nearest to zero; ``None`` if the run did not get there."""
    gaps = [each[position] for each in _gaps(seen, site) if position < len(each)]
    return min(gaps, key=abs, default=None)


def _root(known: Sequence[tuple[float, float]]) -> float | None:
    """Where a line through the last two of some points crosses zero, if it does."""
    if len(known) < 2:
        return None
    (x, y), (other_x, other_y) = known[-2:]
    root = x - y * (other_x - x) / (other_y - y) if other_y != y else math.inf
    return root if math.isfinite(root) else None
