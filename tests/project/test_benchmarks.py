"""The benchmarks, which no other test runs, fit the package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = sorted(path.stem for path in BENCHMARKS.glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_can_be_imported_and_says_what_it_is(name, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    try:
        assert importlib.import_module(name).__doc__
    finally:
        for each in NAMES:
            sys.modules.pop(each, None)
