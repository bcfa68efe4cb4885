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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onnx_ci.config.options import ENVIRONMENT_PREFIX, OPTIONS, Option
from onnx_ci.config.values import RULE_SEVERITIES, Shard
from onnx_ci.errors import ConfigurationError, did_you_mean
from onnx_ci.results.records import Origin, SettingSource, SettingValue, Severity

TABLE = "tool.onnx-ci"
_FLAGS = {SettingSource.COMMAND_LINE: "--{}", SettingSource.PYTEST: "--onnx-{}", SettingSource.PYTHON: "{}="}
"""How each front-end writes an option."""
_BY_NAME = {option.name: option for option in OPTIONS}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting of a run. ``origins`` says where each value came from."""

    root: Path
    opsets: tuple[int, ...] | None
    sample: int | None
    devices: tuple[str, ...]
    require_devices: bool
    exporters: tuple[str, ...] | None
    runtimes: tuple[str, ...] | None
    select: tuple[str, ...] | None
    tags: tuple[str, ...] | None
    shard: Shard | None
    durations: Path | None
    recipe_files: tuple[str, ...]
    packages: tuple[str, ...]
    weights: Mapping[str, str]
    max_drift: float
    rtol: float | None
    atol: float | None
    allow: tuple[str, ...]
    rules: Mapping[str, Mapping[str, str]]
    strict: bool
    skip_stages: tuple[str, ...]
    inputs: tuple[str, ...]
    isolation: str
    jobs: int | None
    timeout: float
    memory_limit: int | None
    cache: Path | None
    cache_ignore: tuple[str, ...]
    cache_ignore_variables: tuple[str, ...]
    baseline: str
    baseline_folder: Path
    baseline_policy: Mapping[str, str]
    baseline_limits: Mapping[str, float]
    report: Path | None
    junit: Path | None
    sarif: Path | None
    artifacts: Path | None
    save_inputs: Path | None
    origins: Mapping[str, Origin]

    @property
    def cache_folder(self) -> Path | None:
        """Where verdicts are cached, or ``None`` if the cache is off."""
        return None if self.cache is None else self.root / self.cache

    def weights_for(self, recipe: str) -> str | None:
        """The trained weights that the settings specify for ``recipe``."""
        return self.weights.get(recipe, self.weights.get("*"))

    def severities_for(self, recipe: str) -> dict[str, Severity | None]:
        """The severities that the settings give to rules for ``recipe``: of the patterns that match, the last one counts."""
        found: dict[str, Severity | None] = {}
        for pattern, severities in self.rules.items():
            if fnmatch.fnmatchcase(recipe, pattern):
                found |= {rule: RULE_SEVERITIES[word] for rule, word in severities.items()}
        return found

    def with_absolute_files(self) -> Settings:
        """The same settings; what is written does not depend on the current directory, which a recipe may change."""
        names = ("report", "artifacts", "save_inputs")
        paths: dict[str, Any] = {name: getattr(self, name) for name in names}
        return dataclasses.replace(self, **{name: path and path.absolute() for name, path in paths.items()})

    def shown(self) -> dict[str, SettingValue]:
        """Every setting by its name, as in the report."""
        shown: dict[str, SettingValue] = {}
        for option in OPTIONS:
            value = getattr(self, option.field)
            text = None if value is None and option.default is None else option.kind.show(value)
            shown[option.name] = SettingValue(value=text or None, origin=self.origins[option.field])
        return shown


def find_root(start: Path) -> Path:
    """The nearest directory from ``start`` upwards that contains a ``pyproject.toml``, or ``start``."""
    start = start.resolve()
    return next((folder for folder in (start, *start.parents) if (folder / "pyproject.toml").is_file()), start)


class SettingError(ConfigurationError):
    """A setting is unknown or invalid.

    Attributes:
        line: its line in ``pyproject.toml``, counted from 1; ``None`` if it is set elsewhere.
    """

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
    """Resolve every option.

    Args:
        root: the project's root; its ``pyproject.toml`` is read.
        flags: values from the command line or the caller, by an option's field name; ``None`` means not given.
        given_by: where the flags came from: the command line, pytest or Python.
        environment: the environment variables. Default: those of the process.

    Raises:
        SettingError: a key is unknown or a value is invalid. The message names the place and the nearest key.
    """
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
    """Like :func:`load_settings`, but returns all errors; invalid values are left out."""
    values: dict[str, Any] = {option.field: option.default for option in OPTIONS}
    default = Origin(source=SettingSource.DEFAULT, given_as="default")
    origins = dict.fromkeys(values, default)
    problems: list[SettingError] = []

    def resolve(option: Option, value: object, source: SettingSource, given_as: str, line: int | None = None) -> None:
        try:
            values[option.field] = option.kind.parse(value)
        except ValueError as error:
            problems.append(SettingError(f"{given_as}: {error}", line))
        else:
            origins[option.field] = Origin(source=source, given_as=given_as)

    try:
        table, text = _table(root)
    except SettingError as error:
        problems.append(error)
        table, text = {}, ""
    for key, value in table.items():
        line = _line_of(key, text)
        if key in _BY_NAME:
            resolve(_BY_NAME[key], value, SettingSource.PROJECT_FILE, f"[{TABLE}] {key}", line)
        else:
            problems.append(SettingError(f"[{TABLE}] has no setting {key!r}{did_you_mean(key, _BY_NAME)}", line))

    by_variable = {option.variable: option for option in OPTIONS}
    for variable, given in sorted((os.environ if environment is None else environment).items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or not given:
            continue
        if variable in by_variable:
            resolve(by_variable[variable], given, SettingSource.ENVIRONMENT, variable)
        else:
            nearest = did_you_mean(variable, by_variable)
            problems.append(SettingError(f"{variable} in the environment is not a setting{nearest}"))

    for option in OPTIONS:
        flag = (flags or {}).get(option.field)
        if flag is not None:
            resolve(
                option,
                flag,
                given_by,
                _FLAGS[given_by].format(option.name if given_by is not SettingSource.PYTHON else option.field),
            )

    return Settings(root=root, origins=MappingProxyType(origins), **values), problems


def _table(root: Path) -> tuple[Mapping[str, object], str]:
    """The settings' table, and the text of its file."""
    file = root / "pyproject.toml"
    try:
        text = file.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except FileNotFoundError:
        return {}, ""
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        line = re.search(r"at line (\d+)", str(error))
        raise SettingError(f"{file} cannot be read: {error}", int(line[1]) if line else 1) from None
    tools = document.get("tool")
    tools = tools if isinstance(tools, dict) else {}
    for name in tools:
        if name != "onnx-ci" and name.lower().replace("_", "-") == "onnx-ci":
            raise SettingError(
                f"{file} has a table [tool.{name}], which is ignored; the table is [{TABLE}]", _line_of("", text, name)
            )
    table = tools.get("onnx-ci", {})
    if not isinstance(table, dict):
        raise SettingError(f"{file}: [{TABLE}] must be a table", _line_of("onnx-ci", text))
    return table, text


def _line_of(key: str, text: str, table: str = "onnx-ci") -> int:
    """The line of ``key`` in a table of ``pyproject.toml``; that of the table if the key is written in another form."""
    lines = text.splitlines()
    header = re.compile(rf"""\s*\[\s*tool\s*\.\s*["']?{re.escape(table)}\b""")
    start = next((number for number, line in enumerate(lines) if header.match(line)), 0)
    entry = re.compile(rf"""(?:{header.pattern}["']?\s*\.|)\s*["']?{re.escape(key)}["']?\s*[=.\]]""")
    return next((number for number in range(start, len(lines)) if key and entry.match(lines[number])), start) + 1


def check_writable(settings: Settings, *files: Path | None) -> None:
    """Check, before any cell runs, that the report, the artifacts, saved inputs and temporary files can be written.

    Args:
        settings: the settings of the run.
        files: other files that will be written; ``None`` is ignored.

    Raises:
        ConfigurationError: a path cannot be written; the message names it.
    """
    try:
        tempfile.gettempdir()
    except OSError as error:
        raise ConfigurationError(f"{error.strerror}; free some space, or choose another folder with TMPDIR") from None
    places = [(path, path.parent) for path in (settings.report, *files) if path is not None]
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
