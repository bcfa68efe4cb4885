"""Find problems in recipe files without running them: running one would import torch.

Literal arguments of a decorator are passed to :func:`onnx_ci.recipe` itself, so that they are checked as in a run. Other
arguments are left to the run.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from onnx_ci.collection.axis_sizes import multiple_of
from onnx_ci.collection.discovery import relative_source
from onnx_ci.collection.expectations import known_failure, unsupported
from onnx_ci.collection.keywords import KEYWORDS
from onnx_ci.collection.recipe import check_together, declaration, recipe
from onnx_ci.errors import RecipeError
from onnx_ci.results.records import Problem
from onnx_ci.results.rules import RULES

_KNOWN: Mapping[str, Callable[..., Any]] = {
    "recipe": recipe,
    "unsupported": unsupported,
    "known_failure": known_failure,
    "multiple_of": multiple_of,
}
"""The functions to look for, under whatever names a file imports them."""


@dataclass(frozen=True, kw_only=True)
class DeclaredRecipe:
    """A recipe as a file declares it."""

    source: str
    line: int
    names: tuple[str, ...]
    """The names of its recipes, as far as they are literals; several with ``each``."""
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
        recipes, wrong = _lint_decorator(decorator, function, names)
        declared.append(DeclaredRecipe(source=source, line=function.lineno, names=recipes, always=function in tree.body))
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
) -> tuple[tuple[str, ...], list[tuple[int, str]]]:
    """The names of the recipes, as far as they are literals, and what is wrong, keyword by keyword: lines and messages."""
    call = decorator if isinstance(decorator, ast.Call) else ast.Call(func=decorator, args=[], keywords=[])
    known: dict[str, Any] = {}
    unknown: set[str] = set()
    wrong: list[tuple[int, str]] = []
    for keyword in call.keywords:
        if keyword.arg is None:
            continue
        try:
            value = _value(keyword.value, names)
        except _NotLiteralError:
            unknown.add(keyword.arg)
            # Any value shows whether the keyword exists.
            exists = keyword.arg in (*KEYWORDS, _CASES)
            message = None if exists else _error_of(functools.partial(declaration, **{str(keyword.arg): cast("Any", None)}))
        except RecipeError as error:
            message = str(error)
        else:
            message = _error_of(functools.partial(declaration, **{keyword.arg: value}))
            known |= {} if message else {keyword.arg: value}
        if message is not None:
            wrong.append((keyword.value.lineno, message))
    if not wrong and not any(isinstance(each, ast.Starred) for each in call.args):
        some_case: dict[str, Any] = {_CASES: {"case": {}}} if _CASES in unknown else {}
        decorated: Any = _stand_in(function)
        with contextlib.suppress(_NotLiteralError):
            decorated = _value(call.args[0], names) if call.args else decorated

        def declare() -> None:
            declared = declaration(**known, **some_case)(decorated)
            if len(known) == len(call.keywords):
                check_together(declared)

        if message := _error_of(declare):
            wrong.append((decorator.lineno, message))
    if {"name", _CASES} & unknown:
        return (), wrong
    name = known.get("name") or function.name
    return tuple(f"{name}-{case}" for case in known[_CASES]) if _CASES in known else (name,), wrong


_CASES = "each"


def _stand_in(function: _Function) -> Callable[..., Any]:
    """Something with the name and the parameters of ``function`` that ``@onnx_ci.recipe`` can decorate, or refuse."""
    if isinstance(function, ast.ClassDef):
        return type(function.name, (), {})
    given = function.args
    no_defaults: list[ast.expr | None] = [None if each is None else ast.Constant(None) for each in given.kw_defaults]
    parameters = ast.arguments(
        posonlyargs=[ast.arg(each.arg) for each in given.posonlyargs],
        args=[ast.arg(each.arg) for each in given.args],
        vararg=given.vararg and ast.arg(given.vararg.arg),
        kwonlyargs=[ast.arg(each.arg) for each in given.kwonlyargs],
        kw_defaults=no_defaults,
        kwarg=given.kwarg and ast.arg(given.kwarg.arg),
        defaults=[ast.Constant(None) for _ in given.defaults],
    )
    made = ast.fix_missing_locations(ast.Expression(ast.Lambda(args=parameters, body=ast.Constant(None))))
    stand_in = eval(compile(made, "<stand-in>", "eval"), {})  # noqa: S307 - nothing of the file is in it but names
    stand_in.__name__ = function.name
    return cast("Callable[..., Any]", stand_in)


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
        if isinstance(node, ast.Call) and not node.keywords:
            arguments = [_value(each, names) for each in node.args]
            if _known_function(node.func, names) == "multiple_of":
                return multiple_of(*arguments)
            if isinstance(node.func, ast.Name) and node.func.id == "range":
                return range(*arguments)
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


def _error_of(declare: Callable[[], object]) -> str | None:
    """The error of a declaration, if any."""
    try:
        declare()
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
        for name in each.names if each.always else ():
            if first.setdefault(name, each) is not each:
                used_by = f"{first[name].source}:{first[name].line}"
                remedy = "rename one of them with @onnx_ci.recipe(name=...)"
                yield _problem(each.source, each.line, f"the recipe name {name!r} is already used by {used_by}; {remedy}")
