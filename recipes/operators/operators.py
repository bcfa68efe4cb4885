"""Every operator that the torch.onnx documentation lists as supported, one recipe each, from the table in operator_cases.py.

The known failures are in operator_gaps.py; docs/operators.md shows the results at each opset, with both exporters.
"""

from __future__ import annotations

from typing import Any

import torch

import onnx_ci
from onnx_ci.recipes.operators.operator_cases import CASES, Case
from onnx_ci.recipes.operators.operator_gaps import expectations


class Operator(torch.nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        """Call the function."""
        return self.function(*inputs)


def recipe_of(case: Case) -> onnx_ci.Recipe:
    """The recipe for an operator."""

    def build():
        model = case.call() if case.is_module else Operator(case.call)
        return model, tuple(draw() for draw in case.inputs)

    options: dict[str, Any] = dict(case.options)
    if case.dynamic_axes:
        names = ["x", "y", "z"][: len(case.inputs)]
        options |= {"input_names": names, "output_names": ["out"], "dynamic_axes": case.dynamic_axes}
    return onnx_ci.recipe(
        name=case.name,
        tags=["operator"],
        manual=f"one of {len(CASES)} operators, for the table in docs/operators.md",
        expect=expectations(case.name),
        **options,
    )(build)


globals().update({f"operator {case.name}": recipe_of(case) for case in CASES})
