"""Import recipe files, each once, under a name that its own imports and pickle understand, with pytest's ``pythonpath``."""

from __future__ import annotations

import configparser
import contextlib
import hashlib
import importlib
import importlib.util
import os
import shlex
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from onnx_ci.errors import RecipeError
from onnx_ci.owners import file_of


def import_file(path: Path) -> ModuleType:
    """The module of the file ``path``, imported once.

    A file in a package is imported under its dotted name, so that its relative imports work; any other file can import
    modules in its folder, as a script can.
    """
    real = os.path.realpath(path)
    imported = _module_of(path, real)
    if imported is not None:
        return imported
    package_root, parts = path.parent, [path.stem]
    while (package_root / "__init__.py").is_file():
        parts.insert(0, package_root.name)
        package_root = package_root.parent
    if str(package_root) not in sys.path:
        sys.path.insert(0, str(package_root))
    if len(parts) > 1:
        module = importlib.import_module(".".join(parts))
        if os.path.realpath(module.__file__ or "") != real:
            raise RecipeError(f"{'.'.join(parts)} is already imported from {module.__file__}; rename one of the two packages")
        return module
    return _import_by_itself(path)


def _module_of(path: Path, real: str) -> ModuleType | None:
    """The module that has been imported from the file, whose resolved path is ``real``."""
    names = (path.name, Path(real).name)
    for module in list(sys.modules.values()):
        origin = file_of(module)
        # There are thousands of modules, and resolving a path takes long.
        if origin is None or not origin.endswith(names):
            continue
        if module.__name__ != "__main__" and os.path.realpath(origin) == real:
            return module
    return None


def _import_by_itself(path: Path) -> ModuleType:
    """The module of a file that is in no package."""
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    package = f"_onnx_ci_recipes_{digest}"
    spec = importlib.util.spec_from_file_location(f"{package}.{path.stem}", path)
    if spec is None or spec.loader is None:
        of_onnx = "; onnx-ci verify checks an ONNX file by itself" if path.suffix == ".onnx" else ""
        raise RecipeError(f"it is not a Python file; recipe files end in .py{of_onnx}")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(package, ModuleType(package))  # pickle looks for functions by the name of their module
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def import_module_of(name: str, path: Path) -> ModuleType:
    """The module of the file ``path``, imported by its ``name`` if that leads to the file, as others import it."""
    spec = None
    if name not in sys.modules:
        with contextlib.suppress(ImportError, ValueError):  # its parent cannot be imported
            spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == os.path.realpath(path):
        return importlib.import_module(name)
    return import_file(path)


# --- the folders of pytest's ``pythonpath``, from which recipe files import the project's own modules ---------------------

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
