"""In the process that decides: which cells run where and when, each in its own process, so that they cannot affect each other.

A *worker* (:mod:`onnx_ci.engine.worker`) is started for each recipe and device. It builds the model and computes the references
once. Where processes are forked, it then forks one for each of its cells: a cell finds everything in memory, copied on write,
and leaves nothing behind. Elsewhere its cells run in it, one after another, as does a cell that shares its preparation with no
other. This process supervises the workers, and they supervise their forks, so that a process that crashes, hangs or exhausts
memory becomes a finding of its cell.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psutil

from onnx_ci.cache.watch import ReadSet
from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.settings import Settings
from onnx_ci.engine.messages import Conditions, Job, WorkerKey, not_started, result_of_dead_process, run_worker
from onnx_ci.engine.recipes import Recipes
from onnx_ci.engine.waiting import WaitingJobs
from onnx_ci.environment.this_process import patches_of_coverage
from onnx_ci.matrix.plan import CellSpec, CellTask, without_recipe
from onnx_ci.processes.control_groups import usable_cores
from onnx_ci.processes.limits import default_jobs
from onnx_ci.processes.supervisor import Death, Message
from onnx_ci.results.records import CellEvidence
from onnx_ci.results.stages import ACTIVITY

if TYPE_CHECKING:
    from onnx_ci.engine.one_process import Engine
    from onnx_ci.pipeline.export.exporter import Artifact

Watch = Callable[[Sequence[str]], None]
"""Called with what is being done, in words: the cells that run, and the recipes that are being prepared."""
WATCH_INTERVAL = 0.5
"""Seconds between two calls of a :data:`Watch`."""


Keep = Callable[[CellEvidence, ReadSet | None], None]
"""Called with the evidence about a cell as soon as it is known, which may be long before it is asked for, and with what its
processes have seen."""


def open_engine(
    settings: Settings,
    recipes: Recipes | None = None,
    *,
    share: int = 1,
    watch: Watch | None = None,
    keep: Keep | None = None,
    idle: Callable[[], None] | None = None,
) -> Engine | IsolatedEngine:
    """The engine that the settings ask for.

    Args:
        settings: the settings.
        recipes: the recipes of the cells; ``None`` if each cell has its own.
        share: how many engines run on this machine at once and share its cores and its memory.
        watch: called repeatedly with what is being done while a result is awaited; unused without processes.
        keep: called with each evidence; unused without processes, where cells run only when they are asked for.
        idle: called repeatedly while a result is awaited; unused without processes.
    """
    if settings.isolation == "none":
        from onnx_ci.engine.one_process import Engine  # with torch

        return Engine(artifacts=settings.artifacts, save_inputs=settings.save_inputs)
    cores = max(1, min(_threads_of_torch(), usable_cores()) // share)
    jobs = settings.jobs or default_jobs(cores, share)
    return IsolatedEngine(settings, recipes or Recipes(settings), cores=cores, jobs=jobs, watch=watch, keep=keep, idle=idle)


def _threads_of_torch() -> int:
    """How many threads torch uses in this process; its default if it is not imported here."""
    if (torch := sys.modules.get("torch")) is not None:
        return int(torch.get_num_threads())
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    return int(chosen) if chosen.isdigit() and int(chosen) else psutil.cpu_count(logical=False) or os.cpu_count() or 1


_SLACK = 1.5
"""How many times as long as a cell may take its worker may be silent."""


@dataclass
class _Worker:
    """A worker, as seen by the process that started it."""

    forks: bool
    """Whether its cells have processes of their own."""
    seconds: float | None
    """The time limit of its preparation."""
    gpu: str | None
    ready: bool = False
    is_dead: bool = False
    """Whether it was found dead before its end was noticed."""
    stage: str = ""
    known: Mapping[str, Any] | None = None
    """What is known of the cell that searches for the cause of its failure now; see :func:`result_of_dead_process`."""
    running: dict[str, Job] = field(default_factory=dict)

    @property
    def takes_job(self) -> bool:
        """Whether it can be sent a job now."""
        return self.ready and not self.is_dead and (self.forks or not self.running)

    @property
    def patience(self) -> float | None:
        """How many seconds may pass until its next message; ``None`` if none is due."""
        if not self.ready:
            return self.seconds
        # It ends its cells in time, unless the recipe keeps it from doing so, as with a thread that lets no other run.
        allowed = [job.limits.seconds * (_SLACK if self.forks else 1) for job in self.running.values()]
        return max(allowed, default=None)


class IsolatedEngine:
    """Runs cells like :class:`~onnx_ci.engine.one_process.Engine`, but each in its own process, several at once.

    Args:
        settings: the settings.
        recipes: the recipes of the cells, and where their processes are started.
        cores: how many threads all cells together may use.
        jobs: how many cells, or preparations, run at once.
        watch: as for :func:`open_engine`.
        keep: as for :func:`open_engine`.
        idle: as for :func:`open_engine`.
    """

    def __init__(
        self,
        settings: Settings,
        recipes: Recipes,
        *,
        cores: int,
        jobs: int,
        watch: Watch | None = None,
        keep: Keep | None = None,
        idle: Callable[[], None] | None = None,
    ) -> None:
        self._settings, self._recipes = settings, recipes
        self._forks = settings.isolation == "fork"
        self._watch, self._keep, self._idle = watch, keep, idle
        self._cores, self._jobs = cores, jobs
        self._given: dict[str, Recipe] = {}
        """The recipes that cells bring with them, by name."""
        self._workers: dict[WorkerKey, _Worker] = {}
        self._waiting = WaitingJobs()
        self._results: dict[str, CellEvidence] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all processes and remove temporary files."""
        self._workers.clear()
        self._recipes.close()

    def run(self, cells: Iterable[CellSpec]) -> Iterator[CellEvidence]:
        """The evidence about each cell, in order, each as soon as it is known."""
        cells = tuple(cells)
        self.expect(cells)
        for planned in cells:
            yield self.run_cell(planned)

    def expect(self, cells: Iterable[CellSpec]) -> None:
        """Announce cells for which :meth:`run_cell` will be called, so that they can run ahead."""
        cells = tuple(cells)
        # coverage.py saves what a process ran when that ends by itself; workers are killed.
        is_measured = patches_of_coverage() is not None
        sharing = Counter((planned.cell.recipe, planned.cell.device) for planned in cells)
        for planned in cells:
            is_only_one = sharing[planned.cell.recipe, planned.cell.device] == 1 and not is_measured
            is_alone = is_only_one or self._needs_own_process(planned)
            self._add(planned, is_alone=is_alone)

    def _needs_own_process(self, planned: CellSpec) -> bool:
        """Whether a cell must not run where another one has run.

        In one process, ``torch.export`` does not export an LSTM with named axes a second time as it did at first (torch 2.13).
        """
        return not self._forks and planned.cell.exporter != "torchscript"  # another one may be built on torch.export

    def run_cell(self, planned: CellSpec, artifact: Artifact | None = None) -> CellEvidence:
        """Everything that onnx-ci can find out about one cell. Errors in the cell are not raised.

        Args:
            artifact: an existing file to judge instead of a fresh export.
        """
        id = planned.cell.id
        if not self._is_known(id):
            # Whether other cells of the recipe follow a cell that was not announced is unknown.
            path = None if artifact is None else artifact.path
            is_alone = artifact is not None or self._needs_own_process(planned)
            self._add(planned, path, is_alone=is_alone)
        interval = None if self._watch is None and self._idle is None else WATCH_INTERVAL
        while id not in self._results:
            self._start_jobs(first=id)
            if id not in self._results:  # a cell that could not be started already has its result
                if self._watch is not None:
                    self._watch(self._doing())
                if self._idle is not None:
                    self._idle()
                for key, event in self._recipes.processes.wait(interval):
                    self._handle(key, event)
        return self._results.pop(id)

    def _add(self, planned: CellSpec, artifact: Path | None = None, *, is_alone: bool) -> None:
        """Let a cell wait for its turn."""
        if isinstance(planned, CellTask):
            self._given[planned.recipe.name] = planned.recipe
        self._waiting.add(Job(planned=without_recipe(planned), artifact=artifact, is_alone=is_alone))

    def _is_known(self, id: str) -> bool:
        """Whether a cell waits, runs or has a result."""
        is_running = any(id in worker.running for worker in self._workers.values())
        return is_running or id in self._results or self._waiting.get(id) is not None

    def _doing(self) -> list[str]:
        """What the processes are doing, in words."""
        doing = []
        for (recipe, *_), worker in self._workers.items():
            if worker.ready:
                doing += [f"{job.planned.cell.recipe}::{job.planned.cell.label}" for job in worker.running.values()]
            else:
                doing.append(f"{recipe}: {ACTIVITY.get(worker.stage, worker.stage or 'starting')}")
        return doing

    # --- scheduling

    def _start_jobs(self, first: str) -> None:
        """Send jobs to workers, and start workers, as long as a slot is free; ``first`` is the awaited cell."""
        while self._has_free_slot():
            ready = self._next_for_ready_worker(first)
            is_awaited = ready is not None and ready.id == first
            starting = None if is_awaited else self._next_without_worker(first)
            if starting is not None and (ready is None or self._may_start_early()):
                self._start_worker(starting)
            elif ready is not None:
                self._send_job(ready)
            else:
                return

    def _may_start_early(self) -> bool:
        """Whether a worker may be started although cells of others wait, so that its preparation runs beside them.

        Otherwise the last worker would be prepared when nothing else is left to do. As each fills memory, there are never more
        of them than cells may run at once.
        """
        return len(self._workers) < self._jobs and all(worker.ready for worker in self._workers.values())

    def _has_free_slot(self) -> bool:
        return sum(len(worker.running) + (not worker.ready) for worker in self._workers.values()) < self._jobs

    def _next_for_ready_worker(self, first: str) -> Job | None:
        """The next job whose worker can take it: that of the cell ``first``, or else the first one."""
        job = self._waiting.get(first)
        if job is not None and job.worker in self._workers and self._workers[job.worker].takes_job:
            return job
        return self._waiting.first_of(key for key, worker in self._workers.items() if worker.takes_job)

    def _next_without_worker(self, first: str) -> Job | None:
        """The next job whose worker can be started: that of the cell ``first``, or else the first one."""
        if self._waiting.first_without_worker() is None:
            return None
        for key, worker in list(self._workers.items()):
            if worker.ready and not worker.running and not self._waiting.count(key):
                self._stop_worker(key)
        # Each GPU runs one cell at a time, however many jobs run at once.
        busy_gpus = {worker.gpu for worker in self._workers.values() if worker.gpu is not None}
        job = self._waiting.get(first)
        if job is not None and job.worker not in self._workers and job.gpu not in busy_gpus:
            return job
        return self._waiting.first_without_worker(busy_gpus=busy_gpus)

    def _send_job(self, job: Job) -> None:
        """Send a job to its worker, which is ready."""
        worker = self._workers[job.worker]
        try:
            self._recipes.processes.post(job.worker, job.as_json())
        except OSError:
            worker.is_dead = True  # once its end is noticed, the job gets another
            return
        self._waiting.remove(job.id)
        worker.running[job.id] = job
        self._recipes.processes.extend(job.worker, worker.patience)

    def _start_worker(self, job: Job) -> None:
        """Start the worker that a job needs."""
        upcoming = self._waiting.of_worker(job.worker)
        forks = self._forks and job.shares_worker
        preparation = self._threads()
        conditions = Conditions(
            settings=self._settings,
            threads_of_preparation=preparation,
            threads_of_cell=self._share(len(self._workers) + len(self._waiting)) if forks else preparation,
            forks=forks,
        )
        name = job.planned.cell.recipe
        recipe = self._given.get(name)
        work = functools.partial(run_worker, upcoming, conditions)
        warm_up = functools.partial(_preload, job.planned.cell.exporter)
        try:
            self._recipes.start(job.worker, name, work, job.limits, recipe=recipe, warm_up=warm_up)
        except OSError as error:
            for waiting in upcoming:
                self._waiting.remove(waiting.id)
                self._finish(not_started(waiting, error), None)
        else:
            self._workers[job.worker] = _Worker(forks=forks, seconds=job.limits.seconds, gpu=job.gpu)
            self._waiting.worker_started(job.worker)

    def _share(self, count: int) -> int:
        """How many threads each of so many things may use that run at once."""
        return max(1, self._cores // min(self._jobs, count))

    def _threads(self) -> int:
        """The threads of a worker that is about to be started: it gets the cores of slots that nothing else can use."""
        # What can run beside its preparation: the cells of workers that are ready and fork, one thing for each other worker.
        beside = self._waiting.workers
        for key, worker in self._workers.items():
            waiting = self._waiting.count(key)
            beside += (len(worker.running) + waiting if worker.ready and worker.forks else 1) - bool(waiting)
        return self._share(beside)

    def _stop_worker(self, key: WorkerKey) -> None:
        self._forget_worker(key)
        self._recipes.processes.stop(key)

    def _forget_worker(self, key: WorkerKey) -> None:
        del self._workers[key]
        self._waiting.worker_ended(key)

    # --- results

    def _handle(self, key: Any, event: Message | Death) -> None:
        """Handle a message from a worker, or its death."""
        worker = self._workers.get(key)
        if worker is None:
            return  # it has just been ended
        if isinstance(event, Death):
            # Cells that have not begun get a new worker, unless their preparation ended this one.
            ended = dict(worker.running)
            if not worker.ready:
                ended |= {job.id: job for job in self._waiting.of_worker(key)}
            for id, job in ended.items():
                self._waiting.remove(id)
                is_worker = worker.ready and worker.forks
                dead = result_of_dead_process(job.planned, event, worker.stage, is_worker=is_worker, known=worker.known)
                self._finish(dead, None)
            self._forget_worker(key)
        elif "stage" in event:
            worker.stage = event["stage"]
        elif "known" in event:
            worker.known = event["known"]
        elif "ready" in event:
            worker.ready, worker.stage = event["ready"], ""
            self._recipes.processes.extend(key, worker.patience)
        else:
            try:
                result = CellEvidence.from_json(event["result"])
                seen = ReadSet.from_json(event["seen"]) if "seen" in event else None
            except (ValueError, LookupError, TypeError) as error:  # the recipe has replaced what writes messages
                self._recipes.processes.stop(key)
                message = f"sent a result that cannot be read: {type(error).__name__}: {error}"
                self._handle(key, Death(cause="crash", message=message, log=""))
                return
            if worker.running.pop(result.cell.id, None) is None:
                return  # a worker speaks for the cells that it was sent, and once for each
            self._waiting.remove(result.cell.id)
            worker.stage = worker.stage if worker.forks else ""
            if worker.ready:
                self._recipes.processes.extend(key, worker.patience)
            self._finish(result, seen)

    def _finish(self, evidence: CellEvidence, seen: ReadSet | None) -> None:
        self._results[evidence.cell.id] = evidence
        if self._keep is not None:
            self._keep(evidence, seen)


def _preload(exporter: str) -> None:
    """Import what the cells of an exporter need in this process, from which they are forked."""
    from onnx_ci.pipeline.export.handling import preload  # with torch

    preload(exporter)
