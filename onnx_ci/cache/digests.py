"""Digests of files' contents, and what texts say, remembered so that an unchanged file is not read again.

A digest is remembered by path, size, times and inode. These never decide anything else: where they differ, the file is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from pathlib import Path

from onnx_ci.cache.folder import DAMAGE, MEMORY, Folder
from onnx_ci.cache.texts import NOTHING, Text, is_text, read_imports, read_text
from onnx_ci.results.json_data import from_json, to_json

_SCHEMA = 2
_MOST_IMPORTS = 5_000
RACY_NS = 2 * 10**9
"""A file that was changed so shortly before it was read may change again without another time."""


class Digests:
    """The memory of digests.

    Args:
        folder: the folder of the cache.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        data = folder.read(MEMORY)
        memory = data if isinstance(data, dict) and data.get("schema") == _SCHEMA else {}
        tables = (memory.get(name) for name in ("files", "texts", "imports"))
        self._files_then, self._texts_then, self._imports_then = (each if isinstance(each, dict) else {} for each in tables)
        self._files: dict[str, list[int | str]] = {}
        self._texts: dict[str, Text] = {}
        self._imports: dict[str, tuple[str, ...]] = {}
        self._is_new = False

    def of(self, path: str) -> str | None:
        """The SHA-256 of a file, links followed, in hexadecimal digits; ``None`` if it is no file that can be read."""
        try:
            status = os.stat(path)  # noqa: PTH116 (thousands of files)
            if not stat.S_ISREG(status.st_mode):
                return None
            key = _key(status)
            known = self._files.get(path) or self._files_then.get(path)
            if isinstance(known, list) and known[:4] == key and len(known) == 5 and isinstance(known[4], str):
                self._files[path] = known
                return known[4]
            start = time.time_ns()
            with Path(path).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                is_same = _key(os.fstat(file.fileno())) == key
        except (OSError, ValueError):
            return None
        if is_same and max(status.st_mtime_ns, status.st_ctime_ns) < start - RACY_NS:
            self._files[path] = [*key, digest]
            self._is_new = True
        return digest

    def text(self, path: str, digest: str) -> Text:
        """What a Python file or a small configuration file says, given the digest of its content; nothing for others."""
        if not is_text(path):
            return NOTHING
        is_python = path.endswith(".py")
        key = f"{digest}{'.py' if is_python else ''}"
        if key not in self._texts:
            with contextlib.suppress(*DAMAGE):
                self._texts[key] = from_json(Text, self._texts_then.get(key))
        if key not in self._texts:
            self._texts[key] = read_text(self._read(path), is_python=is_python)
        return self._texts[key]

    def imports(self, path: str, digest: str) -> tuple[str, ...]:
        """What the import statements of a Python file name, given the digest of its content."""
        if digest not in self._imports:
            with contextlib.suppress(*DAMAGE):
                self._imports[digest] = from_json(tuple[str, ...], self._imports_then.get(digest))
        if digest not in self._imports:
            self._imports[digest] = read_imports(self._read(path))
        return self._imports[digest]

    def _read(self, path: str) -> bytes:
        self._is_new = True
        try:
            return Path(path).read_bytes()
        except OSError:
            return b""

    def save(self) -> None:
        """Write what was used in this run, and the imports that were known before it, which few runs need.

        Raises:
            OSError: the folder cannot be written.
        """
        if self._is_new:
            kept = self._imports_then if len(self._imports_then) < _MOST_IMPORTS else {}
            imports = {**kept, **to_json(self._imports)}
            tables = {"files": self._files, "texts": to_json(self._texts), "imports": imports}
            self._folder.write(MEMORY, {"schema": _SCHEMA, **tables})


def _key(status: os.stat_result) -> list[int | str]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
