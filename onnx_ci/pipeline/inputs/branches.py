"""The branches of a model on sizes and values, whose example side the exporters freeze, and inputs for the other side.

A branch depends on the input if what it compares differs between probes. If all of them take the same side, the other one is
sought, from the first input that gets to the branch: `a and b` and nested branches decide more than the example shows. Inputs
that the model rejects do not count; those that it accepts are probes like any other.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onnx_ci.pipeline.domains.axes import InputAxes
from onnx_ci.pipeline.domains.input_domains import UNKNOWN, InputDomains
from onnx_ci.pipeline.inputs.branch_search import BranchSearch
from onnx_ci.pipeline.inputs.conditions import Condition, condition_at, is_caught
from onnx_ci.pipeline.inputs.decisions import Observation, observed
from onnx_ci.pipeline.inputs.directions import Directions
from onnx_ci.pipeline.inputs.probes import Following, Inputs, InputStatus, Probe, Prober, is_float, is_same
from onnx_ci.pipeline.trace.recorder import Tracer
from onnx_ci.pipeline.trace.trace import Decision, Frame, Place


@dataclass(frozen=True, kw_only=True)
class UntakenBranch:
    """A branch that depends on the input, but goes the same way on all probes."""

    condition: Condition
    outcome: bool
    """How it is always decided."""
    by_sizes: bool
    """Whether it depends on sizes alone, not on values."""


@dataclass(frozen=True, kw_only=True)
class Branches:
    """What is known about the branches of a model."""

    probes: tuple[Probe, ...] = ()
    """Inputs that take sides that no other probe takes."""
    untaken: tuple[UntakenBranch, ...] = ()
    """Branches whose other side no probe takes."""


@dataclass(frozen=True, kw_only=True)
class _Run:
    inputs: Inputs
    sizes: Mapping[str, int]
    """Of the variables of the axes."""
    observation: Observation


class BranchFinder:
    """Finds inputs for both sides of those branches of a model that depend on its input."""

    def __init__(
        self,
        tracer: Tracer,
        on_example: Observation,
        prober: Prober,
        axes: InputAxes,
        following: Following = lambda inputs: {},
        domains: InputDomains = UNKNOWN,
    ) -> None:
        self._prober, self._axes, self._example = prober, axes, prober.example.inputs
        self._sizes = axes.sizes_in(self._example)
        self._tracer, self._on_example = tracer, on_example
        self._runs: list[_Run] = []
        """What the model decides on probes, the example first."""
        self._observed: dict[str, Observation] = {}
        """What the model decides on a probe, by its name."""
        self._questions: set[object] = set()
        """The searches that were made."""
        self._added: list[Probe] = []
        self._conditions: dict[Frame, Condition] = {}
        self.directions_from = functools.partial(Directions, axes=axes, following=following, domains=domains)

    @property
    def decides_by_values(self) -> bool:
        """Whether the model decides by values on the example, other than to reject some."""
        return not all(decision.by_sizes for decision in self._decided_on_example)

    @functools.cached_property
    def _decided_on_example(self) -> list[Decision]:
        """What the model decides on the example, but for mere checks."""
        places = self._on_example.decisions.items()
        return [each for place, decisions in places if not self._is_check(place) for each in decisions]

    def find(self, probes: Sequence[Probe], *, search: bool = True) -> Branches:
        """Find the branches at which all ``probes``, the example first, take the same side, and ``search`` the other one.

        A file need not be right on inputs that the model may never get, such as zeros, and of a single row, both sides often
        compute the same. If only such inputs take a side, usual ones that take it are sought, too. If none is found, the
        branch is not reported as untaken.
        """
        if not self._decided_on_example or (not self.decides_by_values and not self._sizes):
            return Branches()  # the model takes the same path for every input
        branches = self._one_side_only(probes, search=search)
        usual = [*filter(self._is_usual, (*probes, *branches.probes))]
        if not search or len(usual) == len(probes) + len(branches.probes):
            return branches
        added = self._one_side_only(usual, search=True, only_usual=True).probes
        return replace(branches, probes=(*branches.probes, *filter(self._is_usual, added)))

    def _is_usual(self, probe: Probe) -> bool:
        return probe.legality is InputStatus.LEGAL and not self._is_single(probe.inputs)

    def _is_single(self, inputs: Inputs) -> bool:
        """Whether an axis has size 1 that has another on the example."""
        return any(size == 1 != self._sizes.get(name) for name, size in self._axes.sizes_in(inputs).items())

    def _one_side_only(self, probes: Sequence[Probe], *, search: bool, only_usual: bool = False) -> Branches:
        telling = self._telling(probes[1:])
        self._runs = []
        self._note(self._example, self._on_example)
        for probe in telling.values():
            self._note(probe.inputs, self._observation(probe))
        if not self._one_sided():
            return Branches()  # as in most models: nothing that is decided depends on the input
        for probe in probes[1:]:
            if probe.name not in telling and self._one_sided():
                self._note(probe.inputs, self._observation(probe))
        return self._other_sides(search=search, only_usual=only_usual)

    def _note(self, inputs: Inputs, observation: Observation) -> None:
        self._runs.append(_Run(inputs=inputs, sizes=self._axes.sizes_in(inputs), observation=observation))

    def _observation(self, probe: Probe) -> Observation:
        if probe.name not in self._observed:
            self._observed[probe.name] = observed(self._tracer.trace(probe.inputs))
        return self._observed[probe.name]

    def _telling(self, probes: Sequence[Probe]) -> Mapping[str, Probe]:
        """Probes, by name, with the largest other size of each axis and, unless only sizes matter, other values of inputs."""
        telling = {}
        sizes = [self._axes.sizes_in(probe.inputs) for probe in probes]
        for name in self._sizes if probes else ():
            resized = [place for place, each in enumerate(sizes) if each.get(name, self._sizes[name]) != self._sizes[name]]
            if resized:
                largest = probes[max(resized, key=lambda place: sizes[place][name])]
                telling[largest.name] = largest
        for index, tensor in enumerate(self._example if self.decides_by_values else ()):
            changed = [probe for probe in probes if not is_same(probe.inputs[index], tensor)]
            if changed and not any(probe.name in telling for probe in changed):
                telling[changed[0].name] = changed[0]
        return telling

    def _condition(self, place: Place) -> Condition:
        frame = place.frames[0]
        if frame not in self._conditions:
            self._conditions[frame] = condition_at(frame.code, frame.offset)
        return self._conditions[frame]

    def _is_check(self, place: Place) -> bool:
        """Whether one side only rejects the input, or reports."""
        return self._condition(place).is_check and not any(is_caught(frame.code, frame.offset) for frame in place.frames)

    def _decisions(self, place: Place) -> list[Decision]:
        return [decision for run in self._runs for decision in run.observation.decisions.get(place, ())]

    def _one_sided(self) -> list[Place]:
        """The places that may depend on the input, and at which all probes take the same side."""
        places = dict.fromkeys(place for run in self._runs for place in run.observation.decisions)
        one_sided = (place for place in places if len({decision.outcome for decision in self._decisions(place)}) == 1)
        return [place for place in one_sided if self._may_depend_on_input(place) and not self._is_check(place)]

    def _may_depend_on_input(self, place: Place) -> bool:
        """Whether what is compared at a place differs between two probes, or too few get there to know."""
        first, *others = there = [run for run in self._runs if place in run.observation.decisions]
        decisions = (run.observation.decisions[place] for run in others)
        pairs = (pair for each in decisions for pair in zip(first.observation.decisions[place], each, strict=False))
        if not others or any(left.comparison != right.comparison for left, right in pairs):
            return True
        sizes = [({run.sizes.get(name) for run in there}, {run.sizes.get(name) for run in self._runs}) for name in self._sizes]
        return any(len(those_there) == 1 < len(all_of_them) for those_there, all_of_them in sizes)

    def _other_sides(self, *, search: bool, only_usual: bool) -> Branches:
        """For each branch at which all probes take the same side, a probe of the other one, if the search finds it."""
        branch_search = BranchSearch(self._tracer) if search else None
        probes: list[Probe] = []
        untaken: list[UntakenBranch] = []
        while place := next((place for place in self._one_sided() if self._question(place) not in self._questions), None):
            self._questions.add(self._question(place))
            if only_usual and self._asks_for_size_one(place):
                continue
            condition = self._condition(place)
            name = f"branch at {condition.path.name}:{condition.line}"
            same_line = sum(probe.name.startswith(name) for probe in self._added)
            match self._other_side(place, f"{name} ({1 + same_line})" if same_line else name, branch_search, only_usual):
                case Probe() as probe:
                    probes.append(probe)
                    self._added.append(probe)
                case UntakenBranch() as branch:
                    untaken.append(branch)
        return Branches(probes=tuple(probes), untaken=tuple(untaken))

    def _asks_for_size_one(self, place: Place) -> bool:
        """Whether what is decided is whether an axis has size 1, as far as the probes tell."""
        runs = [(run.sizes, each.comparison.gaps) for run in self._runs for each in run.observation.decisions.get(place, ())]
        return any(
            len({sizes[name] for sizes, _ in runs}) > 1 and all([*map(abs, gaps)] == [sizes[name] - 1] for sizes, gaps in runs)
            for name in self._sizes
        )

    def _question(self, place: Place) -> object:
        """What distinguishes one search from another: submodules often decide the same."""
        return place.frames[0], self._decisions(place)[0]

    def _other_side(
        self, place: Place, name: str, search: BranchSearch | None, only_usual: bool
    ) -> Probe | UntakenBranch | None:
        """A probe of the other side of the branch at ``place``, else the branch; ``None`` if no input takes that side."""
        decision, is_impossible = self._decisions(place)[0], False
        degenerate: tuple[Probe, Observation] | None = None
        repeats, compared = decision.by_sizes and bool(decision.comparison.period), {decision.comparison}
        first = next(run for run in self._runs if place in run.observation.decisions)
        for attempt in search.attempts(place, self.directions_from(first.inputs), first.observation) if search else ():
            changed = [*zip(attempt.inputs, self._example, strict=True)]
            is_empty = any(not new.numel() and old.numel() for new, old in changed)
            if is_empty and (repeats or not decision.by_sizes):
                continue  # zero is a multiple of everything, and a sum of nothing
            observation = attempt.observation
            decisions = observation.decisions.get(place, ())
            compared |= {each.comparison for each in decisions}
            is_taken = any(each.outcome is not decision.outcome for each in decisions)
            if is_taken and observation.is_accepted:
                is_legal = not is_empty and not any(is_float(new) and not new.any() and old.any() for new, old in changed)
                is_legal = is_legal and not (only_usual and self._is_single(attempt.inputs))
                probe = self._prober.probe(name, attempt.inputs, quick=True) if is_legal or degenerate is None else None
                if probe is not None and (is_empty or probe.reference.is_comparable):
                    if is_legal:
                        self._note(probe.inputs, observation)
                        return probe
                    # On zeros, both sides often compute the same: the search goes on.
                    degenerate = replace(probe, legality=InputStatus.DEGENERATE), observation
            elif is_taken or (attempt.is_aimed and not (decisions and observation.is_accepted)):
                is_impossible = True
                if decision.by_sizes and observation.is_accepted and place in self._on_example.decisions:
                    break  # the sizes that would take it lead elsewhere
        if degenerate is not None:
            probe, observation = degenerate
            self._note(probe.inputs, observation)
            return probe
        compared |= {each.comparison for each in self._decisions(place)}
        # What comes before can leave no other remainder, and what it guards may not depend on the input.
        if is_impossible or len({each.gaps for each in compared} if repeats else compared) == 1:
            return None
        return UntakenBranch(condition=self._condition(place), outcome=decision.outcome, by_sizes=decision.by_sizes)
