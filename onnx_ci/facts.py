"""The facts of a cell, for its baseline: what the file says by itself, what it was made from, what the model computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
import torch

from onnx_ci.onnx_file import Signature, Value
from onnx_ci.prepare import Prepared
from onnx_ci.records import Declared, Facts, OutputValues

SAMPLE = 8
"""How many values of an output a baseline holds."""

_DIGITS = {torch.float64: 17, torch.float16: 5, torch.bfloat16: 4}
"""The decimal digits that tell the numbers of a type apart; those of every other floating type are 9."""


def facts_of(signature: Signature, path: Path, prepared: Prepared) -> Facts:
    """The facts of a file.

    Args:
        signature: what it declares.
        path: where it lies, with its external data.
        prepared: what it was exported from.
    """
    files = {path, *(path.parent / each.location for each in signature.external_data)}
    return Facts(
        opset=signature.opset,
        ir_version=signature.ir_version,
        domains=signature.domains,
        inputs=tuple(map(_declared, signature.inputs)),
        outputs=tuple(map(_declared, signature.outputs)),
        operators=signature.operators,
        initializers=signature.initializers,
        initializer_bytes=signature.initializer_bytes,
        file_bytes=sum(each.stat().st_size for each in files if each.is_file()) - signature.text_bytes,
        weights=prepared.weights_sketch,
        arguments=prepared.arguments_sketch,
        values=tuple(_values([value.name for value in signature.outputs], prepared)),
    )


def _declared(value: Value) -> Declared:
    dims = None if value.dims is None else tuple("?" if dim is None else str(dim) for dim in value.dims)
    return Declared(name=value.name, dtype=onnx.TensorProto.DataType.Name(value.element_type).lower(), dims=dims)


def _values(names: Sequence[str], prepared: Prepared) -> Iterator[OutputValues]:
    """The outputs' values on the example, by the exact reference, which runtimes, threads and processors do not move."""
    reference = prepared.example.reference
    if prepared.samples or len(names) != len(reference.own):
        return
    for name, own, exact, noise, stable in zip(
        names, reference.own, reference.exact, reference.noise, reference.stable, strict=True
    ):
        # Where the model's own type overflows, float64 goes on to numbers that no noise bounds.
        flat = torch.where(torch.isfinite(own), exact.double(), own.double()).flatten()
        finite = flat[torch.isfinite(flat)]
        if not finite.numel() or not bool(stable.all()):
            continue  # what hangs on rounding, another machine computes otherwise
        digits = _DIGITS.get(own.dtype, 9) if own.is_floating_point() else 17
        places = [index * (len(flat) - 1) // (SAMPLE - 1) for index in range(SAMPLE)]
        yield OutputValues(
            name=name,
            noise=float(f"{noise:.3g}") if own.is_floating_point() else 0.0,
            least=_rounded(finite.min(), digits),
            mean=_rounded(finite.mean(), digits),
            largest=_rounded(finite.max(), digits),
            spread=_rounded(finite.std(correction=0), digits),
            sample=tuple(_rounded(flat[place], digits) for place in dict.fromkeys(places)),
        )


def _rounded(value: torch.Tensor, digits: int) -> float:
    return float(f"{float(value):.{digits}g}")
