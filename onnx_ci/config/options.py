"""The table of settings, from which flags, environment variables, ``[tool.onnx-ci]``, its JSON Schema and help are derived.

The same name is used everywhere: ``recipe-files`` is ``--recipe-files`` of ``onnx-ci``, ``--onnx-recipe-files`` of pytest,
``ONNX_CI_RECIPE_FILES`` in the environment and ``recipe-files`` in ``[tool.onnx-ci]``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onnx_ci.config.values import (
    BASELINE_LIMITS,
    BASELINE_MODES,
    BASELINE_POLICY,
    BASELINE_SEVERITIES,
    COUNT,
    DEFAULT_ISOLATION,
    DEVICES,
    FOLDER_OR_OFF,
    ISOLATION,
    MEMORY_SIZE,
    NONNEGATIVE_NUMBER,
    OPSETS,
    PATH,
    PATHS,
    POSITIVE_NUMBER,
    RULE_SETTINGS,
    SHARD,
    SKIPPABLE_STAGES,
    SWITCH,
    WEIGHTS,
    WORDS,
    Kind,
    one_of,
    pairs_over,
    some_of,
)
from onnx_ci.environment import plugins
from onnx_ci.results.rules import RULES

ENVIRONMENT_PREFIX = "ONNX_CI_"


class Role(enum.Enum):
    """What an option affects. Every list of option names in the package is derived from it."""

    MATRIX = "which cells a recipe has"
    SELECTION = "which of those cells run"
    DISCOVERY = "where recipes are found"
    VERDICT = "how a cell is judged: part of the key of a cached verdict"
    BASELINE = "how results are compared with the committed baseline"
    EXECUTION = "how cells are run, without affecting their verdicts"
    FILES = "where files are read and written"


class Group(enum.Enum):
    """Under which heading help shows an option."""

    WHAT = "What runs"
    PROOF = "Proof"
    STAGES = "Stages"
    BASELINE = "Baseline"
    OUTPUT = "Output"
    MACHINE = "Machine"


@dataclass(frozen=True, kw_only=True)
class Option:
    """One setting."""

    name: str
    """The key in ``[tool.onnx-ci]`` and, with its prefix, the flag."""
    kind: Kind
    role: Role
    group: Group
    default: Any
    metavar: str
    help: str

    @property
    def is_switch(self) -> bool:
        """Whether its flag takes no value: giving it means ``true``."""
        return self.kind is SWITCH

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
        kind=OPSETS,
        role=Role.MATRIX,
        group=Group.WHAT,
        default=None,
        metavar="SPEC",
        help="Opsets to export at, such as 9-17, 9,13,17 or 18- (up to the newest). Default: those each recipe declares, or "
        "9-17.",
    ),
    Option(
        name="sample",
        kind=COUNT,
        role=Role.SELECTION,
        group=Group.WHAT,
        default=None,
        metavar="N",
        help="Run each recipe at only N of its opsets: the lowest, the highest, and evenly spaced ones between. Default: all.",
    ),
    Option(
        name="devices",
        kind=DEVICES,
        role=Role.MATRIX,
        group=Group.WHAT,
        default=("cpu",),
        metavar="LIST",
        help="Devices to build, export and run on: cpu, cuda, cuda:1. Default: cpu.",
    ),
    Option(
        name="require-devices",
        kind=SWITCH,
        role=Role.MATRIX,
        group=Group.WHAT,
        default=False,
        metavar="BOOL",
        help="Make a cell whose device is absent an error (exit code 4). Default: it is skipped, with the reason.",
    ),
    Option(
        name="exporters",
        kind=some_of("exporter", plugins.EXPORTERS, pattern=plugins.NAME),
        role=Role.MATRIX,
        group=Group.WHAT,
        default=None,
        metavar="LIST",
        help="torchscript, dynamo, or names of plug-ins. Default: those each recipe declares, or TorchScript below opset 18 "
        "and dynamo from 18.",
    ),
    Option(
        name="runtimes",
        kind=some_of("runtime", plugins.RUNTIMES, pattern=plugins.NAME),
        role=Role.VERDICT,
        group=Group.PROOF,
        default=None,
        metavar="LIST",
        help="What runs each file: onnxruntime, reference (ONNX's reference evaluator), openvino, or names of plug-ins. "
        "Default: what each recipe declares, or onnxruntime.",
    ),
    Option(
        name="select",
        kind=WORDS,
        role=Role.SELECTION,
        group=Group.WHAT,
        default=None,
        metavar="GLOBS",
        help="Run only the cells whose id, or recipe::cell, matches: 'resnet*::opset1?-cpu'.",
    ),
    Option(
        name="tags",
        kind=WORDS,
        role=Role.SELECTION,
        group=Group.WHAT,
        default=None,
        metavar="LIST",
        help="Run only the recipes that have one of these tags, manual ones included.",
    ),
    Option(
        name="shard",
        kind=SHARD,
        role=Role.SELECTION,
        group=Group.WHAT,
        default=None,
        metavar="N/M",
        help="Run only the Nth of M parts of the cells, to split them between machines: 2/5.",
    ),
    Option(
        name="durations",
        kind=PATH,
        role=Role.FILES,
        group=Group.WHAT,
        default=None,
        metavar="PATH",
        help="JSON report of an earlier run, or a folder of reports, to balance shards by time. Default: all cells count the "
        "same.",
    ),
    Option(
        name="recipe-files",
        kind=WORDS,
        role=Role.DISCOVERY,
        group=Group.WHAT,
        default=("onnx_recipes.py", "conftest.py"),
        metavar="GLOBS",
        help="Files that contain recipes: names, or paths from the project's root. Default: onnx_recipes.py, conftest.py.",
    ),
    Option(
        name="packages",
        kind=WORDS,
        role=Role.DISCOVERY,
        group=Group.WHAT,
        default=(),
        metavar="LIST",
        help="Installed packages whose modules contain recipes, such as onnx_ci.recipes. Used if no path is given.",
    ),
    Option(
        name="weights",
        kind=WEIGHTS,
        role=Role.VERDICT,
        group=Group.PROOF,
        default=MappingProxyType({}),
        metavar="NAME=WEIGHTS",
        help="Trained weights for recipes that take them: alexnet=DEFAULT,lstm=lstm.pt; DEFAULT alone applies to every recipe. "
        "Default: seeded weights, offline.",
    ),
    Option(
        name="max-drift",
        kind=POSITIVE_NUMBER,
        role=Role.VERDICT,
        group=Group.PROOF,
        default=16.0,
        metavar="LIMIT",
        help="The largest drift that passes, in units of PyTorch's own rounding error. Default: 16.",
    ),
    Option(
        name="rtol",
        kind=NONNEGATIVE_NUMBER,
        role=Role.VERDICT,
        group=Group.PROOF,
        default=None,
        metavar="NUMBER",
        help="Judge by |error| <= atol + rtol * |reference| instead of by drift; rtol and atol of a recipe take precedence. "
        "Default: by drift.",
    ),
    Option(
        name="atol",
        kind=NONNEGATIVE_NUMBER,
        role=Role.VERDICT,
        group=Group.PROOF,
        default=None,
        metavar="NUMBER",
        help="See --rtol. Default: by drift.",
    ),
    Option(
        name="allow",
        kind=some_of("rule", tuple(rule.id for rule in RULES.values() if rule.can_be_allowed)),
        role=Role.VERDICT,
        group=Group.PROOF,
        default=(),
        metavar="RULES",
        help="Rules that are reported without failing the cell, besides those that each recipe allows. Default: none.",
    ),
    Option(
        name="rules",
        kind=RULE_SETTINGS,
        role=Role.VERDICT,
        group=Group.PROOF,
        default=MappingProxyType({}),
        metavar="RULE=SEVERITY",
        help="The severity of rules: error, note or ignore, for every recipe or for those that a pattern matches: "
        "absolute-path=ignore,resnet*:export-warning=error. Default: that of each rule, as onnx-ci rules lists it.",
    ),
    Option(
        name="strict",
        kind=SWITCH,
        role=Role.VERDICT,
        group=Group.PROOF,
        default=False,
        metavar="BOOL",
        help="Warnings and notes fail their cells, except those that allow, rules or baseline-policy make notes. Default: they "
        "are shown, and the cells pass.",
    ),
    Option(
        name="skip-stages",
        kind=some_of("stage", SKIPPABLE_STAGES),
        role=Role.VERDICT,
        group=Group.STAGES,
        default=(),
        metavar="STAGES",
        help="Stages to skip, to save time at the cost of coverage: " + ", ".join(SKIPPABLE_STAGES) + ". Default: none.",
    ),
    Option(
        name="inputs",
        kind=PATHS,
        role=Role.VERDICT,
        group=Group.PROOF,
        default=(),
        metavar="FILES",
        help="Inputs to compare on, besides those that each recipe declares and the usual ones: .npz files, folders with "
        "input_0.pb, or globs, relative to the current directory. Default: none.",
    ),
    Option(
        name="isolation",
        kind=ISOLATION,
        role=Role.EXECUTION,
        group=Group.MACHINE,
        default=DEFAULT_ISOLATION,
        metavar="KIND",
        help="How the processes of cells are started, so that a crash, a hang or running out of memory affects only the cell "
        "that caused it. fork: each is forked; spawn: the cells of a recipe get a new one, which takes seconds; none: all run "
        "in one process, for debuggers. Default: fork on Linux, spawn elsewhere.",
    ),
    Option(
        name="jobs",
        kind=COUNT,
        role=Role.EXECUTION,
        group=Group.MACHINE,
        default=None,
        metavar="N",
        help="How many cells run at once, each in its own process. Default: one per core and GiB of memory that the machine or "
        "the container has, divided by the number of pytest-xdist workers.",
    ),
    Option(
        name="timeout",
        kind=POSITIVE_NUMBER,
        role=Role.EXECUTION,
        group=Group.MACHINE,
        default=900.0,
        metavar="SECONDS",
        help="The time limit of a cell, or of the preparation of a recipe's cells; needs isolation. Default: 900.",
    ),
    Option(
        name="memory-limit",
        kind=MEMORY_SIZE,
        role=Role.EXECUTION,
        group=Group.MACHINE,
        default=None,
        metavar="SIZE",
        help="The memory limit of a cell's process, such as 8GiB; needs isolation. Default: 80 % of the machine's memory.",
    ),
    Option(
        name="cache",
        kind=FOLDER_OR_OFF,
        role=Role.FILES,
        group=Group.MACHINE,
        default=Path(".onnx-ci-cache"),
        metavar="DIR",
        help="Where verdicts are cached, relative to the project's root: a cell runs again only if something that its verdict "
        "depends on has changed; off runs every cell. Default: .onnx-ci-cache.",
    ),
    Option(
        name="cache-ignore",
        kind=WORDS,
        role=Role.FILES,
        group=Group.MACHINE,
        default=("*.md", "*.rst", "docs/**"),
        metavar="GLOBS",
        help="Files of the project on which no verdict depends: if one of them changes, only the cells run again that opened "
        "it. Default: *.md, *.rst, docs/**.",
    ),
    Option(
        name="cache-ignore-variables",
        kind=WORDS,
        role=Role.FILES,
        group=Group.MACHINE,
        default=(),
        metavar="GLOBS",
        help="Environment variables on which no verdict depends, besides those of the terminal, the session and the CI's job. "
        "Default: none.",
    ),
    Option(
        name="baseline",
        kind=one_of(BASELINE_MODES),
        role=Role.BASELINE,
        group=Group.BASELINE,
        default="off",
        metavar="MODE",
        help="check: compare each cell with its committed baseline; update: record the baseline. Default: off.",
    ),
    Option(
        name="baseline-folder",
        kind=PATH,
        role=Role.BASELINE,
        group=Group.BASELINE,
        default=Path("onnx-baselines"),
        metavar="DIR",
        help="Where baselines are stored, to be committed; relative to the project's root. Default: onnx-baselines.",
    ),
    Option(
        name="baseline-policy",
        kind=pairs_over(BASELINE_POLICY, one_of(BASELINE_SEVERITIES)),
        role=Role.BASELINE,
        group=Group.BASELINE,
        default=BASELINE_POLICY,
        metavar="KIND=SEVERITY",
        help=f"The severity of a difference from the baseline: {', '.join(BASELINE_SEVERITIES)}; such as "
        f"size=note,operators=ignore. Kinds: {', '.join(BASELINE_POLICY)}. Default: error, and note for observability and "
        "versions.",
    ),
    Option(
        name="baseline-limits",
        kind=pairs_over(BASELINE_LIMITS, NONNEGATIVE_NUMBER),
        role=Role.BASELINE,
        group=Group.BASELINE,
        default=BASELINE_LIMITS,
        metavar="NAME=NUMBER",
        help="How much may differ from the baseline: counts by this number, size and observability by this fraction, drift and "
        "noise by this factor, values by this multiple of their noise. Default: "
        + ", ".join(f"{name}={value:g}" for name, value in BASELINE_LIMITS.items())
        + ".",
    ),
    Option(
        name="report",
        kind=PATH,
        role=Role.FILES,
        group=Group.OUTPUT,
        default=None,
        metavar="PATH",
        help="Write the report as JSON.",
    ),
    Option(
        name="junit",
        kind=PATH,
        role=Role.FILES,
        group=Group.OUTPUT,
        default=None,
        metavar="PATH",
        help="Write the report as JUnit's XML, which CI systems show as tests: one for each cell.",
    ),
    Option(
        name="sarif",
        kind=PATH,
        role=Role.FILES,
        group=Group.OUTPUT,
        default=None,
        metavar="PATH",
        help="Write what is wrong as SARIF, for code scanning.",
    ),
    Option(
        name="artifacts",
        kind=PATH,
        role=Role.FILES,
        group=Group.OUTPUT,
        default=None,
        metavar="DIR",
        help="Keep the ONNX files, with the models' own weights: DIR/RECIPE/CELL.onnx. Default: they are removed once judged.",
    ),
    Option(
        name="save-inputs",
        kind=PATH,
        role=Role.FILES,
        group=Group.OUTPUT,
        default=None,
        metavar="DIR",
        help="Write the inputs on which a cell fails as DIR/RECIPE/CELL/INPUT.npz, which --inputs reads. Default: they are not "
        "written.",
    ),
)


def options_with(*roles: Role) -> tuple[Option, ...]:
    """The options that have one of ``roles``, in the order of the table."""
    return tuple(option for option in OPTIONS if option.role in roles)
