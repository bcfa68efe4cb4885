"""What users write against is typed: mypy accepts their files, and finds what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import onnx_ci

RIGHT = """
import torch
import onnx_ci
from onnx_ci import CellResult, Recipe, RunReport, Status


@onnx_ci.recipe
def bare() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return torch.nn.ReLU(), (torch.randn(2),)


@onnx_ci.recipe(
    input_names=["x"],
    dynamic_axes={"x": {0: "batch"}},
    opsets="9-17",
    max_drift={"y": 64, "float16": 100},
    expect={"9-10": onnx_ci.unsupported("index_put"), "dynamo": [onnx_ci.known_failure("export-error", "why")]},
    do_constant_folding=False,
)
def net() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return torch.nn.ReLU(), (torch.randn(2),)


recipe: Recipe = net
report: RunReport = onnx_ci.run([bare, net], opsets="9-17", max_drift=8, report="r.json")
failed: list[CellResult] = [each for each in report.cells if each.status is Status.FAILED]
first: str | None = failed[0].findings[0].output
verdict: onnx_ci.RunVerdict = report.verdict
result: CellResult = onnx_ci.verify("net.onnx", net, opset=13, baseline="check")
path: str = str(onnx_ci.export(net, opset=13).path)
source: onnx_ci.SettingSource = report.settings["opsets"].origin.source
"""

WRONG = """
import onnx_ci


@onnx_ci.recipe(max_drif=3)  # E: misspelt
def net() -> None: ...


@onnx_ci.recipe(opsets=1.5)  # E: of a wrong type
def other() -> None: ...


onnx_ci.run([net], drift=3)  # E: no such setting
onnx_ci.verify("net.onnx", net, opsets="9-17")  # E: no setting of a single file
text: str = onnx_ci.run([net]).cells[0].status.value
number: int = onnx_ci.run([net]).cells[0].reason  # E: text
"""


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """By the name of each user's file, the lines that mypy refuses. It does not read torch, which takes it half a minute."""
    folder = tmp_path_factory.mktemp("user")
    for name, text in (("right.py", RIGHT), ("wrong.py", WRONG)):
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n", encoding="utf-8")
    checkout = Path(onnx_ci.__file__).parents[1]
    is_installed = checkout.name in ("site-packages", "dist-packages")  # mypy does not find an editable installation
    options = ["--strict", "--no-error-summary", "--follow-imports=silent", "--cache-dir", str(folder / "cache")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "right.py", "wrong.py"],
        cwd=folder,
        env={**os.environ, **({} if is_installed else {"MYPYPATH": str(checkout)})},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    lines: dict[str, set[int]] = {"right.py": set(), "wrong.py": set()}
    for line in done.stdout.splitlines():
        if ": error:" in line:
            file, number, _ = line.split(":", 2)
            lines[file].add(int(number))
    return {file: sorted(numbers) for file, numbers in lines.items()}


@pytest.mark.slow
def test_mypy_accepts_a_users_file(refused):
    assert refused["right.py"] == []


def test_mypy_finds_what_is_wrong_in_a_users_file(refused):
    expected = [number for number, line in enumerate(WRONG.splitlines(), start=1) if "# E:" in line]
    assert refused["wrong.py"] == expected
