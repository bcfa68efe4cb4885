"""What happens to a cell, from top to bottom: prepare, export, post-export, contract, run, compare, locate.

Runs in the process of the cell, or in that of its worker. What a recipe, an exporter or a runtime raises becomes a finding. The
process that decides makes a verdict of the findings later: :mod:`onnx_ci.results.verdict`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import math
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from onnx_ci.engine.events import Emit, SearchEnded, SearchStarted, to_nobody
from onnx_ci.engine.evidence import Evidence, Trial
from onnx_ci.engine.export_at_fault import with_dynamo, with_export_at_fault
from onnx_ci.engine.part_at_fault import with_part_at_fault
from onnx_ci.engine.pass_at_fault import with_chain, with_pass_at_fault
from onnx_ci.engine.shared import Shared
from onnx_ci.engine.way_at_fault import with_way_at_fault
from onnx_ci.engine.weights import disagreements, first_weights, recipes_to_export, wrong_numbers
from onnx_ci.errors import EnvironmentLacksError, describe_exception, disk_error, first_line, open_files_error
from onnx_ci.matrix.plan import CellTask
from onnx_ci.onnx_model.files import digests_of, files_in
from onnx_ci.onnx_model.signature import PROBE_SUFFIX, mark_probe_weights
from onnx_ci.onnx_model.weightless import skeleton
from onnx_ci.onnx_model.weights import stored_weights
from onnx_ci.opsets import CUSTOM
from onnx_ci.pipeline.compare.converted import at_precision_of_file
from onnx_ci.pipeline.compare.runtime_run import save_failing
from onnx_ci.pipeline.export.export import Artifact, export, file_name, move, remove_kept
from onnx_ci.pipeline.export.exporter_warnings import explained
from onnx_ci.pipeline.judge import JudgedFile, Judgement, judge
from onnx_ci.pipeline.locate.locate import located
from onnx_ci.pipeline.model import devices
from onnx_ci.pipeline.model.call import PrepareError, SkippedByRecipeError
from onnx_ci.pipeline.model.places import is_in_project
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.post_export.apply import apply_pass
from onnx_ci.pipeline.post_export.shipped_reference import calibration_feeds
from onnx_ci.pipeline.prepare.prepare import Prepared, Weights
from onnx_ci.pipeline.run.runtime import Runtime, make_runtime
from onnx_ci.processes.capture import captured, timed
from onnx_ci.processes.clock import CLOCK
from onnx_ci.processes.limits import Limits
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.results.records import CellEvidence, Finding, Severity, SkipCause
from onnx_ci.results.rules import REMEDIES, finding
from onnx_ci.results.verdict import broken_rules, unexpected_rules


@dataclass(frozen=True, kw_only=True)
class CellContext:
    """What every cell of a worker is given."""

    shared: Shared
    artifacts: Path | None = None
    """Where ONNX files are kept, with the models' own weights; ``None`` removes them once they are judged."""
    failing_inputs: Path | None = None
    """Where the inputs are written on which cells fail, if anywhere."""
    runtimes: Sequence[Runtime] = ()
    """The runtimes that run the files, instead of those that the cells name."""
    emit: Emit = to_nobody
    forks: bool = False
    """Whether processes are forked."""

    def runtimes_of(self, task: CellTask) -> Sequence[Runtime]:
        """The runtimes that run the file of a cell. One answer of a plug-in may take a third of the cell's time."""
        can_fork = self.forks and task.cell.gpu is None  # a fork cannot use CUDA where it was used before
        limit = Limits.of(task).seconds / 3 if can_fork else math.inf
        return self.runtimes or [make_runtime(name, tf32=task.recipe.tf32, seconds=limit) for name in task.runtimes]


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """The timings and the output of a preparation, reported with the first of its cells."""

    timings: Mapping[str, float] = field(default_factory=dict)
    log: str = ""


def prepare_cells(task: CellTask, context: CellContext, *, judges_file: bool = False) -> Preparation:
    """Prepare what the cells of a recipe and device share, before the first of them runs. Errors are reported by the cells."""
    timings: dict[str, float] = {}
    with captured() as printed, contextlib.suppress(Exception):
        if missing_device(task, context) is None:
            prepared = context.shared.prepared(task, Weights.OWN if judges_file else first_weights(task), timings)
            if not judges_file:
                recipes_to_export(task, prepared, context.shared, timings, keeps_file=context.artifacts is not None)
    return Preparation(timings=timings, log=printed.text)


def run_cell(
    task: CellTask, context: CellContext, *, artifact: Artifact | None = None, preparation: Preparation | None = None
) -> CellEvidence:
    """Everything that can be found out about one cell, or about an existing file. Errors in the cell are not raised."""
    preparation = preparation or Preparation()
    evidence = Evidence(task=task, timings=dict(preparation.timings))
    with captured() as printed:
        try:
            _Cell(task=task, context=context, evidence=evidence).run(artifact)
        except SkippedByRecipeError as error:
            evidence.skip_cause, evidence.reason = SkipCause.RECIPE, str(error)
        except PrepareError as error:
            evidence.findings.append(error.finding)
        except Exception as error:
            evidence.logs.append(traceback.format_exc())
            evidence.failures.append(_failure(task, error))
            if devices.ran_out_of_memory(error):
                context.shared.close()  # frees the memory for the next cell
    if task.cell.gpu is not None:
        devices.gpus.free()
    return evidence.complete(printed.text, preparation.log)


def missing_device(task: CellTask, context: CellContext) -> str | None:
    """Why a cell cannot run here: its device is absent, or none of its runtimes can use it. ``None`` if it can."""
    device = task.cell.device
    if (missing := devices.missing_device(device)) is not None:
        return missing
    reasons = [runtime.missing_device(device) for runtime in context.runtimes_of(task)]
    return None if None in reasons else reasons[0]


@dataclass(frozen=True, kw_only=True)
class _Cell:
    """A cell while it runs, and what is known about it so far."""

    task: CellTask
    context: CellContext
    evidence: Evidence

    def run(self, artifact: Artifact | None) -> None:
        """Find out everything about the cell."""
        missing = missing_device(self.task, self.context)
        if missing is None:
            self._judge_exports() if artifact is None else self._judge_existing(artifact)
            return
        message = f"no {self.task.cell.device}: {missing}"
        if self.task.require_device:
            self.evidence.findings.append(finding("missing-device", message))
        else:
            self.evidence.skip_cause, self.evidence.reason = SkipCause.MISSING_DEVICE, message

    def _judge_existing(self, artifact: Artifact) -> None:
        """Judge an existing file, which has the model's own weights."""
        prepared = self.context.shared.prepared(self.task, Weights.OWN, self.evidence.timings)
        self.evidence.begin(prepared)
        trial = self.evidence.new_trial(prepared)
        with scratch_folder() as scratch:
            # After a lossy pass, the rounding of that pass is simulated instead.
            is_as_precise = self.task.is_lossy or artifact.path.is_dir()
            if not is_as_precise:
                lowered, of_scales = at_precision_of_file(prepared.model, prepared.probes, artifact.path, scratch)
                prepared, trial.findings = replace(prepared, probes=lowered), [*trial.findings, *of_scales]
            trial.add(self._judged(JudgedFile(path=artifact.path, complete=artifact.path), prepared, trial))

    def _judge_exports(self) -> None:
        """Export the model, with weights that reveal more faults than its own where there is a choice, and judge the files."""
        evidence, shared = self.evidence, self.context.shared
        prepared = shared.prepared(self.task, first_weights(self.task), evidence.timings)
        evidence.begin(prepared)
        keeps_file = self.context.artifacts is not None
        to_export, problems = recipes_to_export(self.task, prepared, shared, evidence.timings, keeps_file=keeps_file)
        evidence.findings += problems
        for each in to_export:
            self._try_export(evidence.new_trial(each))
        if len(to_export) == 1 and prepared.model.has_probe_weights and wrong_numbers(evidence.trials[0].findings):
            with self._with_evidence_kept(evidence.complete()):
                evidence.trials = [*self._right_with_own_weights(), *evidence.trials]  # that with probe weights comes second
        if len(evidence.trials) == 2:
            evidence.disagreements += disagreements(*evidence.trials)

    def _right_with_own_weights(self) -> list[Trial]:
        """An export with the model's own weights, if that is right; if not, it only repeats what is known."""
        try:
            trial = Trial(prepared=self.context.shared.prepared(self.task, Weights.OWN, {}))
        except (PrepareError, SkippedByRecipeError):
            return []
        aside = replace(self, context=replace(self.context, emit=to_nobody), evidence=Evidence(task=self.task, timings={}))
        with scratch_folder() as scratch:
            aside._export_and_judge(scratch / "own-weights.onnx", trial)
        return [trial] if trial.outputs and not broken_rules(trial.findings) else []

    def _try_export(self, trial: Trial) -> None:
        """Export, judge the file, and keep it if files are kept."""
        with scratch_folder() as scratch:
            file = self._export_and_judge(scratch / file_name(self.task.cell), trial)
            # Where no node shows where a fault begins, or no file could be made, parts of the model are exported alone.
            if not self.task.passes and self._is_to_be_located(trial.findings):
                with self._searching(self.evidence.complete(), trial):
                    deadline = CLOCK.thread_time() + self._seconds_to_locate()
                    runtimes = self.context.runtimes_of(self.task)
                    path = None if file is None else file.path
                    trial.findings = with_part_at_fault(trial.findings, self.task, trial.prepared, path, runtimes, deadline)
                    if CLOCK.thread_time() < deadline:
                        is_right = functools.partial(self._is_right, trial.prepared.model, trial.prepared)
                        trial.findings = with_dynamo(trial.findings, self.task, is_right)
            if file is not None and self.context.artifacts is not None:
                _keep(file.path, self.context.artifacts / self.task.cell.recipe, self.evidence)

    def _export_and_judge(self, path: Path, trial: Trial) -> Artifact | None:
        """Export, apply the cell's passes, and judge the last file, which is returned unless it could not be made."""
        prepared = trial.prepared
        with timed("export", self.evidence.timings):
            exported = export(prepared.model, prepared.untaken_branches, self.task.cell, path)
        trial.logs.append(exported.log)
        trial.findings += exported.findings
        trial.inputs, trial.left_out = prepared.probes.inputs, prepared.probes.left_out
        trial.observability = None if prepared.observability is None else prepared.observability.share
        if exported.artifact is None or self.task.passes:
            return exported.artifact and self._judge_after_passes(exported.artifact, trial)
        with skeleton(path) as readable:
            trial.add(self._judged(JudgedFile(path=readable, complete=path), prepared, trial, is_export=True))
        is_usual = prepared.model.has_probe_weights and not wrong_numbers(trial.findings)  # no other file is compared with it
        if self.task.cell.exporter == CUSTOM and trial.outputs and not is_usual:
            trial.written_weights = _digest(path)
        return exported.artifact

    def _judge_after_passes(self, exported: Artifact, trial: Trial) -> Artifact | None:
        """Apply the cell's passes in order and judge the last file, which is returned unless a pass fails."""
        files = [exported]
        for number, graph_pass in enumerate(self.task.passes, start=1):
            with timed("post-export", self.evidence.timings):
                weights, probes = trial.prepared.model.weights, trial.prepared.probes
                feeds = functools.partial(calibration_feeds, files[-1].path, weights, probes)
                applied = apply_pass(graph_pass, files[-1], exported.path.parent / f"{exported.path.stem}-{number}", feeds)
            trial.logs.append(applied.log)
            trial.findings += [with_chain(each, self.task) for each in applied.findings]
            if applied.artifact is None:
                return None
            files.append(applied.artifact)
        with skeleton(files[-1].path) as readable:
            judgement = self._judged(JudgedFile(path=readable, complete=files[-1].path), trial.prepared, trial)
        runtimes = self.context.runtimes_of(self.task)
        trial.add(with_pass_at_fault(judgement, files[:-1], self.task, trial.prepared, self.context.shared, runtimes))
        return files[-1]

    def _judged(self, file: JudgedFile, prepared: Prepared, trial: Trial, *, is_export: bool = False) -> Judgement:
        """What is known about the file of a trial, with where a fault begins. Writes the inputs on which the file fails.

        Options of the exporter may be the remedy if the file is what it has just written.
        """
        task, timings = self.task, self.evidence.timings
        shipped = self.context.shared.shipped_reference(task, prepared, timings)
        judgement = judge(file, task, shipped, self.context.runtimes_of(task), timings)
        if judgement.signature is not None and not task.is_lossy and self._is_to_be_located(judgement.findings):
            findings, log = [*judgement.findings], ""
            warned = {each.source for each in trial.findings if each.rule == "export-warning" and each.source is not None}
            seconds = self._seconds_to_locate()
            deadline = CLOCK.thread_time() + seconds
            with self._searching(self.evidence.with_judgement(trial, judgement), trial):
                findings, log = located(
                    judgement.findings,
                    file.path,
                    judgement.signature,
                    prepared.model,
                    judgement.probes,
                    exporter=task.cell.exporter,
                    max_drift=task.drift_limit,
                    seconds=seconds,
                    warned=warned,
                )
                for look in (self._on_another_way, self._on_another_export):
                    if is_export and CLOCK.thread_time() + timings["export"] < deadline:
                        findings = look(findings, prepared)
            of_contract = len(judgement.contract)
            contract, numbers = tuple(findings[:of_contract]), tuple(explained(findings[of_contract:], trial.findings))
            judgement = replace(judgement, contract=contract, numbers=numbers, log=log)
        fails_on_inputs = any(each.probe and each.severity is not Severity.NOTE for each in judgement.numbers)
        if self.context.failing_inputs is not None and fails_on_inputs:
            folder = self.context.failing_inputs / task.cell.recipe / task.cell.label.replace(":", "_")
            inputs = {probe.name: probe.inputs for probe in prepared.probes.one_kind_per_probe.all}  # in the types of the model
            save_failing(judgement.numbers, inputs, prepared.model.signature.input_names, folder)
        return judgement

    def _on_another_way(self, findings: Sequence[Finding], prepared: Prepared) -> list[Finding]:
        """The findings; those of lines that an export does not run are at the line that decides so."""
        with scratch_folder() as scratch:
            again = functools.partial(export, prepared.model, (), self.task.cell, scratch / "again.onnx")
            return with_way_at_fault(findings, prepared.model, again)

    def _on_another_export(self, findings: Sequence[Finding], prepared: Prepared) -> list[Finding]:
        """The findings; wrong numbers that another export has not, with what makes it right as their remedy."""
        is_right = functools.partial(self._is_right, prepared=prepared, task=self.task)
        return with_export_at_fault(findings, prepared.model, self.task.cell.exporter, is_right)

    def _is_right(self, model: RecipeModel, prepared: Prepared, task: CellTask) -> bool:
        """Whether a model can be exported as a task says, and computes the same in the file as what is ``prepared``."""
        shipped, runtimes = self.context.shared.shipped_reference(task, prepared, {}), self.context.runtimes_of(task)
        with scratch_folder() as scratch:
            path = scratch / "again.onnx"
            if export(model, (), task.cell, path).artifact is None:
                return False
            again = judge(JudgedFile(path=path, complete=path), task, shipped, runtimes, {})
        return bool(again.outputs) and not broken_rules(again.findings)

    def _is_to_be_located(self, findings: Sequence[Finding]) -> bool:
        """Whether a fault is searched for: one that is not expected, in a single file, on the CPU."""
        task = self.task
        can_locate = task.cell.gpu is None and task.locates and task.recipe.run_files is None
        return can_locate and bool(unexpected_rules(findings, allow=task.allow, expect=task.expectations))

    def _seconds_to_locate(self) -> float:
        spent = self.evidence.timings.get("locate", 0.0)
        return Limits.of(self.task).seconds_for_search(sum(self.evidence.timings.values()) - spent, spent)

    @contextlib.contextmanager
    def _with_evidence_kept(self, evidence: CellEvidence) -> Iterator[None]:
        """While the cause of a failure is searched for: the end of the process must not cost the ``evidence``."""
        self.context.emit(SearchStarted(evidence=evidence))
        yield
        self.context.emit(SearchEnded())

    @contextlib.contextmanager
    def _searching(self, evidence: CellEvidence, trial: Trial) -> Iterator[None]:
        """While the line of a failure is searched for. An error in that is for the log, and costs no finding."""
        with self._with_evidence_kept(evidence), timed("locate", self.evidence.timings):
            try:
                yield
            except Exception:
                trial.logs.append(traceback.format_exc())


# --- files ------------------------------------------------------------------------------------------------------------


def _keep(path: Path, folder: Path, evidence: Evidence) -> None:
    """Keep the file of the last trial; one with probe weights only if it breaks a rule that the other one does not."""
    *earlier, trial = evidence.trials
    if not trial.prepared.model.has_probe_weights:
        remove_kept(folder / f"{path.stem}{PROBE_SUFFIX}.onnx")  # an earlier run may have kept it
        kept = move(path, folder)
        evidence.artifact, evidence.digests = str(kept), digests_of(kept)
    elif not path.is_dir() and earlier and broken_rules(trial.findings) - broken_rules(evidence.findings + earlier[0].findings):
        trial.logs.append(f"the file with probe weights is kept as {move(mark_probe_weights(path), folder)}")


def _digest(path: Path) -> str | None:
    """What identifies the weights in a file, or in several; ``None`` if there are none."""
    digest = hashlib.sha256()
    has_weights = False
    for weight in itertools.chain.from_iterable(map(stored_weights, files_in(path))):  # together they may not fit into memory
        digest.update(weight.array.tobytes())
        has_weights = True
    return digest.hexdigest() if has_weights else None


# --- what ends a cell before its time ---------------------------------------------------------------------------------

_USUAL_LIMIT = 1000


def _failure(task: CellTask, error: Exception) -> Finding:
    """A failure that no stage reports: a full disk or GPU, or an internal error, which must not affect other cells."""
    if devices.ran_out_of_memory(error):
        message = f"{task.cell.device} ran out of memory: {first_line(error)}"
        return finding("out-of-memory", message, remedy=REMEDIES["free-gpu"] if task.cell.gpu else None)
    if full := disk_error(error):
        return finding("disk-error", f"{full.filename or 'a file'}: {full.strerror}")
    if many := open_files_error(error):
        return finding("recipe-error", f"the process cannot open another file: {many.strerror}", remedy=REMEDIES["close-files"])
    if isinstance(error, EnvironmentLacksError):
        return finding("missing-device", str(error), remedy="onnx-ci doctor shows what does not work here.")
    if isinstance(error, MemoryError):
        return finding("out-of-memory", f"the process could not get more memory: {first_line(error)}")
    if isinstance(error, RecursionError) and (limit := sys.getrecursionlimit()) < _USUAL_LIMIT:
        message = f"the recipe leaves Python a limit of {limit} nested calls, which is not enough"
        return finding("recipe-error", message, remedy=f"sys.setrecursionlimit({_USUAL_LIMIT}) sets the usual one.")
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    if is_in_project(innermost.filename):  # a class of tensors, a hook: what the project's code does is not onnx-ci's failure
        return finding("recipe-error", f"code of the project failed: {describe_exception(error)}")
    return finding("internal-error", f"onnx-ci failed: {describe_exception(error)}")
