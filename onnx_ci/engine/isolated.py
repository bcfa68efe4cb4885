"""Cells in their own processes, so that they cannot affect each other.

A *host* is started for each recipe and device. It builds the model and computes the references once. Where processes are
forked, it then forks one for each of its cells: a cell finds everything in memory, copied on write, and leaves nothing behind.
Otherwise its cells run in it, one after another, as does a cell that shares its preparation with no other. This process
supervises the hosts, and they supervise their forks, so that a process that crashes, hangs or exhausts memory becomes a finding
of its cell.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch

from onnx_ci.cache.observed import Observation, is_observed, mark_as_known, news, observe, observe_seeds
from onnx_ci.config.settings import Settings
from onnx_ci.engine import export_ahead
from onnx_ci.engine.engine import Engine, Preparation
from onnx_ci.engine.export_ahead import ExportAhead, ExportedAhead
from onnx_ci.engine.waiting import HostKey, WaitingJobs
from onnx_ci.engine.warm_up import warm_up
from onnx_ci.environment.coverage import patches_of_coverage
from onnx_ci.environment.torch_variables import set_torch_variables
from onnx_ci.errors import disk_error
from onnx_ci.matrix.plan import PlannedCell
from onnx_ci.processes.allocator import return_free_memory
from onnx_ci.processes.apart import processes_of
from onnx_ci.processes.capture import report_stages
from onnx_ci.processes.child import Inbox
from onnx_ci.processes.control_groups import usable_cores
from onnx_ci.processes.descriptors import Channel
from onnx_ci.processes.forked import ForkedInbox, ForkedProcesses
from onnx_ci.processes.limits import ProcessLimits, default_jobs, process_limits
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.processes.supervisor import LAST, REUSABLE, Death, Message, Processes, Send
from onnx_ci.results.json_data import to_json
from onnx_ci.results.records import Cell, CellEvidence
from onnx_ci.results.rules import finding
from onnx_ci.stages.export.exporter import Artifact
from onnx_ci.stages.export.preload import import_quietly
from onnx_ci.stages.export.repeated_work import read_torchlib
from onnx_ci.stages.prepare import devices

_ACTIVITY = {
    "fingerprint": "checking for changes",
    "build": "building the model",
    "reference": "computing the reference outputs",
    "sketch": "summarizing the weights",
    "side-effects": "running the model again",
    "probes": "running the model on other inputs",
    "branches": "looking for the other sides of branches",
    "observability": "measuring observability",
    "export": "exporting",
    "post-export": "applying the post-export stages",
    "rounding": "simulating the rounding of the post-export stages",
    "contract": "checking the file",
    "load": "loading the file",
    "run": "running the file",
    "compare": "comparing",
}
"""What a process is doing in each stage."""

Watch = Callable[[Sequence[str]], None]
"""Called with what is being done, in words: the cells that run, and the recipes that are being prepared."""
WATCH_INTERVAL = 0.5
"""Seconds between two calls of a :data:`Watch`."""


Keep = Callable[[CellEvidence], None]
"""Called with the evidence about a cell as soon as it is known, which may be long before it is asked for."""


def open_engine(
    settings: Settings,
    *,
    share: int = 1,
    watch: Watch | None = None,
    keep: Keep | None = None,
    channels: Sequence[Channel] = (),
) -> Engine | IsolatedEngine:
    """The engine that the settings ask for.

    Args:
        share: how many engines run on this machine at once and share its cores and its memory.
        watch: called repeatedly with what is being done while a result is awaited; unused without processes.
        keep: called with each evidence; unused without processes, where cells run only when they are asked for.
        channels: pipes and sockets of this process that no recipe may reach; unused without processes.
    """
    if settings.isolation == "none":
        return _engine(settings)
    set_torch_variables()  # a command has set them, before it imported torch
    cores = max(1, min(torch.get_num_threads(), usable_cores()) // share)
    jobs = settings.jobs or default_jobs(cores, share)
    return IsolatedEngine(settings, cores=cores, jobs=jobs, watch=watch, keep=keep, channels=channels)


def _engine(settings: Settings) -> Engine:
    """An engine without processes of its own."""
    if is_observed():
        observe_seeds()
    return Engine(
        cache_folder=settings.cache_folder,
        root=settings.root,
        artifacts=settings.artifacts,
        save_inputs=settings.save_inputs,
    )


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A cell to run, or a file to judge as one."""

    planned: PlannedCell
    artifact: Path | None = None
    is_alone: bool = False
    """Whether no other cell shares its preparation."""

    @property
    def id(self) -> str:
        """The id of the cell."""
        return self.planned.cell.id

    @property
    def host(self) -> HostKey:
        """The key of the host that the job needs."""
        cell = self.planned.cell
        return cell.recipe, cell.device, self.artifact is not None, "" if self.shares_host else cell.label

    @property
    def shares_host(self) -> bool:
        """Whether the host of the cell serves others, too.

        A fork cannot use CUDA if its parent process has initialized it, and memory of a GPU is freed for certain only when
        its process ends, so cells on a GPU do not share a host.
        """
        return self.gpu is None and not self.is_alone

    @property
    def gpu(self) -> str | None:
        """The GPU that the cell needs, if any."""
        return self.planned.cell.gpu

    @property
    def file(self) -> Artifact | None:
        """The existing file to judge, if any."""
        return None if self.artifact is None else Artifact(path=self.artifact)

    def as_json(self) -> dict[str, Any]:
        """The job as it is sent to a host, which has the recipe and the values that apply to it."""
        artifact = self.artifact and str(self.artifact)
        return {"cell": to_json(self.planned.cell), "artifact": artifact, "is_alone": self.is_alone}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], like: PlannedCell) -> Self:
        """The job that :meth:`as_json` returned, for a cell that differs from ``like`` only in its exporter and opset."""
        artifact = data["artifact"]
        planned = dataclasses.replace(like, cell=Cell(**data["cell"]))
        return cls(planned=planned, artifact=artifact and Path(artifact), is_alone=data["is_alone"])


class _Threads(NamedTuple):
    """How many threads a host uses."""

    preparation: int
    cell: int
    """In each of its cells."""


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
    exports_ahead: bool
    """Whether an export may run beside its preparation."""
    ready: bool = False
    is_dead: bool = False
    """Whether it was found dead before its end was noticed."""
    stage: str = ""
    running: dict[str, _Job] = field(default_factory=dict)

    @property
    def takes_job(self) -> bool:
        """Whether it can be sent a job now."""
        return self.ready and not self.is_dead and (self.forks or not self.running)

    @property
    def preparing(self) -> int:
        """How many cores its preparation uses."""
        return 0 if self.ready else 1 + self.exports_ahead

    @property
    def patience(self) -> float | None:
        """How many seconds may pass until its next message; ``None`` if none is due."""
        if not self.ready:
            return self.seconds
        # It ends its cells in time, unless the recipe keeps it from doing so, as with a thread that lets no other run.
        allowed = [job.planned.timeout * (_SLACK if self.forks else 1) for job in self.running.values()]
        return max(allowed, default=None)


class IsolatedEngine:
    """Runs cells like :class:`~onnx_ci.engine.engine.Engine`, but each in its own process, several at once.

    Args:
        cores: how many threads all cells together may use.
        jobs: how many cells, or preparations, run at once.
        watch: as for :func:`open_engine`.
        keep: as for :func:`open_engine`.
        channels: as for :func:`open_engine`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        cores: int,
        jobs: int,
        watch: Watch | None = None,
        keep: Keep | None = None,
        channels: Sequence[Channel] = (),
    ) -> None:
        self._settings = settings
        self._forks = settings.isolation == "fork"
        self._watch, self._keep = watch, keep
        self._cores, self._jobs = cores, jobs
        self._scratch = contextlib.ExitStack()
        folder = self._scratch.enter_context(scratch_folder())
        self._processes: Processes[Any] = processes_of(settings.isolation, folder, channels)
        self._hosts: dict[HostKey, _Host] = {}
        self._looked_up: set[HostKey] = set()
        """The hosts that have looked into the cache without running a cell."""
        self._waiting: WaitingJobs[_Job] = WaitingJobs()
        self._results: dict[str, CellEvidence] = {}
        self._imported_by_hosts: dict[str, None] = {}
        """The modules of torch that hosts have imported and this process has not."""
        self.observed = Observation()
        """What the processes read and did that the keys of their cells, and what is kept with their verdicts, depend on."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all processes and remove temporary files."""
        self._hosts.clear()
        self._processes.close()
        self._scratch.close()

    def run(self, cells: Iterable[PlannedCell]) -> Iterator[CellEvidence]:
        """The evidence about each cell, in order, each as soon as it is known."""
        cells = tuple(cells)
        self.expect(cells)
        for planned in cells:
            yield self.run_cell(planned)

    def expect(self, cells: Iterable[PlannedCell]) -> None:
        """Announce cells for which :meth:`run_cell` will be called, so that they can run ahead."""
        cells = tuple(cells)
        # coverage.py saves what a process ran when that ends by itself; hosts are killed.
        is_measured = patches_of_coverage() is not None
        sharing = Counter((planned.cell.recipe, planned.cell.device) for planned in cells)
        for planned in cells:
            is_only_one = sharing[planned.cell.recipe, planned.cell.device] == 1 and not is_measured
            is_alone = is_only_one or self._needs_own_process(planned)
            self._waiting.add(_Job(planned=planned, is_alone=is_alone))

    def _needs_own_process(self, planned: PlannedCell) -> bool:
        """Whether a cell must not run where another one has run.

        In one process, ``torch.export`` does not export an LSTM with named axes a second time as it did at first (torch 2.13).
        """
        return not self._forks and planned.cell.exporter == "dynamo"

    def run_cell(self, planned: PlannedCell, artifact: Artifact | None = None) -> CellEvidence:
        """Everything that onnx-ci can find out about one cell. Errors in the cell are not raised.

        Args:
            artifact: an existing file to judge instead of a fresh export.
        """
        id = planned.cell.id
        if not self._is_known(id):
            # Whether other cells of the recipe follow a cell that was not announced is unknown.
            path = None if artifact is None else artifact.path
            is_alone = artifact is not None or self._needs_own_process(planned)
            self._waiting.add(_Job(planned=planned, artifact=path, is_alone=is_alone))
        while id not in self._results:
            self._start_jobs(first=id)
            if id not in self._results:  # a cell that could not be started already has its result
                if self._watch is not None:
                    self._watch(self._doing())
                for key, event in self._processes.wait(None if self._watch is None else WATCH_INTERVAL):
                    self._handle(key, event)
        return self._results.pop(id)

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
                doing.append(f"{recipe}: {_ACTIVITY.get(host.stage, host.stage or 'starting')}")
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

    def _next_for_ready_host(self, first: str) -> _Job | None:
        """The next job whose host can take it: that of the cell ``first``, or else the first one."""
        job = self._waiting.get(first)
        if job is not None and job.host in self._hosts and self._hosts[job.host].takes_job:
            return job
        return self._waiting.first_of(key for key, host in self._hosts.items() if host.takes_job)

    def _next_without_host(self, first: str) -> _Job | None:
        """The next job whose host can be started: that of the cell ``first``, or else the first one."""
        if self._waiting.first_without_host() is None:
            return None
        for key, host in list(self._hosts.items()):
            if host.ready and not host.running and not self._waiting.count(key):
                self._stop_host(key)
        # One cell at a time uses a GPU, however many jobs run at once.
        busy_gpus = {host.gpu for host in self._hosts.values() if host.gpu is not None}
        job = self._waiting.get(first)
        if job is not None and job.host not in self._hosts and job.gpu not in busy_gpus:
            return job
        return self._waiting.first_without_host(busy_gpus=busy_gpus)

    def _send_job(self, job: _Job) -> None:
        """Send a job to its host, which is ready."""
        host = self._hosts[job.host]
        try:
            self._processes.post(job.host, job.as_json())
        except OSError:
            host.is_dead = True  # once its end is noticed, the job gets another
            return
        self._waiting.remove(job.id)
        host.running[job.id] = job
        self._processes.extend(job.host, host.patience)

    def _start_host(self, job: _Job) -> None:
        """Start the host that a job needs."""
        if self._forks:
            import_quietly(self._imported_by_hosts)  # this one may need it, too
            self._imported_by_hosts.clear()
        if is_observed():
            mark_as_known()
        upcoming = self._waiting.of_host(job.host)
        busy = sum(len(host.running) + host.preparing for host in self._hosts.values())
        exports_ahead = self._forks and job.gpu is None and job.artifact is None and busy + 2 <= self._cores
        forks = self._forks and job.shares_host
        threads = self._threads(forks=forks)
        serve = _serve_forks if forks else _serve
        exports = job.artifact is None
        is_cached = self._settings.cache is not None
        limits = _limits(job.planned)
        try:
            self._processes.start(
                job.host,
                functools.partial(serve, upcoming, self._settings, threads, exports_ahead),
                limits,
                warm_up=functools.partial(warm_up, job.planned.cell.exporter, is_cached=is_cached, exports=exports),
                has_inbox=True,
                is_fresh=job.host in self._looked_up,
            )
        except OSError as error:
            for each in upcoming:
                self._waiting.remove(each.id)
                self._finish(_not_started(each, error))
        else:
            self._hosts[job.host] = _Host(forks=forks, seconds=limits.seconds, gpu=job.gpu, exports_ahead=exports_ahead)
            self._waiting.host_started(job.host)

    def _threads(self, *, forks: bool) -> _Threads:
        """The threads of a host that is about to be started: it gets the cores of slots that nothing else can use."""

        def share(count: int) -> int:
            return max(1, self._cores // min(self._jobs, count))

        # What can run beside its preparation: the cells of hosts that are ready and fork, and one thing for each other host.
        beside = self._waiting.hosts
        for key, host in self._hosts.items():
            waiting = self._waiting.count(key)
            beside += (len(host.running) + waiting if host.ready and host.forks else 1) - bool(waiting)
        preparation = share(beside)
        return _Threads(preparation, share(len(self._hosts) + len(self._waiting)) if forks else preparation)

    def _stop_host(self, key: HostKey) -> None:
        self._forget_host(key)
        self._processes.stop(key)

    def _forget_host(self, key: HostKey) -> None:
        del self._hosts[key]
        self._waiting.host_ended(key)

    # --- results

    def _handle(self, key: Any, event: Message | Death) -> None:
        """Handle a message from a host, or its death."""
        host = self._hosts[key]
        if isinstance(event, Death):
            # Cells that have not begun get a new host, unless their preparation ended this one.
            ended = dict(host.running)
            if not host.ready:
                ended |= {job.id: job for job in self._waiting.of_host(key)}
            for id, job in ended.items():
                self._waiting.remove(id)
                self._finish(_result_of_dead_process(job.planned, event, host.stage, is_host=host.ready and host.forks))
            self._forget_host(key)
        elif LAST in event:  # every result was in the cache, or the process has served before
            self._forget_host(key)
            self._looked_up.add(key)
        elif "stage" in event:
            host.stage = event["stage"]
        elif "observed" in event:
            self.observed |= Observation.from_json(event["observed"])
        elif "ready" in event:
            host.ready, host.stage = event["ready"], ""
            self._imported_by_hosts.update(dict.fromkeys(event["imported"]))
            self._processes.extend(key, host.patience)
        else:
            result = CellEvidence.from_json(event["result"])
            needs_hosts = self._forks and self._waiting.first_without_host() is not None
            if result.cell.exporter == "dynamo" and not result.cached and needs_hosts:
                read_torchlib()  # later hosts export, too
            host.running.pop(result.cell.id, None)
            self._waiting.remove(result.cell.id)
            host.stage = host.stage if host.forks else ""
            if host.ready:
                self._processes.extend(key, host.patience)
            self._finish(result)

    def _finish(self, evidence: CellEvidence) -> None:
        self._results[evidence.cell.id] = evidence
        if self._keep is not None:
            self._keep(evidence)


def _limits(planned: PlannedCell) -> ProcessLimits:
    return process_limits(planned.timeout, planned.memory_limit)


def _not_started(job: _Job, error: OSError) -> CellEvidence:
    """The evidence about a cell whose process could not be started."""
    rule = "crash" if disk_error(error) is None else "disk-error"
    broken = finding(rule, f"no process could be started: {error}")
    return CellEvidence(cell=job.planned.cell, findings=(broken,))


def _result_of_dead_process(planned: PlannedCell, death: Death, stage: str, *, is_host: bool = False) -> CellEvidence:
    """The evidence about a cell whose process, or whose host, died."""
    activity = f" while {_ACTIVITY.get(stage, stage)}" if stage else ""
    which = "the process from which the recipe's cells are forked" if is_host else "the process"
    broken = finding(death.cause, f"{which} {death.message}{activity}", details={"stage": stage})
    return CellEvidence(cell=planned.cell, findings=(broken,), log=death.log)


# --- what runs in the processes -------------------------------------------------------------------------------------


def _serve(
    upcoming: Sequence[_Job], settings: Settings, threads: _Threads, exports_ahead: bool, send: Send, inbox: Inbox
) -> None:
    """The main function of a host that runs its cells itself."""
    if settings.isolation == "spawn" and settings.cache is not None:
        observe()  # a fork inherits it where the run needs it
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(_engine(settings))
        processes = stack.enter_context(_processes_of_host(inbox)) if isinstance(inbox, ForkedInbox) else None
        host = _Server(engine, send, processes if exports_ahead else None)
        if host.open(upcoming, threads):
            for request in inbox:
                host.begin(_Job.from_json(request, upcoming[0].planned))


def _serve_forks(
    upcoming: Sequence[_Job], settings: Settings, threads: _Threads, exports_ahead: bool, send: Send, inbox: ForkedInbox
) -> None:
    """The main function of a host that forks a process for each cell."""
    with _engine(settings) as engine, _processes_of_host(inbox) as cells:
        host = _ForkingServer(engine, send, cells, exports_ahead=exports_ahead)
        if not host.open(upcoming, threads):
            return
        while (requests := inbox.arrived()) is not None:
            for request in requests:
                host.begin(_Job.from_json(request, upcoming[0].planned))
            for key, event in cells.wait():
                host.handle(str(key), event)


def _processes_of_host(inbox: ForkedInbox) -> contextlib.closing[ForkedProcesses]:
    return contextlib.closing(ForkedProcesses(Path(tempfile.gettempdir()), caller=inbox))


_has_served = False
"""Whether this process has already been the host of a recipe, whose function has run in it."""


class _Server:
    """Handles the jobs of a host, and runs their cells in this process.

    Args:
        ahead: where the export of the first cell runs during the preparation; ``None`` if it waits for that.
    """

    def __init__(self, engine: Engine, send: Send, ahead: ForkedProcesses | None) -> None:
        self._engine, self._send = engine, send
        self._missing: set[str] = set()
        self._threads_of_cell = 1
        self._is_warm = False
        self._preparation: Preparation | None = None
        self._ahead_in = ahead
        self._ahead: ExportAhead | None = None
        """The export of the first cell, until that takes it."""

    def open(self, jobs: Sequence[_Job], threads: _Threads) -> bool:
        """Answer jobs from the cache, and prepare for the others. Returns whether there are any that this process can run."""
        global _has_served
        torch.set_num_threads(threads.preparation)
        self._threads_of_cell = threads.cell
        report_stages(self._begin_stage)
        if devices.gpus.was_used_by_parent():
            devices.gpus.hide()
        known = len(sys.modules)
        for job in jobs:
            if not self._answer(job) and not _has_served:
                self._warm(job)
        if not self._missing or _has_served:  # a cell runs where no other recipe has left anything
            _has_served = True
            # A process that has used a GPU keeps memory there, which the next cell may need.
            self._send({LAST: None} if jobs[0].gpu is not None else {LAST: None, REUSABLE: True})
            return False
        # torch imports much of itself lazily: a recurrent layer alone imports all of torch._dynamo.
        imported = sorted(name for name in _imported_since(known) if name.startswith("torch."))
        self._send({"ready": True, "imported": imported})
        return True

    def _begin_stage(self, stage: str) -> None:
        self._send({"stage": stage})
        if self._ahead is not None:
            self._ahead.look()

    def begin(self, job: _Job) -> None:
        """Answer a job from the cache, or run its cell."""
        if job.planned.cell.id not in self._missing and self._answer(job):
            return
        if not self._is_warm:
            self._send({"ready": False, "imported": []})
            self._warm(job)
            self._send({"ready": True, "imported": []})
        self._run(job)

    def _run(self, job: _Job) -> None:
        """Run the cell of a job."""
        ahead = self._ahead_of(job)
        if ahead is not None:
            self._send({"stage": "export"})
            ahead.wait()
        exported = self._taken_export(job)
        result = self._engine.run_cell(job.planned, job.file, self._taken_preparation(), exported)
        _tell(_observed(self._engine, result), self._send)
        self._send({"result": result.as_json()})

    def _ahead_of(self, job: _Job) -> ExportAhead | None:
        """The export of a job's cell, if it has been started and not been taken."""
        return self._ahead if self._ahead is not None and self._ahead.id == job.id else None

    def _taken_export(self, job: _Job) -> ExportedAhead | None:
        """What the export of a job's cell gave, once; it has ended. ``None`` if the cell has to export by itself."""
        ahead = self._ahead_of(job)
        if ahead is not None:
            self._ahead = None
            if ahead.exported is not None:
                return ahead.exported
            self._send({"ready": True, "imported": []})  # its time begins again
        if job.planned.cell.exporter == "dynamo" and job.artifact is None:
            read_torchlib()  # once for all exports of this host
        return None

    def _taken_preparation(self) -> Preparation | None:
        """The preparation, once: its first cell reports it."""
        preparation, self._preparation = self._preparation, None
        return preparation

    def _answer(self, job: _Job) -> bool:
        known = None if job.artifact else self._engine.cached(job.planned)
        if is_observed() and (known is not None or not self._missing):  # later, no other key is computed here
            _tell(news(), self._send)
        if known is None:
            self._missing.add(job.planned.cell.id)
        else:
            self._send({"result": known.as_json()})
        return known is not None

    def _warm(self, job: _Job) -> None:
        """Prepare for the cells, of which this job's is the first one."""
        if not self._is_warm:
            if self._ahead_in is not None:
                self._ahead = ExportAhead(self._ahead_in, job.planned)
            start = None if self._ahead is None else self._ahead.start
            self._preparation = self._engine.warm(job.planned, given=job.artifact is not None, export_ahead=start)
            if self._ahead is not None and not (self._ahead.has_begun and self._preparation.takes_export_ahead):
                self._ahead.cancel()
                self._ahead = None
            self._is_warm = True


def _imported_since(count: int) -> list[str]:
    """The modules that were imported after the first ``count``: the last ones.

    Looking at the others, too, would copy the memory that holds their names, which a fork shares with its parent.
    """
    return list(itertools.islice(reversed(sys.modules), max(0, len(sys.modules) - count)))  # at once: threads may import more


class _ForkingServer(_Server):
    """Handles the jobs of a host, and forks a process for each of their cells."""

    def __init__(self, engine: Engine, send: Send, cells: ForkedProcesses, *, exports_ahead: bool) -> None:
        super().__init__(engine, send, cells if exports_ahead else None)
        self._cells = cells
        self._jobs: dict[str, _Job] = {}
        self._stages: dict[str, str] = {}
        self._waits_for_export: _Job | None = None

    def _run(self, job: _Job) -> None:
        self._jobs[job.id] = job
        ahead = self._ahead_of(job)
        if ahead is not None and ahead.is_running:
            self._waits_for_export = job
            return
        exported = self._taken_export(job)
        work = functools.partial(_run_cell, self._engine, job, self._threads_of_cell, self._taken_preparation(), exported)
        limits = dataclasses.replace(_limits(job.planned), spent=exported.seconds if exported is not None else 0.0)
        try:
            self._cells.start(job.id, work, limits)
        except OSError as error:
            self._send({"result": _not_started(job, error).as_json()})

    def handle(self, id: str, event: Message | Death) -> None:
        """Handle a message of the process of a cell, or of its export, or the end of one."""
        if id == export_ahead.KEY:
            self._handle_export(event)
        elif isinstance(event, Death):
            dead = _result_of_dead_process(self._jobs[id].planned, event, self._stages.get(id, ""))
            self._send({"result": dead.as_json()})
        elif "stage" in event:
            self._stages[id] = event["stage"]
        elif "observed" in event:
            self._send(event)
        else:
            self._send({"result": event[LAST]})

    def _handle_export(self, event: Message | Death) -> None:
        if self._ahead is not None:
            self._ahead.handle(event)
        waiting, self._waits_for_export = self._waits_for_export, None
        if waiting is not None:
            self._run(waiting)

    def _warm(self, job: _Job) -> None:
        super()._warm(job)
        return_free_memory()


def _run_cell(
    engine: Engine, job: _Job, threads: int, preparation: Preparation | None, ahead: ExportedAhead | None, send: Send
) -> None:
    """The main function of the process of a cell on the CPU."""
    torch.set_num_threads(min(threads, torch.get_num_threads()))  # a recipe may have set fewer
    devices.gpus.hide()  # its host, or importing ONNX Runtime for CUDA, may have initialized them
    report_stages(lambda stage: send({"stage": stage}))
    result = engine.run_cell(job.planned, job.file, preparation, ahead)
    _tell(_observed(engine, result), send)
    send({LAST: result.as_json()})


def _observed(engine: Engine, result: CellEvidence) -> Observation:
    """What the verdict on a cell depends on that its host has not told."""
    # Where another run has stored it since the host looked it up, what it depends on was looked at in this process.
    return engine.observed | news() if result.cached else engine.observed


def _tell(observed: Observation, send: Send) -> None:
    """Tell the process of the run, if that is observed, and if there is anything to tell."""
    if is_observed() and observed != Observation():
        send({"observed": observed.as_json()})
