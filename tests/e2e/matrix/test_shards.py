"""Shards: that they are even parts of the whole, the same on every machine, in the command, in pytest and in Python."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolbox.projects import RIGHT

import onnx_ci
from onnx_ci import ConfigurationError
from onnx_ci.config.values import parse_shard
from onnx_ci.matrix import shards
from onnx_ci.matrix.github_matrix import jobs_by_opset, jobs_by_shard
from onnx_ci.matrix.shards import Durations, read_durations
from onnx_ci.results.records import Cell, CellResult, Status
from onnx_ci.results.run_report import RunReport


def cells_of(*groups, device="cpu"):
    """Cells of recipes a, b, c …, as many of each as are named."""
    return [
        Cell(source="r.py", recipe=chr(ord("a") + number), exporter="torchscript", opset=opset, device=device)
        for number, size in enumerate(groups)
        for opset in range(9, 9 + size)
    ]


def partition(cells, count, seconds):
    """The parts of cells that took so many seconds, none of them for preparations."""
    return shards.partition(cells, count, Durations(seconds=seconds))


def short(parts):
    """``a2 b1`` for a part with two cells of a and one of b."""
    return [" ".join(f"{name}{sum(c.recipe == name for c in part)}" for name in dict.fromkeys(c.recipe for c in part)) for part in parts]  # fmt: skip


def seconds_of(part, seconds):
    return sum(seconds.get(cell.id, 1) for cell in part)


@given(
    groups=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    count=st.integers(1, 12),
    rng=st.randoms(use_true_random=True),
)
def test_shards_are_even_parts_of_the_whole_whatever_the_order(groups, count, rng):
    cells = cells_of(*groups)
    seconds = {cell.id: rng.choice([1, 2, 30, rng.randint(1, 1000) / 8]) for cell in cells}
    parts = partition(cells, count, seconds)
    assert sorted(cell.id for part in parts for cell in part) == sorted(cell.id for cell in cells)
    assert len(parts) == min(count, len(cells))
    assert all(parts)
    for part in parts:
        assert [cells.index(cell) for cell in part] == sorted(cells.index(cell) for cell in part)

    of_recipe = {cell.recipe: [other for other in cells if other.recipe == cell.recipe] for cell in cells}
    loads = [seconds_of(part, seconds) for part in parts]
    largest = max(seconds.values())
    fair = max(sum(seconds.values()) / count, largest)
    assert max(loads) <= 1.1 * fair + largest
    for group in of_recipe.values():
        if seconds_of(group, seconds) < fair and max(loads) < fair:  # nothing is split that need not be
            assert sum(any(cell in part for cell in group) for part in parts) == 1

    shuffled = rng.sample(cells, len(cells))
    assert [set(part) for part in partition(shuffled, count, seconds)] == [set(part) for part in parts]


def test_groups_stay_together_unless_one_is_more_than_a_fair_part():
    assert short(partition(cells_of(9, 9, 9, 9), 2, {})) == ["a9 c9", "b9 d9"]
    assert short(partition(cells_of(9, 9, 9, 9), 3, {})) == ["a9 d9", "b9", "c9"]
    assert short(partition(cells_of(9, 9, 9, 9), 6, {})) == ["a6", "b6", "c6", "d6", "a3 c3", "b3 d3"]
    assert short(partition(cells_of(9), 3, {})) == ["a3", "a3", "a3"]
    assert short(partition(cells_of(6, 1, 1), 2, {})) == ["a4", "a2 b1 c1"]


def test_one_recipe_on_two_devices_is_two_groups():
    cells = [*cells_of(3), *cells_of(3, device="cuda")]
    assert [{cell.device for cell in part} for part in partition(cells, 2, {})] == [{"cpu"}, {"cuda"}]


def test_recorded_seconds_weigh_and_unknown_cells_count_as_the_mean():
    cells = cells_of(1, 1, 1, 1)
    assert short(partition(cells, 2, {"r.py::a::opset9-cpu": 30.0})) == ["a1 c1", "b1 d1"]
    assert short(partition(cells, 2, {"r.py::a::opset9-cpu": 30.0, "r.py::b::opset9-cpu": 2.0})) == ["a1 b1", "c1 d1"]
    assert short(partition(cells, 2, {cell.id: 1 + 9 * (cell.recipe == "d") for cell in cells})) == ["d1", "a1 b1 c1"]
    assert short(partition(cells, 2, {"r.py::gone::opset9-cpu": 30.0})) == ["a1 c1", "b1 d1"]


def test_a_cell_that_is_more_than_a_fair_part_leaves_no_shard_empty():
    cells = cells_of(1, 4)
    assert short(partition(cells, 3, {"r.py::a::opset9-cpu": 1000.0, **{c.id: 1.0 for c in cells[1:]}})) == ["a1", "b2", "b2"]


def test_cells_that_took_no_time_at_all_are_shared_out_too():
    cells = cells_of(2, 2)
    assert short(partition(cells, 2, {cell.id: 0.0 for cell in cells})) == ["a2", "b2"]


def test_an_unknown_cell_counts_as_the_others_of_its_recipe():
    cells = cells_of(2, 1, 1, 1, 9)
    took = {cell.id: {"a": 100.0, "e": 4.0}.get(cell.recipe, 60.0) for cell in cells if cell != cells[1]}
    # a takes 200, not 100 and the mean of all.
    assert short(partition(cells, 2, took)) == ["a2", "b1 c1 d1 e9"]


def test_a_cell_of_an_unknown_recipe_counts_as_the_others_of_its_opset():
    known = [Cell(source="r.py", recipe="a", exporter="torchscript", opset=opset, device="cpu") for opset in (9, 17)]
    new = [
        Cell(source="r.py", recipe=name, exporter="torchscript", opset=17 if name == "f" else 9, device="cpu")
        for name in "cdef"
    ]
    # f takes 10 and the others 1, not all of them 5.5.
    assert short(partition([*known, *new], 2, {known[0].id: 1.0, known[1].id: 10.0})) == ["a2 d1", "c1 e1 f1"]


def test_a_recipe_is_split_if_the_parts_would_be_uneven_otherwise_and_durations_are_known():
    cells = cells_of(9, 9, 9, 9)
    assert short(partition(cells, 3, {})) == ["a9 d9", "b9", "c9"]
    assert sorted(map(len, partition(cells, 3, {cell.id: 2.0 for cell in cells}))) == [11, 12, 13]


def durations_of(own, preparations):
    """Durations as a run records them: the first cell of a recipe took what it shares with the others, too."""
    seconds, shared, seen = {}, {}, set()
    for cell, took in own.items():
        shared[cell.id] = 0.0 if cell.recipe in seen else preparations[cell.recipe]
        seconds[cell.id] = took + shared[cell.id]
        seen.add(cell.recipe)
    return Durations(seconds=seconds, preparation=shared)


def test_a_part_with_some_cells_of_a_recipe_pays_for_its_preparation():
    cells = cells_of(4, 4, 1)
    own = dict.fromkeys(cells, 1.0)
    cheap, dear = (durations_of(own, {"a": seconds, "b": 0.0, "c": 0.0}) for seconds in (2.0, 8.0))
    assert short(shards.partition(cells, 3, cheap)) == ["a2 c1", "a2", "b4"]  # 5, 4 and 4 seconds; not split, 6, 4 and 1
    assert short(shards.partition(cells, 2, dear)) == ["a4", "b4 c1"]  # 12 and 5; split, 11 and 14 at best


def test_what_each_cell_prepares_for_itself_is_not_shared():
    cells = cells_of(4, 1)
    seconds = {cell.id: 10.0 if cell.recipe == "a" else 1.0 for cell in cells}
    of_each = Durations(seconds=seconds, preparation={cell.id: 9.0 for cell in cells if cell.recipe == "a"})
    assert short(shards.partition(cells, 2, of_each)) == short(partition(cells, 2, seconds)) == ["a2 b1", "a2"]


def fair_share(own, preparations, count):
    """The least load of the parts if cells could be cut anywhere: a part pays for each preparation that it needs."""
    of_recipe = {}
    for cell, took in own.items():
        of_recipe.setdefault(cell.recipe, []).append(took)
    low, high = (
        max(max(each) + preparations[name] for name, each in of_recipe.items()),
        sum(own.values()) + sum(preparations.values()),
    )
    for _ in range(40):
        load = (low + high) / 2
        parts = {name: math.ceil(sum(each) / (load - preparations[name])) for name, each in of_recipe.items()}
        needed = sum(own.values()) + sum(preparations[name] * number for name, number in parts.items())
        low, high = (low, load) if needed <= count * load else (load, high)
    return high


@pytest.mark.parametrize("count", [2, 3, 5, 8, 16])
def test_very_uneven_recipes_are_shared_out_within_a_tenth(count):
    rng = random.Random(count)
    own, preparations = {}, {}
    for number in range(300):
        usual = rng.lognormvariate(0, 1) * (100 if number % 40 == 0 else 1)
        preparations[f"n{number}"] = usual * rng.uniform(0.2, 0.8)
        for opset in range(9, 18):
            cell = Cell(source=f"{number}.py", recipe=f"n{number}", exporter="torchscript", opset=opset, device="cpu")
            own[cell] = usual * rng.lognormvariate(-1, 0.3)
    parts = shards.partition(own, count, durations_of(own, preparations))
    loads = [
        sum(own[cell] for cell in part) + sum(preparations[name] for name in {cell.recipe for cell in part}) for part in parts
    ]
    assert max(loads) <= 1.1 * fair_share(own, preparations, count)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("0/5", "there is no shard 0 of 5; shards are numbered 1/5 to 5/5"),
        ("6/5", "there is no shard 6 of 5; shards are numbered 1/5 to 5/5"),
        ("1/0", "'1/0' is not a shard: there must be at least one"),
        ("a/b", "'a/b' is not a shard; write 2/5"),
        ("2", "'2' is not a shard; write 2/5"),
        ("-1/5", "'-1/5' is not a shard"),
        ("1/5/2", "'1/5/2' is not a shard"),
        (2, "2 is not a shard; write 2/5"),
    ],
)
def test_a_wrong_shard_says_what_to_write(spec, said):
    with pytest.raises(ValueError, match=r".") as caught:
        parse_shard(spec)
    assert said in str(caught.value)


def test_a_shard_reads_back_what_it_shows():
    assert str(parse_shard(" 2 / 5 ")) == "2/5"
    assert parse_shard(parse_shard("2/5")) == parse_shard("2/5")


# --- durations


def report_with(seconds, **changes):
    """The report of an earlier run, as JSON data."""
    results = tuple(
        CellResult(cell=Cell.from_id(id), status=Status.PASSED, timings={} if took is None else {"prepare": took / 2, "run": took / 2})
        for id, took in seconds.items()
    )  # fmt: skip
    return {**RunReport(environment={}, settings={}, cells=results).as_json(), **changes}


def test_a_cells_seconds_are_the_sum_of_its_timings_and_a_skipped_cell_has_none(tmp_path):
    path = tmp_path / "old.json"
    path.write_text(json.dumps(report_with({"r.py::a::opset9-cpu": 3.0, "r.py::a::opset9-cuda": None})))
    assert read_durations(path).seconds == {"r.py::a::opset9-cpu": 3.0}


def test_how_much_of_a_cells_seconds_was_preparation_is_read_from_its_stages_except_on_a_gpu(tmp_path):
    path = tmp_path / "old.json"
    timings = {"build": 1.0, "reference": 0.5, "export": 2.0, "run": 0.25}
    results = (
        CellResult(cell=cell, status=Status.PASSED, timings=timings) for cell in (*cells_of(1), *cells_of(1, device="cuda"))
    )
    path.write_text(json.dumps(RunReport(environment={}, settings={}, cells=tuple(results)).as_json()))
    assert read_durations(path) == Durations(
        seconds={"r.py::a::opset9-cpu": 3.75, "r.py::a::opset9-cuda": 3.75},
        preparation={"r.py::a::opset9-cpu": 1.5, "r.py::a::opset9-cuda": 0.0},
    )


def test_durations_may_be_a_folder_and_the_longest_time_of_a_cell_counts(tmp_path):
    one, other = "r.py::a::opset9-cpu", "r.py::b::opset9-cpu"
    for name, seconds in (("x/old.json", {one: 3.0, other: 1.0}), ("y/old.json", {one: 5.0}), ("z.json", {one: 4.0})):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(report_with(seconds)))
    assert read_durations(tmp_path).seconds == {one: 5.0, other: 1.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "old.json cannot be read: No such file or directory"),
        ("{", "old.json is truncated or not JSON"),
        ("{}", "old.json is not a report that this onnx-ci can read: it has no 'schema_version'"),
        (json.dumps(report_with({}, schema_version=7)), "it has schema_version 7, but this onnx-ci reads 1"),
        (json.dumps(report_with({"r.py::a::opset9-cpu": -1.0})), "cells[0].timings are not times in seconds"),
    ],
)
def test_durations_that_are_no_report_name_the_file_and_the_remedy(tmp_path, text, said):
    path = tmp_path / "old.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_durations(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith("durations: ")
    assert "write one with onnx-ci run --report=PATH, or leave durations out" in str(caught.value)


# --- jobs


def test_a_job_for_each_opset_and_device():
    jobs = jobs_by_opset([*cells_of(2, 1), *cells_of(1, device="cuda:1")], "gpu")
    assert [(job.as_json(), len(job.cells)) for job in jobs] == [
        ({"id": "opset9-cpu", "opset": 9, "device": "cpu", "runner": "ubuntu-latest"}, 2),
        ({"id": "opset10-cpu", "opset": 10, "device": "cpu", "runner": "ubuntu-latest"}, 1),
        ({"id": "opset9-cuda-1", "opset": 9, "device": "cuda:1", "runner": "gpu"}, 1),
    ]


def test_jobs_for_shards_have_the_cells_that_the_shards_have():
    cells = [*cells_of(4, 2), *cells_of(2, device="cuda")]
    jobs = jobs_by_shard(cells, "gpu", shards=3, durations=Durations())
    assert [job.as_json() for job in jobs] == [
        {"id": f"shard-{n}-of-3-cpu", "shard": f"{n}/3", "device": "cpu", "runner": "ubuntu-latest"} for n in (1, 2, 3)
    ] + [{"id": f"shard-{n}-of-2-cuda", "shard": f"{n}/2", "device": "cuda", "runner": "gpu"} for n in (1, 2)]
    of_cpu = [cell for cell in cells if cell.device == "cpu"]
    assert tuple(job.cells for job in jobs if job.device == "cpu") == partition(of_cpu, 3, {})


def test_more_jobs_than_github_takes_are_refused():
    with pytest.raises(ConfigurationError, match=r"297 jobs, but GitHub allows 256; .*--shards=N"):
        jobs_by_opset([cell for n in range(3) for cell in cells_of(99, device=f"cuda:{n}")], "gpu")
    cells = [*cells_of(99, 99), *cells_of(99, device="cuda")]
    with pytest.raises(ConfigurationError, match=r"297 jobs, .* use --shards=128 or fewer"):
        jobs_by_shard(cells, "gpu", shards=198, durations=Durations())


# --- the front-ends

NAMES = ("one", "two", "three")


@pytest.fixture
def three(project):
    """A project with three recipes in two files: six cells at opsets 12 and 13."""
    project.write("pyproject.toml", '[tool.onnx-ci]\nrecipe-files = ["*_recipes.py"]\n')
    project.recipes(*(RIGHT.replace("def right", f"def {name}") for name in NAMES[:2]))
    project.recipes(RIGHT.replace("def right", "def three"), name="deep/more_recipes.py")
    project.write("old.json", json.dumps(report_with({ID[name].format(12): 3.5 if name == "two" else 2 for name in NAMES})))
    return project


ID = {name: f"{'deep/more' if name == 'three' else 'onnx'}_recipes.py::{name}::opset{{}}-cpu" for name in NAMES}


def listed(project, *arguments):
    return project.command("onnx_ci", "list", "--opsets=12-13", *arguments).stdout.splitlines()


def collected(project, *arguments):
    flags = ["--onnx-export", "--onnx-opsets=12-13", "--co", "-q", "-p", "no:cacheprovider"]
    done = project.command("pytest", *flags, *arguments)
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.slow
def test_the_shards_of_the_command_and_of_pytest_are_the_same_and_are_everything(three):
    durations = "durations=old.json"
    shards = [listed(three, f"--shard={n}/2", f"--{durations}") for n in (1, 2)]
    # Opset 13, which is not in the report, counts as the mean.
    assert shards == [
        [ID["two"].format(12), ID["two"].format(13)],
        [ID[n].format(o) for n in ("one", "three") for o in (12, 13)],
    ]
    for n, shard in enumerate(shards, start=1):
        assert sorted(collected(three, f"--onnx-shard={n}/2", f"--onnx-{durations}")) == sorted(shard)
    unweighed = [listed(three, f"--shard={n}/2") for n in (1, 2)]
    assert unweighed != shards
    assert sorted(id for shard in unweighed for id in shard) == sorted(listed(three))


@pytest.mark.slow
def test_run_runs_its_shard_and_says_so_in_the_report(three):
    done = three.command("onnx_ci", "run", "--opsets=13", "--report=r.json", ONNX_CI_SHARD="2/2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "shard 2/2: 1 of 3 cells" in done.stdout
    report = json.loads((three.root / "r.json").read_text())
    assert [cell["id"] for cell in report["cells"]] == [ID["one"].format(13)]
    assert report["settings"]["shard"] == {
        "value": "2/2",
        "origin": {"source": "environment", "given_as": "ONNX_CI_SHARD"},
    }
    assert report["settings"]["durations"] == {"value": None, "origin": {"source": "default", "given_as": "default"}}
    assert (three.command("onnx_ci", "run", "--opsets=13", "--shard=1/2", "--durations=r.json").returncode) == 0


@pytest.mark.slow
def test_pytest_runs_its_shard_with_and_without_workers(three):
    arguments = ["-p", "no:cacheprovider", "--onnx-export", "--onnx-opsets=13", "--onnx-report=r.json"]
    seen = []
    for shard, workers in (("1/2", ["-n", "2"]), ("2/2", [])):
        done = three.command("pytest", f"--onnx-shard={shard}", *arguments, *workers)
        assert done.returncode == 0, done.stdout
        assert f"shard {shard}" in done.stdout
        report = json.loads((three.root / "r.json").read_text())
        assert (report["summary"]["verdict"], report["not_run"]) == ("passed", [])
        seen += [cell["id"] for cell in report["cells"]]
    assert "2 deselected" in done.stdout
    assert sorted(seen) == sorted(ID[name].format(13) for name in NAMES)


@pytest.mark.slow
def test_a_cell_is_in_the_same_shard_whatever_narrows_the_run(three):
    three.write("test_own.py", "def test_own(): ...")
    first = collected(three, "--onnx-shard=1/2")
    assert "test_own.py::test_own" in first
    for name in ("one", "two"):
        ids = [ID[name].format(opset) for opset in (12, 13)]
        assert collected(three, "--onnx-shard=1/2", "-k", name) == [id for id in first if id in ids]
    every = [ID[name].format(opset) for name in reversed(NAMES) for opset in (13, 12)]
    assert collected(three, "--onnx-shard=1/2", *every) == [id for id in every if id in first]


def test_cells_of_other_shards_are_no_success(three):
    arguments = ["--onnx-export", "--onnx-opsets=13", "--onnx-shard=2/2", "-p", "no:cacheprovider"]
    done = three.command("pytest", *arguments, ID["two"].format(13), ID["three"].format(13))
    assert done.returncode == 5, done.stdout
    assert "nothing was verified: no selected cell is in shard 2/2" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_an_empty_shard_is_exit_5_in_pytest_and_says_why(three, workers):
    done = three.command("pytest", "--onnx-export", "--onnx-opsets=13", "--onnx-shard=5/5", "-p", "no:cacheprovider", *workers)
    assert done.returncode == 5
    assert "nothing was verified: shard 5/5 is empty: there are only 3 cells; use 3 shards or fewer, such as 1/3" in done.stdout


@pytest.mark.parametrize("command", ["run", "list"])
def test_an_empty_shard_is_exit_5_in_the_command_and_says_why(three, command):
    done = three.command("onnx_ci", command, "--opsets=13", "--shard=5/5")
    assert done.returncode == 5
    assert "shard 5/5 is empty: there are only 3 cells; use 3 shards or fewer, such as 1/3" in done.stderr
    alone = three.command("onnx_ci", command, "--opsets=13", "--shard=2/2", "--select=one")
    assert (alone.returncode, "there is only 1 cell; run without a shard" in alone.stderr) == (5, True)


def test_wrong_shards_and_durations_are_one_message_in_both_front_ends(three):
    for flag, said in (
        ("shard=0/5", "shard: there is no shard 0 of 5; shards are numbered 1/5 to 5/5"),
        ("shard=2", "shard: '2' is not a shard; write 2/5 for the second of five"),
    ):
        command = three.command("onnx_ci", "list", f"--{flag}")
        plugin = three.command("pytest", "--onnx-export", f"--onnx-{flag}")
        assert (command.returncode, f"onnx-ci: --{said}" in command.stderr) == (2, True)
        assert (plugin.returncode, f"onnx-ci: --onnx-{said}" in plugin.stderr) == (4, True)
    said = (
        "durations: pyproject.toml is truncated or not JSON, so it is not a report of onnx-ci; "
        "write one with onnx-ci run --report=PATH, or leave durations out"
    )
    three.write("pyproject.toml", '[tool.onnx-ci]\nrecipe-files = ["*_recipes.py"]\ndurations = "pyproject.toml"\n')
    command = three.command("onnx_ci", "run", "--shard=1/2")
    plugin = three.command("pytest", "--onnx-export", "--onnx-shard=1/2", "-n", "2")
    assert (command.returncode, said in command.stderr) == (2, True)
    assert (plugin.returncode, said in plugin.stderr) == (4, True)
    assert len(listed(three)) == 6  # without a shard nobody reads them


def test_the_shard_serves_from_python_too(project):
    import torch

    @onnx_ci.recipe
    def net():
        return torch.nn.Linear(2, 2), (torch.randn(3, 2),)

    parts = [onnx_ci.run([net], opsets="12-13", shard=f"{n}/2") for n in (1, 2)]
    assert [[result.cell.opset for result in report.cells] for report in parts] == [[12], [13]]


# --- onnx-ci matrix


def matrix(project, *arguments):
    done = project.command("onnx_ci", "matrix", *arguments)
    assert done.returncode == 0, done.stderr
    return done


def test_the_matrix_is_one_line_of_json_whatever_recipe_files_print(three):
    three.write("more/loud_recipes.py", "print('loud')")
    done = matrix(three, "--opsets=12-13")
    assert done.stdout.count("\n") == 1
    assert json.loads(done.stdout) == {
        "include": [
            {"id": f"opset{n}-cpu", "opset": n, "device": "cpu", "runner": "ubuntu-latest"} for n in (12, 13)
        ]
    }  # fmt: skip
    assert "loud" in done.stderr


def test_each_entry_of_the_matrix_is_a_run_and_together_they_are_everything(three):
    done = matrix(three, "--opsets=12-13", "--shards=2", "--durations=old.json")
    entries = json.loads(done.stdout)["include"]
    assert [entry["id"] for entry in entries] == ["shard-1-of-2", "shard-2-of-2"]
    parts = [listed(three, f"--devices={e['device']}", f"--shard={e['shard']}", "--durations=old.json") for e in entries]
    assert parts[0] == [ID["two"].format(12), ID["two"].format(13)]
    assert sorted(parts[0] + parts[1]) == sorted(listed(three))


def test_more_shards_than_cells_are_fewer_entries(three):
    done = matrix(three, "--opsets=13", "--shards=9")
    assert [entry["shard"] for entry in json.loads(done.stdout)["include"]] == ["1/3", "2/3", "3/3"]
    assert "onnx-ci: 3 shards instead of 9: cpu has no more cells" in done.stderr


def test_the_matrix_as_a_table(three):
    done = matrix(three, "--opsets=12", "--shards=2", "--durations=old.json", "--format=text")
    assert done.stdout.splitlines() == [
        "job           device  runner         cells  seconds",
        "shard-1-of-2  cpu     ubuntu-latest      1      3.5",
        "shard-2-of-2  cpu     ubuntu-latest      2      4.0",
    ]
    assert "seconds" not in matrix(three, "--format=text").stdout


def test_the_runner_of_cuda_is_the_callers_to_name(three):
    done = three.command("onnx_ci", "matrix", "--devices=cpu,cuda")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "there are cells for cuda, but no runner is specified for them; pass its label with --cuda-runner=LABEL" in done.stderr
    )
    named = matrix(three, "--devices=cpu,cuda", "--opsets=13", "--cuda-runner=my gpu")
    assert [entry["runner"] for entry in json.loads(named.stdout)["include"]] == ["ubuntu-latest", "my gpu"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--select=banana"], 5, "no cells: no cell matches --select=banana"),
        (["--opsets=1-99", "--devices=cpu,cuda,cuda:1", "--cuda-runner=x"], 2, "297 jobs, but GitHub allows 256"),
        (["--shards=0"], 2, "--shards"),
        (["--shards=2", "--durations=none.json"], 2, "durations: the report none.json cannot be read"),
        (["broken"], 2, "broken/broken_recipes.py: cannot be imported"),
    ],
)
def test_what_makes_no_matrix_prints_none(three, arguments, code, said):
    three.write("broken/broken_recipes.py", "import nowhere_at_all")
    done = three.command("onnx_ci", "matrix", *(arguments if "broken" in arguments else [*arguments, "deep"]))
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_nine_opsets_on_two_devices_are_eighteen_jobs(project):
    project.recipes(RIGHT)
    done = matrix(project, "--format=github", "--devices=cpu,cuda", "--cuda-runner=gpu")
    include = json.loads(done.stdout)["include"]
    assert [(entry["device"], entry["opset"]) for entry in include] == [(d, o) for d in ("cpu", "cuda") for o in range(9, 18)]
    assert len({entry["id"] for entry in include}) == 18


def test_300_cells_are_shared_out_or_refused_with_advice(project):
    made = "globals().update({f'n{n}': onnx_ci.recipe(name=f'net{n}', opsets='9-18')(lambda: None) for n in range(30)})"
    project.write("onnx_recipes.py", "import onnx_ci\n\n" + made)
    assert len(project.command("onnx_ci", "list").stdout.splitlines()) == 300
    assert len(json.loads(matrix(project).stdout)["include"]) == 10
    refused = project.command("onnx_ci", "matrix", "--shards=300")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "the matrix has 300 jobs, but GitHub allows 256; use --shards=256 or fewer" in refused.stderr
    shards = json.loads(matrix(project, "--shards=256").stdout)["include"]
    assert [entry["shard"] for entry in shards] == [f"{n}/256" for n in range(1, 257)]


def test_the_help_of_the_matrix_has_examples(project):
    text = project.command("onnx_ci", "matrix", "-h").stdout
    assert "\n  Examples:\n    onnx-ci matrix --format=text  " in text
    assert all(word in text for word in ("--cuda-runner", "--shards", "--durations", '>> "$GITHUB_OUTPUT"'))
    assert "--shard " not in text
