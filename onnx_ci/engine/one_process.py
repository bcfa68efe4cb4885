"""Runs cells one after another in this process: in a worker, in the process of a cell, or everywhere without isolation."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from onnx_ci.engine.cell import CellContext, Preparation, run_cell
from onnx_ci.engine.events import CellFinished, Emit, to_nobody
from onnx_ci.engine.shared import Shared
from onnx_ci.matrix.plan import CellSpec, CellTask
from onnx_ci.pipeline.export.export import Artifact
from onnx_ci.pipeline.run.runtime import Runtime
from onnx_ci.results.records import CellEvidence


class Engine(contextlib.AbstractContextManager["Engine"]):
    """Runs cells one by one. Those of one recipe and device share their preparation; each export gets a copy of the model."""

    def __init__(
        self,
        *,
        artifacts: Path | None = None,
        save_inputs: Path | None = None,
        runtimes: Sequence[Runtime] = (),
        forks: bool = False,
    ) -> None:
        self.context = CellContext(
            shared=Shared(),
            artifacts=None if artifacts is None else artifacts.absolute(),  # a recipe may change directory
            failing_inputs=None if save_inputs is None else save_inputs.absolute(),
            runtimes=runtimes,
            forks=forks,
        )

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what cells share."""
        self.context.shared.close()

    def expect(self, specs: Iterable[CellSpec]) -> None:
        """Announce cells. Does nothing here; an engine with processes runs them ahead."""

    def events(self, spec: Any, artifact: Artifact | None = None) -> Iterator[CellFinished]:
        """What happens until a cell has finished; as :meth:`~onnx_ci.engine.scheduler.IsolatedEngine.events`."""
        yield CellFinished(evidence=self.run_cell(spec, artifact))

    def run_cell(
        self, task: CellTask, artifact: Artifact | None = None, preparation: Preparation | None = None, emit: Emit = to_nobody
    ) -> CellEvidence:
        """Everything that can be found out about one cell; see :func:`onnx_ci.engine.cell.run_cell`."""
        context = dataclasses.replace(self.context, emit=emit)
        return run_cell(task, context, artifact=artifact, preparation=preparation)
