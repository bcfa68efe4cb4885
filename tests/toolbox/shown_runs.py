"""Runs whose reports are shown: one in which everything occurs, and one whose texts attack whatever shows them."""

from __future__ import annotations

from dataclasses import replace

from toolbox.records import cell, drift, failed, passed, setting

from onnx_ci import CellResult, Finding, Problem, Revision, RunReport, Severity, Status
from onnx_ci.results.records import Culprit, NodeStep, SkipCause, SourceLine
from onnx_ci.results.rules import finding


def timed_pass(value=1.5, **changes):
    return replace(passed(value, **changes), timings={"export": 0.5})


def detailed_failure(**changes):
    return replace(
        failed(**changes), outputs=(drift(), drift(probe="n=3", drift=4e6)), timings={"export": 0.25, "run": 3.0},
        log="a\nb", observability=0.5,
    )  # fmt: skip


def located_failure(**changes):
    """A failure whose line and nodes are known."""
    line = SourceLine(file="net.py", line=7, text="return x * 2")
    steps = [
        NodeStep(
            node=f"Mul '{name}'", is_culprit=name == "b", can_run=True, source=line,
            index=(1, 2), file_value=1.5 + error, model_value=1.5, error=error, noise=1e-7,
        )
        for name, error in (("a", 0.0), ("b", 0.5), ("c", 0.25))
    ]  # fmt: skip
    culprit = Culprit(nodes=("Mul 'b'",), operators=("aten.mul",), module="", source=line)
    found = replace(finding("numeric-drift", "off by 0.5", output="y", probe="n=3"), culprits=(culprit,), steps=tuple(steps))
    return replace(detailed_failure(**changes), findings=(found,))


def some_run(**changes) -> RunReport:
    """A run in which everything occurs."""
    cells = (
        timed_pass(),
        timed_pass(opset=10, device="cuda"),
        detailed_failure(opset=10),
        replace(timed_pass(0.0, recipe="quick"), cached=True, artifact="out/quick.onnx"),
        CellResult(
            cell=cell(recipe="off"),
            status=Status.SKIPPED,
            skip_cause=SkipCause.MISSING_DEVICE,
            reason="no cuda: no driver",
        ),
        CellResult(cell=cell(recipe="gap"), status=Status.XFAILED, reason="index_put", findings=(finding("checker", "bad"),)),
        CellResult(
            cell=cell(recipe="closed"), status=Status.XPASSED, reason="gone", findings=(finding("unexpected-pass", "ok"),)
        ),
        CellResult(cell=cell(recipe="raises"), status=Status.ERROR, findings=(finding("recipe-error", "ValueError"),)),
        CellResult(cell=cell(recipe="noted"), status=Status.PASSED, findings=(finding("no-float64", "estimated"),)),
    )
    known = RunReport(
        environment={"torch": "2.13.0"},
        settings={"opsets": setting("9-10", "--opsets"), "max-drift": setting("16"), "jobs": setting(None)},
        cells=cells,
        problems=(Problem(source="bad.py", message="cannot be imported"),),
        not_run=("a/b.py::late::opset9-cpu",),
        seconds=4.5,
    )
    return replace(known, **changes)


HOSTILE = (
    "</script></style>--><img src=x onerror=hacked=1>\"'&amp;`${hacked}\x00\x1b[31mred\x1b[0m\x07\x9b\u202e\udcff😀\r\n]]>"
)


def hostile_run() -> RunReport:
    """A run in which every text is :data:`HOSTILE`."""
    wrong = Finding(rule=HOSTILE, severity=Severity.ERROR, message=HOSTILE, remedy=HOSTILE, details={HOSTILE: HOSTILE})
    output = drift(name=HOSTILE, probe=HOSTILE, dtype=HOSTILE, reference=HOSTILE, drift=99.0)
    names = {"recipe": HOSTILE, "source": HOSTILE, "device": HOSTILE}
    cells = [
        CellResult(
            cell=cell(opset=opset, **names), status=status, reason=HOSTILE, findings=(wrong,), outputs=(output,), log=HOSTILE,
            artifact=HOSTILE, timings={HOSTILE: 1.0},
        )
        for opset, status in enumerate(Status, start=9)
    ]  # fmt: skip
    return RunReport(
        environment={HOSTILE: HOSTILE},
        settings={HOSTILE: setting(HOSTILE, HOSTILE)},
        cells=tuple(cells),
        problems=(Problem(source=HOSTILE, message=HOSTILE),),
        not_run=(HOSTILE,),
        revision=Revision(commit="a1b2c3d4" * 5, branch=HOSTILE, is_modified=True),
    )
