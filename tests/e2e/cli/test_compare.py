"""``onnx-ci compare``: one line for the verdict, one for each difference, and exit codes like the other commands."""

from __future__ import annotations

import pytest
from toolbox.files import mlp, save

SAME, DIFFERENT, USAGE = 0, 1, 2


@pytest.fixture
def compare(project):
    save(mlp(), project.root / "a.onnx")
    save(mlp(epsilon=1e-3), project.root / "b.onnx")
    return lambda *words: project.command("onnx_ci", "compare", *words)


def test_the_same_is_one_line(compare):
    done = compare("a.onnx", "a.onnx", "--size", "batch=6")
    assert (done.returncode, done.stderr) == (SAME, "")
    [line] = done.stdout.splitlines()
    assert line.startswith("a.onnx and a.onnx: same (drift ")
    assert line.endswith(" inputs)")


@pytest.mark.slow
def test_differences_are_listed_with_their_remedy(compare):
    done = compare("a.onnx", "b.onnx")
    assert done.returncode == DIFFERENT
    first, finding, remedy = done.stdout.splitlines()
    assert first.startswith("a.onnx and b.onnx: different (drift ")
    assert finding.startswith("    numeric-drift: output 'y' at [")
    assert "times the rounding of a.onnx" in finding
    assert remedy.startswith("        remedy: ")
    assert compare("a.onnx", "b.onnx", "--atol=0.1").returncode == SAME
    assert compare("a.onnx", "b.onnx", "--allow=numeric-drift").returncode == SAME


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a.onnx", "c.onnx"], "there is no file c.onnx; did you mean"),
        (["a.onnx", "."], ". is a directory; pass a file in it"),
        (["a.onnx"], "Missing argument 'B.onnx'"),
        (["a.onnx", "b.onnx", "--size=batch"], "--size: must be AXIS=SIZE, such as batch=4"),
        (["a.onnx", "b.onnx", "--size=batch=0"], "--size: must be AXIS=SIZE, such as batch=4"),
        (["a.onnx", "b.onnx", "--size=bath=2"], "no input has a dynamic axis 'bath'; did you mean 'batch'?"),
        (["a.onnx", "b.onnx", "--allow=drift"], "--allow: unknown rule 'drift'"),
    ],
)
def test_mistakes_are_exit_2(compare, words, said):
    done = compare(*words)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert said in done.stderr
