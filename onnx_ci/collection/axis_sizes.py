"""Sizes of dynamic axes: those that follow from others, such as ``past + 1``, and those that an axis can have.

The name of an axis is a variable or an expression of variables. Only variables are moved, and an axis whose name is an
expression takes the size that follows. Everything here is integer arithmetic; which tensors have these axes is known where a
recipe is prepared. A relation that is found because the model rejects sizes is used like a declared one, and reported.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx_ci.errors import RecipeError

LONGEST = 2**31
_SAMPLE = 5
"""A size by which it is tried whether one size follows from another."""
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_EXAMPLE = "'past + 1'"
_HYPHENATED = re.compile(r"[^\W\d]\w*(-[^\W\d]\w*)+")
"""Words joined by hyphens without spaces, such as ``batch-size``."""


# --- one size ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AxisSize:
    """The size of an axis: a variable, or integer arithmetic on variables. Created by :func:`axis_size`."""

    text: str
    """The name of the axis, as it is declared and written into files."""
    names: tuple[str, ...]
    """The variables, in the order in which they occur. A plain name is a variable itself."""
    _node: ast.expr = field(repr=False, compare=False)

    @property
    def is_name(self) -> bool:
        """Whether it is a variable by itself."""
        return isinstance(self._node, ast.Name)

    def at(self, sizes: Mapping[str, int]) -> int | None:
        """The size for sizes of all variables; ``None`` if it divides by zero there."""
        try:
            return _value(self._node, sizes)
        except ZeroDivisionError:
            return None

    def solved_for(self, name: str, size: int, others: Mapping[str, int]) -> int | None:
        """The size of a variable that follows if this axis has ``size`` and is linear in it; else ``None``."""
        at_0, at_1, at_2 = (self.at({**others, name: value}) for value in range(3))
        if at_0 is None or at_1 is None or at_2 is None or at_1 == at_0 or at_2 - at_1 != at_1 - at_0:
            return None
        value, rest = divmod(size - at_0, at_1 - at_0)
        return value if value >= 0 and not rest and self.at({**others, name: value}) == size else None

    def determines(self, name: str, others: Mapping[str, int]) -> bool:
        """Whether this is a linear function of one variable, so that the size of this axis determines it."""
        size = self.at({**others, name: _SAMPLE})
        return size is not None and self.solved_for(name, size, others) == _SAMPLE

    def is_same(self, size: AxisSize) -> bool:
        """Whether both are the same function of the same variables, such as ``past + 1`` and ``1 + past``."""
        samples = (
            {name: 2 + (row * (2 * place + 3) + place) % 23 for place, name in enumerate(sorted(self.names))}
            for row in range(23)
        )
        return set(self.names) == set(size.names) and all(self.at(sizes) == size.at(sizes) for sizes in samples)


def _plain(name: str) -> AxisSize:
    return AxisSize(text=name, names=(name,), _node=ast.Name(name))


def axis_size(label: str) -> AxisSize:
    """The size that the name of an axis stands for.

    A name is an expression if it is one in Python, such as ``past + 1``. Any other name is a variable, and so are words that
    hyphens join: a difference has spaces, ``total - past``.

    Raises:
        RecipeError: it is an expression of something else than names and integers with ``+``, ``-``, ``*`` and ``//``.
    """
    try:
        node = ast.parse(label.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _plain(label)
    if not isinstance(node, ast.BinOp | ast.UnaryOp) or _HYPHENATED.fullmatch(label):
        return _plain(label)
    names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
    if not names or not _is_arithmetic(node):
        raise RecipeError(
            f"the axis name {label!r} is an expression, which can only have names of axes and integers, with +, -, * and //, "
            f"such as {_EXAMPLE}"
        )
    return AxisSize(text=label, names=tuple(dict.fromkeys(names)), _node=node)


def axis_size_in(tensor: str, label: str) -> AxisSize:
    """The size that the name of an axis of ``tensor`` stands for; see :func:`axis_size`. A generated name is a variable."""
    return _plain(label) if is_generated(tensor, label) else axis_size(label)


def is_generated(tensor: str, label: str) -> bool:
    """Whether an exporter, or onnx-ci, derived the name of an axis from that of its tensor, which can have any character."""
    return label.startswith((f"{tensor}_dynamic_axes_", f"{tensor}_dim_"))


def unnamed_axes(labels: Mapping[str, Mapping[int, str]]) -> set[str]:
    """The generated names among those of axes, by input or output name: how these axes relate is left to the exporter."""
    return {label for tensor, of_tensor in labels.items() for label in of_tensor.values() if is_generated(tensor, label)}


def _is_arithmetic(node: ast.expr) -> bool:
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            return type(op) in _OPERATORS and _is_arithmetic(left) and _is_arithmetic(right)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_arithmetic(operand)
        case ast.Constant(value=value):
            return type(value) is int
    return isinstance(node, ast.Name)


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Name(id=name):
            return sizes[name]
        case ast.Constant(value=int(value)):
            return value
        case ast.UnaryOp(operand=operand):
            return -_value(operand, sizes)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, sizes), _value(right, sizes))
    raise AssertionError(ast.dump(node))


# --- several sizes ----------------------------------------------------------------------------------------------------


def solve(axes: Iterable[tuple[AxisSize, int]]) -> dict[str, int]:
    """The sizes of the variables, from the sizes of axes, in the order in which the variables occur.

    A variable that is an axis by itself has the size of the first such axis. Others follow from expressions that are linear in
    them. Variables that do not follow are left out.
    """
    pairs = list(axes)
    sizes: dict[str, int] = {}
    for axis, size in pairs:
        if axis.is_name:
            sizes.setdefault(axis.text, size)
    while _adds_solutions(pairs, sizes):
        pass
    order = dict.fromkeys(name for axis, _ in pairs for name in axis.names)
    return {name: sizes[name] for name in order if name in sizes}


def _adds_solutions(axes: Iterable[tuple[AxisSize, int]], sizes: dict[str, int]) -> bool:
    """Add each variable that is the only unknown of an axis to ``sizes``, and tell whether there was one."""
    is_solved = False
    for axis, size in axes:
        unknown = [name for name in axis.names if name not in sizes]
        if len(unknown) == 1 and (value := axis.solved_for(unknown[0], size, sizes)) is not None:
            sizes[unknown[0]] = value
            is_solved = True
    return is_solved


def axes_of_file(labels: Iterable[str]) -> dict[str, AxisSize]:
    """The sizes of the axes of a file's inputs, by name.

    Any program can have written the file. So an expression counts only if its variables are axes themselves or follow from it,
    and any other name is a variable.
    """
    sizes = {label: axis_size_of_file(label) for label in labels}
    sample = {name: _SAMPLE for axis in sizes.values() for name in axis.names}
    variables = solve((axis, size) for axis in sizes.values() if (size := axis.at(sample)) is not None).keys()
    return {label: axis if variables >= set(axis.names) else _plain(label) for label, axis in sizes.items()}


def axis_size_of_file(label: str) -> AxisSize:
    """The size that the name of an axis in a file stands for. A name that is not arithmetic on names is a variable."""
    try:
        return axis_size(label)
    except RecipeError:
        return _plain(label)


def is_same_axis(first: str, second: str) -> bool:
    """Whether two names of axes are equal, or expressions of the same size, such as ``past + 1`` and ``1 + past``."""
    return first == second or axis_size_of_file(first).is_same(axis_size_of_file(second))


# --- the sizes that an axis can have ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MultipleOf:
    """Every multiple of a number from the number itself. Created by :func:`multiple_of`."""

    number: int


DeclaredSizes = tuple[int, ...] | range | MultipleOf
"""What ``dynamic_sizes`` says about an axis: sizes to try in this order, or sizes from which onnx-ci chooses."""


def multiple_of(number: int) -> MultipleOf:
    """The multiples of ``number``, as the sizes of an axis: ``dynamic_sizes={"height": onnx_ci.multiple_of(8)}``.

    Raises:
        RecipeError: ``number`` is not an integer of at least 2.
    """
    if not isinstance(number, int) or isinstance(number, bool) or not 2 <= number < LONGEST:
        raise RecipeError(f"multiple_of takes an integer of at least 2, such as multiple_of(8), not {number!r}")
    return MultipleOf(number=number)


def sizes_of(axis: str, value: Any) -> DeclaredSizes:
    """What ``dynamic_sizes`` declares for an axis: a size, sizes, a range or multiples. Raises ``RecipeError`` for others."""
    if isinstance(value, MultipleOf):
        return value
    if isinstance(value, range):
        sizes: tuple[int, ...] | range = value if value.step > 0 else value[::-1]
        usable = len(sizes) > 0 and sizes[0] >= 1
    else:
        sizes = (value,) if isinstance(value, int) else tuple(value) if isinstance(value, Iterable) else ()
        usable = bool(sizes) and all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in sizes)
    if not usable:
        example = "(40, 56), range(32, 129, 32) or onnx_ci.multiple_of(8)"
        raise RecipeError(f"dynamic_sizes[{axis!r}] must be sizes of at least 1, such as {example}, not {value!r}")
    return sizes


def permitted(sizes: range | MultipleOf | None, lowest: int = 1, highest: int = LONGEST - 1) -> range:
    """The declared sizes from ``lowest`` to ``highest``, as a range."""
    match sizes:
        case MultipleOf(number=number):
            declared = range(number, LONGEST, number)
        case range():
            declared = sizes
        case None:
            declared = range(1, LONGEST)
    first = max(0, -((declared.start - lowest) // declared.step))
    return declared[first : max(first, (highest - declared.start) // declared.step + 1)]


def above(sizes: range, size: int, nth: int = 1) -> int:
    """The ``nth`` of the ``sizes`` above ``size``, or the largest if there are fewer."""
    return sizes[min(max((size - sizes.start) // sizes.step + nth, 0), len(sizes) - 1)]


def below(sizes: range, size: int, nth: int = 1) -> int:
    """The ``nth`` of the ``sizes`` below ``size``, or the smallest if there are fewer."""
    return sizes[min(max(-((sizes.start - size) // sizes.step) - nth, 0), len(sizes) - 1)]
