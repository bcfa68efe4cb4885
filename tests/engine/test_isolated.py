"""A cell's result is its own: whatever ran before, beside or around it, and in whichever process."""

from __future__ import annotations

import functools
import os
import random
import re
import resource
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path

import pytest
import torch
from toolbox.cells import BATCH, Total
from torch import nn

import onnx_ci
from onnx_ci.engine import cell, scheduler
from onnx_ci.results.json_data import to_json

every_isolation = pytest.mark.parametrize("isolation", ["fork", "spawn"])
pytestmark = pytest.mark.usefixtures("warm_spawned_processes")
linux = pytest.mark.skipif(sys.platform != "linux", reason="cells have processes of their own on Linux only")


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return torch.relu(x * self.weight)


ROWS = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "rows"}}}


@onnx_ci.recipe(**BATCH)
def right():
    return Scale(), (torch.randn(3, 4),)


@onnx_ci.recipe(**BATCH)
def normalised():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()), (torch.randn(3, 4),)


@onnx_ci.recipe(**ROWS)
def wrong():
    return Total(), (torch.randn(3, 4),)


@onnx_ci.recipe(input_names=["x"], output_names=["y"])
def unfit():
    return nn.Linear(4, 8), (torch.randn(3, 5),)


@onnx_ci.recipe(input_names=["x"], output_names=["y"])
def skipped():
    pytest.skip("not today")


RECIPES = (right, normalised, wrong, unfit, skipped)


def judged(report):
    """What the cells of a report found out, by id; times and logs aside."""
    found = {}
    for result in report.cells:
        data = to_json(result)
        for own in ("timings", "log", "cached"):
            del data[own]
        found[result.cell.id] = data
    assert len(found) == len(report.cells)
    return found


@pytest.fixture
def run(tmp_path, monkeypatch):
    """``onnx_ci.run`` without any verdict of an earlier run."""
    monkeypatch.chdir(tmp_path)
    runs = iter(range(1000))
    return lambda recipes, **options: onnx_ci.run(recipes, cache=str(tmp_path / f"cache-{next(runs)}"), **options)


# --- order and selection


@pytest.mark.slow
def test_any_subset_in_any_order_gives_the_same_results(run):
    everything = judged(run(RECIPES, opsets="12-13"))
    assert {data["status"] for data in everything.values()} == {"passed", "failed", "error", "skipped"}
    draw = random.Random(0)
    for jobs in (1, 2, 3):
        recipes = draw.sample(RECIPES, k=draw.randint(2, len(RECIPES)))
        opsets = draw.choice(["12-13", "12", "13"])
        some = judged(run(recipes, opsets=opsets, jobs=jobs))
        assert some
        assert some == {id: everything[id] for id in some}


@pytest.mark.parametrize("jobs", [1, 4])
def test_results_come_in_the_order_of_the_cells(run, jobs):
    report = run(RECIPES[::-1], opsets="12-13", jobs=jobs)
    expected = [(recipe.name, opset) for recipe in RECIPES[::-1] for opset in (12, 13)]
    assert [(result.cell.recipe, result.cell.opset) for result in report.cells] == expected


def test_one_selected_cell_gives_what_it_gives_among_all(run):
    everything = judged(run(RECIPES, opsets="12-13"))
    for id in everything:
        if "opset13" in id:
            assert judged(run(RECIPES, opsets="12-13", select=id.partition("::")[2])) == {id: everything[id]}


@pytest.mark.slow
@every_isolation
def test_dynamo_exports_of_one_model_do_not_touch_each_other(run, isolation):
    """In one process, dynamo cannot export an LSTM with a named dimension a second time as it did at first."""

    def lstm(name):
        @onnx_ci.recipe(
            name=name,
            input_names=["x", "h", "c"],
            output_names=["y", "hn", "cn"],
            dynamic_axes={"x": {0: "sequence"}, "y": {0: "sequence"}},
        )
        def made():
            states = torch.randn(1, 2, 5), torch.randn(1, 2, 5)
            return nn.LSTM(4, 5), (torch.randn(3, 2, 4), states)

        return made

    def plain(data):
        return {key: value for key, value in data.items() if key != "cell"}

    together = judged(run([lstm("one"), lstm("other")], opsets="18-19", isolation=isolation))
    alone = judged(run([lstm("other")], opsets="18-19", isolation=isolation))
    found = [plain(each) for each in (*together.values(), *alone.values())]
    assert found[0::2] == [found[0]] * 3
    assert found[1::2] == [found[1]] * 3
    assert all(each["outputs"] for each in found)


# --- with and without a process


@pytest.mark.slow
@every_isolation
def test_results_are_the_same_without_processes(run, isolation):
    assert judged(run(RECIPES, opsets="9,13", isolation=isolation)) == judged(run(RECIPES, opsets="9,13", isolation="none"))


class Telling(Scale):
    def forward(self, x):
        if torch.jit.is_tracing():
            print(f"exported in process {os.getpid()}.")
        return super().forward(x)


class EndedBySearch(nn.Module):
    """A frozen sum, as in ``Total``, whose process dies when the search for its line runs the model."""

    def __init__(self, end):
        super().__init__()
        self.end = end

    def forward(self, x):
        frames = traceback.walk_stack(None)
        if any(Path(frame.f_code.co_filename).parent.name == "locate" for frame, _ in frames):
            self.end()
        return x + float(x.shape[0])


@every_isolation
@pytest.mark.parametrize(
    ("end", "rule"),
    [(os.abort, "crash"), pytest.param(functools.partial(time.sleep, 1000), "timeout", marks=pytest.mark.slow)],
)
def test_the_end_of_the_search_for_a_line_does_not_cost_the_verdict(run, isolation, end, rule):
    @onnx_ci.recipe(**BATCH)
    def ended():
        return EndedBySearch(end), (torch.randn(3, 4),)

    report = run([ended], opsets="12", isolation=isolation, timeout=20)
    [result] = report.cells
    assert result.status is onnx_ci.Status.FAILED
    assert {each.rule for each in result.findings if each.severity is onnx_ci.Severity.ERROR} == {"baked-value"}
    assert result.outputs
    [note] = [each for each in result.findings if each.rule == rule]
    assert "searched for the cause" in note.message


def test_an_error_in_the_search_for_a_line_does_not_cost_the_verdict(run, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("in the search")

    monkeypatch.setattr(cell, "located", fail)
    monkeypatch.setattr(cell, "with_part_at_fault", fail)
    [result] = run([wrong], opsets="12", isolation="none").cells
    assert result.status is onnx_ci.Status.FAILED
    assert {each.rule for each in result.findings} & {"baked-value", "baked-shape"}
    assert result.log.count("ZeroDivisionError: in the search") == 2


def test_a_recipe_that_stops_the_clocks_has_its_verdict(run):
    @onnx_ci.recipe(**BATCH)
    def stops():
        time.perf_counter = time.monotonic = time.thread_time = time.time = lambda: 0.0  # as freezegun does
        return Scale(), (torch.randn(3, 4),)

    [result] = run([stops], opsets="12", isolation="fork").cells
    assert (result.status, [each.rule for each in result.findings]) == (onnx_ci.Status.PASSED, [])
    assert all(0 <= seconds < 60 for seconds in result.timings.values())


@linux
def test_a_recipe_that_leaves_the_process_in_a_folder_that_is_gone_is_judged(tmp_path):
    @onnx_ci.recipe(**BATCH)
    def moves():
        (tmp_path / "gone").mkdir()
        os.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        return Scale(), (torch.randn(3, 4),)

    (result,) = onnx_ci.run([moves], opsets=17).cells
    assert (result.status, {each.rule for each in result.findings}) == (onnx_ci.Status.PASSED, {"global-state"})


@linux
def test_a_recipe_that_leaves_no_file_to_open_is_told():
    @onnx_ci.recipe
    def greedy():
        resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))
        return nn.Linear(4, 2), (torch.randn(3, 4),)

    (result,) = onnx_ci.run([greedy], opsets=17, isolation="fork").cells
    assert (result.status, [each.rule for each in result.findings]) == (onnx_ci.Status.ERROR, ["recipe-error"])
    assert result.findings[0].message == "the process cannot open another file: Too many open files"


@linux
def test_what_a_model_forks_does_not_go_on_as_its_cell(tmp_path):
    log = tmp_path / "log"
    log.touch()

    class Forks(nn.Module):
        def forward(self, x):
            runs = log.read_text().splitlines()
            if len(runs) < 300:  # should this test fail, the machine must not
                log.write_text("\n".join([*runs, str(os.getpid())]))
                with warnings.catch_warnings(action="ignore"):  # the process has threads
                    child = os.fork()
                if child:
                    os.waitpid(child, 0)
            return x + 1

    @onnx_ci.recipe(**BATCH)
    def forks():
        return Forks(), (torch.randn(3, 4),)

    (result,) = onnx_ci.run([forks], opsets=17).cells
    assert result.status is onnx_ci.Status.PASSED
    runs = log.read_text().splitlines()
    assert len(runs) < 300
    assert len({*runs}) <= 3  # those that prepare it, export it and search for a line


def test_a_cell_has_a_process_of_its_own_unless_told_otherwise(run):
    @onnx_ci.recipe(**BATCH)
    def tells():
        return Telling(), (torch.randn(3, 4),)

    def processes(**options):
        report = run([tells], opsets="12-13", **options)
        assert report.counts == {"passed": 2}
        return [re.search(r"exported in process (\d+)\.", result.log)[1] for result in report.cells]

    here = str(os.getpid())
    assert len({here, *processes(isolation="fork")}) == 3
    assert len({here, *processes(isolation="spawn")}) == 2
    assert processes(isolation="none") == [here, here]


def test_what_a_library_registers_for_good_is_no_change_and_stays(run):
    from torch.onnx._internal.torchscript_exporter.registration import registry
    from torch.onnx._internal.torchscript_exporter.symbolic_opset9 import relu

    @onnx_ci.recipe(**BATCH)
    def imports():
        torch.onnx.register_custom_op_symbolic("a_library::relu", relu, 9)  # what importing torchvision does, once
        return Scale(), (torch.randn(3, 4),)

    try:
        report = run([imports], opsets=13, isolation="none")
        assert registry.is_registered_op("a_library::relu", 13)
    finally:
        torch.onnx.unregister_custom_op_symbolic("a_library::relu", 9)
    assert [each.rule for each in report.cells[0].findings] == []


@linux
def test_a_recipe_changes_nothing_in_the_process_that_asked(run, monkeypatch):
    monkeypatch.delenv("LEFT_BY_A_RECIPE", raising=False)

    @onnx_ci.recipe(**BATCH)
    def changes():
        model, args = Scale(), (torch.randn(3, 4),)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.use_deterministic_algorithms(True)
        torch.onnx.register_custom_op_symbolic("aten::relu", lambda g, x: g.op("Abs", x), 9)
        torch.manual_seed(123)
        random.seed(123)
        os.environ["LEFT_BY_A_RECIPE"] = "1"
        os.chdir("/")
        return model, args

    def state():
        return (
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_rng_state().tolist(),
            random.getstate(),
            os.environ.get("LEFT_BY_A_RECIPE"),
            Path.cwd(),
        )

    before = state()
    report = run([changes, right], opsets=13)
    assert state() == before
    assert judged(report)[report.cells[1].cell.id] == judged(run([right], opsets=13))[report.cells[1].cell.id]
    notes = [each for each in report.cells[0].findings if each.rule == "global-state"]
    assert len(notes) == 1
    assert notes[0].severity == "note"


@linux
@pytest.mark.parametrize(("usable", "threads"), [(1, 1), (64, 2)])
def test_a_cell_has_no_more_threads_than_its_container_has_cores(run, monkeypatch, usable, threads):
    monkeypatch.setattr(scheduler, "usable_cores", lambda: usable)

    @onnx_ci.recipe
    def tells():
        raise ValueError(f"{torch.get_num_threads()} threads")

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        report = run([tells], opsets=13)
    finally:
        torch.set_num_threads(before)
    assert f"ValueError: {threads} threads (" in report.cells[0].findings[0].message


@pytest.mark.slow
@every_isolation
def test_a_script_needs_no_guard_for_its_own_recipes(project, isolation):
    project.write(
        "script.py",
        f"""
        import onnx_ci
        import torch

        class Doubled(torch.nn.Module):
            def forward(self, x):
                return 2 * x

        def make(name):
            @onnx_ci.recipe(name=name, input_names=["x"], output_names=["y"], opsets="12-13")
            def made():
                return Doubled(), (torch.randn(3, 4),)

            return made

        print(onnx_ci.run([make("one"), make("other")], isolation={isolation!r}, cache="off").counts)
        """,
    )
    done = project.command("script")
    assert (done.returncode, done.stdout.strip()) == (0, "{'passed': 4}"), done.stderr


@pytest.mark.slow
@linux
def test_a_parent_that_used_its_threads_does_not_hang_its_cells(project):
    """OpenMP's threads do not survive a fork: a child that waits for them waits for ever."""
    project.write(
        "threaded.py",
        """
        import torch
        import onnx_ci

        torch.set_num_threads(4)
        matrix = torch.randn(1500, 1500)
        (matrix @ matrix).tanh().sum().item()

        @onnx_ci.recipe(input_names=["x"], output_names=["y"], opsets="12-13", timeout=60)
        def wide():
            return torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Tanh()), (torch.randn(512, 1024),)

        if __name__ == "__main__":
            report = onnx_ci.run([wide], isolation="fork", jobs=2)
            (matrix @ matrix).tanh().sum().item()
            print(report.counts, [each.message for result in report.cells for each in result.findings])
        """,
    )
    done = subprocess.run(
        [sys.executable, "threaded.py"], cwd=project.root, capture_output=True, text=True, timeout=150, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "{'passed': 2} []"), done.stderr


@linux
def test_a_model_that_is_read_from_a_file_does_not_crash_its_cell(tmp_path):
    """The memory of what torch.load reads cannot be shared between copies that are written to, as other weights' can."""
    torch.save(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)), tmp_path / "net.pt")
    loaded = onnx_ci.recipe(name="loaded")(lambda: (torch.load(tmp_path / "net.pt", weights_only=False), (torch.randn(3, 4),)))
    (result,) = onnx_ci.run([loaded], opsets=13, isolation="fork").cells
    assert [each.rule for each in result.findings if each.severity == "error"] == []


# --- the file


@pytest.mark.parametrize("opset", [13, pytest.param(18, marks=pytest.mark.slow)])
def test_the_kept_file_is_what_the_plain_exporter_writes(project, opset):
    project.write(
        "net.py",
        """
        import pathlib
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

            def forward(self, x):
                return self.second(torch.relu(self.first(x)))

        FILE = pathlib.Path(__file__).with_name("net.pt")

        def make():
            model = Net()
            model.load_state_dict(torch.load(FILE, weights_only=True))
            return model, (torch.randn(3, 4),)

        if __name__ == "__main__":
            torch.save(Net().state_dict(), FILE)
        """,
    )
    project.write(
        "plain.py",
        f"""
        import net
        import torch

        model, args = net.make()
        axes = {{"x": {{0: "batch"}}, "y": {{0: "batch"}}}}
        declared = {{"dynamic_axes": axes}} if {opset} < 18 else {{"dynamic_shapes": ({{0: "batch"}},), "verbose": False}}
        torch.onnx.export(
            model.eval(), args, "plain.onnx", dynamo={opset >= 18}, opset_version={opset},
            input_names=["x"], output_names=["y"], **declared,
        )
        """,
    )
    project.write(
        "onnx_recipes.py",
        """
        import net
        import onnx_ci

        @onnx_ci.recipe(
            input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}}, weights="trained"
        )
        def trained():
            return net.make()
        """,
    )
    for words in (["net"], ["plain"], ["onnx_ci", "run", f"--opsets={opset}", "--artifacts=kept"]):
        done = project.command(*words)
        assert done.returncode == 0, done.stdout + done.stderr
    kept = project.root / "kept" / "trained" / f"opset{opset}-cpu.onnx"
    assert kept.read_bytes() == (project.root / "plain.onnx").read_bytes()
