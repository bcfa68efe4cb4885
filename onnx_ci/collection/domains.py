"""The values that an input of a model can have: ``inputs={"mask": onnx_ci.mask(min_true=1)}``.

What is known about an input is data, whether a recipe declares it or :mod:`onnx_ci.pipeline.domains.inferred_domains` infers
it. In :mod:`onnx_ci.pipeline.domains.domain_values`, one function draws the values of any domain, one recognizes them, and one
gives the values at its borders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from onnx_ci.errors import RecipeError

BoxFormat = Literal["xyxy", "xywh", "cxcywh"]
Draw = Callable[[Mapping[str, int], Any], Any]
"""A function of the sizes of the dynamic axes by name, and a ``torch.Generator``. It returns a tensor, or a strategy."""


@runtime_checkable
class Strategy(Protocol):
    """A strategy of Hypothesis, which need not be installed."""

    def example(self) -> Any:
        """One of its values."""

    def flatmap(self, expand: Any, /) -> Any:
        """Another strategy, made from values of this one."""


@dataclass(frozen=True, kw_only=True)
class Domain:
    """The values that an input can have. Created by functions such as :func:`floats`, :func:`integers` and :func:`mask`.

    As a string, it is what a recipe declares: ``mask(min_true=2)``.
    """

    text: ClassVar[str]
    """The format of that string, of the fields."""

    def __str__(self) -> str:
        return self.text.format(**vars(self))


@dataclass(frozen=True, kw_only=True)
class Floats(Domain):
    """Numbers from ``low`` to ``high``."""

    text = "floats({low:g}, {high:g})"
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Integers(Domain):
    """Integers from ``low`` to below ``high``; with ``ascending``, sorted along the last axis."""

    low: int
    high: int
    ascending: bool

    def __str__(self) -> str:
        return f"integers({self.low}, {self.high}{', ascending=True' if self.ascending else ''})"


@dataclass(frozen=True, kw_only=True)
class Mask(Domain):
    """True and false, or one and zero; the fields are about rows along the last axis. See :func:`mask`."""

    min_true: int = 1
    min_false: int = 0
    starts_with: bool | None = None

    def __str__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self) if getattr(self, field.name) != field.default}
        return f"mask({', '.join(f'{name}={value}' for name, value in values.items())})"


@dataclass(frozen=True, kw_only=True)
class OneOf(Domain):
    """Some numbers."""

    values: tuple[float, ...]

    def __str__(self) -> str:
        return f"one_of({', '.join(f'{number:g}' for number in self.values)})"


@dataclass(frozen=True, kw_only=True)
class Lengths(Domain):
    """Lengths of rows: integers from 1 to the size of the axis ``of``. One row is that long."""

    text = 'lengths(of="{of}")'
    of: str


@dataclass(frozen=True, kw_only=True)
class Permutations(Domain):
    """The positions along the last axis, each once."""

    text = "permutation()"


@dataclass(frozen=True, kw_only=True)
class OneHot(Domain):
    """A single one among zeros in each row along the last axis."""

    text = "one_hot()"


@dataclass(frozen=True, kw_only=True)
class Boxes(Domain):
    """Boxes within a picture: four numbers along the last axis. The first corner is never beyond the second one."""

    text = 'boxes("{format}", within=({within[0]:g}, {within[1]:g}))'
    format: BoxFormat
    within: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Drawn(Domain):
    """The values that a function draws."""

    text = "a function"
    draw: Draw


@dataclass(frozen=True, kw_only=True)
class Segments(Domain):
    """Numbers of segments along the last axis, such as of each node's graph: from 0, ascending, without gaps. Inferred only."""

    text = "segment numbers"


@dataclass(frozen=True, kw_only=True)
class Unchanged(Domain):
    """The example's values only, repeated for other sizes. Inferred where other values would hardly be legal."""

    text = "the example's values"


def floats(low: float, high: float) -> Domain:
    """Numbers from ``low`` to ``high``, of the example's data type.

    Raises:
        RecipeError: they are not finite numbers in this order.
    """
    if not all(isinstance(bound, int | float) and math.isfinite(bound) for bound in (low, high)) or not low < high:
        raise RecipeError(f"floats takes two finite numbers, the lower one first, not {low!r} and {high!r}")
    return Floats(low=low, high=high)


def integers(low: int, high: int, *, ascending: bool = False) -> Domain:
    """Integers from ``low`` to below ``high``, such as ``integers(0, vocabulary_size)``.

    Args:
        low: the lowest integer.
        high: the first integer that is too high.
        ascending: whether they are sorted along the last axis.

    Raises:
        RecipeError: they are not integers in this order.
    """
    if not all(isinstance(bound, int) for bound in (low, high)) or not low < high:
        raise RecipeError(f"integers takes two integers, the lower one first, not {low!r} and {high!r}")
    return Integers(low=low, high=high, ascending=ascending)


def mask(*, min_true: int = 1, min_false: int = 0, starts_with: bool | None = None) -> Domain:
    """True and false, or one and zero in the data type of the example.

    Args:
        min_true: the least number of true values in each row along the last axis.
        min_false: the least number of false values in each row, such as 1 where true hides a token.
        starts_with: the first value of each row, if it is always the same. A model in which a token sees only those before it
            needs ``starts_with=True``, because otherwise the first token of some row sees nothing.

    Raises:
        RecipeError: ``min_true`` or ``min_false`` is not a number of values, or ``starts_with`` not a boolean.
    """
    for name, count in (("min_true", min_true), ("min_false", min_false)):
        if not isinstance(count, int) or count < 0:
            raise RecipeError(f"mask: {name} must be an integer of at least 0, not {count!r}")
    if starts_with not in (None, True, False):
        raise RecipeError(f"mask: starts_with must be True or False, not {starts_with!r}")
    return Mask(min_true=min_true, min_false=min_false, starts_with=starts_with)


def one_of(*values: float) -> Domain:
    """Each element is one of these numbers.

    Raises:
        RecipeError: there are none, or one is not a number.
    """
    if not values or not all(isinstance(number, int | float) for number in values):
        raise RecipeError(f"one_of takes at least one number, such as one_of(1, 2, 4), not {values!r}")
    return OneOf(values=values)


def lengths(*, of: str) -> Domain:
    """Lengths of rows, such as ``lengths(of="frames")``: integers from 1 to the size of a dynamic axis. One row is that long.

    Args:
        of: the name of the axis; of one without a name, ``"input[axis]"``.
    """
    return Lengths(of=of)


def permutation() -> Domain:
    """The positions along the last axis, each once, as ``torch.randperm`` draws them."""
    return Permutations()


def one_hot() -> Domain:
    """A single one among zeros in each row along the last axis."""
    return OneHot()


def boxes(format: BoxFormat, *, within: tuple[float, float] = (1.0, 1.0)) -> Domain:
    """Boxes along the last axis, which has four numbers.

    Args:
        format: what the numbers are: ``xyxy`` two corners, ``xywh`` a corner and the size, ``cxcywh`` the centre and the size.
        within: the width and height of the picture, in the unit of the boxes.

    Raises:
        RecipeError: the format is unknown, or the picture has no size.
    """
    if format not in ("xyxy", "xywh", "cxcywh"):
        raise RecipeError(f"boxes takes the format xyxy, xywh or cxcywh, not {format!r}")
    if len(within) != 2 or not all(size > 0 for size in within):
        raise RecipeError(f"boxes: within must be the width and height of the picture, not {within!r}")
    return Boxes(format=format, within=within)


def domain_of(name: str, value: Any) -> Domain:
    """The domain that a recipe declares: a :class:`Domain`, a function that draws, or a strategy. Raises ``RecipeError``."""
    if isinstance(value, Domain):
        return value
    if isinstance(value, Strategy):
        return Drawn(draw=lambda sizes, generator: value)
    if callable(value):
        return Drawn(draw=value)
    raise RecipeError(
        f"inputs[{name!r}] must be a domain, such as onnx_ci.mask(), a function of the sizes and a generator, or a strategy of "
        f"Hypothesis, not {value!r}"
    )
