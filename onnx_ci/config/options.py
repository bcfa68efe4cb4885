"""The table of settings. Types, flags, environment variables, ``[tool.onnx-ci]``, its JSON Schema and help follow from it.

A new setting is a field of :class:`SettingsTable`. Type checkers also need a line in ``onnx_ci/api.py``; a test asks for it.

The same name is used everywhere: ``recipe-files`` is ``--recipe-files`` of ``onnx-ci``, ``--onnx-recipe-files`` of pytest,
``ONNX_CI_RECIPE_FILES`` in the environment and ``recipe-files`` in ``[tool.onnx-ci]``.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from onnx_ci import plugins
from onnx_ci.config import values
from onnx_ci.config.rule_severities import RULE_SEVERITIES, RuleSeverity
from onnx_ci.results.rules import BASELINE_CHANGES

ENVIRONMENT_PREFIX = "ONNX_CI_"
MAX_DRIFT = 16.0
"""The usual limit of drift."""
Value = TypeVar("Value")
Default = TypeVar("Default")


class Group(enum.Enum):
    """Under which heading help shows an option."""

    WHAT = "What runs"
    PROOF = "Proof"
    BASELINE = "Baseline"
    OUTPUT = "Output"
    MACHINE = "Machine"


class Role(enum.Enum):
    """What an option affects, and where help shows it. Every list of option names in the package is derived from it."""

    MATRIX = "which cells a recipe has", Group.WHAT
    SELECTION = "which of those cells run", Group.WHAT
    DISCOVERY = "where recipes are found", Group.WHAT
    VERDICT = "how a cell is judged: part of the key of a cached verdict", Group.PROOF
    BASELINE = "how results are compared with the committed baseline", Group.BASELINE
    EXECUTION = "how cells are run, without affecting their verdicts", Group.MACHINE
    CACHE = "which verdicts are kept, and where", Group.MACHINE
    FILES = "where files are read", Group.WHAT
    OUTPUT = "where files are written", Group.OUTPUT


@dataclass(frozen=True, kw_only=True)
class Option:
    """One setting."""

    name: str
    """The key in ``[tool.onnx-ci]`` and, with its prefix, the flag."""
    kind: values.Kind[Any]
    role: Role
    default: Any
    metavar: str
    """What help shows in the place of the value."""
    help: str
    has_flag: bool
    """Whether a flag, an environment variable and Python can set it; otherwise only ``[tool.onnx-ci]`` can."""

    @property
    def group(self) -> Group:
        """Where help shows it."""
        return self.role.value[1]

    @property
    def is_switch(self) -> bool:
        """Whether its flag takes no value; the flag itself means ``true``."""
        return self.kind is values.SWITCH and not self.default

    @property
    def is_list(self) -> bool:
        """Whether its value is a list of words. Given several times, its flag means all of them."""
        return "array" in self.kind.schema.get("type", ())

    @property
    def field(self) -> str:
        """The option's name as an identifier."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return ENVIRONMENT_PREFIX + self.field.upper()


def joined(texts: Sequence[str]) -> str | None:
    """The value of a list from the texts that its flag is given; ``None`` if there are none. An empty one stays an error."""
    if not texts:
        return None
    return ",".join(texts) if all(map(str.strip, texts)) else ""


def option(
    *,
    kind: values.Kind[Value],
    role: Role,
    help: str,
    default: Default = None,  # type: ignore[assignment]
    metavar: str = "",
    has_flag: bool = True,
) -> Value | Default:
    """A field of the table, with the attributes of :class:`Option`. A type checker compares the field's type with the kind."""
    metavar = metavar or kind.metavar
    return dataclasses.field(metadata=dict(locals()))  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class SettingsTable:
    """Every setting with its type. The other attributes of a setting are in :data:`OPTIONS`."""

    opsets: tuple[int, ...] | None = option(
        kind=values.OPSETS,
        role=Role.MATRIX,
        help="Opsets to export at, such as 9-17, 9,13,17 or 18- (up to the newest). Default: those each recipe declares, or "
        "9-17.",
    )
    sample: int | None = option(
        kind=values.COUNT,
        role=Role.SELECTION,
        help="Run each recipe at only N of its opsets: the lowest, the highest, and evenly spaced ones between. Default: all.",
    )
    devices: tuple[str, ...] = option(
        kind=values.DEVICES,
        role=Role.MATRIX,
        default=("cpu",),
        help="Devices to build, export and run on: cpu, cuda, cuda:1. Default: cpu.",
    )
    require_devices: bool = option(
        kind=values.SWITCH,
        role=Role.MATRIX,
        default=False,
        help="Make a cell whose device is absent an error (exit code 4). Default: it is skipped, with the reason.",
    )
    exporters: tuple[str, ...] | None = option(
        kind=values.some_of("exporter", plugins.EXPORTERS, pattern=plugins.NAME),
        role=Role.MATRIX,
        help="torchscript, dynamo, or names of plug-ins; beside torchscript, dynamo runs from opset 18. Default: those "
        "each recipe declares, or TorchScript below opset 18 and dynamo from 18.",
    )
    runtimes: tuple[str, ...] | None = option(
        kind=values.some_of("runtime", plugins.RUNTIMES, pattern=f"{plugins.NAME}{plugins.VARIANT}?"),
        role=Role.VERDICT,
        help="What runs each file: onnxruntime, onnxruntime@1.18 (a version), onnxruntime:coreml (a provider), reference "
        "(ONNX's own), opencv, openvino, tract, onnxruntime-web, chromium, or plug-ins. Default: what a recipe declares, or "
        "onnxruntime.",
    )
    select: tuple[str, ...] | None = option(
        kind=values.GLOBS,
        role=Role.SELECTION,
        help="Run only the cells whose id, or recipe::cell, matches: 'resnet*::opset1?-cpu'.",
    )
    tags: tuple[str, ...] | None = option(
        kind=values.WORDS, role=Role.SELECTION, help="Run only the recipes that have one of these tags, manual ones included."
    )
    shard: values.Shard | None = option(
        kind=values.SHARD,
        role=Role.SELECTION,
        help="Run only the Nth of M parts of the cells, to split them between machines: 2/5.",
    )
    durations: Path | None = option(
        kind=values.PATH,
        role=Role.FILES,
        help="JSON report of an earlier run, or a folder of reports, to balance shards by time. Default: all cells count the "
        "same.",
    )
    recipe_files: tuple[str, ...] = option(
        kind=values.GLOBS,
        role=Role.DISCOVERY,
        default=("onnx_recipes.py", "conftest.py"),
        help="Files that contain recipes: names, or paths from the project's root. Default: onnx_recipes.py, conftest.py.",
    )
    packages: tuple[str, ...] = option(
        kind=values.WORDS,
        role=Role.DISCOVERY,
        default=(),
        help="Installed packages whose modules contain recipes, such as onnx_ci.recipes. Used if no path is given.",
    )
    weights: Mapping[str, str] = option(
        kind=values.WEIGHTS,
        role=Role.VERDICT,
        default=MappingProxyType({}),
        help="Trained weights for recipes that take them: alexnet=DEFAULT,lstm=lstm.pt; DEFAULT alone applies to every recipe. "
        "Default: seeded weights, offline.",
    )
    max_drift: float = option(
        kind=values.POSITIVE_NUMBER,
        role=Role.VERDICT,
        default=MAX_DRIFT,
        metavar="LIMIT",
        help="The largest drift that passes, in units of PyTorch's own rounding error. Default: 16.",
    )
    recipe_defaults: Mapping[str, Any] = option(
        kind=values.RECIPE_DEFAULTS,
        role=Role.VERDICT,
        default=MappingProxyType({}),
        has_flag=False,
        help="Keywords of recipes, for every recipe that does not declare them, as a table: "
        f"{', '.join(values.RECIPE_KEYWORDS)}. Default: none.",
    )
    rules: tuple[RuleSeverity, ...] = option(
        kind=RULE_SEVERITIES,
        role=Role.VERDICT,
        default=(),
        help="The severity of rules: error, note or ignore, for every recipe or for those that a pattern matches: "
        "absolute-path=ignore,resnet*:export-warning=error. Changes since the baseline have one, too: "
        f"{', '.join(f'baseline-{change}' for change in BASELINE_CHANGES)}. Default: that of each, as onnx-ci why lists it.",
    )
    strict: bool = option(
        kind=values.SWITCH,
        role=Role.VERDICT,
        default=False,
        help="Warnings and notes fail their cells, except those whose severity is declared. Default: they are shown, "
        "and the cells pass.",
    )
    effort: str = option(
        kind=values.one_of(("quick", "full")),
        role=Role.VERDICT,
        default="full",
        help="quick: check the file and compare it on the example and on given inputs, to save time at the cost of coverage; "
        "no other values, sizes, steps and branches are tried, and no side effects are looked for. Default: full.",
    )
    locate: bool = option(
        kind=values.SWITCH,
        role=Role.VERDICT,
        default=True,
        help="Whether the line at which a failure begins is searched for. Default: true.",
    )
    inputs: tuple[str, ...] = option(
        kind=values.PATHS,
        role=Role.VERDICT,
        default=(),
        help="Inputs to compare on, besides those that each recipe declares and the usual ones: .npz files, folders with "
        "input_0.pb, or globs, relative to the current directory. Default: none.",
    )
    isolation: str = option(
        kind=values.ISOLATION,
        role=Role.EXECUTION,
        default=values.DEFAULT_ISOLATION,
        help="How the processes of cells are started, so that a crash, a hang or running out of memory affects only the cell "
        "that caused it. fork: each is forked; spawn: the cells of a recipe get a new one, which takes seconds; none: all run "
        "in one process, for debuggers. Default: fork on Linux, spawn elsewhere.",
    )
    jobs: int | None = option(
        kind=values.COUNT,
        role=Role.EXECUTION,
        help="How many cells run at once, each in its own process. Default: one per core and GiB of memory that the machine or "
        "the container has, divided by the number of pytest-xdist workers.",
    )
    timeout: float = option(
        kind=values.POSITIVE_NUMBER,
        role=Role.EXECUTION,
        default=900.0,
        metavar="SECONDS",
        help="The time limit of a cell, or of the preparation of a recipe's cells; needs isolation. Default: 900.",
    )
    memory_limit: int | None = option(
        kind=values.MEMORY_SIZE,
        role=Role.EXECUTION,
        help="The memory limit of a cell's process, such as 8GiB; needs isolation. Default: 80 % of the machine's memory.",
    )
    cache: Path | None = option(
        kind=values.FOLDER_OR_OFF,
        role=Role.CACHE,
        default=Path(".onnx-ci-cache"),
        help="Where verdicts are cached, relative to the project's root: a cell runs again only if something that its verdict "
        "depends on has changed; off runs every cell; audit runs every cell and compares. Default: .onnx-ci-cache.",
    )
    cache_days: int = option(
        kind=values.COUNT,
        role=Role.CACHE,
        default=30,
        help="After how many days a cached verdict is found out again. Default: 30.",
    )
    cache_ignore: tuple[str, ...] = option(
        kind=values.GLOBS,
        role=Role.CACHE,
        default=("*.md", "*.rst", "docs/**"),
        help="Tracked files on which no verdict depends: if one of them changes, only the cells run again that opened it. "
        "Default: *.md, *.rst, docs/**.",
    )
    cache_ignore_variables: tuple[str, ...] = option(
        kind=values.GLOBS,
        role=Role.CACHE,
        default=(),
        help="Environment variables on which no verdict depends, besides those of the terminal, the session and the CI's job. "
        "Default: none.",
    )
    baseline: str = option(
        kind=values.one_of(("off", "check", "update")),
        role=Role.BASELINE,
        default="off",
        help="check: compare each cell with its committed baseline; update: record the baseline. Default: off.",
    )
    baseline_folder: Path = option(
        kind=values.FOLDER,
        role=Role.BASELINE,
        default=Path("onnx-baselines"),
        help="Where baselines are stored, to be committed; relative to the project's root. Default: onnx-baselines.",
    )
    baseline_limits: Mapping[str, float] = option(
        kind=values.LIMITS,
        role=Role.BASELINE,
        default=values.BASELINE_LIMITS,
        help="How much may differ from the baseline: counts by this number, size and observability by this fraction, drift and "
        "noise by this factor, values by this multiple of their noise. Default: "
        + ", ".join(f"{name}={value:g}" for name, value in values.BASELINE_LIMITS.items())
        + ".",
    )
    report: Path | None = option(kind=values.REPORT, role=Role.OUTPUT, help="Write the report as JSON.")
    html: Path | None = option(kind=values.PATH, role=Role.OUTPUT, help="Write the report as an HTML page.")
    junit: Path | None = option(
        kind=values.PATH,
        role=Role.OUTPUT,
        help="Write the report as JUnit's XML, which CI systems show as tests: one for each cell.",
    )
    code_quality: Path | None = option(
        kind=values.PATH,
        role=Role.OUTPUT,
        help="Write what is wrong as GitLab's code quality, which merge requests show at its lines.",
    )
    artifacts: Path | None = option(
        kind=values.FOLDER,
        role=Role.OUTPUT,
        help="Keep the ONNX files, with the models' own weights: DIR/RECIPE/CELL.onnx. Default: they are removed once judged.",
    )
    save_inputs: Path | None = option(
        kind=values.FOLDER,
        role=Role.OUTPUT,
        help="Write the inputs on which a cell fails as DIR/RECIPE/CELL/INPUT.npz, which --inputs reads. Default: they are not "
        "written.",
    )


OPTIONS = tuple(Option(name=entry.name.replace("_", "-"), **entry.metadata) for entry in dataclasses.fields(SettingsTable))
"""Every setting, in the order of the table."""
FLAGS = tuple(option for option in OPTIONS if option.has_flag)
"""Those that a flag, an environment variable and Python can set."""


def options_with(*roles: Role) -> tuple[Option, ...]:
    """The options that have one of ``roles``, in the order of the table."""
    return tuple(option for option in OPTIONS if option.role in roles)
