"""The facts of a cell for its baseline: what the file declares, what it was exported from, and what the model computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from onnx_ci.onnx_model.files import files_in
from onnx_ci.onnx_model.signature import Signature, Value, data_type_name
from onnx_ci.pipeline.inputs.probes import Probe
from onnx_ci.pipeline.model.call import input_tensors
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.model.tensor_sketch import sketch
from onnx_ci.pipeline.model.tensors import has_noise, is_all_finite, is_finite
from onnx_ci.pipeline.reference.reference import Reference
from onnx_ci.results.records import DeclaredValue, ExportFacts, OutputValues

SAMPLE = 8
"""The number of values of an output in a baseline."""

_DIGITS = {torch.float64: 17, torch.float16: 5, torch.bfloat16: 4}
"""The decimal digits that identify a number of a type; 9 for other floating types."""


def facts_of(signature: Signature, path: Path, model: RecipeModel, example: Probe) -> ExportFacts:
    """The facts of a file with its external data in the same folder, or of several in a folder."""
    files = {*files_in(path)}
    files |= {file.parent / each.location for file in files for each in signature.external_data}
    names = [value.name for value in signature.outputs]
    return ExportFacts(
        opset=signature.opset,
        ir_version=signature.ir_version,
        domains=signature.domains,
        inputs=tuple(map(_declared, signature.inputs)),
        outputs=tuple(map(_declared, signature.outputs)),
        operators=signature.operators,
        initializers=signature.initializers,
        initializer_bytes=signature.initializer_bytes,
        file_bytes=sum(each.stat().st_size for each in files if each.is_file()) - signature.text_bytes,
        weights=model.weights_sketch,
        arguments=sketch(input_tensors(model.pristine)),
        values=() if model.recipe.nondeterministic else tuple(_values(names, example.reference)),
    )


def _declared(value: Value) -> DeclaredValue:
    dims = None if value.dims is None else tuple("?" if dim is None else str(dim) for dim in value.dims)
    return DeclaredValue(name=value.name, dtype=data_type_name(value.element_type), dims=dims)


def _values(names: Sequence[str], reference: Reference) -> Iterator[OutputValues]:
    """The values of the outputs on the example, from the exact reference: it is the same on each runtime and processor."""
    if len(names) != len(reference.own):
        return
    for name, own, exact, noise, stable in zip(
        names, reference.own, reference.exact, reference.noise, reference.stable, strict=True
    ):
        flat = exact.double().flatten()
        if not (is_all_finite(own) and is_all_finite(exact)):
            # Where the model's own type overflows, values in float64 are not comparable.
            flat = torch.where(is_finite(own), exact.double(), own.double()).flatten()
        finite = flat if is_all_finite(flat) else flat[torch.isfinite(flat)]
        if not finite.numel() or not bool(stable.all()):
            continue  # values that depend on rounding are not the same on each machine
        digits = _DIGITS.get(own.dtype, 9) if own.is_floating_point() else 17
        places = [index * (len(flat) - 1) // (SAMPLE - 1) for index in range(SAMPLE)]
        yield OutputValues(
            name=name,
            noise=float(f"{noise:.3g}") if has_noise(own) else 0.0,
            least=_rounded(finite.min(), digits),
            mean=_rounded(finite.mean(), digits),
            largest=_rounded(finite.max(), digits),
            spread=_rounded(finite.std(correction=0), digits),
            sample=tuple(_rounded(flat[place], digits) for place in dict.fromkeys(places)),
        )


def _rounded(value: torch.Tensor, digits: int) -> float:
    return float(f"{float(value):.{digits}g}")
