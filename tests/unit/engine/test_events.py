"""Events arrive in another process as they were sent."""

from __future__ import annotations

import json

import pytest

from onnx_ci.cache.watch import ABSENT, ReadSet
from onnx_ci.engine.events import (
    CellFinished,
    CellJudged,
    CellsCollected,
    FileImported,
    LibrariesImported,
    ProblemMet,
    SearchEnded,
    SearchStarted,
    StageStarted,
    Waiting,
    WorkerReady,
    WorkRequested,
    event_of,
    message_of,
    send_last,
)
from onnx_ci.processes.supervisor import LAST
from onnx_ci.results.records import Cell, CellEvidence, CellResult, Exclusion, Problem, Status
from onnx_ci.results.rules import finding

CELL = Cell(source="nets.py", recipe="net", exporter="torchscript", opset=13, device="cpu")
EVIDENCE = CellEvidence(cell=CELL, findings=(finding("crash", "it crashes"),), timings={"export": 0.5})
PROBLEM = Problem(source="nets.py", message="it cannot be imported", file="nets.py", line=3)
EVENTS = (
    LibrariesImported(),
    FileImported(scopes=(), problems=(PROBLEM,), read_set=None),
    WorkRequested(pickled="gASVAAA="),
    WorkerReady(),
    StageStarted(stage="export"),
    SearchStarted(evidence=EVIDENCE),
    SearchEnded(),
    CellFinished(evidence=EVIDENCE, read_set=ReadSet(files={"/nets.py": ABSENT}, listed={"/": ("nets.py",)})),
    Waiting(doing=("net: starting",)),
    CellJudged(result=CellResult(cell=CELL, status=Status.PASSED)),
    ProblemMet(problem=PROBLEM),
    CellsCollected(why_no_cell="", exclusions=(Exclusion(recipe="net", reason="opset 9"),), in_other_jobs=(CELL.id,)),
)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_the_same_after_a_journey_as_json(event):
    sent = []
    send_last(event, sent.append)
    for message in (message_of(event), *sent):
        assert event_of(json.loads(json.dumps(message))) == event
    assert [LAST in message for message in (message_of(event), *sent)] == [False, True]
