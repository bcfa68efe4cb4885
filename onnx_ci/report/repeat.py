"""The command that repeats exactly one cell."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from onnx_ci.config import Settings
from onnx_ci.opsets import default_exporter
from onnx_ci.records import Cell

_NARROWED = ("opsets", "sample", "devices", "exporters", "select", "shard", "durations", "report", "artifacts", "cache")


def repeat_with_pytest(cell: Cell, settings: Settings) -> str:
    """``pytest --onnx-export … ID``, to be typed in the current directory."""
    return shlex.join(
        ["pytest", "--onnx-export", *_flags(cell, settings, "onnx-"), f"{_path(cell, settings)}::{cell.recipe}::{cell.label}"]
    )


def repeat_with_cli(cell: Cell, settings: Settings) -> str:
    """``onnx-ci run … PATH``, to be typed in the current directory."""
    flags = _flags(cell, settings, "")
    return shlex.join(["onnx-ci", "run", *flags, f"--select={cell.recipe}::{cell.label}", _path(cell, settings)])


def _flags(cell: Cell, settings: Settings, prefix: str) -> list[str]:
    flags = [f"--{prefix}opsets={cell.opset}"]
    if cell.device != "cpu":
        flags.append(f"--{prefix}devices={cell.device}")
    if cell.exporter != default_exporter(cell.opset) or settings.exporters is not None:
        flags.append(f"--{prefix}exporters={cell.exporter}")
    return flags + settings.as_flags(prefix, leave_out=_NARROWED)


def _path(cell: Cell, settings: Settings) -> str:
    """The recipe's file from where the user stands; ids count from the project's root."""
    return Path(os.path.relpath(settings.root / cell.source)).as_posix()
