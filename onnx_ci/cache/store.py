"""A folder of verdicts of finished cells: one JSON file each, under a key made of everything that the verdict depends on.

Runs share the folder concurrently, a restored copy may be truncated, and it may contain other files. An entry is therefore
used only if its checksum is right and it names the requested cell and parts. If anything goes wrong with the files, the
cell is run as if it were not cached.
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
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onnx_ci.cache.opened_files import have_changed
from onnx_ci.results.json_data import from_json
from onnx_ci.results.records import Cell, CellEvidence
from onnx_ci.results.rules import RULES

SCHEMA = 1
"""The version of an entry's layout; incremented when an old entry would be misread."""
LIMIT_BYTES = 256 * 2**20
"""The default limit on the size of all entries together: 25,000 verdicts on small models. If those of one run take more, each
is removed before the next run asks for it."""

_NOTHING: Mapping[str, str] = MappingProxyType({})
_TRANSIENT = frozenset({"crash", "timeout", "out-of-memory"})
"""Rules that depend on the state of the machine as much as on the export."""
_ENTRY = re.compile(r"[0-9a-f]{64}\.json")
_TEMPORARY = re.compile(r"\.onnx-ci-[0-9a-f]+\.tmp")
LARGEST_ENTRY = 16 * 2**20
"""In bytes. A larger file is not an entry."""
_ABANDONED_AFTER = 3600.0
"""Seconds after which a temporary file is taken for that of a dead run."""
RECOUNT_EVERY = 64
"""The average number of writes between two counts of the folder, to which other runs write, too."""
_TAG = """Signature: 8a477f597d28d172789f06886806bc55
# This folder is a cache of onnx-ci's verdicts. It can be deleted at any time.
"""


@dataclass(frozen=True, kw_only=True)
class StoredVerdict:
    """One file of the cache."""

    path: Path
    bytes: int
    used: float
    """When it was last written or read, in seconds since the epoch."""


class VerdictCache:
    """The cache. Errors with its files are never raised.

    Args:
        folder: the folder of the entries; created when the first one is stored.
        root: the project's root.
        limit_bytes: the limit on their total size. Beyond it the oldest are removed, down to 90 % of the limit.
    """

    def __init__(self, folder: Path, *, root: Path = Path(), limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder, self.root = folder, root
        self._limit = limit_bytes
        self._bytes = 0
        self._writes: int | None = None
        self._warned = False

    def get(self, cell: Cell, parts: Mapping[str, str]) -> CellEvidence | None:
        """The verdict stored for ``cell`` and ``parts``, marked as cached, or ``None`` if there is none that holds.

        Args:
            cell: the requested cell.
            parts: everything that its verdict depends on, by name, as :mod:`onnx_ci.cache.fingerprint` returns it.
        """
        path = self.path(cell, parts)
        try:
            text = _read(path)
            result = None if text is None else _parse(text, cell, parts, self.root)
            if result is not None:
                with contextlib.suppress(OSError):  # the folder may be read-only
                    os.utime(path)
        except OSError:
            return None
        return result

    def put(
        self, cell: Cell, parts: Mapping[str, str], result: CellEvidence, opened: Mapping[str, str] = _NOTHING
    ) -> str | None:
        """Store a verdict, if it is reproducible.

        Cells that were skipped, could not be judged or failed for transient reasons are not stored.

        Args:
            cell: the cell.
            parts: as for :meth:`get`.
            result: the verdict.
            opened: the contents of files that it depends on, too, from :mod:`onnx_ci.cache.opened_files`. The verdict holds as
                long as they stay the same.

        Returns:
            Why it could not be written, the first time that happens; ``None`` otherwise.
        """
        if not is_storable(result) or result.cell != cell:
            return None
        try:
            data = _entry(cell, parts, result, opened)
        except (TypeError, ValueError, RecursionError) as error:
            return self._warn_once(f"a result cannot be written as JSON: {error}")
        try:
            make_folder(self.folder)
            _write(self.path(cell, parts), data)
            self._enforce_limit(len(data))
        except OSError as error:
            return self._warn_once(f"{self.folder} cannot be written: {error.strerror or error}")
        return None

    def entries(self) -> list[StoredVerdict]:
        """All entries, the oldest first. An entry is validated only when it is requested."""
        return sorted(self._scan(_ENTRY), key=lambda entry: (entry.used, entry.path.name))

    def size(self) -> int:
        """The total size of the entries in bytes."""
        return sum(entry.bytes for entry in self._scan(_ENTRY))

    def clear(self) -> int:
        """Remove all entries, but no other files in the folder. Returns how many were removed."""
        removed = sum(_remove(entry.path) for entry in self._scan(_ENTRY))
        self._remove_abandoned()
        self._bytes = 0
        return removed

    def path(self, cell: Cell, parts: Mapping[str, str]) -> Path:
        """The file of a cell's entry, whether or not it exists."""
        return self.folder / f"{checksum({'schema': SCHEMA, 'cell': cell.id, 'parts': dict(parts)})}.json"

    def _warn_once(self, reason: str) -> str | None:
        first, self._warned = not self._warned, True
        return reason if first else None

    def _enforce_limit(self, written: int) -> None:
        self._bytes += written
        if self._writes is None:
            # Most processes store one verdict, so the count starts at a random number. It is drawn here, because forks share
            # what was drawn before them, and not from ``random``, which recipes seed.
            self._writes = secrets.randbelow(RECOUNT_EVERY)
        due = self._writes % RECOUNT_EVERY == 0
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
            if entry.used < time.time() - _ABANDONED_AFTER:  # another run may still be writing a younger one
                _remove(entry.path)

    def _scan(self, names: re.Pattern[str]) -> Iterator[StoredVerdict]:
        """The files whose names match. A file that another run removes meanwhile is left out."""
        with contextlib.suppress(OSError), os.scandir(self.folder) as found:
            for each in found:
                if not names.fullmatch(each.name):
                    continue
                with contextlib.suppress(OSError):
                    status = each.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield StoredVerdict(path=Path(each.path), bytes=status.st_size, used=status.st_mtime)


def make_folder(folder: Path) -> None:
    """Make the folder of a cache, if there is none, marked as one that backups and git leave out.

    Raises:
        OSError: it cannot be made.
    """
    if folder.is_dir() and any(folder.iterdir()):
        return  # a .gitignore would hide other files in the folder
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "CACHEDIR.TAG", _TAG.encode())
    _write(folder / ".gitignore", b"*\n")


def _write(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    temporary = path.with_name(f".onnx-ci-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError:
        _remove(temporary)
        raise


def has_other_files(folder: Path, own: Collection[str]) -> bool:
    """Whether a folder contains anything but verdicts, what belongs to them, and what is called as in ``own``."""
    known = {"CACHEDIR.TAG", ".gitignore", *own}
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        return any(
            each.name not in known and not _ENTRY.fullmatch(each.name) and not _TEMPORARY.fullmatch(each.name) for each in found
        )
    return False


def is_storable(result: CellEvidence) -> bool:
    """Whether the cell was fully judged and its result is reproducible."""
    rules = {each.rule for each in result.findings}
    return result.skip_cause is None and not rules & _TRANSIENT and not any(RULES[rule].leaves_unjudged for rule in rules)


def _entry(cell: Cell, parts: Mapping[str, str], result: CellEvidence, opened: Mapping[str, str]) -> bytes:
    kept = dataclasses.replace(result, artifact=None, cached=False)
    content = {
        "schema": SCHEMA,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cell": cell.id,
        "parts": dict(parts),
        "opened": dict(opened),
        "result": kept.as_json(),
    }
    plain = json.loads(json.dumps(content))  # the checksum must match what a reader sees
    return (json.dumps({**plain, "sha256": checksum(plain)}, indent=2) + "\n").encode()


def _parse(text: bytes, cell: Cell, parts: Mapping[str, str], root: Path) -> CellEvidence | None:
    """The result in an entry, or ``None`` if the entry is invalid, not the requested one, or no longer holds."""
    try:
        content = json.loads(text)
        claimed = content.pop("sha256")
        if claimed != checksum(content) or content["schema"] != SCHEMA:
            return None
        if content["cell"] != cell.id or content["parts"] != dict(parts):
            return None
        if have_changed(from_json(Mapping[str, str], content["opened"]), root):
            return None
        result = CellEvidence.from_json(content["result"])
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None  # truncated, not JSON, or other JSON
    if result.cell != cell or not is_storable(result) or result.as_json() != content["result"]:
        return None
    return dataclasses.replace(result, artifact=None, cached=True)


def checksum(content: Mapping[str, Any]) -> str:
    """The checksum that an entry holds of its content, in hexadecimal digits."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _read(path: Path) -> bytes | None:
    """The content of a file, or ``None`` if it is not a regular file or larger than any entry."""
    # Reading a pipe of that name would block forever.
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_ENTRY:
        return None
    return path.read_bytes()


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False  # already removed by another run, or not permitted
    return True
