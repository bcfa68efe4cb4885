"""``onnx-ci compare``: one line for the verdict, one for each difference, and exit codes like the other commands."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from toolbox.files import mlp, save

SAME, DIFFERENT, USAGE = 0, 1, 2


@pytest.fixture
def compare(project):
    save(mlp(), project.root / "a.onnx")
    save(mlp(epsilon=1e-3), project.root / "b.onnx")
    return lambda *words: project.in_process("compare", *words)


def test_the_same_is_one_line(compare):
    done = compare("a.onnx", "a.onnx", "--size", "batch=6")
    assert (done.returncode, done.stderr) == (SAME, "")
    [line] = done.stdout.splitlines()
    assert line.startswith("a.onnx and a.onnx: same (drift ")
    assert line.endswith(" inputs)")


def test_each_size_of_an_axis_counts_however_they_are_given(compare):
    together, repeated = (
        compare("a.onnx", "a.onnx", *words).stdout for words in (["--size=batch=6,9"], ["--size=batch=6", "--size=batch=9"])
    )
    assert repeated == together != compare("a.onnx", "a.onnx", "--size=batch=9").stdout


def test_files_that_compute_nothing_finite_are_not_said_to_differ(compare, project):
    save(mlp(second=np.full((8, 4), np.nan, np.float32)), project.root / "nan.onnx")
    done = compare("nan.onnx", "nan.onnx")
    first, *lines = done.stdout.splitlines()
    assert (done.returncode, first) == (DIFFERENT, "nan.onnx and nan.onnx: not compared")
    assert lines[0].startswith("    vacuous: output 'y' was never compared: ")
    assert lines[-1].endswith("--inputs.")
    different = compare("a.onnx", "nan.onnx").stdout
    assert different.startswith("a.onnx and nan.onnx: different")
    assert "\n    nonfinite-mismatch: " in different
    assert "\n    weight-mismatch: the weight 'v' at [0, 0] is " in different


@pytest.mark.slow
def test_differences_are_listed_with_their_remedy(compare):
    done = compare("a.onnx", "b.onnx")
    assert done.returncode == DIFFERENT
    first, *lines = done.stdout.splitlines()
    assert first.startswith("a.onnx and b.onnx: different (drift ")
    assert lines[0].startswith("    numeric-drift: output 'y' at [")
    assert "times the rounding of a.onnx" in " ".join(each.strip() for each in lines)
    assert any(each.startswith("        remedy: ") for each in lines)
    assert compare("a.onnx", "b.onnx", "--max-drift=1e9").returncode == SAME
    assert compare("a.onnx", "b.onnx", "--rules=numeric-drift=note").returncode == SAME


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a.onnx", "c.onnx"], "there is no file c.onnx; did you mean"),
        (["a.onnx", "."], ". is a directory; pass a file in it"),
        (["a.onnx"], "Missing argument 'B.onnx'"),
        (["a.onnx", "b.onnx", "--size=batch"], "--size: must be AXIS=SIZE, such as batch=4"),
        (["a.onnx", "b.onnx", "--size=batch=0"], "--size: must be AXIS=SIZE, such as batch=4"),
        (["a.onnx", "b.onnx", "--size=bath=2"], "no input has a dynamic axis 'bath'; did you mean 'batch'?"),
        (["a.onnx", "b.onnx", "--rules=drift=note"], "--rules: there is no rule 'drift'"),
    ],
)
def test_mistakes_are_exit_2(compare, words, said):
    done = compare(*words)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert said in done.stderr


def test_weights_that_onnx_refuses_are_told_and_no_traceback(compare, project):
    model = onnx.load(project.root / "a.onnx")
    onnx.save(model, project.root / "c.onnx", save_as_external_data=True, location="c.data", size_threshold=0)
    (project.root / "other.data").hardlink_to(project.root / "c.data")
    done = compare("c.onnx", "a.onnx")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "the weights of c.onnx cannot be read: " in done.stderr
    assert "put a copy of them next to it" in done.stderr
    (project.root / "other.data").unlink()
    assert compare("c.onnx", "a.onnx").returncode == SAME


def test_an_axis_of_a_negative_size_is_dynamic(compare, project):
    model = onnx.load(project.root / "a.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(model, project.root / "c.onnx")
    assert compare("c.onnx", "a.onnx").returncode == SAME
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2**60
    onnx.save(model, project.root / "c.onnx")
    done = compare("c.onnx", "c.onnx")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "cannot be made in the shape" in done.stderr
