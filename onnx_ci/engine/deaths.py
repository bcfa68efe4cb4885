"""What a death is blamed on: the evidence about a cell whose process died, and the problem of a file whose import died."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, replace
from pathlib import Path

from onnx_ci.collection.discovery import relative_source
from onnx_ci.engine.events import Event, SearchEnded, SearchStarted, StageStarted
from onnx_ci.errors import disk_error
from onnx_ci.matrix.plan import CellSpec
from onnx_ci.owners import Owner, owner_of
from onnx_ci.processes.supervisor import Death
from onnx_ci.results.records import CellEvidence, Problem, Severity
from onnx_ci.results.rules import REMEDIES, finding
from onnx_ci.results.stages import ACTIVITY
from onnx_ci.results.verdict import broken_rules

_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)')
"""A line of a stack as :mod:`faulthandler` writes it."""


@dataclass
class LastSeen:
    """How far a process was when it was last heard of."""

    stage: str = ""
    evidence: CellEvidence | None = None
    """That about a cell, while only the cause of its failure is searched for."""

    def note(self, event: Event) -> None:
        """Note what a process has sent."""
        match event:
            case StageStarted():
                self.stage = event.stage
            case SearchStarted():
                self.evidence = event.evidence
            case SearchEnded():
                self.evidence = None
            case _:
                raise ValueError(f"no cell sends {event}")


def evidence_of_death(spec: CellSpec, death: Death, last_seen: LastSeen, *, is_worker: bool = False) -> CellEvidence:
    """The evidence about a cell whose process, or whose worker, died."""
    which = "the process from which the recipe's cells are forked" if is_worker else "the process"
    evidence, stage = last_seen.evidence, last_seen.stage
    # A cell that dies is never green: without a failure before the search, the death is one.
    if evidence is not None and broken_rules(evidence.findings):
        message = f"{which} {death.message} when it searched for the cause of the failure, which is not affected"
        note = finding(death.cause, message, severity=Severity.NOTE, remedy=REMEDIES["no-search"])
        return replace(evidence, findings=(*evidence.findings, note), log="\n".join(filter(None, (evidence.log, death.log))))
    activity = f" while {ACTIVITY.get(stage, stage)}" if stage else ""
    broken = finding(death.cause, f"{which} {death.message}{activity}", details={"stage": stage})
    return CellEvidence(cell=spec.cell, findings=(broken,), log=death.log)


def evidence_without_process(spec: CellSpec, error: OSError) -> CellEvidence:
    """The evidence about a cell whose process could not be started."""
    rule = "crash" if disk_error(error) is None else "disk-error"
    return CellEvidence(cell=spec.cell, findings=(finding(rule, f"no process could be started: {error}"),))


def death_without_process(error: OSError) -> Death:
    """The death of a process of a recipe file that could not be started."""
    return Death(cause="crash", message=f"could not be started: {error}", log="")


def death_with_file(death: Death, source: str) -> Death:
    """The death of a process that ended with that of its recipe file, from which it was forked."""
    return dataclasses.replace(death, message=f"ended with the process of {source}, which {death.message}")


def problem_of_death(source: str, death: Death, root: Path) -> Problem:
    """The problem of a recipe file whose import died, with the innermost line of the project if its stack is known."""
    message = f"cannot be imported: the process that tried {death.message}"
    for frame in _FRAME.finditer(death.log):
        if Path(frame["file"]).is_relative_to(root) and owner_of(frame["file"]) is Owner.PROJECT:
            file, line = relative_source(Path(frame["file"]), root), int(frame["line"])
            return Problem(source=source, message=f"{message}, at {file}, line {line}", file=file, line=line)
    return Problem(source=source, message=message, file=None, line=None)
