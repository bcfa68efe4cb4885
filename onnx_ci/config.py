"""Settings: one table of options, read from ``[tool.onnx-ci]``, the environment and flags into one frozen value.

Flags win over the environment, the environment over ``pyproject.toml``, and that over the defaults. The same name serves
everywhere: ``recipe-files`` is ``--recipe-files`` of ``onnx-ci``, ``--onnx-recipe-files`` of pytest,
``ONNX_CI_RECIPE_FILES`` in the environment and ``recipe-files`` in ``[tool.onnx-ci]``.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onnx_ci.environment import RUNTIMES
from onnx_ci.errors import ConfigurationError, did_you_mean
from onnx_ci.opsets import EXPORTERS, HIGHEST_PLAUSIBLE_OPSET, format_opsets, parse_opsets
from onnx_ci.shards import Shard, parse_shard

ENVIRONMENT_PREFIX = "ONNX_CI_"
TABLE = "tool.onnx-ci"
DEVICE_TYPES = ("cpu", "cuda")
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")

# --- values: how each kind is read, and which of TOML's values it can be read from, as JSON Schema -------------------

Schema = Mapping[str, Any]


def _listed(word: str) -> Schema:
    """The schema of a list, or a text with commas, of words that match a regular expression."""
    text = rf"^[\s,]*(?:{word})\s*(?:,[\s,]*(?:{word})\s*)*[\s,]*$"
    return {**_WORDS, "pattern": text, "items": {"type": "string", "pattern": rf"^\s*(?:{word})?\s*$"}}


_WORDS: Schema = {
    "type": ["string", "array"],
    "pattern": r"[^\s,]",
    "items": {"type": "string"},
    "contains": {"pattern": r"\S"},
}


def _strings(value: object) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"must be a list of words, not {value!r}")
    words = tuple(part.strip() for part in parts if part.strip())
    if not words:
        raise ValueError("is empty")
    return tuple(dict.fromkeys(words))


def _devices(value: object) -> tuple[str, ...]:
    return tuple(map(parse_device, _strings(value)))


def parse_device(device: str) -> str:
    """``device``, if it is one.

    Raises:
        ValueError: it is not; the message says what is.
    """
    if not _DEVICE.fullmatch(device):
        raise ValueError(f"{device!r} is no device; use cpu, cuda or cuda:1{did_you_mean(device, DEVICE_TYPES)}")
    return device


def _opsets_schema() -> Schema:
    part = r"\s*\d+(?:\s*-(?:\s*\d+)?)?\s*"
    one = {"minimum": 1, "maximum": HIGHEST_PLAUSIBLE_OPSET, "pattern": rf"^{part}(?:,{part})*$"}
    items = {"type": ["integer", "string"], **one}
    return {"type": ["integer", "string", "array"], **one, "minItems": 1, "items": items}


def _some_of(kind: str, choices: Sequence[str]) -> Callable[[object], tuple[str, ...]]:
    """A parser of lists of words of which there are only some."""

    def parse(value: object) -> tuple[str, ...]:
        words = _strings(value)
        for word in words:
            if word not in choices:
                raise ValueError(f"{word!r} is no {kind}; use {', '.join(choices)}{did_you_mean(word, choices)}")
        return words

    return parse


STAGES = ("probe-weights", "purity", "fresh", "sizes", "special", "observability")
"""What a cell does beyond the example, and what a setting can turn off by name."""


def _weights(value: object) -> Mapping[str, str]:
    """``alexnet=DEFAULT,lstm=lstm.pt``, or one value without a name for every recipe that takes weights (key ``*``)."""
    if isinstance(value, Mapping):
        pairs = {str(key): str(item) for key, item in value.items()}
    else:
        parts = (part.partition("=") for part in _strings(value))
        pairs = {name if equals else "*": weights if equals else name for name, equals, weights in parts}
    return MappingProxyType(pairs)


_NUMBER = r"\+?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_LIMIT: Schema = {"type": ["number", "string"], "exclusiveMinimum": 0, "pattern": rf"^\s*{_NUMBER}\s*$"}


def _limit(value: object) -> float:
    try:
        limit = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        limit = -1.0
    if not 0 < limit < float("inf") or isinstance(value, bool):
        raise ValueError(f"must be a number above 0, not {value!r}")
    return limit


_COUNT: Schema = {"type": ["integer", "string"], "minimum": 1, "pattern": r"^\s*\+?[\d_]+\s*$"}


def _count(value: object) -> int:
    try:
        count = int(value) if isinstance(value, (int, str)) else 0
    except ValueError:
        count = 0
    if count < 1 or isinstance(value, bool):
        raise ValueError(f"must be a whole number from 1, not {value!r}")
    return count


BASELINES = ("off", "check", "update")


def _baseline(value: object) -> str:
    if value not in BASELINES:
        raise ValueError(f"is off, check or update, not {value!r}{did_you_mean(str(value), BASELINES)}")
    return str(value)


POLICIES = ("error", "note", "ignore")
BASELINE_POLICY: Mapping[str, str] = MappingProxyType(
    {
        "missing": "error",
        "signature": "error",
        "format": "error",
        "operators": "error",
        "size": "error",
        "drift": "error",
        "values": "error",
        "weights": "error",
        "inputs": "error",
        "observability": "note",
        "versions": "note",
    }
)
"""What each kind of difference from a baseline is, unless the settings say otherwise."""

BASELINE_LIMITS: Mapping[str, float] = MappingProxyType(
    {"counts": 0.0, "size": 0.05, "drift": 4.0, "noise": 32.0, "values": 64.0, "observability": 0.1}
)
"""How much each number may differ from a baseline: counts by so many, sizes by such a share, drift and noise by such a
factor, values by so many times their noise, observability by such a share of the model."""


def _pairs(value: object, known: Mapping[str, Any], parse: Callable[[object], Any]) -> Mapping[str, Any]:
    """``name=value,name=value``, or the same as a table, over what is ``known``."""
    if isinstance(value, Mapping):
        pairs = dict(value)
    else:
        pairs = {}
        for part in _strings(value):
            name, equals, text = (word.strip() for word in part.partition("="))
            if not equals:
                raise ValueError(f"must be NAME=VALUE, not {part!r}; the names are {', '.join(known)}")
            pairs[name] = text
    for name in pairs:
        if name not in known:
            raise ValueError(f"has no {name!r}; use {', '.join(known)}{did_you_mean(str(name), known)}")
    return MappingProxyType({**known, **{name: parse(each) for name, each in pairs.items()}})


def _policy(value: object) -> str:
    if value not in POLICIES:
        raise ValueError(f"{value!r} is no policy; use {', '.join(POLICIES)}{did_you_mean(str(value), POLICIES)}")
    return str(value)


def _allowance(value: object) -> float:
    try:
        allowance = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        allowance = -1.0
    if not 0 <= allowance < float("inf") or isinstance(value, bool):
        raise ValueError(f"must be a number from 0, not {value!r}")
    return allowance


_ALLOWANCE: Schema = {"type": ["number", "string"], "minimum": 0, "pattern": _LIMIT["pattern"]}


def _pairs_schema(known: Mapping[str, Any], word: str, value: Schema) -> Schema:
    pair = rf"(?:{'|'.join(known)})\s*=\s*(?:{word})"
    return {
        **_listed(pair),
        "type": ["string", "array", "object"],
        "properties": dict.fromkeys(known, value),
        "additionalProperties": False,
    }


def _show_pairs(known: Mapping[str, Any], show: Callable[[Any], str]) -> Callable[[Mapping[str, Any]], str]:
    """What differs from what is known."""
    return lambda pairs: ",".join(f"{name}={show(value)}" for name, value in pairs.items() if value != known[name])


ISOLATIONS = ("process", "none")


def _isolation(value: object) -> str:
    if value not in ISOLATIONS:
        raise ValueError(f"is process or none, not {value!r}{did_you_mean(str(value), ISOLATIONS)}")
    if value == "process" and sys.platform != "linux":
        raise ValueError("process needs Linux; use none")
    return str(value)


_ON, _OFF = ("true", "1"), ("false", "0")
_SWITCH: Schema = {"enum": [True, False, *_ON, *_OFF]}


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value not in (*_ON, *_OFF) or not isinstance(value, str):
        raise ValueError(f"is true or false, not {value!r}")
    return value in _ON


_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTkmgt])(?:[iI]?[bB])?")


def _size(value: object) -> int:
    match = _SIZE.fullmatch(str(value).strip())
    if match is None or not float(match[1]):
        raise ValueError(f"must be a size such as 8GiB or 512MiB, not {value!r}")
    return int(float(match[1]) * _UNITS[match[2].upper()])


_TEXT: Schema = {"type": "string", "minLength": 1}


def _path(value: object) -> Path:
    if not isinstance(value, (str, os.PathLike)) or not str(value):
        raise ValueError(f"must be a path, not {value!r}")
    return Path(value)


OFF = "off"


def _folder_or_off(value: object) -> Path | None:
    return None if value == OFF else _path(value)


# --- options --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Option:
    """One thing that can be set."""

    name: str
    """The key in ``[tool.onnx-ci]`` and, with its prefix, the flag."""
    parse: Callable[[object], Any]
    """From a flag's text or a TOML value; raises ValueError with what is wrong."""
    default: Any
    metavar: str
    help: str
    schema: Schema
    """The TOML values that ``parse`` takes, as JSON Schema."""
    show: Callable[[Any], str] = str
    """The value as a flag would say it."""
    is_switch: bool = False
    """Whether its flag takes no value: who writes it means ``true``."""

    @property
    def field(self) -> str:
        """The option's name as an identifier."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return ENVIRONMENT_PREFIX + self.field.upper()


OPTIONS = (
    Option(
        name="opsets",
        parse=parse_opsets,
        default=None,
        metavar="SPEC",
        schema=_opsets_schema(),
        help="Opsets to export at, such as 9-17, 9,13,17 or 18- (to the newest). Default: what each recipe declares, or 9-17.",
        show=format_opsets,
    ),
    Option(
        name="sample",
        parse=_count,
        default=None,
        metavar="N",
        schema=_COUNT,
        help="Run each recipe at only N of its opsets: the lowest, the highest, and others evenly between. Default: all.",
    ),
    Option(
        name="devices",
        parse=_devices,
        default=("cpu",),
        metavar="LIST",
        schema=_listed(_DEVICE.pattern),
        help="Devices to build, export and run on: cpu, cuda, cuda:1. Default: cpu.",
        show=",".join,
    ),
    Option(
        name="require-devices",
        parse=_switch,
        default=False,
        metavar="BOOL",
        schema=_SWITCH,
        help="Whether a cell whose device is not here is an error (exit code 4). Default: it is skipped, with the reason.",
        show=lambda on: str(on).lower(),
        is_switch=True,
    ),
    Option(
        name="exporters",
        parse=_some_of("exporter", EXPORTERS),
        default=None,
        metavar="LIST",
        schema=_listed("|".join(EXPORTERS)),
        help="torchscript, dynamo or both. Default: what each recipe declares, or TorchScript below 18, dynamo from there.",
        show=",".join,
    ),
    Option(
        name="runtimes",
        parse=_some_of("runtime", RUNTIMES),
        default=None,
        metavar="LIST",
        schema=_listed("|".join(RUNTIMES)),
        help="What runs each file: onnxruntime, reference (ONNX's own evaluator), openvino. Default: what each recipe "
        "declares, or onnxruntime.",
        show=",".join,
    ),
    Option(
        name="select",
        parse=_strings,
        default=None,
        metavar="GLOBS",
        schema=_WORDS,
        help="Run only the cells whose id, or recipe::cell, matches: 'resnet*::opset1?-cpu'.",
        show=",".join,
    ),
    Option(
        name="tags",
        parse=_strings,
        default=None,
        metavar="LIST",
        schema=_WORDS,
        help="Run only the recipes that have one of these tags, those that run on request only included.",
        show=",".join,
    ),
    Option(
        name="shard",
        parse=parse_shard,
        default=None,
        metavar="N/M",
        schema={"type": "string", "pattern": r"^\s*\d+\s*/\s*\d+\s*$"},
        help="Run only the Nth of M parts of the cells, to share them out to several machines: 2/5.",
    ),
    Option(
        name="durations",
        parse=_path,
        default=None,
        metavar="PATH",
        schema=_TEXT,
        help="JSON report of an earlier run, or a folder of them, so that shards take about as long as each other. Default: "
        "cells count the same.",
    ),
    Option(
        name="recipe-files",
        parse=_strings,
        default=("onnx_recipes.py", "conftest.py"),
        metavar="GLOBS",
        schema=_WORDS,
        help="Files that hold recipes: names, or paths from the project's root. Default: onnx_recipes.py, conftest.py.",
        show=",".join,
    ),
    Option(
        name="packages",
        parse=_strings,
        default=(),
        metavar="LIST",
        schema=_WORDS,
        help="Installed packages whose modules hold recipes, such as onnx_ci.recipes. Used where no path is given.",
        show=",".join,
    ),
    Option(
        name="weights",
        parse=_weights,
        default=MappingProxyType({}),
        metavar="NAME=WEIGHTS",
        schema={**_WORDS, "type": ["string", "array", "object"], "additionalProperties": {"type": "string"}},
        help="Trained weights for recipes that take them: alexnet=DEFAULT,lstm=lstm.pt; DEFAULT alone means every recipe. "
        "Default: seeded weights, offline.",
        show=lambda weights: ",".join(value if name == "*" else f"{name}={value}" for name, value in weights.items()),
    ),
    Option(
        name="drift",
        parse=_limit,
        default=16.0,
        metavar="LIMIT",
        schema=_LIMIT,
        help="The drift that just passes, in units of PyTorch's own rounding. Default: 16.",
        show=lambda limit: f"{limit:g}",
    ),
    Option(
        name="without",
        parse=_some_of("stage", STAGES),
        default=(),
        metavar="STAGES",
        schema=_listed("|".join(STAGES)),
        help="Leave out stages, to save their time, and prove less: " + ", ".join(STAGES) + ". Default: none.",
        show=",".join,
    ),
    Option(
        name="isolation",
        parse=_isolation,
        # On macOS system libraries abort in a fork that uses them.
        default="process" if sys.platform == "linux" else "none",
        metavar="KIND",
        schema={"enum": list(ISOLATIONS)},
        help="process: what crashes, hangs or eats memory costs its own cell only; none: everything in one process, for "
        "debuggers. Default: process on Linux, none elsewhere.",
    ),
    Option(
        name="jobs",
        parse=_count,
        default=None,
        metavar="N",
        schema=_COUNT,
        help="How many cells run at once, each in a process. Default: the cores, divided by the workers of pytest-xdist.",
    ),
    Option(
        name="timeout",
        parse=_limit,
        default=900.0,
        metavar="SECONDS",
        schema=_LIMIT,
        help="The time that a cell, or the preparation of a recipe's cells, may take; with isolation. Default: 900.",
        show=lambda seconds: f"{seconds:g}",
    ),
    Option(
        name="memory-limit",
        parse=_size,
        default=None,
        metavar="SIZE",
        schema={"type": "string", "pattern": rf"^\s*{_SIZE.pattern}\s*$"},
        help="The memory that a cell's process may use, such as 8GiB; with isolation. Default: 80 % of the machine's.",
        show=lambda size: f"{size / 2**20:g}MiB",
    ),
    Option(
        name="cache",
        parse=_folder_or_off,
        default=Path(".onnx-ci-cache"),
        metavar="DIR",
        schema=_TEXT,
        help="Where verdicts are kept, relative to the project's root: a cell of which nothing has changed is not run "
        "again; off runs all. Default: .onnx-ci-cache.",
        show=lambda folder: OFF if folder is None else str(folder),
    ),
    Option(
        name="baseline",
        parse=_baseline,
        default="off",
        metavar="WHAT",
        schema={"enum": list(BASELINES)},
        help="check: what each cell made is held against its committed baseline; update: it is recorded there. Default: off.",
    ),
    Option(
        name="baseline-folder",
        parse=_path,
        default=Path("onnx-baselines"),
        metavar="DIR",
        schema=_TEXT,
        help="Where baselines are kept, relative to the project's root, to be committed. Default: onnx-baselines.",
    ),
    Option(
        name="baseline-policy",
        parse=lambda value: _pairs(value, BASELINE_POLICY, _policy),
        default=BASELINE_POLICY,
        metavar="KIND=POLICY",
        schema=_pairs_schema(BASELINE_POLICY, "|".join(POLICIES), {"enum": list(POLICIES)}),
        help=f"What a difference from the baseline is: {', '.join(POLICIES)}; such as size=note,operators=ignore. Kinds: "
        f"{', '.join(BASELINE_POLICY)}. Default: error, and note for observability and versions.",
        show=_show_pairs(BASELINE_POLICY, str),
    ),
    Option(
        name="baseline-limits",
        parse=lambda value: _pairs(value, BASELINE_LIMITS, _allowance),
        default=BASELINE_LIMITS,
        metavar="NAME=NUMBER",
        schema=_pairs_schema(BASELINE_LIMITS, _NUMBER, _ALLOWANCE),
        help="How much may differ from the baseline: counts by so many, size and observability by a share, drift and noise "
        "by a factor, values by so many times their noise. Default: "
        + ", ".join(f"{name}={value:g}" for name, value in BASELINE_LIMITS.items())
        + ".",
        show=_show_pairs(BASELINE_LIMITS, lambda limit: f"{limit:g}"),
    ),
    Option(
        name="report",
        parse=_path,
        default=None,
        metavar="PATH",
        schema=_TEXT,
        help="Write the whole report as JSON.",
    ),
    Option(
        name="artifacts",
        parse=_path,
        default=None,
        metavar="DIR",
        schema=_TEXT,
        help="Keep the ONNX files as DIR/RECIPE/CELL.onnx. Default: they are removed once judged.",
    ),
)
_BY_NAME = {option.name: option for option in OPTIONS}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting of a run. ``origins`` tells where each value came from."""

    root: Path
    opsets: tuple[int, ...] | None
    sample: int | None
    devices: tuple[str, ...]
    require_devices: bool
    exporters: tuple[str, ...] | None
    runtimes: tuple[str, ...] | None
    select: tuple[str, ...] | None
    tags: tuple[str, ...] | None
    shard: Shard | None
    durations: Path | None
    recipe_files: tuple[str, ...]
    packages: tuple[str, ...]
    weights: Mapping[str, str]
    drift: float
    without: tuple[str, ...]
    isolation: str
    jobs: int | None
    timeout: float
    memory_limit: int | None
    cache: Path | None
    baseline: str
    baseline_folder: Path
    baseline_policy: Mapping[str, str]
    baseline_limits: Mapping[str, float]
    report: Path | None
    artifacts: Path | None
    origins: Mapping[str, str]

    @property
    def cache_folder(self) -> Path | None:
        """Where verdicts are kept, or ``None`` where none are."""
        return None if self.cache is None else self.root / self.cache

    def weights_for(self, recipe: str) -> str | None:
        """The trained weights that the settings name for ``recipe``."""
        return self.weights.get(recipe, self.weights.get("*"))

    def as_json(self) -> dict[str, Any]:
        """Every setting as ``{"value": …, "from": …}``, values as a flag would say them."""
        shown: dict[str, Any] = {}
        for option in OPTIONS:
            value = getattr(self, option.field)
            text = None if value is None and option.default is None else option.show(value)
            shown[option.name] = {"value": text or None, "from": self.origins[option.field]}
        return shown


def find_root(start: Path) -> Path:
    """The nearest directory from ``start`` upwards that holds a ``pyproject.toml``, or ``start``."""
    start = start.resolve()
    return next((folder for folder in (start, *start.parents) if (folder / "pyproject.toml").is_file()), start)


class SettingError(ConfigurationError):
    """A setting that cannot be used.

    Attributes:
        line: where ``pyproject.toml`` has it, counted from 1; ``None`` if it stands elsewhere.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def load_settings(
    root: Path,
    *,
    flags: Mapping[str, object] | None = None,
    flag_prefix: str = "",
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Settle every option.

    Args:
        root: the project's root; its ``pyproject.toml`` is read.
        flags: what the command line or the caller gave, by an option's field name; ``None`` means not given.
        flag_prefix: what stands between ``--`` and an option's name where the flags came from.
        environment: the environment; that of the process unless given.

    Raises:
        SettingError: a key is unknown or a value cannot be used. The message names the place and the nearest key.
    """
    settings, problems = read_settings(root, flags=flags, flag_prefix=flag_prefix, environment=environment)
    if problems:
        raise problems[0]
    return settings


def read_settings(
    root: Path,
    *,
    flags: Mapping[str, object] | None = None,
    flag_prefix: str = "",
    environment: Mapping[str, str] | None = None,
) -> tuple[Settings, list[SettingError]]:
    """Like :func:`load_settings`, with everything that is wrong; what cannot be used is left out."""
    values: dict[str, Any] = {option.field: option.default for option in OPTIONS}
    origins = dict.fromkeys(values, "default")
    problems: list[SettingError] = []

    def settle(option: Option, value: object, origin: str, line: int | None = None) -> None:
        try:
            values[option.field] = option.parse(value)
        except ValueError as error:
            problems.append(SettingError(f"{origin}: {error}", line))
        else:
            origins[option.field] = origin

    try:
        table, text = _table(root)
    except SettingError as error:
        problems.append(error)
        table, text = {}, ""
    for key, value in table.items():
        line = _line_of(key, text)
        if key in _BY_NAME:
            settle(_BY_NAME[key], value, f"[{TABLE}] {key}", line)
        else:
            problems.append(SettingError(f"[{TABLE}] has no setting {key!r}{did_you_mean(key, _BY_NAME)}", line))

    by_variable = {option.variable: option for option in OPTIONS}
    for variable, given in sorted((os.environ if environment is None else environment).items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or not given:
            continue
        if variable in by_variable:
            settle(by_variable[variable], given, variable)
        else:
            nearest = did_you_mean(variable, by_variable)
            problems.append(SettingError(f"{variable} in the environment sets nothing{nearest}"))

    for option in OPTIONS:
        flag = (flags or {}).get(option.field)
        if flag is not None:
            settle(option, flag, f"--{flag_prefix}{option.name}")

    return Settings(root=root, origins=MappingProxyType(origins), **values), problems


def _table(root: Path) -> tuple[Mapping[str, object], str]:
    """The settings' table, and the text of the file that it stands in."""
    file = root / "pyproject.toml"
    try:
        text = file.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except FileNotFoundError:
        return {}, ""
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        line = re.search(r"at line (\d+)", str(error))
        raise SettingError(f"{file} cannot be read: {error}", int(line[1]) if line else 1) from None
    tools = document.get("tool")
    tools = tools if isinstance(tools, dict) else {}
    for name in tools:
        if name != "onnx-ci" and name.lower().replace("_", "-") == "onnx-ci":
            raise SettingError(
                f"{file} has a table [tool.{name}], which nobody reads; it is [{TABLE}]", _line_of("", text, name)
            )
    table = tools.get("onnx-ci", {})
    if not isinstance(table, dict):
        raise SettingError(f"{file}: [{TABLE}] must be a table", _line_of("onnx-ci", text))
    return table, text


def _line_of(key: str, text: str, table: str = "onnx-ci") -> int:
    """The line on which a table of ``pyproject.toml`` has ``key``; that of the table where it is written in another way."""
    lines = text.splitlines()
    header = re.compile(rf"""\s*\[\s*tool\s*\.\s*["']?{re.escape(table)}\b""")
    start = next((number for number, line in enumerate(lines) if header.match(line)), 0)
    entry = re.compile(rf"""\s*["']?{re.escape(key)}["']?\s*[=.]""")
    return next((number for number in range(start, len(lines)) if key and entry.match(lines[number])), start) + 1


def check_writable(settings: Settings, *files: Path | None) -> None:
    """Make sure, before the work, that the report, the artifacts and temporary files can be written.

    Args:
        settings: those of the run.
        files: others that will be written; ``None`` is passed over.

    Raises:
        ConfigurationError: a place cannot be written; the message names it.
    """
    try:
        tempfile.gettempdir()
    except OSError as error:
        raise ConfigurationError(f"{error.strerror}; make room, or name another place with TMPDIR") from None
    places = [(path, path.parent) for path in (settings.report, *files) if path is not None]
    if settings.artifacts is not None:
        places.append((settings.artifacts, settings.artifacts))
    for path, folder in places:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
            if path is not folder and path.is_dir():
                raise IsADirectoryError("it is a directory; name a file")
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}; name another place") from None
