"""In the process that decides: which cells run where and when, each in its own process, so that they cannot affect each other.

A *host* (:mod:`onnx_ci.engine.host`) is started for each recipe and device. It builds the model and computes the references
once. Where processes are forked, it then forks one for each of its cells: a cell finds everything in memory, copied on write,
and leaves nothing behind. Elsewhere its cells run in it, one after another, as does a cell that shares its preparation with no
other. This process supervises the hosts, and they supervise their forks, so that a process that crashes, hangs or exhausts
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

from onnx_ci.cache.watch import Seen
from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.settings import Settings
from onnx_ci.engine.jobs import Conditions, HostKey, Job, not_started, result_of_dead_process, run_host
from onnx_ci.engine.recipes import Recipes
from onnx_ci.engine.waiting import WaitingJobs
from onnx_ci.environment.coverage import patches_of_coverage
from onnx_ci.matrix.plan import CellPlan, PlannedCell, without_recipe
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


Keep = Callable[[CellEvidence, Seen | None], None]
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
"""How many times as long as a cell may take its host may be silent."""


@dataclass
class _Host:
    """A host, as seen by the process that started it."""

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
        allowed = [job.planned.timeout * (_SLACK if self.forks else 1) for job in self.running.values()]
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
        self._hosts: dict[HostKey, _Host] = {}
        self._waiting = WaitingJobs()
        self._results: dict[str, CellEvidence] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all processes and remove temporary files."""
        self._hosts.clear()
        self._recipes.close()

    def run(self, cells: Iterable[CellPlan]) -> Iterator[CellEvidence]:
        """The evidence about each cell, in order, each as soon as it is known."""
        cells = tuple(cells)
        self.expect(cells)
        for planned in cells:
            yield self.run_cell(planned)

    def expect(self, cells: Iterable[CellPlan]) -> None:
        """Announce cells for which :meth:`run_cell` will be called, so that they can run ahead."""
        cells = tuple(cells)
        # coverage.py saves what a process ran when that ends by itself; hosts are killed.
        is_measured = patches_of_coverage() is not None
        sharing = Counter((planned.cell.recipe, planned.cell.device) for planned in cells)
        for planned in cells:
            is_only_one = sharing[planned.cell.recipe, planned.cell.device] == 1 and not is_measured
            is_alone = is_only_one or self._needs_own_process(planned)
            self._add(planned, is_alone=is_alone)

    def _needs_own_process(self, planned: CellPlan) -> bool:
        """Whether a cell must not run where another one has run.

        In one process, ``torch.export`` does not export an LSTM with named axes a second time as it did at first (torch 2.13).
        """
        return not self._forks and planned.cell.exporter != "torchscript"  # another one may be built on torch.export

    def run_cell(self, planned: CellPlan, artifact: Artifact | None = None) -> CellEvidence:
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

    def _add(self, planned: CellPlan, artifact: Path | None = None, *, is_alone: bool) -> None:
        """Let a cell wait for its turn."""
        if isinstance(planned, PlannedCell):
            self._given[planned.recipe.name] = planned.recipe
        self._waiting.add(Job(planned=without_recipe(planned), artifact=artifact, is_alone=is_alone))

    def _is_known(self, id: str) -> bool:
        """Whether a cell waits, runs or has a result."""
        is_running = any(id in host.running for host in self._hosts.values())
        return is_running or id in self._results or self._waiting.get(id) is not None

    def _doing(self) -> list[str]:
        """What the processes are doing, in words."""
        doing = []
        for (recipe, *_), host in self._hosts.items():
            if host.ready:
                doing += [f"{job.planned.cell.recipe}::{job.planned.cell.label}" for job in host.running.values()]
            else:
                doing.append(f"{recipe}: {ACTIVITY.get(host.stage, host.stage or 'starting')}")
        return doing

    # --- scheduling

    def _start_jobs(self, first: str) -> None:
        """Send jobs to hosts, and start hosts, as long as a slot is free; ``first`` is the awaited cell."""
        while self._has_free_slot():
            ready = self._next_for_ready_host(first)
            is_awaited = ready is not None and ready.id == first
            starting = None if is_awaited else self._next_without_host(first)
            if starting is not None and (ready is None or self._may_start_early()):
                self._start_host(starting)
            elif ready is not None:
                self._send_job(ready)
            else:
                return

    def _may_start_early(self) -> bool:
        """Whether a host may be started although cells of others wait, so that its preparation runs beside them.

        Otherwise the last host would be prepared when nothing else is left to do. As each fills memory, there are never more of
        them than cells may run at once.
        """
        return len(self._hosts) < self._jobs and all(host.ready for host in self._hosts.values())

    def _has_free_slot(self) -> bool:
        return sum(len(host.running) + (not host.ready) for host in self._hosts.values()) < self._jobs

    def _next_for_ready_host(self, first: str) -> Job | None:
        """The next job whose host can take it: that of the cell ``first``, or else the first one."""
        job = self._waiting.get(first)
        if job is not None and job.host in self._hosts and self._hosts[job.host].takes_job:
            return job
        return self._waiting.first_of(key for key, host in self._hosts.items() if host.takes_job)

    def _next_without_host(self, first: str) -> Job | None:
        """The next job whose host can be started: that of the cell ``first``, or else the first one."""
        if self._waiting.first_without_host() is None:
            return None
        for key, host in list(self._hosts.items()):
            if host.ready and not host.running and not self._waiting.count(key):
                self._stop_host(key)
        # Each GPU runs one cell at a time, however many jobs run at once.
        busy_gpus = {host.gpu for host in self._hosts.values() if host.gpu is not None}
        job = self._waiting.get(first)
        if job is not None and job.host not in self._hosts and job.gpu not in busy_gpus:
            return job
        return self._waiting.first_without_host(busy_gpus=busy_gpus)

    def _send_job(self, job: Job) -> None:
        """Send a job to its host, which is ready."""
        host = self._hosts[job.host]
        try:
            self._recipes.processes.post(job.host, job.as_json())
        except OSError:
            host.is_dead = True  # once its end is noticed, the job gets another
            return
        self._waiting.remove(job.id)
        host.running[job.id] = job
        self._recipes.processes.extend(job.host, host.patience)

    def _start_host(self, job: Job) -> None:
        """Start the host that a job needs."""
        upcoming = self._waiting.of_host(job.host)
        forks = self._forks and job.shares_host
        preparation = self._threads()
        conditions = Conditions(
            settings=self._settings,
            threads_of_preparation=preparation,
            threads_of_cell=self._share(len(self._hosts) + len(self._waiting)) if forks else preparation,
            forks=forks,
        )
        name = job.planned.cell.recipe
        recipe = self._given.get(name)
        work = functools.partial(run_host, upcoming, conditions)
        warm_up = functools.partial(_preload, job.planned.cell.exporter)
        try:
            self._recipes.start(job.host, name, work, job.limits, recipe=recipe, warm_up=warm_up)
        except OSError as error:
            for waiting in upcoming:
                self._waiting.remove(waiting.id)
                self._finish(not_started(waiting, error), None)
        else:
            self._hosts[job.host] = _Host(forks=forks, seconds=job.limits.seconds, gpu=job.gpu)
            self._waiting.host_started(job.host)

    def _share(self, count: int) -> int:
        """How many threads each of so many things may use that run at once."""
        return max(1, self._cores // min(self._jobs, count))

    def _threads(self) -> int:
        """The threads of a host that is about to be started: it gets the cores of slots that nothing else can use."""
        # What can run beside its preparation: the cells of hosts that are ready and fork, and one thing for each other host.
        beside = self._waiting.hosts
        for key, host in self._hosts.items():
            waiting = self._waiting.count(key)
            beside += (len(host.running) + waiting if host.ready and host.forks else 1) - bool(waiting)
        return self._share(beside)

    def _stop_host(self, key: HostKey) -> None:
        self._forget_host(key)
        self._recipes.processes.stop(key)

    def _forget_host(self, key: HostKey) -> None:
        del self._hosts[key]
        self._waiting.host_ended(key)

    # --- results

    def _handle(self, key: Any, event: Message | Death) -> None:
        """Handle a message from a host, or its death."""
        host = self._hosts.get(key)
        if host is None:
            return  # it has just been ended
        if isinstance(event, Death):
            # Cells that have not begun get a new host, unless their preparation ended this one.
            ended = dict(host.running)
            if not host.ready:
                ended |= {job.id: job for job in self._waiting.of_host(key)}
            for id, job in ended.items():
                self._waiting.remove(id)
                is_host = host.ready and host.forks
                dead = result_of_dead_process(job.planned, event, host.stage, is_host=is_host, known=host.known)
                self._finish(dead, None)
            self._forget_host(key)
        elif "stage" in event:
            host.stage = event["stage"]
        elif "known" in event:
            host.known = event["known"]
        elif "ready" in event:
            host.ready, host.stage = event["ready"], ""
            self._recipes.processes.extend(key, host.patience)
        else:
            try:
                result = CellEvidence.from_json(event["result"])
                seen = Seen.from_json(event["seen"]) if "seen" in event else None
            except (ValueError, LookupError, TypeError) as error:  # the recipe has replaced what writes messages
                self._recipes.processes.stop(key)
                message = f"sent a result that cannot be read: {type(error).__name__}: {error}"
                self._handle(key, Death(cause="crash", message=message, log=""))
                return
            if host.running.pop(result.cell.id, None) is None:
                return  # a host speaks for the cells that it was sent, and once for each
            self._waiting.remove(result.cell.id)
            host.stage = host.stage if host.forks else ""
            if host.ready:
                self._recipes.processes.extend(key, host.patience)
            self._finish(result, seen)

    def _finish(self, evidence: CellEvidence, seen: Seen | None) -> None:
        self._results[evidence.cell.id] = evidence
        if self._keep is not None:
            self._keep(evidence, seen)


def _preload(exporter: str) -> None:
    """Import what the cells of an exporter need in this process, from which they are forked."""
    from onnx_ci.pipeline.export.preload import preload  # with torch

    preload(exporter)
