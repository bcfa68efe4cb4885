"""The engine behind every front-end: from planned cells to the evidence about each, one by one.

Only this module knows the order of the stages. It never prints, and does not decide verdicts: see
:mod:`onnx_ci.results.verdict`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from onnx_ci.collection.post_export import EXPORT
from onnx_ci.engine.export_ahead import ExportedAhead
from onnx_ci.errors import describe_exception, disk_error, first_line
from onnx_ci.matrix.plan import CellPlan, PlannedCell
from onnx_ci.onnx_model import signature as onnx_signature
from onnx_ci.onnx_model.precision import has_int8_tensors, lowest_precision
from onnx_ci.onnx_model.probe_mark import SUFFIX, mark_probe_weights
from onnx_ci.onnx_model.weightless import skeleton
from onnx_ci.processes.capture import captured, timed
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.results.records import (
    Cell,
    CellEvidence,
    CpuVsGpu,
    ExportFacts,
    Finding,
    InputDomain,
    OutputDrift,
    Severity,
    SkipCause,
)
from onnx_ci.results.rules import finding
from onnx_ci.results.verdict import broken_rules, unexpected_rules
from onnx_ci.stages.compare.attribution import attribute_faults, hidden_faults, without_overflow
from onnx_ci.stages.compare.cpu_vs_gpu import compute_cpu_vs_gpu, explain_drift_on_gpu
from onnx_ci.stages.compare.judge_file import run_file, save_failing
from onnx_ci.stages.contract import contract
from onnx_ci.stages.contract.facts import facts_of
from onnx_ci.stages.contract.weights import compare_weights
from onnx_ci.stages.export.exporter import Artifact, export, file_name, move, remove_kept
from onnx_ci.stages.locate.locate import located
from onnx_ci.stages.locate.parts import located_by_parts
from onnx_ci.stages.model import devices
from onnx_ci.stages.model.global_state import Changes
from onnx_ci.stages.model.live_model import PrepareError, SkippedByRecipeError
from onnx_ci.stages.post_export.apply import apply_stage
from onnx_ci.stages.post_export.as_shipped import AsShipped, calibration_feeds
from onnx_ci.stages.prepare.prepare import Exportable, Prepared, prepare
from onnx_ci.stages.run.onnxruntime import OnnxRuntime
from onnx_ci.stages.run.runtime import Runtime
from onnx_ci.stages.run.runtimes import make_runtime
from onnx_ci.text import listed

_FULL_GPU = "Shrink the model or the example, or check with nvidia-smi what else uses the GPU's memory."


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """The timings and the output of a preparation, reported with the first of its cells."""

    timings: Mapping[str, float]
    log: str
    takes_export_ahead: bool = False
    """Whether the first cell can take over an export that ran meanwhile."""


class Engine:
    """Runs cells one by one in this process; a context manager that releases what cells share.

    Consecutive cells of one recipe and device share their preparation. Each export gets a fresh copy of the model.

    Args:
        artifacts: where ONNX files are kept, with the models' own weights; ``None`` removes them once judged.
        save_inputs: where the inputs are written on which cells fail, if anywhere.
        runtimes: the runtimes that run the files, instead of those that the cells name.
    """

    def __init__(
        self,
        *,
        artifacts: Path | None = None,
        save_inputs: Path | None = None,
        runtimes: Sequence[Runtime] = (),
    ) -> None:
        self._given_runtimes = runtimes
        self._artifacts = None if artifacts is None else artifacts.absolute()  # a recipe may change directory
        self._save_inputs = None if save_inputs is None else save_inputs.absolute()
        self._global_changes = Changes()
        self._group: tuple[str, str] | None = None
        self._shared: dict[bool | None, Prepared | PrepareError | SkippedByRecipeError] = {}
        self._shipped: dict[tuple[int, ...], tuple[object, AsShipped]] = {}
        self._ahead: ExportedAhead | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release what cells share."""
        self._begin_group(None)

    def run(self, cells: Iterable[PlannedCell]) -> Iterator[CellEvidence]:
        """The evidence about each cell, in order, each as soon as it is known."""
        for planned in cells:
            yield self.run_cell(planned)

    def expect(self, cells: Iterable[CellPlan]) -> None:
        """Announce cells. Does nothing here; an engine with processes runs them ahead."""

    def warm(
        self, planned: PlannedCell, *, given: bool = False, export_ahead: Callable[[Exportable], None] | None = None
    ) -> Preparation:
        """Prepare what the cells of a recipe and device share, before the first of them runs.

        Errors are reported by the cells.

        Args:
            given: whether the cells judge existing files.
            export_ahead: starts an export of the first cell, which its :meth:`run_cell` may be given.
        """
        trial = _Trial(planned.cell)
        takes_export_ahead = False
        with captured() as caught, contextlib.suppress(Exception):
            self._begin_group((planned.recipe.name, planned.cell.device))
            if self._missing_device(planned) is None:
                probe_weights = False if given else _gets_probe_weights(planned)
                prepared = self._prepare(planned, trial, probe_weights=probe_weights, export_ahead=export_ahead)
                takes_export_ahead = isinstance(prepared, Prepared) and not prepared.has_side_effects
                if not given and isinstance(prepared, Prepared):
                    self._exports(planned, prepared, trial)
        return Preparation(timings=trial.timings, log=caught.text, takes_export_ahead=takes_export_ahead)

    def run_cell(
        self,
        planned: PlannedCell,
        artifact: Artifact | None = None,
        preparation: Preparation | None = None,
        ahead: ExportedAhead | None = None,
    ) -> CellEvidence:
        """Everything that onnx-ci can find out about one cell. Errors in the cell are not raised.

        Args:
            artifact: an existing file to judge instead of a fresh export.
            preparation: what :meth:`warm` returned, reported with this cell.
            ahead: an export of the cell, which :meth:`warm` started, and whose file is taken over.
        """
        trial = _Trial(planned.cell)
        self._ahead = ahead
        if preparation is not None:
            trial.timings, trial.log = dict(preparation.timings), preparation.log
        with captured() as caught:
            try:
                result = self._run_stages(planned, trial, artifact)
            except SkippedByRecipeError as error:
                result = trial.evidence(skip_cause=SkipCause.RECIPE, reason=str(error))
            except Exception as error:
                result = self._failed(planned, trial, error)
        if planned.cell.gpu is not None:
            devices.gpus.free()
        return dataclasses.replace(result, log="\n".join(filter(None, [caught.text, trial.log])))

    def _failed(self, planned: PlannedCell, trial: _Trial, error: Exception) -> CellEvidence:
        """A failure that no stage reports: a full disk or GPU, or an internal error, which must not affect other cells."""
        trial.log += traceback.format_exc()
        if devices.ran_out_of_memory(error):
            message = f"{planned.cell.device} ran out of memory: {first_line(error)}"
            trial.findings.append(finding("out-of-memory", message, remedy=_FULL_GPU if planned.cell.gpu else None))
            self._begin_group(None)  # free the memory for the next cell
        elif full := disk_error(error):
            trial.findings.append(finding("disk-error", f"{full.filename or 'a file'}: {full.strerror}"))
        else:
            trial.findings.append(finding("internal-error", f"onnx-ci failed: {describe_exception(error)}"))
        return trial.evidence()

    def _run_stages(self, planned: PlannedCell, trial: _Trial, given: Artifact | None) -> CellEvidence:
        cell = planned.cell
        missing = self._missing_device(planned)
        if missing is not None:
            message = f"no {cell.device}: {missing}"
            if not planned.require_device:
                return trial.evidence(skip_cause=SkipCause.MISSING_DEVICE, reason=message)
            trial.findings.append(finding("missing-device", message))
            return trial.evidence()
        # A given file has the recipe's own weights; a fresh export can have weights that reveal more faults.
        prepared = self._prepare(planned, trial, probe_weights=_gets_probe_weights(planned) if given is None else False)
        if isinstance(prepared, SkippedByRecipeError):
            raise prepared
        if isinstance(prepared, PrepareError):
            trial.findings.append(prepared.finding)
            return trial.evidence()
        trial.findings += prepared.findings
        if given is not None:
            # After a lossy stage, the rounding of that stage is simulated instead.
            lowered = prepared if planned.is_lossy else _at_precision_of(given, prepared)
            self._judge(given, planned, lowered, trial, given)
            return trial.evidence()
        exports = self._exports(planned, prepared, trial)
        parts = []
        for each in exports:
            part = _Trial(cell, trial.timings)
            parts.append(part)
            with scratch_folder() as scratch:
                path = scratch / file_name(cell)
                try:
                    ahead = self._ahead if each is prepared else None
                    judged = self._export_and_judge(planned, each, path, part, ahead)
                    self._locate_by_parts(planned, each, part)
                    own = self._with_own_weights(planned, part) if len(exports) == 1 and each.has_probe_weights else None
                    if own is not None:
                        parts.insert(0, own)
                        trial.add(own, is_second=False, is_decisive=False)
                finally:
                    trial.add(part, is_second=part is not parts[0], is_decisive=each is prepared)
                if self._artifacts is not None and judged is not None:
                    self._keep(judged.path, self._artifacts / cell.recipe, each, trial)
        if len(parts) == 2:
            trial.findings += _disagreement(*parts)
        return trial.evidence()

    def _with_own_weights(self, planned: PlannedCell, probed: _Trial) -> _Trial | None:
        """The evidence about an export with the model's own weights, if that with probe weights is wrong and this one is right.

        ``None`` otherwise: it would only repeat what is known.
        """
        if not _wrong_numbers(probed):
            return None
        part = _Trial(planned.cell)
        own = self._prepare(planned, part, probe_weights=False)
        if not isinstance(own, Prepared):
            return None
        with scratch_folder() as scratch:
            self._export_and_judge(planned, own, scratch / "own-weights.onnx", part)
        return part if part.outputs and not broken_rules(part.findings) else None

    def _keep(self, path: Path, folder: Path, prepared: Prepared, trial: _Trial) -> None:
        """Keep the file of an export in ``folder``; one with probe weights only if it breaks a rule that the other does not."""
        if not prepared.has_probe_weights:
            remove_kept(folder / f"{path.stem}{SUFFIX}.onnx")  # an earlier run may have kept it
            trial.artifact = str(move(path, folder))
            return
        probed = broken_rules(each for each in trial.findings if each.probe_weights)
        if probed - broken_rules(each for each in trial.findings if not each.probe_weights):
            kept = move(mark_probe_weights(path), folder)
            trial.note(f"the file with probe weights is kept as {kept}")

    def _exports(self, planned: PlannedCell, prepared: Prepared, trial: _Trial) -> list[Prepared]:
        """What a cell exports: the model with its own weights, with probe weights, or with both, in this order.

        Trained weights can hide modules, whose faults only probe weights show; a file that is kept has the model's own weights.

        Args:
            prepared: the recipe with the weights with which its baseline is recorded.
        """
        other = None
        if prepared.has_probe_weights and self._artifacts is not None:
            other = self._prepare(planned, trial, probe_weights=False)
            if isinstance(other, PrepareError):
                trial.findings.append(other.finding)
        elif _hides_modules(planned, prepared):
            other = self._prepare(planned, trial, probe_weights=True)
        if not isinstance(other, Prepared) or other.has_probe_weights == prepared.has_probe_weights:
            return [prepared]
        return [other, prepared] if prepared.has_probe_weights else [prepared, other]

    def _runtimes(self, planned: PlannedCell) -> Sequence[Runtime]:
        return self._given_runtimes or [make_runtime(name, tf32=planned.recipe.tf32) for name in planned.runtimes]

    def _missing_device(self, planned: PlannedCell) -> str | None:
        """Why the cell cannot run here: its device is absent, or none of its runtimes can use it."""
        device = planned.cell.device
        if (missing := devices.missing_device(device)) is not None:
            return missing
        reasons = [runtime.missing_device(device) for runtime in self._runtimes(planned)]
        return None if None in reasons else reasons[0]

    def _export_and_judge(
        self, planned: PlannedCell, prepared: Prepared, path: Path, trial: _Trial, ahead: ExportedAhead | None = None
    ) -> Artifact | None:
        """Export, apply the cell's stages, and judge the last file, which is returned unless it could not be made.

        Args:
            ahead: the export, if it has already run.
        """
        with timed("export", trial.timings):
            exported = export(prepared, trial.cell, path) if ahead is None else ahead.taken_over(prepared, trial.cell, path)
        if ahead is not None:
            trial.timings["export"] += ahead.seconds
        trial.log = exported.log
        trial.findings += exported.findings
        trial.inputs = prepared.inputs
        if prepared.observability is not None:
            trial.observability = prepared.observability.share
        if exported.artifact is None:
            return None
        if planned.stages:
            return self._apply_and_judge(exported.artifact, planned, prepared.separated, trial)
        with skeleton(exported.artifact.path) as readable:
            self._judge(Artifact(path=readable), planned, prepared, trial, exported.artifact)
        return exported.artifact

    def _apply_and_judge(self, exported: Artifact, planned: PlannedCell, prepared: Prepared, trial: _Trial) -> Artifact | None:
        """Apply the cell's stages in order and judge the last file; if it is wrong, find the first file that is.

        The files before it are only judged if the last one is wrong.
        """
        files = [exported]
        for number, stage in enumerate(planned.stages, start=1):
            with timed("post-export", trial.timings):
                feeds = functools.partial(calibration_feeds, files[-1].path, prepared)
                applied = apply_stage(stage, files[-1], exported.path.parent / f"{exported.path.stem}-{number}", feeds)
            trial.note(applied.log)
            trial.findings += applied.findings
            if applied.artifact is None:
                return None
            files.append(applied.artifact)

        def judged(count: int, trial: _Trial) -> list[Finding]:
            before = len(trial.findings)
            with skeleton(files[count].path) as readable:
                self._judge(Artifact(path=readable), planned.before_stages(count), prepared, trial, files[count])
            return trial.findings[before:]

        last = len(planned.stages)
        found = judged(last, trial)
        names = [EXPORT, *(stage.name for stage in planned.stages)]
        first: dict[tuple[str, str | None], str] = {}
        if any(each.severity is Severity.ERROR for each in found):
            for count in range(last):
                for each in judged(count, _Trial(trial.cell)):
                    if each.severity is Severity.ERROR:
                        first.setdefault((each.rule, each.output), names[count])
        trial.findings[len(trial.findings) - len(found) :] = [
            dataclasses.replace(each, introduced_by=first.get((each.rule, each.output), names[-1]))
            if each.severity is Severity.ERROR
            else each
            for each in found
        ]
        return files[-1]

    def _judge(self, artifact: Artifact, planned: PlannedCell, prepared: Prepared, trial: _Trial, whole: Artifact) -> None:
        """Compare a file with its recipe: contract, then load, then the example, then every other probe.

        A stage runs even if an earlier one found something, as long as it can, so that one run reports everything.

        Args:
            whole: the complete file; ``artifact`` may be the same file without its weights.
        """
        cell = planned.cell
        prepared = prepared.separated if planned.stages else prepared
        shipped = self._as_shipped(planned, prepared, trial)
        as_exported, prepared = prepared, shipped.prepared
        trial.findings += shipped.findings
        with timed("contract", trial.timings):
            signature = onnx_signature.read_signature(artifact.path, prepared.weights)
            if isinstance(signature, Finding):
                trial.findings.append(signature)
                return
            broken = [
                *onnx_signature.check(artifact.path, signature),
                *contract.compare_signature(signature, prepared, cell, domains=shipped.domains),
            ]
            if not planned.is_lossy and not any(each.rule in ("checker", "external-data", "probe-weights") for each in broken):
                broken += compare_weights(artifact.path, prepared)
            if cell.stage is None:  # baselines are of the exporter's own file
                trial.facts = facts_of(signature, whole.path, prepared)
        trial.findings += broken
        if any(each.rule in ("input-missing", "input-extra", "output-mismatch", "probe-weights") for each in broken):
            return  # inputs and outputs cannot be matched, or their values not be compared, with those of the model
        run = functools.partial(
            run_file,
            path=artifact.path,
            signature=signature,
            prepared=prepared,
            device=cell.device,
            max_drift=planned.drift_limit,
            timings=trial.timings,
        )
        usable = []
        for runtime in self._runtimes(planned):
            # A reference runtime checks the file, so it may fall back to the CPU; a deployed one must use the device.
            places = [cell.device] if runtime.is_deployed else [cell.device, "cpu"]
            if (place := next((each for each in places if runtime.missing_device(each) is None), None)) is not None:
                usable.append((runtime, place))
        runs = [run(runtime, device=place) for runtime, place in usable]
        if prepared.separate is not None and any(each.fails_on_inputs for each in runs):
            as_exported = prepared = prepared.separated
            run = functools.partial(run, prepared=prepared)
            runs = [run(runtime, device=place) for runtime, place in usable]
        for number, (runtime, place) in enumerate(usable):
            if isinstance(runtime, OnnxRuntime) and place == "cpu" and runs[number].faults and _has_int8(artifact.path):
                runs[number], overflow = without_overflow(runs[number], run(OnnxRuntime(exact_int8=True), device=place))
                trial.findings += overflow
        if not any(each.is_deployed for each in runs):  # if only reference runtimes are requested, they decide
            runs = [dataclasses.replace(each, is_deployed=True) for each in runs]
        trial.outputs += [output for each in runs for output in each.outputs]
        optimized = [each for (runtime, _), each in zip(usable, runs, strict=True) if isinstance(runtime, OnnxRuntime)]
        plain = OnnxRuntime(optimize=False, tf32=prepared.recipe.tf32)
        is_faulty = any(each.faults for each in optimized)
        found = attribute_faults(runs, [run(plain)] if is_faulty else [])
        # Where ONNX Runtime replaces several nodes by one, it overlooks the exponent and takes every Pow for a square.
        if optimized and signature.has_other_powers and not any(each.severity is Severity.ERROR for each in found):
            example = dataclasses.replace(prepared, probes=(prepared.example,))  # its exponent matters on every input
            found += hidden_faults(run(plain, prepared=example))
        if cell.gpu is not None and not planned.is_lossy:
            own = next(iter(optimized), None)
            with timed("run", trial.timings):
                compared = compute_cpu_vs_gpu(own, artifact.path, signature, prepared, max_drift=planned.max_drift)
            found = explain_drift_on_gpu(compared, found, own, prepared)
            trial.cpu_vs_gpu = compared
        is_asked_for = cell == trial.cell  # other files are only judged to find the stage at fault
        if is_asked_for and not planned.is_lossy and _is_to_be_located(planned, found):
            with timed("locate", trial.timings):
                found, problem = located(
                    found,
                    artifact.path,
                    signature,
                    prepared,
                    exporter=cell.exporter,
                    max_drift=planned.max_drift,
                    seconds=_seconds_to_locate(trial.timings),
                )
            trial.note(problem)
        trial.findings += found
        if self._save_inputs is not None and is_asked_for:
            folder = self._save_inputs / cell.recipe / cell.label.replace(":", "_")
            inputs = {probe.name: probe.inputs for probe in as_exported.probes}
            save_failing(found, inputs, prepared.input_names, folder)

    def _locate_by_parts(self, planned: PlannedCell, prepared: Prepared, trial: _Trial) -> None:
        """Find the part of the model that fails by itself, if nothing else says where the fault of an exporter's file lies."""
        if planned.stages or not _is_to_be_located(planned, trial.findings):
            return
        with timed("locate", trial.timings):
            deadline = time.thread_time() + _seconds_to_locate(trial.timings)
            trial.findings, problem = located_by_parts(trial.findings, prepared, planned.cell, deadline)
        trial.note(problem)

    def _as_shipped(self, planned: PlannedCell, prepared: Prepared, trial: _Trial) -> AsShipped:
        """What the cell's file is compared with; kept as long as ``prepared``, because simulated rounding takes time."""
        key = (id(prepared), *map(id, planned.stages))
        if key not in self._shipped:
            with timed("rounding", trial.timings) if planned.is_lossy else contextlib.nullcontext():
                made = AsShipped.of(prepared, planned.stages, planned.drift_limit)
            self._shipped[key] = ((prepared, planned.stages), made)  # what is known by its id must stay alive
        return self._shipped[key][1]

    def _begin_group(self, group: tuple[str, str] | None) -> None:
        """Begin the cells of a recipe and device, unless they are the same as the last ones."""
        if self._group == group:
            return
        # Frees the last model before the next is built, and restores the global state that its recipe changed.
        self._group, self._shared, self._shipped = group, {}, {}
        self._global_changes.undo()
        self._global_changes = Changes()

    def _prepare(
        self,
        planned: PlannedCell,
        trial: _Trial,
        *,
        probe_weights: bool | None,
        export_ahead: Callable[[Exportable], None] | None = None,
    ) -> Prepared | PrepareError | SkippedByRecipeError:
        """What the cells of a recipe and device share; kept until cells of another recipe or device begin."""
        self._begin_group((planned.recipe.name, planned.cell.device))
        if probe_weights not in self._shared:
            try:
                made = prepare(planned, probe_weights=probe_weights, export_ahead=export_ahead)
                self._shared[probe_weights] = made
                if made.pristine.global_changes.descriptions:
                    self._global_changes = made.pristine.global_changes
                for stage, seconds in made.timings.items():
                    trial.timings[stage] = trial.timings.get(stage, 0.0) + seconds
            except (PrepareError, SkippedByRecipeError) as error:
                self._shared[probe_weights] = error
        return self._shared[probe_weights]


_LEAST_SECONDS = 5.0
"""How long a fault may be searched for in a cell that takes less time itself."""


def _seconds_to_locate(timings: Mapping[str, float]) -> float:
    """How long a fault may be searched for: as long as all else took, less what the search has already taken."""
    spent = timings.get("locate", 0.0)
    return max(_LEAST_SECONDS, sum(timings.values()) - spent) - spent


def _is_to_be_located(planned: PlannedCell, findings: Sequence[Finding]) -> bool:
    """Whether a fault is searched for: one that is not expected, on the CPU."""
    can_locate = planned.cell.gpu is None and "locate" not in planned.skip_stages
    return can_locate and bool(unexpected_rules(findings, allow=planned.allow, expect=planned.expectations))


def _probes_weights(planned: PlannedCell) -> bool:
    return "probe-weights" not in planned.skip_stages


def _gets_probe_weights(planned: PlannedCell) -> bool | None:
    """Whether a fresh export gets probe weights instead of the model's own; ``None`` if building the model will show that."""
    if planned.is_trained is None and _probes_weights(planned):
        return None
    return _probes_weights(planned) and not planned.is_trained


def _hides_modules(planned: PlannedCell, prepared: Prepared) -> bool:
    """Whether the model has trained weights with which some modules do not show, and probe weights may show them."""
    is_trained = bool(prepared.pristine.loaded_with) if planned.is_trained is None else planned.is_trained
    return _probes_weights(planned) and is_trained and prepared.hides_modules


def _at_precision_of(given: Artifact, prepared: Prepared) -> Prepared:
    """``prepared``, also with references for the lower precision that a given file computes in: a model may be converted."""
    model = onnx_signature.read_model(given.path)
    precision = None if isinstance(model, Finding) else lowest_precision(model)
    return prepared if precision is None else prepared.at_precision(precision)


def _has_int8(path: Path) -> bool:
    model = onnx_signature.read_model(path)
    return not isinstance(model, Finding) and has_int8_tensors(model)


_NUMBERS = frozenset({"numeric-drift", "baked-value", "nonfinite-mismatch", "runtime-disagreement"})
"""Rules about values, which weights may hide or show."""


def _wrong_numbers(part: _Trial) -> list[str]:
    """The rules about values that an export breaks."""
    return sorted(broken_rules(part.findings) & _NUMBERS)


def _disagreement(own: _Trial, probed: _Trial) -> Iterator[Finding]:
    """A note if the values of an export are wrong with the model's own weights or with probe weights only."""
    wrong = _wrong_numbers(own) or _wrong_numbers(probed)
    if not wrong or (_wrong_numbers(own) and _wrong_numbers(probed)):
        return

    def said(part: _Trial) -> str:
        worst = max((each.drift for each in part.outputs), default=0.0)
        return f"{f'wrong ({listed(wrong)})' if _wrong_numbers(part) else 'right'}, with a drift of {worst:.3g}"

    yield finding(
        "numeric-drift",
        f"the file with the model's own weights is {said(own)}; the file with probe weights is {said(probed)}",
        remedy=_HIDDEN if _wrong_numbers(probed) else _SHOWN,
        severity=Severity.NOTE,
    )


_HIDDEN = (
    "Both files have the same graph. Either it has a fault that the model's own weights hide, or a runtime is inaccurate for "
    "values that they do not lead to; training may."
)
_SHOWN = "Both files have the same graph, so look for what depends on the size of the model's own weights."


class _Trial:
    """Collects the evidence about a cell, or about one of its exports, while it runs."""

    def __init__(self, cell: Cell, timings: dict[str, float] | None = None) -> None:
        self.cell = cell
        self.findings: list[Finding] = []
        self.outputs: list[OutputDrift] = []
        self.timings = {} if timings is None else timings
        self.log = ""
        self.artifact: str | None = None
        self.observability: float | None = None
        self.cpu_vs_gpu: tuple[CpuVsGpu, ...] = ()
        self.inputs: tuple[InputDomain, ...] = ()
        self.facts: ExportFacts | None = None

    def add(self, part: _Trial, *, is_second: bool, is_decisive: bool) -> None:
        """Add the evidence about an export.

        Args:
            is_second: whether it is the second export, which has probe weights.
            is_decisive: whether a baseline records its facts.
        """
        new = [each for each in part.findings if each not in self.findings]
        self.findings += [dataclasses.replace(each, probe_weights=is_second) for each in new]
        self.outputs += [dataclasses.replace(each, probe_weights=is_second) for each in part.outputs]
        self.note(part.log)
        if part.observability is not None:
            self.observability = max(self.observability or 0.0, part.observability)
        self.cpu_vs_gpu = self.cpu_vs_gpu or part.cpu_vs_gpu
        self.inputs = self.inputs or part.inputs
        if is_decisive:
            self.facts = part.facts

    def note(self, text: str) -> None:
        """Add lines to the log."""
        self.log = "\n".join(filter(None, [self.log, text]))

    def evidence(self, *, skip_cause: SkipCause | None = None, reason: str = "") -> CellEvidence:
        return CellEvidence(
            cell=self.cell,
            findings=tuple(self.findings),
            outputs=tuple(self.outputs),
            skip_cause=skip_cause,
            reason=reason,
            log=self.log,
            timings=self.timings,
            artifact=self.artifact,
            observability=self.observability,
            cpu_vs_gpu=self.cpu_vs_gpu,
            inputs=self.inputs,
            facts=self.facts,
        )
