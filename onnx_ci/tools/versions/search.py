"""Which version of which package makes cells right or wrong: what is tried, and in which order. The caller runs the cells."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from packaging.version import Version

T = TypeVar("T")

Check = Callable[[T], bool | None]
"""Whether something holds with a version; ``None`` if that version cannot be had."""


def first_that_holds(versions: Sequence[T], holds: Check[T]) -> tuple[T, T | None]:
    """The first version with which something holds, by bisection, and the last one before it with which it does not.

    It holds with the last version, and not before the first. Those that cannot be had are passed over.
    """
    versions = list(versions)
    low, high = -1, len(versions) - 1
    while high - low > 1:
        middle = (low + high) // 2
        answer = holds(versions[middle])
        if answer is None:
            del versions[middle]
            high -= 1
        elif answer:
            high = middle
        else:
            low = middle
    return versions[high], versions[low] if low >= 0 else None


@dataclass(frozen=True, kw_only=True)
class Repair:
    """A version of a package with which a cell passes."""

    package: str
    version: Version
    fails_with: Version
    """The nearest version with which it is known to fail."""
    goes_on: bool = True
    """Whether it passes with the version that is farthest from those with which it fails, too."""

    @property
    def words(self) -> str:
        """``passes with onnxscript 0.7.1 and later (fails with 0.7.0)``."""
        side = "later" if self.version > self.fails_with else "earlier"
        others = f" and {side}" if self.goes_on else ""
        return f"passes with {self.package} {self.version}{others} (fails with {self.fails_with})"


def newer_repair(package: str, today: Version, versions: Sequence[Version], passes: Check[Version]) -> Repair | None:
    """The first newer version with which the cell passes, if it does with the newest: at most log2(n) + 1 runs.

    The cell fails with the version of today; ``versions`` are all that there are, in ascending order.
    """
    return _repair(package, today, [each for each in versions if _public(each) > _public(today)], passes)


def older_repair(package: str, today: Version, versions: Sequence[Version], passes: Check[Version]) -> Repair | None:
    """The last older version with which the cell passes, if it does with the one before or with the oldest.

    At most log2(n) + 2 runs; the arguments are those of :func:`newer_repair`.
    """
    older = [each for each in reversed(versions) if _public(each) < _public(today)]
    for place, version in enumerate(older):
        if (answer := passes(version)) is None:
            continue
        if answer:
            return Repair(package=package, version=version, fails_with=today, goes_on=False)
        return _repair(package, version, older[place + 1 :], passes)
    return None


def _repair(package: str, wrong: Version, versions: Sequence[Version], passes: Check[Version]) -> Repair | None:
    """The first of ``versions`` with which the cell passes, which is next to ``wrong``, if it does with the last one."""
    for last in range(len(versions), 0, -1):
        if (answer := passes(versions[last - 1])) is None:
            continue
        if not answer:
            return None
        version, before = first_that_holds(versions[:last], passes)
        return Repair(package=package, version=version, fails_with=before or wrong)
    return None


def _public(version: Version) -> Version:
    """A version without its build label: 2.13.0+cpu is not newer than 2.13.0."""
    return Version(version.public)


def blame(
    packages: Sequence[str], broken: Sequence[T], breaks: Callable[[tuple[str, ...]], Collection[T]]
) -> dict[tuple[str, ...], list[T]]:
    """The packages whose new versions break cells: one at a time, and in pairs for the cells that no single one breaks.

    Packages are given the likeliest first. ``breaks`` says which cells the new versions of some break.
    """
    blamed: dict[tuple[str, ...], list[T]] = {}
    left = list(broken)
    for names in (*((name,) for name in packages), *itertools.combinations(packages, 2)):
        if left and (at_fault := [cell for cell in breaks(names) if cell in left]):
            blamed[names] = at_fault
            left = [cell for cell in left if cell not in at_fault]
    return blamed
