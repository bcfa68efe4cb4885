"""What the file of a pass is compared with: the recipe's probes, in units of the rounding that its passes cause.

A file after a pass is judged like the exporter's. A lossy pass changes only the unit and, for float16, the types of inputs
and outputs, so the later rooms do not know the difference. The simulation of the rounding runs the model, never the pass's
file, whose faults would hide in their own unit.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from onnx_ci.collection.post_export import GraphPass
from onnx_ci.matrix.drift_limit import DriftLimit
from onnx_ci.onnx_model.precision import PRECISIONS
from onnx_ci.onnx_model.signature import read_signature
from onnx_ci.pipeline.inputs.probes import Probe, Probes
from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.devices import exact_arithmetic
from onnx_ci.pipeline.model.operators import Intervention
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.model.tensors import Outputs, as_array, has_noise, in_declared_type, is_finite
from onnx_ci.pipeline.post_export import rounding
from onnx_ci.pipeline.reference.float64 import run_within
from onnx_ci.pipeline.reference.reference import Reference, spread, with_noise_of
from onnx_ci.results.records import Finding, Severity
from onnx_ci.results.rules import REMEDIES, finding
from onnx_ci.text import listed

FEW = 64
"""An output with fewer elements is simulated more often: its largest error may be small by chance."""
SIMULATIONS, SIMULATIONS_OF_FEW = 4, 16


@dataclass(frozen=True, kw_only=True)
class ShippedReference:
    """What the file after some passes is compared with."""

    model: RecipeModel
    probes: Probes
    findings: tuple[Finding, ...] = ()
    domains: tuple[str, ...] = ()
    """Domains of operators that the passes may introduce."""

    @classmethod
    def of(cls, model: RecipeModel, probes: Probes, passes: Sequence[GraphPass], limit: DriftLimit) -> Self:
        """``probes``, in units of the rounding of ``passes``; unchanged if they keep the numbers."""
        domains = tuple(domain for graph_pass in passes for domain in graph_pass.domains)
        lossy = [each for each in passes if each.lossy]
        if passes:
            probes = probes.one_kind_per_probe
        if not lossy:
            return cls(model=model, probes=probes, domains=domains)
        shipped, findings = probes.all, []
        if model.recipe.nondeterministic:  # random outputs are compared by their distributions, in no unit
            eps = max(PRECISIONS[each.lossy].eps for each in lossy if each.lossy)
            shipped = tuple(probe.with_eps(eps) for probe in shipped)
        else:
            simulator = _Simulator(model, probes, lossy)
            with exact_arithmetic():
                shipped, left_out = simulator.probes()
            if left_out:
                message = f"not compared on {listed(left_out)}: outside the calibrated ranges"
                remedy = "No action is needed. What a quantized file computes there proves nothing."
                findings.append(finding("vacuous", message, severity=Severity.NOTE, remedy=remedy))
            if simulator.failing:
                message = (
                    f"the rounding of the passes cannot be simulated on {listed(simulator.failing)}: it gives NaN or infinity"
                )
                findings.append(finding("vacuous", message, remedy=REMEDIES["no-unit"]))
            findings += _too_coarse(shipped, limit.default)
        if any(each.lossy == "float16" and not each.keep_io_types for each in lossy):
            shipped = tuple(map(_with_float16, shipped))
        return cls(model=model, probes=dataclasses.replace(probes, all=shipped), findings=tuple(findings), domains=domains)


def _too_coarse(probes: Sequence[Probe], limit: float) -> list[Finding]:
    """Findings about outputs for which a constant would pass."""
    findings = []
    for position, output in enumerate(probes[0].reference.own):
        if not has_noise(output):
            continue
        allowed = [limit * probe.reference.noise[position] for probe in probes if not probe.special]
        spreads = [spread(probe.reference.exact[position]) for probe in probes if not probe.special]
        if all(error >= spread for error, spread in zip(allowed, spreads, strict=True)):
            message = (
                f"output {position}: the passes round it by {allowed[0] / limit:.2g}, and its values are only {spreads[0]:.2g} "
                f"apart: with a limit of {limit:g}, a constant would pass"
            )
            findings.append(finding("vacuous", message, remedy=REMEDIES["coarse-pass"]))
    return findings


def _with_float16(probe: Probe) -> Probe:
    """The probe for a file whose inputs and outputs are float16 where those of the model are float32."""

    def half(tensors: Outputs) -> Outputs:
        return tuple(tensor.half() if tensor.dtype == torch.float32 else tensor for tensor in tensors)

    def half_reference(refine: Callable[[], Reference]) -> Reference:
        reference = refine()
        return dataclasses.replace(reference, own=half(reference.own))

    return dataclasses.replace(
        probe,
        inputs=half(probe.inputs),
        reference=half_reference(lambda: probe.reference),
        refinements=tuple(functools.partial(half_reference, each) for each in probe.refinements),
    )


class _Simulator:
    """Runs a model with the rounding of its lossy passes."""

    def __init__(self, model: RecipeModel, probes: Probes, lossy: Sequence[GraphPass]) -> None:
        self._probes, self._lossy = probes, lossy
        self._copies = Copies(model.pristine, model.fresh)
        self._copies.is_watchable = model.is_watchable
        if not model.changed_by_running and all(each.lossy == "int8" for each in lossy):  # float16 changes the weights
            self._copies.share()
        self._observations: dict[int, rounding.Observations] = {}
        """What a run on each probe shows, by the probe's identity."""
        self._calibrated: rounding.Ranges | None = None
        self._simulations: dict[tuple[str, int | None], Outputs | None] = {}
        self.failing: dict[str, None] = {}
        """The probes on which the simulation has no finite result where the model has one."""
        self._method = " and ".join(dict.fromkeys(f"simulated {each.lossy}" for each in lossy))

    def probes(self) -> tuple[tuple[Probe, ...], list[str]]:
        """The probes in units of the simulated rounding, and the names of those that prove nothing."""
        probes = self._probes.all
        if any(each.is_static for each in self._lossy):
            self._observations = {id(probe): self._observe(probe) for probe in probes}
            usable = self._within_calibration()
        else:
            if any(each.lossy == "int8" for each in self._lossy):
                first = self._observe(probes[0])  # without ranges, what a run shows does not depend on the input
                self._observations = {id(probe): first for probe in probes}
            usable = list(probes)
        names = {probe.name for probe in usable}
        left_out = [probe.name for probe in probes if probe.name not in names]
        return tuple(map(self._with_noise, usable or probes[:1])), left_out

    def _within_calibration(self) -> list[Probe]:
        """The probes on which no activation leaves its calibrated range, neither in a step nor in those before it."""
        ranges = [self._observations[id(probe)].ranges for probe in calibration_probes(self._probes)]
        self._calibrated = rounding.merged_ranges(ranges)
        within: dict[str, Probe] = {}
        for probe in self._probes.all:
            follows_usable = probe.follows is None or probe.follows in within
            if follows_usable and rounding.is_within(self._observations[id(probe)].ranges, self._calibrated):
                within[probe.name] = probe
        return list(within.values())

    def _observe(self, probe: Probe) -> rounding.Observations:
        observations = rounding.Observations()
        self._run(probe, rounding.observed(observations))
        return observations

    def _run(self, probe: Probe, *withins: rounding.Within) -> Outputs | None:
        """The outputs in float64, or in the model's own type if it cannot run in float64. ``None`` if the model fails."""
        return run_within(self._copies, probe.reference.own, probe.inputs, rounding.in_turn(withins))

    def _simulated(self, probe: Probe, seed: int | None) -> Outputs | None:
        """The outputs with simulated rounding; for a step of a sequence, also that of all steps before it."""
        if all(each.follows != probe.name for each in self._probes.all):
            return self._simulate(probe, seed)
        key = (probe.name, seed)
        if key not in self._simulations:  # the steps after it need it again
            self._simulations[key] = self._simulate(probe, seed)
        return self._simulations[key]

    def _simulate(self, probe: Probe, seed: int | None) -> Outputs | None:
        fed = probe
        if probe.follows is not None:
            before = self._simulated(next(each for each in self._probes.all if each.name == probe.follows), seed)
            if before is None:
                return None
            fed = probe.fed_with(before)  # in float64
            inputs = tuple(tensor.to(like.dtype) for tensor, like in zip(fed.inputs, probe.inputs, strict=True))
            fed = dataclasses.replace(fed, inputs=inputs)
        withins = [
            rounding.float16(seed)
            if each.lossy == "float16"
            else rounding.int8(each, seed, self._observations[id(probe)], self._calibrated if each.is_static else None)
            for each in self._lossy
        ]
        return self._run(fed, *withins)

    def _with_noise(self, probe: Probe) -> Probe:
        """The probe with the noise of one simulation, and with a refinement by several more for a file that fails."""
        nearest = self._simulated(probe, None)
        # Torch's encoder layers, for example, compute something else while they are watched. That is not rounding.
        watching = () if self._copies.is_watchable else (lambda _: Intervention(),)
        unrounded = self._run(probe, *watching) if probe.follows is None else None
        pairs = zip(nearest or probe.reference.exact, probe.reference.exact, strict=True)
        if nearest is None or (not probe.special and any(bool((is_finite(b) & ~is_finite(a)).any()) for a, b in pairs)):
            self.failing[probe.name] = None

        @functools.cache
        def refined() -> Reference:
            few = any(own.numel() < FEW for own in probe.reference.own)
            seeds = range(SIMULATIONS_OF_FEW if few else SIMULATIONS)
            return self._reference(probe, [nearest, *(self._simulated(probe, seed) for seed in seeds)], unrounded)

        return dataclasses.replace(probe, reference=self._reference(probe, [nearest], unrounded), refinements=(refined,))

    def _reference(self, probe: Probe, simulated: Sequence[Outputs | None], unrounded: Outputs | None) -> Reference:
        reference = probe.reference
        if reference.method == "proportion" and len(simulated) > 1:
            reference = probe.refinements[0]()
        return dataclasses.replace(with_noise_of(reference, simulated, self._method, unrounded=unrounded), is_lossy=True)


def calibration_probes(probes: Probes) -> list[Probe]:
    """The probes on which a static quantization is calibrated: the example and inputs like it that show a range."""
    usable = []
    for probe in probes.one_kind_per_probe.all:
        floats = [tensor for tensor in probe.inputs if has_noise(tensor) and tensor.numel()]
        is_finite_everywhere = all(bool(torch.isfinite(each).all()) for each in floats)
        varies = not floats or any(bool((each != each.flatten()[0]).any()) for each in floats)
        if not probe.special and is_finite_everywhere and varies:
            usable.append(probe)
    return usable


def calibration_feeds(path: Path, weights: Mapping[str, torch.Tensor], probes: Probes) -> list[Mapping[str, Any]]:
    """The calibration's inputs for the file at ``path``, by name, but for the ``weights``."""
    signature = read_signature(path, weights)
    if isinstance(signature, Finding):
        return []
    feeds: list[Mapping[str, Any]] = []
    for probe in calibration_probes(probes):
        pairs = zip(signature.inputs, probe.inputs, strict=False)
        feeds.append({value.name: as_array(in_declared_type(tensor, value.element_type)) for value, tensor in pairs})
    return feeds
