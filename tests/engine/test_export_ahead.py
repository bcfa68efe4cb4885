"""An export that runs while its recipe is prepared: it changes when a result comes, and nothing else."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import time

import pytest
import torch
from torch import nn

import onnx_ci
from onnx_ci.collection.discovery import Found
from onnx_ci.config.settings import load_settings
from onnx_ci.engine.hosts import open_engine
from onnx_ci.matrix.plan import plan
from onnx_ci.results.json_data import to_json

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="where nothing is forked, no export runs ahead")


class Deep(nn.Module):
    """A model of so many modules that its export is worth a process. It notes in which process it is run and exported."""

    def __init__(self, folder, act=lambda model: None):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))
        self.folder, self.act = folder, act

    def forward(self, x):
        if torch.onnx.is_in_onnx_export():
            with (self.folder / "exports").open("a") as file:
                print(os.getpid(), file=file)
            self.act(self)
        else:
            (self.folder / "ran").mkdir(exist_ok=True)
            (self.folder / "ran" / str(os.getpid())).touch()
        return self.layers(x)


def exported_in(folder):
    return [int(line) for line in (folder / "exports").read_text().split()]


@pytest.fixture
def judge(tmp_path, monkeypatch):
    """Run a recipe with the model; gives what the cells found out, times and logs aside."""
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    numbers = itertools.count()

    def run(make=Deep, *, cores=2, exporter="torchscript", **options):
        torch.set_num_threads(cores)
        folder = tmp_path / str(next(numbers))
        folder.mkdir()

        @onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "n"}, "y": {0: "n"}}, exporter=exporter)
        def deep():
            return make(folder), (torch.randn(3, 4),)

        report = onnx_ci.run([deep], **{"opsets": "13", "cache": "off", **options})
        return folder, report.cells

    yield run
    torch.set_num_threads(before)


def plain(cells):
    return [{key: value for key, value in to_json(cell).items() if key not in ("timings", "log")} for cell in cells]


@pytest.mark.parametrize("opsets", ["13", "12-14"])
def test_the_first_export_has_a_process_of_its_own_and_the_results_are_the_same(judge, opsets):
    folder, cells = judge(opsets=opsets)
    assert len(exported_in(folder)) == len(cells)
    assert not {str(pid) for pid in exported_in(folder)[:1]} & {path.name for path in (folder / "ran").iterdir()}
    assert [cell.status for cell in cells] == ["passed"] * len(cells)
    assert all(cell.timings["export"] > 0 for cell in cells)
    for others in ({"isolation": "none"}, {"cores": 1}):
        assert plain(judge(opsets=opsets, **others)[1]) == plain(cells)


def test_on_one_core_the_export_waits(judge):
    folder, _ = judge(cores=1)
    assert {path.name for path in (folder / "ran").iterdir()} == {str(pid) for pid in exported_in(folder)}


def test_dynamo_runs_ahead_too(judge):
    folder, cells = judge(exporter="dynamo", opsets="18")
    assert cells[0].status == "passed"
    assert not {str(pid) for pid in exported_in(folder)} & {path.name for path in (folder / "ran").iterdir()}
    assert plain(judge(exporter="dynamo", opsets="18", isolation="none")[1]) == plain(cells)


def test_what_the_export_prints_and_logs_is_in_the_log_once(judge):
    def talk(model):
        print("printed by the model")
        logging.getLogger("model").warning("logged by the model %s", "." * 9000)  # more than a buffer takes

    _, (cell,) = judge(lambda folder: Deep(folder, talk))
    assert (cell.log.count("printed by"), cell.log.count("logged by")) == (1, 1)


@pytest.mark.slow
def test_an_export_that_changes_the_model_is_reported_as_ever(judge):
    def overwrite(model):
        with torch.no_grad():
            model.layers[0].bias.add_(1)

    _, cells = judge(lambda folder: Deep(folder, overwrite))
    assert "impure-model" in {each.rule for each in cells[0].findings}
    assert plain(judge(lambda folder: Deep(folder, overwrite), isolation="none")[1]) == plain(cells)


def test_an_export_that_fails_is_repeated_where_its_error_can_be_read(judge):
    def fail(model):
        raise ValueError("no such luck")

    folder, cells = judge(lambda folder: Deep(folder, fail))
    assert "no such luck" in cells[0].findings[0].message
    assert len(exported_in(folder)) == 2
    assert plain(judge(lambda folder: Deep(folder, fail), isolation="none")[1]) == plain(cells)


class Counting(Deep):
    """Each run affects the next one, so an export may depend on how often the model ran before."""

    def forward(self, x):
        self.runs = getattr(self, "runs", 0) + 1
        return super().forward(x) * self.runs


def test_what_ran_ahead_does_not_count_if_runs_affect_each_other(judge):
    folder, cells = judge(Counting)
    assert "impure-model" in {each.rule for each in cells[0].findings}
    ran = {path.name for path in (folder / "ran").iterdir()}
    assert str(exported_in(folder)[-1]) in ran
    assert plain(judge(Counting, isolation="none")[1]) == plain(cells)


def at_opset(opset, act):
    """An act of the model, but only where it is exported at this opset."""

    def chosen(model):
        from torch.onnx._internal.torchscript_exporter._globals import GLOBALS

        if opset == GLOBALS.export_onnx_opset_version:
            act(model)

    return chosen


@pytest.mark.parametrize("opsets", ["12", "12-13"])
def test_a_process_that_dies_costs_its_own_cell(judge, opsets):
    die = at_opset(12, lambda model: os.kill(os.getpid(), signal.SIGSEGV))
    _, (first, *others) = judge(lambda folder: Deep(folder, die), opsets=opsets)
    (found,) = first.findings
    assert (found.rule, found.message) == ("crash", "the process was killed by SIGSEGV while exporting")
    assert [cell.status for cell in others] == ["passed"] * len(others)


@pytest.mark.slow
@pytest.mark.parametrize("opsets", ["12", "12-13"])
def test_an_export_that_hangs_is_a_timeout(judge, opsets):
    hang = at_opset(12, lambda model: time.sleep(60))
    _, (first, *others) = judge(lambda folder: Deep(folder, hang), opsets=opsets, timeout=3)
    (found,) = first.findings
    assert (found.rule, found.message) == ("timeout", "the process did not end within 3 s while exporting")
    assert [cell.status for cell in others] == ["passed"] * len(others)


@pytest.mark.slow
@pytest.mark.parametrize("opsets", ["12", "12-13"])
@pytest.mark.parametrize("how", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: time.sleep(60)], ids=["killed", "hangs"])
def test_a_process_that_dies_because_it_runs_ahead_costs_nothing(judge, opsets, how):
    def act(model):
        if len(exported_in(model.folder)) == 1:
            how()

    _, cells = judge(lambda folder: Deep(folder, act), opsets=opsets, timeout=3)
    assert [cell.status for cell in cells] == ["passed"] * len(cells)


def test_a_cell_that_runs_again_exports_again(tmp_path, monkeypatch):
    """As with plugins of pytest that repeat what fails."""
    monkeypatch.chdir(tmp_path)
    recipe = onnx_ci.recipe(name="deep", input_names=["x"])(lambda: (Deep(tmp_path), (torch.randn(3, 4),)))
    settings = load_settings(tmp_path, flags={"opsets": "12-13", "cache": "off"})
    first, other = plan([Found(recipe=recipe, source="here")], settings).cells
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with open_engine(settings) as engine:
        engine.expect([first, other])
        results = [engine.run_cell(cell) for cell in (first, other, first)]
    torch.set_num_threads(before)
    assert [result.findings for result in results] == [()] * 3
    assert len(exported_in(tmp_path)) == 3


def test_a_file_that_only_the_export_opened_counts(project):
    project.recipes("""
        import pathlib

        class Exported(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(20)))

            def forward(self, x):
                factor = pathlib.Path("factor.txt").read_text() if torch.onnx.is_in_onnx_export() else 2
                return self.layers(x) * int(factor)

        @onnx_ci.recipe(input_names=["x"])
        def exported():
            return Exported(), (torch.randn(3),)
    """)
    project.write("factor.txt", "2")

    def run():
        return project.command("onnx_ci", "run", "--opsets=13", "--cache=cache", "-q").stdout

    assert "1 passed in" in run()
    assert "1 passed, 1 of them cached" in run()
    project.write("factor.txt", "3")
    assert "1 failed" in run()
