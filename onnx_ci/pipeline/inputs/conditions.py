"""The source code of a branch: how messages name its condition, and whether one of its sides only checks the input."""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What the code decides at one place."""

    path: Path
    line: int
    lines: range
    """The lines of the expression."""
    function: range
    """The lines of the function that decides."""
    text: str
    """The source text of the expression; empty if the source is not known."""
    is_test: bool
    """Whether the expression itself is true or false; ``a > b or c > d`` and ``min(a, b)`` decide more than that."""
    is_call: bool
    """Whether a called function decides, such as ``min``."""
    is_check: bool
    """Whether one side only raises, asserts or warns, so that every accepted input takes the other one."""


def condition_at(code: CodeType, offset: int) -> Condition:
    """What the instruction at ``offset`` of ``code`` decides."""
    first, last, *_ = list(code.co_positions())[offset // 2]
    nodes, (source, _) = _nodes_at(code, offset), _parsed(code.co_filename)
    expressions = [node for node in nodes if isinstance(node, ast.expr)]
    # Python does not say reliably which operand of and/or decides.
    and_or = next((node for node in expressions if isinstance(node, ast.BoolOp)), None)
    expression = and_or or next(reversed(expressions), None)
    while isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.Not):
        expression = expression.operand  # what is decided is whether that is true
    end_line = (last or first) if expression is None else expression.end_lineno
    function_lines = [line for _, _, line in code.co_lines() if line] or [code.co_firstlineno]
    return Condition(
        path=Path(code.co_filename),
        line=expression.lineno if expression is not None else first or code.co_firstlineno,
        lines=range(expression.lineno if expression is not None else first or 0, (end_line or 0) + 1),
        function=range(min(function_lines), max(function_lines) + 1),
        text="" if expression is None else " ".join((ast.get_source_segment(source, expression) or "").split()),
        is_test=isinstance(expression, (ast.Compare, ast.UnaryOp)),
        is_call=isinstance(expression, ast.Call),
        is_check=any(map(_is_check, nodes, nodes[1:])),
    )


def is_caught(code: CodeType, offset: int) -> bool:
    """Whether an exception that the instruction at ``offset`` raises is caught in the same function, and not raised again."""
    nodes = _nodes_at(code, offset)
    tries = (outer for outer, inner in itertools.pairwise(nodes) if isinstance(outer, ast.Try) and inner in outer.body)
    return any(not isinstance(handler.body[-1], ast.Raise) for each in tries for handler in each.handlers)


def is_reported(code: CodeType, offset: int) -> bool:
    """Whether what the instruction at ``offset`` computes is for the text of an exception, or for a function that reports."""
    nodes = _nodes_at(code, offset)
    return any(
        isinstance(node, (ast.Raise, ast.Assert)) or (isinstance(node, ast.Call) and _name(node.func) in _REPORTS)
        for node in nodes
    )


def _nodes_at(code: CodeType, offset: int) -> Sequence[ast.AST]:
    """The nodes of the syntax tree that contain the instruction at ``offset``, outermost first; none if they are not known."""
    first, last, start, end = list(code.co_positions())[offset // 2]
    if first is None or last is None or start is None or end is None:
        return ()

    def contains(node: Any) -> bool:
        if None in (node.lineno, node.end_lineno):
            return False
        return (node.lineno, node.col_offset) <= (first, start) and (last, end) <= (node.end_lineno, node.end_col_offset)

    nodes: list[ast.AST] = []
    _, node = _parsed(code.co_filename)
    while node is not None:
        nodes.append(node)
        node = next((child for child in _spanned(node) if contains(child)), None)
    # The jump of a whole statement, or of `a if test else b`, tests its condition.
    test = getattr(nodes[-1], "test", None) if nodes else None
    return nodes if test is None else [*nodes, test]


def _spanned(node: ast.AST) -> Iterator[ast.AST]:
    """The nearest nodes below ``node`` that have a place in the source; the likes of ``ast.arguments`` have none."""
    for child in ast.iter_child_nodes(node):
        if hasattr(child, "lineno"):
            yield child
        else:
            yield from _spanned(child)


@functools.lru_cache(maxsize=32)
def _parsed(filename: str) -> tuple[str, ast.AST | None]:
    source = "".join(linecache.getlines(filename))
    try:
        return source, ast.parse(source)
    except (SyntaxError, ValueError):
        return source, None


def _is_check(outer: ast.AST, inner: ast.AST) -> bool:
    """Whether the statement or call ``outer`` only checks what its child ``inner`` decides."""
    match outer:
        case ast.Assert():
            return True
        case ast.Call(func=function):
            return _name(function).startswith(("_assert", "_check"))
        case ast.If(test=test, body=body, orelse=orelse) if test is inner:
            return _is_harmless(body) or (bool(orelse) and _is_harmless(orelse))
    # After a branch that returns, what follows is the other side.
    for block in (getattr(outer, name, None) for name in ("body", "orelse")):
        if isinstance(inner, ast.If) and isinstance(block, list) and inner in block:
            following = block[block.index(inner) + 1 :]
            return isinstance(inner.body[-1], ast.Return) and not inner.orelse and bool(following) and _is_harmless(following)
    return False


_REPORTS = frozenset(
    {"critical", "debug", "error", "exception", "info", "log", "print", "warn", "warn_once", "warning", "warning_once"}
)
"""Functions that only tell a person something."""


def _is_harmless(statements: Sequence[ast.stmt]) -> bool:
    """Whether statements compute nothing that reaches the outputs: they raise, assert, or report."""
    if isinstance(statements[-1], ast.Raise):
        return all(not isinstance(node, ast.Return) for statement in statements for node in ast.walk(statement))
    return all(map(_is_report, statements))


def _is_report(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Assert() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=function)):
            return _name(function) in _REPORTS or _name(function).startswith(("_assert", "_check"))
    return False


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
