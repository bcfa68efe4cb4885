"""Digests of files, and what texts mention. Both are remembered, so that an unchanged file is not read again.

A digest is remembered by path, size, times and inode. They decide nothing else: if one differs, the file is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.cache.folder import DAMAGE, MEMORY, Folder
from onnx_ci.results.json_data import from_json, to_json

_SCHEMA = 3
RACY_NS = 2 * 10**9
"""A file that is read so soon after its last change may change again without getting another time."""
_CONFIGURATION = (".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".txt")
_LARGEST = {True: 2**22, False: 2**18}
"""The size in bytes up to which a file is read: of Python files, and of others."""
_WORD = re.compile(r"[\w.-]*\w")
_PIECE = re.compile(r"\w+")
_QUOTED = (re.compile(r'"([^"\n]{1,1000})"'), re.compile(r"'([^'\n]{1,1000})'"))
_BARE = re.compile(r"""[^\s"'\[\](){},;=<>|]{1,1000}""")
_OUTSIDE = re.compile(r"(?:file://)?(/.+|~.*|\.\.(?:/.*)?|.*/\.\.(?:/.*)?)")
_NAME = re.compile(r"[\w.][\w. @+=-]{0,99}(?:/[\w. @+=-]{1,100}){0,8}")
_FROM = re.compile(r"\bfrom\s+([.\w]+)\s+import\s+(\([^)]*\)|[^\n;#]*)")
_IMPORT = re.compile(r"\bimport\s+([\w., \t]+)")


@dataclass(frozen=True, kw_only=True)
class Mentions:
    """What a Python file or a small configuration file mentions."""

    vocabulary: str = ""
    """Words such as ``a.bin``, and their parts ``a`` and ``bin``, separated by spaces."""
    outside: tuple[str, ...] = ()
    """Paths in its strings that are absolute, or lead home or upwards."""
    names: tuple[str, ...] = ()
    """Other strings that can be the name of a file."""
    imports: tuple[str, ...] = ()
    """What its import statements name: the modules ``a.b`` and ``..a.b``, and ``a.b:c``, which may be a module."""

    @property
    def words(self) -> list[str]:
        """The words of the vocabulary. They are rarely needed, so they are kept as one text."""
        return self.vocabulary.split(" ")


_NOTHING = Mentions()


class Contents:
    """The memory of contents.

    Args:
        folder: the folder of the cache.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        data = folder.read(MEMORY)
        memory = data if isinstance(data, dict) and data.get("schema") == _SCHEMA else {}
        tables = (memory.get(name) for name in ("files", "texts"))
        self._files_then, self._texts_then = (table if isinstance(table, dict) else {} for table in tables)
        self._files: dict[str, list[int | str]] = {}
        self._texts: dict[str, Mentions] = {}
        self._has_news = False

    def digest(self, path: str) -> str | None:
        """The SHA-256 of a file in hexadecimal digits, with links followed; ``None`` if it cannot be read."""
        try:
            status = os.stat(path)  # noqa: PTH116 (thousands of files)
            if not stat.S_ISREG(status.st_mode):
                return None
            key = _key(status)
            memory = self._files.get(path) or self._files_then.get(path)
            if isinstance(memory, list) and memory[:4] == key and len(memory) == 5 and isinstance(memory[4], str):
                self._files[path] = memory
                return memory[4]
            start = time.time_ns()
            with Path(path).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                is_same = _key(os.fstat(file.fileno())) == key
        except (OSError, ValueError):
            return None
        if is_same and max(status.st_mtime_ns, status.st_ctime_ns) < start - RACY_NS:
            self._files[path] = [*key, digest]
            self._has_news = True
        return digest

    def text(self, path: str, digest: str) -> Mentions:
        """What a file mentions, given its digest; nothing if it is neither Python nor a configuration."""
        if not path.endswith((".py", *_CONFIGURATION)):
            return _NOTHING
        is_python = path.endswith(".py")
        key = f"{digest}{'.py' if is_python else ''}"
        if key not in self._texts:
            with contextlib.suppress(*DAMAGE):
                self._texts[key] = from_json(Mentions, self._texts_then.get(key))
        if key not in self._texts:
            self._has_news = True
            self._texts[key] = _read(path, is_python=is_python)
        return self._texts[key]

    def save(self) -> None:
        """Write what this run used.

        Raises:
            OSError: the folder cannot be written.
        """
        if self._has_news:
            self._folder.write(MEMORY, {"schema": _SCHEMA, "files": self._files, "texts": to_json(self._texts)})


def digest_of_text(text: str) -> str:
    """The SHA-256 of a text in hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _key(status: os.stat_result) -> list[int | str]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _read(path: str, *, is_python: bool) -> Mentions:
    """What a file mentions."""
    try:
        content = Path(path).read_bytes()
    except OSError:
        return _NOTHING
    if len(content) > _LARGEST[is_python]:
        return _NOTHING
    text = content.decode("utf-8", "replace")
    strings = {string for pattern in (*_QUOTED, *(() if is_python else (_BARE,))) for string in pattern.findall(text)}
    words = set(_WORD.findall(text))
    words.update(piece for word in tuple(words) for piece in _PIECE.findall(word))
    outside = {match[1] for string in strings if (match := _OUTSIDE.fullmatch(string)) and "\0" not in string}
    return Mentions(
        vocabulary=" ".join(sorted(word for word in words if len(word) <= 200)),
        outside=tuple(sorted(outside)),
        names=tuple(sorted(string for string in strings if _NAME.fullmatch(string))),
        imports=_imports(text) if is_python else (),
    )


def _imports(text: str) -> tuple[str, ...]:
    """What looks like an import, also in strings and comments: a name too many does no harm."""
    joined = text.replace("\\\n", " ")
    imports: set[str] = set()
    for module, members in _FROM.findall(joined):
        imports.update([module, *(f"{module}:{member}" for member in _PIECE.findall(members))])
    for modules in _IMPORT.findall(joined):
        imports.update(words[0] for module in modules.split(",") if (words := module.split()))
    return tuple(sorted(imports))
