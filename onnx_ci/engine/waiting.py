"""The jobs that wait, by the hosts that they need."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

from onnx_ci.engine.jobs import HostKey, Job


class WaitingJobs:
    """The jobs that wait, in the order in which they were added; knows which of their hosts have been started."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._places: dict[str, int] = {}
        self._next_place = itertools.count()
        self._queues: dict[HostKey, dict[str, Job]] = {}
        """The jobs of each host, in order."""
        self._started: set[HostKey] = set()

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, id: str) -> Job | None:
        """The job of a cell, if it waits."""
        return self._jobs.get(id)

    def add(self, job: Job) -> None:
        """Add a job behind the others."""
        self.remove(job.id)
        self._jobs[job.id], self._places[job.id] = job, next(self._next_place)
        self._queues.setdefault(job.host, {})[job.id] = job

    def remove(self, id: str) -> None:
        """Remove the job of a cell, if it waits."""
        job = self._jobs.pop(id, None)
        if job is not None:
            queue = self._queues[job.host]
            del self._places[id], queue[id]
            if not queue:
                del self._queues[job.host]

    def host_started(self, key: HostKey) -> None:
        """Note that a host has been started."""
        self._started.add(key)

    def host_ended(self, key: HostKey) -> None:
        """Note that a host has ended: jobs that still wait for it need another one."""
        self._started.discard(key)

    # --- what is next

    def count(self, key: HostKey) -> int:
        """How many jobs wait for a host."""
        return len(self._queues.get(key, ()))

    @property
    def hosts(self) -> int:
        """How many hosts jobs wait for, started or not."""
        return len(self._queues)

    def of_host(self, key: HostKey) -> list[Job]:
        """The jobs that wait for a host, in order."""
        return list(self._queues.get(key, {}).values())

    def first_of(self, hosts: Iterable[HostKey]) -> Job | None:
        """The first of the jobs that wait for one of ``hosts``."""
        jobs = [next(iter(self._queues[key].values())) for key in hosts if key in self._queues]
        return min(jobs, key=lambda job: self._places[job.id], default=None)

    def first_without_host(self, *, busy_gpus: Collection[str] = ()) -> Job | None:
        """The first of the jobs whose host has to be started, except those that need one of ``busy_gpus``."""
        missing = (key for key in self._queues if key not in self._started)
        return self.first_of(key for key in missing if next(iter(self._queues[key].values())).gpu not in busy_gpus)
