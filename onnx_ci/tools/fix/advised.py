"""What a remedy says to "write A in place of B", with the names and numbers of a line of code in A.

The names in B stand for any expressions, and its numbers for any, too, such as an axis. As every rewrite, that is a guess
by the form of the code alone, which is tried.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Collection, Iterator

ADVICE = re.compile(r"\b[Ww]rite (.+?) in place of (.+?)(?:, or |, where |, which |[.:](?: |$))")
"""Finds A and B in a remedy."""

_Bound = dict[str, ast.expr]
"""What the names and the numbers of B are in the code, by their text in B."""


def advised(code: ast.AST, remedy: str, modules: Collection[str]) -> Iterator[tuple[ast.AST, str]]:
    """Parts of the code, each with what a remedy says to write in its place.

    Where the numbers of the code are others than those of the remedy, they first stand in the place of these, and then not: an
    axis can be counted from the other end. ``modules`` are the names that the code has for modules, such as ``F``.
    """
    advice = ADVICE.search(remedy)
    if advice is None:
        return
    try:
        better, worse = (ast.parse(text, mode="eval").body for text in advice.groups())
    except SyntaxError:  # not code
        return
    for node in ast.walk(code):
        name, part = _assigned(node, worse)
        bound: _Bound = {}
        if not isinstance(part, ast.expr) or not _matches(worse, part, bound, modules):
            continue
        names = {key: value for key, value in bound.items() if key.isidentifier()}
        for substituted in (bound, names) if bound != names else (bound,):
            expression = ast.unparse(_Substitution(substituted).visit(copy.deepcopy(better)))
            yield (node, f"{name} = {expression}" if name else expression)


def _assigned(node: ast.AST, worse: ast.expr) -> tuple[str, ast.AST]:
    """The name to which a part of the code gives what the remedy is about: ``a, _ = f(x)`` gives ``f(x).values`` to ``a``."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=name), ast.Name(id="_")])], value=value) if _is_first(worse):
            return name, ast.Attribute(value=value, attr="values", ctx=ast.Load())
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) as call) if method[-1] == "_":
            return name, call
    return "", node


def _is_first(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "values"


class _Substitution(ast.NodeTransformer):
    """Puts what was found into the place of names and numbers."""

    def __init__(self, bound: _Bound) -> None:
        self._bound = bound

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.expr) and (found := self._bound.get(ast.unparse(node))) is not None:
            return copy.deepcopy(found)
        match super().generic_visit(node):
            case ast.BinOp(left=ast.Constant(value=int() as low), op=ast.Sub(), right=ast.Constant(value=int() as less)):
                return ast.Constant(value=low - less)
            case (
                ast.BinOp(left=ast.Constant(value=0), op=ast.Add(), right=simple)
                | ast.BinOp(left=ast.Constant(value=1), op=ast.Mult(), right=simple)
                | ast.BinOp(left=simple, op=ast.Sub(), right=ast.Constant(value=0))
            ):
                return simple
            case other:
                return other


def _matches(worse: ast.AST, code: ast.AST, bound: _Bound, modules: Collection[str]) -> bool:
    """Whether code has the form of B; what its names and numbers are is added to ``bound``."""
    match worse, code:
        case ast.Name() | ast.Constant(value=int()) | ast.UnaryOp(operand=ast.Constant()), ast.expr() as found:
            return ast.dump(bound.setdefault(ast.unparse(worse), found)) == ast.dump(found)
        case ast.Attribute(value=one, attr="values"), ast.Subscript(value=other, slice=ast.Constant(value=0)):
            return _matches(one, other, bound, modules)
        case ast.Call(), ast.Call():
            (name, first), (called, second) = _called(worse, {"torch"}), _called(code, modules)
            fits = name == called and len(first) == len(second)
            return fits and all(_matches(one, two, bound, modules) for one, two in zip(first, second, strict=True))
    children = [*ast.iter_child_nodes(worse)], [*ast.iter_child_nodes(code)]
    fits = type(worse) is type(code) and _leaves(worse) == _leaves(code) and len(children[0]) == len(children[1])
    return fits and all(_matches(one, two, bound, modules) for one, two in zip(*children, strict=True))


def _leaves(node: ast.AST) -> list[object]:
    return [value for _, value in ast.iter_fields(node) if not isinstance(value, (ast.AST, list))]


def _called(call: ast.Call, modules: Collection[str]) -> tuple[str, list[ast.expr]]:
    """What is called, and with what: ``torch.f(x, dim=1)`` like ``x.f(1)``."""
    arguments = [*call.args, *(each.value for each in call.keywords)]
    if not isinstance(call.func, ast.Attribute):
        return ast.unparse(call.func), arguments
    root: ast.AST = call.func
    while isinstance(root, ast.Attribute):
        root = root.value
    is_function = isinstance(root, ast.Name) and root.id in modules
    return call.func.attr, arguments if is_function else [call.func.value, *arguments]
