"""The memory and the cores that this process may use. Linux keeps the limits of a container in control groups."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ControlGroups:
    """The control groups of this process, of versions 1 and 2. Elsewhere than on Linux, there are none."""

    membership: Path = Path("/proc/self/cgroup")
    """The file that names the groups."""
    hierarchies: Path = Path("/sys/fs/cgroup")
    """The folder with their limits."""

    def memory(self) -> int | None:
        """The bytes of memory that they allow; ``None`` without a limit."""
        return min((limit for limit in map(_memory_of, self._folders("memory")) if limit > 0), default=None)

    def cores(self) -> float | None:
        """The number of cores that equals the processor time that they allow; ``None`` without a limit."""
        return min((limit for limit in map(_cores_of, self._folders("cpu")) if limit > 0), default=None)

    def _folders(self, controller: str) -> Iterator[Path]:
        """The folders that may hold limits: those of this process's group and of the groups that contain it."""
        with contextlib.suppress(OSError):
            for entry in self.membership.read_text(errors="surrogateescape").split("\n"):
                _, *rest = entry.split(":", 2)
                if len(rest) < 2:
                    continue
                controllers, group = rest
                if controllers and controller not in controllers.split(","):
                    continue
                # In version 1, controllers may share a hierarchy, which is named after all or one of them. The hierarchy of
                # version 2 has no name, or the name "unified" beside version 1.
                for root in {self.hierarchies / name for name in (controllers and controller, controllers or "unified")}:
                    folder = root / group.lstrip("/")
                    # A container may see its own group as the root.
                    yield from (place for place in (folder, *folder.parents) if place.is_relative_to(root))


def _memory_of(folder: Path) -> int:
    """The bytes of memory that a group allows; not above 0 without a limit."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            return int((folder / name).read_text())
    return 0


def _cores_of(folder: Path) -> float:
    """The cores that a group allows; not above 0 without a limit."""
    with contextlib.suppress(OSError, ValueError, ArithmeticError):  # no such file, or "max 100000"
        quota, period = map(int, (folder / "cpu.max").read_text().split())
        return quota / period
    with contextlib.suppress(OSError, ValueError, ArithmeticError):
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return quota / period
    return 0.0


def usable_cores(groups: ControlGroups = ControlGroups()) -> int:
    """The number of cores that this process may use at once, by its processor affinity and its processor time."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = groups.cores()
    return count if allowed is None else max(1, min(count, math.ceil(allowed)))
