"""In a worker: a process that prepares one recipe and runs its cells, each in a fork of it or one after another.

The process that decides starts workers (:mod:`onnx_ci.engine.scheduler`) and sends them jobs (:mod:`onnx_ci.engine.messages`).
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from onnx_ci.collection.recipe import Recipe
from onnx_ci.engine.cell import Preparation
from onnx_ci.engine.messages import Conditions, Job, not_started, result_of_dead_process
from onnx_ci.engine.one_process import Engine
from onnx_ci.engine.recipe_process import seen_so_far
from onnx_ci.matrix.plan import CellTask, with_recipe
from onnx_ci.pipeline.export.exporter import Artifact
from onnx_ci.pipeline.export.handling import preload
from onnx_ci.pipeline.model import devices
from onnx_ci.processes.allocator import return_free_memory
from onnx_ci.processes.capture import report_stages
from onnx_ci.processes.child import Inbox
from onnx_ci.processes.forked import ForkedInbox, ForkedProcesses
from onnx_ci.processes.supervisor import LAST, Death, Message, Send
from onnx_ci.results.records import CellEvidence


def serve(jobs: Sequence[Job], conditions: Conditions, recipe: Recipe, send: Send, inbox: Inbox) -> None:
    """The main function of a worker.

    Args:
        jobs: those that are known when it is started; all that it has to do arrives in its inbox.
        conditions: under which it works.
        recipe: the recipe.
        send: sends a message to the process that decides.
        inbox: gets jobs from it.
    """
    settings = conditions.settings
    with Engine(artifacts=settings.artifacts, save_inputs=settings.save_inputs) as engine:
        worker = _Worker(engine, recipe, conditions, send)
        worker.prepare(jobs[0])
        if conditions.forks and isinstance(inbox, ForkedInbox):
            _serve_in_forks(worker, inbox)
        else:
            for request in inbox:
                worker.run(Job.from_json(request))


class _Worker:
    """Prepares a recipe and runs its cells in this process.

    Args:
        engine: runs a cell.
        recipe: the recipe.
        conditions: under which the worker works.
        send: sends a message to the process that decides.
    """

    def __init__(self, engine: Engine, recipe: Recipe, conditions: Conditions, send: Send) -> None:
        self.engine, self.conditions, self.send = engine, conditions, send
        self._recipe = recipe
        self._preparation: Preparation | None = None

    def prepare(self, first: Job) -> None:
        """Prepare for cells, of which that of ``first`` is the first one."""
        torch.set_num_threads(self.conditions.threads_of_preparation)
        report_stages(lambda stage: self.send({"stage": stage}))
        if devices.gpus.was_used_by_parent():
            devices.gpus.hide()
        self._preparation = self.engine.prepare(self.planned(first), judges_file=first.artifact is not None)
        if self.conditions.forks:
            return_free_memory()
        self.send({"ready": True})

    def planned(self, job: Job) -> CellTask:
        """The cell of a job, with the recipe."""
        return with_recipe(job.planned, self._recipe, self.conditions.settings)

    def taken_preparation(self) -> Preparation | None:
        """What is reported of the preparation, once: with its first cell."""
        preparation, self._preparation = self._preparation, None
        return preparation

    def run(self, job: Job) -> None:
        """Run the cell of a job in this process."""
        announce = functools.partial(_announce, self.send)
        result = self.engine.run_cell(self.planned(job), job.file, self.taken_preparation(), announce)
        self.send(_message("result", result))


def _serve_in_forks(worker: _Worker, inbox: ForkedInbox) -> None:
    """Run the cells of jobs, each in a fork of this process."""
    with contextlib.closing(ForkedProcesses(Path(tempfile.gettempdir()), caller=inbox)) as processes:
        cells = _ForkedCells(worker, processes)
        while (requests := inbox.arrived()) is not None:
            for request in requests:
                cells.start(Job.from_json(request))
            for key, event in processes.wait():
                cells.handle(str(key), event)


class _ForkedCells:
    """The processes of a worker's cells."""

    def __init__(self, worker: _Worker, processes: ForkedProcesses) -> None:
        self._worker, self._processes = worker, processes
        self._jobs: dict[str, Job] = {}
        self._stages: dict[str, str] = {}
        self._known: dict[str, Mapping[str, Any] | None] = {}

    def start(self, job: Job) -> None:
        """Start the process of the cell of a job."""
        self._jobs[job.id] = job
        if job.artifact is None:
            preload(job.planned.cell.exporter)  # once for all cells of this worker, if it was not expected before
        threads, preparation = self._worker.conditions.threads_of_cell, self._worker.taken_preparation()
        work = functools.partial(_run_cell, self._worker.engine, self._worker.planned(job), job.file, threads, preparation)
        try:
            self._processes.start(job.id, work, job.limits)
        except OSError as error:
            self._worker.send({"result": not_started(job, error).as_json()})

    def handle(self, id: str, event: Message | Death) -> None:
        """Handle a message of the process of a cell, or its end."""
        if isinstance(event, Death):
            known = self._known.get(id)
            dead = result_of_dead_process(self._jobs[id].planned, event, self._stages.get(id, ""), known=known)
            self._worker.send({"result": dead.as_json()})
        elif "stage" in event:
            self._stages[id] = event["stage"]
        elif "known" in event:
            self._known[id] = event["known"]
        else:
            self._worker.send({"result": event[LAST], **({"seen": event["seen"]} if "seen" in event else {})})


def _run_cell(
    engine: Engine,
    planned: CellTask,
    artifact: Artifact | None,
    threads: int,
    preparation: Preparation | None,
    send: Send,
) -> None:
    """The main function of the process of a cell on the CPU."""
    torch.set_num_threads(min(threads, torch.get_num_threads()))  # a recipe may have set fewer
    devices.gpus.hide()  # its worker, or importing ONNX Runtime for CUDA, may have initialized them
    report_stages(lambda stage: send({"stage": stage}))
    send(_message(LAST, engine.run_cell(planned, artifact, preparation, functools.partial(_announce, send))))


def _announce(send: Send, known: CellEvidence | None) -> None:
    """Send what is known about a cell before the cause of its failure is searched for; ``None`` after that."""
    send({"known": None if known is None else known.as_json()})


def _message(key: str, result: CellEvidence) -> Message:
    """The message with the evidence about a cell, and with what its verdict depends on."""
    seen = seen_so_far()
    return {key: result.as_json()} if seen is None else {key: result.as_json(), "seen": seen.as_json()}
