"""The benchmarks, which no other test runs, fit the package."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BENCHMARKS = ROOT / "benchmarks"
NAMES = sorted(path.stem for path in BENCHMARKS.glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_can_be_imported_and_says_what_it_is(name, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    try:
        assert importlib.import_module(name).__doc__
    finally:
        for each in NAMES:
            sys.modules.pop(each, None)


def test_the_rivals_run_with_the_versions_that_are_tested_together():
    def pins(path):
        return dict(re.findall(r"^([\w-]+)==(\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE))

    tested, own = pins(ROOT / "constraints.txt"), pins(BENCHMARKS / "rivals-constraints.txt")
    assert {name for name in tested.keys() & own.keys() if tested[name] != own[name]} == {"transformers"}
