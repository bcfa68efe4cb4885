"""Values that a recipe draws itself: with a function that it declares for an input, or from a strategy of Hypothesis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch

from onnx_ci.collection.domains import Drawn, Strategy
from onnx_ci.errors import describe_exception

EXAMPLES = 8
"""How many values are drawn from a strategy, whose first ones are its simplest."""


class DrawError(Exception):
    """A recipe's function or strategy fails, or returns something else than a value of the input; the message says which."""


def drawn_values(
    domain: Drawn, like: torch.Tensor, sizes: Mapping[str, int], generator: torch.Generator
) -> tuple[torch.Tensor, ...]:
    """What the recipe's function draws, or some examples of a strategy. Empty if these have other sizes than ``like``.

    Raises:
        DrawError: the function fails, or returns something else.
    """
    try:
        drawn = domain.draw(sizes, generator)
        is_strategy = isinstance(drawn, Strategy)
        seed = generator.initial_seed()
        values = [_as_tensor(each, like) for each in examples_of(drawn, EXAMPLES, seed)] if is_strategy else [drawn]
    except Exception as error:  # the user's function and strategy can raise anything
        raise DrawError(f"fails: {describe_exception(error)}") from None
    for value in values:
        if not isinstance(value, torch.Tensor) or value.dtype != like.dtype or value.dim() != like.dim():
            is_tensor = isinstance(value, torch.Tensor)
            shown = f"{value.dtype} of shape {list(value.shape)}" if is_tensor else type(value).__name__
            raise DrawError(f"returns {shown}, and the example is {like.dtype} with {like.dim()} axes")
    return () if is_strategy and any(value.shape != like.shape for value in values) else tuple(values)


def examples_of(strategy: Strategy, count: int, seed: int) -> list[Any]:
    """Up to ``count`` values of a strategy, the same for the same seed; the first are the simplest.

    Raises:
        Exception: what the strategy raises, such as ``Unsatisfiable``.
    """
    import hypothesis

    values: list[Any] = []

    def collect(value: Any) -> None:
        values.append(value)

    options = hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    given: Any = hypothesis.given(cast("Any", strategy))
    hypothesis.seed(seed)(options(given(collect)))()
    return values


def _as_tensor(value: Any, like: torch.Tensor) -> torch.Tensor:
    """An example as a tensor: numbers, nested lists and arrays are converted to the data type of ``like``."""
    return value if isinstance(value, torch.Tensor) else torch.as_tensor(value).to(like.dtype)
