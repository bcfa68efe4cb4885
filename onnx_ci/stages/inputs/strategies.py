"""Values drawn from a strategy of Hypothesis, which a recipe declares as the domain of an input."""

from __future__ import annotations

from typing import Any, cast

import torch

from onnx_ci.collection.domains import Strategy


def examples_of(strategy: Strategy, count: int, seed: int) -> list[Any]:
    """Up to ``count`` values of a strategy, the same for the same seed; the first are the simplest.

    Raises:
        Exception: what the strategy raises, such as ``Unsatisfiable``.
    """
    import hypothesis

    found: list[Any] = []

    def collect(value: Any) -> None:
        found.append(value)

    options = hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    given: Any = hypothesis.given(cast("Any", strategy))
    hypothesis.seed(seed)(options(given(collect)))()
    return found


def as_tensor_like(value: Any, like: torch.Tensor) -> Any:
    """An example as a tensor: numbers, nested lists and arrays are converted to the data type of ``like``."""
    return value if isinstance(value, torch.Tensor) else torch.as_tensor(value).to(like.dtype)
