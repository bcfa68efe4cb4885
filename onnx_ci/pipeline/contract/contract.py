"""Whether a file's signature is what the recipe declares and what the model returns."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from onnx_ci.collection.axis_sizes import axes_of_file, axis_size_of_file, is_generated, is_same_axis, solve
from onnx_ci.errors import did_you_mean
from onnx_ci.matrix.plan import CellTask
from onnx_ci.onnx_model.signature import Signature, Value, check_paths, check_weights, data_type_name
from onnx_ci.opsets import CUSTOM
from onnx_ci.pipeline.inputs.probes import Probe
from onnx_ci.pipeline.model.call import Call, default_values, wrapper_without_constants
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.model.tensors import dtype_name
from onnx_ci.results.records import Cell, Finding, Severity
from onnx_ci.results.rules import REMEDIES, finding
from onnx_ci.text import count, listed


def compare_signature(
    signature: Signature, model: RecipeModel, example: Probe, task: CellTask, *, domains: Collection[str]
) -> list[Finding]:
    """Every difference between the file's signature and what the recipe declares and the model returns.

    Operators of ``domains`` are allowed besides those that the recipe declares.
    """
    findings, cell = check_content(signature, task, domains=domains), task.cell
    names = model.signature.input_names
    findings += _compare_values("input", signature.inputs, example.inputs, names, model, cell)
    declared, outputs = model.recipe.output_names, example.reference.own
    output_names = tuple(declared[i] if i < len(declared) else None for i in range(len(outputs)))
    findings += _compare_values("output", signature.outputs, outputs, output_names, model, cell)
    own, in_graph = model.signature.own_output_names, [value.name for value in signature.outputs]
    if own and not declared and set(own).isdisjoint(in_graph):
        message = f"the outputs of the model have names ({', '.join(own)}) that are not in the file"
        findings.append(finding("output-mismatch", message, severity=Severity.NOTE, remedy=REMEDIES["declare-outputs"]))
    return findings


def check_content(signature: Signature, task: CellTask, *, domains: Collection[str] = ()) -> list[Finding]:
    """What is wrong with a file, whatever inputs and outputs it should have. See :func:`compare_signature`."""
    findings = []
    if signature.opset != task.opset_of_file:
        said = f"opset {task.opset_of_file} was requested, but the file is written at opset {signature.opset}"
        remedy = REMEDIES["hand-on-opset"] if task.cell.exporter == CUSTOM else None
        if task.cell.graph_pass is not None:
            declared = f"onnx_ci.graph_pass(..., opset={signature.opset})"
            remedy = f"If {task.cell.graph_pass} is meant to convert the file, declare what it writes: then=[{declared}]."
        findings.append(finding("opset-mismatch", said, remedy=remedy, opset=signature.opset))
    declared_domains = (*task.recipe.export_options.get("custom_opsets", {}), *domains)
    for domain in signature.foreign_domains:
        if domain not in declared_domains:
            findings += [finding("foreign-domain", f"the graph uses operators of the domain {domain!r}")]
    return [*findings, *check_paths(signature), *check_weights(signature)]


def _compare_values(
    role: str,
    values: Sequence[Value],
    tensors: Sequence[torch.Tensor],
    names: Sequence[str | None],
    model: RecipeModel,
    cell: Cell,
) -> list[Finding]:
    in_graph = [value.name for value in values]
    if len(values) != len(tensors):
        return [_count_mismatch(role, in_graph, tensors, names, model.pristine)]
    labels = [name or actual for name, actual in zip(names, in_graph, strict=True)]
    declared = labels if role == "output" or model.recipe.input_names else in_graph
    if declared != in_graph:
        message = f"the {role}s are declared as {', '.join(declared)}, but the graph has {', '.join(in_graph)}"
        return [finding("name-mismatch", message, details={"role": role, "declared": declared, "found": in_graph})]
    findings = []
    for label, value, tensor in zip(labels, values, tensors, strict=True):
        if value.element_type != _element_type_of(tensor):
            types = f"{data_type_name(value.element_type)} in the graph and {dtype_name(tensor)} in the model"
            message = f"{role} {value.name!r} is {types}"
            findings.append(finding("dtype-mismatch", message))
        findings += _compare_dims(role, value, label, tensor, model, cell)
    return findings


def _element_type_of(tensor: torch.Tensor) -> int | None:
    try:
        return from_torch_dtype(tensor.dtype).value
    except TypeError:
        return None


def _compare_dims(role: str, value: Value, label: str, tensor: torch.Tensor, model: RecipeModel, cell: Cell) -> list[Finding]:
    if value.dims is None:
        return [finding("shape-mismatch", f"{role} {value.name!r} has no shape in the graph, not even a rank")]
    shape, output = tuple(tensor.shape), value.name if role == "output" else None
    if len(value.dims) != len(shape):
        message = f"{role} {value.name!r} has rank {len(value.dims)} in the graph and {len(shape)} in the model"
        return [finding("shape-mismatch", message, output=output)]
    findings = []
    dynamic = model.signature.axes.get(label, {})
    for axis, (dim, size) in enumerate(zip(value.dims, shape, strict=True)):
        where = f"axis {axis} of {role} {value.name!r}"
        if axis in dynamic:
            if isinstance(dim, int):
                message = f"{where} is declared dynamic as {dynamic[axis]!r}, but is fixed to {dim} in the graph"
                findings.append(finding("static-axis", message, details={"axis": axis, "size": dim}, output=output))
            # Names that the exporter generated need not match. TorchScript uses the declared names of an output's axes; dynamo
            # names such an axis by its expression (``w - 2``), and so may other exporters.
            elif not (
                (dim and is_same_axis(dim, dynamic[axis]))
                or is_generated(label, dynamic[axis])
                or (role == "output" and cell.exporter != "torchscript")
            ):
                message = f"{where} is declared as {dynamic[axis]!r}, but is named {dim!r} in the graph"
                findings.append(finding("name-mismatch", message, remedy=_remedy_of_name(dim, dynamic[axis], model)))
        elif isinstance(dim, int) and dim != size:
            findings.append(finding("shape-mismatch", f"{where} is {dim} in the graph and {size} in the model"))
        elif not isinstance(dim, int) and role == "input":
            message = f"{where} is symbolic in the graph ({dim}), but is not declared dynamic"
            findings.append(finding("undeclared-axis", message))
    return findings


_ONE_NAME = "The exporter takes axes of two names to be equal. If they always are, give them one name."


def _remedy_of_name(dim: str | None, axis: str, model: RecipeModel) -> str | None:
    """How an axis keeps its name, which is another one in the file; ``None`` if nothing special is known."""
    if constants := wrapper_without_constants(model.pristine):
        return f"The exporter loses names of axes if some arguments are not tensors. To keep {axis!r}, fix those: {constants}."
    is_declared = any(dim in of_tensor.values() for of_tensor in model.signature.axes.values())
    return _ONE_NAME if is_declared else None


def _count_mismatch(
    role: str, in_graph: Sequence[str], tensors: Sequence[torch.Tensor], names: Sequence[str | None], call: Call
) -> Finding:
    graph = f"the graph has {count(len(in_graph), role)} ({', '.join(in_graph) or 'none'})"
    if role == "output":
        message = f"the model returns {count(len(tensors), 'tensor')}, but {graph}"
        return finding("output-mismatch", message, remedy=REMEDIES["fewer-outputs"] if len(in_graph) < len(tensors) else None)
    message = f"the model takes {count(len(tensors), 'tensor')}, but {graph}"
    if len(in_graph) > len(tensors):
        return _invented_input(message, default_values(call))
    missing = [name for name in names if name is not None and name not in in_graph]
    which = f"; missing: {', '.join(missing)}" if missing else ""
    return finding("input-missing", message + which, details={"missing": missing})


def _invented_input(message: str, defaults: Mapping[str, float | torch.Tensor]) -> Finding:
    """An ``input-extra``. If forward has numbers or tensors as defaults, TorchScript has made inputs of them."""
    if not defaults:
        return finding("input-extra", message)
    tensors = [name for name, value in defaults.items() if isinstance(value, torch.Tensor)]
    shown = listed(f"the tensor {name}" if name in tensors else f"{name}={value!r}" for name, value in defaults.items())
    what = "a default" if len(defaults) == 1 else "defaults"
    fixed = ", ".join(f"{name!r}: {name if name in tensors else repr(value)}" for name, value in defaults.items())
    of_tensors = f", with the default of forward as {listed(tensors)}" if tensors else ""
    message = f"{message}: TorchScript makes inputs of numbers and tensors, and {shown} is {what} of forward"
    remedy = f"Fix what is not an input in a wrapper without defaults: onnx_ci.adapt(model, fixed={{{fixed}}}){of_tensors}."
    return finding("input-extra", message, remedy=remedy)


def limits_of_no_output(signature: Signature, task: CellTask) -> Iterator[Finding]:
    """Limits that the recipe declares for outputs, or data types, that there are not: they would limit nothing."""
    names = [value.name for value in signature.outputs]
    for name, keyword in task.drift_limit.names.items():
        dtype = getattr(torch, name, None)
        is_dtype = isinstance(dtype, torch.dtype) and str(dtype) == f"torch.{name}"  # aliases, such as half, limit nothing
        if name not in (*names, *task.recipe.output_names) and not is_dtype:
            outputs = f"the outputs are {listed(names)}{did_you_mean(name, names)}"
            message = f"{keyword} names {name!r}, which is neither an output nor a data type: {outputs}"
            yield finding("name-mismatch", message, remedy=f"Correct the name in {keyword}, or declare it in output_names.")


def compare_execution(
    signature: Signature,
    outputs: Sequence[torch.Tensor],
    probe: Probe,
    axes_by_name: Mapping[str, Mapping[int, str]],
    probes: Sequence[Probe],
) -> list[Finding]:
    """Differences between the output shapes that the file declares, by number, name or expression, and those of ``outputs``."""
    sizes_by_name = [
        (dim, size)
        for value, tensor in zip(signature.inputs, probe.inputs, strict=True)
        for dim, size in zip(value.dims or (), tensor.shape, strict=False)
        if isinstance(dim, str)
    ]
    axes = axes_of_file(dim for dim, _ in sizes_by_name)
    sizes = solve((axes[dim], size) for dim, size in sizes_by_name)
    findings = []
    for position, (value, output) in enumerate(zip(signature.outputs, outputs, strict=True)):
        for axis, (dim, size) in enumerate(zip(value.dims or (), output.shape, strict=False)):
            if isinstance(dim, str):
                axis_size = axes.get(dim) or axis_size_of_file(dim)
                declared = axis_size.at(sizes) if all(name in sizes for name in axis_size.names) else None
            else:
                declared = dim
            if declared is None or declared == size:
                continue
            where, label = f"axis {axis} of output {value.name!r}", axes_by_name.get(value.name, {}).get(axis)
            details: dict[str, Any] = {"axis": axis, "size": dim}
            of_output: str | None = value.name
            if dim == declared and label is not None:
                rule, remedy = "static-axis", REMEDIES["fixed-by-exporter"].format(position, axis, label)
                message = f"{where} is declared dynamic as {label!r}, and has size {size} on {probe.name!r}, but "
                message += f"the graph declares {dim}"
            else:
                name = f"{dim!r}, which is {declared}" if isinstance(dim, str) else str(dim)
                message = f"{where} is declared as {name}, but has size {size} on {probe.name!r}"
                remedy = REMEDIES["undeclared-axis"]
                if isinstance(dim, str):
                    sizes_in_model = {each.reference.own[position].shape[axis : axis + 1] for each in probes}
                    is_misnamed = len(sizes_in_model) == 1 and dim != label
                    remedy = REMEDIES["misnamed-axis"] if is_misnamed else _NAME.format(axis, value.name)
                rule, of_output = "shape-mismatch", None if dim == label else of_output
                details = {"output": value.name, "axis": axis}
            findings.append(finding(rule, message, remedy=remedy, probe=probe.name, output=of_output, details=details))
    return findings


_NAME = "Give axis {} of {!r} a name of its own in dynamic_axes."


def merged_signature(signatures: Sequence[Signature], model: RecipeModel, example: Probe) -> Signature:
    """What the files of a model declare together: its inputs and outputs, and the sum of what they contain.

    Which of these each file should have is not declared here. A recipe of that part alone says so.
    """

    def values(role: str, names: Sequence[str | None], tensors: Sequence[torch.Tensor]) -> tuple[Value, ...]:
        """The model's tensors as a file would declare them, but without shapes: no file has these inputs and outputs."""
        named = itertools.zip_longest(names[: len(tensors)], tensors)
        return tuple(
            Value(name=name or f"{role}_{place}", element_type=_element_type_of(tensor) or 0, dims=None)
            for place, (name, tensor) in enumerate(named)
        )

    opsets = {each.opset for each in signatures}
    operators = sum((Counter(each.operators) for each in signatures), Counter[str]())
    domains = sorted(itertools.chain.from_iterable(each.domains.items() for each in signatures))
    return Signature(
        inputs=values("input", model.signature.input_names, example.inputs),
        weights=(),
        outputs=values("output", model.recipe.output_names, example.reference.own),
        opset=opsets.pop() if len(opsets) == 1 else None,
        ir_version=max(each.ir_version for each in signatures),
        foreign_domains=tuple(dict.fromkeys(domain for each in signatures for domain in each.foreign_domains)),
        paths=tuple(path for each in signatures for path in each.paths),
        external_data=tuple(data for each in signatures for data in each.external_data),
        domains=dict(domains),
        operators=dict(sorted(operators.items())),
        has_other_powers=any(each.has_other_powers for each in signatures),
        initializers=sum(each.initializers for each in signatures),
        initializer_bytes=sum(each.initializer_bytes for each in signatures),
        largest_initializer_bytes=max(each.largest_initializer_bytes for each in signatures),
        text_bytes=sum(each.text_bytes for each in signatures),
        has_probe_weights=any(each.has_probe_weights for each in signatures),
    )
