"""The run, a host or a cell is killed at every boundary between two steps: what is lost is that cell, or nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from e2e.chaos import end_parent
from e2e.chaos.dying import Dying
from e2e.chaos.faults import healthy
from e2e.chaos.running import ISOLATION
from toolbox.cells import evidence_of, recipe_of

from onnx_ci.config.settings import load_settings
from onnx_ci.engine import scheduler
from onnx_ci.matrix.plan import task_of
from onnx_ci.results.records import Cell, Severity

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("warm_spawned_processes"),
    pytest.mark.skipif(sys.platform != "linux", reason="cells have processes of their own on Linux only"),
]


KEYWORDS = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
RECIPES = {name: recipe_of(torch.relu, torch.randn(3, 4), name=name, **KEYWORDS) for name in ("first", "victim", "last")}


def cells(tmp_path):
    settings = load_settings(tmp_path, flags={"effort": "quick"})
    for name, recipe in RECIPES.items():
        for opset in (12, 13):
            cell = Cell(source="recipes.py", recipe=name, exporter="torchscript", opset=opset, device="cpu")
            yield task_of(cell, recipe, settings)


def errors(evidence):
    return [each.rule for each in evidence.findings if each.severity is Severity.ERROR]


@pytest.fixture
def judged(tmp_path, monkeypatch):
    """Runs all cells while a process dies; gives the evidence about them, and the stage of the last count."""
    runs = iter(range(1000))

    def judged(isolation, place, number):
        folder = tmp_path / str(next(runs))
        folder.mkdir()
        dying = Dying(place, number, folder)
        monkeypatch.setattr(scheduler, "run_worker", dying.run_worker)
        with scheduler.open_engine(load_settings(tmp_path, flags={"jobs": 2, "isolation": isolation})) as engine:
            found = {(each.cell.recipe, each.cell.opset): each for each in evidence_of(engine, list(cells(tmp_path)))}
        return found, (folder / "count").read_text().split()

    return judged


@pytest.mark.parametrize(("place", "killed"), [("host", [12, 13]), ("cell", [13])])
def test_a_process_that_is_killed_as_any_stage_begins_costs_its_own_cells(place, killed, judged):
    found, (stages, _) = judged("fork", place, 0)
    assert not any(errors(each) for each in found.values())
    assert int(stages) >= 4
    for number in range(1, int(stages) + 1):
        found, (_, stage) = judged("fork", place, number)
        for (recipe, opset), evidence in found.items():
            dies = recipe == "victim" and opset in killed
            assert errors(evidence) == (["crash"] if dies else []), (number, recipe, opset)
            if dies:
                assert evidence.findings[0].details["stage"] == stage
    print(f"{stages} stages of a {place}: nothing else was lost")


def test_a_new_process_that_is_killed_as_any_stage_begins_costs_what_runs_in_it(judged):
    """Its preparation, and then its cells, one after the other; those that have not begun get another process."""
    found, (stages, _) = judged("spawn", "host", 0)
    assert not any(errors(each) for each in found.values())
    costs = []
    for number in range(1, int(stages) + 1, 1 if ISOLATION == "spawn" else 5):
        found, _ = judged("spawn", "host", number)
        assert {recipe for (recipe, _), each in found.items() if errors(each)} == {"victim"}
        costs.append([opset for (_, opset), each in found.items() if errors(each)])
    assert costs == sorted(costs, key=[[12, 13], [12], [13]].index)
    assert len({*map(tuple, costs)}) == 3
    print(f"{len(costs)} of {stages} stages: nothing else was lost")


def test_a_run_that_is_killed_after_any_message_keeps_every_result(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.onnx-ci]\nrecipe-files = ["recipe_*.py"]\njobs = 2\n')
    for at, name in enumerate(RECIPES):
        (tmp_path / f"recipe_{at}.py").write_text(healthy(name))
    done = subprocess.run(
        [sys.executable, end_parent.__file__, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=500, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    assert runs, done.stderr
    *killed, whole = runs
    assert (whole["code"], whole["verdict"], len(whole["kept"])) == (0, "passed", 6)
    assert len(killed) >= 20
    for number, each in enumerate(killed, start=1):
        assert each["code"] == -signal.SIGKILL, number
        assert set(each["kept"]) == set(each["reached"]), number
        assert set(each["kept"].values()) <= {"passed"}
        assert each["verdict"] == "failed"
    assert not [each for each in Path(tmp_path).glob("onnx-ci-*") if each.is_dir()]
    print(f"{len(killed)} messages: nothing was lost")
