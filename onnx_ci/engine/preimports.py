"""Which libraries recipe files import, read from their source, so that processes can be forked that have imported them."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from onnx_ci.config.settings import Settings
from onnx_ci.opsets import OF_TORCH, default_exporter
from onnx_ci.owners import Owner, owner_of

Libraries = tuple[tuple[str, tuple[str, ...]], ...]
"""Modules, each with the names that are imported from it."""
_DYNAMO = re.compile(rb"""dynamo|opsets[^\n]*?\b(1[89]|[2-9]\d)\b|opsets[^\n]*?\d-["']""")
"""Matches recipe files that are likely to have cells of that exporter."""
_MOST_FILES = 300
"""How many files are read at most; a library that is not found is imported later."""


def libraries_of(paths: Iterable[Path], root: Path) -> Libraries:
    """The installed modules that files import at their top level, themselves or through modules of the project."""
    libraries: dict[str, dict[str, None]] = {}
    waiting, seen = list(dict.fromkeys(paths)), set[Path]()
    while waiting and len(seen) < _MOST_FILES:
        path = waiting.pop(0)
        seen.add(path)
        for module, members in _imports(path):
            top = module.partition(".")[0]
            if top in sys.stdlib_module_names or top == "onnx_ci":
                continue  # they are imported in no time, or there already
            if _is_library(top):
                libraries.setdefault(module, {}).update(dict.fromkeys(members))
            else:
                waiting += [each for each in _files_of(module, members, (path.parent, root, root / "src")) if each not in seen]
    return tuple((module, tuple(members)) for module, members in libraries.items())


def likely_exporters(paths: Iterable[Path], settings: Settings) -> tuple[str, ...]:
    """The exporters that the cells of files are likely to need. A wrong guess costs time only."""
    if settings.exporters is not None:
        return settings.exporters
    if settings.opsets is not None:
        return tuple(dict.fromkeys(map(default_exporter, settings.opsets)))
    texts = [_read(path) for path in dict.fromkeys(paths)]
    return OF_TORCH if any(_DYNAMO.search(text) for text in texts) else ("torchscript",)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() else b""  # reading a pipe of that name would block for ever
    except OSError:  # told by the process that imports it
        return b""


def _imports(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The modules that the top level of a file imports, and the names from each."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes, which the import itself tells
            tree = ast.parse(_read(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    statements: list[ast.stmt] = list(tree.body)
    while statements:
        statement = statements.pop(0)
        if isinstance(statement, ast.Import):
            yield from ((alias.name, []) for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
            yield statement.module, [alias.name for alias in statement.names if alias.name != "*"]
        elif isinstance(statement, ast.Try):
            statements += statement.body


@functools.cache
def _is_library(name: str) -> bool:
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(name)
        place = None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or ()), None)
        return place is not None and owner_of(place) is not Owner.PROJECT
    return False


def _files_of(module: str, members: Iterable[str], folders: Iterable[Path]) -> Iterator[Path]:
    """The files of the project that an import of a module reads, as far as they are in one of ``folders``."""
    for folder in folders:
        place = folder.joinpath(*module.split("."))
        for path in (place.with_suffix(".py"), place / "__init__.py", *(place / f"{name}.py" for name in members)):
            if path.is_file():
                yield path
