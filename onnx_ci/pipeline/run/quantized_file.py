"""A quantized file, which alone knows the steps and the calibrated ranges of its activations."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch

from onnx_ci.onnx_model.quantized import QuantizedActivation, quantized_activations, quantized_tensors, with_jitter
from onnx_ci.pipeline.reference.perturbation import PERTURBATIONS
from onnx_ci.pipeline.run.runtime import Runtime, Session

_CLIPPED_SHARE = 0.001
"""A file that was calibrated for an input clips at most this share of each activation."""


@dataclass(frozen=True, kw_only=True)
class Clipping:
    """How much of an activation a file clips on some input."""

    file: str
    activation: QuantizedActivation
    share: float
    """The share of its elements that is clipped."""
    is_of_input: bool
    """Whether the activation is an input of the file, so that its scale says which inputs the file is for."""

    @property
    def is_significant(self) -> bool:
        """Whether it is more than the outliers that calibrations leave out."""
        return self.share > _CLIPPED_SHARE

    def __str__(self) -> str:
        low, high = self.activation.range
        name = self.activation.source or self.activation.name
        return f"{self.file} clips {100 * self.share:.2g} % of {name!r} to its range from {low:.4g} to {high:.4g}"


class QuantizedFile:
    """Runs changed copies of a quantized file.

    Args:
        name: what the file is called in messages.
        model: the file with all its data. It is not changed.
        runtime: what runs the copies.
        scratch: a folder for them.
    """

    def __init__(self, name: str, model: onnx.ModelProto, runtime: Runtime, scratch: Path) -> None:
        self.name = name
        self._model, self._runtime, self._scratch = model, runtime, scratch

    @functools.cached_property
    def activations(self) -> tuple[QuantizedActivation, ...]:
        """The activations that the file quantizes with a fixed scale."""
        return tuple(quantized_activations(self._model))

    def run(self, feeds: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of the file. Raises what the runtime raises."""
        return self._as_it_is.run(feeds)

    @functools.cached_property
    def _as_it_is(self) -> Session:
        return self._load(self._model, "as-it-is")

    def clips(self, feeds: Mapping[str, torch.Tensor]) -> Clipping | None:
        """What the file clips on inputs, if it clips much: it was not calibrated for them, or a scale is wrong.

        Args:
            feeds: the inputs by name. What the runtime raises about them is raised.
        """
        if not self.activations:
            return None
        names = {value.name for value in self._model.graph.input}
        outputs = self._with_activations.run(feeds)
        clippings = [
            Clipping(file=self.name, activation=each, share=_clipped_share(values, each), is_of_input=each.source in names)
            for values, each in zip(outputs, self.activations, strict=True)
        ]
        # What follows from a clipped input says nothing about the other scales.
        worst = max(clippings, key=lambda each: (each.is_of_input and each.is_significant, each.share))
        return worst if worst.is_significant else None

    @functools.cached_property
    def _with_activations(self) -> Session:
        """The file with its quantized activations as outputs."""
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        model.graph.ClearField("output")
        for number, each in enumerate(self.activations):  # an Identity, because an activation may be an input of the graph
            value = model.graph.output.add(name=f"onnx-ci.activation.{number}")
            model.graph.node.add(op_type="Identity", input=[each.source or each.name], output=[value.name])
        return self._load(model, "activations")

    def jittered_runs(self, feeds: Mapping[str, torch.Tensor]) -> list[list[torch.Tensor]]:
        """The outputs of several runs, each with every quantized activation moved by up to one step."""
        return [session.run(feeds) for session in self._jittered]

    @functools.cached_property
    def _jittered(self) -> list[Session]:
        seeds = range(PERTURBATIONS if quantized_tensors(self._model) else 0)
        return [self._load(with_jitter(self._model, seed), f"jitter-{seed}") for seed in seeds]

    def _load(self, model: onnx.ModelProto, name: str) -> Session:
        path = self._scratch / f"{name}.onnx"
        onnx.save_model(model, path, save_as_external_data=True, location=f"{path.name}.data")
        return self._runtime.load(path, "cpu")


def _clipped_share(values: torch.Tensor, activation: QuantizedActivation) -> float:
    """The share of ``values`` of an activation that is outside of its range, or, if they are integers, at its limits."""
    low, high = activation.range
    least, most = int(activation.integers.min), int(activation.integers.max)
    # Where the lowest integer stands for zero, the quantization is a ReLU, too.
    has_low = activation.zero_point != least
    if activation.source is not None:
        clipped = (values > high + activation.scale) | ((values < low - activation.scale) & has_low)
    else:
        clipped = (values == most) | ((values == least) & has_low)
    return float(clipped.sum()) / max(1, values.numel())
