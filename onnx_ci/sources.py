"""The Python files that code comes from: what it imports, directly or not, and whether they are still what was imported.

Files of the project count by their content. Files of the standard library and of installed distributions do not: they are
told apart by version and by what their installer recorded (:mod:`onnx_ci.installed`). An editable installation is part
of the project.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import os
import re
import site
import sys
import sysconfig
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

LIBRARIES = frozenset(
    {"torch", "torchvision", "functorch", "torchgen", "onnx", "onnxruntime", "onnxscript", "onnx_ir", "numpy", "onnx_ci"}
)
"""Packages that are never part of a project. Their versions are looked at, and their files where they are not installed."""

_IMPORTED_AT = time.time()
_FILE_RECIPES = re.compile(r"_onnx_ci_recipes_[0-9a-f]{8}(\.|$)")
_IMPORTS_BY_NAME = re.compile(rb"import_module|__import__|spec_from_file_location|exec_module|run_path|run_module")
_ENDINGS = (".py", ".pyc", ".so", ".pyd")


class NotCacheableError(Exception):
    """A verdict depends on something that cannot be told apart from one process to the next; the message says what."""


def public_name(module: str) -> str:
    """A module's name without what tells this checkout from another: recipe files are imported under a name of their own."""
    return _FILE_RECIPES.sub("", module)


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    folders = {path for key in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(key))}
    folders.update(site.getsitepackages())
    folders.add(site.getusersitepackages())
    folders.update([os.path.realpath(folder) for folder in folders])
    return tuple(sorted(folder.rstrip(os.sep) + os.sep for folder in folders))


@functools.lru_cache(maxsize=65536)
def is_installed(file: str) -> bool:
    """Whether a file belongs to the standard library or to an installed distribution."""
    folders = _installed_folders()
    return file.startswith(folders) or os.path.realpath(file).startswith(folders)


def is_library(module: str) -> bool:
    """Whether a module's code counts by version: it is built in, installed, or of :data:`LIBRARIES`."""
    if module.partition(".")[0] in LIBRARIES and not module.startswith("onnx_ci.recipes."):
        return True
    loaded = sys.modules.get(module)
    if loaded is None:
        return False
    file = getattr(loaded, "__file__", None)
    if file is None:
        origin = getattr(getattr(loaded, "__spec__", None), "origin", None)
        return module in sys.builtin_module_names or origin in ("built-in", "frozen")
    return is_installed(file)


def is_library_file(file: str) -> bool:
    """Whether a file is installed or lies in one of :data:`LIBRARIES`, wherever that was imported from."""
    if is_installed(file):
        return True
    origins = (_file_of(sys.modules.get(name)) for name in LIBRARIES)
    return any(origin is not None and file.startswith(str(Path(origin).parent) + os.sep) for origin in origins)


@functools.cache
def process_started() -> float:
    """When this process began, in seconds since the epoch, or the first moment after it that is known.

    The first call settles it. A fork goes on with the answer of the process that it was forked from, whose recipes and
    libraries it runs, if that one has called this; importing this module does.
    """
    with contextlib.suppress(Exception):  # no Linux, or a /proc of another kind
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        # The kernel rounds down to its tick; no interpreter imports anything in its first one.
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - (int(fields[19]) + 1) / os.sysconf("SC_CLK_TCK")
        started = time.time() - age
        if age > 0 and started <= _IMPORTED_AT:
            return started
    return _IMPORTED_AT


process_started()


@dataclass(frozen=True, kw_only=True)
class Source:
    """What one file holds."""

    digest: str
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]
    """Level, module and names of every import, wherever it stands; ``import a.b`` is ``(0, "a.b", ())``."""
    imports_by_name: bool
    """Whether it may import modules whose names no import statement tells."""
    names: frozenset[str]
    """Names and attributes to which the code of its functions refers, and strings that may be such names."""


def read_source(file: str) -> Source:
    """What ``file`` holds, which must be what this process imported.

    Raises:
        NotCacheableError: it cannot be read, or changed since this process began.
    """
    try:
        status = Path(file).stat()
        # An editor may have been quicker than this run: then the code that runs is not the one in the file.
        if max(status.st_mtime, status.st_ctime) >= process_started():
            raise NotCacheableError(f"{file} changed after this process began")
        return _read(file, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise NotCacheableError(f"{file} cannot be read: {error.strerror or error}") from None


@functools.lru_cache(maxsize=16384)
def _read(file: str, modified: int, size: int) -> Source:
    text = Path(file).read_bytes()
    imports: list[tuple[int, str, tuple[str, ...]]] = []
    names: set[str] = set()
    if file.endswith(".py"):
        try:
            tree = ast.parse(text)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the import gave them already
                names = _names_in(compile(tree, file, "exec", dont_inherit=True))
        except (SyntaxError, ValueError):
            raise NotCacheableError(f"{file} is no Python file any more") from None
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imports += [(0, alias.name, ()) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                imports.append((node.level, node.module or "", tuple(alias.name for alias in node.names)))
    return Source(
        digest=hashlib.sha256(text).hexdigest(),
        imports=tuple(imports),
        imports_by_name=bool(_IMPORTS_BY_NAME.search(text)),
        names=frozenset(names),
    )


def _names_in(code: CodeType) -> set[str]:
    """What the functions in some code refer to, and those nested in them."""
    found: set[str] = set()
    for nested in (each for each in code.co_consts if isinstance(each, CodeType)):
        if nested.co_flags & inspect.CO_OPTIMIZED:  # the body of a class is run at its import and sets its attributes
            found.update(nested.co_names)
            found.update(each for each in nested.co_consts if isinstance(each, str) and each.isidentifier())
        found |= _names_in(nested)
    return found


def loaded_project_modules() -> list[str]:
    """Every module of the project that this process has imported, sorted, without the script that was started."""
    mains = ("__main__", "__mp_main__")
    found = list(sys.modules.items())
    return sorted(name for name, module in found if name not in mains and _file_of(module) and not is_library(name))


def closure(modules: Iterable[str], files: Iterable[str] = ()) -> Mapping[str, str]:
    """The content of the project's files from which ``modules`` and ``files`` come, and of all that they import.

    Returns:
        The digest of each file by the name of its module. A module that is imported and does not exist has no digest, so
        that it counts once it does.

    Raises:
        NotCacheableError: a file cannot be read, or changed since this process began.
    """
    found: dict[str, str] = {}
    waiting = sorted({name for module in modules for name in _with_parents(module)})
    seen = set(waiting)
    read: set[str] = set()
    loose = sorted({real for file in files if not is_installed(real := os.path.realpath(file))})
    while waiting or loose:
        if waiting:
            name = waiting.pop()
            file = None if is_library(name) else locate(name)
            if file is None or is_installed(file):
                if file is None and name not in sys.modules and public_name(name) and not is_library(name):
                    found[public_name(name)] = ""
                continue
            source = read_source(file)
            found[public_name(name)] = source.digest
            read.add(os.path.realpath(file))
            in_package = name if Path(file).name.startswith("__init__.") else name.rpartition(".")[0]
            package = getattr(sys.modules.get(name), "__package__", None) or in_package
        else:
            file = loose.pop()
            if file in read:
                continue
            source, package = read_source(file), ""
            found[f"{Path(file).name} {source.digest}"] = source.digest
        names = {name for level, module, members in source.imports for name in _imported(level, module, members, package)}
        if source.imports_by_name:
            names.update(loaded_project_modules())
        waiting += sorted(names - seen)
        seen |= names
    return found


def _imported(level: int, module: str, members: tuple[str, ...], package: str) -> Iterator[str]:
    """The names of the modules that an import statement may load."""
    if level:
        parts = package.split(".") if package else []
        if level > len(parts):
            return
        module = ".".join([*parts[: len(parts) - level + 1], *([module] if module else [])])
    yield from _with_parents(module)
    if is_library(module):
        return
    loaded = sys.modules.get(module)
    for member in members:
        if member == "*":
            yield from [name for name in list(sys.modules) if name.startswith(f"{module}.")]
            continue
        value = getattr(loaded, member, None)
        if isinstance(value, ModuleType):
            yield value.__name__
        elif value is None and locate(f"{module}.{member}") is not None:
            yield f"{module}.{member}"


def _with_parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _file_of(module: object) -> str | None:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) and file.endswith(_ENDINGS) else None


def locate(name: str) -> str | None:
    """The file of a module, loaded or not; none of its parents is imported."""
    if name in sys.modules:
        return _file_of(sys.modules[name])
    parent = name.rpartition(".")[0]
    path = None
    if parent:
        path = getattr(sys.modules.get(parent), "__path__", None)
        if path is None:
            above = locate(parent)
            if above is None or not Path(above).name.startswith("__init__."):
                return None
            path = [str(Path(above).parent)]
    for finder in sys.meta_path:
        with contextlib.suppress(Exception):  # a finder of somebody else's
            spec = finder.find_spec(name, path, None)
            if spec is not None:
                return spec.origin if spec.origin and spec.origin.endswith(_ENDINGS) else None
    return None
