"""The folder of the cache: files with a checksum, written whole, of which the oldest are removed beyond a limit.

Runs share the folder, a restored copy may be truncated, and it may hold other files. So a file counts only if its checksum is
right, and what cannot be read is absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_ci.results.json_data import from_json

LIMIT_BYTES = 256 * 2**20
"""The limit on the size of all files together: about 20,000 verdicts on small models."""
LARGEST_FILE = 64 * 2**20
"""In bytes. A larger file is none of the cache."""
_HEX = "[0-9a-f]"
VERDICT = re.compile(rf"(?P<cell>{_HEX}{{16}})-(?P<recipe>{_HEX}{{16}})-(?P<snapshot>{_HEX}{{16}})-{_HEX}{{8}}\.json")
"""The names of files with verdicts."""
RECIPES = re.compile(rf"recipes-{_HEX}{{16}}-(?P<snapshot>{_HEX}{{16}})\.json")
SNAPSHOT = re.compile(rf"snapshot-{_HEX}{{16}}\.json")
_OF_OLD_VERSIONS = re.compile(rf"{_HEX}{{64}}\.json")
_TEMPORARY = re.compile(rf"\.onnx-ci-{_HEX}+\.tmp")
_ABANDONED_AFTER = 3600.0
"""Seconds after which a temporary file is taken for that of a dead run."""
_TAG = """Signature: 8a477f597d28d172789f06886806bc55
# This folder is a cache of onnx-ci's verdicts. It can be deleted at any time.
"""
DAMAGE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What reading data raises that has another form than it should."""


@dataclass(frozen=True, kw_only=True)
class LastRun:
    """What the last run had from the cache."""

    cached: int
    """How many cells."""
    ran: Mapping[str, int]
    """How many other cells there were, by the reason for which they ran."""


@dataclass(frozen=True, kw_only=True)
class CacheFile:
    """One file of the cache."""

    name: str
    bytes: int
    used: float
    """When it was last written or used, in seconds since the epoch."""


class Folder:
    """The folder.

    Args:
        path: where it is; it is made when the first file is written.
        limit_bytes: beyond it the oldest files are removed, down to 90 % of it.
    """

    def __init__(self, path: Path, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self.path = path
        self._limit = limit_bytes

    def files(self, *kinds: re.Pattern[str]) -> list[CacheFile]:
        """The files whose names match one of ``kinds``, the one that was used last first."""
        matching = (file for file in self._scan() if any(kind.fullmatch(file.name) for kind in kinds))
        return sorted(matching, key=lambda file: (-file.used, file.name))

    def read(self, name: str) -> Any | None:
        """The data in a file, which is to be validated; ``None`` if there is none with the right checksum."""
        path = self.path / name
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_FILE:
                return None  # reading a pipe of that name would block forever
            claimed, _, body = path.read_bytes().partition(b"\n")
            return json.loads(body) if claimed == _checksum(body) else None
        except (OSError, *DAMAGE):
            return None

    def write(self, name: str, data: Mapping[str, Any]) -> None:
        """Write a file whole.

        Raises:
            OSError: it cannot be written.
            ValueError: the data is not JSON.
        """
        try:
            body = f"{json.dumps(data)}\n".encode()
        except (TypeError, RecursionError) as error:
            raise ValueError(str(error)) from None
        self._make()
        _write(self.path / name, _checksum(body) + b"\n" + body)

    def mark_used(self, name: str) -> None:
        """Let a file be one of the last to be removed."""
        with contextlib.suppress(OSError):  # the folder may be read-only
            os.utime(self.path / name)

    def remove(self, name: str) -> bool:
        """Remove a file; ``False`` if another run has done it, or that is not permitted."""
        return _remove(self.path / name)

    def verdicts(self) -> int:
        """How many verdicts there are. Whether one still holds is only known when it is asked for."""
        return len(self.files(VERDICT))

    def size(self) -> int:
        """The size of all files together, in bytes."""
        return sum(file.bytes for file in self._scan())

    def last_run(self) -> LastRun | None:
        """What is known of the last run."""
        try:
            run: LastRun = from_json(LastRun, self.read(LAST_RUN))
        except DAMAGE:
            return None
        return run

    def clear(self) -> int:
        """Remove all that is the cache's, and no other files. Returns how many verdicts there were."""
        verdicts = self.verdicts()
        for file in self._scan():
            self.remove(file.name)
        return verdicts

    def keep_limit(self) -> None:
        """Remove the oldest files beyond the limit, snapshots that no entry needs, and what dead runs left."""
        for file in self.files(_TEMPORARY):
            if file.used < time.time() - _ABANDONED_AFTER:  # another run may still be writing a younger one
                self.remove(file.name)
        entries = self.files(VERDICT, RECIPES, _OF_OLD_VERSIONS)
        total = self.size()
        if total > self._limit:
            while entries and total > self._limit * 0.9:
                oldest = entries.pop()
                self.remove(oldest.name)
                total -= oldest.bytes
        matches = (VERDICT.fullmatch(file.name) or RECIPES.fullmatch(file.name) for file in entries)
        needed = {match["snapshot"] for match in matches if match is not None}
        for file in self.files(SNAPSHOT):
            is_young = file.used >= time.time() - _ABANDONED_AFTER  # another run may be about to write its entries
            if not is_young and file.name[len("snapshot-") : -len(".json")] not in needed:
                self.remove(file.name)

    def _scan(self) -> Iterator[CacheFile]:
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                if not any(kind.fullmatch(entry.name) for kind in _KINDS):
                    continue
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield CacheFile(name=entry.name, bytes=status.st_size, used=status.st_mtime)

    def _make(self) -> None:
        """Make the folder, if there is none, marked as one that backups and git leave out."""
        if self.path.is_dir() and any(self.path.iterdir()):
            return  # a .gitignore would hide other files in the folder
        self.path.mkdir(parents=True, exist_ok=True)
        _write(self.path / "CACHEDIR.TAG", _TAG.encode())
        _write(self.path / ".gitignore", b"*\n")


MEMORY, LAST_RUN = "memory.json", "last-run.json"
_KINDS = (VERDICT, RECIPES, SNAPSHOT, _OF_OLD_VERSIONS, _TEMPORARY, re.compile(rf"{re.escape(MEMORY)}|{re.escape(LAST_RUN)}"))


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".onnx-ci-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError:
        _remove(temporary)
        raise


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
