"""Whether coverage.py measures this process."""

from __future__ import annotations

import sys


def patches_of_coverage() -> set[str] | None:
    """What the running measurement patches, its setting ``run:patch``; ``None`` if nothing is measured."""
    coverage = sys.modules.get("coverage")
    current = None if coverage is None else coverage.Coverage.current()
    return None if current is None else set(current.get_option("run:patch") or ())
