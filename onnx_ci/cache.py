"""Verdicts of finished cells, kept in a folder: one JSON file each, under everything that the verdict depends on.

The folder belongs to nobody in particular: runs share it at the same time, a restored copy may be cut short, and anything
else may lie in it. So an entry is believed only if its checksum holds and it names the very cell and the very parts that
are asked for. Whatever goes wrong with the files costs a verdict's reuse and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
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

from onnx_ci.records import Cell, CellResult, Status

SCHEMA = 1
"""The layout of an entry; it rises when an entry of the old layout would be misread."""
LIMIT_BYTES = 64 * 2**20
"""How much the entries take together, unless told otherwise: several thousand verdicts."""

_FINISHED = frozenset({Status.PASSED, Status.FAILED, Status.XFAILED, Status.XPASSED})
_CHANCE = frozenset({"crash", "timeout", "out-of-memory", "internal-error"})
"""Rules that tell of the machine's day as much as of the export."""
_ENTRY = re.compile(r"[0-9a-f]{64}\.json")
_TEMPORARY = re.compile(r"\.onnx-ci-[0-9a-f]+\.tmp")
_LARGEST_ENTRY = 16 * 2**20
_ABANDONED_AFTER = 3600.0
"""Seconds after which a temporary file belongs to a run that died."""
_RECOUNT_EVERY = 64
"""Writes after which the folder is counted anew, on average: other runs write there, too."""
_TAG = """Signature: 8a477f597d28d172789f06886806bc55
# This folder holds verdicts that onnx-ci can find again by running. It may be deleted at any time.
"""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file of the cache, as it lies there."""

    path: Path
    bytes: int
    used: float
    """When it was last stored or found, in seconds since the epoch."""


class VerdictCache:
    """The store. Nothing that goes wrong with its files is raised.

    Args:
        folder: where the entries lie; made when the first one is stored.
        limit_bytes: how much they may take together. Beyond it the oldest go, down to nine tenths.
    """

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder
        self._limit = limit_bytes
        self._bytes = 0
        self._writes: int | None = None
        self._complained = False

    def get(self, cell: Cell, parts: Mapping[str, str]) -> CellResult | None:
        """The verdict stored for ``cell`` under ``parts``, marked as cached, or ``None`` if there is none to believe.

        Args:
            cell: the cell that is asked for.
            parts: everything that its verdict depends on, by name, as :mod:`onnx_ci.fingerprint` gives it.
        """
        path = self._path(cell, parts)
        try:
            text = _read(path)
            result = None if text is None else _believed(text, cell, parts)
            if result is not None:
                with contextlib.suppress(OSError):  # in a read-only folder entries are found and do not grow younger
                    os.utime(path)
        except OSError:
            return None
        return result

    def put(self, cell: Cell, parts: Mapping[str, str], result: CellResult) -> str | None:
        """Store a verdict, if it is one that would come out again.

        Only finished cells are stored: none that was skipped, could not be judged, or ended by chance.

        Returns:
            Why it could not be written, the first time that happens; ``None`` otherwise.
        """
        if not is_storable(result) or result.cell != cell:
            return None
        try:
            data = _entry(cell, parts, result)
        except (TypeError, ValueError, RecursionError) as error:
            return self._complaint(f"a result cannot be written as JSON: {error}")
        try:
            self._make_folder()
            self._write(self._path(cell, parts), data)
            self._keep_within_limit(len(data))
        except OSError as error:
            return self._complaint(f"{self.folder} cannot be written: {error.strerror or error}")
        return None

    def entries(self) -> list[Entry]:
        """What is stored, the oldest first. Whether an entry is sound is only known once it is asked for."""
        return sorted(self._scan(_ENTRY), key=lambda entry: (entry.used, entry.path.name))

    def size(self) -> int:
        """How many bytes the entries take together."""
        return sum(entry.bytes for entry in self._scan(_ENTRY))

    def clear(self) -> int:
        """Remove every entry, and nothing else that lies in the folder. Returns how many were removed."""
        removed = sum(_remove(entry.path) for entry in self._scan(_ENTRY))
        self._remove_abandoned()
        self._bytes = 0
        return removed

    def _path(self, cell: Cell, parts: Mapping[str, str]) -> Path:
        return self.folder / f"{_checksum({'schema': SCHEMA, 'cell': cell.id, 'parts': dict(parts)})}.json"

    def _complaint(self, reason: str) -> str | None:
        first, self._complained = not self._complained, True
        return reason if first else None

    def _make_folder(self) -> None:
        if self.folder.is_dir() and any(self.folder.iterdir()):
            return  # a folder in which something lies may be somebody's own: it gets no .gitignore that hides it
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write(self.folder / "CACHEDIR.TAG", _TAG.encode())
        self._write(self.folder / ".gitignore", b"*\n")

    def _write(self, path: Path, data: bytes) -> None:
        """Write a file so that whoever reads it sees all of it or what stood there before."""
        temporary = self.folder / f".onnx-ci-{secrets.token_hex(8)}.tmp"
        try:
            with temporary.open("xb") as file:
                file.write(data)
            temporary.replace(path)
        except OSError:
            _remove(temporary)
            raise

    def _keep_within_limit(self, written: int) -> None:
        self._bytes += written
        if self._writes is None:
            # Most processes store one verdict. Drawn here, for forks share what was drawn before them, and not from
            # ``random``, which recipes seed.
            self._writes = secrets.randbelow(_RECOUNT_EVERY)
        due = self._writes % _RECOUNT_EVERY == 0
        self._writes += 1
        if not due and self._bytes <= self._limit:
            return
        self._remove_abandoned()
        entries = self.entries()
        self._bytes = sum(entry.bytes for entry in entries)
        if self._bytes <= self._limit:
            return
        for entry in entries:
            if self._bytes <= self._limit * 0.9:
                break
            _remove(entry.path)
            self._bytes -= entry.bytes

    def _remove_abandoned(self) -> None:
        for entry in self._scan(_TEMPORARY):
            if entry.used < time.time() - _ABANDONED_AFTER:  # a younger one is about to become another run's entry
                _remove(entry.path)

    def _scan(self, names: re.Pattern[str]) -> Iterator[Entry]:
        """The files with such names. One that another run removes meanwhile is left out."""
        with contextlib.suppress(OSError), os.scandir(self.folder) as found:
            for each in found:
                if not names.fullmatch(each.name):
                    continue
                with contextlib.suppress(OSError):
                    status = each.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield Entry(path=Path(each.path), bytes=status.st_size, used=status.st_mtime)


def is_storable(result: CellResult) -> bool:
    """Whether a result is that of a finished cell and would come out again."""
    return result.status in _FINISHED and not any(each.rule in _CHANCE for each in result.findings)


def _entry(cell: Cell, parts: Mapping[str, str], result: CellResult) -> bytes:
    kept = dataclasses.replace(result, artifact=None, cached=False)
    content = {
        "schema": SCHEMA,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cell": cell.id,
        "parts": dict(parts),
        "result": kept.as_json(),
    }
    plain = json.loads(json.dumps(content))  # the checksum is that of what a reader will see
    return (json.dumps({**plain, "sha256": _checksum(plain)}, indent=2) + "\n").encode()


def _believed(text: bytes, cell: Cell, parts: Mapping[str, str]) -> CellResult | None:
    """The result in an entry, or ``None`` unless the entry is whole and is the one that is asked for."""
    try:
        content = json.loads(text)
        claimed = content.pop("sha256")
        if claimed != _checksum(content) or content["schema"] != SCHEMA:
            return None
        if content["cell"] != cell.id or content["parts"] != dict(parts):
            return None
        result = CellResult.from_json(content["result"])
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None  # cut short, not JSON, or JSON of something else
    if result.cell != cell or not is_storable(result) or result.as_json() != content["result"]:
        return None
    return dataclasses.replace(result, artifact=None, cached=True)


def _checksum(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _read(path: Path) -> bytes | None:
    """The content of a file, or ``None`` where it is no regular file, or larger than any entry."""
    # A pipe of that name would keep the reader waiting for ever.
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_ENTRY:
        return None
    return path.read_bytes()


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False  # another run was quicker, or it must stay
    return True
