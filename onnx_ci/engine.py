"""The one engine behind every front-end: from planned cells to a stream of results.

It is the only place that knows the order of the stages, and it never prints.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from onnx_ci import contract, devices, onnx_file
from onnx_ci.blame import lay_blame
from onnx_ci.cache import VerdictCache
from onnx_ci.calls import Call, PrepareError, SkippedByRecipeError, build_on
from onnx_ci.capture import captured, timed
from onnx_ci.config import Settings
from onnx_ci.errors import describe_exception, disk_error, first_line
from onnx_ci.exporting import Artifact, export, move, remove
from onnx_ci.facts import facts_of
from onnx_ci.fingerprint import Fingerprint, fingerprint
from onnx_ci.four_ways import compute_four_ways, judge_four_ways
from onnx_ci.global_state import Changes
from onnx_ci.matrix import PlannedCell, runtimes_of
from onnx_ci.prepare import Prepared, prepare
from onnx_ci.recipe import Recipe
from onnx_ci.records import Cell, CellResult, Facts, Finding, FourWays, OutputDrift, Severity, Status
from onnx_ci.rules import finding
from onnx_ci.running import run_file
from onnx_ci.runtime import Runtime
from onnx_ci.runtime.onnxruntime import OnnxRuntime
from onnx_ci.runtime.openvino import OpenVinoRuntime
from onnx_ci.runtime.reference import ReferenceRuntime
from onnx_ci.skeleton import skeleton

_RUNTIMES: Mapping[str, Callable[[Recipe], Runtime]] = {
    "onnxruntime": lambda recipe: OnnxRuntime(tf32=recipe.tf32),
    "reference": lambda recipe: ReferenceRuntime(),
    "openvino": lambda recipe: OpenVinoRuntime(),
}


_FULL_GPU = "Shrink the model or the example, or see with nvidia-smi who else holds the GPU's memory."


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What a preparation took and printed, to be told with the first cell that it was for."""

    timings: Mapping[str, float]
    log: str


class Engine:
    """Runs cells one by one, in this process; a context manager, for what it keeps while it runs.

    Consecutive cells of one recipe and device share their preparation. Each export gets a fresh copy of the model.
    """

    def __init__(self, settings: Settings, runtimes: Sequence[Runtime] = ()) -> None:
        self._settings = settings
        self._given_runtimes = runtimes
        self._kept = None if settings.artifacts is None else settings.artifacts.absolute()  # a recipe may change directory
        folder = settings.cache_folder
        # What another runtime says, nobody has keyed; and what was not exported again leaves no file to keep.
        self._cache = VerdictCache(folder) if folder and not runtimes and self._kept is None else None
        self._left_changed = Changes()
        self._shared_by: tuple[str, str] | None = None
        self._shared: dict[bool, Prepared | PrepareError | SkippedByRecipeError] = {}
        self._built: Call | None = None
        self._key: Fingerprint | None = None
        self._timings: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give up what cells share."""
        self._share_by(None)

    def run(self, cells: Iterable[PlannedCell]) -> Iterator[CellResult]:
        """One result a cell, in order, each as soon as it is known."""
        for planned in cells:
            yield self.run_cell(planned)

    def expect(self, cells: Iterable[PlannedCell]) -> None:
        """Announce cells. Nothing here runs ahead; an engine with processes does."""

    def warm(self, planned: PlannedCell, *, given: bool = False) -> Preparation:
        """Prepare what the cells of a recipe and device share, before the first of them runs.

        What goes wrong is told by the cells.

        Args:
            given: the cells will judge files that exist already.
        """
        trial = _Trial(planned.cell)
        with captured() as caught, contextlib.suppress(Exception):
            self._share_by((planned.recipe.name, planned.cell.device))
            trial.timings |= self._timings
            if self._missing_device(planned) is None:
                own_weights = given or not self._redraws_weights(planned.recipe)
                prepared = self._prepare(planned.recipe, planned.cell.device, trial, probe_weights=not own_weights)
                if not given and self._looks_twice(planned.recipe, prepared):
                    self._prepare(planned.recipe, planned.cell.device, trial, probe_weights=True)
        return Preparation(timings=trial.timings, log=caught.text)

    def run_cell(
        self, planned: PlannedCell, artifact: Artifact | None = None, preparation: Preparation | None = None
    ) -> CellResult:
        """Everything that onnx-ci can say about one cell. Nothing that goes wrong in it is raised.

        Args:
            artifact: a file that exists already, to be judged in place of a fresh export.
            preparation: what came of :meth:`warm`, to be told with this cell.
        """
        trial = _Trial(planned.cell)
        if preparation is not None:
            trial.timings, trial.log = dict(preparation.timings), preparation.log
        with captured() as caught:
            try:
                known = self.cached(planned) if artifact is None else None
                if known is not None:
                    return known
                result = self._run_stages(planned, trial, artifact)
            except SkippedByRecipeError as error:
                result = trial.result(Status.SKIPPED, reason=str(error))
            except Exception as error:
                result = self._failed(planned, trial, error)
        if planned.cell.gpu is not None:
            devices.gpus.free()
        result = dataclasses.replace(result, log="\n".join(filter(None, [caught.text, trial.log])))
        if self._cache is not None and self._key is not None and artifact is None:
            complaint = self._cache.put(planned.cell, self._key.for_cell(planned.cell), result)
            if complaint is not None:
                result = dataclasses.replace(result, log="\n".join(filter(None, [result.log, f"verdict cache: {complaint}"])))
        return result

    def _failed(self, planned: PlannedCell, trial: _Trial, error: Exception) -> CellResult:
        """What has no stage to tell it: a full disk or GPU, or our own failure, which costs no other cell anything."""
        trial.log += traceback.format_exc()
        if devices.ran_out_of_memory(error):
            said = f"{planned.cell.device} ran out of memory: {first_line(error)}"
            trial.findings.append(finding("out-of-memory", said, remedy=_FULL_GPU if planned.cell.gpu else None))
            self._share_by(None)  # the next cell begins anew, without what this one holds
            return _verdict(planned.recipe, trial)
        if full := disk_error(error):
            trial.findings.append(finding("disk-error", f"{full.filename or 'a file'}: {full.strerror}"))
        else:
            trial.findings.append(finding("internal-error", f"onnx-ci failed: {describe_exception(error)}"))
        return trial.result(Status.ERROR)

    def cached(self, planned: PlannedCell) -> CellResult | None:
        """The verdict of a cell of which nothing has changed since it was judged, or ``None``."""
        if self._cache is None or self._missing_device(planned) is not None:
            return None
        recipe, device = planned.recipe, planned.cell.device
        if self._share_by((recipe.name, device)):
            with captured(), contextlib.suppress(Exception, SystemExit):
                # What goes wrong here goes wrong again where the cell is run, and is told there.
                with timed("build", self._timings):
                    self._built = build_on(recipe, device, self._settings.weights_for(recipe.name))
                self._left_changed = self._built.left_changed
                with timed("fingerprint", self._timings):
                    self._key = fingerprint(recipe, self._built, device, self._settings)
        return None if self._key is None else self._cache.get(planned.cell, self._key.for_cell(planned.cell))

    def _run_stages(self, planned: PlannedCell, trial: _Trial, given: Artifact | None) -> CellResult:
        cell, recipe = planned.cell, planned.recipe
        missing = self._missing_device(planned)
        if missing is not None:
            said = f"no {cell.device}: {missing}"
            if not self._settings.require_devices:
                return trial.result(Status.SKIPPED, reason=said)
            trial.findings.append(finding("missing-device", said))
            return trial.result(Status.ERROR)
        # A file that somebody else made holds the recipe's own weights; a fresh export may hold more telling ones.
        own_weights = given is not None or not self._redraws_weights(recipe)
        prepared = self._prepare(recipe, cell.device, trial, probe_weights=not own_weights)
        if isinstance(prepared, SkippedByRecipeError):
            raise prepared
        if isinstance(prepared, PrepareError):
            trial.findings.append(prepared.finding)
            return trial.result(Status.ERROR) if prepared.finding.rule == "recipe-error" else _verdict(recipe, trial)
        trial.findings += prepared.findings
        if given is not None:
            self._judge(given, prepared, trial, given)
            return _verdict(recipe, trial)
        with tempfile.TemporaryDirectory(prefix="onnx-ci-", ignore_cleanup_errors=True) as scratch:
            path = Path(scratch, f"{cell.label.replace(':', '_')}.onnx")
            self._export_and_judge(prepared, path, trial)
            if self._kept is not None and path.is_file():
                trial.artifact = str(move(path, self._kept / cell.recipe))
            remove(path)
            if self._looks_twice(recipe, prepared):
                self._judge_with_probe_weights(recipe, Path(scratch, "probe-weights.onnx"), trial)
        return _verdict(recipe, trial)

    def _runtimes(self, recipe: Recipe) -> Sequence[Runtime]:
        return self._given_runtimes or [_RUNTIMES[name](recipe) for name in runtimes_of(recipe, self._settings)]

    def _missing_device(self, planned: PlannedCell) -> str | None:
        """Why the cell cannot run here: its device is absent, or no runtime of its own can use it."""
        device = planned.cell.device
        if (missing := devices.missing_device(device)) is not None:
            return missing
        reasons = [runtime.missing_device(device) for runtime in self._runtimes(planned.recipe)]
        return None if None in reasons else reasons[0]

    @property
    def _probes_weights(self) -> bool:
        return "probe-weights" not in self._settings.without

    def _is_trained(self, recipe: Recipe) -> bool:
        return recipe.is_trained or self._settings.weights_for(recipe.name) is not None

    def _redraws_weights(self, recipe: Recipe) -> bool:
        """Whether a fresh export gets probe weights in place of the model's own."""
        return self._probes_weights and not self._is_trained(recipe)

    def _looks_twice(self, recipe: Recipe, prepared: object) -> bool:
        """Whether a model that keeps its trained weights is exported with probe weights, too: modules do not show in it."""
        seen = prepared.observability if isinstance(prepared, Prepared) else None
        return self._probes_weights and self._is_trained(recipe) and seen is not None and bool(seen.blind)

    def _export_and_judge(self, prepared: Prepared, path: Path, trial: _Trial) -> None:
        with timed("export", trial.timings):
            exported = export(prepared, trial.cell, path)
        trial.log = "\n".join(filter(None, [trial.log, exported.log]))
        trial.findings += exported.findings
        if prepared.observability is not None:
            trial.observability = max(trial.observability or 0.0, prepared.observability.share)
        if exported.artifact is not None:
            with skeleton(exported.artifact.path) as readable:
                self._judge(Artifact(path=readable), prepared, trial, exported.artifact)

    def _judge_with_probe_weights(self, recipe: Recipe, path: Path, trial: _Trial) -> None:
        """Export once more where trained weights leave modules unseen: the graph is the same whatever the weights."""
        prepared = self._prepare(recipe, trial.cell.device, trial, probe_weights=True)
        if not isinstance(prepared, Prepared):
            return
        findings, outputs = len(trial.findings), len(trial.outputs)
        self._export_and_judge(prepared, path, trial)
        known = {each.message for each in trial.findings[:findings]}
        again = [each for each in trial.findings[findings:] if each.message not in known]
        trial.findings[findings:] = [dataclasses.replace(each, message=f"with probe weights: {each.message}") for each in again]
        trial.outputs[outputs:] = [
            dataclasses.replace(each, probe=f"{each.probe}, probe weights") for each in trial.outputs[outputs:]
        ]

    def _judge(self, artifact: Artifact, prepared: Prepared, trial: _Trial, whole: Artifact) -> None:
        """Hold a file against its recipe: contract, then load, then the example, then every other probe.

        A stage runs even where an earlier one found something, as long as it can: one run tells all that is wrong.

        Args:
            whole: the file itself, of which ``artifact`` may be the skeleton.
        """
        cell = trial.cell
        with timed("contract", trial.timings):
            signature = onnx_file.read_signature(artifact.path, prepared.weights)
            if isinstance(signature, Finding):
                trial.findings.append(signature)
                return
            broken = [*onnx_file.check(artifact.path, signature), *contract.compare_signature(signature, prepared, cell)]
            trial.facts = trial.facts or facts_of(signature, whole.path, prepared)
        trial.findings += broken
        if any(each.rule in ("input-missing", "input-extra", "output-mismatch") for each in broken):
            return  # without one graph value for every tensor there is no telling what to feed and what to compare
        run = functools.partial(
            run_file,
            path=artifact.path,
            signature=signature,
            prepared=prepared,
            device=cell.device,
            limit=self._settings.drift,
            timings=trial.timings,
        )
        able, runs = [], []
        for runtime in self._runtimes(prepared.recipe):
            # A witness speaks of the file, wherever it runs; a runtime that models are shipped to speaks of the device.
            places = [cell.device] if runtime.is_deployed else [cell.device, "cpu"]
            if (place := next((each for each in places if runtime.missing_device(each) is None), None)) is not None:
                able.append(runtime)
                runs.append(run(runtime, device=place))
        if not any(each.is_deployed for each in runs):  # whoever asks for witnesses only takes their word
            runs = [dataclasses.replace(each, is_deployed=True) for each in runs]
        doubted = any(isinstance(runtime, OnnxRuntime) and each.faults for runtime, each in zip(able, runs, strict=True))
        trial.outputs += [output for each in runs for output in each.outputs]
        told = lay_blame(runs, [run(OnnxRuntime(optimise=False, tf32=prepared.recipe.tf32))] if doubted else [])
        if cell.gpu is not None:
            shipped = next((each for runtime, each in zip(able, runs, strict=True) if isinstance(runtime, OnnxRuntime)), None)
            with timed("run", trial.timings):
                ways = compute_four_ways(shipped, artifact.path, signature, prepared, limit=self._settings.drift)
            told = judge_four_ways(ways, told, shipped, prepared)
            trial.four_ways = trial.four_ways or ways
        trial.findings += told

    def _share_by(self, whom: tuple[str, str] | None) -> bool:
        """Whether cells of another recipe or device begin, with which the last ones share nothing."""
        if self._shared_by == whom:
            return False
        # Frees the last model before the next is built; and what a recipe changed for everybody goes with it.
        self._shared_by, self._shared, self._built, self._key, self._timings = whom, {}, None, None, {}
        self._left_changed.undo()
        self._left_changed = Changes()
        return True

    def _prepare(
        self, recipe: Recipe, device: str, trial: _Trial, *, probe_weights: bool
    ) -> Prepared | PrepareError | SkippedByRecipeError:
        """What the cells of a recipe and device share; kept until another recipe or device asks."""
        self._share_by((recipe.name, device))
        if probe_weights not in self._shared:
            built, self._built = self._built, None
            try:
                made = prepare(
                    recipe,
                    device,
                    weights=self._settings.weights_for(recipe.name),
                    built=built,
                    probe_weights=probe_weights,
                    limit=self._settings.drift,
                    without=self._settings.without,
                )
                self._shared[probe_weights] = made
                if made.pristine.left_changed.words:
                    self._left_changed = made.pristine.left_changed
                for stage, seconds in made.timings.items():
                    trial.timings[stage] = trial.timings.get(stage, 0.0) + seconds
            except (PrepareError, SkippedByRecipeError) as error:
                self._shared[probe_weights] = error
        return self._shared[probe_weights]


def lost(planned: PlannedCell, found: Finding, log: str) -> CellResult:
    """The result of a cell that could not say anything itself: its process is no more."""
    trial = _Trial(planned.cell)
    trial.findings.append(found)
    trial.log = log
    return _verdict(planned.recipe, trial)


class _Trial:
    """What is known about a cell while it runs."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.findings: list[Finding] = []
        self.outputs: list[OutputDrift] = []
        self.timings: dict[str, float] = {}
        self.log = ""
        self.artifact: str | None = None
        self.observability: float | None = None
        self.four_ways: tuple[FourWays, ...] = ()
        self.facts: Facts | None = None

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
            observability=self.observability,
            four_ways=self.four_ways,
            facts=self.facts,
        )


def _verdict(recipe: Recipe, trial: _Trial) -> CellResult:
    """Passed or failed; or, where the recipe expects a failure, whether it failed that way."""
    trial.findings[:] = _told_once(
        dataclasses.replace(each, severity=Severity.NOTE) if each.rule in recipe.allow else each for each in trial.findings
    )
    broken = {each.rule for each in trial.findings if each.severity is Severity.ERROR}
    if "disk-error" in broken:
        return trial.result(Status.ERROR)
    expectations = recipe.expectations(trial.cell.exporter, trial.cell.opset)
    expected = {each.rule for each in expectations}
    reason = "; ".join(dict.fromkeys(map(str, expectations)))
    if not expected:
        return trial.result(Status.FAILED if broken else Status.PASSED)
    if broken == expected:
        return trial.result(Status.XFAILED, reason=reason)
    if broken - expected:
        return trial.result(Status.FAILED, reason=reason)
    closed = ", ".join(sorted(expected - broken))
    said = f"the recipe expects {closed} at opset {trial.cell.opset} ({reason}), and the cell does not fail that way"
    trial.findings.append(finding("unexpected-pass", said))
    return trial.result(Status.XPASSED, reason=reason)


_SAME_FAULT = {"baked-value": "numeric-drift", "baked-shape": "shape-mismatch"}
"""Rules that say of other inputs what another rule says of the example."""


def _told_once(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, each fault of an output told once, at the first input that shows it, with the names of the others."""
    first: dict[object, Finding] = {}
    others: dict[object, list[str]] = {}
    for each in findings:
        probe, output = each.details.get("probe"), each.details.get("output")
        key: object = (_SAME_FAULT.get(each.rule, each.rule), each.severity, output) if probe else id(each)
        if key in first:
            others.setdefault(key, []).append(str(probe))
        else:
            first[key] = each
    told = []
    for key, each in first.items():
        also = ", ".join(map(repr, dict.fromkeys(others.get(key, ()))))
        told.append(dataclasses.replace(each, message=f"{each.message}; also on {also}") if also else each)
    return told
