"""Python's garbage collector is as it was after modules have been imported."""

from __future__ import annotations

import gc

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
