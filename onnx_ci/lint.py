"""What is wrong with recipe files, read but never run: running one would import torch.

Whatever a decorator is given literally is given to :func:`onnx_ci.recipe` itself, so that it is judged by what judges it
in a run. What only running the file can tell is left to the run.
"""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_ci.discovery import relative_source
from onnx_ci.errors import RecipeError
from onnx_ci.recipe import fails, recipe, unsupported
from onnx_ci.records import Problem
from onnx_ci.rules import RULES

_KNOWN: Mapping[str, Callable[..., Any]] = {"recipe": recipe, "unsupported": unsupported, "fails": fails}
"""What is looked for, under whatever names a file imports it."""
_OWN_KEYWORDS = frozenset(name for name, each in inspect.signature(recipe).parameters.items() if each.kind is each.KEYWORD_ONLY)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A recipe as a file declares it."""

    source: str
    line: int
    name: str | None
    """``None`` where only running the file can tell."""
    always: bool
    """Whether it stands at the top of the file, where every import declares it."""


class _UnknownError(Exception):
    """A value that only running the file can tell."""


def lint(files: Iterable[Path], root: Path) -> tuple[list[Declared], list[Problem]]:
    """The recipes that files declare, and what is wrong with them, each problem at ``file:line``."""
    declared: list[Declared] = []
    problems: list[Problem] = []
    for file in files:
        of_file, wrong = _lint_file(file, relative_source(file, root))
        declared += of_file
        problems += wrong
    return declared, problems + list(_taken_names(declared))


def _lint_file(path: Path, source: str) -> tuple[list[Declared], list[Problem]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python warns of is for other tools to say
            tree = ast.parse(path.read_bytes(), filename=source)
            compile(tree, source, "exec")
    except SyntaxError as error:
        return [], [_problem(source, error.lineno or 1, f"{type(error).__name__}: {error.msg}")]
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        return [], [_problem(source, 1, f"cannot be read: {error or type(error).__name__}")]
    names = _imported_names(tree)
    declared: list[Declared] = []
    problems: list[Problem] = []
    for function, decorator in _decorated(tree, names):
        name, wrong = _lint_decorator(decorator, function, names)
        declared.append(Declared(source=source, line=function.lineno, name=name, always=function in tree.body))
        problems += [_problem(source, line, said) for line, said in wrong]
    return declared, problems


def _problem(source: str, line: int, message: str) -> Problem:
    return Problem(source=f"{source}:{line}", message=message)


# --- names ----------------------------------------------------------------------------------------------------------


def _imported_names(tree: ast.Module) -> dict[str, str]:
    """What a file calls the package and its functions: ``{"onnx_ci": "onnx_ci", "r": "onnx_ci.recipe"}``."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.asname or each.name: each.name for each in node.names if each.name == "onnx_ci"}
        elif isinstance(node, ast.ImportFrom) and node.module == "onnx_ci" and not node.level:
            names |= {each.asname or each.name: f"onnx_ci.{each.name}" for each in node.names}
    return names


def _known_function(node: ast.expr, names: Mapping[str, str]) -> str | None:
    """Which of :data:`_KNOWN` an expression means."""
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

_STAND_IN = next(iter(RULES))
"""Serves as a rule and as a reason where a file does not say either literally."""


def _lint_decorator(
    decorator: ast.expr, function: _Function, names: Mapping[str, str]
) -> tuple[str | None, list[tuple[int, str]]]:
    """The recipe's name, if it can be known, and what is wrong, keyword by keyword: lines and messages."""
    call = decorator if isinstance(decorator, ast.Call) else ast.Call(func=decorator, args=[], keywords=[])
    name: str | None = function.name
    known: dict[str, Any] = {}
    wrong: list[tuple[int, str]] = []
    for keyword in call.keywords:
        if keyword.arg is None:
            continue
        try:
            value = _value(keyword.value, names)
            said = _refused(function, (), {keyword.arg: value})
        except _UnknownError:
            # Any value shows whether there is such a keyword.
            said = None if keyword.arg in _OWN_KEYWORDS else _refused(function, (), {keyword.arg: None})
            name = None if keyword.arg == "name" else name
        except RecipeError as error:
            said = str(error)
        else:
            known |= {} if said else {keyword.arg: value}
        if said is not None:
            wrong.append((keyword.value.lineno, said))
    try:
        positional = tuple(_value(each, names) for each in call.args)
    except (_UnknownError, RecipeError):
        return name, wrong
    if not wrong and (said := _refused(function, positional, known)) is not None:
        wrong.append((decorator.lineno, said))
    return known.get("name") or name, wrong


def _value(node: ast.expr, names: Mapping[str, str]) -> Any:
    """What an expression is worth.

    Raises:
        _UnknownError: only running the file can tell.
        RecipeError: :func:`onnx_ci.fails` refuses what it is given.
    """
    try:
        if isinstance(node, ast.Tuple | ast.List):
            values = [_value(each, names) for each in node.elts]
            return tuple(values) if isinstance(node, ast.Tuple) else values
        if isinstance(node, ast.Dict) and None not in node.keys:
            pairs = zip(filter(None, node.keys), node.values, strict=True)
            return {_value(key, names): _value(value, names) for key, value in pairs}
        if isinstance(node, ast.Call) and (called := _known_function(node.func, names)) in ("unsupported", "fails"):
            return _expectation(called, node, names)
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise _UnknownError from None


def _expectation(called: str, call: ast.Call, names: Mapping[str, str]) -> Any:
    """``onnx_ci.unsupported(...)`` or ``onnx_ci.fails(...)``, with stand-ins for what only running the file can tell."""

    def value(node: ast.expr) -> Any:
        try:
            return _value(node, names)
        except _UnknownError:
            return _STAND_IN

    options = {each.arg: value(each.value) for each in call.keywords if each.arg}
    if len(options) < len(call.keywords) or any(isinstance(each, ast.Starred) for each in call.args):
        raise _UnknownError
    try:
        return _KNOWN[called](*map(value, call.args), **options)
    except TypeError as error:
        raise RecipeError(str(error)) from None


def _refused(function: _Function, positional: tuple[Any, ...], keywords: Mapping[str, Any]) -> str | None:
    """What ``@onnx_ci.recipe(...)`` says against decorating ``function``."""

    def stand_in() -> None: ...

    stand_in.__name__ = function.name
    try:
        decorate = recipe(*positional, **keywords)
        if not positional:
            decorate(type(function.name, (), {}) if isinstance(function, ast.ClassDef) else stand_in)
    except RecipeError as error:
        return str(error)
    except Exception as error:  # what a run would stop with, too
        return f"{type(error).__name__}: {error}"
    return None


# --- several files --------------------------------------------------------------------------------------------------


def _taken_names(declared: Iterable[Declared]) -> Iterator[Problem]:
    """Recipes whose name another one has. One that stands under a condition may be there instead of the other."""
    first: dict[str, Declared] = {}
    for each in declared:
        if each.always and each.name is not None and first.setdefault(each.name, each) is not each:
            where = f"{first[each.name].source}:{first[each.name].line}"
            said = f"the recipe name {each.name!r} is taken by {where}; give one of them another with @onnx_ci.recipe(name=...)"
            yield _problem(each.source, each.line, said)
