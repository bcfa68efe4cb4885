"""Runs of which a repetition would be answered from the cache as a whole, so that an unchanged project need not be imported.

A run is remembered if each of its results came from the cache, or is kept there now. Where chance was seen to take part, or all
cells run in one process, only the former counts: two processes have then found the same keys.

It is recalled while the command, the environment, what is installed, the files of the project, and every other file that Python
opened in that run are the same. It is recalled as a whole or not at all, because one recipe file can affect the recipes of
another one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_ci.cache.files_state import state_of
from onnx_ci.cache.memory import DAMAGE, RUNS, Memory, digest_of, why_no_memory
from onnx_ci.cache.observed import Observation
from onnx_ci.cache.store import is_storable
from onnx_ci.config.settings import Settings
from onnx_ci.matrix.outline import FileOutline
from onnx_ci.processes.garbage import no_garbage_collection
from onnx_ci.results.json_data import from_json, to_json
from onnx_ci.results.records import CellResult, Exclusion


@dataclass(frozen=True, kw_only=True)
class RememberedRun:
    """The results of a run, and what its front-end needs beside them."""

    results: tuple[CellResult, ...]
    exclusions: tuple[Exclusion, ...]
    files: tuple[FileOutline, ...]
    """The recipe files in the order in which they were imported, with the cells of all shards."""


class RunMemory:
    """The remembered runs of one command.

    Args:
        settings: the settings of the run, for which :func:`why_not_remembered` says nothing.
        request: what the front-end was asked for beside the settings, beginning with its own name: everything that the run
            depends on and that no file or environment variable holds. Runs with different requests share nothing.
        written: absolute paths of files that the run writes.
    """

    def __init__(self, settings: Settings, request: Sequence[str], written: Collection[Path]) -> None:
        self._is_isolated = settings.isolation != "none"
        report = settings.report and settings.report.absolute()
        own = [] if report is None else [report, report.with_name(f"{report.name}.journal")]
        shown = {name: to_json(value) for name, value in settings.shown().items()}
        parts = {
            "command": digest_of((shown, list(request), str(Path.cwd()), str(settings.root))),
            "durations": "" if settings.durations is None else state_of(str(settings.durations.absolute())),
        }
        self._memory = Memory(settings, RUNS, parts, [*written, *own])

    def recall(self) -> RememberedRun | None:
        """The run that this one would repeat, or ``None``."""
        try:
            with no_garbage_collection():
                found = self._memory.recall()
                return None if found is None else _run_in(found)
        except DAMAGE:
            return None

    def forget(self) -> None:
        """Forget the run that :meth:`recall` returned."""
        self._memory.forget()

    def remember(self, run: RememberedRun, observed: Observation) -> str:
        """Remember a run, if a repetition would find all of its results in the cache. Errors with the file are not raised.

        Args:
            run: the run, which is over.
            observed: what all of its processes read and did, and why a result is not kept in the cache.

        Returns:
            Why it cannot be remembered; empty if it is, or if it need not be.
        """
        if not run.results:
            return ""
        if any(result.skip_cause is not None for result in run.results):
            return "a cell is skipped, and each run asks again whether to skip it"
        if unstored := next((result.cell.id for result in run.results if not is_storable(result)), None):
            return f"{unstored} runs each time, because its verdict is not kept"
        if on_gpu := next((result.cell.device for result in run.results if result.cell.gpu is not None), None):
            return f"what {on_gpu} is can be told only by torch"
        if not all(result.cached for result in run.results):
            if not self._is_isolated:
                return "cells ran in one process, where one can change the key of the next"
            if observed.chance:
                return min(observed.chance)
        cells = [dataclasses.replace(result, artifact=None, cached=True).as_json() for result in run.results]
        return self._memory.remember(
            {"cells": cells, "exclusions": to_json(run.exclusions), "files": to_json(run.files)}, observed
        )


def _run_in(found: Any) -> RememberedRun:
    return RememberedRun(
        results=tuple(CellResult.from_json(each) for each in found["cells"]),
        exclusions=from_json(tuple[Exclusion, ...], found["exclusions"]),
        files=from_json(tuple[FileOutline, ...], found["files"]),
    )


def why_not_remembered(settings: Settings) -> str:
    """Why a command with these settings has no memory, or an empty text.

    Its cells have to run, or its recipe files to be imported, or not all of its files would count.
    """
    if settings.artifacts is not None or settings.save_inputs is not None:
        return "cells run where files of them are kept"
    if settings.baseline == "update":
        return "cells run where baselines are updated"
    return why_no_memory(settings)
