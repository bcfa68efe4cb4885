"""The domains of a recipe's inputs, and their values: drawn at random, at the borders, and told apart from others."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from onnx_ci.collection.axis_sizes import AxisSize, axis_size_in, solve
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
    Strategy,
    Unchanged,
)
from onnx_ci.errors import describe_exception, did_you_mean
from onnx_ci.results.records import InputDomain
from onnx_ci.stages.inputs.inferred_domains import Lookup, inferred_domains
from onnx_ci.stages.inputs.strategies import as_tensor_like, examples_of
from onnx_ci.stages.model.live_model import dtype_name, recipe_error

Sizes = Mapping[str, int]
Edges = Iterator[tuple[str, torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class _Known:
    """What is known about one input."""

    domain: Domain
    inferred_from: str | None
    """Why it has this domain; ``None`` if the recipe declares it."""
    is_drawn: bool
    """Whether random values come from the domain; otherwise they are like the example's."""


class InputDomains:
    """The domains of a recipe's inputs: those that it declares, and those that can be inferred.

    Args:
        declared: the domains by name.
        names: the inputs' names, by position.
        axes: the names of axes, by the input's name and the axis.
        example: the recipe's example.
        own_names: what the model itself calls its inputs, by position, where ``names`` has no names for them.
        lookups: what the model looks up in embeddings on the example.

    Raises:
        PrepareError: a domain is declared for an unknown input, or the example is outside of it.
    """

    def __init__(
        self,
        declared: Mapping[str, Domain],
        names: Sequence[str | None],
        axes: Mapping[str, Mapping[int, str]],
        example: Sequence[torch.Tensor],
        own_names: Sequence[str | None] = (),
        lookups: Sequence[Lookup] = (),
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
        self._names = [name or own for name, own in itertools.zip_longest(names, own_names)]
        self._example = example
        self._known = {
            index: _Known(domain=each.domain, inferred_from=each.reason, is_drawn=each.is_drawn)
            for index, each in inferred_domains(self._names, example, axes, lookups).items()
        }
        self._add_declared(declared, names)

    def _add_declared(self, declared: Mapping[str, Domain], names: Sequence[str | None]) -> None:
        known = [name for name in names if name]
        for name, domain in declared.items():
            if name not in known:
                message = f"inputs names {name!r}, which is not an input{did_you_mean(name, known)}"
                raise recipe_error(message, f"The inputs are {', '.join(known) or 'without names: declare input_names'}.")
            if isinstance(domain, Lengths) and domain.of not in (sizes := self._sizes(self._example)):
                nearest = did_you_mean(domain.of, sizes)
                message = f"inputs[{name!r}] has the lengths of {domain.of!r}, which is not an axis{nearest}"
                raise recipe_error(message, f"The axes are {', '.join(sizes)}.")
            index = names.index(name)
            self._known[index] = _Known(domain=domain, inferred_from=None, is_drawn=True)
            if not isinstance(domain, Drawn) and not self.allows(index, self._example):
                message = f"the example's {name!r} is outside of its declared domain"
                raise recipe_error(message, "Correct the example, or the domain in the recipe's inputs.")

    def __contains__(self, index: object) -> bool:
        return index in self._known

    def items(self) -> Iterator[tuple[int, Domain]]:
        """The domains by position."""
        for index, known in self._known.items():
            yield index, known.domain

    def is_declared(self, index: int) -> bool:
        """Whether the recipe declares the domain of an input."""
        return index in self._known and self._known[index].inferred_from is None

    def described(self) -> tuple[InputDomain, ...]:
        """What the inputs are and which values they can have, for people."""
        return tuple(self._described(index, tensor) for index, tensor in enumerate(self._example))

    def _described(self, index: int, tensor: torch.Tensor) -> InputDomain:
        known = self._known.get(index)
        return InputDomain(
            name=self._names[index] or str(index),
            dtype=dtype_name(tensor),
            shape=tuple(tensor.shape),
            domain=str(known.domain) if known and known.is_drawn else None,
            reason="declared" if self.is_declared(index) else known.inferred_from if known else None,
        )

    def drawn(self, inputs: Sequence[torch.Tensor], seed: int, *, only_declared: bool = False) -> dict[int, torch.Tensor]:
        """New values of the inputs whose domain is known, by position, in the shapes of ``inputs``.

        Raises:
            PrepareError: the recipe's function that draws them fails.
        """
        sizes = self._sizes(inputs)
        generator = torch.Generator().manual_seed(seed)
        return {
            index: self._drawn(index, inputs[index], sizes, generator)
            for index, known in self._known.items()
            if known.is_drawn and (self.is_declared(index) or not only_declared)
        }

    def _drawn(self, index: int, like: torch.Tensor, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
        domain = self._known[index].domain
        if not isinstance(domain, Drawn):
            return draw(domain, like, sizes, generator).to(like.dtype)
        made = self._made(index, domain, like, sizes, generator, count=_EXAMPLES)
        if made is None:
            return like
        return made[int(torch.randint(0, len(made), (), generator=generator))]

    def _made(
        self, index: int, domain: Drawn, like: torch.Tensor, sizes: Sizes, generator: torch.Generator, *, count: int
    ) -> list[torch.Tensor] | None:
        """What the recipe's function draws, or up to ``count`` examples of a strategy; ``None`` if these have other sizes."""
        name = self._names[index]
        remedy = "Make the function return a tensor for every size of the dynamic axes: (sizes, generator) -> tensor."
        try:
            drawn = domain.draw(sizes, generator)
            is_strategy = isinstance(drawn, Strategy)
            made = examples_of(drawn, count, seed=generator.initial_seed()) if is_strategy else [drawn]
            made = [as_tensor_like(each, like) for each in made] if is_strategy else made
        except Exception as error:  # the user's function and strategy can raise anything
            raise recipe_error(f"the function in inputs[{name!r}] fails: {describe_exception(error)}", remedy) from None
        for each in made:
            if not isinstance(each, torch.Tensor) or each.dtype != like.dtype or each.dim() != like.dim():
                shown = f"{each.dtype} of shape {list(each.shape)}" if isinstance(each, torch.Tensor) else type(each).__name__
                example = f"{like.dtype} with {like.dim()} axes"
                raise recipe_error(f"the function in inputs[{name!r}] returns {shown}, and the example is {example}", remedy)
        return None if is_strategy and any(each.shape != like.shape for each in made) else made

    def allows(self, index: int, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether an input has a value of its domain. What a function could draw is unknown."""
        domain = self._known[index].domain
        return not isinstance(domain, Drawn) and contains(domain, inputs[index], self._sizes(inputs))

    def legal(self, changed: Sequence[torch.Tensor], example: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """``changed``, with the example's values of inputs that would leave their domain."""
        return [
            example[index] if index in self._known and not self.allows(index, changed) else tensor
            for index, tensor in enumerate(changed)
        ]

    def edges(self, example: Sequence[torch.Tensor]) -> Iterator[tuple[str, list[torch.Tensor]]]:
        """Inputs at the borders of each declared domain, one input at a time, with a name."""
        sizes = self._sizes(example)
        for index, domain in self.items():
            for word, tensor in self._edges(index, domain, example[index], sizes) if self.is_declared(index) else ():
                yield f"{self._names[index]} {word}", [tensor.to(t.dtype) if i == index else t for i, t in enumerate(example)]

    def _edges(self, index: int, domain: Domain, like: torch.Tensor, sizes: Sizes) -> Edges:
        if not isinstance(domain, Drawn):
            yield from edges(domain, like, sizes)
        elif made := self._made(index, domain, like, sizes, torch.Generator().manual_seed(0), count=_EXAMPLES):
            for number, tensor in enumerate(made if len(made) > 1 else ()):
                yield f"example {number + 1}", tensor

    def _sizes(self, inputs: Sequence[torch.Tensor]) -> Sizes:
        variables = solve((size, inputs[index].shape[axis]) for size, (index, axis) in self._axes)
        return {**variables, **{label: inputs[index].shape[axis] for label, (index, axis) in self._places.items()}}


_EXAMPLES = 8
"""How many values are drawn from a strategy, whose first ones are its simplest."""

UNKNOWN = InputDomains({}, (), {}, ())
"""The domains of inputs about which nothing is known."""


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
    return _ranks(_random(like, generator)) if like.dim() else torch.zeros(())


def _ranks(values: torch.Tensor) -> torch.Tensor:
    return values.argsort(-1).argsort(-1)


@draw.register
def _(domain: Mask, like: torch.Tensor, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    keys = _random(like, generator)
    if like.dim() and like.shape[-1] and domain.starts_with is not None:
        keys[..., 0] = 0.0 if domain.starts_with else 1.0
    return _mask(domain, keys)


def _mask(domain: Mask, keys: torch.Tensor) -> torch.Tensor:
    """A mask that is true where ``keys`` are below a half, and where fewer must be true or false, at the least or largest."""
    ranks, length = (_ranks(keys), keys.shape[-1]) if keys.dim() else (torch.zeros(()), 1)
    return (ranks < domain.min_true) | ((keys < 0.5) & (ranks < length - domain.min_false))


@contains.register
def _(domain: Mask, tensor: torch.Tensor, sizes: Sizes) -> bool:
    is_true = tensor != 0
    if not bool((tensor == is_true).all()):
        return False
    if not tensor.dim() or not tensor.numel():
        return True
    true, length = is_true.sum(-1), tensor.shape[-1]
    is_enough = (true >= min(domain.min_true, length)) & (length - true >= min(domain.min_false, length))
    return bool(is_enough.all()) and (domain.starts_with is None or bool((is_true[..., 0] == domain.starts_with).all()))


@edges.register
def _(domain: Mask, like: torch.Tensor, sizes: Sizes) -> Edges:
    position, length = _rank_in_row(like), like.shape[-1] if like.dim() else 1
    for word, mask in (
        ("all true", torch.ones_like(like)),
        ("true at the beginning", position < domain.min_true),
        ("true at the end", position >= length - domain.min_true),
        ("false at the beginning", position >= domain.min_false),
        ("false at the end", position < length - domain.min_false),
    ):
        if contains(domain, mask, sizes):
            yield word, mask


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


@draw.register
def _(domain: Unchanged, like: torch.Tensor, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    return like


@contains.register
def _(domain: Unchanged, tensor: torch.Tensor, sizes: Sizes) -> bool:
    return False  # a change is not tried
