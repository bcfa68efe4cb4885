"""Special values in the rows of probes of other batch sizes, so that they need no runs of their own.

A model that computes each row of a batch by itself computes the same for a row wherever it stands. So a probe with three rows
can have zeros in the first one, negated values in the second and large ones in the third. A file that is right on this probe
is right on each of its rows. A file that is wrong on any probe is judged again, on probes with a single kind of special
values each; only there do the rules about special values apply. So rows can cost a second look, but they never change a
verdict on what they show. Without them, the project's own recipes take 39 % more processor time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from onnx_ci.pipeline.domains.axes import InputAxes
from onnx_ci.pipeline.inputs.probes import EXTREME_TOLERANCE, Inputs, InputStatus, Probe, Prober, first_accepted, is_same
from onnx_ci.pipeline.inputs.special_values import Variation
from onnx_ci.pipeline.model.tensors import Outputs, has_noise, is_all_finite, is_float8
from onnx_ci.pipeline.reference.channel_noise import ChannelNoise
from onnx_ci.pipeline.reference.reference import Reference, proportional_reference
from onnx_ci.text import listed

LEAST_ELEMENTS = 1024
"""How many elements one row of an input with special values must have: among fewer, some of them would never meet."""
SAME = 4.0
"""How many times its noise a row may differ between two batches, which kernels divide into other blocks."""


class SpecialRows:
    """Makes probes of other sizes, with special values in rows of those with another batch size.

    It does so until the model turns out not to compute each row by itself. Without variations, it makes ordinary probes only.
    """

    def __init__(self, prober: Prober, axes: InputAxes, variations: Iterable[Variation] = ()) -> None:
        self._prober, self._example = prober, prober.example
        self.waiting = [each for each in variations if not all(map(is_same, each.inputs, self._example.inputs))]
        """The variations that no probe has as a row."""
        batch, self._axes = _batch_axes(axes, self._example.inputs)
        self._is_usable = bool(batch and self.waiting) and all(
            is_same(old, new) or old.numel() >= LEAST_ELEMENTS * max(old.shape[axis], 1)
            for variation in self.waiting
            for old, new, axis in zip(self._example.inputs, variation.inputs, self._axes, strict=True)
        )
        self.batch = batch if self._is_usable else ""
        """The variable that is the number of rows of each input; empty if no rows can be used."""
        self.are_used = False
        """Whether a probe has special values in its rows."""
        self.has_random_rows = False
        """Whether a probe of a larger batch has random values in all inputs, in at least one row."""
        self._usual_values: dict[str, tuple[str, Sequence[Inputs]]] = {}
        """For each probe with special values in its rows, its name and its values without them."""

    def first_accepted(self, name: str, change: Mapping[str, int], values: Sequence[Inputs]) -> Probe | None:
        """The probe of the first of the ``values`` that a model accepts. Rows of the very first can have special ones."""
        if probe := self._with_special_rows(name, change, values[0]):
            self._usual_values[probe.name] = name, values
            return probe
        probe = first_accepted(self._prober, name, values, quick=True)
        if probe and change.get(self.batch, 1) > 1:
            self.has_random_rows = self.has_random_rows or all(map(is_same, probe.inputs, values[0]))
        return probe

    def separated(self, probes: Iterable[Probe]) -> Iterator[Probe]:
        """The same probes without special values in their rows."""
        for probe in probes:
            if probe.name not in self._usual_values:
                yield probe
            elif usual := first_accepted(self._prober, *self._usual_values[probe.name], quick=True):
                yield usual

    def _with_special_rows(self, name: str, change: Mapping[str, int], inputs: Inputs) -> Probe | None:
        """The probe of ``inputs`` with special values in as many rows as there are of them; ``None`` if that cannot be."""
        size = change.get(self.batch, 1)
        placed = self.waiting[:size]
        if not self._is_usable or not placed or len(change) > 1 or size == 1:
            return None
        rows = [self._special_row(variation) for variation in placed]
        rows += [self._row(inputs, number) for number in range(len(placed), size)]
        stacked = [torch.cat(tensors, axis) for axis, tensors in zip(self._axes, zip(*rows, strict=True), strict=True)]
        probe = self._prober.probe(f"{name} with {listed(each.name for each in placed)}", stacked, quick=True)
        reference = self._with_noise_of_rows(probe.reference, placed, size) if probe is not None else None
        if probe is None or reference is None:
            self._is_usable = False
            return None
        self.waiting = self.waiting[size:]
        self.are_used = True
        self.has_random_rows = self.has_random_rows or size > len(placed)
        # If the file fails, each special value is judged by all that can be found out about it.
        return replace(probe, reference=reference, refinements=())

    def _row(self, inputs: Inputs, number: int) -> list[torch.Tensor]:
        return [tensor.narrow(axis, number, 1) for tensor, axis in zip(inputs, self._axes, strict=True)]

    def _special_row(self, variation: Variation) -> list[torch.Tensor]:
        """The first row of a variation that is not the example's."""
        pairs = zip(variation.inputs, self._example.inputs, self._axes, strict=True)
        changed = [(new != old).movedim(axis, 0).unsqueeze(-1).flatten(1).any(1) for new, old, axis in pairs]
        return self._row(variation.inputs, int(torch.stack(changed).any(0).nonzero()[0]))

    def _with_noise_of_rows(self, reference: Reference, placed: Sequence[Variation], size: int) -> Reference | None:
        """The reference with noise for each special row by itself, and for the others together, so that large values hide none.

        ``None`` without rows.
        """
        example, outputs = self._example.reference, reference.own
        axes = _resized_axes(outputs, example.own, size)
        if axes is None or any(example.channels) or not all(map(is_all_finite, outputs)):
            return None
        others = size - len(placed)
        parts = [1] * len(placed) + [others] * bool(others)
        rows = zip(*(torch.split(output, parts, axis) for output, axis in zip(outputs, axes, strict=True)), strict=True)
        in_proportion = [proportional_reference(row, example) for row in rows]
        of_rows = [row for row in in_proportion if row is not None]
        if len(of_rows) < len(parts) or not all(map(self._is_same_alone, placed, of_rows)):
            return None
        noise = [self._noise_of_special_row(*pair) for pair in zip(placed, of_rows, strict=False)]
        noise += [of_rows[-1].noise] * others
        channels = (
            ChannelNoise(axis=axis, noise=torch.tensor(of_output, dtype=torch.float64)) if has_noise(output) else None
            for output, axis, of_output in zip(outputs, axes, zip(*noise, strict=True), strict=True)
        )
        return replace(reference, channels=tuple(channels))

    def _noise_of_special_row(self, variation: Variation, row: Reference) -> tuple[float, ...]:
        """The noise of each output; more where a file that is judged on the variation alone may be off by more."""
        if variation.has_own_noise:
            return row.noise
        factor = EXTREME_TOLERANCE if variation.legality is InputStatus.EXTREME else 1.0
        return tuple(factor * noise for noise in row.with_noise_of_at_least(self._example.reference).noise)

    def _is_same_alone(self, variation: Variation, beside: Reference) -> bool:
        """Whether the model computes the same for a special row alone as ``beside`` others."""
        # Of each row, because a model may look at the whole batch only where all of it is special.
        alone = self._prober.probe("alone", self._special_row(variation), quick=True)
        return alone is not None and all(
            left.shape == right.shape
            and bool(((left.double() - right.double()).abs() <= (SAME * noise if has_noise(left) else 0.0)).all())
            for left, right, noise in zip(alone.reference.own, beside.own, beside.noise, strict=True)
        )


def _batch_axes(axes: InputAxes, inputs: Outputs) -> tuple[str, tuple[int, ...]]:
    """The outermost variable that is the size of one axis of each input, and these axes by the input; none if there is none."""
    batches = []
    for name in axes.sizes_in(inputs):
        places = [place for place in axes.places if name in place.size.names]
        by_input = {place.index: place.axis for place in places if place.size.is_name}
        if len(by_input) == len(places) == len(inputs):
            batches.append((name, tuple(by_input[index] for index in range(len(inputs)))))
    return min(batches, key=lambda batch: max(batch[1]), default=("", ()))


def _resized_axes(outputs: Outputs, of_example: Outputs, size: int) -> list[int] | None:
    """Of each output, the only axis along which it has another size than on the example, if it is ``size`` for all of them."""
    if len(outputs) != len(of_example) or any(map(is_float8, outputs)):
        return None
    axes = []
    for output, example in zip(outputs, of_example, strict=True):
        resized = [axis for axis, sizes in enumerate(zip(output.shape, example.shape, strict=False)) if len({*sizes}) > 1]
        if output.dim() != example.dim() or len(resized) != 1 or output.shape[resized[0]] != size:
            return None
        axes.append(resized[0])
    return axes
