"""The folders of pytest's ``pythonpath``, from which recipe files import the project's own modules."""

from __future__ import annotations

import configparser
import shlex
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_INI_SECTIONS = {"pytest.ini": "pytest", ".pytest.ini": "pytest", "tox.ini": "pytest", "setup.cfg": "tool:pytest"}
_ORDER = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
"""The files in which pytest looks for its configuration. The first one that has any is used."""
_UNREADABLE = (OSError, ValueError, AttributeError, RecursionError, configparser.Error)
"""What an invalid file raises. It is ignored here, because pytest itself reports it."""


def add_pythonpath(root: Path) -> None:
    """Put the folders of pytest's ``pythonpath`` first on ``sys.path``, as pytest does."""
    for folder in reversed(pytest_paths("pythonpath", root)):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))


def not_on_path(module: str, root: Path) -> str | None:
    """The remedy for a ``module`` that cannot be imported if it is in the project's ``src`` folder, or else ``None``."""
    name = module.partition(".")[0]
    if not (root / "src" / name).is_dir() and not (root / "src" / f"{name}.py").is_file():
        return None
    return f'src/{name} is not installed: run pip install -e ., or set pythonpath = ["src"] in [tool.pytest.ini_options]'


def pytest_paths(option: str, root: Path) -> list[Path]:
    """The paths that pytest's configuration gives to ``option``, such as ``pythonpath`` or ``testpaths``."""
    for name in _ORDER:
        try:
            table = _configuration(root / name)
            if table is None:
                continue
            value = table.get(option, [])
            paths = shlex.split(value) if isinstance(value, str) else value
        except _UNREADABLE:
            continue
        return [root / path for path in paths if isinstance(path, str)] if isinstance(paths, list) else []
    return []


def _configuration(path: Path) -> Mapping[str, Any] | None:
    """The options of pytest in a file; ``None`` if it has none."""
    if not path.is_file():
        return None
    if path.suffix == ".toml":
        data: Any = tomllib.loads(path.read_text(encoding="utf-8"))
        if path.name != "pyproject.toml":
            return data.get("pytest") or {}
        table: Mapping[str, Any] | None = data.get("tool", {}).get("pytest")
        return None if table is None else table.get("ini_options", table)
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(path.read_text(encoding="utf-8"))
    section = _INI_SECTIONS[path.name]
    if parser.has_section(section):
        return dict(parser[section])
    return {} if path.name == "pytest.ini" else None
