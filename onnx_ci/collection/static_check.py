"""Find problems in recipe files without running them: running one would import torch.

Literal arguments of a decorator are passed to :func:`onnx_ci.recipe` itself, so that they are checked as in a run. Other
arguments are left to the run.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_ci.collection.discovery import relative_source
from onnx_ci.collection.recipe import KEYWORDS, known_failure, recipe, unsupported
from onnx_ci.errors import RecipeError
from onnx_ci.results.records import Problem
from onnx_ci.results.rules import RULES

_KNOWN: Mapping[str, Callable[..., Any]] = {"recipe": recipe, "unsupported": unsupported, "known_failure": known_failure}
"""The functions to look for, under whatever names a file imports them."""


@dataclass(frozen=True, kw_only=True)
class DeclaredRecipe:
    """A recipe as a file declares it."""

    source: str
    line: int
    name: str | None
    """``None`` if it is not a literal."""
    always: bool
    """Whether it is at the top level of the file, so that every import declares it."""


class _NotLiteralError(Exception):
    """A value that is only known when the file is run."""


def lint(files: Iterable[Path], root: Path) -> tuple[list[DeclaredRecipe], list[Problem]]:
    """The recipes that files declare, and what is wrong with them, each problem at ``file:line``."""
    declared: list[DeclaredRecipe] = []
    problems: list[Problem] = []
    for file in files:
        of_file, wrong = _lint_file(file, relative_source(file, root))
        declared += of_file
        problems += wrong
    return declared, problems + list(_duplicate_names(declared))


def _lint_file(path: Path, source: str) -> tuple[list[DeclaredRecipe], list[Problem]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's warnings are left to other tools
            tree = ast.parse(path.read_bytes(), filename=source)
            compile(tree, source, "exec")
    except SyntaxError as error:
        return [], [_problem(source, error.lineno or 1, f"{type(error).__name__}: {error.msg}")]
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        return [], [_problem(source, 1, f"cannot be read: {error or type(error).__name__}")]
    names = _imported_names(tree)
    declared: list[DeclaredRecipe] = []
    problems: list[Problem] = []
    for function, decorator in _decorated(tree, names):
        name, wrong = _lint_decorator(decorator, function, names)
        declared.append(DeclaredRecipe(source=source, line=function.lineno, name=name, always=function in tree.body))
        problems += [_problem(source, line, message) for line, message in wrong]
    return declared, problems


def _problem(source: str, line: int, message: str) -> Problem:
    return Problem(source=source, message=message, file=source, line=line)


# --- names ----------------------------------------------------------------------------------------------------------


def _imported_names(tree: ast.Module) -> dict[str, str]:
    """A file's names for the package and its functions: ``{"onnx_ci": "onnx_ci", "r": "onnx_ci.recipe"}``."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.asname or each.name: each.name for each in node.names if each.name == "onnx_ci"}
        elif isinstance(node, ast.ImportFrom) and node.module == "onnx_ci" and not node.level:
            names |= {each.asname or each.name: f"onnx_ci.{each.name}" for each in node.names}
    return names


def _known_function(node: ast.expr, names: Mapping[str, str]) -> str | None:
    """Which of :data:`_KNOWN` an expression refers to."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and names.get(node.value.id) == "onnx_ci":
        return node.attr if node.attr in _KNOWN else None
    if isinstance(node, ast.Name):
        package, _, name = names.get(node.id, "").rpartition(".")
        return name if package and name in _KNOWN else None
    return None


_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _decorated(tree: ast.Module, names: Mapping[str, str]) -> list[tuple[_Function, ast.expr]]:
    """Everything that a file decorates with ``@onnx_ci.recipe``, and the decorator, from top to bottom."""
    functions = (node for node in ast.walk(tree) if isinstance(node, _Function))
    found = []
    for function in sorted(functions, key=lambda node: node.lineno):
        for decorator in function.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if _known_function(called, names) == "recipe":
                found.append((function, decorator))
    return found


# --- values ---------------------------------------------------------------------------------------------------------

_PLACEHOLDER = next(id for id, rule in RULES.items() if rule.can_be_allowed)
"""Replaces a rule or a reason that is not a literal."""


def _lint_decorator(
    decorator: ast.expr, function: _Function, names: Mapping[str, str]
) -> tuple[str | None, list[tuple[int, str]]]:
    """The recipe's name, if it is a literal, and what is wrong, keyword by keyword: lines and messages."""
    call = decorator if isinstance(decorator, ast.Call) else ast.Call(func=decorator, args=[], keywords=[])
    name: str | None = function.name
    known: dict[str, Any] = {}
    wrong: list[tuple[int, str]] = []
    for keyword in call.keywords:
        if keyword.arg is None:
            continue
        try:
            value = _value(keyword.value, names)
            message = _error_of(function, (), {keyword.arg: value})
        except _NotLiteralError:
            # Any value shows whether the keyword exists.
            message = None if keyword.arg in KEYWORDS else _error_of(function, (), {keyword.arg: None})
            name = None if keyword.arg == "name" else name
        except RecipeError as error:
            message = str(error)
        else:
            known |= {} if message else {keyword.arg: value}
        if message is not None:
            wrong.append((keyword.value.lineno, message))
    try:
        positional = tuple(_value(each, names) for each in call.args)
    except (_NotLiteralError, RecipeError):
        return name, wrong
    if not wrong and (message := _error_of(function, positional, known)) is not None:
        wrong.append((decorator.lineno, message))
    return known.get("name") or name, wrong


def _value(node: ast.expr, names: Mapping[str, str]) -> Any:
    """The value of a literal expression.

    Raises:
        _NotLiteralError: it is not a literal.
        RecipeError: :func:`onnx_ci.known_failure` rejects its arguments.
    """
    try:
        if isinstance(node, ast.Tuple | ast.List):
            values = [_value(each, names) for each in node.elts]
            return tuple(values) if isinstance(node, ast.Tuple) else values
        if isinstance(node, ast.Dict) and None not in node.keys:
            pairs = zip(filter(None, node.keys), node.values, strict=True)
            return {_value(key, names): _value(value, names) for key, value in pairs}
        if isinstance(node, ast.Call) and (called := _known_function(node.func, names)) in ("unsupported", "known_failure"):
            return _expectation(called, node, names)
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise _NotLiteralError from None


def _expectation(called: str, call: ast.Call, names: Mapping[str, str]) -> Any:
    """``onnx_ci.unsupported(...)`` or ``onnx_ci.known_failure(...)``, with placeholders for what is not a literal."""

    def value(node: ast.expr) -> Any:
        try:
            return _value(node, names)
        except _NotLiteralError:
            return _PLACEHOLDER

    options = {each.arg: value(each.value) for each in call.keywords if each.arg}
    if len(options) < len(call.keywords) or any(isinstance(each, ast.Starred) for each in call.args):
        raise _NotLiteralError
    try:
        return _KNOWN[called](*map(value, call.args), **options)
    except TypeError as error:
        raise RecipeError(str(error)) from None


def _error_of(function: _Function, positional: tuple[Any, ...], keywords: Mapping[str, Any]) -> str | None:
    """The error that ``@onnx_ci.recipe(...)`` raises for ``function``, if any."""

    def placeholder() -> None: ...

    placeholder.__name__ = function.name
    try:
        decorate = recipe(*positional, **keywords)
        if not positional:
            decorate(type(function.name, (), {}) if isinstance(function, ast.ClassDef) else placeholder)
    except RecipeError as error:
        return str(error)
    except Exception as error:  # a run fails with it, too
        return f"{type(error).__name__}: {error}"
    return None


# --- several files --------------------------------------------------------------------------------------------------


def _duplicate_names(declared: Iterable[DeclaredRecipe]) -> Iterator[Problem]:
    """Recipes whose name is already used. One under a condition is left out: it may replace the other."""
    first: dict[str, DeclaredRecipe] = {}
    for each in declared:
        if each.always and each.name is not None and first.setdefault(each.name, each) is not each:
            used_by = f"{first[each.name].source}:{first[each.name].line}"
            remedy = "rename one of them with @onnx_ci.recipe(name=...)"
            message = f"the recipe name {each.name!r} is already used by {used_by}; {remedy}"
            yield _problem(each.source, each.line, message)
