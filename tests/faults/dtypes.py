"""Data types that the exporter computes otherwise than torch."""

from __future__ import annotations

import torch
from faults.fault import ROWS, X, fault, matrix


def integers() -> tuple[torch.Tensor]:
    return (torch.tensor([-7, -3, 5, 8, 0]),)


def small_integers() -> tuple[torch.Tensor]:
    return (torch.tensor([-2, 0, 1]),)


def doubles() -> tuple[torch.Tensor]:
    return (torch.randn(5).double(),)


def halves() -> tuple[torch.Tensor]:
    return (torch.randn(5).half(),)


def truths() -> tuple[torch.Tensor]:
    return (torch.tensor([True, False, True]),)


def normalized(x, eps):
    return (x - x.mean(-1, keepdim=True)) * (x.var(-1, unbiased=False, keepdim=True) + eps).rsqrt()


def eps_of_type(x):
    return normalized(x, 1e-5 if x.dtype == torch.float32 else 1e-3)


def eps_of_another_type(x):
    """In the file, the number of the other type, as when another copy of the model is exported."""
    return normalized(x, 1e-3) if torch.onnx.is_in_onnx_export() else eps_of_type(x)


def limit_of_type(x):
    return (x.abs() + torch.finfo(x.dtype).eps).log()


def limit_of_another_type(x):
    return (x.abs() + 1e-9).log() if torch.onnx.is_in_onnx_export() else limit_of_type(x)


def mostly_zero() -> tuple[torch.Tensor]:
    return (torch.tensor([[0.0, 1.0, 0.0, -2.0], [3.0, 0.0, 0.0, 0.5]]),)


FAULTS = [
    # The model decides by its data type, and the reference has another one.
    fault("decided_by_type", "numeric-drift", eps_of_another_type, eps_of_type, matrix, **ROWS),
    fault("decided_by_type_with_dynamo", "numeric-drift", eps_of_another_type, eps_of_type, matrix, opset=18, **ROWS),
    # It has the limits of its data type.
    fault("limit_of_type", "numeric-drift", limit_of_another_type, limit_of_type, mostly_zero, **X),
    # A single double that is divided by a Python number comes out as float32.
    fault("quotient_of_a_double", "dtype-mismatch", lambda x: x.sum() / 4, lambda x: (x / 4).sum(), doubles, **X),
    # alpha is written as float32 into a graph of doubles.
    fault(
        "alpha_in_doubles",
        "numeric-drift",
        lambda x: torch.add(x, x.float(), alpha=1.5),
        lambda x: x + x.float().double() * 1.5,
        doubles,
        **X,
    ),
    # torch adds int32 up in int64, CumSum stays in int32.
    fault(
        "sum_of_int32",
        "dtype-mismatch",
        lambda x: x.cumsum(0),
        lambda x: x.long().cumsum(0),
        lambda: (torch.tensor([-7, -3, 5], dtype=torch.int32),),
        **X,
    ),
    # addcmul of halves comes out as float32.
    fault(
        "addcmul_of_halves", "dtype-mismatch", lambda x: torch.addcmul(x, x, x, value=2), lambda x: x + 2 * x * x, halves, **X
    ),
    # Float bounds make floats of integers in torch, and become integers themselves in the file.
    fault(
        "integers_in_float_bounds",
        "dtype-mismatch",
        lambda x: x.clamp(-2.5, 4.5),
        lambda x: x.float().clamp(-2.5, 4.5),
        integers,
        **X,
    ),
    # A power of integers is a float below opset 12.
    fault("power_of_integers", "dtype-mismatch", lambda x: x**3, lambda x: x * x * x, small_integers, opset=9, **X),
    # Exp knows floats only; torch turns integers into floats by itself.
    fault("exp_of_integers", "checker", lambda x: x.exp(), lambda x: x.float().exp(), small_integers, **X),
    # CumSum does not know booleans.
    fault("sum_of_booleans", "checker", lambda x: x.cumsum(0), lambda x: x.long().cumsum(0), truths, **X),
    # Nor halves, below opset 14.
    fault("sum_of_halves", "checker", lambda x: x.cumsum(0), lambda x: x.float().cumsum(0).half(), halves, **X),
    # Add does not know int8 below opset 14.
    fault(
        "int8_arithmetic",
        "checker",
        lambda x: x * 2 + x,
        lambda x: (x.int() * 2 + x.int()).to(torch.int8),
        lambda: (torch.tensor([100, -3, 5], dtype=torch.int8),),
        **X,
    ),
    # Any nonzero value is true; any() rounds to integers first.
    fault(
        "any_of_fractions",
        "numeric-drift",
        lambda x: x.any(),
        lambda x: (x != 0).any(),
        lambda: (torch.tensor([0.3, 0.0, -0.4]),),
        **X,
    ),
    # any() adds integers up, and opposites cancel.
    fault(
        "any_of_opposites",
        "numeric-drift",
        lambda x: x.any(),
        lambda x: (x != 0).any(),
        lambda: (torch.tensor([-3, 0, 3]),),
        **X,
    ),
]
