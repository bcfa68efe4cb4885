"""The folder of the cache: files with a checksum, which are written whole; and the digests of files, remembered in it.

Runs share the folder, a restored copy may be truncated, and the folder may hold other files. So a file counts only if its
checksum is right. A file that cannot be read counts as absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_ci.results.json_data import from_json
from onnx_ci.text import count
from onnx_ci.whole_files import ABANDONED_AFTER, UNFINISHED, read_regular, remove_unfinished, write_whole

LIMIT_BYTES = 256 * 2**20
"""The limit on the total size of the files: about 20,000 verdicts on small models. Beyond it, the oldest go."""
LARGEST_FILE = 64 * 2**20
"""In bytes. A larger file is not of the cache."""
MEMORY, LAST_RUN = "memory.json", "last-run.json"
_ID = "[0-9a-f]{16}"
VERDICT = re.compile(rf"{_ID}-{_ID}-(?P<snapshot>{_ID})-(?P<seen>{_ID})-[0-9a-f]{{8}}\.json")
RECIPES = re.compile(rf"recipes-{_ID}-(?P<snapshot>{_ID})-(?P<seen>{_ID})\.json")
_SHARED = re.compile(rf"(?:snapshot|seen)-{_ID}\.json")
"""What entries have in common."""
_OTHERS = re.compile(rf"{re.escape(MEMORY)}|{re.escape(LAST_RUN)}")
_TAG = """Signature: 8a477f597d28d172789f06886806bc55
# This folder is a cache of onnx-ci's verdicts. It can be deleted at any time.
"""
DAMAGE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""The exceptions of code that reads data of the wrong form."""


@dataclass(frozen=True, kw_only=True)
class LastRun:
    """How the last run used the cache."""

    cached: int
    """The number of cells with a verdict from the cache."""
    ran: Mapping[str, int]
    """The number of the other cells, by the reason why they ran."""

    def __str__(self) -> str:
        """``34 cells from the cache; 2 ran: model.py changed``."""
        most_frequent_first = sorted(self.ran, key=lambda reason: (-self.ran[reason], reason))
        reasons = [f"{self.ran[reason]} ran: {reason}" for reason in most_frequent_first]
        return "; ".join([f"{count(self.cached, 'cell')} from the cache", *reasons])


class Folder:
    """The folder, which is created with the first file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def files(self, *kinds: re.Pattern[str]) -> dict[str, os.stat_result]:
        """The names of files that match one of ``kinds``, the most recently used one first."""
        files: dict[str, os.stat_result] = {}
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if any(kind.fullmatch(entry.name) for kind in kinds) and entry.is_file(follow_symlinks=False):
                        files[entry.name] = entry.stat()
        return dict(sorted(files.items(), key=lambda file: (-file[1].st_mtime, file[0])))

    def read(self, name: str) -> Any | None:
        """The data in a file, not yet validated; ``None`` if there is no such file with the right checksum."""
        try:
            checksum, _, body = read_regular(self.path / name, LARGEST_FILE).partition(b"\n")
            return json.loads(body) if checksum == _checksum(body) else None
        except (OSError, *DAMAGE):
            return None

    def write(self, name: str, data: Mapping[str, Any]) -> None:
        """Write a file whole. Raises ``OSError`` if it cannot be written, and ``ValueError`` if the data is not JSON."""
        try:
            body = f"{json.dumps(data)}\n".encode()
        except (TypeError, RecursionError) as error:
            raise ValueError(str(error)) from None
        if not (self.path.is_dir() and any(self.path.iterdir())):  # a .gitignore would hide other files in the folder
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self.path / "CACHEDIR.TAG", [_TAG.encode()])
            write_whole(self.path / ".gitignore", [b"*\n"])
        write_whole(self.path / name, [_checksum(body), b"\n", body])

    def mark_used(self, name: str) -> None:
        """Make a file one of the last to be removed."""
        with contextlib.suppress(OSError):  # the folder may be read-only
            os.utime(self.path / name)

    def remove(self, name: str) -> None:
        """Remove a file, unless another run has done it, or that is not permitted."""
        with contextlib.suppress(OSError):
            (self.path / name).unlink()

    def last_run(self) -> LastRun | None:
        """How the last run used the cache; ``None`` if that is not known."""
        with contextlib.suppress(*DAMAGE):
            run: LastRun = from_json(LastRun, self.read(LAST_RUN))
            return run
        return None

    def keep_limit(self) -> None:
        """Remove the oldest files beyond the limit, shared ones that no entry needs, and unfinished files of dead runs."""
        size = sum(status.st_size for status in self.files(VERDICT, RECIPES, _SHARED, UNFINISHED, _OTHERS).values())
        entries = self.files(VERDICT, RECIPES)
        if size > LIMIT_BYTES:
            while entries and size > 0.9 * LIMIT_BYTES:
                name, status = entries.popitem()  # the oldest
                self.remove(name)
                size -= status.st_size
        matches = (VERDICT.fullmatch(name) or RECIPES.fullmatch(name) for name in entries)
        needed = {f"{kind}-{match[kind]}.json" for match in matches if match is not None for kind in ("snapshot", "seen")}
        remove_unfinished(self.path)
        for name, status in self.files(_SHARED).items():
            if name not in needed and status.st_mtime < time.time() - ABANDONED_AFTER:  # a run may still need a younger one
                self.remove(name)


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


# --- digests, so that an unchanged file is not read again ---------------------------------------------------------------

_SCHEMA = 4
RACY_NS = 2 * 10**9
"""A file that is read so soon after its last change may change again without getting another time."""


class Contents:
    """Digests of files, remembered by path, size, times and inode. If one differs, the file is read."""

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
