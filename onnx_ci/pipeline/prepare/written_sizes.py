"""Where a model has a size of its example as a number, as in ``x.view(2, -1)``, although the size is that of a dynamic axis.

Such a model computes for every batch what it computes for the example's, or rejects all others. The line is proven: the model
runs on inputs of another size, and one number that functions of torch are given there is that size, too. If its outputs then
have the sizes that are declared, this number is the mistake, and the repair is what was tried.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, NamedTuple

import torch

from onnx_ci.collection.recipe import Recipe
from onnx_ci.pipeline.domains.axes import DeclaredAxes, InputAxes
from onnx_ci.pipeline.inputs.probes import Inputs, Probe
from onnx_ci.pipeline.model.call import PrepareError
from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.places import is_in_project
from onnx_ci.pipeline.model.running import force_eager, run
from onnx_ci.pipeline.model.tensors import Outputs
from onnx_ci.pipeline.trace.received import Kind, Received
from onnx_ci.pipeline.trace.recorder import Recorder
from onnx_ci.pipeline.trace.trace import FunctionCall
from onnx_ci.processes.clock import CLOCK
from onnx_ci.results.records import WRITTEN_SIZES, Finding, SourceLine
from onnx_ci.text import listed

_MOST_SECONDS = 20.0
"""How long numbers are tried."""
_MOST_IN_PAIRS = 8
"""Of how many numbers, pairs are tried."""


class _Spot(NamedTuple):
    """Where a number is given to a function of torch."""

    source: SourceLine
    function: str
    position: int
    """Among the numbers of the call."""
    number: Any


@dataclass
class _Numbers:
    """Answers with the size ``here``, in this run, in place of some multiples of the example's, and notes all of these."""

    size: int
    here: int
    replaced: Sequence[_Spot] = ()
    code: dict[_Spot, list[str]] = field(default_factory=dict)
    """The numbers that may be sizes, and what has such a size in the function that gives them: ``x.shape[0]``."""

    def __call__(self, what: Received) -> Any:
        """What a function gets."""
        source = what.place.source
        if what.kind is not Kind.ARGUMENTS or source is None or what.place.is_in_torch:
            return what.value
        spots = [_Spot(source, what.function, position, number) for position, number in enumerate(what.value)]
        for spot in spots:
            number, size = spot.number, self.size
            may_be_size = isinstance(number, int) and (number == size or (number > size > 1 and number % size == 0))
            if may_be_size and spot not in self.code:
                self.code[spot] = [*self._code_of(number // size, what)]
        return tuple(
            spot.number // self.size * self.here if spot in self.replaced else number
            for spot, number in zip(spots, what.value, strict=True)
        )

    def _code_of(self, factor: int, what: Received) -> Iterator[str]:
        """What has a multiple of the size here, among the variables of the project's innermost function."""
        codes = [frame.code for frame in what.place.frames]
        code = next((each for each in codes if is_in_project(each.co_filename)), codes[0])
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        for name, value in reversed((frame.f_locals if frame else {}).items()):
            for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                if size in (factor * self.here, self.here):
                    yield f"{name}.shape[{axis}]" if size == factor * self.here else f"{factor} * {name}.shape[{axis}]"


def find_written_sizes(
    copies: Copies, recipe: Recipe, axes: DeclaredAxes, example: Probe, tried: Mapping[str, Sequence[int]]
) -> Callable[[Finding, str], Finding]:
    """A function that adds to a finding about an axis, by its name, which numbers in the model should be its size."""
    own = example.reference.own

    @functools.cache
    def written(label: str) -> Mapping[_Spot, str]:
        labels = [axes.labels.get(name, {}) for name in recipe.output_names[: len(own)]]
        places = [
            (position, axis) for position, of_output in enumerate(labels) for axis in of_output if of_output[axis] == label
        ]
        for name in [label] if label in tried else tried:
            size = max(tried[name], default=0)

            def is_right(outputs: Outputs, name: str = name, size: int = size) -> bool:
                sizes = [(outputs[position].shape[axis : axis + 1], own[position].shape[axis]) for position, axis in places]
                return all(tuple(here) == (size,) if name == label else here != (there,) for here, there in sizes)

            if size and (found := _written(copies, example.inputs, axes.inputs, name, size, is_right)):
                return found
        return {}

    def explained(finding: Finding, label: str) -> Finding:
        sizes = written(label)
        if not sizes:
            return finding
        first, changes = next(iter(sizes)).source, []
        for spot, code in sizes.items():
            function = spot.function.rpartition(".")[2]
            number = "" if re.search(rf"\b{spot.number}\b", spot.source.text) else "what is "
            place = "there" if function.startswith("__") else f"in {function}()"
            line = "" if spot.source == first else f" at {spot.source}"
            changes.append(f"{code or f'the size of {label!r}'} instead of {number}{spot.number} {place}{line}")
        instead = {str(spot.number): code for spot, code in sizes.items() if code and spot.source == first}
        details = {**finding.details, WRITTEN_SIZES: instead}
        return replace(finding, source=first, remedy=f"Write {listed(changes)}.", details=details)

    return explained


def _written(
    copies: Copies, inputs: Inputs, axes: InputAxes, name: str, size: int, is_right: Callable[[Outputs], bool]
) -> Mapping[_Spot, str]:
    """The numbers that should be sizes, each with ``x.shape[0]``, so that outputs are right if an axis has another size."""
    sizes = axes.sizes_in(inputs)
    resized = axes.fitted(inputs, {**sizes, name: size}, {name})
    if resized is None:
        return {}
    on_example, deadline = _Numbers(sizes[name], sizes[name]), CLOCK.thread_time() + _MOST_SECONDS
    _run(copies, inputs, on_example)
    spots = sorted(on_example.code, key=lambda spot: spot.number)
    singles, pairs = ((spot,) for spot in spots), itertools.combinations(spots[:_MOST_IN_PAIRS], 2)
    for tried in itertools.chain(singles, pairs):
        if CLOCK.thread_time() > deadline:
            break
        here = _Numbers(sizes[name], size, tried)
        outputs = _run(copies, resized, here)
        if outputs is not None and is_right(outputs):
            code = {spot: [each for each in here.code.get(spot, ()) if each in on_example.code[spot]] for spot in tried}
            return {spot: next(iter(each), "") for spot, each in code.items()}
    return {}


def _run(copies: Copies, inputs: Inputs, answers: _Numbers) -> Outputs | None:
    """What the model returns; ``None`` if it rejects the inputs."""
    call = copies.running(inputs)
    with contextlib.suppress(PrepareError), force_eager(), Recorder(call, answers=answers, kinds=[FunctionCall]):
        return run(call)
    return None
