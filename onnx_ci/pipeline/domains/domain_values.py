"""The values of one domain: drawn at random, told apart from others, and at its borders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch

from onnx_ci.collection.domains import (
    Boxes,
    Domain,
    Drawn,
    Floats,
    Integers,
    Lengths,
    Mask,
    OneHot,
    OneOf,
    Permutations,
    Segments,
    Strategy,
    Unchanged,
)
from onnx_ci.errors import describe_exception

Sizes = Mapping[str, int]
"""The sizes of axes, by their names."""


def draw(domain: Domain, like: torch.Tensor, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    """A random value of a domain, in the shape of ``like``."""
    match domain:
        case Floats():
            return domain.low + (domain.high - domain.low) * _random(like, generator)
        case Integers():
            integers = torch.randint(domain.low, domain.high, like.shape, generator=generator)
            return integers.sort(-1).values if domain.ascending and like.dim() else integers
        case OneOf():
            picked = torch.randint(0, len(domain.values), like.shape, generator=generator)
            return torch.tensor(domain.values, dtype=torch.float64)[picked]
        case Lengths():
            lengths = torch.randint(1, max(sizes[domain.of], 1) + 1, like.shape, generator=generator)
            if lengths.numel():
                lengths.view(-1)[-1] = sizes[domain.of]  # models may take the size from the longest row
            return lengths
        case Mask():
            keys = _random(like, generator)
            if like.dim() and like.shape[-1] and domain.starts_with is not None:
                keys[..., 0] = 0.0 if domain.starts_with else 1.0
            # True where a key is below a half; where that leaves too few of a kind, the smallest keys are true and the largest
            # false.
            ranks = _ranks(keys)
            return (ranks < domain.min_true) | ((keys < 0.5) & (ranks < _length(like) - domain.min_false))
        case Permutations():
            return _ranks(_random(like, generator))
        case Segments():
            is_first = torch.randint(0, 2, like.shape, generator=generator)
            return is_first.cumsum(-1) - is_first[..., :1]
        case OneHot():
            return _ranks(_random(like, generator)) == 0
        case Boxes():
            corners = _random(like, generator)
            return _boxes(domain, corners[..., :2], corners[..., 2:])
        case Drawn():
            values = drawn_values(domain, like, sizes, generator)
            return values[int(torch.randint(0, len(values), (), generator=generator))] if values else like
        case Unchanged():
            return like
    raise NotImplementedError(type(domain))


def contains(domain: Domain, tensor: torch.Tensor, sizes: Sizes) -> bool:
    """Whether ``tensor`` is a value of a domain."""
    match domain:
        case Floats():
            low, high = torch.tensor([domain.low, domain.high], dtype=torch.float64).to(tensor.dtype).tolist()
            return _between(tensor, low, high)
        case Integers():
            is_sorted = not domain.ascending or not tensor.dim() or bool((tensor.diff(dim=-1) >= 0).all())
            return is_sorted and _between(tensor, domain.low, domain.high - 1)
        case OneOf():
            return bool(torch.isin(tensor, torch.tensor(domain.values, dtype=torch.float64).to(tensor.dtype)).all())
        case Lengths():
            return _between(tensor, 1, sizes[domain.of]) and bool((tensor == sizes[domain.of]).any())
        case Mask():
            is_true = tensor != 0
            if not bool((tensor == is_true).all()):
                return False
            if not tensor.dim() or not tensor.numel():
                return True
            true, length = is_true.sum(-1), tensor.shape[-1]
            is_enough = (true >= min(domain.min_true, length)) & (length - true >= min(domain.min_false, length))
            starts_right = domain.starts_with is None or bool((is_true[..., 0] == domain.starts_with).all())
            return starts_right and bool(is_enough.all())
        case Permutations():
            return bool((tensor.sort(-1).values == _positions(tensor)).all())
        case Segments():
            steps = tensor.diff(dim=-1)
            return bool(((steps >= 0) & (steps <= 1)).all()) and not bool(tensor[..., :1].any())
        case OneHot():
            return bool(((tensor == 0) | (tensor == 1)).all()) and bool(((tensor == 1).sum(-1) == 1).all())
        case Boxes() if tensor.dim() and tensor.shape[-1] == 4:
            low, high = _FROM_FORMAT[domain.format](tensor[..., :2].double(), tensor[..., 2:].double())
            scale = torch.tensor(domain.within, dtype=torch.float64)
            allowance = scale * 1e-5  # sums of float32
            return bool(((low <= high) & (low >= -allowance) & (high <= scale + allowance)).all())
    return False  # what a function could draw is unknown, and a change of what stays is not tried


def edges(domain: Domain, like: torch.Tensor, sizes: Sizes) -> Iterator[tuple[str, torch.Tensor]]:
    """Values at the borders of a domain, in the shape of ``like``, each with words for it."""
    match domain:
        case Floats():
            lowest, highest = torch.full_like(like, domain.low), torch.full_like(like, domain.high)
            yield "lowest", lowest
            yield "highest", highest
            yield "at both ends", torch.where(torch.arange(like.numel()).reshape(like.shape) % 2 == 0, lowest, highest)
        case Integers():
            yield "lowest", torch.full_like(like, domain.low)
            yield "highest", torch.full_like(like, domain.high - 1)
        case OneOf():
            for value in domain.values:
                yield f"{value:g}", torch.full_like(like, value)
        case Lengths():
            yield "all longest", torch.full_like(like, sizes[domain.of])
            if like.numel() > 1:
                shortest = torch.ones_like(like)
                shortest.view(-1)[0] = sizes[domain.of]
                yield "shortest but one", shortest
        case Mask():
            position, length = _positions(like), _length(like)
            for label, mask in (
                ("all true", torch.ones_like(like)),
                ("true at the beginning", position < domain.min_true),
                ("true at the end", position >= length - domain.min_true),
                ("false at the beginning", position >= domain.min_false),
                ("false at the end", position < length - domain.min_false),
            ):
                if contains(domain, mask, sizes):
                    yield label, mask
        case Permutations():
            yield "in order", _positions(like)
            yield "reversed", _positions(like).flip(-1)
        case OneHot():
            yield "first", _positions(like) == 0
            yield "last", _positions(like) == like.shape[-1] - 1
        case Boxes():
            zeros = torch.zeros_like(like[..., :2], dtype=torch.float64)
            yield "the whole picture", _boxes(domain, zeros, zeros + 1)
            yield "all equal", _boxes(domain, zeros + 0.25, zeros + 0.75)
        case Drawn():
            values = drawn_values(domain, like, sizes, torch.Generator().manual_seed(0))
            for number, tensor in enumerate(values if len(values) > 1 else ()):
                yield f"example {number + 1}", tensor


def _between(tensor: torch.Tensor, low: float, high: float) -> bool:
    return bool(((tensor >= low) & (tensor <= high)).all())


def _random(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(like.shape, generator=generator, dtype=torch.float64)


def _length(like: torch.Tensor) -> int:
    return like.shape[-1] if like.dim() else 1


def _positions(like: torch.Tensor) -> torch.Tensor:
    """The position of each element in its row."""
    return torch.arange(_length(like)).expand(like.shape)


def _ranks(values: torch.Tensor) -> torch.Tensor:
    """The position that each element has in its row once that is sorted."""
    return values.argsort(-1).argsort(-1) if values.dim() else torch.zeros(())


_TO_FORMAT: Mapping[str, Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "xyxy": lambda low, high: (low, high),
    "xywh": lambda low, high: (low, high - low),
    "cxcywh": lambda low, high: ((low + high) / 2, high - low),
}
"""From the lowest and the highest corner to the four numbers of a format, two and two."""
_FROM_FORMAT: Mapping[str, Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "xyxy": lambda low, high: (low, high),
    "xywh": lambda low, size: (low, low + size),
    "cxcywh": lambda centre, size: (centre - size / 2, centre + size / 2),
}
"""And back."""


def _boxes(domain: Boxes, corner: torch.Tensor, opposite: torch.Tensor) -> torch.Tensor:
    """Boxes between two corners, each from 0 to 1, in the domain's format and unit."""
    scale = torch.tensor(domain.within, dtype=torch.float64)
    low, high = torch.minimum(corner, opposite) * scale, torch.maximum(corner, opposite) * scale
    return torch.cat(_TO_FORMAT[domain.format](low, high), -1)


EXAMPLES = 8
"""How many values are drawn from a strategy, whose first ones are its simplest."""


class DrawError(Exception):
    """A recipe's function or strategy fails, or returns something else than a value of the input; the message says which."""


def drawn_values(
    domain: Drawn, like: torch.Tensor, sizes: Mapping[str, int], generator: torch.Generator
) -> tuple[torch.Tensor, ...]:
    """What the recipe's function draws, or some examples of a strategy. Empty if these have other sizes than ``like``.

    A :class:`DrawError` says that the function fails, or returns something else.
    """
    try:
        drawn = domain.draw(sizes, generator)
        is_strategy = isinstance(drawn, Strategy)
        values = [drawn]
        if is_strategy:
            examples = examples_of(drawn, EXAMPLES, generator.initial_seed())
            values = [each if isinstance(each, torch.Tensor) else torch.as_tensor(each).to(like.dtype) for each in examples]
    except Exception as error:  # the user's function and strategy can raise anything
        raise DrawError(f"fails: {describe_exception(error)}") from None
    for value in values:
        if not isinstance(value, torch.Tensor) or value.dtype != like.dtype or value.dim() != like.dim():
            is_tensor = isinstance(value, torch.Tensor)
            shown = f"{value.dtype} of shape {list(value.shape)}" if is_tensor else type(value).__name__
            raise DrawError(f"returns {shown}, and the example is {like.dtype} with {like.dim()} axes")
    return () if is_strategy and any(value.shape != like.shape for value in values) else tuple(values)


def examples_of(strategy: Strategy, count: int, seed: int) -> list[Any]:
    """Up to ``count`` values of a strategy, the same for the same seed; the first are the simplest."""
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
