"""Which packages can matter, and other versions of them as a folder that goes first on the path of a child process.

pip's resolver says which packages have to change. An installed package that would no longer have what it requires changes, too,
except for onnx-ci and what was installed from source, such as the project: what those require is a constraint.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import secrets
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from onnx_ci.environment.versions import RUNTIME_DISTRIBUTIONS
from onnx_ci.errors import ConfigurationError
from onnx_ci.plugins import EXPORTERS, PASSES, RUNTIMES
from onnx_ci.text import listed, listed_shortly
from onnx_ci.tools.versions import pip
from onnx_ci.tools.versions.pip import ImpossibleError, Wheel
from onnx_ci.whole_files import UNFINISHED

_DAY = 24 * 3600.0
KEPT_FOR = 30 * _DAY
"""Seconds after its last use for which an overlay is kept."""
_ABANDONED_AFTER = _DAY
"""Seconds after which an unfinished overlay is that of a dead process. A download can take hours."""

TORCH = "torch"
_DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {
    "torchscript": ("onnx",),
    "dynamo": ("onnxscript", "onnx-ir", "onnx"),
    "transformers": ("transformers", "onnxscript", "onnx-ir", "onnx"),
    "onnxruntime": RUNTIME_DISTRIBUTIONS,
    "reference": ("onnx",),
    "float16": ("onnxconverter-common",),
}
"""What exporters, runtimes and passes work with, besides torch. The others are called as their distributions are."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to ask of the package index."""

    requirements: tuple[str, ...]
    """``onnxscript==0.7.1``."""
    constraints: tuple[Path, ...] = ()
    upgrade: bool = False
    """Whether the newest versions are requested that fit together."""
    pre: bool = False

    @property
    def names(self) -> list[str]:
        """The names of what it requires.

        Raises:
            ConfigurationError: one of them is not a valid requirement.
        """
        names: list[str] = []
        for requirement in self.requirements:
            try:
                names.append(canonicalize_name(Requirement(requirement).name))
            except InvalidRequirement:
                example = "onnxruntime==1.22.0 or torch==2.15.*"
                message = f"{requirement!r} is not a requirement; name packages with versions, such as {example}"
                raise ConfigurationError(message) from None
        return names


@dataclass(frozen=True, kw_only=True)
class Installed:
    """An installed distribution."""

    version: str
    requires: tuple[Requirement, ...]
    is_kept: bool
    """Whether no other version of it is tried: onnx-ci, and what was installed from source."""


def installed() -> dict[str, Installed]:
    """The installed distributions by name; of several with one name, the first on the path, which is imported."""
    distributions: dict[str, Installed] = {}
    for each in metadata.distributions():
        name = canonicalize_name(each.name or "")
        if name and name not in distributions:
            direct_url = each.read_text("direct_url.json")
            # A wheel from anywhere is as good as one from an index.
            is_kept = name == "onnx-ci" or (direct_url is not None and "archive_info" not in direct_url)
            distributions[name] = Installed(version=each.version, requires=tuple(_requirements(each)), is_kept=is_kept)
    return distributions


def _requirements(distribution: metadata.Distribution) -> Iterator[Requirement]:
    for text in distribution.requires or ():
        with contextlib.suppress(InvalidRequirement):
            yield Requirement(text)


def _is_required(requirement: Requirement) -> bool:
    """Whether a requirement holds here without an extra."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def _fits(requirement: Requirement, version: str) -> bool:
    return requirement.specifier.contains(version, prereleases=True)


def packages_of(exporter: str, runtimes: Iterable[str], passes: Iterable[str], installed: Mapping[str, Installed]) -> list[str]:
    """The distributions that a cell depends on, and of which other versions can be tried: its passes' first, torch last."""
    parts = [*((PASSES, name) for name in passes), (EXPORTERS, exporter), *((RUNTIMES, name) for name in runtimes)]
    names = [each for kind, name in parts for each in (*_DISTRIBUTIONS.get(name, (name,)), kind.distribution(name)) if each]
    canonical = dict.fromkeys(canonicalize_name(name) for name in (*names, TORCH))
    return [name for name in canonical if name in installed and not installed[name].is_kept]


def all_packages(installed: Mapping[str, Installed]) -> list[str]:
    """The distributions that some cell may depend on, and of which other versions can be tried."""
    of_each = (packages_of(exporter, RUNTIMES, PASSES, installed) for exporter in EXPORTERS)
    return list(dict.fromkeys(name for names in of_each for name in names))


def kept_requirements(distributions: Mapping[str, Installed]) -> list[tuple[str, Requirement]]:
    """What those require that are kept, each with the name of the one that does.

    Nothing tells which extras were requested, so a requirement of an extra counts if it is met.
    """

    def counts(requirement: Requirement) -> bool:
        present = distributions.get(canonicalize_name(requirement.name))
        is_met = present is not None and _fits(requirement, present.version)
        return _is_required(requirement) or (is_met and "extra" in str(requirement.marker))

    of_kept = [(name, requirement) for name, each in distributions.items() if each.is_kept for requirement in each.requires]
    return [(name, requirement) for name, requirement in of_kept if requirement.specifier and counts(requirement)]


def broken_by(changes: Mapping[str, str], distributions: Mapping[str, Installed]) -> list[str]:
    """The installed distributions that have what they require, and would not have it any more with other versions.

    What changes itself is left to the resolver, and what is kept is a constraint.
    """
    return [
        name
        for name, each in distributions.items()
        if name not in changes
        and not each.is_kept
        and any(
            _is_required(requirement) and _fits(requirement, before.version) and not _fits(requirement, changes[required])
            for requirement in each.requires
            if (required := canonicalize_name(requirement.name)) in changes
            and (before := distributions.get(required)) is not None
        )
    ]


def resolved(request: Request) -> dict[str, Wheel]:
    """The wheels that have to change for a request, by name; none if what is installed meets it.

    Raises:
        ImpossibleError: a version does not exist, or conflicts with what another package needs.
        ConfigurationError: pip cannot tell.
    """
    distributions = installed()
    kept = kept_requirements(distributions)
    for requirement in map(Requirement, request.requirements):
        name = canonicalize_name(requirement.name)
        pins = [each.version for each in requirement.specifier if each.operator == "==" and not each.version.endswith(".*")]
        for owner, needed in kept:
            if canonicalize_name(needed.name) == name and any(not _fits(needed, pin) for pin in pins):
                raise ImpossibleError(
                    f"{owner} needs {needed.name}{needed.specifier}, so {requirement} cannot be tried beside it"
                )
    constraints = [f"{needed.name}{needed.specifier}" for _, needed in kept]
    constraints += [f"{name}=={each.version}" for name, each in distributions.items() if each.is_kept]
    requirements = list(request.requirements)
    while True:
        try:
            wheels = pip.resolved(requirements, constraints, request.constraints, upgrade=request.upgrade, pre=request.pre)
        except ImpossibleError as error:
            unmet = (pip.missing(each, pre=request.pre) for each in request.requirements)
            raise ImpossibleError(next(filter(None, unmet), str(error))) from None
        more = [
            name
            for name in broken_by({name: wheel.version for name, wheel in wheels.items()}, distributions)
            if name not in requirements
        ]
        if not more:
            return wheels
        requirements += more


def environment_with(folder: Path | None) -> dict[str, str]:
    """The environment variables of a process that imports what is in an overlay rather than what is installed."""
    path = [str(folder or ""), os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def overlay_of(wheels: Mapping[str, Wheel]) -> Path | None:
    """The folder with these wheels, installed unless it is kept from an earlier run; ``None`` if there are no wheels.

    Raises:
        ConfigurationError: a wheel cannot be downloaded, or the folder cannot be written.
    """
    if not wheels:
        return None
    folder = folder_of(wheels)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_old(folder.parent, but=folder.name)
        if folder.is_dir():
            os.utime(folder)
            return folder
        unfinished = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
        try:
            unfinished.mkdir()
            pip.install(wheels, unfinished)
            with contextlib.suppress(OSError):  # another process was faster
                unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        if not folder.is_dir():
            raise ConfigurationError(f"{folder} cannot be created; choose another folder with XDG_CACHE_HOME")
    except OSError as error:
        reason = f"{folder.parent} cannot be written: {error.strerror or error}; choose another folder with XDG_CACHE_HOME"
        raise ConfigurationError(f"other versions need a folder, and {reason}") from None
    return folder


def folder_of(wheels: Mapping[str, Wheel]) -> Path:
    """The folder of the overlay with these wheels, which need not exist. It is in the user's cache."""
    of_system = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else None
    cache = os.environ.get("XDG_CACHE_HOME") or of_system or Path.home() / ".cache"
    return Path(cache, "onnx-ci", "overlays", _name(wheels))


def _name(wheels: Mapping[str, Wheel]) -> str:
    """``onnxscript-0.7.1-1a2b3c4d5e6f7a8b``: the first of the packages, and a digest of all, of Python and the platform."""
    contents = sorted(f"{name} {wheel.version} {wheel.digest}" for name, wheel in wheels.items())
    python = f"{platform.python_implementation()} {sys.version_info[:2]} {sysconfig.get_platform()}"
    digest = hashlib.sha256("\n".join([python, *contents]).encode()).hexdigest()[:16]
    name, wheel = next(iter(wheels.items()))
    return f"{name}-{wheel.version}-{digest}"


def _remove_old(folder: Path, *, but: str) -> None:
    """Remove overlays that have not been used for a long time, and unfinished ones of processes that died."""
    for entry in folder.iterdir():
        kept_for = _ABANDONED_AFTER if UNFINISHED.fullmatch(entry.name) else KEPT_FOR
        with contextlib.suppress(OSError):
            if entry.name != but and entry.stat().st_mtime < time.time() - kept_for:
                shutil.rmtree(entry, ignore_errors=True)


def in_words(names: Iterable[str], versions: Mapping[str, str]) -> str:
    """``onnxscript 0.8.0 (with onnx-ir 1.2.0, which it needs)``."""
    names = [*names]
    others = [f"{name} {version}" for name, version in versions.items() if name not in names]
    words = listed(f"{name} {versions[name]}" for name in names)
    needs = "which it needs" if len(names) == 1 else "which they need"
    return f"{words} (with {listed_shortly(others)}, {needs})" if others else words
