"""What travels between the processes of a run: events, and the jobs of workers. Nothing here imports torch.

A process sends events to the one that started it, as JSON: :func:`message_of` and :func:`event_of`. The session yields those
that front-ends show.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from onnx_ci.cache.watch import ReadSet
from onnx_ci.config.settings import Settings
from onnx_ci.matrix.plan import CellSpec
from onnx_ci.matrix.scope import RecipeScope
from onnx_ci.processes.limits import Limits
from onnx_ci.processes.supervisor import LAST, Message, Send
from onnx_ci.results.json_data import from_json, to_json
from onnx_ci.results.records import CellEvidence, CellResult, Exclusion, Problem

if TYPE_CHECKING:
    from onnx_ci.pipeline.export.export import Artifact


@dataclass(frozen=True, kw_only=True)
class LibrariesImported:
    """The process from which those of recipe files are forked has imported their libraries."""


@dataclass(frozen=True, kw_only=True)
class FileImported:
    """A recipe file was imported."""

    scopes: tuple[RecipeScope, ...]
    problems: tuple[Problem, ...]
    read_set: ReadSet | None
    """What it depends on; ``None`` if that is not recorded."""


@dataclass(frozen=True, kw_only=True)
class WorkRequested:
    """The process of a recipe file is to do something with its recipes."""

    pickled: str
    """The function, in base 64."""


@dataclass(frozen=True, kw_only=True)
class WorkerReady:
    """A worker has prepared its recipe, and takes jobs."""


@dataclass(frozen=True, kw_only=True)
class StageStarted:
    """A stage of a cell, or of a preparation, begins."""

    stage: str


@dataclass(frozen=True, kw_only=True)
class SearchStarted:
    """All but the cause of a cell's failure is known, and now that is searched for."""

    evidence: CellEvidence


@dataclass(frozen=True, kw_only=True)
class SearchEnded:
    """The cell goes on after the search."""


@dataclass(frozen=True, kw_only=True)
class CellFinished:
    """All evidence about a cell has been gathered."""

    evidence: CellEvidence
    read_set: ReadSet | None = None
    """What the verdict depends on; ``None`` if that is not recorded."""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A result is awaited. It comes several times a second."""

    doing: tuple[str, ...]
    """What the processes do meanwhile, in words: the cells that run, and the recipes that are being prepared."""


@dataclass(frozen=True, kw_only=True)
class CellJudged:
    """The verdict on a cell."""

    result: CellResult


@dataclass(frozen=True, kw_only=True)
class ProblemMet:
    """What keeps recipes from becoming cells."""

    problem: Problem


@dataclass(frozen=True, kw_only=True)
class CellsCollected:
    """A worker of pytest-xdist has collected its cells."""

    why_no_cell: str
    """Why no cell is left to run; empty if there is one."""
    exclusions: tuple[Exclusion, ...]
    in_other_jobs: tuple[str, ...]
    """The ids of the cells that belong to other shards."""


Event = (
    LibrariesImported
    | FileImported
    | WorkRequested
    | WorkerReady
    | StageStarted
    | SearchStarted
    | SearchEnded
    | CellFinished
    | Waiting
    | CellJudged
    | ProblemMet
    | CellsCollected
)
Emit = Callable[[Event], None]
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Event)}


def message_of(event: Event) -> dict[str, Any]:
    """An event as JSON data."""
    values = {field.name: to_json(getattr(event, field.name)) for field in dataclasses.fields(event)}
    return {"event": type(event).__name__, **values}


def event_of(message: Message) -> Event:
    """The event of which :func:`message_of` made a message."""
    kind = _KINDS[message["event"]]
    event: Event = from_json(kind, message) if dataclasses.fields(kind) else kind()
    return event


def to_nobody(event: Event) -> None:
    """Do nothing with an event: nobody watches the cell."""


def emit_to(send: Send) -> Emit:
    """A function that sends events to the process that started this one."""
    return lambda event: send(message_of(event))


def send_last(event: Event, send: Send) -> None:
    """Send the event with which this process has nothing more to do."""
    send({**message_of(event), LAST: True})


# --- what workers are given ---------------------------------------------------------------------------------------------

WorkerKey = tuple[object, ...]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A cell to run, or a file to judge as one. It is sent to a worker as JSON."""

    spec: CellSpec
    path: str | None = None
    is_alone: bool = False
    """Whether no other cell shares its preparation."""

    @property
    def id(self) -> str:
        """The id of the cell."""
        return self.spec.cell.id

    @property
    def worker(self) -> WorkerKey:
        """The key of the worker that the job needs."""
        cell = self.spec.cell
        return cell.recipe, cell.device, self.path is not None, "" if self.shares_worker else cell.label

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
        return self.spec.cell.gpu

    @property
    def file(self) -> Artifact | None:
        """The existing file to judge, if any."""
        from onnx_ci.pipeline.export.export import Artifact

        return None if self.path is None else Artifact(path=Path(self.path))

    @property
    def limits(self) -> Limits:
        """What a process may use that runs the cell."""
        return Limits.of(self.spec)


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Under which conditions a worker works."""

    settings: Settings
    threads_of_preparation: int
    threads_of_cell: int
    forks: bool
    """Whether its cells have processes of their own."""
