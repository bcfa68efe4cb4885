"""What is installed: each distribution by its version and its installer's record, and edited files by content.

Edits are seen without reading all files: an edited file has another size than recorded, or is younger than the record. Only the
contents of such files are compared with the record. In a restored copy all files are younger, so its first run reads them all;
later runs remember their digests. A file that no record names counts where a recipe uses it.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import site
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.cache.folder import Contents, digest_of_text
from onnx_ci.cache.places import Places
from onnx_ci.owners import is_installed

INFORMATION = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(?:-.*)?\.(?:dist|egg)-info")
_SAME_FOR_ALL = (".dist-info/entry_points.txt", ".dist-info/METADATA")
"""Files about a distribution that do not say by whom it was installed, or from where."""
_NOT_READ = (".h", ".hh", ".hpp", ".hxx", ".cuh", ".inl", ".pyi", ".pyc")
"""Endings of files for compilers and type checkers, and of bytecode."""
_SHA256 = "sha256="
_OWN = str(Path(__file__).parents[1])


@dataclass(frozen=True, kw_only=True)
class Packages:
    """The installed packages."""

    places: Places
    path: tuple[str, ...]
    contents: Contents

    def digests(self) -> dict[str, str]:
        """By name: the version and a digest of each distribution, and digests of edited files and of ``.pth`` files.

        Of several distributions with one name, each counts, in the order of the path: the first one is imported.
        """
        digests: dict[str, str] = {}
        for folder in dict.fromkeys(map(os.path.realpath, folders_of_packages(self.path))):
            for name, digest in self._installed_in(folder):
                digests[name] = f"{digests[name]} {digest}" if name in digests else digest
        if not is_installed(f"{_OWN}/x"):  # onnx-ci is used from a checkout
            files = sorted(str(path) for path in Path(_OWN).rglob("*") if path.suffix in (".py", ".toml", ".html", ".mjs"))
            lines = (f"{path.removeprefix(_OWN)} {self.contents.digest(path)}\n" for path in files)
            digests["onnx-ci's files"] = digest_of_text("".join(lines))
        return digests

    def _installed_in(self, folder: str) -> Iterator[tuple[str, str]]:
        is_inside = f"{folder}/".startswith(f"{self.places.root}/")
        for name in names_in(folder):
            path = f"{folder}/{name}"
            match = INFORMATION.fullmatch(name)
            if name.endswith((".pth", ".egg-link")) or name.startswith("__editable__"):
                yield self.places.name(path), self._text(path)
            elif match is not None and not (name.endswith(".egg-info") and is_inside):  # the project's own, which builds write
                yield from self._distribution(folder, name, match["name"].replace("_", "-"), match["version"])

    def _distribution(self, folder: str, information: str, distribution: str, version: str) -> Iterator[tuple[str, str]]:
        record = f"{folder}/{information}/RECORD"
        try:
            status, lines = os.stat(record), _lines_of(record)  # noqa: PTH116 (hundreds of packages)
        except OSError:
            yield distribution, f"{version} {self._text(f'{folder}/{information}/PKG-INFO')}"
            return
        files = [line for line in lines if not line[0].endswith(_NOT_READ)]
        files = [line for line in files if ".dist-info/" not in line[0] or line[0].endswith(_SAME_FOR_ALL)]
        yield distribution, f"{version} {digest_of_text(repr(sorted(files)))}"
        for file, recorded, size in files:
            if edit := self._edit(f"{folder}/{file}", recorded, size, status):
                yield self.places.name(f"{folder}/{file}"), edit

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

    def _text(self, file: str) -> str:
        """A digest of a text whose paths are written as for every clone and user."""
        with contextlib.suppress(OSError):
            return digest_of_text(self.places.normalized(Path(file).read_text(encoding="utf-8", errors="replace")))
        return ""


def recorded_files(path: Iterable[str]) -> frozenset[str]:
    """The absolute paths of all files that a RECORD names, and of its folder, in the folders in which packages may lie."""
    files: set[str] = set()
    folders = folders_of_packages(path)
    for folder in dict.fromkeys([*map(os.path.abspath, folders), *map(os.path.realpath, folders)]):
        for name in names_in(folder):
            with contextlib.suppress(OSError):  # most have no RECORD
                files.update(f"{folder}/{file}" for file, _, _ in _lines_of(f"{folder}/{name}/RECORD"))
                files.add(f"{folder}/{name}")
    return frozenset(files)


def folders_of_packages(path: Iterable[str]) -> list[str]:
    """The folders in which packages may lie: those of ``path``, and where packages are installed."""
    named = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages(), site.getusersitepackages())
    return [*path, *named]


def names_in(folder: str) -> list[str]:
    """The names of a folder's entries, in order; none if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return sorted(os.listdir(folder))  # noqa: PTH208
    return []


def _lines_of(record: str) -> list[tuple[str, str, str]]:
    """The file, its digest and its size in each line of a RECORD that has a digest. Raises ``OSError``.

    Scripts, which contain the interpreter's path, begin with dots and are left out.
    """
    text = Path(record).read_text(encoding="utf-8", errors="replace")
    fields = [line.rsplit(",", 2) for line in text.splitlines() if not line.startswith((".", "__editable__"))]
    return [(each[0], each[1][len(_SHA256) :], each[2]) for each in fields if len(each) == 3 and each[1].startswith(_SHA256)]
