"""``onnx-ci faults`` and ``verify`` say what releases of ONNX Runtime are known to compute wrong in a file, without running it."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

POOL = "onnxruntime 1.15.0 to 1.28.0 compute AveragePool 'pool' wrong at some sizes"


@pytest.fixture
def files(project):
    """Two files with the same pooling, but for what happens at the border."""
    for name, counts in (("wrong", 1), ("right", 0)):
        window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1, "count_include_pad": counts}
        ends = [helper.make_tensor_value_info(each, TensorProto.FLOAT, ["n", 3, "h", "w"]) for each in "xy"]
        node = helper.make_node("AveragePool", ["x"], ["y"], name="pool", **window)
        graph = helper.make_graph([node], "net", ends[:1], ends[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, project.root / f"{name}.onnx")


def test_a_file_is_compared_with_what_is_known(project, files):
    done = project.command("onnx_ci", "faults", "wrong.onnx", "right.onnx")
    assert (done.returncode, done.stderr) == (1, "")
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"wrong.onnx: {POOL} (") and line.endswith("; 1.29.0 is right")
    assert project.command("onnx_ci", "faults", "wrong.onnx", "--with=1.28").returncode == 1
    for words in (("wrong.onnx", "--with=1.29"), ("right.onnx",)):
        done = project.command("onnx_ci", "faults", *words)
        assert (done.returncode, done.stdout) == (0, "no node of them is known to be computed wrong\n")


def test_what_cannot_be_read_is_no_file_without_faults(project, files):
    (project.root / "empty.onnx").write_bytes(b"")
    done = project.command("onnx_ci", "faults", "right.onnx", "empty.onnx")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "onnx-ci: empty.onnx: the file is empty\n"
    done = project.command("onnx_ci", "faults", "right.onnx", "--with=1.20.x")
    assert (done.returncode, "Invalid value for '--with': Invalid version: '1.20.x'" in done.stderr) == (2, True)


def test_all_that_is_known_is_listed(project):
    done = project.command("onnx_ci", "faults", "--with=1.29.0")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(line.startswith("onnxruntime ") and "1.30.0 is right" in line for line in done.stdout.splitlines())
    assert "Transpose(perm=[0, 1]) → MatMul() → Add() at opsets 7-20 on float32 of rank 2" in done.stdout


def test_a_file_without_a_recipe_is_noted_to_be_wrong_elsewhere(project, files):
    done = project.command("onnx_ci", "verify", "--no-load", "wrong.onnx", "right.onnx")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"runtime-disagreement (note): {POOL}" in " ".join(done.stdout.split())
    assert done.stdout.count("runtime-disagreement") == 1
