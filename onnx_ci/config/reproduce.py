"""The commands that repeat a cell, explain its failure or record its baseline, with the settings that it ran with.

They are meant for the current directory. A cell is repeated without the cache, which would only return the same verdict.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from onnx_ci.config.options import OPTIONS, Option, Role, options_with
from onnx_ci.config.settings import Settings
from onnx_ci.opsets import format_opsets
from onnx_ci.results.records import Cell, SettingSource, SettingValue
from onnx_ci.results.run_report import RunReport

NARROWING = frozenset(option.name for option in options_with(Role.MATRIX, Role.SELECTION, Role.FILES, Role.CACHE, Role.OUTPUT))
"""Settings for which cells run and where files go, not for how a cell is judged."""
OF_ONE_CELL = options_with(Role.VERDICT, Role.EXECUTION)
_REPEATED = (Role.DISCOVERY, Role.VERDICT, Role.BASELINE, Role.EXECUTION)
"""The roles of the options that a command repeats if it names its cells."""
ShownSettings = Mapping[str, SettingValue]


def repeat_with_pytest(cell: Cell, settings: ShownSettings, root: Path) -> str:
    """``pytest --onnx-export … ID``; ``root`` is the project's."""
    flags = [*_flags(cell, settings, "onnx-"), "--no-onnx-cache"]
    return _command("pytest", "--onnx-export", *flags, f"{_path(cell, root)}::{cell.recipe}::{cell.label}")


def repeat_with_cli(cell: Cell, settings: ShownSettings, root: Path) -> str:
    """``onnx-ci run … PATH``; ``root`` is the project's."""
    flags = [*_flags(cell, settings, ""), "--no-cache", f"--select={cell.recipe}::{cell.label}"]
    return _command("onnx-ci", "run", *flags, _path(cell, root))


def record_with_cli(cell: Cell, settings: Settings) -> str:
    """``onnx-ci baseline update … PATH``, which records the cell's recipe."""
    flags = _flags_set(settings.shown(), _without_mode(options_with(Role.MATRIX, *_REPEATED)))
    return _command("onnx-ci", "baseline", "update", *flags, f"--select={cell.recipe}::*", _path(cell, settings.root))


def command_about(name: str, cell: Cell, settings: Settings) -> str:
    """``onnx-ci NAME … RECIPE::LABEL PATH``, a command about the failure of the cell: ``why``, ``versions`` or ``fix``."""
    flags = _flags_set(settings.shown(), OF_ONE_CELL)
    return _command("onnx-ci", name, *flags, f"{cell.recipe}::{cell.label}", _path(cell, settings.root))


def repeat_from(report: RunReport, root: Path) -> Callable[[Cell], str]:
    """A function from a cell of a report to the command that repeats it."""
    of_cell = {id: part.settings for id, part in report.part_of.items()}

    def repeat(cell: Cell) -> str:
        settings = of_cell.get(cell.id, report.settings)
        # Flags of pytest show that it was the front-end. Without any, either command works.
        by_pytest = any(setting.origin.source is SettingSource.PYTEST for setting in settings.values())
        command = (repeat_with_pytest if by_pytest else repeat_with_cli)(
            dataclasses.replace(cell, environment=None), settings, root
        )
        return f"{command}  # with {cell.versions}" if cell.versions else command

    return repeat


def record_from(report: RunReport, cells: Iterable[Cell], root: Path) -> list[str]:
    """The commands that record ``cells`` of a report in the baselines. They may record other cells of the same recipes, too."""
    of_cell = {id: part.settings for id, part in report.part_of.items()}
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        settings = of_cell.get(cell.id, report.settings)
        flags = [*_device_and_exporter(cell, settings), *_flags_set(settings, _without_mode(options_with(*_REPEATED)))]
        groups.setdefault(tuple(flags), []).append(cell)
    return [_record_all(flags, group, root) for flags, group in groups.items()]


_LONGEST_COMMAND = 2000
"""The most characters of a command. A longer one records every recipe instead of naming them."""


def _record_all(flags: Iterable[str], cells: Iterable[Cell], root: Path) -> str:
    cells = tuple(cells)
    opsets = f"--opsets={format_opsets(tuple(sorted({cell.opset for cell in cells})))}"
    recipes = ",".join(dict.fromkeys(f"{cell.recipe}::*" for cell in cells))
    paths = dict.fromkeys(_path(cell, root) for cell in cells)
    command = _command("onnx-ci", "baseline", "update", opsets, *flags, f"--select={recipes}", *paths)
    return command if len(command) <= _LONGEST_COMMAND else _command("onnx-ci", "baseline", "update", opsets, *flags)


def _flags(cell: Cell, settings: ShownSettings, prefix: str) -> list[str]:
    """Flags that select the cell, and those for the settings that it ran with."""
    return [
        f"--{prefix}opsets={cell.opset}",
        *_device_and_exporter(cell, settings, prefix),
        *_flags_set(settings, options_with(*_REPEATED), prefix),
    ]


def _without_mode(options: Iterable[Option]) -> list[Option]:
    """The options without ``baseline``, whose value the command for recording sets itself."""
    return [option for option in options if option.name != "baseline"]


def _device_and_exporter(cell: Cell, settings: ShownSettings, prefix: str = "") -> list[str]:
    """Flags for the device and the exporter of the cell, where they are not the default."""
    values = {name: setting.value for name, setting in settings.items()}
    flags = []
    if cell.device != "cpu" or values.get("devices") not in (None, "cpu"):
        flags.append(f"--{prefix}devices={cell.device}")
    if cell.device != "cpu":
        flags += _flags_set(settings, [option for option in OPTIONS if option.name == "require-devices"], prefix)
    if not cell.has_default_exporter or values.get("exporters") is not None:
        flags.append(f"--{prefix}exporters={cell.exporter}")
    return flags


def _flags_set(settings: ShownSettings, options: Iterable[Option], prefix: str = "") -> list[str]:
    """The flags of those options that a flag or the environment sets; the settings of ``pyproject.toml`` hold anyway."""
    flags = []
    for option in options:
        setting = settings.get(option.name)
        if setting is None or not setting.value or not setting.origin.source.is_of_this_run:
            continue
        if not option.is_switch:
            flags.append(f"--{prefix}{option.name}={setting.value}")
        elif setting.value == "true":
            flags.append(f"--{prefix}{option.name}")
    return flags


def _path(cell: Cell, root: Path) -> str:
    """The recipe's file relative to the current directory; ids are relative to the project's root."""
    return Path(os.path.relpath(root / cell.source)).as_posix()


def _command(*words: str) -> str:
    """The words as one shell command."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{''.join(map(_escaped, word))}'" for word in words)


def _escaped(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"
