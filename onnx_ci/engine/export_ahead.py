"""The export of a recipe's first cell, which runs in a process of its own while the recipe is prepared.

An export and a preparation take about as long, and neither needs the other's result. What the export gave counts only if it
succeeds, and runs of the model turn out to affect nothing. Otherwise the cell exports by itself, after the preparation, and its
own process decides: whatever went wrong here may have happened only because both ran at once.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from onnx_ci.cache.watch import Seen
from onnx_ci.engine.recipe_file import seen_so_far
from onnx_ci.matrix.plan import PlannedCell
from onnx_ci.processes.capture import Notice, forget_captures, report_stages
from onnx_ci.processes.forked import ForkedProcesses
from onnx_ci.processes.limits import process_limits
from onnx_ci.processes.supervisor import LAST, Death, Message, Send
from onnx_ci.results.json_data import from_json, to_json
from onnx_ci.results.records import Cell
from onnx_ci.stages.export.exporter import Export, ExporterRun, file_name, judge_run, run_exporter
from onnx_ci.stages.export.repeated_work import read_torchlib
from onnx_ci.stages.model import devices
from onnx_ci.stages.prepare.prepare import Exportable, Prepared

KEY = "export ahead"
"""The key of its process; no cell has such an id."""
FEWEST_MODULES = 16
"""Of how many modules a model consists at least whose export with TorchScript takes longer than starting a process."""


@dataclass(frozen=True, kw_only=True)
class ExportedAhead:
    """An export that ran ahead and succeeded; its file is in a folder of its own."""

    run: ExporterRun
    seconds: float
    seen: Seen | None
    """What its process has seen, if that is watched."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any], path: Path) -> Self:
        """The one that was sent as plain data."""
        run = ExporterRun(
            path=path,
            failure=None,
            notices=from_json(tuple[Notice, ...], data["notices"]),
            changed=from_json(tuple[str, ...], data["changed"]),
            log=data["log"],
        )
        return cls(run=run, seconds=data["seconds"], seen=data["seen"] and Seen.from_json(data["seen"]))

    def taken_over(self, prepared: Prepared, cell: Cell, path: Path) -> Export:
        """What the export gave, with its file moved to ``path``, which has the same name."""
        for file in self.run.path.parent.iterdir():
            shutil.move(file, path.parent / file.name)
        return judge_run(replace(self.run, path=path), prepared, cell)


class ExportAhead:
    """Starts the export, and knows what became of it.

    Args:
        processes: where its process is started. Its events come under :data:`KEY`, and belong to :meth:`handle`.
        planned: the cell that is exported.
    """

    def __init__(self, processes: ForkedProcesses, planned: PlannedCell) -> None:
        self._processes, self._planned = processes, planned
        self._path = Path()
        self._threads = torch.get_num_threads()
        self.has_begun = self.is_running = False
        self.exported: ExportedAhead | None = None
        """What it gave; ``None`` if it failed, or has not ended yet."""

    @property
    def id(self) -> str:
        """The id of its cell."""
        return self._planned.cell.id

    def start(self, exportable: Exportable) -> None:
        """Start the export in a fork of this process, if that is likely to save time."""
        cell = self._planned.cell
        if cell.exporter == "torchscript" and len([*exportable.pristine.model.modules()]) < FEWEST_MODULES:
            return
        limits = process_limits(self._planned.timeout, self._planned.memory_limit)
        try:
            self._path = Path(tempfile.mkdtemp(prefix="ahead-"), file_name(cell))
            self._processes.start(KEY, functools.partial(_export, exportable, cell, self._path), limits)
        except OSError:
            return  # the cell meets the same trouble, and reports it
        self.has_begun = self.is_running = True
        # Threads that wait for each other are slow where they have to share a core with another process, so it gets one.
        torch.set_num_threads(max(1, self._threads - 1))

    def look(self) -> None:
        """Handle what has happened so far, without waiting."""
        if self.is_running:
            self._handle_all(self._processes.wait(0))

    def handle(self, event: Message | Death) -> None:
        """Handle the message of the process, or its death."""
        self._end()
        if not isinstance(event, Death) and event[LAST] is not None:
            self.exported = ExportedAhead.from_json(event[LAST], self._path)

    def wait(self) -> None:
        """Wait until it has ended."""
        while self.is_running:
            self._handle_all(self._processes.wait())

    def _handle_all(self, events: Iterable[tuple[object, Message | Death]]) -> None:
        for key, event in events:
            if key == KEY:  # until the first cell runs, no other process sends anything
                self.handle(event)

    def _end(self) -> None:
        self.is_running = False
        torch.set_num_threads(self._threads)

    def cancel(self) -> None:
        """End it; what it gave does not count."""
        self._processes.stop(KEY)
        self._end()


def _export(exportable: Exportable, cell: Cell, path: Path, send: Send) -> None:
    """The main function of the process."""
    forget_captures()
    devices.gpus.hide()
    report_stages(lambda stage: None)
    torch.set_num_threads(1)
    start = time.perf_counter()
    if cell.exporter == "dynamo":
        read_torchlib()
    try:
        run = run_exporter(exportable, cell, path)
    except Exception:
        traceback.print_exc()  # such as a full disk
        send({LAST: None})
        return
    if run.failure is not None or not path.is_file():
        send({LAST: None})  # what it raised cannot be sent, and is needed to find its place
        return
    send(
        {
            LAST: {
                "notices": to_json(run.notices),
                "changed": to_json(run.changed),
                "log": run.log,
                "seconds": round(time.perf_counter() - start, 4),
                "seen": None if (looked_at := seen_so_far()) is None else looked_at.as_json(),
            }
        }
    )
