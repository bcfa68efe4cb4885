"""Values of inputs whose domain a recipe declares: drawn at random, at the borders, and told apart from others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from onnx_ci.collection.axis_sizes import AxisSize, axis_size_in, solve
from onnx_ci.collection.domains import Boxes, Domain, Drawn, Floats, Integers, Lengths, Mask, OneHot, OneOf, Permutations
from onnx_ci.errors import describe_exception, did_you_mean
from onnx_ci.stages.prepare.live_model import recipe_error

Sizes = Mapping[str, int]
Edges = Iterator[tuple[str, torch.Tensor]]


class InputDomains:
    """The declared domains of a recipe's inputs.

    Args:
        declared: the domains by name.
        names: the inputs' names, by position.
        axes: the names of axes, by the input's name and the axis.
        example: the recipe's example.

    Raises:
        PrepareError: a domain is declared for an unknown input, or the example is outside of it.
    """

    def __init__(
        self,
        declared: Mapping[str, Domain],
        names: Sequence[str | None],
        axes: Mapping[str, Mapping[int, str]],
        example: Sequence[torch.Tensor],
    ) -> None:
        self._places = {
            f"{name}[{axis}]": (index, axis)
            for index, (name, tensor) in enumerate(zip(names, example, strict=True))
            for axis in range(tensor.dim())
        }
        self._axes: list[tuple[AxisSize, tuple[int, int]]] = []
        for index, name in enumerate(names):
            for axis, label in axes.get(name or "", {}).items():
                self._places.setdefault(label, (index, axis))
                self._axes.append((axis_size_in(name or "", label), (index, axis)))
        known = [name for name in names if name]
        for name, domain in declared.items():
            if name not in known:
                message = f"inputs names {name!r}, which is no input{did_you_mean(name, known)}"
                raise recipe_error(message, f"The inputs are {', '.join(known) or 'without names: declare input_names'}.")
            if isinstance(domain, Lengths) and domain.of not in (sizes := self._sizes(example)):
                nearest = did_you_mean(domain.of, sizes)
                message = f"inputs[{name!r}] has the lengths of {domain.of!r}, which is no axis{nearest}"
                raise recipe_error(message, f"The axes are {', '.join(sizes)}.")
        self._domains = {names.index(name): domain for name, domain in declared.items()}
        self._names = names
        for index, domain in self._domains.items():
            if not isinstance(domain, Drawn) and not self.allows(index, example):
                message = f"the example's {names[index]!r} is outside of its declared domain"
                raise recipe_error(message, "Correct the example, or the domain in the recipe's inputs.")

    def __contains__(self, index: object) -> bool:
        return index in self._domains

    def drawn(self, inputs: Sequence[torch.Tensor], seed: int) -> dict[int, torch.Tensor]:
        """New values of the declared inputs, by position, in the shapes of ``inputs``.

        Raises:
            PrepareError: the recipe's function that draws them fails.
        """
        sizes = self._sizes(inputs)
        generator = torch.Generator().manual_seed(seed)
        return {index: self._drawn(index, inputs[index], sizes, generator) for index in self._domains}

    def _drawn(self, index: int, like: torch.Tensor, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
        domain = self._domains[index]
        if not isinstance(domain, Drawn):
            return draw(domain, like, sizes, generator).to(like.dtype)
        name = self._names[index]
        remedy = "Make the function return a tensor for every size of the dynamic axes: (sizes, generator) -> tensor."
        try:
            made = domain.draw(sizes, generator)
        except Exception as error:  # the user's function can raise anything
            raise recipe_error(f"the function in inputs[{name!r}] fails: {describe_exception(error)}", remedy) from None
        if not isinstance(made, torch.Tensor) or made.dtype != like.dtype or made.dim() != like.dim():
            shown = f"{made.dtype} of shape {list(made.shape)}" if isinstance(made, torch.Tensor) else type(made).__name__
            example = f"{like.dtype} with {like.dim()} axes"
            raise recipe_error(f"the function in inputs[{name!r}] returns {shown}, and the example is {example}", remedy)
        return made

    def allows(self, index: int, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether an input has a value of its declared domain. What a function could draw is unknown."""
        domain = self._domains[index]
        return not isinstance(domain, Drawn) and contains(domain, inputs[index], self._sizes(inputs))

    def legal(self, changed: Sequence[torch.Tensor], example: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """``changed``, with the example's values of declared inputs that would leave their domain."""
        return [
            example[index] if index in self._domains and not self.allows(index, changed) else tensor
            for index, tensor in enumerate(changed)
        ]

    def edges(self, example: Sequence[torch.Tensor]) -> Iterator[tuple[str, list[torch.Tensor]]]:
        """Inputs at the borders of each declared domain, one input at a time, with a name."""
        sizes = self._sizes(example)
        for index, domain in self._domains.items():
            for word, tensor in edges(domain, example[index], sizes):
                yield f"{self._names[index]} {word}", [tensor.to(t.dtype) if i == index else t for i, t in enumerate(example)]

    def _sizes(self, inputs: Sequence[torch.Tensor]) -> Sizes:
        variables = solve((size, inputs[index].shape[axis]) for size, (index, axis) in self._axes)
        return {**variables, **{label: inputs[index].shape[axis] for label, (index, axis) in self._places.items()}}


UNDECLARED = InputDomains({}, (), {}, ())
"""The domains of inputs for which none is declared."""


# --- one domain -------------------------------------------------------------------------------------------------------


@functools.singledispatch
def draw(domain: Domain, like: torch.Tensor, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    """A random value of a domain, in the shape of ``like``."""
    raise NotImplementedError(type(domain))


@functools.singledispatch
def contains(domain: Domain, tensor: torch.Tensor, sizes: Sizes) -> bool:
    """Whether ``tensor`` is a value of a domain."""
    raise NotImplementedError(type(domain))


@functools.singledispatch
def edges(domain: Domain, like: torch.Tensor, sizes: Sizes) -> Edges:
    """Values at the borders of a domain, in the shape of ``like``, each with a word for it."""
    yield from ()


def _between(tensor: torch.Tensor, low: float, high: float) -> bool:
    return bool(((tensor >= low) & (tensor <= high)).all())


def _random(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(like.shape, generator=generator, dtype=torch.float64)


@draw.register
def _(domain: Floats, like: torch.Tensor, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    return domain.low + (domain.high - domain.low) * _random(like, generator)


@contains.register
def _(domain: Floats, tensor: torch.Tensor, sizes: Sizes) -> bool:
    low, high = torch.tensor([domain.low, domain.high], dtype=torch.float64).to(tensor.dtype).tolist()
    return _between(tensor, low, high)


@edges.register
def _(domain: Floats, like: torch.Tensor, sizes: Sizes) -> Edges:
    yield "lowest", torch.full_like(like, domain.low)
    yield "highest", torch.full_like(like, domain.high)
    yield "at both ends", _alternating(like, domain.low, domain.high)


def _alternating(like: torch.Tensor, one: float, other: float) -> torch.Tensor:
    numbers = torch.arange(like.numel()).reshape(like.shape)
    return torch.where(numbers % 2 == 0, one, other)


@draw.register
def _(domain: Integers, like: torch.Tensor, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    made = torch.randint(domain.low, domain.high, like.shape, generator=generator)
    return made.sort(-1).values if domain.ascending and made.dim() else made


@contains.register
def _(domain: Integers, tensor: torch.Tensor, sizes: Sizes) -> bool:
    is_sorted = not domain.ascending or not tensor.dim() or bool((tensor.diff(dim=-1) >= 0).all())
    return is_sorted and _between(tensor, domain.low, domain.high - 1)


@edges.register
def _(domain: Integers, like: torch.Tensor, sizes: Sizes) -> Edges:
    yield "lowest", torch.full_like(like, domain.low)
    yield "highest", torch.full_like(like, domain.high - 1)


def _rank_in_row(like: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """The place of each element in a random order of its row; without a generator, its position."""
    if generator is None:
        return torch.arange(like.shape[-1] if like.dim() else 1).expand(like.shape)
    return _random(like, generator).argsort(-1).argsort(-1) if like.dim() else torch.zeros(())


@draw.register
def _(domain: Mask, like: torch.Tensor, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    return (_rank_in_row(like, generator) < domain.min_true) | (_random(like, generator) < 0.5)


@contains.register
def _(domain: Mask, tensor: torch.Tensor, sizes: Sizes) -> bool:
    is_binary = bool(((tensor == 0) | (tensor == 1)).all())
    return is_binary and (not tensor.dim() or bool(((tensor != 0).sum(-1) >= domain.min_true).all()))


@edges.register
def _(domain: Mask, like: torch.Tensor, sizes: Sizes) -> Edges:
    least = max(domain.min_true, 0)
    position, length = _rank_in_row(like), like.shape[-1] if like.dim() else 1
    yield "all true", torch.ones_like(like)
    yield "true at the beginning", position < least
    yield "true at the end", position >= length - least


@draw.register
def _(domain: OneOf, like: torch.Tensor, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    picked = torch.randint(0, len(domain.values), like.shape, generator=generator)
    return torch.tensor(domain.values, dtype=torch.float64)[picked]


@contains.register
def _(domain: OneOf, tensor: torch.Tensor, sizes: Sizes) -> bool:
    return bool(torch.isin(tensor, torch.tensor(domain.values).to(tensor.dtype)).all())


@edges.register
def _(domain: OneOf, like: torch.Tensor, sizes: Sizes) -> Edges:
    for value in domain.values:
        yield f"{value:g}", torch.full_like(like, value)


@draw.register
def _(domain: Lengths, like: torch.Tensor, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    made = torch.randint(1, max(sizes[domain.of], 1) + 1, like.shape, generator=generator)
    if made.numel():
        made.view(-1)[-1] = sizes[domain.of]  # models may take the size from the longest row
    return made


@contains.register
def _(domain: Lengths, tensor: torch.Tensor, sizes: Sizes) -> bool:
    return _between(tensor, 1, sizes[domain.of]) and bool((tensor == sizes[domain.of]).any())


@edges.register
def _(domain: Lengths, like: torch.Tensor, sizes: Sizes) -> Edges:
    longest = torch.full_like(like, sizes[domain.of])
    yield "all longest", longest
    if like.numel() > 1:
        shortest = torch.ones_like(like)
        shortest.view(-1)[0] = sizes[domain.of]
        yield "shortest but one", shortest


@draw.register
def _(domain: Permutations, like: torch.Tensor, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    return _rank_in_row(like, generator)


@contains.register
def _(domain: Permutations, tensor: torch.Tensor, sizes: Sizes) -> bool:
    return bool((tensor.sort(-1).values == _rank_in_row(tensor)).all())


@edges.register
def _(domain: Permutations, like: torch.Tensor, sizes: Sizes) -> Edges:
    yield "in order", _rank_in_row(like)
    yield "reversed", _rank_in_row(like).flip(-1)


@draw.register
def _(domain: OneHot, like: torch.Tensor, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    return _rank_in_row(like, generator) == 0


@contains.register
def _(domain: OneHot, tensor: torch.Tensor, sizes: Sizes) -> bool:
    return bool(((tensor == 0) | (tensor == 1)).all()) and bool(((tensor == 1).sum(-1) == 1).all())


@edges.register
def _(domain: OneHot, like: torch.Tensor, sizes: Sizes) -> Edges:
    yield "first", _rank_in_row(like) == 0
    yield "last", _rank_in_row(like) == like.shape[-1] - 1


_TO_FORMAT: Mapping[str, Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "xyxy": lambda low, high: (low, high),
    "xywh": lambda low, high: (low, high - low),
    "cxcywh": lambda low, high: ((low + high) / 2, high - low),
}
_FROM_FORMAT: Mapping[str, Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "xyxy": lambda one, other: (one, other),
    "xywh": lambda one, other: (one, one + other),
    "cxcywh": lambda one, other: (one - other / 2, one + other / 2),
}


def _boxes(domain: Boxes, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Boxes between two corners, each from 0 to 1, in the domain's format and unit."""
    scale = torch.tensor(domain.within, dtype=torch.float64)
    return torch.cat(_TO_FORMAT[domain.format](torch.minimum(one, other) * scale, torch.maximum(one, other) * scale), -1)


@draw.register
def _(domain: Boxes, like: torch.Tensor, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    corners = _random(like, generator)
    return _boxes(domain, corners[..., :2], corners[..., 2:])


@contains.register
def _(domain: Boxes, tensor: torch.Tensor, sizes: Sizes) -> bool:
    if not tensor.dim() or tensor.shape[-1] != 4:
        return False
    low, high = _FROM_FORMAT[domain.format](tensor[..., :2].double(), tensor[..., 2:].double())
    scale = torch.tensor(domain.within, dtype=torch.float64)
    allowance = scale * 1e-5  # sums of float32
    return bool(((low <= high) & (low >= -allowance) & (high <= scale + allowance)).all())


@edges.register
def _(domain: Boxes, like: torch.Tensor, sizes: Sizes) -> Edges:
    zeros = torch.zeros_like(like[..., :2], dtype=torch.float64)
    yield "the whole picture", _boxes(domain, zeros, zeros + 1)
    yield "all equal", _boxes(domain, zeros + 0.25, zeros + 0.75)
