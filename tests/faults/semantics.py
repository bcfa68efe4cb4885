"""Operators that mean something else in the file, at some opset or on some values, though every tool accepts it."""

from __future__ import annotations

import torch
from faults.fault import X, fault, matrix
from torch.nn import functional


def image() -> tuple[torch.Tensor]:
    return (torch.randn(1, 2, 6, 6),)


def indexed() -> tuple[torch.Tensor, ...]:
    return torch.randn(3, 4), torch.tensor([0, -1]), torch.tensor([-2, 1])


def integers() -> tuple[torch.Tensor]:
    return (torch.tensor([-7, -3, 5, 8, 0]),)


def repeated_places() -> tuple[torch.Tensor, ...]:
    return torch.randn(5), torch.tensor([0, 2, 2, 1, 0]), torch.randn(5)


def counted_places(places):
    return functional.one_hot(places, 5)


def summed(x, places, source):
    """``source`` added to ``x`` at ``places``, also where a place comes twice."""
    return x + (counted_places(places) * source[:, None]).sum(0)


def averaged(x, places, source):
    return summed(x, places, source) / (1 + counted_places(places).sum(0))


INDEXED = {"input_names": ["x", "rows", "columns"], "output_names": ["y"]}
PLACED = {"input_names": ["x", "places", "source"], "output_names": ["y"]}


class Encoder(torch.nn.Module):
    """The mean over all tokens, hidden ones included."""

    def __init__(self, **keywords):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, **keywords)

    def forward(self, x, hidden):
        return self.encoder(x, src_key_padding_mask=hidden).mean(1)


class EncoderMasked(Encoder):
    def forward(self, x, hidden):
        return self.encoder(x, src_key_padding_mask=hidden).masked_fill(hidden[..., None], 0.0).mean(1)


class EncoderOfRows(Encoder):
    """Without nested tensors, hidden tokens are computed like the others."""

    def __init__(self):
        super().__init__(enable_nested_tensor=False)


HIDDEN = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])


def known(x):
    """The readings; a missing one is NaN."""
    return torch.where(torch.isnan(x), torch.zeros_like(x), x)


def largest_beside_nan(x):
    return known(x), x.amax(-1)


def largest_or_nan(x):
    return known(x), torch.where(torch.isnan(x).any(-1), torch.full((len(x),), torch.nan), known(x).amax(-1))


def place_beside_nan(x):
    return known(x), x.argmax(-1)


def place_of_known(x):
    return known(x), known(x).argmax(-1)


def readings() -> tuple[torch.Tensor]:
    return (torch.randn(5, 6),)


TWO = {"input_names": ["x"], "output_names": ["y", "z"]}

FAULTS = [
    # Opset 9 samples a resized image at other points.
    fault(
        "bilinear",
        "numeric-drift",
        lambda x: functional.interpolate(x, scale_factor=2.0, mode="bilinear"),
        lambda x: functional.interpolate(x, scale_factor=2.0, mode="nearest"),
        image,
        opset=9,
        **X,
    ),
    # Two index tensors become one flat index, in which -1 is not the last row.
    fault(
        "negative_indices",
        "numeric-drift",
        lambda x, rows, columns: x[rows, columns],
        lambda x, rows, columns: x[rows % x.shape[0], columns % x.shape[1]],
        indexed,
        **INDEXED,
    ),
    # A shift to the right is written as a division, which rounds towards zero, as torch writes it before 2.15.
    fault(
        "right_shift",
        "numeric-drift",
        lambda x: torch.div(x, 2, rounding_mode="trunc") if torch.onnx.is_in_onnx_export() else x >> 1,
        lambda x: torch.div(x, 2, rounding_mode="floor"),
        integers,
        **X,
    ),
    # So is // of integers.
    fault(
        "floor_division",
        "numeric-drift",
        lambda x: x // 3,
        lambda x: torch.div(x, 3, rounding_mode="floor"),
        integers,
        **X,
    ),
    # And // of floats.
    fault(
        "floor_division_of_floats",
        "numeric-drift",
        lambda x: x // 0.3,
        lambda x: torch.floor(x / 0.3),
        matrix,
        **X,
    ),
    # Below opset 16 the last of several sources for one place wins.
    fault(
        "scatter_add", "numeric-drift", lambda x, at, source: x.scatter_add(0, at, source), summed, repeated_places, **PLACED
    ),
    # The same with index_put.
    fault(
        "index_put_accumulate",
        "numeric-drift",
        lambda x, at, source: x.index_put((at,), source, accumulate=True),
        summed,
        repeated_places,
        **PLACED,
    ),
    # The same with index_add, even where the opset could do better.
    fault(
        "index_add",
        "numeric-drift",
        lambda x, at, source: x.index_add(0, at, source),
        lambda x, at, source: x.scatter_add(0, at, source),
        repeated_places,
        opset=16,
        **PLACED,
    ),
    # dynamo writes a mean over places as something else.
    fault(
        "scatter_mean",
        "numeric-drift",
        lambda x, at, source: x.scatter_reduce(0, at, source, "mean"),
        averaged,
        repeated_places,
        opset=18,
        **PLACED,
    ),
    # The divisor is dropped.
    fault(
        "pooling_divisor",
        "numeric-drift",
        lambda x: functional.avg_pool2d(x, 2, divisor_override=3),
        lambda x: functional.avg_pool2d(x, 2) * (4 / 3),
        image,
        **X,
    ),
    # The threshold above which softplus is a line is dropped.
    fault(
        "softplus_threshold",
        "numeric-drift",
        lambda x: functional.softplus(x * 20, beta=2, threshold=5),
        lambda x: functional.softplus(x * 40) / 2,
        matrix,
        **X,
    ),
    # Written as log(sigmoid(x)), which is minus infinity where the model has a number.
    fault(
        "log_sigmoid",
        "nonfinite-mismatch",
        lambda x: functional.logsigmoid(x * 200),
        lambda x: -functional.softplus(x * -200),
        matrix,
        **X,
    ),
    # Written as log(1 + x), which loses what is small beside 1.
    fault(
        "log1p",
        "numeric-drift",
        lambda x: torch.log1p(x.abs() * 1e-6),
        lambda x: x.abs() * 1e-6 * (1 - x.abs() * 5e-7),
        matrix,
        **X,
    ),
    # The epsilon is added to the distance, not to each difference, which only shows if both inputs are equal.
    fault(
        "epsilon_of_a_distance",
        "baked-value",
        lambda x, other: functional.pairwise_distance(x, other, eps=1e-12),
        lambda x, other: (x - other + 1e-12).square().sum(1).sqrt(),
        lambda: (torch.randn(4, 8), torch.randn(4, 8)),
        input_names=["x", "other"],
        output_names=["y"],
    ),
    # A roll by more than the size rolls by nothing.
    fault("roll", "numeric-drift", lambda x: x.roll(5, 0), lambda x: x.roll(5 % 3, 0), matrix, **X),
    # ONNX Runtime fuses the cast and the transpose into a product with a vector, and forgets the transpose.
    fault(
        "transposed_cast_by_vector",
        "runtime-disagreement",
        lambda x, vector: x.float().T @ vector,
        lambda x, vector: (x.float() * vector[:, None]).sum(0),
        lambda: (torch.randint(0, 9, (3, 3)), torch.randn(3)),
        input_names=["x", "vector"],
        output_names=["y"],
    ),
    # A missing reading is NaN, which the largest of a row is for the model and not for the file.
    fault("largest_beside_nan", "nonfinite-mismatch", largest_beside_nan, largest_or_nan, readings, **TWO),
    # The place of a NaN is that of the largest for the model.
    fault("place_of_nan", "baked-value", place_beside_nan, place_of_known, readings, **TWO),
    # Without gradients, torch's encoder takes a fast path that returns 0 for hidden tokens, which no exporter has.
    *(
        fault(
            f"hidden_tokens_{case}_{exporter}",
            "baked-value" if case == "elsewhere" else "numeric-drift",
            Encoder,
            right,
            lambda mask=mask: (torch.randn(2, 5, 16), mask),
            opset=18,
            exporter=exporter,
            input_names=["x", "hidden"],
            output_names=["y"],
            dynamic_axes={"x": {0: "batch"}, "hidden": {0: "batch"}, "y": {0: "batch"}},
        )
        for exporter in ("torchscript", "dynamo")
        for case, mask, right in (("here", HIDDEN, EncoderMasked), ("elsewhere", HIDDEN & False, EncoderOfRows))
    ),
]
