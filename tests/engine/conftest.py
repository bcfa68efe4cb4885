"""Cells of these tests run in the test's own process, unless it says otherwise: a fork takes longer than a small cell."""

from __future__ import annotations

import pytest

IN_PROCESSES = ("test_isolated.py", "test_recipes.py", "test_scheduling.py", "test_cuda.py", "test_plugins.py")
"""Files whose tests are about processes, or about what a whole run does by default."""


@pytest.fixture(autouse=True)
def cells_run_in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.name not in IN_PROCESSES:
        monkeypatch.setenv("ONNX_CI_ISOLATION", "none")
