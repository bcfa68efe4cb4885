"""Asks coverage.py whether it measures this process."""

from __future__ import annotations

import sys


def patches_of_coverage() -> set[str] | None:
    """The setting ``run:patch`` of the running measurement; ``None`` if nothing is measured."""
    coverage = sys.modules.get("coverage")
    current = None if coverage is None else coverage.Coverage.current()
    return None if current is None else set(current.get_option("run:patch") or ())
