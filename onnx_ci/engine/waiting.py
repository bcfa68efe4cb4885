"""The jobs that wait, by the workers that they need."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

from onnx_ci.engine.messages import Job, WorkerKey


class WaitingJobs:
    """The jobs that wait, in the order in which they were added; knows which of their workers have been started."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._places: dict[str, int] = {}
        self._next_place = itertools.count()
        self._queues: dict[WorkerKey, dict[str, Job]] = {}
        """The jobs of each worker, in order."""
        self._started: set[WorkerKey] = set()

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, id: str) -> Job | None:
        """The job of a cell, if it waits."""
        return self._jobs.get(id)

    def add(self, job: Job) -> None:
        """Add a job behind the others."""
        self.remove(job.id)
        self._jobs[job.id], self._places[job.id] = job, next(self._next_place)
        self._queues.setdefault(job.worker, {})[job.id] = job

    def remove(self, id: str) -> None:
        """Remove the job of a cell, if it waits."""
        job = self._jobs.pop(id, None)
        if job is not None:
            queue = self._queues[job.worker]
            del self._places[id], queue[id]
            if not queue:
                del self._queues[job.worker]

    def worker_started(self, key: WorkerKey) -> None:
        """Note that a worker has been started."""
        self._started.add(key)

    def worker_ended(self, key: WorkerKey) -> None:
        """Note that a worker has ended: jobs that still wait for it need another one."""
        self._started.discard(key)

    # --- what is next

    def count(self, key: WorkerKey) -> int:
        """How many jobs wait for a worker."""
        return len(self._queues.get(key, ()))

    @property
    def workers(self) -> int:
        """How many workers jobs wait for, started or not."""
        return len(self._queues)

    def of_worker(self, key: WorkerKey) -> list[Job]:
        """The jobs that wait for a worker, in order."""
        return list(self._queues.get(key, {}).values())

    def first_of(self, workers: Iterable[WorkerKey]) -> Job | None:
        """The first of the jobs that wait for one of ``workers``."""
        jobs = [next(iter(self._queues[key].values())) for key in workers if key in self._queues]
        return min(jobs, key=lambda job: self._places[job.id], default=None)

    def first_without_worker(self, *, busy_gpus: Collection[str] = ()) -> Job | None:
        """The first of the jobs whose worker has to be started, except those that need one of ``busy_gpus``."""
        missing = (key for key in self._queues if key not in self._started)
        return self.first_of(key for key in missing if next(iter(self._queues[key].values())).gpu not in busy_gpus)
