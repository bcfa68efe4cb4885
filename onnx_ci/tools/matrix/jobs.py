"""A run as the jobs of a GitHub Actions ``strategy.matrix``: one for each opset and device, or one for each shard."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx_ci.config.values import Shard
from onnx_ci.errors import ConfigurationError
from onnx_ci.matrix.shards import Durations, cells_by, partition
from onnx_ci.results.records import Cell

LIMIT = 256
"""How many jobs GitHub allows in one matrix."""
CPU_RUNNER = "ubuntu-latest"


@dataclass(frozen=True, kw_only=True)
class Job:
    """The part of a run for one machine: an opset or a shard, on one device."""

    id: str
    """Unique in its matrix, and valid as part of a file name."""
    opset: int | None = None
    shard: Shard | None = None
    device: str
    runner: str
    cells: tuple[Cell, ...]

    def as_json(self) -> dict[str, str | int]:
        """The job as an entry of ``include``."""
        part = {"shard": str(self.shard)} if self.opset is None else {"opset": self.opset}
        return {"id": self.id, **part, "device": self.device, "runner": self.runner}


def jobs_by_opset(cells: Sequence[Cell], cuda_runner: str | None) -> tuple[Job, ...]:
    """One job for each opset and device that have cells. Raises ``ConfigurationError``."""
    jobs = []
    for device, cells_of_device in cells_by(lambda cell: cell.device, cells).items():
        runner = _runner(device, cuda_runner)
        for opset, part in sorted(cells_by(lambda cell: cell.opset, cells_of_device).items()):
            id = f"opset{opset}-{device.replace(':', '-')}"
            jobs.append(Job(id=id, opset=opset, device=device, runner=runner, cells=tuple(part)))
    return _within_limit(jobs, "split the cells with --shards=N")


def jobs_by_shard(cells: Sequence[Cell], cuda_runner: str | None, *, shards: int, durations: Durations) -> tuple[Job, ...]:
    """``shards`` jobs for each device, or a job for each of its cells if there are fewer cells.

    A job's shard is a part of its own device's cells, so the job must select that device only.
    """
    jobs = []
    devices = cells_by(lambda cell: cell.device, cells)
    for device, cells_of_device in devices.items():
        runner = _runner(device, cuda_runner)
        parts = partition(cells_of_device, min(shards, len(cells_of_device)), durations)
        for index, part in enumerate(parts, start=1):
            id = f"shard-{index}-of-{len(parts)}" + (f"-{device.replace(':', '-')}" if len(devices) > 1 else "")
            jobs.append(Job(id=id, shard=Shard(index=index, count=len(parts)), device=device, runner=runner, cells=part))
    return _within_limit(jobs, f"use --shards={LIMIT // max(1, len(devices))} or fewer")


def as_github(jobs: Sequence[Job]) -> str:
    """The matrix as one line of JSON, for the output of a job."""
    return json.dumps({"include": [job.as_json() for job in jobs]}, separators=(",", ":"))


def as_text(jobs: Sequence[Job], seconds: Mapping[str, float]) -> list[str]:
    """The matrix as a table, with the number of cells of each job and, if known, their seconds."""
    rows = [["job", "device", "runner", "cells", *(["seconds"] if seconds else [])]]
    for job in jobs:
        is_known = all(cell.id in seconds for cell in job.cells)
        total = f"{math.fsum(seconds[cell.id] for cell in job.cells):.1f}" if is_known else "?"
        rows.append([job.id, job.device, job.runner, str(len(job.cells)), *([total] if seconds else [])])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            word.ljust(width) if place < 3 else word.rjust(width)
            for place, (word, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _runner(device: str, cuda_runner: str | None) -> str:
    if device == "cpu":
        return CPU_RUNNER
    if not cuda_runner:
        # GitHub has no free runners with a GPU, so no label can be the default.
        raise ConfigurationError(
            f"there are cells for {device}, but no runner is specified for them; "
            "pass its label with --cuda-runner=LABEL, or exclude CUDA with --devices=cpu"
        )
    return cuda_runner


def _within_limit(jobs: list[Job], remedy: str) -> tuple[Job, ...]:
    if len(jobs) > LIMIT:
        raise ConfigurationError(f"the matrix has {len(jobs)} jobs, but GitHub allows {LIMIT}; {remedy}")
    return tuple(jobs)
