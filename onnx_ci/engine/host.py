"""In a host: a process that prepares one recipe and runs its cells, each in a fork of it or one after another.

The process that decides starts hosts (:mod:`onnx_ci.engine.hosts`) and sends them jobs (:mod:`onnx_ci.engine.jobs`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from onnx_ci.collection.recipe import Recipe
from onnx_ci.engine import export_ahead
from onnx_ci.engine.engine import Engine, Preparation
from onnx_ci.engine.export_ahead import ExportAhead, ExportedAhead
from onnx_ci.engine.jobs import Conditions, Job, not_started, result_of_dead_process
from onnx_ci.engine.recipe_file import seen_so_far
from onnx_ci.matrix.plan import PlannedCell, with_recipe
from onnx_ci.processes.allocator import return_free_memory
from onnx_ci.processes.capture import report_stages
from onnx_ci.processes.child import Inbox
from onnx_ci.processes.forked import ForkedInbox, ForkedProcesses
from onnx_ci.processes.supervisor import LAST, Death, Message, Send
from onnx_ci.results.records import CellEvidence
from onnx_ci.stages.export.exporter import Artifact
from onnx_ci.stages.export.repeated_work import read_torchlib
from onnx_ci.stages.model import devices


def serve(jobs: Sequence[Job], conditions: Conditions, recipe: Recipe, send: Send, inbox: Inbox) -> None:
    """The main function of a host.

    Args:
        jobs: those that are known when it is started; all that it has to do arrives in its inbox.
        conditions: under which it works.
        recipe: the recipe.
        send: sends a message to the process that decides.
        inbox: gets jobs from it.
    """
    settings = conditions.settings
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(Engine(artifacts=settings.artifacts, save_inputs=settings.save_inputs))
        processes: ForkedProcesses | None = None
        if isinstance(inbox, ForkedInbox):
            processes = stack.enter_context(contextlib.closing(ForkedProcesses(Path(tempfile.gettempdir()), caller=inbox)))
        if processes is None or not isinstance(inbox, ForkedInbox) or not conditions.forks:
            host = _Server(engine, recipe, conditions, send, processes)
            host.open(jobs)
            for request in inbox:
                host.begin(Job.from_json(request))
            return
        forking = _ForkingServer(engine, recipe, conditions, send, processes)
        forking.open(jobs)
        while (requests := inbox.arrived()) is not None:
            for request in requests:
                forking.begin(Job.from_json(request))
            for key, event in processes.wait():
                forking.handle(str(key), event)


class _Server:
    """Handles the jobs of a host, and runs their cells in this process.

    Args:
        engine: runs a cell.
        recipe: the recipe.
        conditions: under which the host works.
        send: sends a message to the process that decides.
        processes: where others are forked; ``None`` where none can be.
    """

    def __init__(
        self, engine: Engine, recipe: Recipe, conditions: Conditions, send: Send, processes: ForkedProcesses | None
    ) -> None:
        self._engine, self._recipe, self._conditions, self._send = engine, recipe, conditions, send
        self._preparation: Preparation | None = None
        self._ahead_in = processes if conditions.exports_ahead else None
        self._ahead: ExportAhead | None = None
        """The export of the first cell, until that takes it."""

    def open(self, jobs: Sequence[Job]) -> None:
        """Prepare for the cells of jobs."""
        torch.set_num_threads(self._conditions.threads_of_preparation)
        report_stages(self._begin_stage)
        if devices.gpus.was_used_by_parent():
            devices.gpus.hide()
        self._warm(jobs[0])
        self._send({"ready": True})

    def _planned(self, job: Job) -> PlannedCell:
        return with_recipe(job.planned, self._recipe, self._conditions.settings)

    def _begin_stage(self, stage: str) -> None:
        self._send({"stage": stage})
        if self._ahead is not None:
            self._ahead.look()

    def begin(self, job: Job) -> None:
        """Run the cell of a job."""
        ahead = self._ahead_of(job)
        if ahead is not None:
            self._send({"stage": "export"})
            ahead.wait()
        exported = self._taken_export(job)
        result = self._engine.run_cell(self._planned(job), job.file, self._taken_preparation(), exported)
        self._send(_message("result", result, exported))

    def _ahead_of(self, job: Job) -> ExportAhead | None:
        """The export of a job's cell, if it has been started and not been taken."""
        return self._ahead if self._ahead is not None and self._ahead.id == job.id else None

    def _taken_export(self, job: Job) -> ExportedAhead | None:
        """What the export of a job's cell gave, once; it has ended. ``None`` if the cell has to export by itself."""
        ahead = self._ahead_of(job)
        if ahead is not None:
            self._ahead = None
            if ahead.exported is not None:
                return ahead.exported
            self._send({"ready": True})  # its time begins again
        if job.planned.cell.exporter == "dynamo" and job.artifact is None:
            read_torchlib()  # once for all exports of this host
        return None

    def _taken_preparation(self) -> Preparation | None:
        """The preparation, once: its first cell reports it."""
        preparation, self._preparation = self._preparation, None
        return preparation

    def _warm(self, job: Job) -> None:
        """Prepare for the cells, of which this job's is the first one."""
        planned = self._planned(job)
        if self._ahead_in is not None:
            self._ahead = ExportAhead(self._ahead_in, planned)
        start = None if self._ahead is None else self._ahead.start
        self._preparation = self._engine.warm(planned, given=job.artifact is not None, export_ahead=start)
        if self._ahead is not None and not (self._ahead.has_begun and self._preparation.takes_export_ahead):
            self._ahead.cancel()
            self._ahead = None


class _ForkingServer(_Server):
    """Handles the jobs of a host, and forks a process for each of their cells."""

    def __init__(self, engine: Engine, recipe: Recipe, conditions: Conditions, send: Send, processes: ForkedProcesses) -> None:
        super().__init__(engine, recipe, conditions, send, processes)
        self._cells = processes
        self._jobs: dict[str, Job] = {}
        self._stages: dict[str, str] = {}
        self._waits_for_export: Job | None = None

    def begin(self, job: Job) -> None:
        """Start the process of the cell of a job."""
        self._jobs[job.id] = job
        ahead = self._ahead_of(job)
        if ahead is not None and ahead.is_running:
            self._waits_for_export = job
            return
        exported = self._taken_export(job)
        threads = self._conditions.threads_of_cell
        preparation = self._taken_preparation()
        work = functools.partial(_run_cell, self._engine, self._planned(job), job.file, threads, preparation, exported)
        limits = dataclasses.replace(job.limits, spent=exported.seconds if exported is not None else 0.0)
        try:
            self._cells.start(job.id, work, limits)
        except OSError as error:
            self._send({"result": not_started(job, error).as_json()})

    def handle(self, id: str, event: Message | Death) -> None:
        """Handle a message of the process of a cell, or of its export, or the end of one."""
        if id == export_ahead.KEY:
            self._handle_export(event)
        elif isinstance(event, Death):
            dead = result_of_dead_process(self._jobs[id].planned, event, self._stages.get(id, ""))
            self._send({"result": dead.as_json()})
        elif "stage" in event:
            self._stages[id] = event["stage"]
        else:
            self._send({"result": event[LAST], **({"seen": event["seen"]} if "seen" in event else {})})

    def _handle_export(self, event: Message | Death) -> None:
        if self._ahead is not None:
            self._ahead.handle(event)
        waiting, self._waits_for_export = self._waits_for_export, None
        if waiting is not None:
            self.begin(waiting)

    def _warm(self, job: Job) -> None:
        super()._warm(job)
        return_free_memory()


def _run_cell(
    engine: Engine,
    planned: PlannedCell,
    artifact: Artifact | None,
    threads: int,
    preparation: Preparation | None,
    ahead: ExportedAhead | None,
    send: Send,
) -> None:
    """The main function of the process of a cell on the CPU."""
    torch.set_num_threads(min(threads, torch.get_num_threads()))  # a recipe may have set fewer
    devices.gpus.hide()  # its host, or importing ONNX Runtime for CUDA, may have initialized them
    report_stages(lambda stage: send({"stage": stage}))
    result = engine.run_cell(planned, artifact, preparation, ahead)
    send(_message(LAST, result, ahead))


def _message(key: str, result: CellEvidence, ahead: ExportedAhead | None) -> Message:
    """The message with the evidence about a cell, and with what its verdict depends on."""
    looked_at = seen_so_far()
    if looked_at is None:
        return {key: result.as_json()}
    if ahead is not None and ahead.seen is not None:
        looked_at |= ahead.seen
    return {key: result.as_json(), "seen": looked_at.as_json()}
