"""Questions to pip, in a process of its own: which versions there are, what a request changes, and wheels in a folder.

pip reads its own settings: other indexes, a folder of wheels, a proxy.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from onnx_ci.errors import ConfigurationError
from onnx_ci.text import listed

_WHEELS_ONLY = "--only-binary=:all:"
_CONFLICT = re.compile(r"The conflict is caused by:\n((?:[ \t]+\S.*\n?)+)")
_CONNECTION = re.compile(r"connection broken by '(.*)'")
_NO_MATCH = "No matching distribution found for "
_LAST_TRY = re.compile(r"Retry\(total=0,.* after connection broken by")
_DISK = re.compile(r"No space left on device|Disk quota exceeded|Read-only file system|File too large")


class ImpossibleError(ConfigurationError):
    """These versions cannot be had here. Others may be."""


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel that would be installed."""

    version: str
    digest: str = ""
    """Its hash as the index gives it; empty if it is not known."""


def available(name: str, *, pre: bool = False, python: str = "") -> list[Version]:
    """The versions of a distribution for this Python, or for another one such as ``3.14``, in ascending order.

    Raises:
        ConfigurationError: there is no such package, pip is missing, or the index cannot be reached.
    """
    flags = [*(["--pre"] if pre else []), *([f"--python-version={python}"] if python else [])]
    done = _pip("index", "versions", name, _WHEELS_ONLY, *flags)
    line = next((line for line in done.stdout.splitlines() if line.startswith("Available versions:")), None)
    if line is None or _LAST_TRY.search(done.stderr):  # without one of its indexes, pip knows fewer versions
        raise _error(done, f"pip knows no version of {name}", unknown=_no_wheel(name))
    return sorted(filter(None, map(version_in, line.partition(":")[2].split(","))))


def version_in(text: str) -> Version | None:
    """The version in a text, or ``None``."""
    try:
        return Version(text.strip())
    except InvalidVersion:
        return None


def resolved(
    requests: Sequence[str],
    constraints: Iterable[str] = (),
    files: Iterable[Path] = (),
    *,
    upgrade: bool = False,
    pre: bool = False,
) -> dict[str, Wheel]:
    """The wheels that pip would install beside what is installed, which is kept where it can be unless ``upgrade`` is set.

    Raises:
        ImpossibleError: a version does not exist, or conflicts with what another package needs.
        ConfigurationError: pip cannot tell.
    """
    with tempfile.TemporaryDirectory() as folder:
        own, report = Path(folder, "constraints.txt"), Path(folder, "report.json")
        own.write_text("".join(f"{each}\n" for each in constraints), encoding="utf-8")
        flags = [f"--constraint={each}" for each in (own, *files)]
        flags += [*(["--upgrade"] if upgrade else []), *(["--pre"] if pre else [])]
        done = _pip("install", "--dry-run", f"--report={report}", _WHEELS_ONLY, *flags, *requests)
        entries = [] if done.returncode else json.loads(report.read_text(encoding="utf-8"))["install"]
        # If pip cannot reach an index, it is content with what is installed, or with what another index has.
        if done.returncode or _LAST_TRY.search(done.stderr):
            words = listed(requests)
            raise _error(done, f"pip finds no versions for {words}", unknown=_no_wheel(words))
    return {
        canonicalize_name(entry["metadata"]["name"]): Wheel(
            version=entry["metadata"]["version"], digest=entry["download_info"].get("archive_info", {}).get("hash", "")
        )
        for entry in entries
    }


def install(wheels: Mapping[str, Wheel], folder: Path) -> None:
    """Install exactly these wheels into a folder.

    Raises:
        ConfigurationError: a wheel cannot be downloaded or written.
    """
    pins = [f"{name}=={wheel.version}" for name, wheel in wheels.items()]
    # Constraints of the environment were met by what was resolved, and are not about a runtime that is deployed elsewhere.
    done = _pip("install", "--no-deps", "--no-compile", f"--target={folder}", _WHEELS_ONLY, *pins, is_constrained=False)
    if done.returncode:
        raise _error(done, f"pip cannot install {listed(pins)}", unknown="")


def missing(request: str, *, pre: bool = False) -> str:
    """That the index has no version that meets a request, with the nearest that it has; empty if it has one."""
    requirement = Requirement(request)
    versions = available(requirement.name, pre=pre)
    wanted = next((version_in(each.version.removesuffix(".*")) for each in requirement.specifier), None)
    if wanted is None or any(requirement.specifier.contains(each, prereleases=True) for each in versions):
        return ""
    neighbours = [*[each for each in versions if each < wanted][-1:], *[each for each in versions if each > wanted][:1]]
    return f"{_no_wheel(request)}; the nearest that it has: {listed(map(str, neighbours))}"


def _no_wheel(words: str) -> str:
    python = f"Python {'.'.join(map(str, sys.version_info[:2]))} on {platform.system()} {platform.machine()}"
    return f"the package index has no wheel of {words} for {python}"


def _pip(command: str, *words: str, is_constrained: bool = True) -> subprocess.CompletedProcess[str]:
    # Like the command `onnx-ci`, and unlike `python -m`, do not import packages from the current directory.
    line = [sys.executable, "-P", "-m", "pip", command, "--disable-pip-version-check", "--no-input", *words]
    # What pip prints is read; that an index cannot be reached, it says only before it tries again.
    retries = os.environ.get("PIP_RETRIES", "")
    environment = {**os.environ, "PIP_USER": "0", "PIP_QUIET": "0", "PIP_NO_COLOR": "1"}
    environment |= {"PIP_RETRIES": "1"} if retries == "0" else {}
    if not is_constrained:
        environment.pop("PIP_CONSTRAINT", None)
    return subprocess.run(
        line, env=environment, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace", check=False
    )


def _error(done: subprocess.CompletedProcess[str], what: str, *, unknown: str) -> ConfigurationError:
    """Why pip failed to do ``what``, in one sentence; ``unknown`` is said where the index lacks what was requested."""
    if "No module named pip" in done.stderr:
        return ConfigurationError("pip is not installed here, and other versions come from it; install it: python -m ensurepip")
    if (disk := _DISK.search(done.stderr)) is not None:
        return ConfigurationError(f"{what}: {disk[0]}; free some space, or set XDG_CACHE_HOME and TMPDIR to other folders")
    if (conflict := _CONFLICT.search(done.stdout)) is not None:
        causes = [
            line.strip().replace("The user requested (constraint)", "a constraint requires") for line in conflict[1].split("\n")
        ]
        return ImpossibleError(f"{what} that fit together: {'; '.join(filter(None, dict.fromkeys(causes)))}")
    if (broken := _CONNECTION.search(done.stderr)) is not None:
        reason = broken[1].rpartition(": ")[2].rstrip("\"')")
        return ConfigurationError(f"the package index cannot be reached: {reason}; PIP_INDEX_URL sets another one")
    errors = [line.removeprefix("ERROR: ").strip() for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
    if (lacking := next((line for line in errors if line.startswith(_NO_MATCH)), None)) is not None:
        wanted = lacking.removeprefix(_NO_MATCH).partition(" (from ")[0]  # what was requested, or what that requires
        return ImpossibleError(unknown if not wanted or wanted in unknown else f"{_no_wheel(wanted)}, which is required")
    return ConfigurationError(f"{what}: {errors[-1] if errors else f'pip ended with exit code {done.returncode}'}")
