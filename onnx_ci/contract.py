"""From an artifact and its recipe to findings that need no inference: does the file say what was asked for?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
import torch

from onnx_ci.calls import dtype_name
from onnx_ci.exporting import Artifact
from onnx_ci.prepare import Prepared
from onnx_ci.records import Cell, Finding
from onnx_ci.rules import finding

_ELEMENT_TYPES = {
    torch.float32: onnx.TensorProto.FLOAT,
    torch.float64: onnx.TensorProto.DOUBLE,
    torch.float16: onnx.TensorProto.FLOAT16,
    torch.bfloat16: onnx.TensorProto.BFLOAT16,
    torch.bool: onnx.TensorProto.BOOL,
    torch.uint8: onnx.TensorProto.UINT8,
    torch.uint16: onnx.TensorProto.UINT16,
    torch.uint32: onnx.TensorProto.UINT32,
    torch.uint64: onnx.TensorProto.UINT64,
    torch.int8: onnx.TensorProto.INT8,
    torch.int16: onnx.TensorProto.INT16,
    torch.int32: onnx.TensorProto.INT32,
    torch.int64: onnx.TensorProto.INT64,
    torch.complex64: onnx.TensorProto.COMPLEX64,
    torch.complex128: onnx.TensorProto.COMPLEX128,
}


@dataclass(frozen=True, kw_only=True)
class Value:
    """An input or output as the graph declares it."""

    name: str
    element_type: int
    dims: tuple[int | str | None, ...] | None
    """Numbers for fixed axes, names for symbolic ones, ``None`` for nameless ones; no tuple where the rank is unknown."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """What the graph of a file declares to the outside."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    opset: int | None
    """The version of the default operator domain, or ``None`` if the file imports none."""


def check(artifact: Artifact) -> list[Finding]:
    """``onnx.checker`` with full shape inference; it reads the file itself, external data included."""
    try:
        onnx.checker.check_model(artifact.path, full_check=True)
    except Exception as error:  # the checker raises ValidationError, and what its C++ and protobuf raise
        return [finding("checker", f"onnx.checker refuses the file: {str(error).strip() or type(error).__name__}")]
    return []


def read_signature(artifact: Artifact) -> Signature | Finding:
    """The file's signature; a finding if it cannot be read as ONNX."""
    try:
        model = onnx.load(artifact.path, load_external_data=False)
    except Exception as error:  # protobuf raises its own classes on a damaged file
        return finding("checker", f"the file is no readable ONNX model: {str(error).strip() or type(error).__name__}")
    # Before IR version 4 every initializer is listed as an input, too.
    initializers = {tensor.name for tensor in model.graph.initializer}
    return Signature(
        inputs=tuple(_value(info) for info in model.graph.input if info.name not in initializers),
        outputs=tuple(_value(info) for info in model.graph.output),
        opset=next((opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")), None),
    )


def _value(info: onnx.ValueInfoProto) -> Value:
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return Value(name=info.name, element_type=tensor.elem_type, dims=None)
    dims = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim)
    return Value(name=info.name, element_type=tensor.elem_type, dims=dims)


def compare_signature(signature: Signature, prepared: Prepared, cell: Cell) -> list[Finding]:
    """Every way in which the file's signature differs from what the recipe declares and the model does."""
    findings = []
    if signature.opset != cell.opset:
        findings.append(
            finding(
                "opset-mismatch",
                f"opset {cell.opset} was asked for and the file is written at opset {signature.opset}",
                asked=cell.opset,
                found=signature.opset,
            )
        )
    inputs, outputs = prepared.example.inputs, prepared.example.reference.own
    findings += _compare_values("input", signature.inputs, inputs, prepared.input_names, prepared)
    declared = prepared.recipe.output_names
    output_names = tuple(declared[i] if i < len(declared) else None for i in range(len(outputs)))
    if len(declared) > len(outputs):
        findings.append(
            finding(
                "name-mismatch", f"output_names declares {len(declared)} names and the model returns {len(outputs)} tensors"
            )
        )
    findings += _compare_values("output", signature.outputs, outputs, output_names, prepared)
    return findings


def _compare_values(
    role: str,
    values: Sequence[Value],
    tensors: Sequence[torch.Tensor],
    names: Sequence[str | None],
    prepared: Prepared,
) -> list[Finding]:
    found = [value.name for value in values]
    if len(values) != len(tensors):
        return [_count_mismatch(role, found, tensors, names)]
    declared = [name or actual for name, actual in zip(names, found, strict=True)]
    if declared != found:
        return [
            finding(
                "name-mismatch",
                f"the {role}s are declared as {', '.join(declared)} and the graph has {', '.join(found)}",
                declared=declared,
                found=found,
            )
        ]
    findings = []
    for value, tensor in zip(values, tensors, strict=True):
        expected = _ELEMENT_TYPES.get(tensor.dtype)
        if value.element_type != expected:
            type_name = onnx.TensorProto.DataType.Name(value.element_type).lower()
            said = f"{role} {value.name!r} is {type_name} in the graph and {dtype_name(tensor)} in the model"
            findings.append(finding("dtype-mismatch", said))
        findings += _compare_dims(role, value, tensor, prepared.axes.get(value.name, {}))
    return findings


def _compare_dims(role: str, value: Value, tensor: torch.Tensor, dynamic: Mapping[int, str]) -> list[Finding]:
    if value.dims is None:
        return [finding("shape-mismatch", f"{role} {value.name!r} has no shape in the graph, not even a rank")]
    shape = tuple(tensor.shape)
    if len(value.dims) != len(shape):
        return [
            finding(
                "shape-mismatch", f"{role} {value.name!r} has {len(value.dims)} axes in the graph and {len(shape)} in the model"
            )
        ]
    findings = []
    for axis, (dim, size) in enumerate(zip(value.dims, shape, strict=True)):
        where = f"axis {axis} of {role} {value.name!r}"
        if axis in dynamic:
            if isinstance(dim, int):
                findings.append(
                    finding(
                        "static-axis",
                        f"{where} is declared dynamic as {dynamic[axis]!r} and is fixed to {dim} in the graph",
                        axis=axis,
                        size=dim,
                    )
                )
            elif dim != dynamic[axis]:
                findings.append(
                    finding("name-mismatch", f"{where} is declared as {dynamic[axis]!r} and is called {dim!r} in the graph")
                )
        elif isinstance(dim, int) and dim != size:
            findings.append(finding("shape-mismatch", f"{where} is {dim} in the graph and {size} in the model"))
    return findings


def _count_mismatch(role: str, found: Sequence[str], tensors: Sequence[torch.Tensor], names: Sequence[str | None]) -> Finding:
    if role == "input":
        missing = [name for name in names if name is not None and name not in found]
        which = f"; missing: {', '.join(missing)}" if missing else ""
        return finding(
            "input-missing",
            f"the model takes {len(tensors)} tensors and the graph has {len(found)} inputs "
            f"({', '.join(found) or 'none'}){which}",
            missing=missing,
        )
    return finding(
        "output-mismatch",
        f"the model returns {len(tensors)} tensors and the graph has {len(found)} outputs ({', '.join(found) or 'none'})",
    )
