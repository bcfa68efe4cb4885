"""What a fault is: a recipe that is wrong in one way, the rule that names it, and its twin that is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import onnx_ci


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way to be wrong. Both recipes run at ``opset``; ``wrong`` must break ``rule`` and ``right`` no rule at all."""

    name: str
    rule: str
    wrong: onnx_ci.Recipe
    right: onnx_ci.Recipe
    opset: int = 13


class Function(torch.nn.Module):
    """A model without weights."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def fault(
    name: str,
    rule: str,
    wrong: Callable[..., Any],
    right: Callable[..., Any],
    args: Callable[[], tuple[Any, ...]],
    *,
    opset: int = 13,
    right_args: Callable[[], tuple[Any, ...]] | None = None,
    only_wrong: Mapping[str, Any] | None = None,
    only_right: Mapping[str, Any] | None = None,
    **declared: Any,
) -> Fault:
    """A fault whose sides are module classes, or functions that stand for a forward without weights.

    Args:
        args: makes the example; it runs under the recipe's seed.
        right_args: the same for the right side, where it differs.
        only_wrong: what only the wrong side declares.
        only_right: what only the right side declares.
        **declared: what both sides declare.
    """

    def recipe(side: str, model: Callable[..., Any], make: Callable[[], tuple[Any, ...]], own: Mapping[str, Any] | None) -> Any:
        def made() -> tuple[torch.nn.Module, tuple[Any, ...]]:
            return (model() if isinstance(model, type) else Function(model)), make()

        return onnx_ci.recipe(made, name=f"{name}.{side}", **{**declared, **(own or {})})

    return Fault(
        name=name,
        rule=rule,
        wrong=recipe("wrong", wrong, args, only_wrong),
        right=recipe("right", right, right_args or args, only_right),
        opset=opset,
    )


X = {"input_names": ["x"], "output_names": ["y"]}
"""One input, one output, nothing dynamic."""

ROWS = {**X, "dynamic_axes": {"x": {0: "rows"}, "y": {0: "rows"}}}
"""The rows of input and output vary together."""

ROWS_IN = {**X, "dynamic_axes": {"x": {0: "rows"}}}
"""The rows of the input vary, and the output has none."""

ROWS_OUT = {**X, "dynamic_axes": {"x": {0: "rows"}, "y": {0: "out"}}}
"""The output's rows vary otherwise than the input's."""


def matrix() -> tuple[torch.Tensor]:
    """The usual example: three rows of four."""
    return (torch.randn(3, 4),)
