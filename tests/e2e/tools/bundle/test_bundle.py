"""``onnx-ci bundle CELL DIR`` writes a bug report that stands alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from toolbox.projects import FROZEN, RIGHT, ROOT

HALVES = """
    class SecretNetwork(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.secret_table = torch.nn.Embedding(7, 4)

        def forward(self, secret_tokens):
            hidden = self.secret_table(secret_tokens).cumsum(1)
            return hidden, (secret_tokens - 5) // 2

    @onnx_ci.recipe(input_names=["secret_tokens"], output_names=["hidden", "halved"])
    def secret():
        return SecretNetwork(), (torch.tensor([[0, 3, 6], [4, 1, 2]]),)
"""
PRODUCT = """
    class Product(torch.nn.Module):
        def forward(self, x, vector):
            return torch.relu(x.float().T @ vector)

    @onnx_ci.recipe(input_names=["x", "vector"], output_names=["y"])
    def product():
        return Product(), (torch.randint(0, 9, (3, 3)), torch.randn(3))
"""


def exit_code_of(script: Path) -> int:
    """The exit code of a script in an interpreter that does not see this project."""
    done = subprocess.run([sys.executable, "-I", script.name], cwd=script.parent, capture_output=True, timeout=120, check=False)
    return done.returncode


@pytest.mark.slow
def test_a_fault_of_the_exporter_stands_alone(project):
    project.recipes(HALVES)
    done = project.command("onnx_ci", "bundle", "secret::opset13-cpu", "report")
    assert (done.returncode, done.stderr) == (1, "")
    said = (
        "x // 2 fails by itself: run reproduce.py in report, and report issue.md to https://github.com/pytorch/pytorch/issues"
    )
    assert done.stdout.splitlines()[-1] == said

    folder = project.root / "report"
    files = sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())
    data = ["test_data_set_0/input_0.pb", "test_data_set_0/output_0.pb"]
    assert files == ["issue.md", "model.onnx", "reproduce.py", *data, "versions.json"]
    script, issue = (folder / "reproduce.py").read_text(), (folder / "issue.md").read_text()
    assert script.strip() in issue
    assert script.strip() in (ROOT / "docs" / "failures.md").read_text()
    assert "Mismatched elements" in issue
    assert "onnx's reference evaluator does not compute what PyTorch computes either." in issue
    contents = b"".join((folder / each).read_bytes() for each in files)
    assert not [word for word in (b"secret", b"Secret", b"onnx_ci", bytes(project.root)) if word in contents]

    assert exit_code_of(folder / "reproduce.py") == 1
    (folder / "reproduce.py").write_text(script.replace("x // 2", 'torch.div(x, 2, rounding_mode="floor")'))
    assert exit_code_of(folder / "reproduce.py") == 0


def test_a_fault_of_the_runtime_is_shown_without_torch(project):
    project.recipes(PRODUCT)
    done = project.command("onnx_ci", "bundle", "product::opset13-cpu", "report")
    assert done.stdout.splitlines()[-1].endswith("report issue.md to https://github.com/microsoft/onnxruntime/issues")
    folder = project.root / "report"
    script = (folder / "reproduce.py").read_text()
    assert "import torch" not in script
    assert "With all optimizations disabled, ONNX Runtime is right." in (folder / "issue.md").read_text()
    onnx.checker.check_model(folder / "model.onnx", full_check=True)
    assert exit_code_of(folder / "reproduce.py") == 1
    switched_off = script.replace("providers=", 'disabled_optimizers=["MatmulTransposeFusion"], providers=')
    (folder / "reproduce.py").write_text(switched_off)
    assert exit_code_of(folder / "reproduce.py") == 0


@pytest.mark.parametrize(
    ("cell", "code", "said"),
    [
        ("right", 0, "no bug report is written: the cell does not fail"),
        ("total", 1, "no bug report is written: the functions of torch that the model calls are exported right by themselves"),
    ],
)
def test_where_there_is_nothing_to_report_that_is_said_and_nothing_is_written(project, cell, code, said):
    project.recipes(RIGHT, FROZEN)
    done = project.command("onnx_ci", "bundle", f"{cell}::opset13-cpu", "report")
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.splitlines()[-1].startswith(said)
    assert not (project.root / "report").exists()


def test_a_file_cannot_be_reported_because_nobody_knows_who_made_it(project):
    project.recipes(RIGHT)
    project.command("onnx_ci", "run", "--opsets=13", "--artifacts=kept")
    (file,) = (project.root / "kept").rglob("*.onnx")
    done = project.command("onnx_ci", "bundle", str(file), "report")
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",  # nothing was searched for
        f"onnx-ci: {file} is a file: name a cell, as onnx-ci list shows them\n",
    )
