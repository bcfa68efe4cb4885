"""The one engine behind every front-end: from planned cells to a stream of results.

It is the only place that knows the order of the stages, and it never prints.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from onnx_ci import contract
from onnx_ci.calls import PrepareError, missing_device
from onnx_ci.capture import captured
from onnx_ci.compare import compare
from onnx_ci.config import Settings
from onnx_ci.errors import describe_exception
from onnx_ci.exporting import Artifact, export, remove
from onnx_ci.matrix import PlannedCell
from onnx_ci.prepare import Prepared, prepare
from onnx_ci.recipe import Recipe
from onnx_ci.records import Cell, CellResult, Finding, OutputDrift, Severity, Status
from onnx_ci.rules import finding
from onnx_ci.runtime import Runtime
from onnx_ci.runtime.onnxruntime import OnnxRuntime


class Engine:
    """Runs cells one by one; a context manager, for the files that it keeps while it runs.

    Consecutive cells of one recipe and device share their preparation. Each export gets a fresh copy of the model.
    """

    def __init__(self, settings: Settings, runtime: Runtime | None = None) -> None:
        self._settings = settings
        self._runtime: Runtime = runtime or OnnxRuntime()
        self._scratch = tempfile.TemporaryDirectory(prefix="onnx-ci-", ignore_cleanup_errors=True)
        self._prepared: tuple[Recipe, str, Prepared | PrepareError] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Remove the files that are not kept."""
        self._prepared = None
        self._scratch.cleanup()

    def run(self, cells: Iterable[PlannedCell]) -> Iterator[CellResult]:
        """One result a cell, in order, each as soon as it is known."""
        for planned in cells:
            yield self.run_cell(planned)

    def run_cell(self, planned: PlannedCell, artifact: Artifact | None = None) -> CellResult:
        """Everything that onnx-ci can say about one cell. Nothing that goes wrong in it is raised.

        Args:
            artifact: a file that exists already, to be judged in place of a fresh export.
        """
        trial = _Trial(planned.cell)
        with captured() as caught:
            try:
                result = self._run_stages(planned, trial, artifact)
            except Exception as error:  # our own failure: it costs this cell its verdict, and no other cell anything
                trial.findings.append(finding("internal-error", f"onnx-ci failed: {describe_exception(error)}"))
                trial.log += traceback.format_exc()
                result = trial.result(Status.ERROR)
        return dataclasses.replace(result, log="\n".join(filter(None, [caught.text, trial.log])))

    def _run_stages(self, planned: PlannedCell, trial: _Trial, given: Artifact | None) -> CellResult:
        cell, recipe = planned.cell, planned.recipe
        missing = missing_device(cell.device) or self._runtime.missing_device(cell.device)
        if missing is not None:
            return trial.result(Status.SKIPPED, reason=f"no {cell.device}: {missing}")
        with trial.timed("prepare"):
            prepared = self._prepare(recipe, cell.device)
        if isinstance(prepared, PrepareError):
            trial.findings.append(prepared.finding)
            return trial.result(Status.ERROR) if prepared.finding.rule == "recipe-error" else _verdict(recipe, trial)
        trial.findings += prepared.findings
        if given is not None:
            self._judge(given, prepared, trial)
            return _verdict(recipe, trial)
        path = self._artifact_path(cell)
        with trial.timed("export"):
            exported = export(prepared, cell, path)
        trial.log = exported.log
        trial.findings += exported.findings
        if exported.artifact is not None:
            self._judge(exported.artifact, prepared, trial)
            if self._settings.artifacts is not None:
                trial.artifact = str(path)
            else:
                remove(path)
        return _verdict(recipe, trial)

    def _judge(self, artifact: Artifact, prepared: Prepared, trial: _Trial) -> None:
        """Hold a file against its recipe: contract, then load, then the example, then every other probe.

        A stage runs even where an earlier one found something, as long as it can: one run tells all that is wrong.
        """
        cell, runtime = trial.cell, self._runtime
        with trial.timed("contract"):
            signature = contract.read_signature(artifact)
            if isinstance(signature, Finding):
                trial.findings.append(signature)
                return
            broken = [*contract.check(artifact), *contract.compare_signature(signature, prepared, cell)]
        trial.findings += broken
        if any(each.rule in ("input-missing", "output-mismatch") for each in broken):
            return  # without one graph value for every tensor there is no telling what to feed and what to compare
        with trial.timed("load"):
            try:
                session = runtime.load(artifact.path, cell.device)
            except Exception as error:  # each runtime raises its own classes
                trial.findings.append(finding("load-error", f"{runtime.name} cannot load the file: {_first_line(error)}"))
                return
        if session.provider != cell.device.partition(":")[0]:
            said = f"{runtime.name} ran on {session.provider} where {cell.device} was asked for"
            trial.findings.append(finding("provider-mismatch", said))
            return
        inputs = [value.name for value in signature.inputs]
        outputs = [value.name for value in signature.outputs]
        for probe in prepared.probes:
            try:
                with trial.timed("run"):
                    got = session.run(dict(zip(inputs, probe.inputs, strict=True)))
            except Exception as error:  # each runtime raises its own classes
                rule = "run-error" if probe is prepared.example else "baked-shape"
                said = f"{runtime.name} fails on {probe.name!r}: {_first_line(error)}"
                trial.findings.append(finding(rule, said, probe=probe.name))
                continue
            with trial.timed("compare"):
                comparison = compare(outputs, got, probe, prepared.recipe, self._settings.drift)
            trial.outputs += comparison.outputs
            trial.findings += comparison.findings

    def _prepare(self, recipe: Recipe, device: str) -> Prepared | PrepareError:
        if self._prepared is None or self._prepared[:2] != (recipe, device):
            self._prepared = None  # frees the last model before the next one is built
            try:
                made: Prepared | PrepareError = prepare(recipe, device, weights=self._settings.weights_for(recipe.name))
            except PrepareError as error:
                made = error
            self._prepared = (recipe, device, made)
        return self._prepared[2]

    def _artifact_path(self, cell: Cell) -> Path:
        folder = (self._settings.artifacts or Path(self._scratch.name)) / cell.recipe
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{cell.label.replace(':', '_')}.onnx"


class _Trial:
    """What is known about a cell while it runs."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.findings: list[Finding] = []
        self.outputs: list[OutputDrift] = []
        self.timings: dict[str, float] = {}
        self.log = ""
        self.artifact: str | None = None

    @contextlib.contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.timings[stage] = round(self.timings.get(stage, 0.0) + time.perf_counter() - start, 4)

    def result(self, status: Status, *, reason: str = "") -> CellResult:
        return CellResult(
            cell=self.cell,
            status=status,
            reason=reason,
            findings=tuple(self.findings),
            outputs=tuple(self.outputs),
            log=self.log,
            timings=self.timings,
            artifact=self.artifact,
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _verdict(recipe: Recipe, trial: _Trial) -> CellResult:
    """Passed or failed; or, where the recipe expects a failure, whether it failed that way."""
    broken = [each.rule for each in trial.findings if each.severity is Severity.ERROR]
    expected = recipe.expectation(trial.cell.opset)
    if expected is None:
        return trial.result(Status.FAILED if broken else Status.PASSED)
    if expected.rule in broken:
        return trial.result(Status.XFAILED, reason=expected.reason)
    if not broken:
        said = f"the recipe expects {expected.rule} at opset {trial.cell.opset} ({expected.reason}), and the cell passes"
        trial.findings.append(finding("unexpected-pass", said))
        return trial.result(Status.XPASSED, reason=expected.reason)
    return trial.result(Status.FAILED)
