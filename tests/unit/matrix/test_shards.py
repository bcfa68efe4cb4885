"""Shards: that they are even parts of the whole, the same on every machine."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolbox.records import report_with

from onnx_ci import ConfigurationError
from onnx_ci.config.values import parse_shard
from onnx_ci.matrix import shards
from onnx_ci.matrix.shards import Durations, read_durations
from onnx_ci.results.records import Cell, CellResult, Status
from onnx_ci.results.run_report import RunReport
from onnx_ci.tools.matrix.jobs import jobs_by_opset, jobs_by_shard


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


def test_a_cells_seconds_are_the_sum_of_its_timings_and_a_skipped_cell_has_none(tmp_path):
    path = tmp_path / "old.json"
    path.write_text(json.dumps(report_with({"r.py::a::opset9-cpu": 3.0, "r.py::a::opset9-cuda": None})))
    assert read_durations(path).seconds == {"r.py::a::opset9-cpu": 3.0}


def test_how_much_of_a_cells_seconds_was_preparation_is_read_from_its_passes_except_on_a_gpu(tmp_path):
    path = tmp_path / "old.json"
    timings = {"build": 1.0, "reference": 0.5, "export": 2.0, "run": 0.25}
    results = (
        CellResult(cell=cell, status=Status.PASSED, timings=timings) for cell in (*cells_of(1), *cells_of(1, device="cuda"))
    )
    path.write_text(json.dumps(RunReport(environment={}, settings={}, cells=tuple(results)).as_json()))
    assert read_durations(path) == Durations(
        seconds={"r.py::a::opset9-cpu": 3.75, "r.py::a::opset9-cuda": 3.75},
        preparation={"r.py::a::opset9-cpu": 1.5},
    )


def test_durations_may_be_a_folder_and_the_longest_time_of_a_cell_counts(tmp_path):
    one, other = "r.py::a::opset9-cpu", "r.py::b::opset9-cpu"
    for name, seconds in (("x/old.json", {one: 3.0, other: 1.0}), ("y/old.json", {one: 5.0}), ("z.json", {one: 4.0})):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(report_with(seconds)))
    (tmp_path / "interrupted.json.journal").write_text("{}")  # which is that of another run, without the times of all cells
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
