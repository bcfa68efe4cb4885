"""The nodes of an ONNX file, each run alone, so that no optimizer combines them and any input can be replaced."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import torch
from onnx import AttributeProto, NodeProto, ValueInfoProto
from onnx_ir.tensor_adapters import from_torch_dtype

from onnx_ci.onnx_model.contents import graphs_in
from onnx_ci.pipeline.model.tensors import as_tensor
from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime, OnnxRuntimeSession

Values = Mapping[str, torch.Tensor]

_MOVES = frozenset(
    (
        *("Shape", "Size", "Constant", "ConstantOfShape", "Range", "Identity", "Cast", "Reshape", "Flatten", "Squeeze"),
        *("Unsqueeze", "Transpose", "Slice", "Gather", "Concat", "Split", "Expand", "Tile", "Pad"),
    )
)
"""Operators that only move values or compute sizes."""
_LOWER = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_PLAIN, _SMALL = OnnxRuntime(optimize=False), OnnxRuntime(optimize=False, threads=1)
_MOST_ELEMENTS = 2**20
"""How many elements the inputs of a node may have together for one thread to be enough."""
_DIVISIONS = ("Div", "Mod")


class NodeError(Exception):
    """A node cannot be run; the message is usually the runtime's."""


@dataclass(frozen=True, kw_only=True)
class FileNode:
    """A node of the main graph."""

    position: int
    name: str
    """Its name; its first output if it has none."""
    operator: str
    inputs: tuple[str, ...]
    """The values that it needs, including those that only its subgraphs use."""
    outputs: tuple[str, ...]
    proto: NodeProto

    @property
    def title(self) -> str:
        """``Conv '/layer1/conv1/Conv'``."""
        return f"{self.operator} {self.name!r}"

    @property
    def only_moves(self) -> bool:
        """Whether it only moves values or computes sizes. A cast to a lower precision changes them."""
        is_rounding = self.operator == "Cast" and any(each.i in _LOWER for each in self.proto.attribute if each.name == "to")
        return self.operator in _MOVES and not is_rounding

    def changed(self, operator: str, attributes: Iterable[AttributeProto], inputs: Sequence[str] = ()) -> FileNode:
        """The same node with another operator, other attributes and, if there are any, other inputs."""
        proto = NodeProto(op_type=operator, name=self.proto.name, input=inputs or self.proto.input, output=self.proto.output)
        proto.attribute.extend(attributes)
        return dataclasses.replace(self, operator=operator, proto=proto, inputs=tuple(inputs) or self.inputs)


class NodeRunner:
    """Runs the nodes of a file one by one in ONNX Runtime, and writes files with some of them for other runtimes."""

    def __init__(self, path: Path) -> None:
        model = onnx.load(path)
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        self._opsets, self._ir_version = model.opset_import, model.ir_version
        self.nodes = [
            FileNode(
                position=position,
                name=node.name or next(filter(None, node.output), ""),
                operator=node.op_type,
                inputs=tuple(_needed_by(node)),
                outputs=tuple(filter(None, node.output)),
                proto=node,
            )
            for position, node in enumerate(model.graph.node)
        ]
        self.makers = {name: node for node in self.nodes for name in node.outputs}
        """The node that computes each value."""
        self.outputs = [each.name for each in model.graph.output]
        self._sessions: dict[object, OnnxRuntimeSession] = {}
        self._initializers = {tensor.name: tensor for tensor in model.graph.initializer}

    @functools.cached_property
    def constants(self) -> Values:
        """The initializers."""
        return {name: as_tensor(onnx.numpy_helper.to_array(tensor)) for name, tensor in self._initializers.items()}

    def outputs_after(self, nodes: Collection[int]) -> frozenset[str]:
        """The outputs of the file that depend on any of the nodes at these positions."""
        reached = {name for position in nodes for name in self.nodes[position].outputs}
        for node in self.nodes:
            if not reached.isdisjoint(node.inputs):
                reached.update(node.outputs)
        return frozenset(reached.intersection(self.outputs))

    def run(self, node: FileNode, values: Values) -> list[torch.Tensor]:
        """The outputs of ``node``.

        Args:
            values: at least its inputs by name, including constants.

        Raises:
            NodeError: the runtime fails, or an input is missing because another node failed.
        """
        try:
            inputs = {name: values[name] for name in node.inputs}
        except KeyError as error:
            raise NodeError(f"{error} was not computed") from None
        try:
            if node.operator in _DIVISIONS and _is_undefined(*(inputs[name] for name in node.proto.input)):
                raise NodeError(f"{node.title} is undefined on its inputs")
            return self._session(node, inputs).run(inputs)
        except Exception as error:  # the runtime raises its own classes
            raise NodeError(str(error)) from None

    def _session(self, node: FileNode, inputs: Values) -> OnnxRuntimeSession:
        """A session of the node alone. It is kept, unless the inputs are so large that several threads pay."""
        if sum(tensor.numel() for tensor in inputs.values()) > _MOST_ELEMENTS:
            return _PLAIN.load(self._model(node, inputs), "cpu")
        is_changed = node is not self.nodes[node.position]
        identity = node.proto.SerializeToString() if is_changed else node.position
        key = (identity, *((tensor.dtype, tensor.dim()) for tensor in inputs.values()))
        if key not in self._sessions:
            self._sessions[key] = _SMALL.load(self._model(node, inputs), "cpu")
        return self._sessions[key]

    def _model(self, node: FileNode, inputs: Values) -> bytes:
        declared = [
            onnx.helper.make_tensor_value_info(name, from_torch_dtype(tensor.dtype).value, [None] * tensor.dim())
            for name, tensor in inputs.items()
        ]
        return self.file_of([node], declared, [onnx.ValueInfoProto(name=name) for name in node.outputs])

    def file_of(self, nodes: Sequence[FileNode], inputs: Sequence[ValueInfoProto], outputs: Sequence[ValueInfoProto]) -> bytes:
        """A file with some of the nodes, and with the initializers that they need and that are not among its inputs."""
        needed = {name for node in nodes for name in node.inputs} - {each.name for each in inputs}
        constants = [tensor for name, tensor in self._initializers.items() if name in needed]
        graph = onnx.helper.make_graph([node.proto for node in nodes], "nodes", inputs, outputs, constants)
        model = onnx.helper.make_model(graph, opset_imports=self._opsets, ir_version=self._ir_version)
        return bytes(model.SerializeToString())


def _is_undefined(dividend: torch.Tensor, divisor: torch.Tensor) -> bool:
    """Whether integers are divided by zero, or the least one by -1, at which versions of ONNX Runtime end the process."""
    if dividend.is_floating_point():
        return False
    dividends, divisors = dividend.numpy(), divisor.numpy()
    overflows = (dividends == np.iinfo(dividends.dtype).min) & (divisors == -1)
    return bool(overflows.any() or not divisors.all())


def _needed_by(node: NodeProto) -> dict[str, None]:
    """The values that a node needs: its inputs, and those that its subgraphs use and do not compute."""
    needed = dict.fromkeys(filter(None, node.input))
    for graph in itertools.chain.from_iterable(map(graphs_in, node.attribute)):
        computed = {each.name for each in (*graph.input, *graph.initializer)}
        computed |= {name for each in graph.node for name in each.output}
        used = itertools.chain(*map(_needed_by, graph.node), (each.name for each in graph.output))
        needed |= dict.fromkeys(name for name in used if name not in computed)
    return needed
