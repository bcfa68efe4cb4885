"""The memory of a machine, with and without a file system that tells it."""

from __future__ import annotations

import psutil
import pytest

from onnx_ci.processes.limits import machine_memory


@pytest.mark.skipif(not psutil.LINUX, reason="only Linux has /proc")
def test_the_memory_is_known_without_proc(monkeypatch):
    usual = machine_memory.__wrapped__()

    def fails():
        raise FileNotFoundError(2, "No such file or directory", "/proc/meminfo")

    monkeypatch.setattr(psutil, "virtual_memory", fails)
    assert machine_memory.__wrapped__() == pytest.approx(usual, rel=0.1)
