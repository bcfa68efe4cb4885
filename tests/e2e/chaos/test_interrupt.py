"""Ctrl-C, SIGTERM or SIGHUP in the middle of a cell that does not listen: the run ends at once, says what it knows, and leaves
nothing."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from e2e.chaos.faults import C_LOOP, IGNORES, IN_A_CELL, IN_PREPARATION, PYTHON_LOOP, Fault, healthy
from e2e.chaos.running import Running, option, run

from onnx_ci.cache.folder import VERDICT, Folder
from onnx_ci.results.files import read_json

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="cells have processes of their own on Linux only"),
]

MARK = "open('reached', 'w').close()\n"
IDS = ["recipe_0.py::first::opset13-cpu", "recipe_1.py::hangs::opset13-cpu", "recipe_2.py::last::opset13-cpu"]


def interrupt(process: int, number: signal.Signals, *, group: bool) -> None:
    """What ``kill`` does, or what a terminal does."""
    if group:
        os.killpg(process, number)
    else:
        os.kill(process, number)


@pytest.mark.parametrize(
    ("mode", "number", "group", "place", "body"),
    [
        pytest.param("pytest", signal.SIGINT, False, IN_A_CELL, IGNORES + C_LOOP, id="pytest, C"),
        pytest.param("pytest", signal.SIGINT, True, IN_A_CELL, PYTHON_LOOP, id="pytest, Python, from a terminal"),
        pytest.param("workers", signal.SIGINT, False, IN_A_CELL, PYTHON_LOOP, id="workers, Python"),
        pytest.param("workers", signal.SIGINT, True, IN_A_CELL, IGNORES + C_LOOP, id="workers, C, from a terminal"),
        pytest.param("command", signal.SIGINT, False, IN_PREPARATION, PYTHON_LOOP, id="command, preparation"),
        pytest.param("command", signal.SIGINT, True, IN_A_CELL, IGNORES + C_LOOP, id="command, C, from a terminal"),
        pytest.param("command", signal.SIGTERM, False, IN_A_CELL, IGNORES + C_LOOP, id="command, timeout"),
        pytest.param("command", signal.SIGHUP, True, IN_PREPARATION, PYTHON_LOOP, id="command, a terminal that closes"),
        pytest.param("pytest", signal.SIGTERM, False, IN_A_CELL, IGNORES + C_LOOP, id="pytest, timeout"),
        pytest.param("pytest", signal.SIGTERM, True, IN_PREPARATION, PYTHON_LOOP, id="pytest, a container that stops"),
        pytest.param("workers", signal.SIGTERM, False, IN_A_CELL, PYTHON_LOOP, id="workers, timeout"),
    ],
)
def test_the_run_ends_at_once_and_reports_what_it_knows(mode, number, group, place, body, tmp_path):
    hangs = Fault(name="hangs", body=MARK + body, place=place)
    (tmp_path / "pyproject.toml").write_text('[tool.onnx-ci]\nrecipe-files = ["recipe_*.py"]\nopsets = 13\n')
    for at, source in enumerate((healthy("first"), hangs.source(), healthy("last"))):
        (tmp_path / f"recipe_{at}.py").write_text(source)
    running = Running(mode, tmp_path, [option(mode, "jobs", 1)])
    try:
        running.wait_for(tmp_path / "reached")
        assert (tmp_path / "reached").exists()
        assert running.process.poll() is None
        interrupt(running.process.pid, number, group=group)
        code = running.wait(30)  # the cell would hang for much longer
    finally:
        made = running.ended()
    said = made["stdout"] + made["stderr"]
    assert code not in (None, 0), said
    assert made["processes"] == []
    assert made["files"] == []
    statuses = {cell["id"]: cell["status"] for cell in made["report"]["cells"]}
    assert statuses == {id: "passed" for id in IDS if id in statuses}
    assert IDS[0] in statuses or mode == "workers"  # there both begin at once
    assert IDS[1] not in statuses
    assert [*statuses, *made["report"]["not_run"]] == sorted(IDS, key=lambda each: each not in statuses)
    assert made["report"]["summary"]["verdict"] == "failed"
    if mode == "command":
        assert "Traceback" not in said


@pytest.mark.parametrize("mode", ["command", "pytest", "workers"])
def test_a_run_that_is_killed_leaves_its_results_and_the_next_one_goes_on(mode, tmp_path):
    hangs = Fault(name="hangs", body=MARK + PYTHON_LOOP, place=IN_A_CELL)
    ignored = 'cache-ignore = ["reached", "std*", "temporary", "basetemp"]\ncache-ignore-variables = ["CHAOS_*"]\n'
    (tmp_path / "pyproject.toml").write_text(f'[tool.onnx-ci]\nrecipe-files = ["recipe_*.py"]\nopsets = 13\n{ignored}')
    for at, source in enumerate((healthy("first"), hangs.source(), healthy("last"))):
        (tmp_path / f"recipe_{at}.py").write_text(source)
    cached = [option(mode, "jobs", 2), option(mode, "cache", tmp_path / "cache")]
    running = Running(mode, tmp_path, cached)
    try:
        running.wait_for(tmp_path / "reached")
        running.wait_until(lambda: {IDS[0], IDS[2]} <= {each.cell.id for each in read_json(tmp_path / "r.json").cells})
        running.wait_until(lambda: len(Folder(tmp_path / "cache").files(VERDICT)) == 2)  # they are written together
        running.process.kill()
        running.wait(30)
    finally:
        made = running.ended()
    assert made["processes"] == []
    assert made["report"] is None
    known = read_json(tmp_path / "r.json")
    assert {each.cell.id: each.status for each in known.cells} == dict.fromkeys((IDS[0], IDS[2]), "passed")
    assert known.not_run == (IDS[1],)
    assert known.verdict == "failed"

    (tmp_path / "recipe_1.py").write_text(healthy("hangs"))
    again = run(mode, tmp_path, *cached, seconds=120)
    assert again["returncode"] == 0, again["stdout"] + again["stderr"]
    assert again["files"] == []  # those of the killed run are gone, too
    assert not (tmp_path / "r.json.journal").exists()
    assert {each["id"]: each["cached"] for each in again["report"]["cells"]} == dict(zip(IDS, (True, False, True), strict=True))
