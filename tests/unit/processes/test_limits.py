"""The limits of processes, and the memory of a machine, with and without a file system that tells it."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import pytest

from onnx_ci.processes.limits import Limits, machine_memory


@dataclass
class Chosen:
    timeout: float
    memory_limit: int | None = None


@pytest.mark.skipif(not psutil.LINUX, reason="only Linux has /proc")
def test_the_memory_is_known_without_proc(monkeypatch):
    usual = machine_memory.__wrapped__()

    def fails():
        raise FileNotFoundError(2, "No such file or directory", "/proc/meminfo")

    monkeypatch.setattr(psutil, "virtual_memory", fails)
    assert machine_memory.__wrapped__() == pytest.approx(usual, rel=0.1)


def test_a_cell_without_a_memory_limit_gets_most_of_the_machine():
    assert Limits.of(Chosen(timeout=7)) == Limits(seconds=7, memory=int(0.8 * machine_memory()))
    assert Limits.of(Chosen(timeout=7, memory_limit=2**30)) == Limits(seconds=7, memory=2**30)


@pytest.mark.parametrize(("timeout", "seconds"), [(1, 60), (900, 900), (1e9, 1e6)])
def test_an_import_has_a_minute_at_least_and_no_more_than_the_system_can_wait(timeout, seconds):
    assert Limits(seconds=timeout, memory=5).for_import() == Limits(seconds=seconds, memory=5)


@pytest.mark.parametrize(
    ("timeout", "others", "spent", "seconds"),
    [
        (900, 40, 0, 40),  # as long as all else
        (900, 1, 0, 5),
        (900, 40, 10, 30),
        (60, 30, 0, 20),  # a third of the limit
        (60, 55, 0, 5),
        (60, 58, 0, 2),  # it must not end the cell
    ],
)
def test_a_search_takes_no_longer_than_all_else_and_leaves_the_cell_its_time(timeout, others, spent, seconds):
    assert Limits(seconds=timeout).seconds_for_search(others, spent) == seconds
