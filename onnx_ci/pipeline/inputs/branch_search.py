"""The search for inputs that take the other side of a branch.

It goes along the sizes of the dynamic axes and along the values of the inputs, to where the sides of the comparison are equal.
If the branch is reached at sizes with some remainder only, it goes in steps that keep the remainder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onnx_ci.pipeline.inputs.decisions import Observation, observed
from onnx_ci.pipeline.inputs.directions import GROWTH, Direction, Directions
from onnx_ci.pipeline.inputs.probes import Inputs, is_same
from onnx_ci.pipeline.trace.recorder import Tracer
from onnx_ci.pipeline.trace.trace import Place

MAX_RUNS = 48
"""How many runs of the model may be spent on searching for the other sides of a recipe's branches."""
MAX_STEPS = 3
"""How many times a search along one direction is corrected."""
_MOST_STEPS = 16
"""How many of them are tried where a branch on a remainder is reached at sizes with another remainder only."""
_MORE = (1, 2, 4, 8, 16, 32)
"""What is added to a size if it decides by a remainder."""
MAX_WORK = 2**28
"""How many elements the model may compute on larger inputs, which is predicted from smaller ones: a few tenths of a second."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A run of the search."""

    inputs: Inputs
    observation: Observation
    is_aimed: bool
    """Whether the other side would be taken, as far as can be calculated."""


class BranchSearch:
    """Runs a model on inputs that may take the other side of a branch."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._runs: list[tuple[Inputs, Observation]] = []
        """The inputs of the search, and what their runs decided."""

    def attempts(self, place: Place, directions: Directions, start: Observation) -> Iterator[Attempt]:
        """Runs on inputs that may take the other side of a branch than all probes do, of which one is where it ``start``s."""
        decision = start.decisions[place][0]
        if decision.comparison.gaps:
            for direction in () if decision.by_sizes else directions.values():
                yield from _Walk(self, direction, place, start).attempts()
            yield from self._along_sizes(place, directions, start)
        if not decision.by_sizes:
            for inputs in directions.single_values(decision):
                if attempt := self.attempt(inputs):
                    yield attempt

    def _along_sizes(self, place: Place, directions: Directions, start: Observation) -> Iterator[Attempt]:
        """Runs along each size alone, then along all, unless a single one decides, and the other side is out of its reach."""
        names, gaps_at_start = directions.free_sizes, _gaps(start, place)
        decisions = (each for other, decisions in start.decisions.items() if other != place for each in decisions)
        periods = {math.ceil(each.comparison.period) for each in decisions if each.by_sizes and each.comparison.period > 1}
        deciding: list[Sequence[Attempt]] = []
        for name in names:
            attempts = []
            for step in (1, *sorted(periods)):
                for attempt in _Walk(self, directions.resizing([name], step), place, start).attempts():
                    attempts.append(attempt)
                    yield attempt
            if any(_gaps(attempt.observation, place) not in ((), gaps_at_start) for attempt in attempts):
                deciding.append(attempts)
        is_out_of_reach = len(deciding) == 1 and all(
            attempt.observation.is_accepted and not attempt.is_aimed for attempt in deciding[0]
        )
        if len(names) > 1 and not is_out_of_reach:
            yield from _Walk(self, directions.resizing(names), place, start).attempts()

    def attempt(self, inputs: Inputs | None, *, is_aimed: bool = False) -> Attempt | None:
        """A run on ``inputs``, if they exist and runs are left. Directions can cross: no inputs are run twice."""
        if inputs is None:
            return None
        for earlier, observation in self._runs:
            if all(map(is_same, inputs, earlier)):
                return Attempt(inputs=inputs, observation=observation, is_aimed=is_aimed)
        if len(self._runs) == MAX_RUNS:
            return None
        observation = observed(self._tracer.trace(inputs))
        self._runs.append((inputs, observation))
        return Attempt(inputs=inputs, observation=observation, is_aimed=is_aimed)


class _Walk:
    """The runs along one direction, towards where the sides of the comparison at ``place`` are equal."""

    def __init__(self, search: BranchSearch, direction: Direction, place: Place, start: Observation) -> None:
        self._search, self._direction, self._site, self._decision = search, direction, place, start.decisions[place][0]
        self._observations = {direction.start: start}
        """What the model decides, by the number on the way, in the order of the runs."""

    def attempts(self) -> Iterator[Attempt]:
        """The runs, in an order in which each shows where the next ones should be."""
        direction, comparison = self._direction, self._decision.comparison
        yield from self._towards(direction.second)
        decided = [each.decisions.get(self._site) for each in self._observations.values()]
        is_repeating = direction.sizes and comparison.period and decided[-1] not in (None, decided[0])
        for number, is_aimed in self._repeating().items() if is_repeating else ():
            yield from self._towards(number, is_aimed=is_aimed)
        for position in range(len(comparison.gaps)):
            for _ in range(MAX_STEPS):
                root = self._root(position)
                if root is None:
                    break
                beyond, exactly, before = direction.around(root)
                if {beyond, exactly, before} <= self._observations.keys():
                    break
                yield from self._towards(beyond, is_aimed=True)
                yield from self._towards(exactly, is_aimed=True)
                yield from self._towards(before)
                # Sizes after a stride, and values after a saturation, change in steps.
                yield from self._towards(direction.nearest(exactly + 0.5 * (exactly - direction.start)))

    def _repeating(self) -> dict[float, bool]:
        """Sizes at which a comparison of what was divided may come out otherwise, and whether the other side is expected.

        Where the gap is that of a remainder, it is zero as far beside the example's size as the gap itself, or that much short
        of a period. Where it is that of a quotient, it is so many periods away. After a stride, all of that is twice as far.
        """
        start, period, step = int(self._direction.start), math.ceil(self._decision.comparison.period), self._direction.step
        if step > 1:
            return dict.fromkeys(range(start + step, start + step * min(period, _MOST_STEPS) + 1, step), False)
        gaps = [round(gap) for gap in self._decision.comparison.gaps]
        away = [number for gap in gaps for number in (-gap % period, gap % period, -gap % period - period, -gap * period)]
        multiples = [(start // period + number) * period for number in (1, 2, 3)]
        further = (2 * each for each in (*away, multiples[0] - start))
        others = (multiples[0] + 1, *(start + each for each in (*_MORE, *further)))
        expected = dict.fromkeys((*(start + each for each in away), *multiples), True)
        numbers = expected | {each: False for each in others if each not in expected}
        return {number: is_aimed for number, is_aimed in numbers.items() if number > 0 and number != start}

    def _towards(self, target: float, *, is_aimed: bool = False) -> Iterator[Attempt]:
        """Runs up to ``target``, as far as the model does not compute too much."""
        direction = self._direction
        while target not in self._observations:
            number = self._affordable(target) if direction.sizes else target
            if number is None:
                return
            is_there = number == target <= direction.limit
            attempt = self._search.attempt(direction.inputs(number), is_aimed=is_aimed and is_there)
            if attempt is None:
                return
            self._observations[number] = attempt.observation
            yield attempt

    def _affordable(self, target: float) -> float | None:
        """The next number on the way to ``target``; ``None`` if the model would compute too much.

        That is known at once if the work would be too much even if it grew no faster than so far. For the next number it is
        taken to grow with each size, and with the square of one, as attention does.
        """
        direction, largest = self._direction, max(self._observations)
        if target <= largest:
            return target
        first_work, work = self._observations[direction.start].elements, self._observations[largest].elements
        if largest > direction.start:
            growth = (work - first_work) / (largest - direction.start)
            if work + growth * (target - largest) > MAX_WORK:
                return None
        number = min(target, GROWTH * max(largest, 1))
        return None if work * (number / max(largest, 1)) ** (direction.sizes + 1) > MAX_WORK else number

    def _root(self, position: int) -> float | None:
        """Where a line through the last two points of the nearest gaps crosses zero; ``None`` if it does not."""
        points = []
        for number, observation in self._observations.items():
            gaps = [each[position] for each in _gaps(observation, self._site) if position < len(each)]
            points += [(number, min(gaps, key=abs))] if gaps else []  # none if the run did not get to the comparison
        if len(points) < 2:
            return None
        (x1, y1), (x2, y2) = points[-2:]
        root = x1 - y1 * (x2 - x1) / (y2 - y1) if y2 != y1 else math.inf
        return root if math.isfinite(root) else None


def _gaps(observation: Observation, place: Place) -> tuple[tuple[float, ...], ...]:
    return tuple(decision.comparison.gaps for decision in observation.decisions.get(place, ()))
