"""Settings, resolved once: ``[tool.onnx-ci]``, the environment and flags as one frozen value.

Flags take precedence over the environment, the environment over ``pyproject.toml``, and that over the defaults.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onnx_ci.config.options import ENVIRONMENT_PREFIX, FLAGS, OPTIONS, Option, SettingsTable
from onnx_ci.config.rule_severities import SEVERITIES
from onnx_ci.config.values import AUDIT, EVERY_RECIPE
from onnx_ci.errors import ConfigurationError, did_you_mean
from onnx_ci.results.files import check_replaceable
from onnx_ci.results.journal import journal_of
from onnx_ci.results.records import Origin, SettingSource, SettingValue, Severity

TABLE = "tool.onnx-ci"
_BY_NAME = {option.name: option for option in OPTIONS}


@dataclass(frozen=True, kw_only=True)
class Settings(SettingsTable):
    """The settings of a run."""

    root: Path
    origins: Mapping[str, Origin]
    """Where each value comes from, by the name of its field."""
    cache_audit: bool = False
    """Whether every cell runs and is compared with its cached verdict: ``cache = "audit"``."""

    @property
    def cache_folder(self) -> Path | None:
        """Where verdicts are cached, or ``None`` if the cache is off."""
        return None if self.cache is None else self.root / self.cache

    def weights_for(self, recipe: str) -> str | None:
        """The trained weights that the settings specify for ``recipe``."""
        return self.weights.get(recipe, self.weights.get(EVERY_RECIPE))

    def severities_for(self, recipe: str) -> dict[str, Severity | None]:
        """The severities that the settings give to rules for ``recipe``. If several patterns match, the last one counts."""
        return {each.rule: SEVERITIES[each.severity] for each in self.rules if fnmatch.fnmatchcase(recipe, each.recipes)}

    def with_absolute_files(self) -> Settings:
        """The same settings with absolute paths for what is written: a recipe may change the current directory."""
        paths = {name: getattr(self, name) for name in ("report", "artifacts", "save_inputs")}
        return dataclasses.replace(self, **{name: path and path.absolute() for name, path in paths.items()})

    def shown(self) -> dict[str, SettingValue]:
        """Every setting as in the report, by its name."""
        texts: dict[str, SettingValue] = {}
        for option in OPTIONS:
            value = getattr(self, option.field)
            text = None if value is None and option.default is None else option.kind.show(value)
            texts[option.name] = SettingValue(value=text or None, origin=self.origins[option.field])
        return texts


def find_root(start: Path) -> Path:
    """The nearest directory from ``start`` upwards that contains a ``pyproject.toml``, or ``start``."""
    start = start.resolve()
    return next((folder for folder in (start, *start.parents) if (folder / "pyproject.toml").is_file()), start)


def own_configuration(file: Path, root: Path) -> Path | None:
    """The nearest folder between a file and the root of a project above it whose ``pyproject.toml`` has settings of its own."""
    folders = (folder for folder in file.parents if folder != root and folder.is_relative_to(root))
    return next((folder for folder in folders if (folder / "pyproject.toml").is_file() and has_settings(folder)), None)


def has_settings(folder: Path) -> bool:
    """Whether the ``pyproject.toml`` of a folder has settings."""
    try:
        return bool(_table(folder)[0])
    except SettingError:
        return True


class SettingError(ConfigurationError):
    """A setting is unknown or invalid. ``line`` is its line in ``pyproject.toml``, if it is set there."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def load_settings(
    root: Path,
    *,
    flags: Mapping[str, object] | None = None,
    given_by: SettingSource = SettingSource.COMMAND_LINE,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Resolve every option; flags are given by the names of their fields. Raises the first :class:`SettingError`."""
    settings, problems = read_settings(root, flags=flags, given_by=given_by, environment=environment)
    if problems:
        raise problems[0]
    return settings


def read_settings(
    root: Path,
    *,
    flags: Mapping[str, object] | None = None,
    given_by: SettingSource = SettingSource.COMMAND_LINE,
    environment: Mapping[str, str] | None = None,
) -> tuple[Settings, list[SettingError]]:
    """Like :func:`load_settings`, but returns all errors. An invalid value is left out."""
    values: dict[str, Any] = {option.field: option.default for option in OPTIONS}
    origins = dict.fromkeys(values, Origin(source=SettingSource.DEFAULT, given_as="default"))
    problems: list[SettingError] = []
    audits = False
    # What comes later takes precedence.
    entries = [
        *_of_project_file(root),
        *_of_environment(os.environ if environment is None else environment),
        *_of_flags(flags or {}, given_by),
    ]
    for entry in entries:
        if isinstance(entry, SettingError):
            problems.append(entry)
            continue
        if entry.option.field == "cache":
            audits = entry.value == AUDIT
            if audits:  # in the folder that is set elsewhere
                continue
        try:
            values[entry.option.field] = entry.option.kind.parse(entry.value)
        except ValueError as error:
            problems.append(SettingError(f"{entry.origin.given_as}: {error}", entry.line))
        else:
            origins[entry.option.field] = entry.origin
    return Settings(root=root, origins=MappingProxyType(origins), cache_audit=audits, **values), problems


@dataclass(frozen=True)
class _Entry:
    """A value that the project, the environment or a flag gives to an option."""

    option: Option
    value: object
    origin: Origin
    line: int | None = None


def _of_project_file(root: Path) -> Iterator[_Entry | SettingError]:
    try:
        table, text = _table(root)
    except SettingError as error:
        yield error
        return
    for key, value in table.items():
        line = _line_of(key, text)
        if key in _BY_NAME:
            yield _Entry(_BY_NAME[key], value, Origin(source=SettingSource.PROJECT_FILE, given_as=f"[{TABLE}] {key}"), line)
        else:
            yield SettingError(f"[{TABLE}] has no setting {key!r}{did_you_mean(key, _BY_NAME)}", line)


def _of_environment(environment: Mapping[str, str]) -> Iterator[_Entry | SettingError]:
    by_variable = {option.variable: option for option in FLAGS}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or not text:
            continue
        if variable in by_variable:
            yield _Entry(by_variable[variable], text, Origin(source=SettingSource.ENVIRONMENT, given_as=variable))
        else:
            nearest = did_you_mean(variable, by_variable)
            yield SettingError(f"{variable} in the environment is not a setting{nearest}")


def _of_flags(flags: Mapping[str, object], given_by: SettingSource) -> Iterator[_Entry]:
    for option in FLAGS:
        value = flags.get(option.field)
        if value is not None:
            in_python, prefix = given_by is SettingSource.PYTHON, "onnx-" if given_by is SettingSource.PYTEST else ""
            flag = f"{option.field}=" if in_python else f"--{prefix}{option.name}"
            yield _Entry(option, value, Origin(source=given_by, given_as=flag))


def _table(root: Path) -> tuple[Mapping[str, object], str]:
    """The settings' table in ``pyproject.toml``, and the text of the file."""
    file = root / "pyproject.toml"
    try:
        text = file.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError, RecursionError) as error:
        line = re.search(r"at line (\d+)", str(error))
        raise SettingError(f"{file} cannot be read: {error}", int(line[1]) if line else 1) from None
    tools = document.get("tool")
    if not isinstance(tools, dict):
        return {}, text
    for name in tools:
        if name != "onnx-ci" and re.sub("[-_]", "", name.lower()) == "onnxci":
            raise SettingError(
                f"{file} has a table [tool.{name}], which is ignored; the table is [{TABLE}]", _line_of("", text, name)
            )
    table = tools.get("onnx-ci", {})
    if not isinstance(table, dict):
        raise SettingError(f"{file}: [{TABLE}] must be a table", _line_of("onnx-ci", text))
    return table, text


def _line_of(key: str, text: str, table: str = "onnx-ci") -> int:
    """The line of ``key`` in a table of ``pyproject.toml``, or that of the table if the key is written in another form."""
    lines = text.splitlines()
    header = re.compile(rf"""\s*\[\s*tool\s*\.\s*["']?{re.escape(table)}\b""")
    start = next((number for number, line in enumerate(lines) if header.match(line)), 0)
    entry = re.compile(rf"""(?:{header.pattern}["']?\s*\.|)\s*["']?{re.escape(key)}["']?\s*[=.\]]""")
    return next((number for number in range(start, len(lines)) if key and entry.match(lines[number])), start) + 1


def tool_schema(tool_name: str = "onnx-ci") -> dict[str, Any]:
    """The JSON Schema of the table, for validate-pyproject's entry point ``validate_pyproject.tool_schema``."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "urn:onnx-ci:settings",  # a name and no address: the schema is generated for the installed version
        "title": f"Settings of {tool_name} ([{TABLE}])",
        "type": "object",
        "additionalProperties": False,
        "properties": {option.name: {"description": option.help, **option.kind.schema} for option in OPTIONS},
    }


def check_writable(settings: Settings, *files: Path | None) -> None:
    """Raise ``ConfigurationError`` if temporary files, ``files`` or those of the settings cannot be written."""
    try:
        tempfile.gettempdir()
    except OSError as error:
        raise ConfigurationError(f"{error.strerror}; free some space, or choose another folder with TMPDIR") from None
    written = [file for file in (settings.report, settings.report and journal_of(settings.report), *files) if file is not None]
    for file in written:
        check_replaceable(file)
    places = [(file, file.parent) for file in written]
    places += [(folder, folder) for folder in (settings.artifacts, settings.save_inputs) if folder is not None]
    for path, folder in places:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
            if path is not folder and path.is_dir():
                raise IsADirectoryError("it is a directory; name a file")
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}; choose another path") from None
