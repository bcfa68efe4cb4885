"""The tests that a runtime must pass, for ours, for a right plug-in and for wrong ones."""

from __future__ import annotations

import re
import sys

import pytest
from toolbox.distributions import install
from toolbox.planted_runtime import FAULTS, PLANTED, PLANTED_CODE

WORDS = {
    "scale": "returns output 0 as",
    "batch": "returns output 0 as",
    "stale": "instead of torch.float32 of shape",
    "double": "planted returned output 'y' as double, and the file declares float",
    "numpy": "planted returned a list with a ndarray instead of torch tensors",
    "missing": "planted returned 0 tensors, and the file has 1 output",
    "none": "planted returned None instead of a list of torch tensors",
    "segv": "planted was killed by SIGSEGV",
    "hang": "planted did not answer within 10 s",
}


@pytest.fixture
def kit(project, tmp_path_factory, monkeypatch):
    """Run the kit for a runtime, and give its exit code and output."""
    folder = tmp_path_factory.mktemp("installed")
    install(folder, "planted", PLANTED, {"planted.py": PLANTED_CODE})
    monkeypatch.setenv("PYTHONPATH", str(folder))

    def kit(runtime, *arguments):
        done = project.command("pytest", "-p", "no:cacheprovider", f"--onnx-runtime={runtime}", "-q", *arguments)
        return done.returncode, done.stdout + done.stderr

    return kit


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnxruntime", "planted"])
def test_a_right_runtime_passes(kit, runtime):
    code, output = kit(runtime)
    assert (code, "passed" in output) == (0, True), output


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, a crash ends pytest")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_runtime_is_named(kit, monkeypatch, fault):
    monkeypatch.setenv("BUG", fault)
    code, output = kit("planted", "-k", "sums or sizes")
    assert code == 1, output
    assert re.search(r"^planted ", output, re.MULTILINE), output
    assert WORDS[fault] in output, output


def test_an_unknown_runtime_is_told(kit):
    code, output = kit("plnted", "-k", "sums")
    assert (code, "there is no runtime 'plnted'; did you mean 'planted'" in output) == (1, True), output
