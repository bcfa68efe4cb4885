"""The memory of a process that prepares a cell."""

from __future__ import annotations

import subprocess
import sys

import pytest
from toolbox.projects import ROOT

PEAK = """
import resource, torch, onnx_ci
from onnx_ci.pipeline.prepare.prepare import prepare
from toolbox.cells import task

@onnx_ci.recipe(input_names=["words"], output_names=["vectors"])
def large():
    return torch.nn.Embedding(2**16, 1024), (torch.tensor([0, 1]),)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = peak()
prepare(task(large))
print((peak() - before) / 2**28)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the peak is counted otherwise")
def test_copies_that_are_only_read_cost_no_memory():
    done = subprocess.run(
        [sys.executable, "-c", PEAK], cwd=ROOT / "tests", capture_output=True, text=True, timeout=300, check=True
    )
    assert float(done.stdout) < 4  # the model itself, and the same in float64; each copy would be one more
