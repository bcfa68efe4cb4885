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
from chaos import end_parent
from chaos.faults import healthy
from toolbox.cells import recipe_of

from onnx_ci.config.settings import load_settings
from onnx_ci.engine import isolated
from onnx_ci.matrix.plan import plan_cell
from onnx_ci.results.records import Cell, Severity

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cells have processes of their own on Linux only")


KEYWORDS = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
RECIPES = {name: recipe_of(torch.relu, torch.randn(3, 4), name=name, **KEYWORDS) for name in ("first", "victim", "last")}


def cells(tmp_path):
    settings = load_settings(tmp_path, flags={"skip_stages": "observability"})
    for name, recipe in RECIPES.items():
        for opset in (12, 13):
            cell = Cell(source="recipes.py", recipe=name, exporter="torchscript", opset=opset, device="cpu")
            yield plan_cell(cell, recipe, settings)


@pytest.fixture
def kill_at(monkeypatch, tmp_path):
    """Kills the victim's host, or its cell at opset 13, as its ``number``-th stage begins, and notes how many begin there."""

    def arrange(place, number):
        serve, run_cell, report = isolated._serve, isolated._run_cell, isolated.report_stages
        here = {"place": "", "count": 0}

        def serve_and_note(upcoming, *others):
            here["place"] = "host" if upcoming[0].planned.cell.recipe == "victim" else ""
            serve(upcoming, *others)

        def run_and_note(engine, job, *others):
            is_it = job.planned.cell.recipe == "victim" and job.planned.cell.opset == 13
            here.update(place="cell" if is_it else "", count=0)
            run_cell(engine, job, *others)

        def report_and_die(listener):
            def listen(stage):
                listener(stage)
                if here["place"] == place:
                    here["count"] += 1
                    (tmp_path / "count").write_text(f"{here['count']} {stage}")
                    if here["count"] == number:
                        os.kill(os.getpid(), signal.SIGKILL)

            report(listen)

        monkeypatch.setattr(isolated, "_serve", serve_and_note)
        monkeypatch.setattr(isolated, "_run_cell", run_and_note)
        monkeypatch.setattr(isolated, "report_stages", report_and_die)

    return arrange


def errors(evidence):
    return [each.rule for each in evidence.findings if each.severity is Severity.ERROR]


def judged(tmp_path):
    planned = list(cells(tmp_path))
    with isolated.open_engine(load_settings(tmp_path, flags={"jobs": 2})) as engine:
        return {(each.cell.recipe, each.cell.opset): each for each in engine.run(planned)}


@pytest.mark.parametrize(("place", "killed"), [("host", [12, 13]), ("cell", [13])])
def test_a_process_that_is_killed_as_any_stage_begins_costs_its_own_cells(place, killed, kill_at, tmp_path, monkeypatch):
    kill_at(place, 0)
    assert not any(errors(each) for each in judged(tmp_path).values())
    stages = int((tmp_path / "count").read_text().split()[0])
    assert stages >= 4
    for number in range(1, stages + 1):
        monkeypatch.undo()
        kill_at(place, number)
        for (recipe, opset), evidence in judged(tmp_path).items():
            dies = recipe == "victim" and opset in killed
            assert errors(evidence) == (["crash"] if dies else []), (number, recipe, opset)
            if dies:
                assert evidence.findings[0].details["stage"] == (tmp_path / "count").read_text().split()[1]
    print(f"{stages} stages of a {place}: nothing else was lost")


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
