"""Values that tracing freezes: the file goes on with the numbers of the example."""

from __future__ import annotations

import math

import numpy as np
import torch
from faults.fault import ROWS, ROWS_IN, X, fault, matrix
from torch import nn

import onnx_ci


def with_count() -> tuple[torch.Tensor, ...]:
    return torch.randn(3, 4), torch.tensor(3)


def repeated_addition(x, count):
    for i in range(count):
        x = x + i
    return x


def grown_in_place(x):
    rows = x.shape[0]
    more = rows
    more += 2
    return x * (rows + more)


def grown(x):
    rows = x.shape[0]
    return x * (rows + (rows + 2))


def halved_until_small(x):
    while x.norm() > 1:
        x = x / 2
    return x


def count(x):
    """The number of rows as a tensor that no tracing can freeze."""
    return torch.ones(x.shape[0]).sum()


def sums_of_graphs(x, batch):
    """The sum of the nodes of each graph; how many graphs there are follows from the values of ``batch``."""
    graphs = int(batch.max()) + 1
    return torch.zeros(graphs, 4).scatter_add(0, batch[:, None].expand_as(x), x)


def sums_of_all_graphs(x, batch):
    return (torch.arange(batch.max() + 1)[:, None] == batch).to(x.dtype) @ x


class ChosenByNumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x, which):
        return self.layers[int(which)](x)


class ChosenByTensor(ChosenByNumber):
    def forward(self, x, which):
        return torch.stack([layer(x) for layer in self.layers])[which]


class SumOfTable(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(8, 4))

    def forward(self, x):
        return x + self.table[: int(x.shape[0])].sum(0)


class SumOfTableRight(SumOfTable):
    def forward(self, x):
        return x + self.table[: x.shape[0]].sum(0)


RESHAPED = {"input_names": ["x", "rows"], "output_names": ["y"], "dynamic_axes": {"y": {0: "a", 1: "b"}}}
COUNTED = {"input_names": ["x", "count"], "output_names": ["y"]}
MASKED = {"input_names": ["x", "mask"], "output_names": ["y"]}


class DimmedIfDark(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)
        with torch.no_grad():
            self.layer.weight.abs_().neg_()
            self.layer.bias.fill_(1.0)

    def features(self, x):
        return self.layer(torch.exp(-((x * 6 - 6) ** 2)))

    def forward(self, x):
        y = self.features(x)
        if y.sum() > 0:
            y = y * 0.5
        return y


class DimmedIfDarkRight(DimmedIfDark):
    def forward(self, x):
        y = self.features(x)
        return torch.where(y.sum() > 0, y * 0.5, y)


def halved_if(large, x):
    return torch.where(large, x / 2, x * 2)


def halved_if_any(x):
    return halved_if((x > 700).any(), x)


def halved_each_64(x):
    for _ in range(x.shape[0] // 64):
        x = x / 2
    return x


def halved_each_64_right(x):
    return x * 0.5 ** (x.shape[0] // 64)


def divided_by_table(x):
    return x / (1, 2, 4)[np.searchsorted([64, 256], x.shape[0])]


def divided_by_table_right(x):
    return x / torch.where(count(x) > 64, torch.where(count(x) > 256, 4.0, 2.0), 1.0)


def in_blocks(x):
    return torch.cat([x[start : start + 400].softmax(0) for start in range(0, x.shape[0], 400)])


def halved_if_counted(x):
    return x / 2 if torch.count_nonzero(x > 700) else x * 2


def halved_if_found(x):
    return x / 2 if torch.nonzero(x > 700).shape[0] else x * 2


def halved_if_chosen(x):
    return x / 2 if len(x[x > 700]) else x * 2


def halved_if_summed(x):
    return x / 2 if sum(each > 700 for each in x.flatten()) else x * 2


def halved_if_caught(x):
    try:
        if x.max() > 700:
            raise ValueError
    except ValueError:
        return x / 2
    return x * 2


def halved_if_contained(x):
    return x / 2 if 3.25 in x else x * 2


FAULTS = [
    # A branch on how many values are so, or on a size that follows from values.
    fault("count_of_truths", "baked-value", halved_if_counted, halved_if_any, matrix, **ROWS),
    fault("number_of_places", "baked-value", halved_if_found, halved_if_any, matrix, **ROWS),
    fault("number_of_chosen", "baked-value", halved_if_chosen, halved_if_any, matrix, **ROWS),
    fault("sum_of_truths", "baked-value", halved_if_summed, halved_if_any, matrix, **ROWS),
    fault("caught_exception", "baked-value", halved_if_caught, halved_if_any, matrix, **ROWS),
    fault("contained", "baked-value", halved_if_contained, lambda x: halved_if((x == 3.25).any(), x), matrix, **ROWS),
    # .item() makes a number of the tensor, and the graph loses its input.
    fault("item", "input-missing", lambda x, n: x.reshape(n.item(), -1), lambda x, n: x.reshape(n, -1), with_count, **RESHAPED),
    # range() over a tensor unrolls the loop for the example's count.
    fault(
        "range_over_tensor",
        "input-missing",
        repeated_addition,
        lambda x, n: x + torch.arange(n).sum(),
        with_count,
        **COUNTED,
    ),
    # += on a size changes the traced tensor itself, and with it every other use of the size.
    fault("size_in_place", "numeric-drift", grown_in_place, grown, matrix, **ROWS),
    # len() gives a Python number.
    fault("len", "baked-value", lambda x: x.sum(0) / len(x), lambda x: x.sum(0) / x.shape[0], matrix, **ROWS_IN),
    # .tolist() takes the values out of the graph.
    fault(
        "tolist",
        "input-missing",
        lambda x, scales: x * sum(scales.tolist()),
        lambda x, scales: x * scales.sum(),
        lambda: (torch.randn(3, 4), torch.randn(2)),
        input_names=["x", "scales"],
        output_names=["y"],
    ),
    # What numpy computes is a constant of the graph.
    fault(
        "numpy_round_trip",
        "baked-value",
        lambda x: x + torch.from_numpy(x.detach().numpy().cumsum(axis=0)),
        lambda x: x + x.cumsum(dim=0),
        matrix,
        **X,
    ),
    # The math module knows Python numbers only.
    fault("math_of_size", "baked-value", lambda x: x / math.sqrt(x.shape[0]), lambda x: x / x.shape[0] ** 0.5, matrix, **ROWS),
    # sorted() compares once, while tracing.
    fault(
        "python_sort",
        "baked-value",
        lambda x: torch.stack(sorted(x, key=lambda row: float(row.sum()))),
        lambda x: x[x.sum(1).argsort()],
        matrix,
        **X,
    ),
    # Only the branch that the example takes is traced.
    fault(
        "branch_on_data",
        "baked-value",
        lambda x: x if x.sum() > 0 else x * 2,
        lambda x: torch.where(x.sum() > 0, x, x * 2),
        matrix,
        **X,
    ),
    # The same with a branch on the mask, of which only one that hides something is traced. An empty one must be declared.
    fault(
        "early_return",
        "baked-value",
        lambda x, mask: x * mask if bool(mask.any()) else x,
        lambda x, mask: torch.where(mask.any(), x * mask, x),
        lambda: (torch.randn(3, 4), torch.ones(3, 4, dtype=torch.bool)),
        inputs={"mask": onnx_ci.mask(min_true=0)},
        **MASKED,
    ),
    # A branch on a size is right up to the size that nobody tried.
    fault(
        "branch_on_size",
        "baked-value",
        lambda x: x * 2 if x.shape[0] > 4 else x,
        lambda x: x * torch.where(count(x) > 4, 2.0, 1.0),
        matrix,
        **ROWS,
    ),
    # These depend on a size without comparing it, and change only far above the example's.
    fault("quotient_of_size", "baked-value", halved_each_64, halved_each_64_right, matrix, **ROWS),
    fault("quotient_of_size_dynamo", "baked-value", halved_each_64, halved_each_64_right, matrix, opset=18, **ROWS),
    fault("table_of_sizes", "baked-value", divided_by_table, divided_by_table_right, matrix, **ROWS),
    fault("table_of_sizes_dynamo", "baked-value", divided_by_table, divided_by_table_right, matrix, opset=18, **ROWS),
    fault("blocks_of_rows", "baked-shape", in_blocks, lambda x: x.softmax(0), matrix, **ROWS),
    fault(
        "split_rows_dynamo",
        "baked-shape",
        lambda x: torch.cat([each.softmax(0) for each in x.split(512)]),
        lambda x: x.softmax(0),
        matrix,
        opset=18,
        **ROWS,
    ),
    fault(
        "numpy_size",
        "baked-value",
        lambda x: x * 2 if np.int64(x.shape[0]) > 120 else x,
        lambda x: x * torch.where(count(x) > 120, 2.0, 1.0),
        matrix,
        **ROWS,
    ),
    fault(
        "logarithm_of_size",
        "baked-value",
        lambda x: x * max(1.0, math.log(x.shape[0], 64)),
        lambda x: x * (count(x).log() / math.log(64)).clamp(min=1.0),
        matrix,
        **ROWS,
    ),
    # max() of a size and a number is one of the two for good.
    fault(
        "python_max",
        "baked-value",
        lambda x: x / max(x.shape[0], 4),
        lambda x: x / torch.clamp(count(x), min=4),
        matrix,
        **ROWS,
    ),
    # round() gives a Python number; the wrong one shows only where the values are large.
    fault(
        "python_round",
        "baked-value",
        lambda x: x * round(float(x.abs().max())),
        lambda x: x * x.abs().max().round(),
        matrix,
        **X,
    ),
    # float() takes one value out of the graph and leaves the others in it.
    fault(
        "tensor_of_floats",
        "baked-value",
        lambda x: x * torch.tensor([float(x[0, 0]), 1.0, 2.0, 3.0]),
        lambda x: x * torch.cat([x[0, :1], torch.tensor([1.0, 2.0, 3.0])]),
        matrix,
        **X,
    ),
    # A layer chosen by a number is one layer in the file, and the choice no input of it.
    fault(
        "chosen_layer",
        "input-missing",
        ChosenByNumber,
        ChosenByTensor,
        lambda: (torch.randn(3, 4), torch.tensor(1)),
        input_names=["x", "which"],
        output_names=["y"],
    ),
    # while runs as often as the example needs.
    fault(
        "while_loop",
        "baked-value",
        halved_until_small,
        lambda x: x / 2 ** x.norm().log2().ceil().clamp(min=0),
        matrix,
        **X,
    ),
    # While tracing, a size is a tensor, which no dict finds: the default goes into the file.
    fault(
        "size_as_key",
        "numeric-drift",
        lambda x: x * {3: 2.0}.get(x.shape[0], 1.0),
        lambda x: x * torch.where(count(x) == 3, 2.0, 1.0),
        matrix,
        **ROWS,
    ),
    # As a text the size is found, and frozen.
    fault(
        "size_as_text",
        "baked-value",
        lambda x: x * {"3": 2.0}.get(f"{x.shape[0]}", 1.0),
        lambda x: x * torch.where(count(x) == 3, 2.0, 1.0),
        matrix,
        **ROWS,
    ),
    # While tracing, a size is no int.
    fault(
        "size_by_type",
        "numeric-drift",
        lambda x: x * (2 if isinstance(x.shape[0], int) else 1),
        lambda x: x * 2,
        matrix,
        **ROWS,
    ),
    # A shortcut for the export is another model.
    fault(
        "another_model_in_the_export",
        "numeric-drift",
        lambda x: x if torch.onnx.is_in_onnx_export() else x / (1 + x.norm()),
        lambda x: x / (1 + x.norm()),
        matrix,
        **X,
    ),
    # A sum over as many rows of a table as the example has: no shape tells.
    fault("sum_of_table", "baked-value", SumOfTable, SumOfTableRight, matrix, **ROWS),
    # dynamo takes every dynamic size for at least 2.
    fault(
        "branch_on_one_row",
        "baked-value",
        lambda x: x if x.shape[0] > 1 else x * 2,
        lambda x: x * torch.where(count(x) > 1, 1.0, 2.0),
        matrix,
        opset=18,
        **ROWS,
    ),
    # The number of graphs is that of the example, whose batch vector could also be a mask.
    fault(
        "number_of_graphs",
        "baked-shape",
        sums_of_graphs,
        sums_of_all_graphs,
        lambda: (torch.randn(6, 4), torch.tensor([0, 0, 0, 1, 1, 1])),
        opset=16,
        input_names=["x", "batch"],
        output_names=["y"],
        dynamic_axes={"x": {0: "nodes"}, "batch": {0: "nodes"}, "y": {0: "graphs"}},
    ),
    # Only a white picture decides otherwise; an empty one does, too, and shows nothing.
    fault("white_picture", "baked-value", DimmedIfDark, DimmedIfDarkRight, lambda: (torch.rand(4, 8),), **ROWS),
    # The example is no multiple of the window, so the file has no such size.
    *(
        fault(
            f"multiple_of_a_window_{exporter}",
            "baked-value",
            lambda x: x / 2 if x.shape[0] % 16 == 0 else x,
            lambda x: x / torch.where(count(x) % 16 == 0, 2.0, 1.0),
            matrix,
            opset=18,
            exporter=exporter,
            **ROWS,
        )
        for exporter in ("torchscript", "dynamo")
    ),
]
