"""Every fault in the middle of healthy recipes, all in one run: each costs its own cells, and nobody else anything."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from pathlib import Path

import pytest
from e2e.chaos.faults import FAULTS, healthy
from e2e.chaos.running import MODES, option, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="cells have processes of their own on Linux only"),
]

DEADLY = ("crash", "timeout", "out-of-memory")

every_mode = pytest.mark.parametrize("mode", MODES)


def files():
    """The project: after every third fault, and around all of them, a recipe with which nothing is wrong."""
    sources = {"healthy_0": healthy("healthy_0")}
    for number, fault in enumerate(FAULTS, start=1):
        sources[fault.name] = fault.source()
        if number % 3 == 0 or number == len(FAULTS):
            name = f"healthy_{number}"
            sources[name] = healthy(name)
    return {name: (f"recipe_{at:02}_{name}.py", source) for at, (name, source) in enumerate(sources.items())}


FILES = files()
OPSETS = {fault.name: fault.opsets for fault in FAULTS}
HEALTHY = [name for name in FILES if name.startswith("healthy_")]


def cell_ids(name):
    return [f"{FILES[name][0]}::{name}::opset{opset}-cpu" for opset in OPSETS.get(name, (12, 13))]


@pytest.fixture(scope="session")
def outcome(tmp_path_factory):
    """One run a mode, which all tests read, those in other workers too."""
    import fcntl

    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    @functools.cache
    def outcome(mode):
        root = shared / f"chaos-{mode}"
        with (shared / f"chaos-{mode}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            saved = root / "outcome.json"
            if not saved.exists():
                root.mkdir()
                (root / "pyproject.toml").write_text('[tool.onnx-ci]\nrecipe-files = ["recipe_*.py"]\n')
                for name, source in FILES.values():
                    (root / name).write_text(source)
                options = {"memory-limit": "1GiB", "jobs": 2 if mode == "workers" else 4, "artifacts": "kept"}
                made = run(mode, root, *(option(mode, *each) for each in options.items()), seconds=400)
                saved.write_text(json.dumps(made))
        made = json.loads(saved.read_text())
        assert made["report"] is not None, (made["returncode"], made["stdout"][-3000:], made["stderr"][-3000:])
        return {**made, "root": str(root), "cells": {cell["id"]: cell for cell in made["report"]["cells"]}}

    return outcome


def broken(cell):
    return [each for each in cell["findings"] if each["severity"] == "error"]


@every_mode
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_costs_its_own_cells_and_is_named(mode, fault, outcome):
    cells = outcome(mode)["cells"]
    for opset, id in zip(fault.opsets, cell_ids(fault.name), strict=True):
        cell = cells[id]
        if not fault.rules or opset in fault.spared:
            assert (cell["status"], broken(cell)) == ("passed", [])
        else:
            (found,) = broken(cell)
            assert found["rule"] in fault.rules, found
            assert cell["status"] == ("error" if found["rule"] == "recipe-error" else "failed")
            if found["rule"] in DEADLY or len(fault.rules) > 1:
                assert all(re.search(words, found["message"], re.IGNORECASE) for words in fault.says), found["message"]
            assert all(words in cell["log"] for words in fault.log), cell["log"]
        noted = [each["message"] for each in cell["findings"] if each["rule"] == "global-state"]
        if fault.note:
            (said,) = noted
            assert re.search(fault.note, said, re.IGNORECASE), said
        elif fault.note is not None:
            assert not noted


@every_mode
def test_every_other_cell_keeps_its_result(mode, outcome):
    cells = outcome(mode)["cells"]
    results = [cells[id] for name in HEALTHY for id in cell_ids(name)]
    assert len(results) == 2 * len(HEALTHY)
    assert {(cell["status"], len(cell["findings"])) for cell in results} == {("passed", 0)}
    for opset in (12, 13):  # one model and one seed: one number, whatever ran before
        numbers = {json.dumps(cell["outputs"]) for cell in results if cell["opset"] == opset}
        assert len(numbers) == 1


@every_mode
def test_the_run_fails_and_reports_every_cell_in_order(mode, outcome):
    made = outcome(mode)
    assert made["returncode"] == 1
    assert list(made["cells"]) == [id for name in FILES for id in cell_ids(name)]
    assert made["report"]["not_run"] == []
    assert made["report"]["problems"] == []
    assert not any(each["rule"] == "internal-error" for cell in made["cells"].values() for each in cell["findings"])


@every_mode
def test_no_process_and_no_temporary_file_is_left(mode, outcome):
    made = outcome(mode)
    assert made["processes"] == []
    assert made["files"] == []


@every_mode
def test_what_a_recipe_prints_stays_with_its_cells_and_is_cut(mode, outcome):
    made = outcome(mode)
    assert "last words" not in made["stderr"]
    assert len(made["stdout"]) + len(made["stderr"]) < 2**20
    assert all(len(cell["log"]) < 2**17 for cell in made["cells"].values())


@every_mode
def test_a_recipe_that_changes_directory_moves_no_file(mode, outcome):
    made = outcome(mode)
    for name in ("changes_directory", HEALTHY[-1]):
        for id in cell_ids(name):
            kept = Path(made["root"], made["cells"][id]["artifact"])
            assert kept.is_file()
            assert kept == Path(made["root"], "kept", name, f"{id.rpartition('::')[2]}.onnx")


@every_mode
def test_a_file_is_kept_of_no_cell_that_died(mode, outcome):
    cells = outcome(mode)["cells"].values()
    assert not any(cell["artifact"] for cell in cells for each in broken(cell) if each["rule"] in DEADLY)
