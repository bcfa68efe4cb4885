"""Inputs along a number: the size of an axis, or how far values are changed. The search for a branch's other side uses them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from onnx_ci.collection.axis_sizes import above
from onnx_ci.pipeline.domains.axes import InputAxes
from onnx_ci.pipeline.domains.input_domains import InputDomains
from onnx_ci.pipeline.inputs.probes import Following, Inputs, is_float, is_integer
from onnx_ci.pipeline.model.call import PrepareError
from onnx_ci.pipeline.model.tensors import is_finite
from onnx_ci.pipeline.trace.trace import Decision

MAX_ELEMENTS = 2**20
"""How many elements larger inputs may have."""
GROWTH = 4
"""The factor by which sizes grow at most between two runs, so that the work of the second can be predicted from the first."""


@dataclass(frozen=True, kw_only=True)
class Direction:
    """Inputs along a number."""

    inputs: Callable[[float], Inputs | None]
    """The inputs at a number, or ``None`` if there are none."""
    start: float
    """The number of the example."""
    second: float
    """Another number, which shows how a comparison depends on it."""
    step: int = 0
    """Between numbers on the way; 0 if they need not be integers."""
    sizes: int = 0
    """How many sizes it changes; 0 for values."""
    limit: float = math.inf
    """The number of the largest sizes that the axes may have. Larger numbers lead to the same inputs."""

    def around(self, root: float) -> tuple[float, float, float]:
        """Numbers to try if the sides of a comparison are equal at ``root``: beyond it, exactly there, and before it."""
        beyond = math.copysign(self.step, root - self.start) if self.step else 0.1 * (root - self.start)
        exactly = self.nearest(root)
        return exactly + beyond, exactly, exactly - beyond

    def nearest(self, number: float) -> float:
        """The nearest number on the way."""
        return self.start + self.step * round((number - self.start) / self.step) if self.step else number


class Directions:
    """The directions from the example of a recipe, within what its axes and domains allow."""

    def __init__(self, example: Inputs, axes: InputAxes, following: Following, domains: InputDomains) -> None:
        self.example = example
        self._axes, self._following, self._domains = axes, following, domains
        self._sizes = axes.sizes_in(example)

    @functools.cached_property
    def free_sizes(self) -> list[str]:
        """The free variables of the axes' sizes."""
        return [*self._axes.free_sizes(self.example, set(self._following(self.example)))]

    def resizing(self, names: Sequence[str], step: int = 1) -> Direction:
        """The sizes of some variables together, in proportion; the number is the size of the first, in steps."""
        start = self._sizes[names[0]]

        def resized(number: float) -> Inputs | None:
            factor = number / max(start, 1)
            return self._resized({name: round(factor * max(self._sizes[name], 1)) for name in names})

        limits = [self._axes.permitted(name)[-1] * start / max(self._sizes[name], 1) for name in names]
        second = start + step * (start // step + 1)
        return Direction(inputs=resized, start=start, second=second, step=step, sizes=len(names), limit=min(limits))

    def _resized(self, sizes: Mapping[str, int]) -> Inputs | None:
        """The example with other sizes; ``None`` if it would be too large, or cannot have these."""
        permitted = {name: self._axes.permitted(name) for name in sizes}
        nearest = {
            name: size if size in permitted[name] or not size else above(permitted[name], size) for name, size in sizes.items()
        }
        most = max(MAX_ELEMENTS, GROWTH * max(tensor.numel() for tensor in self.example))
        fitted = self._axes.fitted(self.example, {**self._sizes, **nearest}, nearest, least=0, most=most)
        if fitted is None:
            return None
        try:
            drawn = self._domains.drawn(fitted, seed=1)
            inputs = [drawn.get(index, tensor) for index, tensor in enumerate(fitted)]
            computed = self._following(inputs)
        except PrepareError:  # the recipe's own functions may fail for other sizes
            return None
        return [computed.get(index, tensor) for index, tensor in enumerate(inputs)]

    def values(self) -> Iterator[Direction]:
        """Floats multiplied, increased or drawn to an end, all inputs together and each alone; integers increased, each."""
        floats = [index for index, tensor in enumerate(self.example) if is_float(tensor) and tensor.numel()]
        for indices in [*([floats] if len(floats) > 1 else ()), *([index] for index in floats)]:
            yield Direction(inputs=self._changing(indices, torch.mul), start=1, second=2)
            yield Direction(inputs=self._changing(indices, torch.add), start=0, second=1)
            yield Direction(inputs=self._changing(indices, lambda old, share: old.lerp(old.max(), share)), start=0, second=1)
            yield Direction(inputs=self._changing(indices, lambda old, share: old.lerp(old.min(), share)), start=0, second=1)
        for index, tensor in enumerate(self.example):
            if _is_number(tensor):
                yield Direction(inputs=self._changing([index], torch.add), start=0, second=1, step=1)

    def _changing(
        self, indices: Sequence[int], change: Callable[[torch.Tensor, float], torch.Tensor]
    ) -> Callable[[float], Inputs | None]:
        def changed(number: float) -> Inputs | None:
            inputs = list(self.example)
            for index in indices:
                old = inputs[index]
                new = (change(old.double(), number) if is_float(old) else change(old.long(), int(number))).to(old.dtype)
                if not torch.equal(is_finite(new), is_finite(old)):
                    return None
                inputs[index] = new
            return self._domains.legal(inputs, self.example)

        return changed

    def single_values(self, decision: Decision) -> Iterator[Inputs]:
        """The example with a last value in one input that makes sides equal, is not finite, or is the other truth value."""
        for index, tensor in enumerate(self.example):
            values: Sequence[float] = (1, 0)
            if is_float(tensor) and decision.comparison.gaps and tensor.numel():
                ends = (float(tensor.min()), float(tensor.max()))
                values = [*dict.fromkeys(end - gap for end, gap in zip(ends, decision.comparison.gaps, strict=False))]
            elif is_float(tensor):
                values = (math.nan, math.inf, -math.inf)
            elif _is_number(tensor):
                limits, ends = torch.iinfo(tensor.dtype), (int(tensor.min()), int(tensor.max()))
                equal = dict.fromkeys(end - round(gap) for end, gap in zip(ends, decision.comparison.gaps, strict=False))
                values = [value for value in equal if limits.min <= value <= limits.max]
            for value in values if tensor.numel() else ():
                changed = tensor.clone(memory_format=torch.contiguous_format)
                changed.view(-1)[-1] = value
                yield self._domains.legal([*self.example[:index], changed, *self.example[index + 1 :]], self.example)


def _is_number(tensor: torch.Tensor) -> bool:
    """Whether a tensor contains integers other than those of a mask, or is a single one."""
    has_integers = is_integer(tensor) and bool(tensor.numel())
    return has_integers and (not tensor.dim() or not {int(tensor.min()), int(tensor.max())} <= {0, 1})
