"""Numbers that report what they are compared with. A model gets them in place of the sizes and values of its tensors.

What listens to them can also answer: a comparison gives what it returns, and so does a conversion.

Python does not ask an integer on the right of a float, so ``0.5 * x.shape[0]`` is a plain number.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils import _pytree as pytree

Values = tuple[int, ...]
"""The tensors from which a number was read, as what gave it out names them."""


class Origin(NamedTuple):
    """What a number is computed from."""

    by_sizes: bool
    """Whether it depends on sizes alone, not on the values of tensors."""
    values: Values = ()
    divided: float = 0.0
    """The divided number from which it is computed: many sizes have the same quotient or remainder."""
    period: float = 0.0
    """The number by which it was divided, one time after another: 16 for ``size % 16`` and for ``size // 4 % 4``."""


class Listener(Protocol):
    """What tracked numbers report to."""

    def compared(self, outcome: bool, gap: float, origin: Origin) -> bool:
        """A number was compared, or tested for being zero: the left minus the right side. The code gets what this returns."""

    def converted(self, value: Any, function: str) -> Any:
        """A number was made plain by ``int``, ``ceil``, ``range`` or another function. The code gets what this returns."""

    def number_of(self, tensor: torch.Tensor, number: Any, *, by_sizes: bool) -> Any:
        """What code gets in place of a number of a tensor: one of its sizes or values."""

    def read_unseen(self, function: str, values: Values) -> None:
        """A number that depends on values was made a text, by which code can decide without being seen."""


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

    plain: Any
    """The number itself."""
    origin: Origin

    def __bool__(self) -> bool:
        return _reported(bool(self.plain), float(self.plain), self)

    def __int__(self) -> int:
        return int(_converted(int(self.plain), "int"))

    def __float__(self) -> float:
        return float(_converted(float(self.plain), "float"))

    def __format__(self, specification: str) -> str:
        """``f"{x.shape[1]}"``, as the keys of dictionaries are made."""
        if not self.origin.by_sizes and _listener is not None:
            _listener.read_unseen("format", self.origin.values)
        return format(_converted(self.plain, "format"), specification)

    def __str__(self) -> str:
        return format(self)


class TrackedInt(_Tracked, int):
    """An integer."""

    plain = property(int.__pos__)
    __hash__ = int.__hash__


class TrackedFloat(_Tracked, float):
    """A floating-point number."""

    plain = property(float.__pos__)
    __hash__ = float.__hash__

    def is_integer(self) -> bool:
        """Whether it is one, as code asks that pads a size to a multiple: ``(x.shape[1] / 4).is_integer()``."""
        gap = self.plain - round(self.plain) if math.isfinite(self.plain) else math.nan
        return _reported(self.plain.is_integer(), gap, self)


_TRACKED_CLASSES: Mapping[type, Callable[[Any], _Tracked]] = {int: TrackedInt, float: TrackedFloat}


def tracked(value: Any, origin: Origin) -> Any:
    """``value``, tracked if it is an int or a float; a bool is not."""
    tracked_class = _TRACKED_CLASSES.get(type(value))
    if tracked_class is None:
        return value
    number = tracked_class(value)
    number.origin = origin
    return number


def _origin(operands: Collection[Any]) -> Origin:
    """What a number is computed from that is computed from some numbers, tracked and others."""
    origins = [operand.origin for operand in operands if isinstance(operand, _Tracked)]
    return Origin(
        by_sizes=all(each.by_sizes for each in origins),
        values=tuple(dict.fromkeys(value for each in origins for value in each.values)),
        divided=sum(each.divided for each in origins),
        period=max((each.period for each in origins), default=0.0),
    )


def _reported(outcome: bool, gap: float, *operands: Any) -> bool:
    return outcome if _listener is None else _listener.compared(outcome, gap, _origin(operands))


def _converted(value: Any, function: str) -> Any:
    return value if _listener is None else _listener.converted(value, function)


def plain_number(value: Any) -> Any:
    """A Python number without its tracking; ``None`` for anything else, which has operators of its own for numbers."""
    if isinstance(value, _Tracked):
        return value.plain
    return value if type(value) in (int, float, bool) else None


def _comparison(compare: Callable[[Any, Any], bool]) -> Callable[[_Tracked, Any], Any]:
    def method(self: _Tracked, right: Any) -> Any:
        number = plain_number(right)
        if number is None:
            return NotImplemented
        return _reported(compare(self.plain, number), self.plain - number, self, right)

    return method


def _arithmetic(compute: Callable[..., Any], *, is_reflected: bool = False, is_conversion: bool = False) -> Callable[..., Any]:
    def method(self: _Tracked, *operands: Any) -> Any:
        numbers = [plain_number(operand) for operand in operands]
        if None in numbers:
            return NotImplemented
        origin = _origin([self, *operands])
        if compute in _DIVISIONS and not is_reflected:
            period = max(origin.period, 1) * abs(numbers[0])
            origin = origin._replace(divided=origin.divided + self.plain, period=period)
        result = compute(*numbers, self.plain) if is_reflected else compute(self.plain, *numbers)
        result = _converted(result, compute.__name__) if is_conversion else result
        return pytree.tree_map(lambda value: tracked(value, origin), result)

    return method


_DIVISIONS = frozenset({operator.mod, operator.floordiv, operator.truediv, divmod})
"""After these, many sizes may give the same number."""

for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    for _class in (TrackedInt, TrackedFloat):  # whose bases define comparisons, and are asked before their common base
        setattr(_class, f"__{_name}__", _comparison(getattr(operator, _name)))
for _name, _operation in {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow")},
    "divmod": divmod,
}.items():
    setattr(_Tracked, f"__{_name}__", _arithmetic(_operation))
    setattr(_Tracked, f"__r{_name}__", _arithmetic(_operation, is_reflected=True))
for _name, _operation in {name: getattr(operator, name) for name in ("neg", "pos", "abs")}.items():
    setattr(_Tracked, f"__{_name}__", _arithmetic(_operation))
for _name, _operation in {**{name: getattr(math, name) for name in ("floor", "ceil", "trunc")}, "round": round}.items():
    setattr(_Tracked, f"__{_name}__", _arithmetic(_operation, is_conversion=True))


# --- conversions ------------------------------------------------------------------------------------------------------

# ``int``, ``float``, ``len`` and ``range`` make plain numbers whatever their arguments return. Where a model's code calls them,
# it gets these instead.


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
            return tracked(value, source.origin._replace(divided=0.0))
        if isinstance(source, torch.Tensor):
            return _number_of(source, value, by_sizes=False)
        return _converted(value, original.__name__)  # ``int(0.5 * x.shape[0])`` converts a number that is not tracked

    return _Like(original.__name__, (), {"__new__": convert, "original": original})


def _number_of(tensor: torch.Tensor, number: Any, *, by_sizes: bool) -> Any:
    return number if _listener is None else _listener.number_of(tensor, number, by_sizes=by_sizes)


def _tracked_len(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim():
        return _number_of(value, len(value), by_sizes=True)  # which a mode reports as a conversion
    return len(value)


def _tracked_range(*bounds: Any) -> range:
    return range(*(_converted(each.plain, "range") if isinstance(each, _Tracked) else each for each in bounds))


_CONVERSIONS = {"int": _converting_class(int), "float": _converting_class(float), "len": _tracked_len, "range": _tracked_range}


class _ReportingFunction:
    """Stands for a function of ``math`` or numpy, which take sizes as plain numbers, and reports what it returns."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return _converted(self._function(*args, **keywords), self._function.__name__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)  # ``np.maximum.reduce``


class _ReportingModule:
    """Stands for ``math`` or numpy in a namespace."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return _ReportingFunction(value) if isinstance(value, _FUNCTIONS) else value


_FUNCTIONS = (FunctionType, BuiltinFunctionType, type(np.mean), np.ufunc)
_MODULES = (math, np)


def reported_functions(namespaces: Collection[dict[str, Any]]) -> AbstractContextManager[None]:
    """Let what these namespaces have of ``math`` and numpy report what it returns."""
    replacements: list[tuple[dict[str, Any], str, Any]] = []
    for namespace in namespaces:
        for name, value in namespace.items():
            if isinstance(value, _FUNCTIONS) and getattr(value, "__module__", None) in ("math", "numpy"):
                replacements.append((namespace, name, _ReportingFunction(value)))
            elif any(value is module for module in _MODULES):
                replacements.append((namespace, name, _ReportingModule(value)))
    return _replaced(replacements)


def tracked_conversions(namespaces: Collection[dict[str, Any]]) -> AbstractContextManager[None]:
    """Let ``int``, ``float``, ``len`` and ``range`` in these namespaces report what they make plain."""
    pairs = itertools.product(namespaces, _CONVERSIONS.items())
    return _replaced([(namespace, name, value) for namespace, (name, value) in pairs if name not in namespace])


@contextlib.contextmanager
def _replaced(replacements: Collection[tuple[dict[str, Any], str, Any]]) -> Iterator[None]:
    before = [(namespace, name, namespace.get(name)) for namespace, name, _ in replacements]
    for namespace, name, value in replacements:
        namespace[name] = value
    try:
        yield
    finally:
        for namespace, name, value in before:
            if value is None:
                del namespace[name]
            else:
                namespace[name] = value
