"""Tells libraries, whose files count by version, from the project, whose files count by content."""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib.util
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

LIBRARIES = frozenset(
    {"torch", "torchvision", "functorch", "torchgen", "onnx", "onnxruntime", "onnxscript", "onnx_ir", "numpy", "onnx_ci"}
)
"""Packages that are never part of a project. They count by version and, if used from a checkout, also by their files."""

MODULE_FILE_ENDINGS = (".py", ".pyc", ".so", ".pyd")
_COMPILED_BY_PYTEST = re.compile(r"(?P<folder>.*[/\\])__pycache__[/\\](?P<module>[^/\\]+?)\.\w+-\d+-pytest-[^/\\]+\.pyc")
"""A conftest.py, a plugin or a test file with rewritten assertions."""


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    """The beginnings of the paths of installed files."""
    folders = {path for key in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(key))}
    folders.update(site.getsitepackages())
    folders.add(site.getusersitepackages())
    folders.update([os.path.realpath(folder) for folder in folders])
    of_python = tuple(sorted(folder.rstrip(os.sep) + os.sep for folder in folders))
    others = [place.absolute() for place in map(Path, sys.path) if not f"{place.absolute()}{os.sep}".startswith(of_python)]
    return (*of_python, *(path for place in others for path in _installed_into(place)))


def _installed_into(folder: Path) -> Iterator[str]:
    """The packages and modules of distributions in a folder, such as the folder of ``pip install --target``.

    Other files in it belong to no library: the folder may be that of a project.
    """
    for record in folder.glob("*.dist-info/RECORD"):
        with contextlib.suppress(OSError, ValueError, csv.Error), record.open(encoding="utf-8", newline="") as lines:
            names = {row[0].partition("/")[0] for row in csv.reader(lines) if row}
            for path in (folder / name for name in names - {"..", "__pycache__"}):
                for place in {str(path), os.path.realpath(path)}:
                    yield f"{place}{os.sep}" if path.is_dir() else place


@functools.lru_cache(maxsize=65536)
def is_installed(file: str) -> bool:
    """Whether a file belongs to the standard library or to an installed distribution."""
    folders = _installed_folders()
    return file.startswith(folders) or os.path.realpath(file).startswith(folders)


def is_library(module: str) -> bool:
    """Whether a module counts by version, because it is built in, installed, or in :data:`LIBRARIES`."""
    if module.partition(".")[0] in LIBRARIES and not module.startswith("onnx_ci.recipes."):
        return True
    loaded = sys.modules.get(module)
    if loaded is None:
        return False
    file = namespace_of(loaded).get("__file__")
    if file is None:
        origin = getattr(namespace_of(loaded).get("__spec__"), "origin", None)
        return module in sys.builtin_module_names or origin in ("built-in", "frozen")
    return is_installed(file)


def is_library_file(file: str) -> bool:
    """Whether a file is installed, or belongs to one of :data:`LIBRARIES` wherever that is imported from."""
    if is_installed(file):
        return True
    origins = (file_of(sys.modules.get(name)) for name in LIBRARIES)
    return any(origin is not None and file.startswith(str(Path(origin).parent) + os.sep) for origin in origins)


def file_of(module: object) -> str | None:
    """The file that a module was imported from, or ``None``."""
    file = namespace_of(module).get("__file__")
    return file if isinstance(file, str) and file.endswith(MODULE_FILE_ENDINGS) else None


def namespace_of(module: object) -> Mapping[str, Any]:
    """The names that a module has by now. One that imports another module once it is asked for a name is not asked."""
    namespace = getattr(module, "__dict__", None)
    return namespace if isinstance(namespace, Mapping) else {}


def source_of(file: str) -> str:
    """The source of a compiled module that Python or pytest keeps; other files are their own source."""
    if not file.endswith(".pyc"):
        return file
    if by_pytest := _COMPILED_BY_PYTEST.fullmatch(file):
        return f"{by_pytest['folder']}{by_pytest['module']}.py"
    with contextlib.suppress(ValueError):  # Python has not named it
        return importlib.util.source_from_cache(file)
    return file
