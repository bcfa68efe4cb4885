"""Digests of files, which are remembered, so that an unchanged file is not read again.

A digest is remembered by path, size, times and inode. They decide nothing else: if one differs, the file is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

from onnx_ci.cache.folder import MEMORY, Folder

_SCHEMA = 4
RACY_NS = 2 * 10**9
"""A file that is read so soon after its last change may change again without getting another time."""


class Contents:
    """The memory of contents."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        data = folder.read(MEMORY)
        files = data.get("files") if isinstance(data, dict) and data.get("schema") == _SCHEMA else None
        self._files_then = files if isinstance(files, dict) else {}
        self._files: dict[str, list[int | str]] = {}
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

    def save(self) -> None:
        """Write what this run used. Raises ``OSError``."""
        if self._has_news:
            self._folder.write(MEMORY, {"schema": _SCHEMA, "files": self._files})


def digest_of_text(text: str) -> str:
    """The SHA-256 of a text in hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def digest_of_data(value: Any) -> str:
    """A short digest of plain JSON data: 16 hexadecimal digits."""
    return digest_of_text(json.dumps(value, sort_keys=True))[:16]


def _key(status: os.stat_result) -> list[int | str]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
