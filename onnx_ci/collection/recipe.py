"""Recipes: declarations of exports, and the decorator that creates them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from types import CodeType, FunctionType
from typing import Any, Literal, TypedDict, Unpack, overload

from onnx_ci.environment.versions import RUNTIMES
from onnx_ci.errors import RecipeError, did_you_mean
from onnx_ci.opsets import EXPORTERS, parse_opsets
from onnx_ci.results.rules import RULES
from onnx_ci.results.verdict import Expectation

Limit = float | Mapping[str, float] | None
"""A limit for every output, or limits by output name or data type; ``None`` for the settings' limit."""

_NAME = re.compile(r"[A-Za-z_][\w.-]*")


def unsupported(reason: str, *, seen: str = "") -> Expectation:
    """Expect ``unsupported-operator``: the exporter cannot convert the model at these opsets.

    The expectation is strict: once the exporter supports the operator, the cell fails, so that the expectation is removed.

    Args:
        reason: which operator, and what to do about it.
        seen: the versions with which the failure was seen, such as ``"torch 2.13.0"``.
    """
    return known_failure("unsupported-operator", reason, seen=seen)


def known_failure(rule: str, reason: str, *, seen: str = "") -> Expectation:
    """Expect a cell to break ``rule``, strictly, for ``reason``. For ``seen`` see :func:`unsupported`.

    Raises:
        RecipeError: the rule does not exist, or cannot be expected because a cell that breaks it is not judged.
    """
    if rule not in RULES:
        raise RecipeError(f"there is no rule {rule!r}{did_you_mean(rule, RULES)}")
    if not RULES[rule].can_be_expected:
        raise RecipeError(f"{rule!r} cannot be expected: it reports a cell that was not judged properly; fix the cause")
    return Expectation(rule, reason, seen)


@dataclass(frozen=True)
class CellPattern:
    """The cells that an expectation applies to."""

    exporter: str | None
    """``None`` for both."""
    opsets: tuple[int, ...] | None
    """``None`` for all."""

    def __contains__(self, cell: tuple[str, int]) -> bool:
        exporter, opset = cell
        return self.exporter in (None, exporter) and (self.opsets is None or opset in self.opsets)


@dataclass(frozen=True)
class Recipe:
    """A named declaration of one export. Created by :func:`recipe`; its fields are that decorator's keywords."""

    function: Callable[..., Any]
    _: KW_ONLY
    name: str
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    dynamic_axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    dynamic_shapes: Any = None
    opsets: tuple[int, ...] | None = None
    exporters: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    runtimes: tuple[str, ...] | None = None
    max_drift: Limit = None
    rtol: Limit = None
    atol: Limit = None
    seed: int = 0
    training: bool = False
    nondeterministic: bool = False
    weights: str = "seeded"
    tf32: bool = False
    all_on_device: bool = False
    dynamic_sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    expect: Mapping[CellPattern, tuple[Expectation, ...]] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    manual: str = ""
    allow: tuple[str, ...] = ()
    allow_warnings: tuple[str, ...] = ()
    timeout: float | None = None
    export_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The file that defines the recipe."""
        return self._code.co_filename

    @property
    def line(self) -> int:
        """The line on which the recipe's definition starts, counted from 1."""
        return self._code.co_firstlineno

    @property
    def _code(self) -> CodeType:
        code: CodeType = inspect.unwrap(self.function).__code__
        return code

    @property
    def takes_weights(self) -> bool:
        """Whether the function has a parameter ``weights``, so that the settings can specify trained weights for it."""
        return "weights" in inspect.signature(self.function).parameters

    @property
    def is_trained(self) -> bool:
        """Whether the function itself loads trained weights."""
        return self.weights == "trained"

    def expectations(self, exporter: str, opset: int) -> tuple[Expectation, ...]:
        """What the recipe expects to go wrong with ``exporter`` at ``opset``."""
        return tuple(each for where, expected in self.expect.items() if (exporter, opset) in where for each in expected)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the decorated function."""
        return self.function(*args, **kwargs)


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
    weights: Literal["seeded", "trained"]
    tf32: bool
    all_on_device: bool
    dynamic_sizes: Mapping[str, int | Sequence[int]] | None
    expect: Mapping[Any, Expectation | Sequence[Expectation]] | None
    tags: str | Sequence[str]
    manual: str
    allow: str | Sequence[str]
    allow_warnings: str | Sequence[str]
    timeout: float | None


EXPORT_OPTIONS = frozenset(ExportOptions.__annotations__)
KEYWORDS = tuple(name for name in RecipeKeywords.__annotations__ if name not in EXPORT_OPTIONS)
"""The decorator's own keywords, without those of ``torch.onnx.export``."""


@overload
def recipe(function: Callable[..., Any], /, **keywords: Unpack[RecipeKeywords]) -> Recipe: ...


@overload
def recipe(function: None = None, /, **keywords: Unpack[RecipeKeywords]) -> Callable[[Callable[..., Any]], Recipe]: ...


def recipe(
    function: Callable[..., Any] | None = None, /, **keywords: Unpack[RecipeKeywords]
) -> Recipe | Callable[[Callable[..., Any]], Recipe]:
    """Declare an export. The decorated function returns ``(model, args)`` or ``(model, args, kwargs)``.

    The function runs under a fixed seed. It may take a parameter ``weights``, which is ``None`` unless the settings specify
    trained weights for it.

    Besides the keywords below, those of ``torch.onnx.export`` in :data:`EXPORT_OPTIONS` are passed on unchanged.

    Args:
        function: the function, if the decorator is used without keywords.
        name: the recipe's name, unique in a run. Default: the function's name.
        input_names: names of the graph's inputs, in the order of the tensors in ``args`` (flattened) and then ``kwargs``.
        output_names: names of the graph's outputs, in the order of the tensors that the model returns (flattened).
        dynamic_axes: the dynamic axes, by the name of the input or output: ``{"input": {0: "batch"}}``, or
            ``{"input": [0]}`` for axes without names.
        dynamic_shapes: the same in the form of ``torch.export``: a tree like ``args`` whose leaves are ``{axis: name}``.
            Either form works with both exporters.
        opsets: the opsets that the recipe supports, such as ``"11-17"``. Default: all.
        exporter: ``"torchscript"``, ``"dynamo"`` or both. Default: TorchScript below opset 18, dynamo from 18.
        devices: the devices that the recipe supports, such as ``"cpu"``. Default: all.
        runtimes: the runtimes that support the file, such as ``("onnxruntime", "reference")``. Default: all. Of these, the
            settings' runtimes run it: ONNX Runtime unless they name others.
        max_drift: the largest drift that passes, in units of PyTorch's own rounding error, instead of the settings' limit:
            one number, or numbers by output name or data type: ``{"logits": 64, "float16": 100}``.
        rtol: judge by ``|error| <= atol + rtol * |reference|`` instead of by drift.
        atol: see ``rtol``. Both also take numbers by output name or data type.
        seed: the seed of torch, numpy and random while the function runs.
        training: export in training mode; otherwise ``eval()`` is called on the model.
        nondeterministic: the model draws random numbers on purpose: only shapes, data types and moments are compared.
        weights: ``"trained"`` if the function itself loads trained weights: the model is exported with them. Otherwise
            it is exported with probe weights, which make a wrong layer visible.
        tf32: on CUDA, use TensorFloat-32, which is off on both sides by default. The noise is then that of TensorFloat-32,
            about a thousand times that of float32.
        all_on_device: on CUDA, every node that computes with floating-point numbers must run there. By default, nodes that
            ONNX Runtime places on the CPU are only noted.
        dynamic_sizes: other sizes to try for a dynamic axis, by the axis's name. Default: chosen by onnx-ci.
        expect: known failures, by opset: ``{"9-10": onnx_ci.unsupported("index_put")}``, or several for one opset; by
            exporter, ``"dynamo"``; or by both, ``"torchscript 9-10"``.
        tags: words by which ``--tags``, and pytest's ``-k``, select the recipe.
        manual: why the recipe runs only on request, such as ``"needs 8 GiB"``: by the name of its file, by a glob of
            ``--select`` that does not begin with ``*``, or by one of its tags.
        allow: rules that are reported without failing the cell.
        allow_warnings: regular expressions; exporter warnings that match one of them are not reported.
        timeout: the time limit of each of its cells in seconds, instead of the settings' limit.

    Returns:
        A :class:`Recipe`, or a decorator that creates one.

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
    fields["export_options"] = {name: given[name] for name in EXPORT_OPTIONS if name in given}

    def declare(function: Callable[..., Any]) -> Recipe:
        if not isinstance(inspect.unwrap(function), FunctionType):
            raise RecipeError(f"@recipe decorates a function, not {function!r}; wrap it in one")
        name = fields.get("name") or function.__name__
        if not _NAME.fullmatch(name):
            raise RecipeError(f"{name!r} is not a valid recipe name; use letters, digits, '_', '-' and '.', such as 'resnet50'")
        return Recipe(function, **{**fields, "name": name})

    return declare if function is None else declare(function)


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


def _known(keyword: str, value: str | Sequence[str], kind: str, known: Iterable[str]) -> tuple[str, ...]:
    names = _names(keyword, value)
    for each in names:
        if each not in known:
            raise RecipeError(f"{keyword} names {each!r}, which is not a known {kind}{did_you_mean(each, known)}")
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


def _weights(value: str) -> str:
    if value not in ("seeded", "trained"):
        raise RecipeError(f"weights must be 'seeded' or 'trained', not {value!r}")
    return value


def _reason(value: str) -> str:
    if not isinstance(value, str):
        raise RecipeError(f"manual must be why the recipe runs only on request, such as 'needs 8 GiB', not {value!r}")
    return value


def _sizes(axis: str, value: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (value,) if isinstance(value, int) else tuple(value)
    if not sizes or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in sizes):
        raise RecipeError(f"dynamic_sizes[{axis!r}] must be sizes of at least 1, not {value!r}")
    return sizes


def _where(key: object) -> CellPattern:
    """``"9-10"``, ``"dynamo"`` or ``"torchscript 9-10"``."""
    exporter, opsets = None, key
    if isinstance(key, str) and key.partition(" ")[0] in EXPORTERS:
        exporter, _, opsets = key.partition(" ")
    elif isinstance(key, str) and (meant := did_you_mean(key.partition(" ")[0], EXPORTERS)):
        raise RecipeError(f"expect has the key {key!r}, which does not name an exporter{meant}")
    return CellPattern(exporter, _opsets("expect", opsets) if opsets else None)


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
    "exporter": _optional(lambda value: _known("exporter", value, "exporter", EXPORTERS)),
    "devices": _optional(lambda value: _names("devices", value)),
    "runtimes": _optional(lambda value: _known("runtimes", value, "runtime", RUNTIMES)),
    "max_drift": lambda value: _limit("max_drift", value, above=True),
    "rtol": lambda value: _limit("rtol", value),
    "atol": lambda value: _limit("atol", value),
    "weights": _weights,
    "dynamic_sizes": lambda value: {axis: _sizes(axis, sizes) for axis, sizes in (value or {}).items()},
    "expect": lambda value: {_where(key): _expectations(expected) for key, expected in (value or {}).items()},
    "tags": lambda value: _names("tags", value),
    "manual": _reason,
    "allow": _allowed,
    "allow_warnings": _patterns,
    "timeout": _seconds,
}
"""Functions that check and normalize the values of keywords."""
