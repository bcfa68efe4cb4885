"""Cells judged with other versions: ``onnx-ci run`` in a child process whose path begins with an overlay."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from onnx_ci.config.options import OPTIONS, Role, options_with
from onnx_ci.config.settings import Settings
from onnx_ci.errors import ConfigurationError
from onnx_ci.processes.clock import CLOCK
from onnx_ci.results.files import read_json
from onnx_ci.results.records import Cell, CellResult, Status
from onnx_ci.results.run_report import RunReport
from onnx_ci.results.verdict import broken_rules
from onnx_ci.text import without_commands
from onnx_ci.tools.versions.overlay import Request, environment_with, overlay_of, resolved
from onnx_ci.tools.versions.pip import ImpossibleError, Wheel

_LONGEST_SILENCE = 300.0
"""Seconds after which something is said: CI systems end jobs that print nothing for ten minutes."""


class CachedRuns:
    """Runs of the same cells with other versions, each once."""

    def __init__(self, arguments: Iterable[str], settings: Settings, request: Request) -> None:
        self._arguments, self._settings, self._request = [*arguments], settings, request
        self._results: dict[frozenset[tuple[str, str]], Mapping[Cell, CellResult] | str] = {}
        self._wheels: dict[tuple[str, ...], dict[str, Wheel] | None] = {}

    def wheels(self, *requirements: str) -> dict[str, Wheel] | None:
        """The wheels that a request changes; ``None`` if they cannot be had."""
        if requirements not in self._wheels:
            try:
                self._wheels[requirements] = resolved(replace(self._request, requirements=requirements, upgrade=False))
            except ImpossibleError:
                self._wheels[requirements] = None
        return self._wheels[requirements]

    @property
    def versions(self) -> dict[str, list[str]]:
        """The versions of each package that were asked for and can be had."""
        versions: dict[str, list[str]] = {}
        for requirements, wheels in self._wheels.items():
            for name, wheel in (wheels or {}).items():
                if f"{name}=={wheel.version}" in requirements:
                    versions.setdefault(name, []).append(wheel.version)
        return versions

    def results(self, wheels: Mapping[str, Wheel]) -> Mapping[Cell, CellResult] | str:
        """The results with these wheels; if nothing ran, the reason."""
        key = frozenset((name, wheel.version) for name, wheel in wheels.items())
        if key not in self._results:
            try:
                report = reported(overlay_of(wheels), self._arguments, self._settings)
                self._results[key] = {result.cell: result for result in report.cells}
            except NothingReportedError as error:
                self._results[key] = str(error)
        return self._results[key]


class NothingReportedError(ConfigurationError):
    """A run judged no cell. The message gives its first problem or its last line: these versions may not work at all."""


_LONGEST_FLAG = 100_000
"""Characters; Linux takes 131,072 bytes. Without the flag, more cells run than are needed."""


def reported(overlay: Path | None, arguments: Iterable[str], settings: Settings) -> RunReport:
    """The report of ``onnx-ci run`` with the versions of an overlay, or with what is installed.

    Raises:
        NothingReportedError: no cell was judged.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        # Like the command `onnx-ci`, and unlike `python -m`, do not import packages from the current directory.
        command = [sys.executable, "-P", "-m", "onnx_ci", "run", *arguments, f"--report={report}", "--baseline=off"]
        # What the user's own run has written stays.
        written = (
            option for option in options_with(Role.OUTPUT) if option.name != "report" and getattr(settings, option.field)
        )
        command += [f"--{option.name}={folder}/{option.name}" for option in written]
        problems = Path(folder, "stderr")
        with problems.open("w") as file:
            code = _run(command, environment_with(overlay), file)
        lines = problems.read_text(encoding="utf-8", errors="replace").splitlines()
        last = next((line for line in reversed(lines) if line.strip()), "")
        reason = last.removeprefix("onnx-ci: ").strip() or f"the run ended with exit code {code}"
        try:
            outcome = read_json(report)
        except ConfigurationError:
            raise NothingReportedError(reason) from None
        if not outcome.cells:
            raise NothingReportedError(next((f"{each.source}: {each.message}" for each in outcome.problems), reason))
        return outcome


def _run(command: Sequence[str], environment: Mapping[str, str], problems: IO[str]) -> int:
    """Run a command, and return its exit code. Its progress is told where somebody watches, and before a CI system gives up."""
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=problems,
        encoding="utf-8",
        errors="replace",
    ) as process:
        told = CLOCK.monotonic()
        for line in process.stdout or ():
            if line.startswith("[") and (sys.stderr.isatty() or CLOCK.monotonic() - told > _LONGEST_SILENCE):
                told = CLOCK.monotonic()
                sys.stderr.write(without_commands(line))
                sys.stderr.flush()
    return process.returncode


def flags_of(flags: Mapping[str, str | None]) -> list[str]:
    """The flags that a command was given, for another command: ``--opsets=13``. Switches have no value."""
    given = [(option, value) for option in OPTIONS if (value := flags.get(option.field)) is not None]
    return [f"--{option.name}" if option.is_switch else f"--{option.name}={value}" for option, value in given]


def flags_for(cells: Collection[Cell], settings: Settings) -> dict[str, str]:
    """The flags that run these cells alone, and nothing that is not needed to tell whether they pass, by their fields.

    They take the place of those that the command was given: a list whose flag is given twice has both.
    """
    opsets = sorted({cell.opset for cell in cells})
    selected = ",".join(f"{cell.recipe}::{cell.label}" for cell in cells)
    return {
        "opsets": ",".join(map(str, opsets)),
        "exporters": ",".join(sorted({cell.exporter for cell in cells})),
        "devices": ",".join(sorted({cell.device for cell in cells})),
        **({"select": selected} if len(selected) < _LONGEST_FLAG else {}),
        "sample": str(len(opsets)),
        "shard": "1/1",
        "locate": "false",
    }


def is_right(result: CellResult | None, broken: Collection[str] = ()) -> bool:
    """Whether a cell is judged and passes, whatever its recipe expects, and breaks none of the rules ``broken``."""
    if result is None or result.status in (Status.SKIPPED, Status.ERROR):
        return False
    named = {finding.rule for finding in result.findings}
    return not (broken_rules(result.findings) - {"unexpected-pass"}) and named.isdisjoint(broken)
