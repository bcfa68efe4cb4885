"""Numbers that report what they are compared with. A model gets them in place of the sizes and values of its tensors.

Python does not ask an integer on the right of a float, so ``0.5 * x.shape[0]`` is a plain number.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree


class Listener(Protocol):
    """What tracked numbers report to."""

    def compared(self, outcome: bool, gap: float, *, by_sizes: bool) -> None:
        """A number was compared, or tested for being zero.

        Args:
            gap: the left minus the right side.
            by_sizes: whether the numbers depend on sizes alone, not on the values of tensors.
        """

    def converted(self) -> None:
        """A number was converted by ``int`` or ``float``, so that the result is not tracked."""


_listener: Listener | None = None
"""That of the current run. Numbers can outlive the run that made them, and then report nothing."""


@contextlib.contextmanager
def reporting_to(listener: Listener) -> Iterator[None]:
    """Let tracked numbers report to ``listener``."""
    global _listener
    _listener = listener
    try:
        yield
    finally:
        _listener = None


# --- the numbers ------------------------------------------------------------------------------------------------------


class _Tracked:
    """A number that depends on sizes or values. What is computed from it is tracked, too."""

    by_sizes = True
    plain: Any
    """The number itself."""

    def __bool__(self) -> bool:
        return _reported(bool(self.plain), float(self.plain), self)

    def __int__(self) -> int:
        _report_conversion()
        return int(self.plain)

    def __float__(self) -> float:
        _report_conversion()
        return float(self.plain)


class TrackedInt(_Tracked, int):
    """An integer."""

    plain = property(int.__pos__)
    __hash__ = int.__hash__


class TrackedFloat(_Tracked, float):
    """A floating-point number."""

    plain = property(float.__pos__)
    __hash__ = float.__hash__


_TRACKED_CLASSES: Mapping[type, Callable[[Any], _Tracked]] = {int: TrackedInt, float: TrackedFloat}


def tracked(value: Any, *, by_sizes: bool) -> Any:
    """``value``, tracked if it is an int or a float; a bool is not."""
    tracked_class = _TRACKED_CLASSES.get(type(value))
    if tracked_class is None:
        return value
    number = tracked_class(value)
    number.by_sizes = by_sizes
    return number


def _reported(outcome: bool, gap: float, *operands: Any) -> bool:
    if _listener is not None:
        _listener.compared(outcome, gap, by_sizes=_are_sizes(operands))
    return outcome


def _report_conversion() -> None:
    if _listener is not None:
        _listener.converted()


def _are_sizes(operands: Collection[Any]) -> bool:
    """Whether those of the operands that are tracked depend on sizes alone."""
    return all(operand.by_sizes for operand in operands if isinstance(operand, _Tracked))


def _plain(value: Any) -> Any:
    """A Python number without its tracking; ``None`` for anything else, which has operators of its own for numbers."""
    if isinstance(value, _Tracked):
        return value.plain
    return value if type(value) in (int, float, bool) else None


def _comparison(compare: Callable[[Any, Any], bool]) -> Callable[[_Tracked, Any], Any]:
    def method(self: _Tracked, right: Any) -> Any:
        number = _plain(right)
        if number is None:
            return NotImplemented
        return _reported(compare(self.plain, number), self.plain - number, self, right)

    return method


def _arithmetic(compute: Callable[..., Any], *, is_reflected: bool = False) -> Callable[..., Any]:
    def method(self: _Tracked, *operands: Any) -> Any:
        numbers = [_plain(operand) for operand in operands]
        if None in numbers:
            return NotImplemented
        by_sizes = _are_sizes([self, *operands])
        result = compute(*numbers, self.plain) if is_reflected else compute(self.plain, *numbers)
        return pytree.tree_map(lambda value: tracked(value, by_sizes=by_sizes), result)

    return method


for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    for _class in (TrackedInt, TrackedFloat):  # whose bases define comparisons, and are asked before their common base
        setattr(_class, f"__{_name}__", _comparison(getattr(operator, _name)))
for _name, _operation in {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow")},
    "divmod": divmod,
}.items():
    setattr(_Tracked, f"__{_name}__", _arithmetic(_operation))
    setattr(_Tracked, f"__r{_name}__", _arithmetic(_operation, is_reflected=True))
for _name, _operation in {
    **{name: getattr(operator, name) for name in ("neg", "pos", "abs")},
    **{name: getattr(math, name) for name in ("floor", "ceil", "trunc")},
    "round": round,
}.items():
    setattr(_Tracked, f"__{_name}__", _arithmetic(_operation))


# --- conversions ------------------------------------------------------------------------------------------------------

# ``int``, ``float`` and ``len`` return plain numbers whatever their arguments return. Where a model's code calls them, it gets
# these instead.


class _Like(type):
    """The class of a class that looks like another one in ``isinstance``."""

    original: type

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.original)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.original)


def _converting_class(original: type) -> type:
    def convert(_class: type, *args: Any, **keywords: Any) -> Any:
        value, source = original(*args, **keywords), args[0] if args else None
        if isinstance(source, _Tracked):
            return tracked(value, by_sizes=source.by_sizes)
        return tracked(value, by_sizes=False) if isinstance(source, torch.Tensor) else value

    return _Like(original.__name__, (), {"__new__": convert, "original": original})


def _tracked_len(value: Any) -> int:
    return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else len(value)


_CONVERSIONS = {"int": _converting_class(int), "float": _converting_class(float), "len": _tracked_len}


@contextlib.contextmanager
def tracked_conversions(namespaces: Collection[dict[str, Any]]) -> Iterator[None]:
    """Let ``int``, ``float`` and ``len`` in these namespaces return tracked numbers for tracked numbers and tensors."""
    added = [
        (namespace, name, replacement)
        for namespace in namespaces
        for name, replacement in _CONVERSIONS.items()
        if name not in namespace
    ]
    for namespace, name, replacement in added:
        namespace[name] = replacement
    try:
        yield
    finally:
        for namespace, name, _ in added:
            del namespace[name]
