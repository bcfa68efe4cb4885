"""The Python files that code comes from, its direct and indirect imports, and whether they changed since they were imported.

Files of the project count by content. Files of the standard library and of installed distributions count by version and by
what their installer recorded (:mod:`onnx_ci.cache.installed`). An editable installation is part of the project.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import os
import re
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

from onnx_ci.environment.libraries import MODULE_FILE_ENDINGS, file_of, is_installed, is_library, public_name

_IMPORTED_AT = time.time()
_IMPORTS_BY_NAME = re.compile(rb"import_module|__import__|spec_from_file_location|exec_module|run_path|run_module")


class NotCacheableError(Exception):
    """A verdict depends on something whose changes cannot be detected; the message names it."""


@functools.cache
def process_started() -> float:
    """When this process started, in seconds since the epoch, or the earliest later time that is known.

    The result is computed once. A fork inherits it from its parent process, whose recipes and libraries it runs, because
    importing this module computes it.
    """
    with contextlib.suppress(Exception):  # not Linux, or an unusual /proc
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        # The kernel rounds down to a clock tick; no interpreter imports anything during its first one.
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - (int(fields[19]) + 1) / os.sysconf("SC_CLK_TCK")
        started = time.time() - age
        if age > 0 and started <= _IMPORTED_AT:
            return started
    return _IMPORTED_AT


process_started()


@dataclass(frozen=True, kw_only=True)
class Source:
    """What the cache needs to know about one file."""

    digest: str
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]
    """Level, module and names of every import statement in it; ``import a.b`` is ``(0, "a.b", ())``."""
    imports_by_name: bool
    """Whether it may import modules without an import statement."""
    names: frozenset[str]
    """Names and attributes that its functions refer to, and strings that may be such names."""


def read_source(file: str) -> Source:
    """Read ``file``, which must still be what this process imported.

    Raises:
        NotCacheableError: it cannot be read, or changed since this process started.
    """
    with _of_this_process(file) as status:
        return _read(file, status.st_mtime_ns, status.st_size)


def file_digest(file: str) -> str:
    """The digest of a file that must still be what this process imported, without reading it as code.

    Raises:
        NotCacheableError: it cannot be read, or changed since this process started.
    """
    with _of_this_process(file) as status:
        return content_digest(file, status)


def content_digest(file: str, status: os.stat_result) -> str:
    """The SHA-256 of a file's content, which is read again only if its ``status`` has changed.

    Raises:
        OSError: it cannot be read.
    """
    return _digest(file, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@functools.lru_cache(maxsize=16384)
def _digest(file: str, *_: int) -> str:
    with Path(file).open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@contextlib.contextmanager
def _of_this_process(file: str) -> Iterator[os.stat_result]:
    """Read, in the block, a file that did not change since this process started."""
    try:
        status = Path(file).stat()
        # If the file was edited since, the code that runs is not the code in the file.
        if max(status.st_mtime, status.st_ctime) >= process_started():
            raise NotCacheableError(f"{file} changed after this process started")
        yield status
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
                warnings.simplefilter("ignore")  # already shown by the import
                names = _names_in(compile(tree, file, "exec", dont_inherit=True))
        except (SyntaxError, ValueError):
            raise NotCacheableError(f"{file} is no longer a Python file") from None
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
    """The names that the functions in ``code``, nested ones included, refer to."""
    found: set[str] = set()
    for nested in (each for each in code.co_consts if isinstance(each, CodeType)):
        if nested.co_flags & inspect.CO_OPTIMIZED:  # a function, not the body of a class, which runs on import
            found.update(nested.co_names)
            found.update(each for each in nested.co_consts if isinstance(each, str) and each.isidentifier())
        found |= _names_in(nested)
    return found


def loaded_project_modules() -> list[str]:
    """Every module of the project that this process has imported, sorted, without the main script."""
    mains = ("__main__", "__mp_main__")
    found = list(sys.modules.items())
    return sorted(name for name, module in found if name not in mains and file_of(module) and not is_library(name))


def closure(modules: Iterable[str], files: Iterable[str] = ()) -> Mapping[str, str]:
    """Digests of the project files that ``modules`` and ``files`` come from, and of everything they import.

    Returns:
        The digest of each file by the name of its module; where recipe files of one name lie in several folders, all of their
        digests. A module that is imported but does not exist has an empty digest,
        so that creating it changes the key.

    Raises:
        NotCacheableError: a file cannot be read, or changed since this process started.
    """
    found: dict[str, set[str]] = {}
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
                    found.setdefault(public_name(name), set()).add("")
                continue
            source = read_source(file)
            found.setdefault(public_name(name), set()).add(source.digest)
            read.add(os.path.realpath(file))
            in_package = name if Path(file).name.startswith("__init__.") else name.rpartition(".")[0]
            package = getattr(sys.modules.get(name), "__package__", None) or in_package
        else:
            file = loose.pop()
            if file in read:
                continue
            source, package = read_source(file), ""
            found[f"{Path(file).name} {source.digest}"] = {source.digest}
        names = {name for level, module, members in source.imports for name in _imported(level, module, members, package)}
        if source.imports_by_name:
            names.update(loaded_project_modules())
        waiting += sorted(names - seen)
        seen |= names
    return {name: " ".join(sorted(digests)) for name, digests in found.items()}


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


def locate(name: str) -> str | None:
    """The file of a module, loaded or not. Its parent packages are not imported."""
    if name in sys.modules:
        return file_of(sys.modules[name])
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
        with contextlib.suppress(Exception):  # third-party finders may raise anything
            spec = finder.find_spec(name, path, None)
            if spec is not None:
                return spec.origin if spec.origin and spec.origin.endswith(MODULE_FILE_ENDINGS) else None
    return None
