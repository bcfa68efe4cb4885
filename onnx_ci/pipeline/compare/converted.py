"""An existing file that computes in a lower precision than the model: where it fails, it is judged by that precision."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import onnx

from onnx_ci.onnx_model.precision import Precision, lowest_precision
from onnx_ci.onnx_model.signature import Signature, read_model, read_signature
from onnx_ci.pipeline.compare.runtime_run import feeds_of
from onnx_ci.pipeline.inputs.probes import Probe
from onnx_ci.pipeline.prepare.prepare import Prepared
from onnx_ci.pipeline.reference.reference import Reference, lowered_reference, quantized_reference, runs_at_precision
from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime
from onnx_ci.pipeline.run.quantized_file import QuantizedFile
from onnx_ci.results.records import Finding


def at_precision_of_file(prepared: Prepared, path: Path, scratch: Path) -> Prepared:
    """``prepared``, such that a file that fails is judged again by the rounding of the precision in which it computes.

    The noise of float16 is measured by perturbing the model. A quantized file alone knows the steps of its activations, so
    these are jittered by a step in the file. It alone knows for which inputs it was calibrated, too: if it clips an activation
    on an input that onnx-ci made, a difference is a note.

    Args:
        scratch: a folder for changed copies of the file, which is needed while the result is used.
    """
    model, signature = read_model(path), read_signature(path, prepared.weights)
    precision = None if isinstance(model, Finding) else lowest_precision(model)
    if precision is None or precision.eps <= prepared.example.reference.eps or isinstance(signature, Finding):
        return prepared
    if prepared.recipe.nondeterministic:  # random outputs are compared by their distributions, in no unit
        return dataclasses.replace(prepared, probes=tuple(probe.with_eps(precision.eps) for probe in prepared.probes))
    prepared = prepared.one_kind_per_probe
    make = _quantized(prepared, path, signature, precision, scratch) if precision.is_uniform else _lowered(prepared, precision)
    probes = (
        dataclasses.replace(each, refinements=(*each.refinements, functools.partial(make, each))) for each in prepared.probes
    )
    return dataclasses.replace(prepared, probes=tuple(probes))


_Make = Callable[[Probe], Reference]


def _lowered(prepared: Prepared, precision: Precision) -> _Make:

    def lowered(probe: Probe) -> Reference:
        runs = runs_at_precision(prepared.fresh, probe.inputs, probe.reference, precision)
        return lowered_reference(probe.reference, runs, precision)

    return lowered


def _quantized(prepared: Prepared, path: Path, signature: Signature, precision: Precision, scratch: Path) -> _Make:

    @functools.cache
    def file() -> QuantizedFile:
        return QuantizedFile("the file", onnx.load(path), OnnxRuntime(), scratch)

    def quantized(probe: Probe) -> Reference:
        feeds = feeds_of(signature, prepared, probe)
        runs = runs_at_precision(prepared.fresh, probe.inputs, probe.reference, precision)
        still, jittered = tuple(file().run(feeds)), file().jittered_runs(feeds)
        clipping = file().clips(feeds)
        reference = quantized_reference(probe.reference, runs, still, jittered, precision)
        return dataclasses.replace(reference, clipping=None if clipping is None else str(clipping))

    return quantized
