"""What the process that decides gives to the workers that it starts. Importing this module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_ci.config.settings import Settings
from onnx_ci.matrix.plan import CellSpec
from onnx_ci.processes.limits import Limits

if TYPE_CHECKING:
    from onnx_ci.pipeline.export.exporter import Artifact

WorkerKey = tuple[object, ...]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A cell to run, or a file to judge as one. It is sent to a worker as JSON."""

    spec: CellSpec
    path: str | None = None
    is_alone: bool = False
    """Whether no other cell shares its preparation."""

    @property
    def id(self) -> str:
        """The id of the cell."""
        return self.spec.cell.id

    @property
    def worker(self) -> WorkerKey:
        """The key of the worker that the job needs."""
        cell = self.spec.cell
        return cell.recipe, cell.device, self.path is not None, "" if self.shares_worker else cell.label

    @property
    def shares_worker(self) -> bool:
        """Whether the worker of the cell serves others, too.

        A fork cannot use CUDA if its parent process has initialized it, and memory of a GPU is freed for certain only when
        its process ends, so cells on a GPU do not share a worker.
        """
        return self.gpu is None and not self.is_alone

    @property
    def gpu(self) -> str | None:
        """The GPU that the cell needs, if any."""
        return self.spec.cell.gpu

    @property
    def file(self) -> Artifact | None:
        """The existing file to judge, if any."""
        from onnx_ci.pipeline.export.exporter import Artifact

        return None if self.path is None else Artifact(path=Path(self.path))

    @property
    def limits(self) -> Limits:
        """What a process may use that runs the cell."""
        return Limits.of(self.spec)


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Under which conditions a worker works."""

    settings: Settings
    threads_of_preparation: int
    threads_of_cell: int
    forks: bool
    """Whether its cells have processes of their own."""
