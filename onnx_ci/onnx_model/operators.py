"""Which operators an ONNX file uses, and which opset knows them. Does not import torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import onnx
from onnx import ModelProto, NodeProto

from onnx_ci.onnx_model.contents import with_inner_nodes
from onnx_ci.onnx_model.signature import STANDARD_DOMAINS


@dataclass(frozen=True, kw_only=True, order=True)
class OperatorUse:
    """One operator of a file."""

    name: str
    """With its domain, unless that is the default one: ``com.microsoft.Gelu``."""
    count: int
    """How often it occurs in the graph, its subgraphs and its functions."""
    domain: str
    since: int | None
    """The least version of its domain in which the operator means what it means in the file; ``None`` if onnx does not know it,
    or if a function in the file defines it."""
    is_function: bool
    """Whether a function in the file defines it."""


def operators_of(model: ModelProto) -> list[OperatorUse]:
    """The operators of a file by name."""
    functions = {(function.domain, function.name) for function in model.functions}
    counted: Counter[tuple[str, str, int]] = Counter()
    for body in (model, *model.functions):
        imported = {_canonical(each.domain): each.version for each in body.opset_import}
        nodes: list[NodeProto] = list(body.graph.node if isinstance(body, ModelProto) else body.node)
        for node in with_inner_nodes(nodes):
            domain = _canonical(node.domain)
            counted[domain, node.op_type, imported.get(domain, 1)] += 1
    uses: dict[str, OperatorUse] = {}
    for (domain, kind, version), number in counted.items():
        name = kind if not domain else f"{domain}.{kind}"
        is_function = (domain, kind) in functions
        since = None if is_function else _since(kind, domain, version)
        # Functions can import other versions of a domain than the graph.
        earlier = uses.get(name)
        uses[name] = OperatorUse(
            name=name,
            count=number + (earlier.count if earlier else 0),
            domain=domain,
            since=max(filter(None, [since, earlier.since if earlier else None]), default=None),
            is_function=is_function,
        )
    return sorted(uses.values())


def _canonical(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _since(kind: str, domain: str, version: int) -> int | None:
    if domain not in STANDARD_DOMAINS or not 0 < version < 2**31:  # onnx takes 32 bits
        return None
    try:
        return int(onnx.defs.get_schema(kind, max_inclusive_version=version, domain=domain).since_version)
    except onnx.defs.SchemaError:
        return None
