"""Exporters, runtimes, post-export passes and commands by name: ours, and those that installed packages add as entry points.

Ours stand in a table in the form of entry points, so all of them are loaded in the same way. The entry points of installed
packages are read when a name is not one of ours, and at the beginning of a run, because names must be unique. That reads the
metadata of each package and imports none of them.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from onnx_ci.errors import ConfigurationError, EnvironmentLacksError, describe_exception, did_you_mean
from onnx_ci.text import listed

NAME = r"[A-Za-z][A-Za-z0-9_-]*"
"""A regular expression for names. They occur in the ids of cells and in the names of files."""
VARIANT = r"(@\d+(\.\d+)*|:[A-Za-z]\w*)"
"""What follows the name of a runtime that stands for another version than the installed one, or for one of its providers."""
RESERVED = frozenset({"cpu", "cuda", "export"})
"""Words that mean something else where names are used."""
_PAGE = "docs/plugins.md shows a complete one"
_REMEDY = "update the package or uninstall it"


def base_name(name: str) -> str:
    """``onnxruntime`` for ``onnxruntime@1.18`` and ``onnxruntime:openvino``."""
    return name.removesuffix(variant_in_name(name))


def variant_in_name(name: str) -> str:
    """``@1.18`` for ``onnxruntime@1.18``, and ``:openvino`` for ``onnxruntime:openvino``; empty for a name alone."""
    match = re.fullmatch(NAME + VARIANT, name)
    return match[1] if match else ""


def version_in_name(name: str) -> str:
    """``1.18`` for ``onnxruntime@1.18``; empty for a name that stands for what is installed."""
    return variant_in_name(name).partition("@")[2]


@dataclass(frozen=True, kw_only=True, eq=False)
class PluginKind(Collection[str]):
    """One kind of plug-in: a collection of the names that can be used here."""

    noun: str
    group: str
    shape: str
    """What an entry point of the group must name, in words."""
    members: tuple[str, ...]
    is_class: bool
    """Whether entry points name a class, which is called without arguments; otherwise they name the object itself."""
    ours: Mapping[str, str]
    """The ones of onnx-ci by name, in the form of entry points: ``module:object``."""
    variants: Mapping[str, str] = field(default_factory=dict)
    """What can follow the names of those of ours, a version after ``@`` or a provider after ``:``: for each name and sign the
    class that is called with what follows, in the form of an entry point. Its ``install`` makes that usable here."""
    guard: str = ""
    """The function that gives what is not ours, so that its mistakes are told as such; an entry point, too."""

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str) and (variant := variant_in_name(name)):
            return base_name(name) + variant[0] in self.variants
        return name in self.ours or (isinstance(name, str) and bool(re.fullmatch(NAME, name)) and name in self._added())

    def __iter__(self) -> Iterator[str]:
        yield from (*self.ours, *sorted(self._added()))

    def __len__(self) -> int:
        return len(self.ours) + len(self._added())

    def _added(self) -> Mapping[str, EntryPoint]:
        if self.group in OF_CELLS:
            check_names()
        return _checked(tuple(sys.path)).usable[self.group]

    def problems(self) -> Mapping[str, str]:
        """Why names that packages add cannot be used, or belong to another package, by name."""
        return _checked(tuple(sys.path)).problems[self.group]

    def added(self, names: Iterable[str]) -> list[str]:
        """Those of ``names`` that other packages add."""
        return [name for name in names if base_name(name) not in self.ours and name in self]

    def distribution(self, name: str) -> str | None:
        """The name of the installed distribution that adds ``name``; ``None`` if it is one of ours, or there is none."""
        dist = None if base_name(name) in self.ours or name not in self else self._added()[name].dist
        return None if dist is None else dist.name

    def check(self, name: str) -> None:
        """Raise a :class:`ConfigurationError` unless there is such a name."""
        if name not in self:
            raise ConfigurationError(f"there is no {self.noun} {name!r}{did_you_mean(name, self)}")

    def load(self, name: str) -> Any:
        """Import and return what a name stands for. Raises ``EnvironmentLacksError`` if its package is broken."""
        entry = self._entry(name)
        try:
            target = entry.load()
            plugin = target() if self.is_class else target
        except EnvironmentLacksError:  # it says itself what to install
            raise
        except (Exception, SystemExit) as error:  # importing a package can raise anything
            raise self.load_error(name, describe_exception(error)) from error
        if missing := [member for member in self.members if not hasattr(plugin, member)]:
            lacks = f"has no {listed(missing)}: its entry point must name {self.shape}"
            raise EnvironmentLacksError(f"the {self.noun} {name!r} of {_package_of(entry)} {lacks}; {_PAGE}")
        return plugin

    def guarded(self, name: str, seconds: float) -> Any:
        """What a name that is not one of ours stands for, behind the guard; ``seconds`` is its time limit."""
        return EntryPoint(name, self.guard, self.group).load()(name, seconds)

    def variant_class(self, name: str) -> Any:
        """The class of :attr:`variants` for ``name``, which has a version or a provider."""
        return EntryPoint(name, self.variants[base_name(name) + variant_in_name(name)[0]], self.group).load()

    def load_error(self, name: str, problem: str) -> EnvironmentLacksError:
        """The error that what a name stands for cannot be loaded."""
        plugin = f"the {self.noun} {name!r} of {_package_of(self._entry(name))}"
        return EnvironmentLacksError(f"{plugin} cannot be loaded: {problem}; {_REMEDY}")

    def _entry(self, name: str) -> EntryPoint:
        if name in self.ours:
            return EntryPoint(name, self.ours[name], self.group)
        self.check(name)
        return self._added()[name]


RUNTIMES = PluginKind(
    noun="runtime",
    group="onnx_ci.runtimes",
    shape="a class with name, is_deployed, missing_device(device) and load(path, device)",
    members=("name", "is_deployed", "missing_device", "load"),
    is_class=True,
    ours={
        "onnxruntime": "onnx_ci.pipeline.run.onnxruntime:OnnxRuntime",
        "reference": "onnx_ci.pipeline.run.onnx_reference:ReferenceRuntime",
    },
    variants={
        "onnxruntime@": "onnx_ci.tools.versions.other_version:OtherOnnxRuntime",
        "onnxruntime:": "onnx_ci.tools.engines.provider:OnnxRuntimeWithProvider",
    },
    guard="onnx_ci.tools.engines.plugin:guarded",
)

EXPORTERS = PluginKind(
    noun="exporter",
    group="onnx_ci.exporters",
    shape="a class with export(request, path)",
    members=("export",),
    is_class=True,
    ours={
        "torchscript": "onnx_ci.pipeline.export.torchscript:TorchScriptExporter",
        "dynamo": "onnx_ci.pipeline.export.dynamo:DynamoExporter",
        "custom": "onnx_ci.pipeline.export.custom:CustomExporter",
    },
)

PASSES = PluginKind(
    noun="post-export pass",
    group="onnx_ci.passes",
    shape="what onnx_ci.graph_pass(FUNCTION, ...) returns",
    members=("transform", "lossy", "keep_io_types", "max_drift", "domains", "opset", "is_static", "options"),
    is_class=False,
    ours={
        "onnxsim": "onnx_ci.pipeline.post_export.passes:ONNXSIM",
        "onnxslim": "onnx_ci.pipeline.post_export.passes:ONNXSLIM",
        "ort-optimized": "onnx_ci.pipeline.post_export.passes:ORT_OPTIMIZED",
        "float16": "onnx_ci.pipeline.post_export.passes:FLOAT16",
        "int8-dynamic": "onnx_ci.pipeline.post_export.passes:INT8_DYNAMIC",
        "int8-static": "onnx_ci.pipeline.post_export.passes:INT8_STATIC",
    },
)

COMMANDS = PluginKind(
    noun="command",
    group="onnx_ci.commands",
    shape="a click command",
    members=("main", "get_short_help_str"),
    is_class=False,
    ours={
        "run": "onnx_ci.cli.run:run",
        "list": "onnx_ci.cli.list:list_cells",
        "verify": "onnx_ci.cli.verify:verify",
        "baseline": "onnx_ci.cli.baseline:baseline",
        "report": "onnx_ci.cli.report:show_report",
    },
)
"""The commands of the gate, in the order of the help. Those of the tools are entry points, like any other package's."""

TOOLS: Mapping[str, str] = {
    "wrong-nodes": "onnx_ci.tools.runtimes.located:explain",
    "known-faults": "onnx_ci.tools.runtimes.known_faults:notes",
    "known-remedies": "onnx_ci.tools.runtimes.known_faults:with_remedies",
}
"""Functions of tools that commands ask about a failure; a run does so only of another ONNX Runtime than the tested one."""


def tool(name: str) -> Any:
    """Import and return a function of :data:`TOOLS`."""
    return EntryPoint(name, TOOLS[name], "").load()


OF_CELLS: Mapping[str, PluginKind] = {kind.group: kind for kind in (RUNTIMES, EXPORTERS, PASSES)}
"""The kinds of plug-ins that can affect a verdict, by the group of their entry points."""
_KINDS = {**OF_CELLS, COMMANDS.group: COMMANDS}


def _package_of(entry: EntryPoint) -> str:
    """The distribution that an entry point belongs to, with its version."""
    return "onnx-ci" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def plugin_versions() -> dict[str, str]:
    """The versions of the packages that add plug-ins, by name."""
    installed = (entry for entry in _installed(tuple(sys.path)) if entry.group in OF_CELLS)
    return {entry.dist.name: entry.dist.version for entry in installed if entry.dist is not None}


def check_names() -> None:
    """Raise ``EnvironmentLacksError`` if an exporter, a runtime or a pass of a package has a name that cannot be used."""
    for kind in OF_CELLS.values():
        for problem in kind.problems().values():
            raise EnvironmentLacksError(problem)


@functools.lru_cache(maxsize=4)
def _installed(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """The entry points of all groups that are installed on ``path``, which is :data:`sys.path`."""
    entries = entry_points()
    return tuple(entry for group in _KINDS for entry in entries.select(group=group))


@dataclass(frozen=True, kw_only=True)
class _Checked:
    """What packages add, by group and name."""

    usable: Mapping[str, Mapping[str, EntryPoint]]
    problems: Mapping[str, Mapping[str, str]]


@functools.lru_cache(maxsize=4)
def _checked(path: tuple[str, ...]) -> _Checked:
    """The entry points that are installed on ``path``. Where two packages add a name, only onnx-ci itself keeps it."""
    usable: dict[str, dict[str, EntryPoint]] = {group: {} for group in _KINDS}
    problems: dict[str, dict[str, str]] = {group: {} for group in _KINDS}
    for entry in sorted(_installed(path), key=lambda entry: not _is_own(entry)):
        kind, name = _KINDS[entry.group], entry.name
        other = usable[kind.group].get(name)
        if not re.fullmatch(NAME, name):
            problem = f"but a name begins with a letter and has letters, digits, - and _ only; {_REMEDY}"
        elif name in kind.ours or (kind is not COMMANDS and name in RESERVED) or (other is not None and _is_own(other)):
            problem = f"but that name is onnx-ci's own; {_REMEDY}"
        elif other is not None:
            problem = f"and so does {_package_of(other)}: uninstall one of them"
        else:
            usable[kind.group][name] = entry
            continue
        problems[kind.group].setdefault(name, f"{_package_of(entry)} adds the {kind.noun} {name!r}, {problem}")
    for group, entries in usable.items():
        usable[group] = {name: entry for name, entry in entries.items() if name not in problems[group] or _is_own(entry)}
    return _Checked(usable=usable, problems=problems)


def _is_own(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == "onnx-ci"
