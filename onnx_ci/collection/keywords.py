"""The keywords of ``@recipe``: their types, and how their values are checked and normalized."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

from onnx_ci.collection.axis_sizes import MultipleOf, axis_size_in, sizes_of
from onnx_ci.collection.domains import Domain, Draw, Strategy, domain_of
from onnx_ci.collection.expectations import CellPattern
from onnx_ci.collection.post_export import EXPORT, PostExportStage, stages_of
from onnx_ci.config.values import DEVICE_TYPES
from onnx_ci.environment.plugins import EXPORTERS, RUNTIMES, PluginKind
from onnx_ci.errors import RecipeError, did_you_mean
from onnx_ci.opsets import parse_opsets
from onnx_ci.results.rules import RULES
from onnx_ci.results.verdict import Expectation

Limit = float | Mapping[str, float] | None
"""A limit for every output, or limits by output name or data type; ``None`` for the settings' limit."""

StepInputs = Callable[[int, Mapping[str, Any]], Mapping[str, Any]]
"""From the number of a step and its inputs by name to those inputs that depend on the step; all are tensors."""


InputsOfRecipe = str | PathLike[str] | Mapping[str, Domain | Draw | Strategy]
"""A file with inputs, or the domains of inputs by name."""


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
    then: str | Callable[[Any], Any] | PostExportStage | Sequence[str | Callable[[Any], Any] | PostExportStage]
    expect: Mapping[Any, Expectation | Sequence[Expectation]] | None
    tags: str | Sequence[str]
    manual: str
    allow: str | Sequence[str]
    allow_warnings: str | Sequence[str]
    timeout: float | None


EXPORT_OPTIONS = frozenset(ExportOptions.__annotations__)
KEYWORDS = tuple(name for name in RecipeKeywords.__annotations__ if name not in EXPORT_OPTIONS)
"""The decorator's own keywords, without those of ``torch.onnx.export``."""


def fields_of(keywords: RecipeKeywords) -> dict[str, Any]:
    """The fields of a recipe that is declared with ``keywords``.

    Raises:
        RecipeError: a keyword is unknown or its value is invalid.
    """
    for keyword in keywords:
        if keyword not in RecipeKeywords.__annotations__:
            raise RecipeError(f"@recipe has no keyword {keyword!r}{did_you_mean(keyword, (*KEYWORDS, *EXPORT_OPTIONS))}")
    if keywords.get("dynamic_axes") and keywords.get("dynamic_shapes") is not None:
        raise RecipeError("@recipe takes dynamic_axes or dynamic_shapes, not both; either one works with both exporters")
    given: Mapping[str, Any] = keywords
    fields = {_FIELDS.get(name, name): _PARSERS.get(name, _unchanged)(given[name]) for name in KEYWORDS if name in given}
    if "inputs" in given:
        fields["domains"] = _domains(given["inputs"])
    fields["export_options"] = {name: given[name] for name in EXPORT_OPTIONS if name in given}
    return fields


def check_stages(fields: Mapping[str, Any]) -> None:
    """Check that the stages that ``expect`` names exist.

    Args:
        fields: all fields of a recipe.

    Raises:
        RecipeError: one does not.
    """
    known = (EXPORT, *(each.name for each in fields.get("then", ())))
    for pattern in fields.get("expect", {}):
        if pattern.stage is not None and pattern.stage not in known:
            raise RecipeError(
                f"expect names the stage {pattern.stage!r}, which then does not have{did_you_mean(pattern.stage, known)}"
            )


def _allowed(value: str | Sequence[str]) -> tuple[str, ...]:
    rules = _known("allow", value, "rule", RULES)
    for rule in rules:
        if not RULES[rule].can_be_allowed:
            raise RecipeError(f"allow names {rule!r}, but a cell that breaks it proves nothing; expect it with known_failure()")
    return rules


def _names(keyword: str, value: str | Sequence[str]) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value)
    for each in names:
        if not isinstance(each, str) or not each:
            raise RecipeError(f"{keyword} must be names, not {each!r}")
    repeated = sorted({each for each in names if names.count(each) > 1})
    if repeated:
        raise RecipeError(f"{keyword} names {repeated[0]!r} twice; every name must be unique")
    return names


def _inputs(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _paths(value: Any) -> tuple[str, ...]:
    paths = [each for each in _inputs(value) if not isinstance(each, Mapping)]
    return _names("inputs", [os.fspath(each) if isinstance(each, PathLike) else each for each in paths])


def _domains(value: Any) -> dict[str, Domain]:
    declared = [each for each in _inputs(value) if isinstance(each, Mapping)]
    return {name: domain_of(name, domain) for each in declared for name, domain in each.items()}


def _known(keyword: str, value: str | Sequence[str], kind: str, known: Collection[str]) -> tuple[str, ...]:
    names = _names(keyword, value)
    for each in names:
        if each not in known:
            raise RecipeError(f"{keyword} names {each!r}, which is not a known {kind}{did_you_mean(each, known)}")
    return names


def _plugins(keyword: str, value: str | Sequence[str], kind: PluginKind) -> tuple[str, ...]:
    names = _known(keyword, value, kind.noun, kind)
    for name in kind.added(names):
        kind.load(name)  # an error in the package is told once, where the recipe is declared
    return names


def _patterns(value: str | Sequence[str]) -> tuple[str, ...]:
    patterns = _names("allow_warnings", value)
    for each in patterns:
        try:
            re.compile(each)
        except re.error as error:
            raise RecipeError(f"allow_warnings has {each!r}, which is not a regular expression: {error}") from None
    return patterns


def _limit(keyword: str, value: Limit, *, above: bool = False) -> Limit:
    for each in value.values() if isinstance(value, Mapping) else [] if value is None else [value]:
        usable = isinstance(each, (int, float)) and not isinstance(each, bool) and each < float("inf")
        if not usable or each < 0 or (above and each == 0):
            raise RecipeError(f"{keyword} must be a number {'above' if above else 'of at least'} 0, not {each!r}")
    return value


def _seconds(value: float | None) -> float | None:
    if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf")):
        raise RecipeError(f"timeout must be a number of seconds above 0, not {value!r}")
    return value


def _weights(value: str | None) -> str | None:
    if value not in ("seeded", "trained", None):
        raise RecipeError(f"weights must be 'seeded' or 'trained', not {value!r}")
    return value


def _reason(value: str) -> str:
    if not isinstance(value, str):
        raise RecipeError(f"manual must be why the recipe runs only on request, such as 'needs 8 GiB', not {value!r}")
    return value


def _feedback(value: Mapping[str, str]) -> dict[str, str]:
    example = '{"present": "past"}'
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for pair in value.items() for name in pair):
        raise RecipeError(f"feedback must map names of outputs to names of inputs, such as {example}, not {value!r}")
    fed = list(value.values())
    if repeated := sorted({name for name in fed if fed.count(name) > 1}):
        raise RecipeError(f"feedback feeds the input {repeated[0]!r} from two outputs; every input can have one")
    return dict(value)


def _steps(value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 2:
        raise RecipeError(f"steps must be how many times the file is run in a row, at least 2, not {value!r}")
    return value


def _step_inputs(value: StepInputs) -> StepInputs:
    if not callable(value):
        raise RecipeError(f"step_inputs must be a function of the step's number and its inputs by name, not {value!r}")
    return value


def check_sequence(fields: Mapping[str, Any]) -> None:
    """Check the keywords that describe a sequence of steps against each other.

    Args:
        fields: all fields of a recipe.

    Raises:
        RecipeError: ``feedback`` is missing, or names an output or input that is not declared.
    """
    feedback: Mapping[str, str] = fields["feedback"]
    for keyword in ("steps", "step_inputs"):
        if fields[keyword] is not None and not feedback:
            example = 'feedback={"present": "past"}'
            raise RecipeError(f"{keyword} needs feedback: name the outputs that are inputs of the next step, such as {example}")
    if feedback and fields["nondeterministic"]:
        raise RecipeError("feedback compares the values of each step, and nondeterministic=True compares none; declare one")
    for role, keyword, named in (("an output", "output_names", feedback), ("an input", "input_names", feedback.values())):
        for name in named:
            if name not in fields[keyword]:
                hint = did_you_mean(name, fields[keyword])
                raise RecipeError(f"feedback names {name!r} as {role}, which is not in {keyword}{hint or '; declare it there'}")


def _where(key: object) -> CellPattern:
    """``"9-10"``, or ``"torchscript cuda 9-10"`` or a part of it, each with ``+float16`` at its end for one stage only."""
    if not isinstance(key, str):
        return CellPattern(opsets=_opsets("expect", key))
    cells, plus, stage = key.partition("+")
    exporter, rest = _first_word(cells, EXPORTERS)
    device, rest = _first_word(rest, DEVICE_TYPES)
    if meant := did_you_mean(rest.partition(" ")[0], (*EXPORTERS, *DEVICE_TYPES)):
        raise RecipeError(f"expect has the key {key!r}, which does not name an exporter or a device{meant}")
    opsets = _opsets("expect", rest) if rest or not (exporter or device or plus) else None
    return CellPattern(exporter, device, opsets, stage if plus else None)


def _first_word(text: str, words: Collection[str]) -> tuple[str | None, str]:
    """The first word of ``text``, if it is one of ``words``, and the rest."""
    first, _, rest = text.strip().partition(" ")
    return (first, rest.strip()) if first in words else (None, text.strip())


def _expectations(value: object) -> tuple[Expectation, ...]:
    expected = (value,) if isinstance(value, Expectation) else tuple(value) if isinstance(value, Sequence) else ()
    if not expected or not all(isinstance(each, Expectation) for each in expected):
        raise RecipeError(f"expect takes onnx_ci.unsupported(reason) or onnx_ci.known_failure(rule, reason), not {value!r}")
    return expected


def _opsets(keyword: str, value: object) -> tuple[int, ...]:
    try:
        return parse_opsets(value)
    except ValueError as error:
        raise RecipeError(f"{keyword}: {error}") from None


def _dynamic_axes(value: Mapping[str, Mapping[int, str] | Sequence[int]]) -> dict[str, dict[int, str]]:
    """Either of torch's forms as the one with names; unnamed axes get the names that the TorchScript exporter gives them."""
    if not isinstance(value, Mapping):
        raise RecipeError(f'dynamic_axes must map names to axes, such as {{"input": {{0: "batch"}}}}, not {value!r}')
    named: dict[str, dict[int, str]] = {}
    for tensor, axes in value.items():
        if isinstance(axes, Mapping):
            named[tensor] = dict(axes)
        elif isinstance(axes, Sequence) and not isinstance(axes, str):
            named[tensor] = {axis: f"{tensor}_dynamic_axes_{count}" for count, axis in enumerate(axes, start=1)}
        else:
            raise RecipeError(f"dynamic_axes[{tensor!r}] must be {{axis: name}} or a list of axes, not {axes!r}")
        for axis in named[tensor]:
            if not isinstance(axis, int) or isinstance(axis, bool):
                raise RecipeError(f"dynamic_axes[{tensor!r}] has the axis {axis!r}; axes are numbers, counted from 0")
        if isinstance(axes, Mapping):
            for axis, name in axes.items():
                if not isinstance(name, str) or not name:
                    raise RecipeError(f"dynamic_axes[{tensor!r}][{axis}] must be a name or an expression, not {name!r}")
                axis_size_in(tensor, name)
    return named


def _optional(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else parse(value)


def _unchanged(value: Any) -> Any:
    return value


_FIELDS = {"exporter": "exporters"}
"""The fields of :class:`Recipe` whose keywords have other names."""

_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "input_names": lambda value: _names("input_names", value),
    "output_names": lambda value: _names("output_names", value),
    "dynamic_axes": lambda value: _dynamic_axes(value or {}),
    "opsets": _optional(lambda value: _opsets("opsets", value)),
    "exporter": _optional(lambda value: _plugins("exporter", value, EXPORTERS)),
    "devices": _optional(lambda value: _names("devices", value)),
    "runtimes": _optional(lambda value: _plugins("runtimes", value, RUNTIMES)),
    "max_drift": lambda value: _limit("max_drift", value, above=True),
    "rtol": lambda value: _limit("rtol", value),
    "atol": lambda value: _limit("atol", value),
    "weights": _weights,
    "dynamic_sizes": lambda value: {axis: sizes_of(axis, sizes) for axis, sizes in (value or {}).items()},
    "feedback": lambda value: _feedback({} if value is None else value),
    "steps": _optional(_steps),
    "step_inputs": _optional(_step_inputs),
    "inputs": lambda value: _paths(value),
    "then": stages_of,
    "expect": lambda value: {_where(key): _expectations(expected) for key, expected in (value or {}).items()},
    "tags": lambda value: _names("tags", value),
    "manual": _reason,
    "allow": _allowed,
    "allow_warnings": _patterns,
    "timeout": _seconds,
}
"""Functions that check and normalize the values of keywords."""
