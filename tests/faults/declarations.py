"""Recipes that declare something else than their model does, and arguments and outputs that no file can carry."""

from __future__ import annotations

import torch
from faults.fault import X, fault, matrix
from torch import nn


def double(x):
    return x * 2


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)


class Reduces(nn.Module):
    """Reduces as an argument says."""

    def forward(self, x, how):
        return x.sum() if how == "sum" else x.mean()


class Sums(nn.Module):
    """Reduces as it was made to."""

    def forward(self, x):
        return x.sum()


def rows(name: str, axis: int = 0) -> dict[str, dict[str, dict[int, str]]]:
    return {"dynamic_axes": {name: {axis: "rows"}}}


def with_factor() -> tuple[torch.Tensor, ...]:
    return torch.randn(3, 4), torch.tensor(2.0)


FAULTS = [
    # Outputs have no keys in the file: the order decides, and this one swaps them.
    fault(
        "swapped_keys",
        "name-mismatch",
        lambda x: {"a": x * 2, "b": x + 1},
        lambda x: {"a": x * 2, "b": x + 1},
        matrix,
        input_names=["x"],
        only_wrong={"output_names": ["b", "a"]},
        only_right={"output_names": ["a", "b"]},
    ),
    # More names than tensors.
    fault(
        "too_many_inputs",
        "name-mismatch",
        double,
        double,
        matrix,
        output_names=["y"],
        only_wrong={"input_names": ["x", "mask"]},
        only_right={"input_names": ["x"]},
    ),
    # An axis of a tensor that is called otherwise.
    fault("misspelt_tensor", "unknown-axis", double, double, matrix, **X, only_wrong=rows("X"), only_right=rows("x")),
    # An axis past the last.
    fault("axis_past_the_last", "unknown-axis", double, double, matrix, **X, only_wrong=rows("x", 2), only_right=rows("x", 1)),
    # Axes are counted from the front; the exporter ignores one that is counted from the end.
    fault("negative_axis", "unknown-axis", double, double, matrix, **X, only_wrong=rows("x", -1), only_right=rows("x", 1)),
    # A size to try for an axis that is called otherwise.
    fault(
        "misspelt_probe",
        "unknown-axis",
        double,
        double,
        matrix,
        **X,
        **rows("x"),
        only_wrong={"dynamic_sizes": {"row": 5}},
        only_right={"dynamic_sizes": {"rows": 5}},
    ),
    # A size to try that is the example's own.
    fault(
        "probe_of_the_example",
        "vacuous",
        double,
        double,
        matrix,
        **X,
        **rows("x"),
        only_wrong={"dynamic_sizes": {"rows": 3}},
        only_right={"dynamic_sizes": {"rows": 5}},
    ),
    # The axis of the features, of which the layer takes one size only.
    fault(
        "features_declared_dynamic", "vacuous", Linear, Linear, matrix, **X, only_wrong=rows("x", 1), only_right=rows("x", 0)
    ),
    # A text is written into the file.
    fault(
        "text_argument",
        "baked-argument",
        Reduces,
        Sums,
        lambda: (torch.randn(3, 4), "sum"),
        right_args=matrix,
        **X,
    ),
    # So is a number.
    fault(
        "number_argument",
        "baked-argument",
        lambda x, factor: x * factor,
        lambda x, factor: x * factor,
        lambda: (torch.randn(3, 4), 2.0),
        right_args=with_factor,
        output_names=["y"],
        only_wrong={"input_names": ["x"]},
        only_right={"input_names": ["x", "factor"]},
    ),
    # An argument that forward does not use is no input of the file.
    fault(
        "unused_argument",
        "input-missing",
        lambda x, factor: x * 2,
        lambda x, factor: x * factor,
        with_factor,
        input_names=["x", "factor"],
        output_names=["y"],
    ),
    # A text among the outputs is dropped.
    fault("text_output", "output-mismatch", lambda x: (x * 2, "label"), double, matrix, **X),
    # A number among the outputs is an output that the model does not have as a tensor.
    fault("number_output", "output-mismatch", lambda x: (x * 2, x.shape[0]), double, matrix, **X),
    # dynamo writes no opset below 18, and does not say so.
    fault(
        "dynamo_below_18",
        "opset-mismatch",
        double,
        double,
        matrix,
        **X,
        only_wrong={"exporter": "dynamo"},
        only_right={"exporter": "torchscript"},
    ),
    # An example of another data type than the weights.
    fault(
        "example_in_double",
        "recipe-error",
        Linear,
        Linear,
        lambda: (torch.randn(3, 4).double(),),
        right_args=matrix,
        **X,
    ),
    # An example with an argument too few.
    fault("argument_too_few", "recipe-error", Reduces, Sums, matrix, **X),
]
