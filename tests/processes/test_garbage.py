"""Python's garbage collector is as it was after modules have been imported, and does not search once more at the end."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from onnx_ci.processes.garbage import no_garbage_collection


def test_garbage_is_collected_again_after_the_block():
    assert gc.isenabled()
    with pytest.raises(ImportError), no_garbage_collection():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()


def test_a_collector_that_was_switched_off_stays_off():
    gc.disable()
    try:
        with no_garbage_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


CYCLE = """
from onnx_ci.processes.garbage import leave_garbage_at_exit

class Cycle:
    def __init__(self):
        self.own = self

    def __del__(self):
        print("searched")

Cycle()
"""


@pytest.mark.parametrize(("last", "printed"), [("", "searched\n"), ("leave_garbage_at_exit()", "")])
def test_a_process_ends_without_a_last_search(last, printed):
    ended = subprocess.run([sys.executable, "-c", CYCLE + last], check=True, capture_output=True, text=True)
    assert ended.stdout == printed
