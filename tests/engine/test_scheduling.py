"""Which cells and preparations run at once, and with how many threads."""

from __future__ import annotations

import os
import time

import pytest
import torch
from torch import nn

import onnx_ci

forked = pytest.mark.skipif(not hasattr(os, "fork"), reason="cells have processes of their own only where they are forked")


class Noting(nn.Module):
    """A model that appends a line to a file when it is run and when it is exported."""

    def __init__(self, file, name, seconds=0.0):
        super().__init__()
        self.file, self.name, self.seconds = file, name, seconds

    def forward(self, x):
        doing = "exported" if torch._C._get_tracing_state() is not None else "run"
        note(self.file, f"{self.name} {doing}, {torch.get_num_threads()} threads")
        if doing == "exported":
            time.sleep(self.seconds)
        return x + 1


def note(file, line):
    with file.open("a") as opened:
        print(line, file=opened)


def recipe(file, name, seconds=0.0):
    @onnx_ci.recipe(name=name, input_names=["x"], output_names=["y"])
    def function():
        note(file, f"{name} built")
        return Noting(file, name, seconds), (torch.randn(3, 4),)

    return function


@pytest.fixture
def lines_of(tmp_path, monkeypatch):
    """The lines that the models of recipes noted in a run with two cores."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "lines"
    before = torch.get_num_threads()

    def run(*names, **options):
        torch.set_num_threads(2)
        seconds = {"many": 0.3}
        report = onnx_ci.run([recipe(file, name, seconds.get(name, 0.0)) for name in names], cache="off", **options)
        assert report.verdict == "passed", report.counts
        return file.read_text().splitlines()

    yield run
    torch.set_num_threads(before)


@forked
def test_the_last_recipe_is_prepared_while_cells_of_others_still_wait(lines_of):
    lines = lines_of("one", "many", "last", opsets="12-17", select="one::opset17-cpu,many::*,last::opset17-cpu", jobs=2)
    after = lines[lines.index("last built") :]
    assert sum(line.startswith("many exported") for line in after) >= 3


@forked
def test_only_as_many_recipes_are_prepared_as_cells_run_at_once(lines_of):
    """Each fills memory."""
    lines = lines_of("many", "last", opsets="12-14", jobs=1)
    assert sum(line.startswith("many exported") for line in lines[: lines.index("last built")]) == 3


@pytest.mark.usefixtures("warm_spawned_processes")
@pytest.mark.parametrize(("isolation", "in_cells"), [pytest.param("fork", 1, marks=forked), ("spawn", 2)])
def test_a_recipe_alone_is_prepared_with_all_cores(lines_of, isolation, in_cells):
    """Forked cells share them; spawned ones run one after another."""
    lines = lines_of("net", opsets="12-14", jobs=2, isolation=isolation)
    assert {line for line in lines if "run" in line} == {"net run, 2 threads"}
    assert {line for line in lines if "exported" in line} == {f"net exported, {in_cells} threads"}


@forked
def test_recipes_that_are_prepared_at_once_share_the_cores(lines_of):
    lines = lines_of("net", "other", opsets="13", jobs=2)
    assert {line for line in lines if "run" in line} == {"net run, 1 threads", "other run, 1 threads"}
