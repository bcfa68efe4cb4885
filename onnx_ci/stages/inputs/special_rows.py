"""Special values in rows of inputs that are tried for their size anyway, so that they need no runs of their own.

A model that computes each row of a batch by itself computes the same for a row wherever it stands. A file that is right on
such inputs is right on each of their rows; one that is not is judged on each special value alone: see
:attr:`onnx_ci.stages.prepare.prepare.Prepared.separated`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from onnx_ci.stages.inputs.probes import Probe, Prober, is_same
from onnx_ci.stages.inputs.sizes import InputAxes
from onnx_ci.stages.inputs.special_values import EXTREME_TOLERANCE, Legality, Variation
from onnx_ci.stages.model.live_model import Outputs, has_noise, is_finite, is_float8
from onnx_ci.stages.reference.channel_noise import ChannelNoise
from onnx_ci.stages.reference.reference import Reference, proportional_reference
from onnx_ci.text import listed

LEAST_ELEMENTS = 1024
"""How many elements one row of an input with special values must have: among fewer, some of them would never meet."""

SAME = 4.0
"""How many times its noise a row may differ between two batches, which kernels divide into other blocks."""


class SpecialRows:
    """Puts special values into the rows of inputs, as long as the model seems to compute each row by itself.

    Args:
        prober: makes the probes.
        axes: the dynamic axes of the inputs.
        variations: the example with special values.
    """

    def __init__(self, prober: Prober, axes: InputAxes, variations: Sequence[Variation]) -> None:
        self._prober, self._example = prober, prober.example
        self.batch, self._axes = _batch_axes(axes, self._example.inputs)
        """The variable that is the number of rows of each input; empty if there is none."""
        self.waiting = [each for each in variations if not all(map(is_same, each.inputs, self._example.inputs))]
        """Those that no probe has as a row."""
        self.are_used = False
        """Whether a probe has such rows."""
        self.have_random_values = False
        """Whether such a probe has other rows, too."""
        changed = {
            index
            for each in self.waiting
            for index, (new, old) in enumerate(zip(each.inputs, self._example.inputs, strict=True))
            if not is_same(new, old)
        }
        shapes = [(tensor.numel(), tensor.shape[axis]) for tensor, axis in zip(self._example.inputs, self._axes, strict=False)]
        self._is_usable = bool(shapes) and all(shapes[i][0] >= LEAST_ELEMENTS * max(shapes[i][1], 1) for i in changed)

    def probe(self, name: str, change: Mapping[str, int], inputs: Sequence[torch.Tensor]) -> Probe | None:
        """The probe of ``inputs`` with special values in as many rows as there are of them; ``None`` if that cannot be.

        Args:
            name: the name of the probe without them.
            change: the sizes of variables, which are not the example's.
        """
        size = change.get(self.batch, 1)
        placed = self.waiting[:size]
        if not self._is_usable or not placed or len(change) > 1 or size == 1:
            return None
        rows = [self._special_row(each) for each in placed]
        rows += [self._row(inputs, number) for number in range(len(placed), size)]
        stacked = [torch.cat(tensors, axis) for axis, tensors in zip(self._axes, zip(*rows, strict=True), strict=True)]
        made = self._prober.probe(f"{name} with {listed(each.name for each in placed)}", stacked, quick=True)
        reference = self._judged_by_rows(made.reference, placed, size) if made is not None else None
        self._is_usable = reference is not None
        if made is None or reference is None:
            return None
        self.waiting = [each for each in self.waiting if all(each is not other for other in placed)]
        self.are_used = True
        self.have_random_values = self.have_random_values or size > len(placed)
        # If the file fails, each special value is judged by all that can be found out about it.
        return replace(made, reference=reference, refinements=())

    def _row(self, inputs: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
        return [tensor.narrow(axis, number, 1) for tensor, axis in zip(inputs, self._axes, strict=True)]

    def _special_row(self, variation: Variation) -> list[torch.Tensor]:
        """The first row of a variation that is not the example's."""
        pairs = zip(variation.inputs, self._example.inputs, self._axes, strict=True)
        changed = [(new != old).movedim(axis, 0).unsqueeze(-1).flatten(1).any(1) for new, old, axis in pairs]
        return self._row(variation.inputs, int(torch.stack(changed).any(0).nonzero()[0]))

    def _judged_by_rows(self, made: Reference, placed: Sequence[Variation], size: int) -> Reference | None:
        """The reference with noise for each row by itself, so that large values do not hide the errors of other rows.

        ``None`` if the outputs have no such rows, or a row depends on others.
        """
        example = self._example.reference
        if len(made.own) != len(example.own) or any(map(is_float8, made.own)):
            return None
        axes = [_resized_axis(own, other, size) for own, other in zip(made.own, example.own, strict=True)]
        if None in axes or any(example.channels) or not all(bool(is_finite(own).all()) for own in made.own):
            return None
        rows = [*zip(*(torch.split(own, 1, axis or 0) for own, axis in zip(made.own, axes, strict=True)), strict=True)]
        references = [proportional_reference(row, example) for row in rows]
        known = [each for each in references if each is not None]
        if len(known) < size or not all(map(self._is_alike_alone, placed, known)):
            return None
        factors = torch.ones(size, dtype=torch.float64)
        for number, each in enumerate(placed):
            if each.legality is not Legality.LEGAL:
                known[number] = known[number].with_noise_of_at_least(example)
            if each.legality is Legality.EXTREME:
                factors[number] = EXTREME_TOLERANCE
        noise = (factors * torch.tensor([each.noise[i] for each in known]) for i in range(len(axes)))
        channels = (
            ChannelNoise(axis=axis or 0, noise=each) if has_noise(own) else None
            for own, axis, each in zip(made.own, axes, noise, strict=True)
        )
        return replace(made, channels=tuple(channels))

    def _is_alike_alone(self, variation: Variation, beside: Reference) -> bool:
        """Whether the model computes the same for a row alone as beside others."""
        # Of each row, because a model may look at the whole batch only where all of it is special.
        alone = self._prober.probe("alone", self._special_row(variation), quick=True)
        return alone is not None and all(
            one.shape == other.shape
            and bool(((one.double() - other.double()).abs() <= (SAME * noise if has_noise(one) else 0.0)).all())
            for one, other, noise in zip(alone.reference.own, beside.own, beside.noise, strict=True)
        )


def _batch_axes(axes: InputAxes, inputs: Outputs) -> tuple[str, tuple[int, ...]]:
    """The variable that is the size of one axis of each input, the outermost if there are several, and these axes by the input.

    No name and no axes if there is no such variable.
    """
    found = []
    for name in axes.sizes_in(inputs):
        places = [place for place in axes.places if name in place.size.names]
        by_input = {place.index: place.axis for place in places if place.size.is_name}
        if len(by_input) == len(places) == len(inputs):
            found.append((name, tuple(by_input[index] for index in range(len(inputs)))))
    return min(found, key=lambda each: max(each[1]), default=("", ()))


def _resized_axis(own: torch.Tensor, example: torch.Tensor, size: int) -> int | None:
    """The only axis along which an output has another size than on the example, if it is ``size``."""
    if own.dim() != example.dim():
        return None
    changed = [axis for axis in range(own.dim()) if own.shape[axis] != example.shape[axis]]
    return changed[0] if len(changed) == 1 and own.shape[changed[0]] == size else None
