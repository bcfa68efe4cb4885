"""In the process that decides: which cells run where and when, each in its own process, so that they cannot affect each other.

A *worker* (:mod:`onnx_ci.engine.worker`) is started for each recipe and device. It builds the model and computes the references
once. Where processes are forked, it then forks one for each of its cells: a cell finds everything in memory, copied on write,
and leaves nothing behind. Elsewhere its cells run in it, one after another, as does a cell that shares its preparation with no
other.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil

from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.settings import Settings
from onnx_ci.engine.deaths import LastSeen, evidence_of_death, evidence_without_process
from onnx_ci.engine.events import CellFinished, Conditions, Job, Waiting, WorkerKey, WorkerReady, event_of
from onnx_ci.engine.recipe_process import run_worker
from onnx_ci.engine.recipes import Recipes
from onnx_ci.environment.this_process import patches_of_coverage
from onnx_ci.matrix.plan import CellSpec, CellTask, without_recipe
from onnx_ci.processes.limits import default_jobs, usable_cores
from onnx_ci.processes.supervisor import Death, Message
from onnx_ci.results.json_data import to_json
from onnx_ci.results.stages import ACTIVITY

if TYPE_CHECKING:
    from onnx_ci.engine.one_process import Engine
    from onnx_ci.pipeline.export.export import Artifact

_INTERVAL = 0.5
"""Seconds between two events that say what is being done."""


def open_engine(settings: Settings, recipes: Recipes | None = None, *, share: int = 1) -> Engine | IsolatedEngine:
    """The engine that the settings ask for: one of ``share``, which share the cores and the memory of this machine."""
    if settings.isolation == "none":
        from onnx_ci.engine.one_process import Engine  # with torch

        return Engine(artifacts=settings.artifacts, save_inputs=settings.save_inputs)
    cores = max(1, min(_threads_of_torch(), usable_cores()) // share)
    jobs = settings.jobs or default_jobs(cores, share)
    return IsolatedEngine(settings, recipes or Recipes(settings), cores=cores, jobs=jobs)


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
    gpu: str | None
    is_ready: bool = False
    is_dead: bool = False
    """Whether it was found dead before its end was noticed."""
    last_seen: LastSeen = field(default_factory=LastSeen)
    running: dict[str, Job] = field(default_factory=dict)

    @property
    def takes_job(self) -> bool:
        """Whether it can be sent a job now."""
        return self.is_ready and not self.is_dead and (self.forks or not self.running)

    @property
    def patience(self) -> float | None:
        """How many seconds may pass until its next message; ``None`` if none is due."""
        if not self.is_ready:
            return self.seconds
        # It ends its cells in time, unless the recipe keeps it from doing so, as with a thread that lets no other run.
        allowed = [job.limits.seconds * (_SLACK if self.forks else 1) for job in self.running.values()]
        return max(allowed, default=None)


class IsolatedEngine(contextlib.AbstractContextManager["IsolatedEngine"]):
    """Runs cells like :class:`~onnx_ci.engine.one_process.Engine`, each in its own process, ``jobs`` at once on ``cores``."""

    def __init__(self, settings: Settings, recipes: Recipes, *, cores: int, jobs: int) -> None:
        self._settings, self._recipes = settings, recipes
        self._forks = settings.isolation == "fork"
        self._cores, self._jobs = cores, jobs
        self._given: dict[str, Recipe] = {}
        """The recipes that cells bring with them, by name."""
        self._workers: dict[WorkerKey, _Worker] = {}
        self._waiting: dict[str, Job] = {}
        """The jobs that wait, by the ids of their cells."""
        self._queues: dict[WorkerKey, dict[str, Job]] = {}
        """The same by the workers that they need. None is empty."""
        self._finished: list[CellFinished] = []
        """Those that :meth:`events` has not yielded yet."""

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes and remove temporary files."""
        self._workers.clear()
        self._recipes.close()

    def expect(self, specs: Iterable[CellSpec]) -> None:
        """Announce cells, so that they can run before they are awaited."""
        specs = tuple(specs)
        # coverage.py saves what a process ran when that ends by itself; workers are killed.
        is_measured = patches_of_coverage() is not None
        sharing = Counter((spec.cell.recipe, spec.cell.device) for spec in specs)
        for spec in specs:
            is_only_one = sharing[spec.cell.recipe, spec.cell.device] == 1 and not is_measured
            self._add(spec, is_alone=is_only_one or self._needs_own_process(spec))

    def events(self, spec: CellSpec, artifact: Artifact | None = None) -> Iterator[Waiting | CellFinished]:
        """What happens until a cell has finished. Others that were announced run meanwhile, and may finish earlier."""
        id = spec.cell.id
        is_running = any(id in worker.running for worker in self._workers.values())
        if not is_running and id not in self._waiting:
            # Whether other cells of the recipe follow a cell that was not announced is unknown.
            self._add(spec, artifact, is_alone=artifact is not None or self._needs_own_process(spec))
        is_over = False
        while not is_over:
            self._start_jobs(first=id)
            if not self._finished:  # a cell that could not be started has done so
                yield Waiting(doing=tuple(self._doing()))
                for key, news in self._recipes.processes.wait(_INTERVAL):
                    self._handle(key, news)
            finished, self._finished = self._finished, []
            yield from finished
            is_over = any(each.evidence.cell.id == id for each in finished)

    def _needs_own_process(self, spec: CellSpec) -> bool:
        """Whether a cell must not run where another one has run.

        In one process, ``torch.export`` does not export an LSTM with named axes a second time as it did at first (torch 2.13).
        """
        return not self._forks and spec.cell.exporter != "torchscript"  # another one may be built on torch.export

    def _add(self, spec: CellSpec, artifact: Artifact | None = None, *, is_alone: bool) -> None:
        """Let a cell wait for its turn."""
        if isinstance(spec, CellTask):
            self._given[spec.recipe.name] = spec.recipe
        path = None if artifact is None else str(artifact.path)
        job = Job(spec=without_recipe(spec), path=path, is_alone=is_alone)
        self._waiting[job.id] = job
        self._queues.setdefault(job.worker, {})[job.id] = job

    def _take(self, job: Job) -> None:
        """Let a job wait no longer."""
        del self._waiting[job.id]
        queue = self._queues[job.worker]
        del queue[job.id]
        if not queue:
            del self._queues[job.worker]

    def _doing(self) -> list[str]:
        """What the processes are doing, in words."""
        doing = []
        for (recipe, *_), worker in self._workers.items():
            if worker.is_ready:
                doing += [f"{job.spec.cell.recipe}::{job.spec.cell.label}" for job in worker.running.values()]
            else:
                stage = worker.last_seen.stage
                doing.append(f"{recipe}: {ACTIVITY.get(stage, stage or 'starting')}")
        return doing

    def _start_jobs(self, first: str) -> None:
        """Send jobs to workers, and start workers, as long as a slot is free; ``first`` is the awaited cell."""
        while sum(len(worker.running) + (not worker.is_ready) for worker in self._workers.values()) < self._jobs:
            ready = self._next_for_ready_worker(first)
            is_awaited = ready is not None and ready.id == first
            starting = None if is_awaited else self._next_without_worker(first)
            # A worker that is started although cells of others wait is prepared beside them, and not when nothing else is left
            # to do. As each fills memory, there are never more of them than cells may run at once.
            may_start_early = len(self._workers) < self._jobs and all(worker.is_ready for worker in self._workers.values())
            if starting is not None and (ready is None or may_start_early):
                self._start_worker(starting)
            elif ready is not None:
                self._send_job(ready)
            else:
                return

    def _next_for_ready_worker(self, first: str) -> Job | None:
        """The next job whose worker can take it: that of the cell ``first``, or else the first one."""
        job = self._waiting.get(first)
        if job is not None and job.worker in self._workers and self._workers[job.worker].takes_job:
            return job
        return self._first(key for key, worker in self._workers.items() if worker.takes_job and key in self._queues)

    def _next_without_worker(self, first: str) -> Job | None:
        """The next job whose worker can be started: that of the cell ``first``, or else the first one."""
        if self._workers.keys() >= self._queues.keys():
            return None
        for key, worker in list(self._workers.items()):
            if worker.is_ready and not worker.running and key not in self._queues:
                del self._workers[key]
                self._recipes.processes.stop(key)
        # Each GPU runs one cell at a time, however many jobs run at once.
        busy_gpus = {worker.gpu for worker in self._workers.values() if worker.gpu is not None}
        job = self._waiting.get(first)
        if job is not None and job.worker not in self._workers and job.gpu not in busy_gpus:
            return job
        missing = (key for key in self._queues if key not in self._workers)
        return self._first(key for key in missing if next(iter(self._queues[key].values())).gpu not in busy_gpus)

    def _first(self, workers: Iterable[WorkerKey]) -> Job | None:
        """The first job of the first of these workers for which any waits."""
        key = next(iter(workers), None)
        return None if key is None else next(iter(self._queues[key].values()))

    def _send_job(self, job: Job) -> None:
        """Send a job to its worker, which is ready."""
        worker = self._workers[job.worker]
        try:
            self._recipes.processes.post(job.worker, to_json(job))
        except OSError:
            worker.is_dead = True  # once its end is noticed, the job gets another
            return
        self._take(job)
        worker.running[job.id] = job
        self._recipes.processes.extend(job.worker, worker.patience)

    def _start_worker(self, job: Job) -> None:
        """Start the worker that a job needs."""
        forks = self._forks and job.shares_worker
        preparation = self._threads()
        conditions = Conditions(
            settings=self._settings,
            threads_of_preparation=preparation,
            threads_of_cell=self._share(len(self._workers) + len(self._waiting)) if forks else preparation,
            forks=forks,
        )
        name = job.spec.cell.recipe
        recipe = self._given.get(name)
        work = functools.partial(run_worker, job, conditions)
        warm_up = functools.partial(_preload, job.spec.cell.exporter)
        try:
            self._recipes.start(job.worker, name, work, job.limits, recipe=recipe, warm_up=warm_up)
        except OSError as error:
            for waiting in [*self._queues[job.worker].values()]:
                self._take(waiting)
                self._finished.append(CellFinished(evidence=evidence_without_process(waiting.spec, error)))
        else:
            self._workers[job.worker] = _Worker(forks=forks, seconds=job.limits.seconds, gpu=job.gpu)

    def _share(self, count: int) -> int:
        """How many threads each of so many things may use that run at once."""
        return max(1, self._cores // min(self._jobs, count))

    def _threads(self) -> int:
        """The threads of a worker that is about to be started: it gets the cores of slots that nothing else can use."""
        # What can run beside its preparation: the cells of workers that are ready and fork, one thing for each other worker.
        beside = len(self._queues)
        for key, worker in self._workers.items():
            waiting = len(self._queues.get(key, ()))
            beside += (len(worker.running) + waiting if worker.is_ready and worker.forks else 1) - bool(waiting)
        return self._share(beside)

    def _handle(self, key: Any, news: Message | Death) -> None:
        """Handle an event of a worker, or its death."""
        worker = self._workers.get(key)
        if worker is None:
            return  # it has just been ended
        match news if isinstance(news, Death) else event_of(news):
            case Death() as death:
                # Cells that have not begun get a new worker, unless their preparation ended this one.
                unprepared = () if worker.is_ready else tuple(self._queues.get(key, {}).values())
                for job in unprepared:
                    self._take(job)
                for job in (*worker.running.values(), *unprepared):
                    is_worker = worker.is_ready and worker.forks
                    evidence = evidence_of_death(job.spec, death, worker.last_seen, is_worker=is_worker)
                    self._finished.append(CellFinished(evidence=evidence))
                del self._workers[key]
            case WorkerReady():
                worker.is_ready, worker.last_seen = True, LastSeen()
                self._recipes.processes.extend(key, worker.patience)
            case CellFinished() as finished:
                worker.running.pop(finished.evidence.cell.id, None)
                worker.last_seen = LastSeen()
                self._recipes.processes.extend(key, worker.patience)
                self._finished.append(finished)
            case other:
                worker.last_seen.note(other)


def _preload(exporter: str) -> None:
    """Import what the cells of an exporter need in this process, from which they are forked."""
    from onnx_ci.pipeline.export.handling import preload  # with torch

    preload(exporter)
