"""In a worker: a process that prepares one recipe and runs its cells, each in a fork of it or one after another."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch

from onnx_ci.cache.watch import seen
from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.settings import Settings
from onnx_ci.engine.cell import Preparation, prepare_cells
from onnx_ci.engine.deaths import LastSeen, evidence_of_death, evidence_without_process
from onnx_ci.engine.events import CellFinished, Conditions, Emit, Job, StageStarted, WorkerReady, emit_to, event_of, send_last
from onnx_ci.engine.one_process import Engine
from onnx_ci.matrix.plan import CellTask, with_recipe
from onnx_ci.pipeline.export.handling import preload
from onnx_ci.pipeline.model import devices
from onnx_ci.processes.allocator import return_free_memory
from onnx_ci.processes.capture import report_stages
from onnx_ci.processes.child import Inbox
from onnx_ci.processes.forked import ForkedInbox, ForkedProcesses
from onnx_ci.processes.supervisor import Death, Message, Send
from onnx_ci.results.json_data import from_json


def serve(first: Job, conditions: Conditions, recipe: Recipe, send: Send, inbox: Inbox) -> None:
    """The main function of a worker, which is started for the ``first`` job. That arrives in its inbox, too."""
    settings, emit = conditions.settings, emit_to(send)
    with Engine(artifacts=settings.artifacts, save_inputs=settings.save_inputs, forks=settings.isolation == "fork") as engine:
        torch.set_num_threads(conditions.threads_of_preparation)
        report_stages(lambda stage: emit(StageStarted(stage=stage)))
        if devices.gpus.was_used_by_parent():
            devices.gpus.hide()
        task = _task_of(first, recipe, settings)
        preparation: Preparation | None = prepare_cells(task, engine.context, judges_file=first.path is not None)
        if conditions.forks:
            return_free_memory()
        emit(WorkerReady())
        if conditions.forks and isinstance(inbox, ForkedInbox):
            with contextlib.closing(ForkedProcesses(Path(tempfile.gettempdir()), caller=inbox)) as processes:
                cells = _ForkedCells(
                    engine=engine, recipe=recipe, conditions=conditions, preparation=preparation, processes=processes, emit=emit
                )
                cells.serve(inbox)
            return
        for request in inbox:
            job: Job = from_json(Job, request)
            evidence = engine.run_cell(_task_of(job, recipe, settings), job.file, preparation, emit)
            emit(CellFinished(evidence=evidence, read_set=seen()))
            preparation = None  # reported with the first cell


def _task_of(job: Job, recipe: Recipe, settings: Settings) -> CellTask:
    return with_recipe(job.spec, recipe, settings)


@dataclass(kw_only=True)
class _ForkedCells:
    """The processes of a worker's cells, which are forked from it."""

    engine: Engine
    recipe: Recipe
    conditions: Conditions
    preparation: Preparation | None
    """What is reported of the preparation, with the first cell."""
    processes: ForkedProcesses
    emit: Emit
    running: dict[object, tuple[Job, LastSeen]] = field(default_factory=dict)

    def serve(self, inbox: ForkedInbox) -> None:
        """Run the cells of jobs as they arrive, until no more can arrive."""
        while (requests := inbox.arrived()) is not None:
            for request in requests:
                self._start(from_json(Job, request))
            for key, event in self.processes.wait():
                self._handle(key, event)

    def _start(self, job: Job) -> None:
        """Start the process of the cell of a job."""
        if job.path is None:
            preload(job.spec.cell.exporter)  # once for all cells of this worker, if it was not expected before
        preparation, self.preparation = self.preparation, None
        task = _task_of(job, self.recipe, self.conditions.settings)
        work = functools.partial(_run_cell, self.engine, task, job, self.conditions.threads_of_cell, preparation)
        try:
            self.processes.start(job.id, work, job.limits)
        except OSError as error:
            self.emit(CellFinished(evidence=evidence_without_process(job.spec, error)))
        else:
            self.running[job.id] = job, LastSeen()

    def _handle(self, key: object, event: Message | Death) -> None:
        """Pass on the evidence about a cell; if its process has died, that is the evidence."""
        job, last_seen = self.running[key]
        if isinstance(event, Death):
            self.emit(CellFinished(evidence=evidence_of_death(job.spec, event, last_seen)))
            return
        match event_of(event):
            case CellFinished() as finished:
                self.emit(finished)
            case other:
                last_seen.note(other)


def _run_cell(engine: Engine, task: CellTask, job: Job, threads: int, preparation: Preparation | None, send: Send) -> None:
    """The main function of the process of a cell on the CPU."""
    emit = emit_to(send)
    torch.set_num_threads(min(threads, torch.get_num_threads()))  # a recipe may have set fewer
    devices.gpus.hide()  # its worker, or importing ONNX Runtime for CUDA, may have initialized them
    report_stages(lambda stage: emit(StageStarted(stage=stage)))
    evidence = engine.run_cell(task, job.file, preparation, emit)
    send_last(CellFinished(evidence=evidence, read_set=seen()), send)
