"""Whether a file is what it must be for where it runs: its operators, its IR version, its shapes, where its weights are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import onnx

from onnx_ci.matrix.plan import Requirements
from onnx_ci.onnx_model.operators import operators_of
from onnx_ci.onnx_model.signature import STANDARD_DOMAINS, Signature
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.results.records import Finding
from onnx_ci.results.rules import finding
from onnx_ci.text import count, listed, listed_shortly

_NAMED = 5
"""How many operators or values a message names."""
_LEAST_EXTERNAL = 1024
"""In bytes: both onnx.save_model and dynamo leave smaller tensors in the file."""


def check_requirements(
    path: Path, complete: Path, signature: Signature, requirements: Requirements, fold: Callable[[Path, Path], None]
) -> list[Finding]:
    """A finding for each requirement that a file does not meet.

    ``path`` is a file that the checker accepts, perhaps without the weights of the complete one. ``fold`` writes it to another
    path, with constants for what depends on constants and fixed shapes alone.
    """
    findings = []
    newest, is_external = requirements.max_ir_version, requirements.external_data
    if newest is not None and signature.ir_version > newest:
        message = f"the file has IR version {signature.ir_version}, and {newest} is the newest that is allowed"
        findings.append(finding("ir-version", message))
    # What was read may be the file without its weights, which then are in the complete file.
    locations = sorted({data.location for data in signature.external_data} - {complete.name})
    if is_external is False and locations:
        message = f"the file has external data in {listed(locations)}, and the recipe declares none"
        findings.append(finding("data-placement", message))
    if is_external and not locations and signature.largest_initializer_bytes >= _LEAST_EXTERNAL:
        findings.append(finding("data-placement", "the file has no external data, and the recipe declares some"))
    if requirements.operators is not None or requirements.static:
        model = onnx.load(path, load_external_data=False)
        allowed = requirements.operators
        uses = [] if allowed is None else [each for each in operators_of(model) if not each.is_function]
        if unlisted := [each for each in uses if each.name not in (allowed or ())]:
            names = listed_shortly([f"{each.name} ({count(each.count, 'node')})" for each in unlisted], _NAMED)
            message = f"the file uses operators that are not allowed: {names}"
            details = {"operators": {each.name: each.count for each in unlisted}}
            findings.append(finding("unlisted-operator", message, details=details))
        if requirements.static:
            symbolic = [info.name for info in (*model.graph.input, *model.graph.output) if not _is_fixed(info)]
            if symbolic := symbolic or [*_symbolic_values(path, fold)]:
                names = listed_shortly([repr(name) for name in symbolic], _NAMED)
                findings.append(finding("symbolic-shape", f"the shape of {names} is not fixed", details={"values": symbolic}))
    return findings


def _symbolic_values(path: Path, fold: Callable[[Path, Path], None]) -> Iterator[str]:
    """The values in a graph with fixed inputs that have no fixed shape by ONNX's shape inference.

    That alone cannot follow how TorchScript computes sizes, so the graph is folded first. Values of operators that ONNX does
    not define are left out.
    """
    with scratch_folder() as scratch:
        folded = scratch / path.name
        try:
            fold(path, folded)
            model = onnx.shape_inference.infer_shapes(onnx.load(folded, load_external_data=False), data_prop=True)
        except Exception:  # the runtime tells that it cannot load the file
            return
    graph = model.graph
    infos = {info.name: info for info in (*graph.output, *graph.value_info)}
    for node in graph.node:
        if node.domain in STANDARD_DOMAINS:
            yield from (name for name in node.output if name and not _is_fixed(infos.get(name)))


def _is_fixed(info: onnx.ValueInfoProto | None) -> bool:
    """Whether a value has a fixed shape. A sequence or a map has none of its own."""
    if info is None:
        return False
    if not info.type.HasField("tensor_type"):
        return True
    tensor = info.type.tensor_type
    return tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)
