"""From a file's signature and its recipe to findings that need no inference: does the file say what was asked for?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import torch

from onnx_ci.calls import dtype_name
from onnx_ci.onnx_file import Signature, Value, check_paths
from onnx_ci.prepare import Prepared
from onnx_ci.probes import Probe
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
    declared_domains = prepared.recipe.export_options.get("custom_opsets", {})
    for domain in signature.foreign_domains:
        if domain not in declared_domains:
            findings += [finding("foreign-domain", f"the graph uses operators of the domain {domain!r}")]
    findings += check_paths(signature)
    inputs, outputs = prepared.example.inputs, prepared.example.reference.own
    findings += _compare_values("input", signature.inputs, inputs, prepared.input_names, prepared, cell)
    declared = prepared.recipe.output_names
    output_names = tuple(declared[i] if i < len(declared) else None for i in range(len(outputs)))
    findings += _compare_values("output", signature.outputs, outputs, output_names, prepared, cell)
    return findings


def _compare_values(
    role: str,
    values: Sequence[Value],
    tensors: Sequence[torch.Tensor],
    names: Sequence[str | None],
    prepared: Prepared,
    cell: Cell,
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
        findings += _compare_dims(role, value, tensor, prepared.axes.get(value.name, {}), cell)
    return findings


def _compare_dims(role: str, value: Value, tensor: torch.Tensor, dynamic: Mapping[int, str], cell: Cell) -> list[Finding]:
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
            elif dim != dynamic[axis] and not _may_differ(role, value.name, dynamic[axis], cell):
                findings.append(
                    finding("name-mismatch", f"{where} is declared as {dynamic[axis]!r} and is called {dim!r} in the graph")
                )
        elif isinstance(dim, int) and dim != size:
            findings.append(finding("shape-mismatch", f"{where} is {dim} in the graph and {size} in the model"))
        elif not isinstance(dim, int) and role == "input":
            findings.append(finding("undeclared-axis", f"{where} is symbolic in the graph ({dim}) and not declared dynamic"))
    return findings


def _may_differ(role: str, name: str, axis: str, cell: Cell) -> bool:
    """Whether an axis may bear another name than the declared one.

    dynamo names an output's axis by what it computes it from (``w - 2``), and a name that nobody chose binds nobody.
    """
    return axis.startswith(f"{name}_dynamic_axes_") or (role == "output" and cell.exporter == "dynamo")


def _count_mismatch(role: str, found: Sequence[str], tensors: Sequence[torch.Tensor], names: Sequence[str | None]) -> Finding:
    listed = ", ".join(found) or "none"
    if role == "output":
        said = f"the model returns {_counted(tensors, 'tensor')} and the graph has {_counted(found, 'output')} ({listed})"
        return finding("output-mismatch", said)
    said = f"the model takes {_counted(tensors, 'tensor')} and the graph has {_counted(found, 'input')} ({listed})"
    if len(found) > len(tensors):
        return finding("input-extra", said)
    missing = [name for name in names if name is not None and name not in found]
    which = f"; missing: {', '.join(missing)}" if missing else ""
    return finding("input-missing", said + which, missing=missing)


def _counted(things: Sequence[object], word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"


def compare_execution(signature: Signature, outputs: Sequence[torch.Tensor], probe: Probe) -> list[Finding]:
    """Where the shapes that the file declares, by number or by name, are not the ones that running it gives."""
    sizes: dict[str, int] = {}
    for value, tensor in zip(signature.inputs, probe.inputs, strict=True):
        sizes |= {dim: size for dim, size in zip(value.dims or (), tensor.shape, strict=False) if isinstance(dim, str)}
    findings = []
    for value, got in zip(signature.outputs, outputs, strict=True):
        for axis, (dim, size) in enumerate(zip(value.dims or (), got.shape, strict=False)):
            declared = sizes.get(dim) if isinstance(dim, str) else dim
            if declared is not None and declared != size:
                name = f"{dim!r}, which is {declared}," if isinstance(dim, str) else str(dim)
                said = f"axis {axis} of output {value.name!r} is declared as {name} and comes out as {size} on {probe.name!r}"
                remedy = "Declare the output's axis in dynamic_axes, under a name of its own where its size is its own."
                findings.append(finding("shape-mismatch", said, remedy=remedy, probe=probe.name))
    return findings
