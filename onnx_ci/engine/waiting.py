"""The jobs that wait, by the hosts that they need: the next one is found as fast among thousands of jobs as among a few."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable
from typing import Generic, Protocol, TypeVar

HostKey = tuple[object, ...]


class Job(Protocol):
    """A job, as far as it matters while it waits."""

    @property
    def id(self) -> str:
        """The id of its cell, which no other job has."""

    @property
    def host(self) -> HostKey:
        """The key of the host that it needs."""

    @property
    def gpu(self) -> str | None:
        """The GPU that its host needs, if any."""


_Job = TypeVar("_Job", bound=Job)


class WaitingJobs(Generic[_Job]):
    """The jobs that wait, in the order in which they were added; knows which of their hosts have been started."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._places: dict[str, int] = {}
        self._next_place = itertools.count()
        self._queues: dict[HostKey, dict[str, _Job]] = {}
        """The jobs of each host, in order."""
        self._started: set[HostKey] = set()
        self._to_start: dict[str | None, list[tuple[int, HostKey]]] = {}
        """The hosts that have to be started, by their GPUs: heaps of the places of their first jobs and their keys.

        An entry is outdated once its host has been started, or its first job no longer waits.
        """

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, id: str) -> _Job | None:
        """The job of a cell, if it waits."""
        return self._jobs.get(id)

    def add(self, job: _Job) -> None:
        """Add a job behind the others."""
        self.remove(job.id)
        self._jobs[job.id], self._places[job.id] = job, next(self._next_place)
        queue = self._queues.setdefault(job.host, {})
        queue[job.id] = job
        if len(queue) == 1:
            self._note_host_to_start(job.host)

    def remove(self, id: str) -> None:
        """Remove the job of a cell, if it waits."""
        job = self._jobs.pop(id, None)
        if job is None:
            return
        queue = self._queues[job.host]
        del self._places[id], queue[id]
        if not queue:
            del self._queues[job.host]
        self._note_host_to_start(job.host)

    def host_started(self, key: HostKey) -> None:
        """Note that a host has been started."""
        self._started.add(key)

    def host_ended(self, key: HostKey) -> None:
        """Note that a host has ended: jobs that still wait for it need another one."""
        self._started.discard(key)
        self._note_host_to_start(key)

    def _note_host_to_start(self, key: HostKey) -> None:
        """Note that a host has to be started, if it has not been and a job waits for it."""
        job = self._first(key)
        if job is not None and key not in self._started:
            heapq.heappush(self._to_start.setdefault(job.gpu, []), (self._places[job.id], key))

    # --- what is next

    def count(self, key: HostKey) -> int:
        """How many jobs wait for a host."""
        return len(self._queues.get(key, ()))

    @property
    def hosts(self) -> int:
        """How many hosts jobs wait for, started or not."""
        return len(self._queues)

    def of_host(self, key: HostKey) -> list[_Job]:
        """The jobs that wait for a host, in order."""
        return list(self._queues.get(key, {}).values())

    def first_of(self, hosts: Iterable[HostKey]) -> _Job | None:
        """The first of the jobs that wait for one of ``hosts``."""
        return self._earliest(map(self._first, hosts))

    def first_without_host(self, *, busy_gpus: Collection[str] = ()) -> _Job | None:
        """The first of the jobs whose host has to be started, except those that need one of ``busy_gpus``."""
        return self._earliest(self._first_to_start(gpu) for gpu in self._to_start if gpu not in busy_gpus)

    def _earliest(self, jobs: Iterable[_Job | None]) -> _Job | None:
        return min((job for job in jobs if job is not None), key=lambda job: self._places[job.id], default=None)

    def _first(self, key: HostKey) -> _Job | None:
        return next(iter(self._queues.get(key, {}).values()), None)

    def _first_to_start(self, gpu: str | None) -> _Job | None:
        """The first of the jobs that need a GPU, or none, and a host that has to be started."""
        heap = self._to_start[gpu]
        while heap:
            place, key = heap[0]
            job = self._first(key)
            if job is not None and key not in self._started and self._places[job.id] == place:
                return job
            heapq.heappop(heap)
        return None
