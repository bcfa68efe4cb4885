"""What a remedy says to "write A in place of B", with the names and numbers of a line of code in A.

The names in B stand for any expressions, and its numbers for any, too, such as an axis. As every rewrite, that is a guess
by the form of the code alone, which is tried.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Collection, Iterator

_ADVICE = re.compile(r"\b[Ww]rite (.+?) in place of (.+?)(?:, or |, where |[.:](?: |$))")

_Bound = dict[str, ast.expr]
"""What the names and the numbers of B are in the code, by their text in B."""


def advised(code: ast.AST, remedy: str, modules: Collection[str]) -> Iterator[tuple[ast.AST, str]]:
    """Parts of the code, each with what a remedy says to write in its place.

    Where the numbers of the code are others than those of the remedy, they first stand in the place of these, and then not: an
    axis can be counted from the other end. ``modules`` are the names that the code has for modules, such as ``F``.
    """
    advice = _ADVICE.search(remedy)
    if advice is None:
        return
    try:
        better, worse = (ast.parse(text, mode="eval").body for text in advice.groups())
    except SyntaxError:  # not code
        return
    for node in ast.walk(code):
        place, part = _unpacked(node, worse)
        bound: _Bound = {}
        if not isinstance(part, ast.expr) or not _matches(worse, part, bound, modules):
            continue
        names = {name: value for name, value in bound.items() if name.isidentifier()}
        for substituted in (bound, names) if bound != names else (bound,):
            expression = ast.unparse(_Substitution(substituted).visit(copy.deepcopy(better)))
            yield (node, f"{place} = {expression}" if place else expression)


def _unpacked(node: ast.AST, worse: ast.expr) -> tuple[str, ast.AST]:
    """``a, _ = f(x)`` as ``a`` and ``f(x).values``, where the remedy is about ``f(x).values``."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=name), ast.Name(id="_")])], value=value) if _is_first(worse):
            return name, ast.Attribute(value=value, attr="values")
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
        return super().generic_visit(node)


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
        case ast.Attribute(value=one, attr=attribute), ast.Attribute(value=other, attr=same) if attribute == same:
            return _matches(one, other, bound, modules)
        case ast.BinOp() as one, ast.BinOp() as other if type(one.op) is type(other.op):
            return _matches(one.left, other.left, bound, modules) and _matches(one.right, other.right, bound, modules)
    return ast.dump(worse) == ast.dump(code)


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
