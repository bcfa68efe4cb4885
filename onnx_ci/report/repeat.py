"""The command that repeats exactly one cell, for real: a verdict that was kept would only say the same again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from onnx_ci.config import ENVIRONMENT_PREFIX, OPTIONS, Settings
from onnx_ci.opsets import default_exporter
from onnx_ci.records import Cell, RunReport

NARROWED = (
    *("opsets", "sample", "devices", "require-devices", "exporters", "select", "tags", "shard", "durations"),
    *("report", "artifacts", "cache"),
)
"""Settings that say which cells run and what is kept of them, not what becomes of a cell."""

Shown = Mapping[str, Mapping[str, str | None]]
"""Settings as a report holds them."""


def repeat_with_pytest(cell: Cell, settings: Settings) -> str:
    """``pytest --onnx-export … ID``, to be typed in the current directory."""
    return _with_pytest(cell, settings.as_json(), settings.root)


def repeat_with_cli(cell: Cell, settings: Settings) -> str:
    """``onnx-ci run … PATH``, to be typed in the current directory."""
    return _with_cli(cell, settings.as_json(), settings.root)


def record_with_cli(cell: Cell, settings: Settings) -> str:
    """``onnx-ci baseline update … PATH``, which records the cell's recipe; to be typed in the current directory."""
    shown = settings.as_json()
    given = {
        option.name: shown[option.name]["value"]
        for option in OPTIONS
        if _is_given(str(shown[option.name]["from"])) and option.name not in _OF_ONE_RUN
    }
    flags = [f"--{name}={value}" for name, value in given.items() if value]
    return _command("onnx-ci", "baseline", "update", *flags, f"--select={cell.recipe}::*", _path(cell, settings.root))


_OF_ONE_RUN = ("select", "tags", "shard", "durations", "report", "artifacts", "cache", "baseline", "baseline-policy")


def repeat_from(report: RunReport, root: Path) -> Callable[[Cell], str]:
    """For each cell of a report the command that repeats it under the settings under which it ran.

    Args:
        report: a report of any run, or a merged one.
        root: the root of the project here.
    """
    of_cell = {id: part.settings for part in report.merged_from for id in part.cells}

    def repeat(cell: Cell) -> str:
        settings = of_cell.get(cell.id, report.settings)
        # The flags of pytest tell that it was the front-end; where none was given, either command does.
        by_pytest = any(str(each["from"]).startswith("--onnx-") for each in settings.values())
        return (_with_pytest if by_pytest else _with_cli)(cell, settings, root)

    return repeat


def _with_pytest(cell: Cell, settings: Shown, root: Path) -> str:
    flags = [*_flags(cell, settings, "onnx-"), "--no-onnx-cache"]
    return _command("pytest", "--onnx-export", *flags, f"{_path(cell, root)}::{cell.recipe}::{cell.label}")


def _with_cli(cell: Cell, settings: Shown, root: Path) -> str:
    flags = [*_flags(cell, settings, ""), "--no-cache", f"--select={cell.recipe}::{cell.label}"]
    return _command("onnx-ci", "run", *flags, _path(cell, root))


def _flags(cell: Cell, settings: Shown, prefix: str) -> list[str]:
    """What names the cell, and what was set by flag or environment; what stands in a file repeats itself."""
    values = {name: each["value"] for name, each in settings.items()}
    flags = {"opsets": str(cell.opset)}
    if cell.device != "cpu" or values.get("devices") not in (None, "cpu"):
        flags["devices"] = cell.device
    if cell.device != "cpu" and values.get("require-devices") == "true" and _is_given(str(settings["require-devices"]["from"])):
        flags["require-devices"] = ""
    if cell.exporter != default_exporter(cell.opset) or values.get("exporters") is not None:
        flags["exporters"] = cell.exporter
    for option in OPTIONS:
        value = values.get(option.name)
        if value and option.name not in NARROWED and _is_given(str(settings[option.name]["from"])):
            flags[option.name] = value
    return [f"--{prefix}{name}{value and f'={value}'}" for name, value in flags.items()]


def _is_given(origin: str) -> bool:
    return origin.startswith(("--", ENVIRONMENT_PREFIX))


def _path(cell: Cell, root: Path) -> str:
    """The recipe's file from where the user stands; ids count from the project's root."""
    return Path(os.path.relpath(root / cell.source)).as_posix()


def _command(*words: str) -> str:
    """The words as one line of a shell."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{''.join(map(_escaped, word))}'" for word in words)


def _escaped(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"
