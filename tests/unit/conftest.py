"""Unit tests start no process: they are fast, run anywhere, and fail in one place."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

platform.platform()  # asks a process about the machine once, and remembers the answer

_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec", "os.system"})
_REMEDY = (
    "A test in tests/unit must start no process. Call the function under test with what the process would say, "
    "or move the test to tests/e2e."
)


class _Guard:
    """Refuses processes while a unit test runs, and remembers them, because the code under test may catch the error."""

    is_on = False

    def __init__(self) -> None:
        self.refused: list[str] = []

    def __call__(self, event: str, args: object) -> None:
        if self.is_on and event in _STARTS:
            self.refused.append(event)
            raise RuntimeError(f"{event}: {_REMEDY}")


_guard = _Guard()
sys.addaudithook(_guard)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Guard a test together with its fixtures. Pytest asks about every test of the run, those of other folders too."""
    _guard.is_on = item.path.is_relative_to(Path(__file__).parent)
    _guard.refused.clear()
    try:
        return (yield)
    finally:
        _guard.is_on = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Fail a test that has caught the error."""
    result = yield
    if _guard.refused:
        pytest.fail(f"{', '.join(_guard.refused)}: {_REMEDY}")
    return result
