"""Faults of runtimes that are known by now, and which nodes of a file have them. Nothing is run.

Each row of ``known_faults.toml`` was measured: ``onnx-ci faults --renew`` writes it. A row is about nodes that follow each
other, mostly one, with exactly these operators, attributes, types and ranks. What is not known of a node matches no row.
"""

from __future__ import annotations

import functools
import importlib.resources
import itertools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto
from packaging.version import Version

from onnx_ci.environment.versions import runtime_version
from onnx_ci.onnx_model.signature import opset_of_model
from onnx_ci.plugins import base_name, version_in_name
from onnx_ci.results.records import Finding, Severity
from onnx_ci.results.rules import finding
from onnx_ci.text import listed

_OF_AXES = ("kernel_shape", "strides", "pads", "dilations", "output_padding")
"""Attributes with a number for each axis."""
_USUAL = {"strides": 1, "pads": 0, "dilations": 1, "output_padding": 0}
"""What those are that a node does not have."""


@dataclass(frozen=True, kw_only=True)
class KnownFault:
    """A row: nodes that releases of a package compute wrong."""

    package: str
    operators: tuple[str, ...]
    """The operators of nodes of which each gets what the one before it computes."""
    attributes: tuple[Mapping[str, Any], ...]
    """Those of each node, with defaults; a number for lists of equal numbers."""
    opsets: tuple[int, int]
    """The first and the last."""
    types: tuple[str, ...]
    """Of the first input."""
    ranks: tuple[int, ...]
    """Of the first input."""
    inputs: int
    """How many inputs the first node has."""
    links: tuple[Sequence[int], ...]
    """For each later node, at which inputs it may get what the node before it computes."""
    others: tuple[Sequence[int], ...]
    """For each later node, the ranks of its other inputs, none of which has an axis of size 1."""
    remainders: tuple[int, ...]
    """The remainders, when the size of an axis is divided by its stride, of sizes with which it is wrong; empty for all."""
    first: str
    """The first release that is wrong, of those that were tried."""
    last: str
    right: str
    """The next release that was tried, which is right."""
    off: str
    """``by 0.5 of the largest value``, or ``another shape``."""
    evidence: str

    def holds_for(self, version: str) -> bool:
        """Whether a release is among the wrong ones."""
        return Version(self.first) <= Version(Version(version).base_version) <= Version(self.last)

    @property
    def words(self) -> str:
        """The row in one line."""
        kinds = f"{listed(self.types)} of rank {listed(map(str, self.ranks))}"
        own = [
            f"{name}({', '.join(f'{key}={value}' for key, value in each.items())})"
            for name, each in zip(self.operators, self.attributes, strict=True)
        ]
        opsets = f"opset {self.opsets[0]}" if self.opsets[0] == self.opsets[1] else f"opsets {self.opsets[0]}-{self.opsets[1]}"
        return f"{self.versions}: {' → '.join(own)} at {opsets} on {kinds}: {self.off}; {self.right} is right ({self.evidence})"

    @property
    def versions(self) -> str:
        """``onnxruntime 1.15.0 to 1.28.0``."""
        return f"{self.package} {self.first}" + (f" to {self.last}" if self.first != self.last else "")


@dataclass(frozen=True, kw_only=True)
class Match:
    """Nodes of a file that have a fault."""

    fault: KnownFault
    nodes: tuple[str, ...]
    """``AveragePool 'pool'``."""

    def __str__(self) -> str:
        sizes = " at some sizes" if self.fault.remainders else ""
        verb = "computes" if self.fault.first == self.fault.last else "compute"
        return f"{self.fault.versions} {verb} {listed(self.nodes)} wrong{sizes} ({self.fault.off}); {self.fault.right} is right"


@functools.cache
def known_faults() -> tuple[KnownFault, ...]:
    """All rows."""
    return tuple(_fault(row) for row in _rows("fault"))


@functools.cache
def _rows(kind: str) -> tuple[Mapping[str, Any], ...]:
    text = importlib.resources.files(__package__).joinpath("known_faults.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text).get(kind, ()))


def refusal(model: ModelProto, package: str, version: str) -> str:
    """Why a release refuses a model, as far as its IR version and its opset tell; empty if they do not."""
    later = [row for row in _rows("limit") if row["package"] == package and Version(row["version"]) >= Version(version)]
    limit = min(later, key=lambda row: Version(row["version"]), default=None)  # a release loads what an older one does
    if limit is not None and model.ir_version > limit["ir_version"]:
        return f"IR version {model.ir_version}, and it loads at most {limit['ir_version']}"
    opset = opset_of_model(model)
    if limit is not None and opset is not None and opset > limit["opset"]:
        return f"opset {opset}, and it loads at most {limit['opset']}"
    return ""


def notes(path: Path) -> list[Finding]:
    """A note for each node of a file, or for several together, that some releases are known to compute wrong."""
    return [
        finding("runtime-disagreement", str(each), severity=Severity.NOTE, remedy=f"Deploy {each.fault.right} or later.")
        for each in matches(path)
    ]


def with_remedies(findings: Iterable[Finding], path: Path) -> list[Finding]:
    """The findings, of which errors of values say what their ONNX Runtime is known to compute wrong in the file."""
    known_in = functools.cache(lambda version: matches(path, {"onnxruntime": version}))  # the file is read once for each
    remedied = []
    for each in findings:
        name = str(each.details.get("runtime", "onnxruntime"))  # that of the file is that of the installed one
        is_onnxruntime = base_name(name) == "onnxruntime" and ":" not in name  # the faults are those of the CPU provider
        is_of_values = each.severity is Severity.ERROR and each.output is not None and is_onnxruntime
        known = known_in(version_in_name(name) or runtime_version() or "0") if is_of_values else []
        remedied.append(replace(each, remedy=f"This fault is known: {known[0]}. {each.remedy}") if known else each)
    return remedied


def _fault(row: Mapping[str, Any]) -> KnownFault:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    return KnownFault(**fields)


def matches(path: Path, versions: Mapping[str, str] | None = None) -> list[Match]:
    """The nodes of a file that have a known fault, of any release or of these versions of packages; none if it is not read."""
    rows = [each for each in known_faults() if versions is None or each.holds_for(versions.get(each.package, "0"))]
    if not rows:  # as for the newest release, so that its failures cost no reading of the file
        return []
    try:
        model = onnx.load(path, load_external_data=False)
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # what is wrong with a file, others say
        return []
    return matches_in(model, rows)


def matches_in(model: ModelProto, rows: Iterable[KnownFault]) -> list[Match]:
    """The nodes of a model that have one of these faults, each fault once for the same nodes."""
    opset, rows = opset_of_model(model), [*rows]
    found = []
    file = _File(model.graph)
    for node in model.graph.node:
        for row in rows:
            nodes = file.chain(node, row.operators) if node.op_type == row.operators[0] and not node.domain else None
            if nodes and opset is not None and row.opsets[0] <= opset <= row.opsets[1] and file.has(nodes, row, opset):
                titles = tuple(f"{each.op_type} {(each.name or each.output[0])!r}" for each in nodes)
                found.append(Match(fault=row, nodes=titles))
    return found


class _File:
    """What is known of the values of a graph."""

    def __init__(self, graph: GraphProto) -> None:
        values = (*graph.input, *graph.value_info, *graph.output)
        self._types: dict[str, TypeProto.Tensor] = {each.name: each.type.tensor_type for each in values}
        for each in graph.initializer:
            self._types[each.name] = onnx.helper.make_tensor_type_proto(each.data_type, each.dims).tensor_type
        self._outputs = {each.name for each in graph.output}
        self._users: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self._users.setdefault(name, []).append(node)

    def chain(self, node: NodeProto, operators: Sequence[str]) -> list[NodeProto] | None:
        """The nodes that follow, each the only user of what is before; ``None`` if they have other operators."""
        nodes = [node]
        for operator in operators[1:]:
            users = self._users.get(nodes[-1].output[0], [])
            if len(users) != 1 or users[0].op_type != operator or users[0].domain or nodes[-1].output[0] in self._outputs:
                return None
            nodes.append(users[0])
        return nodes

    def has(self, nodes: Sequence[NodeProto], row: KnownFault, opset: int) -> bool:
        """Whether nodes with the operators of a row have its fault."""
        value = self._types.get(nodes[0].input[0]) if nodes[0].input else None
        if value is None or not value.HasField("shape"):
            return False
        is_like = (type_name(value.elem_type), len(value.shape.dim), inputs_of(nodes[0])) in {
            (kind, rank, row.inputs) for kind in row.types for rank in row.ranks
        }
        own = [attributes_of(node, opset) for node in nodes]
        is_same = is_like and own == [dict(each) for each in row.attributes] and self._has_size(value, own[0], row.remainders)
        return is_same and all(itertools.starmap(self._is_linked, zip(nodes, nodes[1:], row.links, row.others, strict=False)))

    def _is_linked(self, before: NodeProto, node: NodeProto, links: Sequence[int], others: Sequence[int]) -> bool:
        """Whether a node gets what the one before it computes at one of these inputs, and otherwise what has these ranks."""
        place = list(node.input).index(before.output[0])
        shapes = [
            self._types[name].shape.dim if name in self._types else None for name in node.input if name != before.output[0]
        ]
        ranks = [None if dims is None or any(dim.dim_value == 1 for dim in dims) else len(dims) for dims in shapes]
        return place in links and ranks == list(others)

    def _has_size(self, value: TypeProto.Tensor, attributes: Mapping[str, Any], remainders: Sequence[int]) -> bool:
        """Whether the value may have a size with which the fault shows."""
        sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in value.shape.dim[2:]]
        return not remainders or any(size is None or size % attributes["strides"] in remainders for size in sizes)


def inputs_of(node: NodeProto) -> int:
    """How many inputs a node has, without those that are left out."""
    return len([*filter(None, node.input)])


def type_name(element_type: int) -> str:
    """``float32`` for ONNX's number of a type."""
    return str(onnx.helper.tensor_dtype_to_np_dtype(element_type)) if element_type != TensorProto.UNDEFINED else ""


def attributes_of(node: NodeProto, opset: int) -> dict[str, Any]:
    """The attributes of a node with the defaults of its operator; lists of equal numbers for axes are that number."""
    schema = onnx.defs.get_schema(node.op_type, opset)
    given = [*(each.default_value for each in schema.attributes.values() if each.default_value.name), *node.attribute]
    values = {name: number for name, number in _USUAL.items() if name in schema.attributes}
    values |= {each.name: _plain(onnx.helper.get_attribute_value(each)) for each in given}
    for name in _OF_AXES:
        if isinstance(value := values.get(name), list) and len({*value}) == 1:
            values[name] = value[0]
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (int, float, str)):
        return round(value, 6) if isinstance(value, float) else value
    try:
        return [_plain(each) for each in value]
    except TypeError:  # a tensor or a graph
        return str(type(value).__name__)
