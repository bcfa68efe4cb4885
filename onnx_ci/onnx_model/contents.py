"""Every graph, node, attribute and tensor of an ONNX model, with those in subgraphs and functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

import onnx


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a model contains, collected in one visit of each node."""

    graphs: Sequence[onnx.GraphProto]
    """The graph of the model, and all subgraphs."""
    nodes: Sequence[onnx.NodeProto]
    """Every node, including those of functions."""
    attributes: Sequence[tuple[onnx.NodeProto, onnx.AttributeProto]]
    """Every attribute, with its node."""

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Self:
        """Everything in ``model``."""
        bodies = (model.graph.node, *(function.node for function in model.functions))
        nodes = list(chain.from_iterable(map(with_inner_nodes, bodies)))
        attributes = [(node, attribute) for node in nodes for attribute in node.attribute]
        inner = (graph for _, attribute in attributes for graph in graphs_in(attribute))
        return cls(graphs=[model.graph, *inner], nodes=nodes, attributes=attributes)

    @property
    def constants(self) -> Iterator[tuple[str, onnx.TensorProto]]:
        """The initializers and the tensors of ``Constant`` nodes, each with its name in the graph."""
        for graph in self.graphs:
            yield from ((tensor.name, tensor) for tensor in graph.initializer)
        for node, attribute in self.attributes:
            if node.op_type == "Constant" and attribute.name == "value" and attribute.HasField("t") and node.output:
                yield node.output[0], attribute.t

    @property
    def tensors(self) -> Iterator[onnx.TensorProto]:
        """Every tensor: initializers and those in attributes."""
        for graph in self.graphs:
            yield from graph.initializer
            yield from chain.from_iterable((sparse.values, sparse.indices) for sparse in graph.sparse_initializer)
        for _, attribute in self.attributes:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def with_inner_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """``nodes``, each followed by the nodes of its subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in graphs_in(attribute):
                yield from with_inner_nodes(graph.node)


def graphs_in(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that an attribute contains: the branches of an ``If``, the body of a ``Loop``."""
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs
