"""Mistakes in graph neural networks: counts of nodes, edges and graphs."""

from __future__ import annotations

import torch
from faults.lines import layers
from faults.lines.line_fault import DYNAMO, TS13, TS14, TS16, TS17, line_fault
from torch import nn

GRAPH = {"x": "nodes _", "edges": "_ edges", "y": "nodes _"}


def edges() -> torch.Tensor:
    return torch.tensor([[0, 1, 2, 3, 4, 0, 2], [1, 2, 3, 4, 0, 2, 4]])


def graph() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(5, 4), edges()


def below_nodes(sizes, generator):
    return torch.randint(0, sizes["nodes"], (2, sizes["edges"]), generator=generator)


EDGES = {"inputs": {"edges": below_nodes}}


class Convolution(nn.Module):
    """Each node adds up the messages of its neighbors."""

    def __init__(self):
        super().__init__()
        self.message, self.own = nn.Linear(4, 6), nn.Linear(4, 6)
        self.out = nn.Linear(6, 3)

    def aggregated(self, messages, target, x):
        total = torch.zeros(x.shape[0], messages.shape[1])
        return total.scatter_add(0, target[:, None].expand(-1, messages.shape[1]), messages)

    def forward(self, x, edges):
        source, target = edges[0], edges[1]
        messages = torch.relu(self.message(x))[source]
        return self.out(self.own(x) + self.aggregated(messages, target, x))


class FrozenNodes(Convolution):
    def aggregated(self, messages, target, x):
        total = super().aggregated(messages, target, x)
        nodes = int(x.size(0))  # FAULT
        degree = torch.zeros(nodes).scatter_add(0, target, torch.ones_like(target, dtype=torch.float32))
        return total / (degree[:, None] + 1)


class FrozenNodesRight(Convolution):
    def aggregated(self, messages, target, x):
        total = super().aggregated(messages, target, x)
        degree = torch.zeros(x.size(0)).scatter_add(0, target, torch.ones_like(target, dtype=torch.float32))
        return total / (degree[:, None] + 1)


class LoopOverNodes(Convolution):
    def aggregated(self, messages, target, x):
        rows = []
        for node in range(x.size(0)):  # FAULT
            weights = (target == node).to(messages.dtype)
            rows.append(weights @ messages)
        return torch.stack(rows)


class LoopOverNodesRight(Convolution):
    def aggregated(self, messages, target, x):
        nodes = torch.arange(x.size(0))
        return (target == nodes[:, None]).to(messages.dtype) @ messages


class SelfLoops(nn.Module):
    """A dense layer with normalized adjacency."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(4, 6), nn.Linear(6, 3)

    def normalized(self, adjacency):
        with_loops = adjacency + torch.eye(len(adjacency))  # FAULT
        degree = with_loops.sum(-1).rsqrt()
        return degree[:, None] * with_loops * degree[None, :]

    def forward(self, x, adjacency):
        adjacency = self.normalized(adjacency)
        x = torch.relu(adjacency @ self.layer(x))
        return self.out(adjacency @ x)


class SelfLoopsRight(SelfLoops):
    def normalized(self, adjacency):
        with_loops = adjacency + torch.eye(adjacency.shape[0])
        degree = with_loops.sum(-1).rsqrt()
        return degree[:, None] * with_loops * degree[None, :]


class GraphPooling(Convolution):
    """The nodes of several graphs are added up in a module of its own."""

    segment_sum = staticmethod(layers.segment_sum_frozen)

    def forward(self, x, edges, batch):
        nodes = super().forward(x, edges)
        return torch.tanh(self.segment_sum(nodes, batch))


class GraphPoolingRight(GraphPooling):
    segment_sum = staticmethod(layers.segment_sum)


class EmptyGraph(Convolution):
    """Without edges to others, messages are not sent."""

    def aggregated(self, messages, target, x):
        if target.sum() == 0:  # FAULT
            return torch.zeros(x.shape[0], 6)
        return super().aggregated(messages, target, x)


class EmptyGraphRight(Convolution):
    def aggregated(self, messages, target, x):
        total = super().aggregated(messages, target, x)
        return torch.where(target.sum() == 0, 0.0, total)


class Centrality(Convolution):
    """The share of each node of all edges."""

    def aggregated(self, messages, target, x):
        total = super().aggregated(messages, target, x)
        return total / len(target)  # FAULT


class CentralityRight(Convolution):
    def aggregated(self, messages, target, x):
        total = super().aggregated(messages, target, x)
        return total / target.shape[0]


class Symmetric(Convolution):
    """Edges go both ways, if there are fewer than nodes."""

    def forward(self, x, edges):
        if edges.shape[1] < 2 * x.shape[0]:  # FAULT
            edges = torch.cat([edges, edges.flip(0)], dim=1)
        return super().forward(x, edges)


class SymmetricRight(Convolution):
    def forward(self, x, edges):
        both = torch.cat([edges, edges.flip(0)], dim=1)
        few = torch.ones(edges.shape[1]).sum() < 2 * torch.ones(x.shape[0]).sum()
        count = torch.where(few, 2, 1) * torch.ones(edges.shape[1], dtype=torch.int64).sum()
        kept = torch.arange(both.shape[1]) < count
        messages = torch.relu(self.message(x))[both[0]] * kept[:, None]
        return self.out(self.own(x) + self.aggregated(messages, both[1], x))


class Virtual(Convolution):
    """Two mistakes: a virtual node for each of the example's nodes, and degrees of a frozen length."""

    def degrees(self, target, x):
        nodes = torch.arange(len(x))  # FAULT1
        return (target == nodes[:, None]).sum(-1).float()

    def virtual(self, x):
        total = torch.stack(list(x)).sum(0)  # FAULT2
        return self.own(total)

    def forward(self, x, edges):
        messages = torch.relu(self.message(x))[edges[0]]
        total = self.aggregated(messages, edges[1], x) / (1 + self.degrees(edges[1], x)).unsqueeze(1)
        return self.out(total + self.virtual(x))


class VirtualRight(Virtual):
    def degrees(self, target, x):
        nodes = torch.arange(x.shape[0])
        return (target == nodes[:, None]).sum(-1).float()

    def virtual(self, x):
        return self.own(x.sum(0))


def adjacency() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(5, 4), (torch.rand(5, 5) > 0.5).float()


FAULTS = [
    line_fault(FrozenNodes, FrozenNodesRight, graph, GRAPH, TS16, **EDGES),
    line_fault(LoopOverNodes, LoopOverNodesRight, graph, GRAPH, TS13, **EDGES),
    line_fault(
        SelfLoops,
        SelfLoopsRight,
        adjacency,
        {"x": "nodes _", "adjacency": "nodes nodes", "y": "nodes _"},
        TS14,
        inputs={"adjacency": lambda sizes, generator: torch.rand(sizes["nodes"], sizes["nodes"], generator=generator).round()},
    ),
    line_fault(
        GraphPooling,
        GraphPoolingRight,
        lambda: (*graph(), torch.tensor([0, 0, 1, 1, 2])),
        {"x": "nodes _", "edges": "_ edges", "batch": "nodes", "y": "graphs _"},
        TS16,
        marked=layers.segment_sum_frozen,
        inputs={
            "edges": below_nodes,
            "batch": lambda sizes, generator: torch.randint(0, 3, (sizes["nodes"],), generator=generator).sort().values,
        },
    ),
    line_fault(
        EmptyGraph,
        EmptyGraphRight,
        graph,
        GRAPH,
        TS17,
        inputs={
            "edges": lambda sizes, generator: below_nodes(sizes, generator) * torch.randint(0, 2, (1, 1), generator=generator)
        },
    ),
    line_fault(Centrality, CentralityRight, graph, GRAPH, TS16, **EDGES),
    line_fault(Symmetric, SymmetricRight, graph, GRAPH, TS16, DYNAMO, **EDGES),
    line_fault(Virtual, VirtualRight, graph, GRAPH, TS16, **EDGES),
]
