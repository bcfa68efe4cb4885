"""The files of the project that a recipe file can import, directly or indirectly, by the text of import statements alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator


def closure(
    source: str, files: Collection[str], roots: Iterable[str], imports_of: Callable[[str], Iterable[str]]
) -> frozenset[str]:
    """The names of a file and of the Python files that it can import.

    Args:
        source: the name of the file, relative to the project's root.
        files: the names of all files of the project.
        roots: the folders in which Python looks for modules. An empty name is the project's root.
        imports_of: gives what the import statements of a file name.
    """
    reached: set[str] = set()
    waiting = [source]
    while waiting:
        file = waiting.pop()
        if file in reached or file not in files:
            continue
        reached.add(file)
        folders = dict.fromkeys([*roots, _above_packages(source, files), _above_packages(file, files)])
        for imported in imports_of(file):
            waiting += _files_of(imported, file, folders)
        waiting += [_join(folder, "__init__.py") for folder in _parents(file)]  # imported before the module
    return frozenset(reached)


def _above_packages(file: str, files: Collection[str]) -> str:
    """The folder from which a file is imported."""
    return next((folder for folder in _parents(file) if _join(folder, "__init__.py") not in files), "")


def _files_of(imported: str, file: str, folders: Iterable[str]) -> Iterator[str]:
    """The files that ``a.b``, ``..a`` or ``a:b`` may load, in all folders: which of them is searched first may change."""
    module, _, member = imported.partition(":")
    name = module.lstrip(".")
    level = len(module) - len(name)
    parts = [part for part in (*name.split("."), member) if part]
    for folder in _parents(file)[level - 1 : level] if level else folders:
        path = folder
        for part in parts:
            path = _join(path, part)
            yield f"{path}.py"
            yield _join(path, "__init__.py")


def _parents(file: str) -> list[str]:
    """The folders above a file, from the inside out. The last one is the project's root."""
    parts = file.split("/")[:-1]
    return ["/".join(parts[:length]) for length in range(len(parts), -1, -1)]


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
