"""Recipes: what a user declares about one export, and the decorator that declares it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from types import CodeType, FunctionType
from typing import Any

from onnx_ci.environment import RUNTIMES
from onnx_ci.errors import RecipeError, did_you_mean
from onnx_ci.opsets import EXPORTERS, parse_opsets
from onnx_ci.rules import RULES

EXPORT_OPTIONS = frozenset(
    {
        "autograd_inlining",
        "custom_opsets",
        "custom_translation_table",
        "do_constant_folding",
        "export_params",
        "export_modules_as_functions",
        "keep_initializers_as_inputs",
        "operator_export_type",
        "optimize",
    }
)
"""Keywords of ``torch.onnx.export`` that a recipe hands on as they are."""

Limit = float | Mapping[str, float] | None
"""A limit for every output, or limits by output name or data type; ``None`` where the settings decide."""

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_OWN_KEYWORDS = (
    "name",
    "input_names",
    "output_names",
    "dynamic_axes",
    "dynamic_shapes",
    "opsets",
    "exporter",
    "devices",
    "runtimes",
    "drift",
    "rtol",
    "atol",
    "seed",
    "random",
    "training",
    "weights",
    "allow",
    "allow_warnings",
    "probes",
    "expect",
    "tags",
    "on_request",
    "timeout",
)


@dataclass(frozen=True)
class Expectation:
    """A declared gap: the cell is expected to break ``rule``, for a reason worth writing down."""

    rule: str
    reason: str
    seen: str = ""
    """The versions that the gap was seen with."""

    def __str__(self) -> str:
        return f"{self.reason} (seen with {self.seen})" if self.seen else self.reason


def unsupported(reason: str, *, seen: str = "") -> Expectation:
    """Expect ``unsupported-operator``: the exporter cannot write the model at these opsets.

    The expectation is strict. When the exporter learns the operator, the cell is reported, so that the claim goes away.

    Args:
        reason: which operator, and what to do about it.
        seen: the versions that the gap was seen with, such as ``"torch 2.13.0"``.
    """
    return Expectation("unsupported-operator", reason, seen)


def fails(rule: str, reason: str, *, seen: str = "") -> Expectation:
    """Expect a cell to break ``rule``, strictly, for ``reason``. For ``seen`` see :func:`unsupported`.

    Raises:
        RecipeError: there is no such rule.
    """
    if rule not in RULES:
        raise RecipeError(f"there is no rule {rule!r}{did_you_mean(rule, RULES)}")
    return Expectation(rule, reason, seen)


@dataclass(frozen=True)
class Where:
    """The cells that an expectation is for."""

    exporter: str | None
    """``None`` for both."""
    opsets: tuple[int, ...] | None
    """``None`` for all."""

    def __contains__(self, cell: tuple[str, int]) -> bool:
        exporter, opset = cell
        return self.exporter in (None, exporter) and (self.opsets is None or opset in self.opsets)


@dataclass(frozen=True)
class Recipe:
    """A named declaration of one export. Made by :func:`recipe`; its fields are that decorator's keywords."""

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
    drift: Limit = None
    rtol: Limit = None
    atol: Limit = None
    seed: int = 0
    training: bool = False
    random: bool = False
    weights: str = "seeded"
    probes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    expect: Mapping[Where, tuple[Expectation, ...]] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    on_request: str = ""
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
        """Whether the function has a parameter ``weights``, so that the settings can name trained weights for it."""
        return "weights" in inspect.signature(self.function).parameters

    @property
    def is_trained(self) -> bool:
        """Whether the function itself loads trained weights."""
        return self.weights == "trained"

    def expectations(self, exporter: str, opset: int) -> tuple[Expectation, ...]:
        """What the recipe expects to go wrong with ``exporter`` at ``opset``."""
        return tuple(each for where, expected in self.expect.items() if (exporter, opset) in where for each in expected)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the recipe's function as it was written."""
        return self.function(*args, **kwargs)


def recipe(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    input_names: Sequence[str] = (),
    output_names: Sequence[str] = (),
    dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int]] | None = None,
    dynamic_shapes: Any = None,
    opsets: int | str | Iterable[int | str] | None = None,
    exporter: str | Sequence[str] | None = None,
    devices: str | Sequence[str] | None = None,
    runtimes: str | Sequence[str] | None = None,
    drift: Limit = None,
    rtol: Limit = None,
    atol: Limit = None,
    seed: int = 0,
    training: bool = False,
    random: bool = False,
    weights: str = "seeded",
    probes: Mapping[str, int | Sequence[int]] | None = None,
    expect: Mapping[Any, Expectation | Sequence[Expectation]] | None = None,
    tags: Sequence[str] = (),
    on_request: str = "",
    allow: Sequence[str] = (),
    allow_warnings: Sequence[str] = (),
    timeout: float | None = None,
    **export_options: Any,
) -> Any:
    """Declare an export. The decorated function returns ``(model, args)`` or ``(model, args, kwargs)``.

    The function runs under a fixed seed. It may take a parameter ``weights``, which is ``None`` unless the settings name
    trained weights for it.

    Args:
        name: the recipe's name, unique in a run; the function's name unless given.
        input_names: the graph's inputs, in the order of the tensors in ``args`` (flattened) and then ``kwargs``.
        output_names: the graph's outputs, in the order of the tensors that the model returns (flattened).
        dynamic_axes: the axes that may vary, by the name of the input or output: ``{"input": {0: "batch"}}``, or
            ``{"input": [0]}`` for axes that need no name.
        dynamic_shapes: the same for the dynamo exporter, as ``torch.export`` writes it: a tree like ``args`` whose leaves
            are ``{axis: name}``. Either one serves both exporters.
        opsets: the opsets for which the recipe holds, such as ``"11-17"``; all unless given.
        exporter: ``"torchscript"``, ``"dynamo"`` or both; unless given, TorchScript below opset 18 and dynamo from there.
        devices: the devices for which the recipe holds, such as ``"cpu"``; all unless given.
        runtimes: what can run the file, such as ``("onnxruntime", "reference")``; all unless given, and ONNX Runtime is the
            one that does unless the settings name others.
        drift: the drift that just passes, in units of PyTorch's own rounding, in place of the settings' limit; one
            number, or numbers by output name or data type: ``{"logits": 64, "float16": 100}``.
        rtol: judge by ``|error| <= atol + rtol * |reference|`` instead of by drift.
        atol: see ``rtol``. Both take numbers by output name or data type, too.
        seed: the seed of torch, numpy and random while the function runs.
        training: export in training mode; otherwise the model is put in ``eval()``.
        random: the model draws random numbers on purpose; then shapes, data types and moments are compared.
        weights: ``"trained"`` if the function itself loads trained weights: they are exported as they are. Otherwise
            the cell is exported with probe weights, under which a wrong layer shows.
        probes: other sizes to try for a dynamic axis, by the axis' name; chosen by onnx-ci unless given.
        expect: known gaps, by opset: ``{"9-10": onnx_ci.unsupported("index_put")}``, or several for one opset; by exporter,
            ``"dynamo"``; or by both, ``"torchscript 9-10"``.
        tags: words that ``--tags``, and pytest's ``-k``, select the recipe by.
        on_request: why the recipe is no part of a run that does not ask for it, such as ``"needs 8 GiB"``. It runs where its
            file is named, a glob of ``--select`` that does not begin with ``*``, or one of its tags.
        allow: rules that are reported without failing the cell.
        allow_warnings: regular expressions; a warning of the exporter that one of them matches is not reported.
        timeout: seconds that one of its cells may take, in place of the settings' limit.
        **export_options: other keywords of ``torch.onnx.export``, handed on as they are.

    Returns:
        A :class:`Recipe`, or a decorator that makes one.

    Raises:
        RecipeError: a keyword is misspelt or its value cannot be used.
    """
    for option in export_options:
        if option not in EXPORT_OPTIONS:
            known = (*_OWN_KEYWORDS, *EXPORT_OPTIONS)
            raise RecipeError(f"@recipe has no keyword {option!r}{did_you_mean(option, known)}")
    if weights not in ("seeded", "trained"):
        raise RecipeError(f"weights is 'seeded' or 'trained', not {weights!r}")
    if dynamic_axes and dynamic_shapes is not None:
        raise RecipeError("@recipe takes dynamic_axes or dynamic_shapes, not both; either one serves both exporters")

    def declare(function: Callable[..., Any]) -> Recipe:
        if not isinstance(inspect.unwrap(function), FunctionType):
            raise RecipeError(f"@recipe decorates a function, not {function!r}; wrap it in one")
        own_name = function.__name__ if name is None else name
        if not _NAME.fullmatch(own_name):
            raise RecipeError(f"{own_name!r} is no recipe name; use letters, digits, '_', '-' and '.', such as 'resnet50'")
        return Recipe(
            function,
            name=own_name,
            input_names=_names("input_names", input_names),
            output_names=_names("output_names", output_names),
            dynamic_axes=_dynamic_axes(dynamic_axes or {}),
            dynamic_shapes=dynamic_shapes,
            opsets=None if opsets is None else _opsets("opsets", opsets),
            exporters=None if exporter is None else _known("exporter", exporter, "exporter", EXPORTERS),
            devices=None if devices is None else _names("devices", devices),
            runtimes=None if runtimes is None else _known("runtimes", runtimes, "runtime", RUNTIMES),
            drift=_limit("drift", drift, above=True),
            rtol=_limit("rtol", rtol),
            atol=_limit("atol", atol),
            seed=seed,
            training=training,
            random=random,
            weights=weights,
            probes={axis: _sizes(axis, sizes) for axis, sizes in (probes or {}).items()},
            expect={_where(key): _expectations(expected) for key, expected in (expect or {}).items()},
            tags=_names("tags", tags),
            on_request=_reason(on_request),
            allow=_known("allow", allow, "rule", RULES),
            allow_warnings=_patterns(allow_warnings),
            timeout=_seconds(timeout),
            export_options=dict(export_options),
        )

    return declare if function is None else declare(function)


def _names(keyword: str, value: str | Sequence[str]) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value)
    for each in names:
        if not isinstance(each, str) or not each:
            raise RecipeError(f"{keyword} must be names, not {each!r}")
    repeated = sorted({each for each in names if names.count(each) > 1})
    if repeated:
        raise RecipeError(f"{keyword} names {repeated[0]!r} twice; every name must be its own")
    return names


def _known(keyword: str, value: str | Sequence[str], kind: str, known: Iterable[str]) -> tuple[str, ...]:
    names = _names(keyword, value)
    for each in names:
        if each not in known:
            raise RecipeError(f"{keyword} names {each!r}, which is no {kind}{did_you_mean(each, known)}")
    return names


def _patterns(value: str | Sequence[str]) -> tuple[str, ...]:
    patterns = _names("allow_warnings", value)
    for each in patterns:
        try:
            re.compile(each)
        except re.error as error:
            raise RecipeError(f"allow_warnings has {each!r}, which is no regular expression: {error}") from None
    return patterns


def _limit(keyword: str, value: Limit, *, above: bool = False) -> Limit:
    for each in value.values() if isinstance(value, Mapping) else [] if value is None else [value]:
        usable = isinstance(each, (int, float)) and not isinstance(each, bool) and each < float("inf")
        if not usable or each < 0 or (above and each == 0):
            raise RecipeError(f"{keyword} must be a number {'above' if above else 'from'} 0, not {each!r}")
    return value


def _seconds(value: float | None) -> float | None:
    if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf")):
        raise RecipeError(f"timeout must be seconds, a number above 0, not {value!r}")
    return value


def _reason(value: str) -> str:
    if not isinstance(value, str):
        raise RecipeError(f"on_request must be the reason why the recipe is left out, such as 'needs 8 GiB', not {value!r}")
    return value


def _sizes(axis: str, value: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (value,) if isinstance(value, int) else tuple(value)
    if not sizes or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in sizes):
        raise RecipeError(f"probes[{axis!r}] must be sizes from 1 upwards, not {value!r}")
    return sizes


def _where(key: object) -> Where:
    """``"9-10"``, ``"dynamo"`` or ``"torchscript 9-10"``."""
    exporter, opsets = None, key
    if isinstance(key, str) and key.partition(" ")[0] in EXPORTERS:
        exporter, _, opsets = key.partition(" ")
    elif isinstance(key, str) and (meant := did_you_mean(key.partition(" ")[0], EXPORTERS)):
        raise RecipeError(f"expect has the key {key!r}, which names no exporter{meant}")
    return Where(exporter, _opsets("expect", opsets) if opsets else None)


def _expectations(value: object) -> tuple[Expectation, ...]:
    expected = (value,) if isinstance(value, Expectation) else tuple(value) if isinstance(value, Sequence) else ()
    if not expected or not all(isinstance(each, Expectation) for each in expected):
        raise RecipeError(f"expect takes onnx_ci.unsupported(reason) or onnx_ci.fails(rule, reason), not {value!r}")
    return expected


def _opsets(keyword: str, value: object) -> tuple[int, ...]:
    try:
        return parse_opsets(value)
    except ValueError as error:
        raise RecipeError(f"{keyword}: {error}") from None


def _dynamic_axes(value: Mapping[str, Mapping[int, str] | Sequence[int]]) -> dict[str, dict[int, str]]:
    """Both of torch's forms as the one with names; unnamed axes get the names that the TorchScript exporter gives."""
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
