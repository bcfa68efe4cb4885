"""An existing file that computes in a lower precision than the model: where it fails, it is judged by that precision."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import onnx

from onnx_ci.onnx_model.precision import lowest_precision
from onnx_ci.onnx_model.signature import read_model, read_signature
from onnx_ci.pipeline.compare.runtime_run import feeds_of
from onnx_ci.pipeline.inputs.probes import EXAMPLE, Probe, Probes
from onnx_ci.pipeline.model.call import with_inputs
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.reference.perturbation import perturbed_runs
from onnx_ci.pipeline.reference.reference import Reference, lowered_reference, quantized_reference
from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime
from onnx_ci.pipeline.run.quantized_file import QuantizedFile, most_clipped, too_coarse
from onnx_ci.results.records import Finding


def at_precision_of_file(model: RecipeModel, probes: Probes, path: Path, scratch: Path) -> tuple[Probes, list[Finding]]:
    """``probes``, such that a file that fails is judged again by the rounding of the precision in which it computes.

    The noise of float16 is measured by perturbing the model. A quantized file alone knows the steps of its activations, so
    these are jittered by a step in the file. It alone knows for which inputs it was calibrated, too: if it clips an activation
    on an input that onnx-ci made, a difference is a note. Changed copies are in ``scratch`` while the result is used.

    Returns:
        The probes, and what is wrong with the scales of a quantized file for the inputs in files.
    """
    file_model, signature = read_model(path), read_signature(path, model.weights)
    precision = None if isinstance(file_model, Finding) else lowest_precision(file_model)
    if precision is None or precision.eps <= probes.example.reference.eps or isinstance(signature, Finding):
        return probes, []
    if model.recipe.nondeterministic:  # random outputs are compared by their distributions, in no unit
        return dataclasses.replace(probes, all=tuple(probe.with_eps(precision.eps) for probe in probes.all)), []
    probes = probes.one_kind_per_probe
    file = functools.cache(lambda: QuantizedFile("the file", onnx.load(path), OnnxRuntime(), scratch))

    def at_precision(probe: Probe) -> Reference:
        like = probe.reference
        runs = perturbed_runs(
            lambda: with_inputs(model.fresh(), probe.inputs), like.own, precision, is_watchable=model.is_watchable
        )
        if not precision.is_uniform:
            return lowered_reference(like, runs, precision)
        feeds = feeds_of(signature, model.weights, probe)
        still, jittered, clipping = tuple(file().run(feeds)), file().jittered_runs(feeds), most_clipped(file().fits(feeds))
        reference = quantized_reference(like, runs, still, jittered, precision)
        return dataclasses.replace(reference, clipping=None if clipping is None else str(clipping))

    refined = (
        dataclasses.replace(each, refinements=(*each.refinements, functools.partial(at_precision, each))) for each in probes.all
    )
    given = [probe for probe in probes.all if precision.is_uniform and probe.is_given and probe.name != EXAMPLE]
    fits = (fit for probe in given for fit in file().fits(feeds_of(signature, model.weights, probe)))
    return dataclasses.replace(probes, all=tuple(refined)), [*too_coarse(fits)]
