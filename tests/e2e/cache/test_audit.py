"""The cache checks itself: a kept verdict that is wrong is found, and none is believed any more."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from e2e.cache.changes import FROM_FILE, OUTSIDE, Again, Place, exported, holding
from e2e.cache.changes import _floats as floats
from e2e.cache.test_changes import CELL, prepared, run, start

from onnx_ci.cache.folder import VERDICT, Folder
from onnx_ci.results.files import read_json

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="links, modes and forks")]

UNSEEN = Again(
    name="a file that only compiled code opens",
    recipe=exported(FROM_FILE.format(OUTSIDE)),
    before=holding(floats, "<outside>/factor.bin", 2),
    change=holding(floats, "<outside>/factor.bin", 3),
)
OTHER = CELL.replace("opset13", "opset14")
TWO_CELLS = {"fork": "--opsets=13-14", "pytest": "--onnx-opsets=13-14"}


def two_days_later(place: Place) -> None:
    folder = Folder(place.root / ".onnx-ci-cache")
    for name in folder.files(VERDICT):
        entry = folder.read(name)
        assert entry is not None
        folder.write(name, {**entry, "judged": entry["judged"] - 2 * 24 * 3600})


@pytest.fixture(params=TWO_CELLS)
def front_end(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(front_end: str, tmp_path: Path) -> Place:
    """A project with two kept verdicts, which were right two days ago."""
    place = prepared(UNSEEN, tmp_path)
    assert run(place, front_end, TWO_CELLS[front_end]) == {CELL: ("passed", False), OTHER: ("passed", False)}
    two_days_later(place)
    return place


def test_one_verdict_that_is_still_right_is_checked_a_run(place, front_end):
    again = [run(place, front_end, TWO_CELLS[front_end]) for _ in range(3)]
    assert [sorted(cached for _, cached in verdicts.values()) for verdicts in again] == [
        [False, True],
        [False, True],
        [True, True],
    ]


def test_a_verdict_that_is_wrong_costs_the_belief_in_all(place, front_end):
    UNSEEN.change(place)
    assert run(place, front_end, TWO_CELLS[front_end]) == {CELL: ("failed", False), OTHER: ("failed", False)}
    cells = read_json(place.root.parent / "report.json").cells
    assert all("stale-verdict" in {finding.rule for finding in cell.findings} for cell in cells)
    assert run(place, front_end, TWO_CELLS[front_end]) == {CELL: ("failed", True), OTHER: ("failed", True)}


def test_an_audit_judges_all_and_says_which_differ(place, front_end):
    UNSEEN.change(place)
    flag = "--onnx-cache=audit" if front_end == "pytest" else "--cache=audit"
    assert run(place, front_end, TWO_CELLS[front_end], flag) == {CELL: ("failed", False), OTHER: ("failed", False)}
    cells = read_json(place.root.parent / "report.json").cells
    assert all("stale-verdict" in {finding.rule for finding in cell.findings} for cell in cells)


def test_an_audit_of_verdicts_that_are_right_changes_nothing(place):
    done = start(place, "-m", "onnx_ci", "run", "--opsets=13-14", "--cache=audit")
    assert (done.returncode, "2 cells: 2 passed in" in done.stdout) == (0, True)
