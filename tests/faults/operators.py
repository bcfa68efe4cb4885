"""Operators that the exporter, the checker or the runtime refuses at the opset."""

from __future__ import annotations

import torch
from faults.fault import X, fault, matrix
from torch.nn import functional


class OwnSymbol(torch.autograd.Function):
    """A function that tells the exporter itself how it is written."""

    operator = ""

    @staticmethod
    def forward(ctx, x):
        return functional.gelu(x)

    @classmethod
    def symbolic(cls, g, x):
        return g.op(cls.operator, x).setType(x.type())


class TooNew(OwnSymbol):
    operator = "Gelu"


class NotTheSame(OwnSymbol):
    operator = "Relu"


class OfOurOwn(OwnSymbol):
    operator = "example::Gelu"


def integer_matrices() -> tuple[torch.Tensor, ...]:
    return torch.arange(12).reshape(3, 4), torch.arange(12).reshape(4, 3), torch.ones(3, 3, dtype=torch.int64)


def small_image() -> tuple[torch.Tensor]:
    return (torch.randn(1, 2, 6, 6),)


FAULTS = [
    # A symbolic that writes an operator which the opset does not have.
    fault("symbol_too_new", "checker", TooNew.apply, functional.gelu, matrix, **X),
    # A symbolic that writes another function than forward computes.
    fault("symbol_of_another", "numeric-drift", NotTheSame.apply, functional.gelu, matrix, **X),
    # A symbolic that writes an operator of a domain that no runtime knows.
    fault("symbol_of_ours", "foreign-domain", OfOurOwn.apply, functional.gelu, matrix, **X),
    # What the exporter cannot write falls through into the file under torch's own name.
    fault(
        "fall_through",
        "foreign-domain",
        torch.expm1,
        lambda x: x.exp() - 1,
        matrix,
        **X,
        operator_export_type=torch.onnx.OperatorExportTypes.ONNX_FALLTHROUGH,
    ),
    # The exporter does not know the operator at all.
    fault(
        "unknown_operator",
        "unsupported-operator",
        torch.hypot,
        lambda x, y: (x * x + y * y).sqrt(),
        lambda: (torch.randn(3), torch.randn(3)),
        input_names=["x", "other"],
        output_names=["y"],
    ),
    # The exporter knows the operator from a later opset on.
    fault(
        "operator_too_new",
        "unsupported-operator",
        lambda x: x.tril(),
        lambda x: x * torch.ones(3, 4).tril(),
        matrix,
        opset=13,
        **X,
    ),
    # Bits of integers are no operation below opset 18.
    fault("bits_of_integers", "export-error", lambda x: x & 1, lambda x: x % 2, lambda: (torch.tensor([1, 4, 7]),), **X),
    # dynamo refuses to guess the branch.
    fault(
        "branch_in_dynamo",
        "export-error",
        lambda x: x if x.sum() > 0 else x * 2,
        lambda x: torch.where(x.sum() > 0, x, x * 2),
        matrix,
        opset=18,
        **X,
    ),
    # A window over an axis of unknown size.
    fault(
        "unfold",
        "unsupported-operator",
        lambda x: x.unfold(0, 2, 1),
        lambda x: torch.stack([x[:-1], x[1:]], dim=-1),
        matrix,
        **{**X, "dynamic_axes": {"x": {0: "rows"}, "y": {0: "windows"}}},
    ),
    # The number of classes is left to the values, and the file says -1.
    fault(
        "one_hot_classes",
        "checker",
        lambda x: functional.one_hot(x).float(),
        lambda x: functional.one_hot(x, 3).float(),
        lambda: (torch.tensor([0, 2, 1]),),
        **X,
    ),
    # ONNX Runtime has no product of integers with a bias.
    fault(
        "integer_product",
        "load-error",
        lambda a, b, bias: torch.addmm(bias, a, b),
        lambda a, b, bias: a @ b + bias,
        integer_matrices,
        input_names=["a", "b", "bias"],
        output_names=["y"],
    ),
    # Opset 9 refuses bounds that cross, which torch allows.
    fault(
        "crossed_bounds",
        "load-error",
        lambda x: x.clamp(1.0, -1.0) + x,
        lambda x: x.clamp(min=1.0).clamp(max=-1.0) + x,
        matrix,
        opset=9,
        **X,
    ),
    # Opset 9 has no ceil_mode: the exporter pads by more than ONNX Runtime allows.
    fault(
        "pooling_with_ceil",
        "load-error",
        lambda x: functional.max_pool2d(x, 3, 2, 1, ceil_mode=True),
        lambda x: functional.max_pool2d(functional.pad(x, (1, 2, 1, 2), value=-1e30), 3, 2),
        small_image,
        opset=9,
        **X,
    ),
]
