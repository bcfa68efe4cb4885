"""What this process may use of its machine. A container has limits of its own, which Linux keeps in control groups."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ControlGroups:
    """The control groups of this process, of versions 1 and 2; elsewhere than on Linux, there are none."""

    membership: Path = Path("/proc/self/cgroup")
    """The file that names them."""
    hierarchies: Path = Path("/sys/fs/cgroup")
    """The folder that has their limits."""

    def memory(self) -> int | None:
        """How many bytes of memory they allow; ``None`` if they do not limit it."""
        return min(filter(None, map(_memory_of, self._folders("memory"))), default=None)

    def cores(self) -> float | None:
        """How many cores the processor time that they allow is worth; ``None`` if they do not limit it."""
        return min(filter(None, map(_cores_of, self._folders("cpu"))), default=None)

    def _folders(self, controller: str) -> Iterator[Path]:
        """The folders that may hold limits: those of this process's group, and of those that contain it."""
        with contextlib.suppress(OSError):
            for entry in self.membership.read_text().splitlines():
                _, controllers, group = entry.split(":", 2)
                if controllers and controller not in controllers.split(","):
                    continue
                # Version 2 has one hierarchy; in version 1, controllers may share one, which is named after all or one of them.
                for root in {self.hierarchies / name for name in (controllers and controller, controllers)}:
                    own = root / group.lstrip("/")
                    # A container may see its own group as the root of all.
                    yield from (each for each in (own, *own.parents) if each.is_relative_to(root))


def _memory_of(folder: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            return int((folder / name).read_text())
    return None


def _cores_of(folder: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max 100000"
        quota, period = map(int, (folder / "cpu.max").read_text().split())
        return quota / period
    with contextlib.suppress(OSError, ValueError):
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return quota / period if quota > 0 else None
    return None


def usable_cores() -> int:
    """How many cores this process may use at once: those that it may run on, or what its processor time is worth."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = ControlGroups().cores()
    return count if allowed is None else max(1, min(count, math.ceil(allowed)))
