"""What is set while GPUs compute, in forks: torch's switches cannot all be put back by hand."""

from __future__ import annotations

import os

import pytest
import torch
from toolbox.fake_cuda import FakeCuda
from toolbox.torch_switches import switches

from onnx_ci.pipeline.model.devices import exact_arithmetic
from onnx_ci.pipeline.model.global_state import watched

# torch 2.9 warns of the older of its two kinds of switches, which torch.export reads.
pytestmark = pytest.mark.filterwarnings("ignore:Please use the new API settings to control TF32:UserWarning")

EXACT = {
    "matmul": False, "precision": "highest", "matmul, newer": "ieee", "cudnn": False, "conv": "ieee", "rnn": "ieee", "cpu": "ieee",
    "float16": False, "bfloat16": False, "benchmark": False, "cudnn deterministic": True,
}  # fmt: skip
SETTINGS_BEFORE = {
    "nothing": lambda: None,
    "the older switches": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "convolutions alone": lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
    "autotuning": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "the newer switch of products": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "the newer switch above all": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
}


def in_a_fork(work):
    """Do ``work`` in a process of its own: torch's switches cannot all be put back by hand."""
    pid = os.fork()
    if not pid:
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
@pytest.mark.parametrize("before", SETTINGS_BEFORE)
def test_what_was_set_is_put_back_whatever_it_was_and_whatever_happens(monkeypatch, before):
    FakeCuda().install(monkeypatch)

    def work():
        SETTINGS_BEFORE[before]()
        outside = switches()
        for for_reference in (False, True):
            with exact_arithmetic(for_reference=for_reference):
                inside = switches()
                assert {name: inside[name] for name in EXACT} == EXACT
                assert inside["deterministic"] == (for_reference or before == "deterministic")
            assert switches() == outside
            with pytest.raises(ZeroDivisionError), exact_arithmetic(for_reference=for_reference):
                raise ZeroDivisionError
            assert switches() == outside

    in_a_fork(work)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_tf32_is_on_where_it_is_asked_for(monkeypatch):
    FakeCuda().install(monkeypatch)

    def work():
        before = switches()
        with exact_arithmetic(tf32=True):
            inside = switches()
            assert (inside["matmul"], inside["cudnn"], inside["conv"], inside["rnn"]) == (True, True, "tf32", "tf32")
            with exact_arithmetic():
                assert not switches()["matmul"]
            assert switches()["matmul"]
            assert not inside["benchmark"]
        assert switches() == before

    in_a_fork(work)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_a_recipe_that_uses_the_newer_switches_is_watched_all_the_same():
    def work():
        with watched() as changes:
            torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert any("matmul precision" in each for each in changes.descriptions)
        changes.undo()

    in_a_fork(work)
