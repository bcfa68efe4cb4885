"""Engines whose hosts or cells are killed at a stage of the recipe ``victim``, in whichever way their processes are started."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.engine import worker

_run_cell, _report_stages = worker._run_cell, worker.report_stages


@dataclass(frozen=True)
class Dying:
    """What dies: the first process of a kind, as its ``number``-th stage begins; never, if that is 0."""

    place: str
    """``host``, or ``cell`` for the process of the victim's cell at opset 13."""
    number: int
    folder: Path
    """Where ``count`` tells how many stages have begun there, and the name of the last one."""

    def run_worker(self, first, *others):
        """In place of :func:`onnx_ci.engine.recipe_process.run_worker`."""
        worker._run_cell = self._run_cell
        self._count("host" if first.spec.cell.recipe == "victim" else "")
        worker.serve(first, *others)

    def _run_cell(self, engine, task, *others):
        is_it = task.cell.recipe == "victim" and task.cell.opset == 13
        self._count("cell" if is_it else "")
        _run_cell(engine, task, *others)

    def _count(self, here: str) -> None:
        """Count the stages of this process from now on, if it is the one."""
        worker.report_stages = self._report_and_die if here == self.place else _report_stages

    def _report_and_die(self, listener: Callable[[str], None]) -> None:
        count = 0

        def listen(stage: str) -> None:
            nonlocal count
            listener(stage)
            count += 1
            (self.folder / "count").write_text(f"{count} {stage}")
            if count == self.number and not (self.folder / "died").exists():
                (self.folder / "died").touch()
                os.kill(os.getpid(), signal.SIGKILL)

        _report_stages(listen)
