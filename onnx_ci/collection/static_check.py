"""Find problems in recipe files without running them, which would import torch.

Arguments of a decorator that are literals are checked by the code that a run uses. Other arguments are left to the run.
"""

from __future__ import annotations

import ast
import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

from onnx_ci.collection.axis_sizes import multiple_of
from onnx_ci.collection.discovery import relative_source
from onnx_ci.collection.expectations import known_failure, unsupported
from onnx_ci.collection.recipe import check_recipes, declaration, recipe
from onnx_ci.errors import RecipeError
from onnx_ci.results.records import Problem
from onnx_ci.results.rules import RULES

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "recipe": recipe,
    "unsupported": unsupported,
    "known_failure": known_failure,
    "multiple_of": multiple_of,
}
"""The functions to look for, under whatever names a file imports them."""


@dataclass(frozen=True, kw_only=True)
class DeclaredRecipe:
    """A function that a file decorates with ``@onnx_ci.recipe``."""

    source: str
    line: int
    names: tuple[str, ...]
    """The names of its recipes, several with ``each``. Empty if they are not literals."""
    always: bool
    """Whether it is at the top level of the file, so that every import declares it."""


class _NotLiteralError(Exception):
    """A value that is only known when the file is run."""


def lint(files: Iterable[Path], root: Path) -> tuple[list[DeclaredRecipe], list[Problem]]:
    """The recipes that files declare, and problems with them, each with its file and line."""
    declared: list[DeclaredRecipe] = []
    problems: list[Problem] = []
    for file in files:
        declared_in_file, problems_of_file = _lint_file(file, relative_source(file, root))
        declared += declared_in_file
        problems += problems_of_file
    return declared, [*problems, *_duplicate_names(declared)]


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
        recipes, errors = _lint_decorator(decorator, function, names)
        declared.append(DeclaredRecipe(source=source, line=function.lineno, names=recipes, always=function in tree.body))
        problems += [_problem(source, line, message) for line, message in errors]
    return declared, problems


def _problem(source: str, line: int, message: str) -> Problem:
    return Problem(source=source, message=message, file=source, line=line)


# --- names ----------------------------------------------------------------------------------------------------------


def _imported_names(tree: ast.Module) -> dict[str, str]:
    """A file's names for the package and its functions: ``{"onnx_ci": "onnx_ci", "r": "onnx_ci.recipe"}``."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names if alias.name == "onnx_ci"}
        elif isinstance(node, ast.ImportFrom) and node.module == "onnx_ci" and not node.level:
            names |= {alias.asname or alias.name: f"onnx_ci.{alias.name}" for alias in node.names}
    return names


def _function_of(node: ast.expr, names: Mapping[str, str]) -> str | None:
    """The name of the function of :data:`_FUNCTIONS` that an expression refers to."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and names.get(node.value.id) == "onnx_ci":
        return node.attr if node.attr in _FUNCTIONS else None
    if isinstance(node, ast.Name):
        package, _, name = names.get(node.id, "").rpartition(".")
        return name if package and name in _FUNCTIONS else None
    return None


_Decorated = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _decorated(tree: ast.Module, names: Mapping[str, str]) -> Iterator[tuple[_Decorated, ast.expr]]:
    """Everything that a file decorates with ``@onnx_ci.recipe``, and the decorator, from top to bottom."""
    functions = (node for node in ast.walk(tree) if isinstance(node, _Decorated))
    for function in sorted(functions, key=lambda node: node.lineno):
        for decorator in function.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if _function_of(called, names) == "recipe":
                yield function, decorator


# --- values ---------------------------------------------------------------------------------------------------------

_PLACEHOLDER = next(id for id, rule in RULES.items() if rule.can_be_allowed)
"""Takes the place of a rule or a reason that is not a literal."""


def _lint_decorator(
    decorator: ast.expr, function: _Decorated, names: Mapping[str, str]
) -> tuple[tuple[str, ...], list[tuple[int, str]]]:
    """The names of the recipes, as far as they are literals, and the lines and messages of errors."""
    call = decorator if isinstance(decorator, ast.Call) else ast.Call(func=decorator, args=[], keywords=[])
    literals: dict[str, Any] = {}
    not_literal: set[str] = set()
    errors: list[tuple[int, str]] = []
    for keyword in call.keywords:
        if keyword.arg is None:
            continue
        try:
            value = _value(keyword.value, names)
        except _NotLiteralError:
            not_literal.add(keyword.arg)
            value = None  # every keyword takes it
        except RecipeError as error:
            errors.append((keyword.value.lineno, str(error)))
            continue
        if message := _error_of(partial(declaration, **{keyword.arg: value})):
            errors.append((keyword.value.lineno, message))
        elif keyword.arg not in not_literal:
            literals[keyword.arg] = value
    if not errors and not any(isinstance(argument, ast.Starred) for argument in call.args):
        declare = partial(
            _declare,
            _decorated_object(call, function, names),
            literals | ({"each": {"case": {}}} if "each" in not_literal else {}),
            is_complete=len(literals) == len(call.keywords),
        )
        if message := _error_of(declare):
            errors.append((decorator.lineno, message))
    if not_literal & {"name", "each"}:
        return (), errors
    name = literals.get("name") or function.name
    return tuple(f"{name}-{case}" for case in literals["each"]) if "each" in literals else (name,), errors


def _declare(decorated: Any, keywords: dict[str, Any], *, is_complete: bool) -> None:
    recipes = declaration(**keywords)(decorated)
    if is_complete:
        check_recipes(recipes)


def _decorated_object(call: ast.Call, function: _Decorated, names: Mapping[str, str]) -> Any:
    """What ``@onnx_ci.recipe`` decorates: its argument if that is a literal, or else a stand-in for the function."""
    with contextlib.suppress(_NotLiteralError):
        if call.args:
            return _value(call.args[0], names)
    return _stand_in(function)


def _stand_in(function: _Decorated) -> Any:
    """A class or a function with the name of ``function`` and, if it is one, with its parameters."""
    if isinstance(function, ast.ClassDef):
        return type(function.name, (), {})

    def stand_in() -> None: ...

    stand_in.__name__ = function.name
    stand_in.__signature__ = Signature([*_parameters(function.args)])  # type: ignore[attr-defined]
    return stand_in


def _parameters(arguments: ast.arguments) -> Iterator[Parameter]:
    """The parameters of a function. The values of defaults do not matter."""
    positional = [*arguments.posonlyargs, *arguments.args]
    for place, argument in enumerate(positional):
        has_default = place >= len(positional) - len(arguments.defaults)
        yield Parameter(argument.arg, Parameter.POSITIONAL_OR_KEYWORD, default=None if has_default else Parameter.empty)
    if arguments.vararg:
        yield Parameter(arguments.vararg.arg, Parameter.VAR_POSITIONAL)
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield Parameter(argument.arg, Parameter.KEYWORD_ONLY, default=None if default else Parameter.empty)
    if arguments.kwarg:
        yield Parameter(arguments.kwarg.arg, Parameter.VAR_KEYWORD)


def _value(node: ast.expr, names: Mapping[str, str]) -> Any:
    """The value of a literal expression.

    Raises:
        _NotLiteralError: it is not a literal.
        RecipeError: :func:`onnx_ci.known_failure` rejects its arguments.
    """
    try:
        if isinstance(node, ast.Tuple | ast.List):
            values = [_value(element, names) for element in node.elts]
            return tuple(values) if isinstance(node, ast.Tuple) else values
        if isinstance(node, ast.Dict) and None not in node.keys:
            pairs = zip(filter(None, node.keys), node.values, strict=True)
            return {_value(key, names): _value(value, names) for key, value in pairs}
        if isinstance(node, ast.Call) and (called := _function_of(node.func, names)) in ("unsupported", "known_failure"):
            return _expectation(called, node, names)
        if isinstance(node, ast.Call) and not node.keywords:
            arguments = [_value(argument, names) for argument in node.args]
            if _function_of(node.func, names) == "multiple_of":
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

    options = {keyword.arg: value(keyword.value) for keyword in call.keywords if keyword.arg}
    if len(options) < len(call.keywords) or any(isinstance(argument, ast.Starred) for argument in call.args):
        raise _NotLiteralError
    try:
        return _FUNCTIONS[called](*map(value, call.args), **options)
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
    """Recipes whose name another recipe has. One under a condition is left out, because it may replace the other."""
    first: dict[str, DeclaredRecipe] = {}
    for function in declared:
        for name in function.names if function.always else ():
            if first.setdefault(name, function) is not function:
                used_by = f"{first[name].source}:{first[name].line}"
                remedy = "rename one of them with @onnx_ci.recipe(name=...)"
                message = f"the recipe name {name!r} is already used by {used_by}; {remedy}"
                yield _problem(function.source, function.line, message)
