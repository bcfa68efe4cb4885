"""Cells in processes of their own: what happens in a cell stays in the cell.

A *host* is forked for each recipe and device. It builds the model and computes the references once, and is then the
server from which each of its cells is forked: a cell finds everything in memory, shared until it writes, and leaves
nothing behind. A cell that shares its preparation with none runs in its host. The host watches its cells, and this
process watches the hosts, so that whatever dies, hangs or eats memory is told as a finding of the cell that did.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from onnx_ci import devices, installed
from onnx_ci.capture import tell_stages
from onnx_ci.config import Settings
from onnx_ci.engine import Engine, Preparation, lost
from onnx_ci.environment import version_of
from onnx_ci.errors import disk_error
from onnx_ci.exporting import Artifact
from onnx_ci.matrix import PlannedCell
from onnx_ci.processes import LAST, Death, Limits, Message, Processes, Send, limits_of, release_memory
from onnx_ci.recipe import Recipe
from onnx_ci.records import Cell, CellResult, to_json
from onnx_ci.rules import finding
from onnx_ci.sources import NotCacheableError

_DOING = {
    "fingerprint": "looking for what has changed",
    "build": "building the model",
    "reference": "computing what the model should compute",
    "sketch": "looking at the weights",
    "purity": "running the model again",
    "probes": "running the model on other inputs",
    "observability": "measuring what the comparison can see",
    "export": "exporting",
    "contract": "checking the file",
    "load": "loading the file",
    "run": "running the file",
    "compare": "comparing",
}
"""What a process is doing in each stage."""

Watch = Callable[[Sequence[str]], None]
"""Hears in words what is being done: the cells that run, and the recipes that are prepared."""
TELL = 0.5
"""Seconds between two words to whoever watches."""


def open_engine(settings: Settings, *, share: int = 1, watch: Watch | None = None) -> Engine | IsolatedEngine:
    """The engine that the settings ask for.

    Args:
        share: how many engines run on this machine at once, each with its part of the cores.
        watch: is told what is being done, again and again while a result is waited for; without processes nobody can.
    """
    if settings.isolation == "none":
        return Engine(settings)
    cores = max(1, torch.get_num_threads() // share)
    return IsolatedEngine(settings, cores=cores, jobs=settings.jobs or cores, watch=watch)


_USED_BY = {
    "torchscript": (
        "onnx",
        "onnxruntime",
        "onnxscript",
        "torch.onnx._internal.torchscript_exporter.utils",
        *(f"torch.onnx._internal.torchscript_exporter.symbolic_opset{opset}" for opset in range(7, 24)),
    ),
    "dynamo": (
        "onnx",
        "onnxruntime",
        "onnxscript.function_libs.torch_lib.ops",
        "onnxscript.rewriter.onnx_fusions",
        "sympy.tensor.tensor",
        "torch._dynamo.repro.after_dynamo",
        "torch._dynamo.testing",
        "torch._export.non_strict_utils",
        "torch._inductor.compile_fx",
        "torch.export",
        "torch.onnx._internal.exporter._core",
        "torch.onnx._internal.exporter._registration",
    ),
}
"""What each exporter imports when it is first used; a name that another version of torch lacks does no harm."""


@functools.cache
def preload(exporter: str) -> None:
    """Import what cells need before the first fork, so that no process has to: it is most of what one would cost."""
    # ONNX Runtime for CUDA may look for GPUs as it is imported (1.31), and a fork cannot use the CUDA of its parent.
    left = "onnxruntime" if version_of("onnxruntime-gpu") else ""
    _import(name for name in _USED_BY[exporter] if name != left)


def _import(names: Iterable[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what these packages say of one another is no news to the user
        for name in names:
            with contextlib.suppress(Exception):  # who needs it will tell what is wrong with it
                importlib.import_module(name)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A cell to run, or a file to judge as one."""

    planned: PlannedCell
    artifact: Path | None = None
    is_alone: bool = False
    """Whether no other cell needs what this one prepares."""

    @property
    def host(self) -> tuple[object, ...]:
        """The key of the host that the job needs."""
        cell = self.planned.cell
        return cell.recipe, cell.device, self.artifact is not None, "" if self.is_forked else cell.label

    @property
    def is_forked(self) -> bool:
        """Whether the cell gets a process of its own, or runs in its host, which then serves no other.

        A fork cannot use the CUDA of the process that it was forked from, so no two cells share a host there.
        """
        return self.gpu is None and not self.is_alone

    @property
    def gpu(self) -> str | None:
        """The GPU that the cell needs, if it does."""
        return self.planned.cell.gpu

    @property
    def file(self) -> Artifact | None:
        """The file to judge, if it exists already."""
        return None if self.artifact is None else Artifact(path=self.artifact)

    def as_json(self) -> dict[str, Any]:
        """The job as it is sent to a host, which knows the recipe."""
        artifact = self.artifact and str(self.artifact)
        return {"cell": to_json(self.planned.cell), "artifact": artifact, "is_alone": self.is_alone}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], recipe: Recipe) -> Self:
        """The job that :meth:`as_json` wrote."""
        artifact = data["artifact"]
        planned = PlannedCell(cell=Cell(**data["cell"]), recipe=recipe)
        return cls(planned=planned, artifact=artifact and Path(artifact), is_alone=data["is_alone"])


@dataclass
class _Host:
    """A host as the process sees it that has started it."""

    requests: int
    """Where it reads its jobs."""
    seconds: float | None
    """How long it may prepare."""
    gpu: str | None
    ready: bool = False
    stage: str = ""
    running: dict[str, _Job] = field(default_factory=dict)


class IsolatedEngine:
    """Runs cells like :class:`~onnx_ci.engine.Engine`, each in a process of its own, several at once.

    Args:
        cores: how many threads the cells may use together.
        jobs: how many cells, or preparations, run at once.
        watch: as for :func:`open_engine`.
    """

    def __init__(self, settings: Settings, *, cores: int, jobs: int, watch: Watch | None = None) -> None:
        self._settings = settings
        self._watch = watch
        self._cores, self._jobs = cores, jobs
        self._scratch = tempfile.TemporaryDirectory(prefix="onnx-ci-", ignore_cleanup_errors=True)
        self._processes = Processes(Path(self._scratch.name))
        self._hosts: dict[tuple[object, ...], _Host] = {}
        self._waiting: dict[str, _Job] = {}
        self._results: dict[str, CellResult] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End every process and remove the files that are not kept."""
        for host in self._hosts.values():
            os.close(host.requests)
        self._hosts.clear()
        self._processes.close()
        self._scratch.cleanup()

    def run(self, cells: Iterable[PlannedCell]) -> Iterator[CellResult]:
        """One result a cell, in order, each as soon as it is known."""
        cells = tuple(cells)
        self.expect(cells)
        for planned in cells:
            yield self.run_cell(planned)

    def expect(self, cells: Iterable[PlannedCell]) -> None:
        """Announce cells that :meth:`run_cell` will be asked for, so that they can run ahead of it."""
        cells = tuple(cells)
        sharing = Counter((planned.cell.recipe, planned.cell.device) for planned in cells)
        for planned in cells:
            is_alone = sharing[planned.cell.recipe, planned.cell.device] == 1
            self._waiting[planned.cell.id] = _Job(planned=planned, is_alone=is_alone)

    def run_cell(self, planned: PlannedCell, artifact: Artifact | None = None) -> CellResult:
        """Everything that onnx-ci can say about one cell. Nothing that goes wrong in it is raised.

        Args:
            artifact: a file that exists already, to be judged in place of a fresh export.
        """
        id = planned.cell.id
        known = id in self._waiting or id in self._results or any(id in host.running for host in self._hosts.values())
        if not known:
            # Of a cell that nobody has announced nobody knows whether others of its recipe will follow.
            path = None if artifact is None else artifact.path
            self._waiting[id] = _Job(planned=planned, artifact=path, is_alone=artifact is not None)
        while id not in self._results:
            self._start_what_can_start(first=id)
            if id not in self._results:  # what could not be started has its result already
                if self._watch is not None:
                    self._watch(self._doing())
                for key, event in self._processes.wait(None if self._watch is None else TELL):
                    self._take(key, event)
        return self._results.pop(id)

    def _doing(self) -> list[str]:
        """What the processes are doing, in words."""
        doing = []
        for (recipe, *_), host in self._hosts.items():
            if host.ready:
                doing += [f"{job.planned.cell.recipe}::{job.planned.cell.label}" for job in host.running.values()]
            else:
                doing.append(f"{recipe}: {_DOING.get(host.stage, host.stage or 'starting')}")
        return doing

    # --- what runs when

    def _start_what_can_start(self, first: str) -> None:
        """Give jobs to hosts, and start hosts, as long as a place is free; ``first`` is what somebody waits for.

        Hosts that are ready come first, so that they are done with before others fill the memory.
        """
        order = [first, *(id for id in self._waiting if id != first)] if first in self._waiting else list(self._waiting)
        for begins in (self._give, self._start_host):
            for id in order:
                busy = sum(len(host.running) + (not host.ready) for host in self._hosts.values())
                if busy >= self._jobs:
                    return
                if id in self._waiting:
                    begins(self._waiting[id])

    def _give(self, job: _Job) -> None:
        """Give a job to its host, if that is ready."""
        host = self._hosts.get(job.host)
        if host is None or not host.ready:
            return
        try:
            os.write(host.requests, json.dumps(job.as_json()).encode() + b"\n")
        except BrokenPipeError:
            return  # the host is dead; once that is known, the job gets another
        id = job.planned.cell.id
        host.running[id] = self._waiting.pop(id)
        if not job.is_forked:
            self._processes.extend(job.host, host.seconds)

    def _start_host(self, job: _Job) -> None:
        """Start the host that a job needs, unless it is there."""
        if job.host in self._hosts:
            return
        needed = {waiting.host for waiting in self._waiting.values()}
        for key, host in list(self._hosts.items()):
            if host.ready and not host.running and key not in needed:
                self._stop_host(key)
        if job.gpu is not None and any(host.gpu == job.gpu for host in self._hosts.values()):
            return  # one cell at a time has a GPU, however many run at once beside it
        preload(job.planned.cell.exporter)
        if self._settings.cache is not None:
            with contextlib.suppress(NotCacheableError):
                installed.versions()  # both are remembered: what is looked up here, no host looks up again
                installed.own_files()
        # Places that nobody else can take leave their cores to this host.
        threads = max(1, self._cores // min(self._jobs, len(self._waiting) + len(self._hosts)))
        requests, ours = os.pipe()
        upcoming = [each for each in self._waiting.values() if each.host == job.host]
        work = functools.partial(_serve, upcoming, self._settings, requests, threads)
        limits = _limits(job.planned.recipe, self._settings)
        try:
            self._processes.start(job.host, work, limits)
        except OSError as error:
            for each in upcoming:
                self._results[each.planned.cell.id] = _not_started(self._waiting.pop(each.planned.cell.id), error)
            os.close(ours)
        else:
            self._hosts[job.host] = _Host(requests=ours, seconds=limits.seconds, gpu=job.gpu)
        finally:
            os.close(requests)

    def _stop_host(self, key: tuple[object, ...]) -> None:
        os.close(self._hosts.pop(key).requests)
        self._processes.stop(key)

    # --- what comes of it

    def _take(self, key: Any, event: Message | Death) -> None:
        """Take in what a host says, or that it is no more."""
        host = self._hosts[key]
        if isinstance(event, Death):
            # Cells that were not begun try a new host, unless it is their preparation that cannot be survived.
            ended = dict(host.running)
            if not host.ready:
                ended |= {id: job for id, job in self._waiting.items() if job.host == key}
            for id, job in ended.items():
                self._waiting.pop(id, None)
                self._results[id] = _dead(job.planned, event, host.stage)
            os.close(self._hosts.pop(key).requests)
        elif "stage" in event:
            host.stage = event["stage"]
        elif "ready" in event:
            host.ready, host.stage = event["ready"], ""
            if any(job.host not in self._hosts for job in self._waiting.values()):
                _import(event["imported"])  # the hosts to come may need it, too
            self._processes.extend(key, None if host.ready else host.seconds)
        else:
            result = CellResult.from_json(event["result"])
            for jobs in (host.running, self._waiting):
                jobs.pop(result.cell.id, None)
            if host.ready:
                self._processes.extend(key, None)
            self._results[result.cell.id] = result


def _limits(recipe: Recipe, settings: Settings) -> Limits:
    return limits_of(recipe.timeout or settings.timeout, settings.memory_limit)


def _not_started(job: _Job, error: OSError) -> CellResult:
    """The result of a cell for which no process could be started."""
    rule = "crash" if disk_error(error) is None else "disk-error"
    return lost(job.planned, finding(rule, f"no process could be started: {error}"), "")


def _dead(planned: PlannedCell, death: Death, stage: str) -> CellResult:
    """The result of a cell whose process, or whose host, did not survive."""
    doing = f" while {_DOING.get(stage, stage)}" if stage else ""
    return lost(planned, finding(death.cause, f"the process {death.message}{doing}", stage=stage), death.log)


# --- what runs in the processes -------------------------------------------------------------------------------------


def _serve(upcoming: Sequence[_Job], settings: Settings, requests: int, threads: int, send: Send) -> None:
    """The life of a host: prepare, unless nothing has changed, then fork a cell for each request until there are no more."""
    torch.set_num_threads(threads)
    tell_stages(lambda stage: send({"stage": stage}))
    if devices.gpus.lost():
        devices.gpus.hide()
    recipe = upcoming[0].planned.recipe
    with Engine(settings) as engine, contextlib.closing(Processes(Path(tempfile.gettempdir()))) as cells:
        host = _Server(engine, cells, settings, send)
        host.look_up(upcoming)
        jobs: dict[str, _Job] = {}
        stages: dict[str, str] = {}
        with open(requests, "rb", buffering=0) as lines:
            os.set_blocking(requests, False)
            unread = b""
            while True:
                for key, event in cells.wait(also=requests):
                    id = str(key)
                    if isinstance(event, Death):
                        send({"result": _dead(jobs[id].planned, event, stages.get(id, "")).as_json()})
                    elif "stage" in event:
                        stages[id] = event["stage"]
                    else:
                        send({"result": event[LAST]})
                read = lines.read()
                if read == b"":
                    return
                *whole, unread = (unread + (read or b"")).split(b"\n")
                for line in whole:
                    job = _Job.from_json(json.loads(line), recipe)
                    jobs[job.planned.cell.id] = job
                    host.begin(job)


class _Server:
    """What a host does with its jobs."""

    def __init__(self, engine: Engine, cells: Processes, settings: Settings, send: Send) -> None:
        self._engine, self._cells, self._settings, self._send = engine, cells, settings, send
        self._missing: set[str] = set()
        self._is_warm = False
        self._preparation: Preparation | None = None

    def look_up(self, jobs: Iterable[_Job]) -> None:
        """Answer the jobs of which nothing has changed, and prepare for the others."""
        before = set(sys.modules)
        for job in jobs:
            if not self._answer(job):
                self._warm(job)
        # torch imports much of itself late: a recurrent layer alone asks for all of torch._dynamo.
        imported = sorted(name for name in set(sys.modules) - before if name.startswith("torch."))
        self._send({"ready": True, "imported": imported})

    def begin(self, job: _Job) -> None:
        """Answer a job, or fork a cell for it."""
        id = job.planned.cell.id
        if id not in self._missing and self._answer(job):
            return
        if not self._is_warm:
            self._send({"ready": False, "imported": []})
            self._warm(job)
            self._send({"ready": True, "imported": []})
        preparation, self._preparation = self._preparation, None
        if job.is_forked:
            work = functools.partial(_run_cell, self._engine, job, preparation)
            try:
                self._cells.start(id, work, _limits(job.planned.recipe, self._settings))
            except OSError as error:
                self._send({"result": _not_started(job, error).as_json()})
        else:
            self._send({"result": self._engine.run_cell(job.planned, job.file, preparation).as_json()})

    def _answer(self, job: _Job) -> bool:
        known = None if job.artifact else self._engine.cached(job.planned)
        if known is None:
            self._missing.add(job.planned.cell.id)
        else:
            self._send({"result": known.as_json()})
        return known is not None

    def _warm(self, job: _Job) -> None:
        if not self._is_warm:
            self._preparation = self._engine.warm(job.planned, given=job.artifact is not None)
            self._is_warm = True
            release_memory()


def _run_cell(engine: Engine, job: _Job, preparation: Preparation | None, send: Send) -> None:
    """The life of a cell on the CPU."""
    devices.gpus.hide()  # its host may have used them, and ONNX Runtime for CUDA may have as it was imported
    tell_stages(lambda stage: send({"stage": stage}))
    send({LAST: engine.run_cell(job.planned, job.file, preparation).as_json()})
