"""What is installed: each distribution by version and by what its installer recorded, and what was changed since, by content.

An edit is seen without reading what is installed: an edited file has another size than recorded, or is younger than the
record. Restored copies make everything younger, so the contents of these files are compared with the record; they are read in
the first run only, because digests are remembered.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import site
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from onnx_ci.cache.digests import Digests
from onnx_ci.cache.places import Places, is_of_python, is_of_system
from onnx_ci.environment.libraries import is_installed

_CODE = (".py", ".so", ".pyd", ".pyc")
_RECORDED = re.compile(r"^(?![.]|__editable__)([^,\n]+),sha256=([\w-]+),(\d*)$", re.MULTILINE)
"""A file with a hash. Scripts, which contain the interpreter's path, begin with dots."""
_METADATA = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(?:-.*)?\.(?:dist|egg)-info")
_NOT_LOOSE = re.compile(
    r"__pycache__|.*\.(?:dist-info|egg-info|egg-link|pth|virtualenv)|__editable__.*|_virtualenv\.py|bin|\..*|~.*"
)
_HOOKS = ("sitecustomize.py", "usercustomize.py")
_MOST_LOOSE = 20_000
_LOADED = ("LD_PRELOAD", "DYLD_INSERT_LIBRARIES")


@dataclass(frozen=True, kw_only=True)
class Packages:
    """What is installed.

    Args:
        places: the project's root.
        path: ``sys.path``.
        digests: the memory of digests.
    """

    places: Places
    path: tuple[str, ...]
    digests: Digests

    def found(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The version and a digest of each distribution, and digests of what belongs to none, by name.

        Args:
            variables: the environment variables that count. Some name libraries that are loaded into each process.
        """
        found: dict[str, str] = {}
        for folder in self._folders():
            found.update(self._installed_in(folder))
        for variable in _LOADED:
            for file in re.split(r"[\s:]+", variables.get(variable, "")):
                if (digest := self.digests.of(file) if file else None) is not None:
                    found[f"{variable} {self.places.name(file)}"] = digest
        found.update(self._of_onnx_ci())
        return found

    def _folders(self) -> list[str]:
        named = [
            sysconfig.get_path("purelib"),
            sysconfig.get_path("platlib"),
            *site.getsitepackages(),
            site.getusersitepackages(),
        ]
        scripts, standard = sysconfig.get_path("scripts"), (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
        found: dict[str, None] = {}
        for place in [*self.path, *named]:
            folder = os.path.realpath(place)
            if folder not in map(os.path.realpath, (scripts, *standard)) and os.path.basename(folder) != "lib-dynload":  # noqa: PTH119
                found[folder] = None
        return list(found)

    def _installed_in(self, folder: str) -> Iterator[tuple[str, str]]:
        try:
            with os.scandir(folder) as entries:
                names = {entry.name: entry.is_dir() for entry in entries}
        except OSError:
            if (digest := self.digests.of(folder)) is not None:  # an archive
                yield self.places.name(folder), digest
            return
        is_inside = self.places.is_inside(folder)
        claimed: set[str] = set()
        for name in sorted(names):
            if name.endswith(".dist-info") or (name.endswith(".egg-info") and not is_inside):
                yield from self._distribution(folder, name, claimed)
            elif name.endswith((".pth", ".egg-link")) or name.startswith("__editable__") or name in _HOOKS:
                yield self._label(folder, name), self._text(os.path.join(folder, name))  # noqa: PTH118
        loose = sorted(name for name in names if name not in claimed and not _NOT_LOOSE.fullmatch(name) and name not in _HOOKS)
        if is_installed(f"{folder}/x"):
            for name in loose:
                path = os.path.join(folder, name)  # noqa: PTH118
                if names[name] or name.endswith(_CODE):
                    yield self._label(folder, name), self._below(path) if names[name] else self.digests.of(path) or ""
        elif not (is_inside or is_of_system(folder) or is_of_python(folder)):  # what is imported from there counts by content
            modules = [name for name in loose if names[name] or name.endswith(_CODE)]
            yield f"the modules in {self.places.name(folder)}", _digest("\n".join(modules))

    def _distribution(self, folder: str, name: str, claimed: set[str]) -> Iterator[tuple[str, str]]:
        match = _METADATA.fullmatch(name)
        if match is None:
            return
        shown = match["name"].replace("_", "-")
        record = os.path.join(folder, name, "RECORD")  # noqa: PTH118
        try:
            status = os.stat(record)  # noqa: PTH116
            text = Path(record).read_text(encoding="utf-8", errors="replace")
        except OSError:
            yield shown, f"{match['version']} {self._text(os.path.join(folder, name, 'PKG-INFO'))}"  # noqa: PTH118
            return
        files = [each for each in _RECORDED.findall(text) if ".dist-info/" not in each[0]]
        claimed.update(file.partition("/")[0] for file, _, _ in files)
        source = self._source(os.path.join(folder, name, "direct_url.json")) if len(files) < 10 else None  # noqa: PTH118
        yield shown, f"{match['version']} {_digest(repr(sorted(files)))}{source or ''}"
        for file, recorded, size in files:
            if file.endswith(_CODE) and (edit := self._edit(f"{folder}/{file}", recorded, size, status)):
                yield self._label(folder, file), edit

    def _edit(self, path: str, recorded: str, size: str, of_record: os.stat_result) -> str | None:
        """The digest of an installed file that is no longer what was installed, or ``None``."""
        try:
            status = os.stat(path)  # noqa: PTH116 (ten thousand files)
        except OSError:
            return "gone"
        is_younger = status.st_ctime_ns > of_record.st_ctime_ns or status.st_mtime_ns > of_record.st_mtime_ns
        if not is_younger and str(status.st_size) == size:
            return None
        digest = self.digests.of(path) or ""
        return None if base64.urlsafe_b64encode(bytes.fromhex(digest)).rstrip(b"=").decode() == recorded else digest

    def _source(self, file: str) -> str | None:
        """A digest of the Python files from which a distribution is installed as editable; the project's count as files."""
        try:
            data = json.loads(Path(file).read_text(encoding="utf-8"))
            folder = os.path.normpath(unquote(urlsplit(data["url"]).path)) if data["dir_info"]["editable"] else ""
        except (OSError, ValueError, LookupError, TypeError):
            return None
        if not folder or self.places.is_inside(folder) or folder == _OWN_CHECKOUT:
            return None
        return f" {self._below(folder)}"

    def _of_onnx_ci(self) -> Iterator[tuple[str, str]]:
        """Its own files, where they are not those of a wheel."""
        if not is_installed(f"{_OWN}/x"):
            yield "onnx-ci's files", self._below(_OWN)

    def _below(self, top: str) -> str:
        """A digest of the code in a folder."""
        hashed, count = hashlib.sha256(), 0
        for folder, folders, files in os.walk(top):
            folders[:] = sorted(name for name in folders if name[:1] != "." and name not in ("__pycache__", "node_modules"))
            if "pyvenv.cfg" in files:
                folders.clear()
                continue
            for name in sorted(files):
                if name.endswith(_CODE[:-1]) and count < _MOST_LOOSE:
                    count += 1
                    path = os.path.join(folder, name)  # noqa: PTH118
                    hashed.update(f"{path[len(top) :]} {self.digests.of(path)}\n".encode("utf-8", "surrogateescape"))
        return hashed.hexdigest()

    def _label(self, folder: str, name: str) -> str:
        return name if is_installed(f"{folder}/x") and is_of_python(folder) else self.places.name(os.path.join(folder, name))  # noqa: PTH118

    def _text(self, file: str) -> str:
        """A digest of a text in which paths are the same for every clone and user."""
        with contextlib.suppress(OSError):
            return _digest(self.places.normalized(Path(file).read_text(encoding="utf-8", errors="replace")))
        return ""


_OWN = str(Path(__file__).parents[1])
_OWN_CHECKOUT = str(Path(__file__).parents[2])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def top_level_modules(path: Iterable[str]) -> frozenset[str]:
    """The names of top-level modules that are installed in the folders of ``path``."""
    found: set[str] = set()
    for folder in path:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            found.update(entry.name.partition(".")[0] for entry in entries)
    return frozenset(found)
