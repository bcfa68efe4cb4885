"""The probes of two files: inputs that both accept, each with the outputs and the rounding of the reference.

ONNX's reference evaluator computes the reference in float64 where it can, as PyTorch does for the eager model of a recipe.
Otherwise, the rounding is estimated by perturbing weights and inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from onnx_ci.errors import first_line
from onnx_ci.onnx_model.precision import PRECISIONS, Precision
from onnx_ci.pipeline.inputs.probes import Probe, is_same
from onnx_ci.pipeline.model.tensors import Outputs, same_shapes
from onnx_ci.pipeline.reference.reference import (
    Reference,
    lowered_reference,
    proportional_reference,
    quantized_reference,
    reference_from,
)
from onnx_ci.pipeline.run.quantized_file import ScaleFit, most_clipped
from onnx_ci.results.records import Finding
from onnx_ci.results.rules import finding
from onnx_ci.tools.two_files.loaded_file import LoadedFile

_ONE_REJECTS = "Make both files accept the same sizes and values; onnx-ci show prints the differences of their graphs."


class FileProber:
    """Runs two files on inputs and makes probes of those that both accept.

    The noise of the lower precision of one of the files is used only if the other file fails without it. It is measured by
    perturbing the reference's weights and inputs by steps of that precision. A quantized file alone knows the steps of its
    activations, so these are jittered by a step.
    """

    example: Probe

    def __init__(self, reference: LoadedFile, tested: LoadedFile) -> None:
        self.reference, self.tested = reference, tested
        self._files = (reference, tested)
        precisions = [each for each in PRECISIONS.values() if each in (reference.precision, tested.precision)]
        self._lowest = precisions[-1] if precisions else None
        self.inputs: dict[str, Sequence[torch.Tensor]] = {}
        """The inputs that at least one file accepts, by the name of the probe."""
        self.outputs: dict[str, Outputs] = {}
        """The tested file's outputs, by the name of the probe."""
        self.rejected: dict[str, None] = {}
        """The names of inputs that both files reject."""
        self.clipped: dict[str, ScaleFit] = {}
        """What is clipped on drawn inputs, which are left out, by the name of the inputs."""
        self.clipped_given: dict[str, ScaleFit] = {}
        """What is clipped on given inputs, which are compared all the same."""
        self.fits_given: list[ScaleFit] = []
        """How the scales of the tested file fit given inputs, if the reference is not quantized: both may be wrong alike."""
        self.has_given = False
        """Whether given inputs were compared."""
        self.findings: list[Finding] = []

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The ranges that quantized inputs were calibrated for, by the reference's names."""
        names = [value.name for value in self.reference.file.signature.inputs]
        return {names[place]: limits for loaded in self._files for place, limits in loaded.ranges.items()}

    @property
    def is_calibrated(self) -> bool:
        """Whether a file has calibrated ranges, of which inputs may be outside."""
        return any(loaded.activations for loaded in self._files)

    def probe(self, name: str, inputs: Sequence[torch.Tensor], *, special: bool = False, quick: bool = False) -> Probe | None:
        """The probe, as :meth:`onnx_ci.pipeline.inputs.probes.Prober.probe` says."""
        if name in self.outputs or all(map(is_same, inputs, self.example.inputs)):
            return None
        return self.first_probe(name, inputs, special=special, like=self.example.reference if quick else None)

    def first_probe(
        self,
        name: str,
        inputs: Sequence[torch.Tensor],
        *,
        special: bool = False,
        is_given: bool = False,
        like: Reference | None = None,
    ) -> Probe | None:
        """The probe, or ``None`` if a file rejects the inputs, or a quantized one was not calibrated for them.

        What a file makes of inputs that the user gave always counts. With ``like``, the noise is in proportion to that
        reference if that can be done.
        """
        runs = self._runs(name, inputs)
        if runs is None:
            return None
        fits = [loaded.fits(inputs) for loaded in self._files]
        clipping = next(filter(None, map(most_clipped, fits)), None)
        if clipping is not None:
            if not is_given:
                self.clipped[name] = clipping
                return None
            if not self.reference.activations:  # otherwise, both may clip the same
                self.clipped_given[name] = clipping
        outputs, self.outputs[name] = runs
        self.has_given |= is_given
        self.fits_given += fits[1] if is_given and not self.reference.activations else ()
        proportion = proportional_reference(outputs, like) if like else None

        @functools.cache
        def precise() -> Reference:
            return self._precise(outputs, inputs)

        refinements: list[Callable[[], Reference]] = [precise] if proportion else []
        if (lowest := self._lowest) is not None:
            refinements = [lambda: self._lowered(name, proportion or precise(), inputs, lowest)]
        return Probe(
            name=name,
            inputs=tuple(inputs),
            reference=proportion or precise(),
            special=special,
            is_given=is_given,
            refinements=tuple(refinements),
        )

    def _runs(self, name: str, inputs: Sequence[torch.Tensor]) -> tuple[Outputs, Outputs] | None:
        """The outputs of both files, or ``None`` if one rejects the inputs, which is a finding if the other one does not."""
        runs: list[Outputs] = []
        errors: list[tuple[str, str]] = []
        for loaded in self._files:
            try:
                runs.append(loaded.run(inputs))
            except Exception as error:  # each runtime raises its own classes
                errors.append((loaded.file.name, first_line(error)))
        if runs:
            self.inputs[name] = inputs
        if not errors:
            return runs[0], runs[1]
        if runs:
            [(rejecting, reason)] = errors
            message = f"only {rejecting} rejects {name!r}: {reason}"
            self.findings.append(finding("run-error", message, remedy=_ONE_REJECTS, probe=name))
        else:
            self.rejected[name] = None
        return None

    def _lowered(self, name: str, like: Reference, inputs: Sequence[torch.Tensor], precision: Precision) -> Reference:
        """``like`` with the noise of a lower precision: of weights, inputs, and quantized activations of the tested file."""
        runs = self.reference.perturbed_runs(inputs, like.own, precision)
        if not precision.is_uniform:
            return lowered_reference(like, runs, precision)
        return quantized_reference(like, runs, self.outputs[name], self.tested.jittered_runs(inputs), precision)

    def _precise(self, outputs: Outputs, inputs: Sequence[torch.Tensor]) -> Reference:
        exact = self.reference.in_float64(inputs)
        precision = self.reference.precision
        return reference_from(
            outputs,
            exact if exact is not None and same_shapes(exact, outputs) else None,
            lambda: self.reference.perturbed_runs(inputs, outputs, None),
            eps=max(torch.finfo(torch.float32).eps, precision.eps if precision else 0.0),
        )
