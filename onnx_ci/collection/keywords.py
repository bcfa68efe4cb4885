"""The keywords of ``@recipe``: one table, in which each keyword has its type, its default and the function that checks it.

A new keyword is a field of :class:`RecipeFields`. Type checkers also need it in :class:`RecipeKeywords`, and the docstring of
``@recipe`` explains it; tests ask for both.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeGuard, TypeVar

from onnx_ci.collection.axis_sizes import DeclaredSizes, MultipleOf, axis_size_in, sizes_of
from onnx_ci.collection.domains import Domain, Draw, Strategy, domain_of
from onnx_ci.collection.expectations import ExpectedFailures
from onnx_ci.collection.post_export import EXPORT, GraphPass, passes_of
from onnx_ci.config.values import DEVICE_TYPES, DEVICES
from onnx_ci.errors import RecipeError, did_you_mean
from onnx_ci.opsets import CUSTOM, parse_opsets
from onnx_ci.plugins import EXPORTERS, RUNTIMES, PluginKind, variant_in_name
from onnx_ci.results.rules import RULES
from onnx_ci.results.verdict import Expectation

Limit = float | Mapping[str, float] | None
"""A limit for every output, or limits by output name or data type; ``None`` for the settings' limit."""
StepInputs = Callable[[int, Mapping[str, Any]], Mapping[str, Any]]
"""A function from the number of a step and its inputs by name to those inputs that depend on the step; all are tensors."""
InputsOfRecipe = str | PathLike[str] | Mapping[str, Domain | Draw | Strategy]
"""A file with inputs, or the domains of inputs by name."""
ExportFunction = Callable[[Any, tuple[Any, ...], dict[str, Any], int, Path], Any]
"""A function of the model, its ``args`` and ``kwargs``, an opset and the path of the file to write."""
RunFiles = Callable[..., Any]
"""A function of the files by name and the arguments of the model's ``forward``, which returns what ``forward`` returns."""
Parsed = TypeVar("Parsed")
Default = TypeVar("Default")
Parser = Callable[[str, Any], Parsed]
"""Reads the value of a keyword, whose name comes first."""


class ExportOptions(TypedDict, total=False):
    """The keywords of ``torch.onnx.export`` that a recipe passes on unchanged."""

    autograd_inlining: bool
    custom_opsets: Mapping[str, int]
    custom_translation_table: Mapping[Any, Any]
    do_constant_folding: bool
    export_modules_as_functions: Any
    export_params: bool
    keep_initializers_as_inputs: bool
    operator_export_type: Any
    optimize: bool


class RecipeKeywords(ExportOptions, total=False):
    """What ``@recipe`` takes; its docstring explains each keyword."""

    name: str | None
    input_names: str | Sequence[str]
    output_names: str | Sequence[str]
    dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int]] | None
    dynamic_shapes: Any
    opsets: int | str | Iterable[int | str] | None
    exporter: str | Sequence[str] | None
    export: ExportFunction | None
    run_files: RunFiles | None
    devices: str | Sequence[str] | None
    runtimes: str | Sequence[str] | None
    max_drift: float | Mapping[str, float] | None
    rtol: float | Mapping[str, float] | None
    atol: float | Mapping[str, float] | None
    seed: int
    training: bool
    nondeterministic: bool
    weights: Literal["seeded", "trained"] | None
    tf32: bool
    all_on_device: bool
    dynamic_sizes: Mapping[str, int | Sequence[int] | MultipleOf] | None
    feedback: Mapping[str, str] | None
    steps: int | None
    step_inputs: StepInputs | None
    inputs: InputsOfRecipe | Sequence[InputsOfRecipe]
    then: str | Callable[[Any], Any] | GraphPass | Sequence[str | Callable[[Any], Any] | GraphPass]
    operators: str | Sequence[str] | None
    max_ir_version: int | None
    static: bool | None
    external_data: bool | None
    expect: Mapping[Any, Expectation | Sequence[Expectation]] | None
    tags: str | Sequence[str]
    manual: str
    allow: str | Sequence[str]
    allow_warnings: str | Sequence[str]
    timeout: float | None


EXPORT_OPTIONS = frozenset(ExportOptions.__annotations__)
_IN_OTHER_WORDS = {
    "dynamo": "; declare exporter='dynamo' or exporter='torchscript'",
    "opset_version": "; declare opsets='17'",
    "kwargs": "; return (model, args, kwargs)",
}
"""How a recipe says what these keywords of ``torch.onnx.export`` mean."""


# --- the value of one keyword -------------------------------------------------------------------------------------------


def _unchanged(_: str, value: Any) -> Any:
    return value


def _must_be(what: str, is_right: Callable[[Any], bool]) -> Parser[Any]:
    """Takes a value if it is right, unchanged. Otherwise, the error says what the keyword must be."""

    def check(keyword: str, value: Any) -> Any:
        if not is_right(value):
            raise RecipeError(f"{keyword} must be {what}, not {value!r}")
        return value

    return check


def _is_integer(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_finite_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value < float("inf")


def _names(keyword: str, value: str | Sequence[str]) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value)
    for name in names:
        if not isinstance(name, str) or not name:
            raise RecipeError(f"{keyword} must be names, not {name!r}")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise RecipeError(f"{keyword} names {repeated[0]!r} twice; every name must be unique")
    return names


def _names_of(keyword: str, kind: str, choices: Collection[str], value: str | Sequence[str]) -> tuple[str, ...]:
    names = _names(keyword, value)
    for name in names:
        if name not in choices:
            raise RecipeError(f"{keyword} names {name!r}, which is not a known {kind}{did_you_mean(name, choices)}")
    return names


def _plugins(kind: PluginKind) -> Parser[tuple[str, ...]]:
    """Reads the names of plug-ins of a kind, without versions and providers, and loads those of other packages."""

    def read(keyword: str, value: str | Sequence[str]) -> tuple[str, ...]:
        names = _names_of(keyword, kind.noun, kind, value)
        if variant := next(filter(variant_in_name, names), ""):
            what = "a version" if "@" in variant else "a provider"
            raise RecipeError(f"{keyword} names what the file supports; {variant!r}, {what}, is a setting: --{keyword}")
        for name in kind.added(names):
            kind.load(name)  # an error in the package is told once, where the recipe is declared
        return names

    return read


def _export_function(_: str, value: ExportFunction) -> ExportFunction:
    if not callable(value):
        raise RecipeError(f"export must be {EXPORT_FUNCTION}, not {value!r}")
    try:
        inspect.signature(value).bind(*_EXPORT_ARGUMENTS)
    except TypeError as error:
        name = getattr(value, "__name__", type(value).__name__)
        raise RecipeError(f"export must be {EXPORT_FUNCTION}; {name}{inspect.signature(value)}: {error}") from None
    except ValueError:  # a function of C may have no signature
        pass
    return value


_EXPORT_ARGUMENTS = ("model", "args", "kwargs", "opset", "path")
EXPORT_FUNCTION = f"a function ({', '.join(_EXPORT_ARGUMENTS)})"


def _allowed(keyword: str, value: str | Sequence[str]) -> tuple[str, ...]:
    rules = _names_of(keyword, "rule", RULES, value)
    for rule in rules:
        if not RULES[rule].can_be_allowed:
            raise RecipeError(
                f"{keyword} names {rule!r}, but a cell that breaks it proves nothing; expect it with known_failure()"
            )
    return rules


def _patterns(keyword: str, value: str | Sequence[str]) -> tuple[str, ...]:
    patterns = _names(keyword, value)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise RecipeError(f"{keyword} has {pattern!r}, which is not a regular expression: {error}") from None
    return patterns


def _limit(least: str, is_right: Callable[[float], bool]) -> Parser[Limit]:
    check = _must_be(f"a number {least}", lambda limit: _is_finite_number(limit) and is_right(limit))

    def read(keyword: str, value: Limit) -> Limit:
        for limit in value.values() if isinstance(value, Mapping) else [value]:
            check(keyword, limit)
        return value

    return read


_DRIFT = _limit("above 0", lambda limit: limit > 0)
_TOLERANCE = _limit("of at least 0", lambda limit: limit >= 0)
_SECONDS = _must_be("a number of seconds above 0", lambda value: _is_finite_number(value) and value > 0)
_SWITCH = _must_be("True or False", lambda value: isinstance(value, bool))
_WEIGHTS = _must_be("'seeded' or 'trained'", lambda value: value in ("seeded", "trained"))
_REASON = _must_be("why the recipe runs only on request, such as 'needs 8 GiB'", lambda value: isinstance(value, str))
_RUN_FILES = _must_be("a function of the files by name and of forward's arguments", callable)
_STEP_INPUTS = _must_be("a function of the step's number and its inputs by name", callable)
_STEPS = _must_be("how many times the file is run in a row, at least 2", lambda value: _is_integer(value, 2))
_IR_VERSION = _must_be("a version of ONNX's IR, such as 8", lambda value: _is_integer(value, 1))


def _as_setting(parse: Callable[[object], Parsed], keyword: str, value: object) -> Parsed:
    try:
        return parse(value)
    except ValueError as error:
        raise RecipeError(f"{keyword}: {error}") from None


_opsets, _devices = functools.partial(_as_setting, parse_opsets), functools.partial(_as_setting, DEVICES.parse)


def _mapped(what: str, parse: Callable[[Any, Any], Any]) -> Parser[Any]:
    def parsed(keyword: str, value: object) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise RecipeError(f"{keyword} must map {what}, not {value!r}")
        return {each: parse(each, of_it) for each, of_it in value.items()}

    return parsed


def _axes_of(tensor: str, value: Mapping[int, str] | Sequence[int]) -> dict[int, str]:
    """Either of torch's forms as the one with names. Unnamed axes get the names that the TorchScript exporter gives them."""
    if isinstance(value, Mapping):
        axes = dict(value)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        axes = {axis: f"{tensor}_dynamic_axes_{count}" for count, axis in enumerate(value, start=1)}
    else:
        raise RecipeError(f"dynamic_axes[{tensor!r}] must be {{axis: name}} or a list of axes, not {value!r}")
    for axis in axes:
        if not isinstance(axis, int) or isinstance(axis, bool):
            raise RecipeError(f"dynamic_axes[{tensor!r}] has the axis {axis!r}; axes are numbers, counted from 0")
    for axis, name in axes.items():
        if not isinstance(name, str) or not name:
            raise RecipeError(f"dynamic_axes[{tensor!r}][{axis}] must be a name or an expression, not {name!r}")
        axis_size_in(tensor, name)
    return axes


def _feedback(_: str, value: Mapping[str, str]) -> dict[str, str]:
    example = '{"present": "past"}'
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for pair in value.items() for name in pair):
        raise RecipeError(f"feedback must map names of outputs to names of inputs, such as {example}, not {value!r}")
    inputs = list(value.values())
    if repeated := sorted({name for name in inputs if inputs.count(name) > 1}):
        raise RecipeError(f"feedback feeds the input {repeated[0]!r} from two outputs; every input can have one")
    return dict(value)


def _training(keyword: str, value: Any) -> bool:
    """Whether to export in training mode; also ``torch.onnx.TrainingMode``, without an import of torch."""
    modes = {"EVAL": False, "TRAINING": True}
    return bool(_SWITCH(keyword, modes.get(getattr(value, "name", ""), value)))


def _input_files(keyword: str, value: Any) -> tuple[str, ...]:
    files = [item for item in _items(value) if not isinstance(item, Mapping)]
    return _names(keyword, [os.fspath(file) if isinstance(file, PathLike) else file for file in files])


def _domains(_: str, value: Any) -> dict[str, Domain]:
    mappings = [item for item in _items(value) if isinstance(item, Mapping)]
    return {name: domain_of(name, domain) for mapping in mappings for name, domain in mapping.items()}


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _expected(key: object, failures: tuple[Expectation, ...]) -> ExpectedFailures:
    """``"9-10"``, or ``"torchscript cuda 9-10"`` or a part of it. With ``+float16`` at its end, it is for that pass only."""
    if not isinstance(key, str):
        return ExpectedFailures(failures, opsets=_opsets("expect", key))
    cells, plus, graph_pass = key.partition("+")
    exporter, after_exporter = _first_word(cells, EXPORTERS)
    device, rest = _first_word(after_exporter, DEVICE_TYPES)
    word = rest.partition(" ")[0]
    if word[:1].isalpha() and (nearest := did_you_mean(word, (*EXPORTERS, *DEVICE_TYPES))):
        raise RecipeError(f"expect has the key {key!r}, which does not name an exporter or a device{nearest}")
    opsets = _opsets("expect", rest) if rest or not (exporter or device or plus) else None
    return ExpectedFailures(failures, exporter, device, opsets, graph_pass if plus else None)


def _first_word(text: str, words: Collection[str]) -> tuple[str | None, str]:
    """The first word of ``text``, if it is one of ``words``, and the rest."""
    first, _, rest = text.strip().partition(" ")
    return (first, rest.strip()) if first in words else (None, text.strip())


def _expectations(_: str, value: object) -> tuple[Expectation, ...]:
    failures = (value,) if isinstance(value, Expectation) else tuple(value) if isinstance(value, Sequence) else ()
    if not failures or not all(isinstance(failure, Expectation) for failure in failures):
        raise RecipeError(f"expect takes onnx_ci.unsupported(reason) or onnx_ci.known_failure(rule, reason), not {value!r}")
    return failures


_AXES = _mapped('names to axes, such as {"input": {0: "batch"}}', _axes_of)
_SIZES = _mapped('axes to sizes, such as {"height": (40, 56)}', sizes_of)
_FAILURES = _mapped('keys such as "9-10" and "dynamo" to known failures', _expectations)


def _expect(keyword: str, value: object) -> tuple[ExpectedFailures, ...]:
    return tuple(_expected(key, failures) for key, failures in _FAILURES(keyword, value).items())


# --- the table ----------------------------------------------------------------------------------------------------------


def keyword(parse: Parser[Parsed], *, default: Default, name: str | None = None, adds_up: bool = False) -> Parsed | Default:
    """A field of :class:`RecipeFields`. Type checkers compare its type with what ``parse`` returns.

    Args:
        parse: checks and normalizes the value of the keyword, whose name it gets first. It raises :class:`RecipeError`.
        default: the value of the field without the keyword, or if the keyword is ``None``.
        name: the name of the keyword. Default: that of the field.
        adds_up: whether a case of ``each`` adds to what the decorator declares, instead of overriding it.
    """
    field: Any = dataclasses.field(metadata={"parse": parse, "default": default, "keyword": name, "adds_up": adds_up})
    return field  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class RecipeFields:
    """What the keywords of ``@recipe`` declare, checked and normalized."""

    name: str = keyword(_unchanged, default="")
    input_names: tuple[str, ...] = keyword(_names, default=())
    output_names: tuple[str, ...] = keyword(_names, default=())
    dynamic_axes: Mapping[str, Mapping[int, str]] = keyword(_AXES, default={})
    dynamic_shapes: Any = keyword(lambda _, shapes: shapes or None, default=None)
    opsets: tuple[int, ...] | None = keyword(_opsets, default=None)
    exporters: tuple[str, ...] | None = keyword(_plugins(EXPORTERS), default=None, name="exporter")
    export: ExportFunction | None = keyword(_export_function, default=None)
    run_files: RunFiles | None = keyword(_RUN_FILES, default=None)
    devices: tuple[str, ...] | None = keyword(_devices, default=None)
    runtimes: tuple[str, ...] | None = keyword(_plugins(RUNTIMES), default=None)
    max_drift: Limit = keyword(_DRIFT, default=None)
    rtol: Limit = keyword(_TOLERANCE, default=None)
    atol: Limit = keyword(_TOLERANCE, default=None)
    seed: int = keyword(_unchanged, default=0)
    training: bool = keyword(_training, default=False)
    nondeterministic: bool = keyword(_unchanged, default=False)
    weights: Literal["seeded", "trained"] | None = keyword(_WEIGHTS, default=None)
    tf32: bool = keyword(_unchanged, default=False)
    all_on_device: bool = keyword(_unchanged, default=False)
    dynamic_sizes: Mapping[str, DeclaredSizes] = keyword(_SIZES, default={})
    feedback: Mapping[str, str] = keyword(_feedback, default={})
    steps: int | None = keyword(_STEPS, default=None)
    step_inputs: StepInputs | None = keyword(_STEP_INPUTS, default=None)
    inputs: tuple[str, ...] = keyword(_input_files, default=())
    """The files with inputs."""
    domains: Mapping[str, Domain] = keyword(_domains, default={}, name="inputs")
    """The domains of inputs, by name."""
    then: tuple[GraphPass, ...] = keyword(lambda _, passes: passes_of(passes), default=())
    operators: tuple[str, ...] | None = keyword(_names, default=None)
    max_ir_version: int | None = keyword(_IR_VERSION, default=None)
    static: bool | None = keyword(_SWITCH, default=None)
    external_data: bool | None = keyword(_SWITCH, default=None)
    expect: tuple[ExpectedFailures, ...] = keyword(_expect, default=(), adds_up=True)
    tags: tuple[str, ...] = keyword(_names, default=(), adds_up=True)
    manual: str = keyword(_REASON, default="")
    allow: tuple[str, ...] = keyword(_allowed, default=(), adds_up=True)
    allow_warnings: tuple[str, ...] = keyword(_patterns, default=(), adds_up=True)
    timeout: float | None = keyword(_SECONDS, default=None)


_TABLE = {field.name: field.metadata for field in dataclasses.fields(RecipeFields)}
_KEYWORD_OF = {name: entry["keyword"] or name for name, entry in _TABLE.items()}
KEYWORDS = tuple(dict.fromkeys(_KEYWORD_OF.values()))
"""The decorator's own keywords, without those of ``torch.onnx.export``."""


def fields_of(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a recipe that is declared with ``keywords``, and its ``export_options``. Raises ``RecipeError``."""
    for name in keywords:
        if name not in KEYWORDS and name not in EXPORT_OPTIONS:
            remedy = _IN_OTHER_WORDS.get(name) or did_you_mean(name, (*KEYWORDS, *EXPORT_OPTIONS))
            raise RecipeError(f"@recipe has no keyword {name!r}{remedy}")
    if keywords.get("dynamic_axes") and keywords.get("dynamic_shapes") is not None:
        raise RecipeError("@recipe takes dynamic_axes or dynamic_shapes, not both; either one works with both exporters")
    fields: dict[str, Any] = {"export_options": {name: value for name, value in keywords.items() if name in EXPORT_OPTIONS}}
    for name, entry in _TABLE.items():
        value = keywords.get(_KEYWORD_OF[name])
        fields[name] = entry["default"] if value is None else entry["parse"](_KEYWORD_OF[name], value)
    if fields["export"] is not None and fields["exporters"] is None:
        fields["exporters"] = (CUSTOM,)
    return fields


def fields_of_case(shared: Mapping[str, Any], of_case: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the recipe of one case, whose keywords override those that all cases share, or add to them."""
    fields = fields_of({**shared, **of_case})
    for name, entry in _TABLE.items():
        if entry["adds_up"] and _KEYWORD_OF[name] in of_case and shared.get(_KEYWORD_OF[name]) is not None:
            before, more = entry["parse"](_KEYWORD_OF[name], shared[_KEYWORD_OF[name]]), fields[name]
            fields[name] = tuple(dict.fromkeys((*before, *more)))
    return fields


# --- several keywords ---------------------------------------------------------------------------------------------------


def check_together(recipe: RecipeFields) -> None:
    """Raise ``RecipeError`` if two keywords of a recipe contradict each other, or one lacks another."""
    is_named = CUSTOM in (recipe.exporters or ())
    if is_named and recipe.export is None:
        raise RecipeError(f"exporter names {CUSTOM!r}, which needs export: {EXPORT_FUNCTION}")
    if recipe.export is not None and not is_named:
        raise RecipeError(f"export is the exporter {CUSTOM!r}, which exporter does not name; add it, or leave exporter out")
    if recipe.run_files is not None:
        if recipe.exporters != (CUSTOM,):
            raise RecipeError(
                f"run_files runs the files that export returns; declare export, {EXPORT_FUNCTION}, and no exporter"
            )
        for name in ("then", "feedback", "nondeterministic"):
            if getattr(recipe, name):
                raise RecipeError(f"{name} is about one file; declare it in a recipe of that file, without run_files")
    for name in ("steps", "step_inputs"):
        if getattr(recipe, name) is not None and not recipe.feedback:
            example = 'feedback={"present": "past"}'
            raise RecipeError(f"{name} needs feedback: name the outputs that are inputs of the next step, such as {example}")
    if recipe.static and (recipe.dynamic_axes or recipe.dynamic_shapes is not None):
        raise RecipeError("static=True declares that every size is fixed, and dynamic axes are declared; declare one")
    if recipe.feedback and recipe.nondeterministic:
        raise RecipeError("feedback compares the values of each step, and nondeterministic=True compares none; declare one")
    _check_declared("an output", recipe.feedback.keys(), "output_names", recipe.output_names)
    _check_declared("an input", recipe.feedback.values(), "input_names", recipe.input_names)
    passes = (EXPORT, *(graph_pass.name for graph_pass in recipe.then))
    for named in (expected.graph_pass for expected in recipe.expect):
        if named not in (None, *passes):
            raise RecipeError(f"expect names the pass {named!r}, which then does not have{did_you_mean(named or '', passes)}")


def _check_declared(role: str, names: Iterable[str], keyword: str, declared: Collection[str]) -> None:
    for name in names:
        if name not in declared:
            remedy = did_you_mean(name, declared) or "; declare it there"
            raise RecipeError(f"feedback names {name!r} as {role}, which is not in {keyword}{remedy}")
