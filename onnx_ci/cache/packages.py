"""What is installed: each distribution by its version and its installer's record, and edited files by content.

Edits are seen without reading all files: an edited file has another size than recorded, or is younger than the record. Only the
contents of such files are compared with the record. In a restored copy all files are younger, so its first run reads them all;
later runs remember their digests.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import site
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from onnx_ci.cache.contents import Contents, digest_of_text
from onnx_ci.cache.places import Places, is_of_python, is_of_system
from onnx_ci.cache.project import walk
from onnx_ci.owners import is_installed

_CODE = (".py", ".so", ".pyd", ".pyc")
_RECORDED = re.compile(r"^(?![.]|__editable__)([^,\n]+),sha256=([\w-]+),(\d*)$", re.MULTILINE)
"""A line of a record that has a hash. Scripts, which contain the interpreter's path, begin with dots and are left out."""
_METADATA = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(?:-.*)?\.(?:dist|egg)-info")
_NOT_LOOSE = re.compile(
    r"__pycache__|.*\.(?:dist-info|egg-info|egg-link|pth|virtualenv)|__editable__.*|_virtualenv\.py|bin|\..*|~.*"
)
_IS_METADATA = re.compile(r"\.dist-info/(?!entry_points\.txt$)")
"""Entry points count: they say which plug-ins there are."""
_HOOKS = ("sitecustomize.py", "usercustomize.py")
_NOT_READ = (".h", ".hh", ".hpp", ".hxx", ".cuh", ".inl", ".pyi", ".pyc")
"""Endings of files for compilers and type checkers, and of bytecode."""


@dataclass(frozen=True, kw_only=True)
class Packages:
    """The installed packages.

    Args:
        places: the project's root.
        path: ``sys.path``.
        contents: the memory of contents.
    """

    places: Places
    path: tuple[str, ...]
    contents: Contents

    def digests(self) -> dict[str, str]:
        """By name: the version and a digest of each distribution, and digests of files that belong to none.

        Of several distributions with one name, each counts, in the order of the path: the first one is imported.
        """
        digests: dict[str, str] = {}
        for folder in self._folders():
            for name, digest in dict(self._installed_in(folder)).items():
                digests[name] = f"{digests[name]} {digest}" if name in digests else digest
        if not is_installed(f"{_OWN}/x"):
            digests["onnx-ci's files"] = self._below(_OWN)
        return digests

    def _folders(self) -> list[str]:
        named = (
            sysconfig.get_path("purelib"),
            sysconfig.get_path("platlib"),
            *site.getsitepackages(),
            site.getusersitepackages(),
        )
        of_python = {os.path.realpath(sysconfig.get_path(name)) for name in ("scripts", "stdlib", "platstdlib")}
        folders = dict.fromkeys(os.path.realpath(place) for place in [*self.path, *named])
        return [folder for folder in folders if folder not in of_python and not folder.endswith("/lib-dynload")]

    def _installed_in(self, folder: str) -> Iterator[tuple[str, str]]:
        try:
            with os.scandir(folder) as entries:
                names = {entry.name: entry.is_dir() for entry in entries}
        except OSError:
            return
        is_inside = self.places.is_inside(folder)
        claimed: set[str] = set()
        for name in sorted(names):
            if name.endswith(".dist-info") or (name.endswith(".egg-info") and not is_inside):
                yield from self._distribution(folder, name, claimed)
            elif name.endswith((".pth", ".egg-link")) or name.startswith("__editable__") or name in _HOOKS:
                yield self._label(folder, name), self._text(os.path.join(folder, name))  # noqa: PTH118
        loose = sorted(name for name in names if name not in claimed and not _NOT_LOOSE.fullmatch(name) and name not in _HOOKS)
        modules = [name for name in loose if names[name] or name.endswith(_CODE)]
        if is_installed(f"{folder}/x"):
            for name in modules:
                path = os.path.join(folder, name)  # noqa: PTH118
                yield self._label(folder, name), self._below(path) if names[name] else self.contents.digest(path) or ""
        elif not (is_inside or is_of_system(folder) or is_of_python(folder)):  # what is imported from here counts by content
            yield f"the modules in {self.places.name(folder)}", digest_of_text("\n".join(modules))

    def _distribution(self, folder: str, name: str, claimed: set[str]) -> Iterator[tuple[str, str]]:
        match = _METADATA.fullmatch(name)
        if match is None:
            return
        distribution = match["name"].replace("_", "-")
        record = os.path.join(folder, name, "RECORD")  # noqa: PTH118
        try:
            status = os.stat(record)  # noqa: PTH116
            text = Path(record).read_text(encoding="utf-8", errors="replace")
        except OSError:
            yield distribution, f"{match['version']} {self._text(os.path.join(folder, name, 'PKG-INFO'))}"  # noqa: PTH118
            return
        lines = _RECORDED.findall(text)
        claimed.update(file.partition("/")[0] for file, _, _ in lines)
        files = [line for line in lines if not line[0].endswith(_NOT_READ) and not _IS_METADATA.search(line[0])]
        is_onnx_ci = distribution == "onnx-ci"  # its files count wherever they are
        source = "" if is_onnx_ci or len(files) > 10 else self._source(f"{folder}/{name}/direct_url.json")
        yield distribution, f"{match['version']} {digest_of_text(repr(sorted(files)))}{source}"
        for file, recorded, size in files:
            if edit := self._edit(f"{folder}/{file}", recorded, size, status):
                yield self._label(folder, file), edit

    def _edit(self, path: str, recorded: str, size: str, record: os.stat_result) -> str | None:
        """The digest of an edited file, or ``gone``; ``None`` if the file is as it was installed."""
        try:
            status = os.stat(path)  # noqa: PTH116 (ten thousand files)
        except OSError:
            return "gone"
        is_younger = status.st_ctime_ns > record.st_ctime_ns or status.st_mtime_ns > record.st_mtime_ns
        if not is_younger and str(status.st_size) == size:
            return None
        digest = self.contents.digest(path) or ""
        return None if base64.urlsafe_b64encode(bytes.fromhex(digest)).rstrip(b"=").decode() == recorded else digest

    def _source(self, file: str) -> str:
        """A digest of the Python files of an editable distribution. Those of the project count as its files instead."""
        try:
            data = json.loads(Path(file).read_text(encoding="utf-8"))
            folder = os.path.normpath(unquote(urlsplit(data["url"]).path)) if data["dir_info"]["editable"] else ""
        except (OSError, ValueError, LookupError, TypeError):
            return ""
        return f" {self._below(folder)}" if folder and not self.places.is_inside(folder) else ""

    def _below(self, top: str) -> str:
        """A digest of the code in a folder."""
        code = (path for path in walk(top) if path.endswith(_CODE[:-1]))
        return digest_of_text("\n".join(f"{path[len(top) :]} {self.contents.digest(path)}" for path in code))

    def _label(self, folder: str, name: str) -> str:
        return name if is_installed(f"{folder}/x") and is_of_python(folder) else self.places.name(os.path.join(folder, name))  # noqa: PTH118

    def _text(self, file: str) -> str:
        """A digest of a text whose paths are written as for every clone and user."""
        with contextlib.suppress(OSError):
            return digest_of_text(self.places.normalized(Path(file).read_text(encoding="utf-8", errors="replace")))
        return ""


_OWN = str(Path(__file__).parents[1])


def top_level_modules(path: Iterable[str]) -> frozenset[str]:
    """The names of top-level modules that are installed in the folders of ``path``."""
    names: set[str] = set()
    for folder in path:
        with contextlib.suppress(OSError):
            names.update(name.partition(".")[0] for name in os.listdir(folder))  # noqa: PTH208
    return frozenset(names)
