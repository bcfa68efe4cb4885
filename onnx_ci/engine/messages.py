"""What the process that decides and the workers that it starts tell each other. Importing this module does not import torch."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.settings import Settings
from onnx_ci.errors import disk_error
from onnx_ci.matrix.plan import CellSpec
from onnx_ci.processes.child import Inbox
from onnx_ci.processes.limits import Limits
from onnx_ci.processes.supervisor import Death, Send
from onnx_ci.results.json_data import from_json, to_json
from onnx_ci.results.records import CellEvidence, Severity
from onnx_ci.results.rules import finding
from onnx_ci.results.stages import ACTIVITY
from onnx_ci.results.verdict import broken_rules

if TYPE_CHECKING:
    from onnx_ci.pipeline.export.exporter import Artifact


WorkerKey = tuple[object, ...]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A cell to run, or a file to judge as one."""

    planned: CellSpec
    artifact: Path | None = None
    is_alone: bool = False
    """Whether no other cell shares its preparation."""

    @property
    def id(self) -> str:
        """The id of the cell."""
        return self.planned.cell.id

    @property
    def worker(self) -> WorkerKey:
        """The key of the worker that the job needs."""
        cell = self.planned.cell
        return cell.recipe, cell.device, self.artifact is not None, "" if self.shares_worker else cell.label

    @property
    def shares_worker(self) -> bool:
        """Whether the worker of the cell serves others, too.

        A fork cannot use CUDA if its parent process has initialized it, and memory of a GPU is freed for certain only when
        its process ends, so cells on a GPU do not share a worker.
        """
        return self.gpu is None and not self.is_alone

    @property
    def gpu(self) -> str | None:
        """The GPU that the cell needs, if any."""
        return self.planned.cell.gpu

    @property
    def file(self) -> Artifact | None:
        """The existing file to judge, if any."""
        from onnx_ci.pipeline.export.exporter import Artifact

        return None if self.artifact is None else Artifact(path=self.artifact)

    @property
    def limits(self) -> Limits:
        """What a process may use that runs the cell."""
        return Limits.of(self.planned)

    def as_json(self) -> dict[str, Any]:
        """The job as it is sent to a worker, which has the recipe."""
        artifact = None if self.artifact is None else str(self.artifact)
        return {"planned": to_json(self.planned), "artifact": artifact, "is_alone": self.is_alone}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The job that :meth:`as_json` returned."""
        artifact = None if data["artifact"] is None else Path(data["artifact"])
        return cls(planned=from_json(CellSpec, data["planned"]), artifact=artifact, is_alone=data["is_alone"])


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Under which conditions a worker works."""

    settings: Settings
    threads_of_preparation: int
    threads_of_cell: int
    forks: bool
    """Whether its cells have processes of their own."""


def not_started(job: Job, error: OSError) -> CellEvidence:
    """The evidence about a cell whose process could not be started."""
    rule = "crash" if disk_error(error) is None else "disk-error"
    broken = finding(rule, f"no process could be started: {error}")
    return CellEvidence(cell=job.planned.cell, findings=(broken,))


_NO_SEARCH = "To leave the search out: --locate=false."


def result_of_dead_process(
    planned: CellSpec, death: Death, stage: str, *, is_worker: bool = False, known: Mapping[str, Any] | None = None
) -> CellEvidence:
    """The evidence about a cell whose process, or whose worker, died.

    Args:
        planned: the cell.
        death: how it died.
        stage: the stage in which it died.
        is_worker: whether it was the worker.
        known: the evidence from before, as JSON, if only the cause of a failure was searched for.
    """
    activity = f" while {ACTIVITY.get(stage, stage)}" if stage else ""
    which = "the process from which the recipe's cells are forked" if is_worker else "the process"
    evidence = None
    with contextlib.suppress(ValueError, LookupError, TypeError):  # the recipe may have replaced what writes messages
        evidence = None if known is None else CellEvidence.from_json(known)
    # A cell that dies is never green: what was known must be a failure.
    if evidence is not None and evidence.cell == planned.cell and broken_rules(evidence.findings):
        message = f"{which} {death.message} when it searched for the cause of the failure, which is not affected"
        note = finding(death.cause, message, severity=Severity.NOTE, remedy=_NO_SEARCH)
        return replace(evidence, findings=(*evidence.findings, note), log="\n".join(filter(None, (evidence.log, death.log))))
    broken = finding(death.cause, f"{which} {death.message}{activity}", details={"stage": stage})
    return CellEvidence(cell=planned.cell, findings=(broken,), log=death.log)


def run_worker(jobs: Sequence[Job], conditions: Conditions, recipe: Recipe, send: Send, inbox: Inbox) -> None:
    """Be a worker; see :func:`onnx_ci.engine.worker.serve`, which needs torch."""
    from onnx_ci.engine.worker import serve

    serve(jobs, conditions, recipe, send, inbox)
