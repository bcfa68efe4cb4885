"""Graph networks of PyTorch Geometric: two layers, and dynamic numbers of nodes and edges."""

import functools

import torch
from _libraries import import_after_torchvision

import onnx_ci

SEEN = "torch 2.13.0, torch_geometric 2.8.1"
wrong = functools.partial(onnx_ci.known_failure, seen=SEEN)
FILLED = wrong("export-error", "scatter fills a tensor with a number that is a tensor while it is traced")
KNOWN = {
    "edge_cnn": {"expect": {"torchscript": FILLED}},
    "gat": {
        "expect": {"dynamo": wrong("export-error", "a branch asks whether any edges are left without self-loops, a value")}
    },
    "graph_sage": {"expect": {"torchscript": FILLED}},
    "graph_unet": {
        "expect": {
            "torchscript": onnx_ci.unsupported("sort into given tensors (out=), which selects the nodes to keep", seen=SEEN),
            "dynamo": wrong("export-error", "a branch depends on the number of nodes that are kept, a value"),
        }
    },
    "pmlp": {"expect": {"torchscript": onnx_ci.unsupported("batch normalization of an unknown number of channels", seen=SEEN)}},
    "pna": {"expect": {"torchscript": FILLED}},
}
"""What is known to fail, by case."""


def edges(sizes, generator):
    """Pairs of nodes that exist."""
    return torch.randint(0, sizes["nodes"], (2, sizes["edges"]), generator=generator)


NODES, EDGES = {0: "nodes"}, {1: "edges"}
GRAPH = torch.tensor([[0, 1, 1, 2, 3, 4, 5, 2, 0, 4], [1, 0, 2, 1, 4, 3, 2, 5, 3, 1]])
SMALL = {"in_channels": 8, "hidden_channels": 16, "out_channels": 4, "num_layers": 2}
NODE_MODELS = {
    "edge_cnn": ("EdgeCNN", SMALL),
    "gat": ("GAT", {**SMALL, "heads": 2}),
    "gat_v2": ("GAT", {**SMALL, "heads": 2, "v2": True}),
    "gcn": ("GCN", {**SMALL, "norm": "layer_norm"}),
    "gcn_jumping_knowledge": ("GCN", {**SMALL, "jk": "lstm"}),
    "gin": ("GIN", {**SMALL, "norm": "batch_norm"}),
    "graph_sage": ("GraphSAGE", {**SMALL, "aggr": "max"}),
    "graph_unet": ("GraphUNet", {"in_channels": 8, "hidden_channels": 16, "out_channels": 4, "depth": 2}),
    "pmlp": ("PMLP", SMALL),
    "pna": (
        "PNA",
        {
            **SMALL,
            "aggregators": ["mean", "min", "max", "std"],
            "scalers": ["identity", "amplification"],
            "deg": torch.tensor([1, 3, 2]),
        },
    ),
}
"""Models that compute values of each node."""


def build(name, options):
    return getattr(import_after_torchvision("torch_geometric.nn"), name)(**options)


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in NODE_MODELS},
    input_names=["x", "edge_index"],
    output_names=["y"],
    dynamic_axes={"x": NODES, "edge_index": EDGES, "y": NODES},
    inputs={"edge_index": edges},
    tags=["torch_geometric", "graph"],
)
def nodes(case):
    return build(*NODE_MODELS[case]), (torch.randn(6, 8), GRAPH)


def graph_numbers(sizes, generator):
    """The number of the graph of each node, of which there are two."""
    return torch.randint(0, 2, (sizes["nodes"],), generator=generator).sort().values.index_fill(0, torch.tensor([-1]), 1)


@onnx_ci.recipe(
    input_names=["x", "edge_index", "edge_attr", "batch"],
    output_names=["y"],
    dynamic_axes={"x": NODES, "edge_index": EDGES, "edge_attr": {0: "edges"}, "batch": NODES},
    inputs={"edge_index": edges, "batch": graph_numbers},
    expect={"torchscript": onnx_ci.unsupported("unsafe_chunk of an axis of unknown size, in the cell of a GRU", seen=SEEN)},
    tags=["torch_geometric", "graph"],
)
def attentive_fp():
    model = build(
        "AttentiveFP",
        {"in_channels": 8, "hidden_channels": 16, "out_channels": 4, "edge_dim": 3, "num_layers": 2, "num_timesteps": 2},
    )
    return model, (torch.randn(6, 8), GRAPH, torch.randn(10, 3), torch.tensor([0, 0, 0, 1, 1, 1]))


class GraphClassifier(torch.nn.Module):
    """Convolutions and a mean over the nodes of each of two graphs."""

    def __init__(self):
        super().__init__()
        geometric = import_after_torchvision("torch_geometric.nn")
        self.transform = geometric.GPSConv(16, geometric.GINConv(torch.nn.Linear(16, 16)), heads=2)
        self.embed, self.head = torch.nn.Linear(8, 16), torch.nn.Linear(16, 3)
        self.pool = geometric.global_mean_pool

    def forward(self, x, edge_index, batch):
        return self.head(self.pool(self.transform(self.embed(x), edge_index, batch), batch, 2))


@onnx_ci.recipe(
    input_names=["x", "edge_index", "batch"],
    output_names=["y"],
    dynamic_axes={"x": NODES, "edge_index": EDGES, "batch": NODES},
    inputs={"edge_index": edges, "batch": graph_numbers},
    expect={
        "torchscript": wrong("run-error", "a cumulative sum is written into a view (out=), which the trace does not follow"),
        "dynamo": wrong("export-error", "the size of a tensor is a value, the number of nodes of the largest graph"),
    },
    tags=["torch_geometric", "graph"],
)
def graph_transformer():
    return GraphClassifier(), (torch.randn(6, 8), GRAPH, torch.tensor([0, 0, 0, 1, 1, 1]))
