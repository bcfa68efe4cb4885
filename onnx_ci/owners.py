"""Whose code a file or a module is: the project's, a library's, or that of Python and of the packages that judge models."""

from __future__ import annotations

import contextlib
import csv
import enum
import functools
import importlib.util
import itertools
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

LIBRARIES = frozenset(
    {"torch", "torchvision", "functorch", "torchgen", "onnx", "onnxruntime", "onnxscript", "onnx_ir", "numpy", "onnx_ci"}
)
"""Packages that are never part of a project. They count by version and, if used from a checkout, also by their files."""
_TOOLCHAIN = ("torch", "onnx", "onnx_ir", "onnxscript", "onnx_ci")
_OF_PACKAGES = frozenset({"site-packages", "dist-packages"})
"""Names of folders with installed packages. An environment can use such a folder of another one without listing it."""


class Owner(enum.Enum):
    """Whose code a file is."""

    PROJECT = enum.auto()
    LIBRARY = enum.auto()
    """That of an installed package."""
    TOOLCHAIN = enum.auto()
    """That of Python, of a package that exports and judges models, such as torch, or code in no file."""


@functools.lru_cache(maxsize=65536)
def owner_of(file: str) -> Owner:
    """Whose code a file is, wherever the packages of its owner are imported from."""
    if not file or file.startswith("<"):  # "<string>" is generated code
        return Owner.TOOLCHAIN
    paths = (file, os.path.realpath(file))
    if any(path.startswith(_folders_of(_TOOLCHAIN)) for path in paths):
        return Owner.TOOLCHAIN
    if package_folder(file) is None and any(path.startswith(_folder("stdlib")) for path in paths):
        return Owner.TOOLCHAIN
    others = (*_folders_of(tuple(LIBRARIES)), _folder("scripts"))
    if package_folder(file) is not None or is_installed(file) or any(path.startswith(others) for path in paths):
        return Owner.LIBRARY
    return Owner.PROJECT


def package_folder(file: str) -> Path | None:
    """The innermost folder of installed packages that contains a file."""
    return next((folder for folder in Path(file).parents if folder.name in _OF_PACKAGES), None)


@functools.cache
def _folders_of(packages: tuple[str, ...]) -> tuple[str, ...]:
    """The beginnings of the paths of packages' files, also of those that are used from a checkout."""
    folders = set()
    for name in packages:
        with contextlib.suppress(ImportError, ValueError, AttributeError):  # it is not as Python imports modules
            if (spec := importlib.util.find_spec(name)) is not None and spec.origin is not None:
                folders.add(os.path.dirname(spec.origin))  # noqa: PTH120
    return tuple({f"{path}{os.sep}" for folder in folders for path in (folder, os.path.realpath(folder))})


def spec_of(name: str) -> ModuleSpec | None:
    """As :func:`importlib.util.find_spec` in a new process: what is imported does not count, and nothing gets imported."""
    spec, folders = None, None
    for path in itertools.accumulate(name.split("."), "{}.{}".format):
        for finder in sys.meta_path:
            try:
                spec = finder.find_spec(path, folders)
            except KeyError:  # the spec of a namespace package looks up its parent package
                spec = PathFinder.find_spec(path.rpartition(".")[2], folders)
            if spec is not None:
                break
        if spec is None or (path != name and spec.submodule_search_locations is None):
            return None
        folders = spec.submodule_search_locations
    return spec


def _folder(name: str) -> str:
    return f"{sysconfig.get_path(name)}{os.sep}"


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


def file_of(module: object) -> str | None:
    """The file that a module was imported from, or ``None``."""
    file = namespace_of(module).get("__file__")
    return file if isinstance(file, str) and file.endswith(MODULE_FILE_ENDINGS) else None


def namespace_of(module: object) -> Mapping[str, Any]:
    """The names that a module has by now. One that imports another module once it is asked for a name is not asked."""
    namespace = getattr(module, "__dict__", None)
    return namespace if isinstance(namespace, Mapping) else {}


def source_of(file: str) -> str:
    """The source of a compiled module that Python or pytest keeps and compares with it; other files are their own source."""
    if not file.endswith(".pyc"):
        return file
    with contextlib.suppress(OSError), Path(file).open("rb") as compiled:
        if compiled.read(8)[4:] == b"\1\0\0\0":  # the flags of one that is not compared
            return file
    if by_pytest := _COMPILED_BY_PYTEST.fullmatch(file):
        return f"{by_pytest['folder']}{by_pytest['module']}.py"
    with contextlib.suppress(ValueError):  # Python has not named it
        return importlib.util.source_from_cache(file)
    return file
