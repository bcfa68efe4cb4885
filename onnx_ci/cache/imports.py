"""The files of the project that the import statements of a recipe file can reach, by their text alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator


def closure(
    source: str, files: Collection[str], roots: Iterable[str], imports_of: Callable[[str], Iterable[str]]
) -> frozenset[str]:
    """The names of the Python files that a file reaches, with itself.

    Args:
        source: the name of the file, relative to the project's root.
        files: the names of all files of the project.
        roots: the folders in which Python looks for modules, as names; an empty one is the project's root.
        imports_of: what the import statements of a file name.
    """
    places = tuple(dict.fromkeys([*roots, package_root(source, files)]))
    found: set[str] = set()
    waiting = [source]
    while waiting:
        file = waiting.pop()
        if file in found or file not in files:
            continue
        found.add(file)
        for imported in imports_of(file):
            waiting += _files_of(imported, file, files, (*places, package_root(file, files)))
        folder = _parent(file)
        while _join(folder, "__init__.py") in files:  # a module's packages are imported before it
            waiting.append(_join(folder, "__init__.py"))
            folder = _parent(folder) if folder else "\0"
    return frozenset(found)


def package_root(file: str, files: Collection[str]) -> str:
    """The folder from which a recipe file is imported: that above its packages."""
    folder = _parent(file)
    while folder and _join(folder, "__init__.py") in files:
        folder = _parent(folder)
    return folder


def _files_of(imported: str, file: str, files: Collection[str], places: Iterable[str]) -> Iterator[str]:
    """The files that ``a.b``, ``..a``, or ``a:b`` may load. Of several folders that have it, all: which is first may change."""
    module, _, member = imported.partition(":")
    name = module.lstrip(".")
    level = len(module) - len(name)
    parts = [*filter(None, name.split(".")), *([member] if member and member != "*" else [])]
    folders = [_above(_parent(file), level - 1)] if level else list(dict.fromkeys(places))
    for folder in folders:
        if folder is None:
            continue
        path = folder
        if level:
            yield _join(folder, "__init__.py")
        for part in parts:
            path = _join(path, part)
            yield from (name for name in (f"{path}.py", _join(path, "__init__.py")) if name in files)


def _above(folder: str, levels: int) -> str | None:
    for _ in range(levels):
        if not folder:
            return None
        folder = _parent(folder)
    return folder


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
