"""What happens to a cell, from top to bottom: prepare, export, post-export, contract, run, compare, locate.

Runs in the process of the cell, or in that of its worker. What a recipe, an exporter or a runtime raises becomes a finding. The
process that decides makes a verdict of the findings later: :mod:`onnx_ci.results.verdict`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from onnx_ci.collection.post_export import EXPORT
from onnx_ci.engine.evidence import Evidence, Trial
from onnx_ci.engine.shared import Shared
from onnx_ci.errors import EnvironmentLacksError, describe_exception, disk_error, first_line, open_files_error
from onnx_ci.matrix.plan import CellTask
from onnx_ci.onnx_model.files import files_in
from onnx_ci.onnx_model.probe_mark import SUFFIX, mark_probe_weights
from onnx_ci.onnx_model.weightless import skeleton
from onnx_ci.onnx_model.weights import stored_weights
from onnx_ci.opsets import CUSTOM
from onnx_ci.pipeline.compare.converted import at_precision_of_file
from onnx_ci.pipeline.compare.judge import JudgedFile, Judgement, judge
from onnx_ci.pipeline.compare.runtime_run import save_failing
from onnx_ci.pipeline.export.exporter import Artifact, export, file_name, move, remove_kept
from onnx_ci.pipeline.locate.locate import located
from onnx_ci.pipeline.locate.parts import located_by_parts
from onnx_ci.pipeline.model import devices
from onnx_ci.pipeline.model.live_model import PrepareError, SkippedByRecipeError
from onnx_ci.pipeline.model.places import is_in_project
from onnx_ci.pipeline.post_export.apply import apply_stage
from onnx_ci.pipeline.post_export.shipped_reference import calibration_feeds
from onnx_ci.pipeline.prepare.prepare import Prepared, Weights
from onnx_ci.pipeline.run.runtime import Runtime
from onnx_ci.pipeline.run.runtimes import make_runtime
from onnx_ci.processes.capture import captured, timed
from onnx_ci.processes.clock import CLOCK
from onnx_ci.processes.limits import Limits
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.results.records import CellEvidence, Finding, Severity, SkipCause, SourceLine
from onnx_ci.results.rules import finding
from onnx_ci.results.verdict import broken_rules, unexpected_rules
from onnx_ci.text import listed

Announce = Callable[[CellEvidence | None], None]


@dataclass(frozen=True, kw_only=True)
class CellContext:
    """With what cells are run."""

    shared: Shared
    artifacts: Path | None = None
    """Where ONNX files are kept, with the models' own weights; ``None`` removes them once they are judged."""
    failing_inputs: Path | None = None
    """Where the inputs are written on which cells fail, if anywhere."""
    runtimes: Sequence[Runtime] = ()
    """The runtimes that run the files, instead of those that the cells name."""
    announce: Announce | None = None
    """Is told what is known about the cell before the cause of its failure is searched for, and ``None`` after that."""

    def runtimes_of(self, planned: CellTask) -> Sequence[Runtime]:
        """The runtimes that run the file of a cell."""
        return self.runtimes or [make_runtime(name, tf32=planned.recipe.tf32) for name in planned.runtimes]


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """The timings and the output of a preparation, reported with the first of its cells."""

    timings: Mapping[str, float] = field(default_factory=dict)
    log: str = ""


def prepare_cells(planned: CellTask, context: CellContext, *, judges_file: bool = False) -> Preparation:
    """Prepare what the cells of a recipe and device share, before the first of them runs. Errors are reported by the cells.

    Args:
        planned: the first cell.
        context: with what the cells are run.
        judges_file: whether the cells judge existing files instead of fresh exports.
    """
    timings: dict[str, float] = {}
    with captured() as printed, contextlib.suppress(Exception):
        if missing_device(planned, context) is None:
            prepared = context.shared.prepared(planned, Weights.OWN if judges_file else _weights(planned), timings)
            if not judges_file:
                _recipes_to_export(planned, prepared, context, timings)
    return Preparation(timings=timings, log=printed.text)


def run_cell(
    planned: CellTask, context: CellContext, *, artifact: Artifact | None = None, preparation: Preparation | None = None
) -> CellEvidence:
    """Everything that can be found out about one cell. Errors in the cell are not raised.

    Args:
        planned: the cell.
        context: with what it is run.
        artifact: an existing file to judge instead of a fresh export.
        preparation: what :func:`prepare_cells` returned, reported with this cell.
    """
    preparation = preparation or Preparation()
    evidence = Evidence(planned=planned, timings=dict(preparation.timings))
    with captured() as printed:
        try:
            _run(planned, context, artifact, evidence)
        except SkippedByRecipeError as error:
            evidence.skip_cause, evidence.reason = SkipCause.RECIPE, str(error)
        except PrepareError as error:
            evidence.findings.append(error.finding)
        except Exception as error:
            evidence.logs.append(traceback.format_exc())
            evidence.failures.append(_failure(planned, error))
            if devices.ran_out_of_memory(error):
                context.shared.close()  # frees the memory for the next cell
    if planned.cell.gpu is not None:
        devices.gpus.free()
    return evidence.complete(printed.text, preparation.log)


def missing_device(planned: CellTask, context: CellContext) -> str | None:
    """Why a cell cannot run here: its device is absent, or none of its runtimes can use it. ``None`` if it can."""
    device = planned.cell.device
    if (missing := devices.missing_device(device)) is not None:
        return missing
    reasons = [runtime.missing_device(device) for runtime in context.runtimes_of(planned)]
    return None if None in reasons else reasons[0]


_USUAL_LIMIT = 1000
"""How many nested calls Python allows by default."""
_CLOSE_FILES = "Close the files that the model and its recipe open, or raise the limit: ulimit -n shows it."
_FREE_GPU = "Shrink the model or the example, or check with nvidia-smi what else uses the GPU's memory."


def _failure(planned: CellTask, error: Exception) -> Finding:
    """A failure that no stage reports: a full disk or GPU, or an internal error, which must not affect other cells."""
    if devices.ran_out_of_memory(error):
        message = f"{planned.cell.device} ran out of memory: {first_line(error)}"
        return finding("out-of-memory", message, remedy=_FREE_GPU if planned.cell.gpu else None)
    if full := disk_error(error):
        return finding("disk-error", f"{full.filename or 'a file'}: {full.strerror}")
    if many := open_files_error(error):
        return finding("recipe-error", f"the cell's process cannot open another file: {many.strerror}", remedy=_CLOSE_FILES)
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


# --- the steps --------------------------------------------------------------------------------------------------------


def _run(planned: CellTask, context: CellContext, artifact: Artifact | None, evidence: Evidence) -> None:
    """Find out everything about a cell."""
    missing = missing_device(planned, context)
    if missing is not None:
        message = f"no {planned.cell.device}: {missing}"
        if planned.require_device:
            evidence.findings.append(finding("missing-device", message))
        else:
            evidence.skip_cause, evidence.reason = SkipCause.MISSING_DEVICE, message
        return
    if artifact is None:
        _judge_exports(planned, context, evidence)
    else:
        _judge_existing(artifact, planned, context, evidence)


def _judge_existing(artifact: Artifact, planned: CellTask, context: CellContext, evidence: Evidence) -> None:
    """Judge an existing file, which has the model's own weights."""
    prepared = context.shared.prepared(planned, Weights.OWN, evidence.timings)
    evidence.begin(prepared)
    file = JudgedFile(path=artifact.path, complete=artifact.path)
    trial = evidence.new_trial(prepared)
    with scratch_folder() as scratch:
        # After a lossy stage, the rounding of that stage is simulated instead.
        is_as_precise = planned.is_lossy or artifact.path.is_dir()
        lowered = prepared if is_as_precise else at_precision_of_file(prepared, artifact.path, scratch)
        trial.add(_judged(file, planned, lowered, context, evidence.timings, trial))


def _judge_exports(planned: CellTask, context: CellContext, evidence: Evidence) -> None:
    """Export the model, with weights that reveal more faults than its own where there is a choice, and judge the files."""
    prepared = context.shared.prepared(planned, _weights(planned), evidence.timings)
    evidence.begin(prepared)
    to_export, problems = _recipes_to_export(planned, prepared, context, evidence.timings)
    evidence.findings += problems
    for each in to_export:
        _try_export(planned, context, evidence.new_trial(each), evidence)
    if len(to_export) == 1 and prepared.has_probe_weights and _wrong_numbers(evidence.trials[0].findings):
        with _after_verdict(context, evidence.complete("", "")):
            evidence.trials[:0] = _right_with_own_weights(planned, context)  # the one with probe weights is the second
    if len(evidence.trials) == 2:
        evidence.disagreements += _disagreements(*evidence.trials)


def _weights(planned: CellTask) -> Weights:
    """With which weights a model is exported first; a baseline is recorded with these."""
    if planned.is_trained:
        return Weights.OWN
    return Weights.PROBE_UNLESS_LOADED if planned.is_trained is None else Weights.PROBE


def _recipes_to_export(
    planned: CellTask, prepared: Prepared, context: CellContext, timings: dict[str, float]
) -> tuple[list[Prepared], list[Finding]]:
    """What a cell exports: the model with its own weights, with probe weights, or with both, in this order.

    Trained weights can hide modules, whose faults only probe weights show; a file that is kept has the model's own weights.

    Args:
        planned: the cell.
        prepared: the recipe with the weights with which its baseline is recorded.
        context: with what the cell is run.
        timings: the seconds are added to it, if something has to be prepared.

    Returns:
        The recipe with each kind of weights, and why one of them cannot be exported.
    """
    if prepared.has_probe_weights and context.artifacts is not None:
        try:
            with_own_weights = context.shared.prepared(planned, Weights.OWN, timings)
        except PrepareError as error:
            return [prepared], [error.finding]
        except SkippedByRecipeError:  # it did not skip the first time, and what is known since counts
            return [prepared], []
        return [with_own_weights, prepared], []
    if _hides_modules(planned, prepared):
        with contextlib.suppress(PrepareError, SkippedByRecipeError):
            probed = context.shared.prepared(planned, Weights.PROBE, timings)
            if probed.has_probe_weights:
                return [prepared, probed], []
    return [prepared], []


def _hides_modules(planned: CellTask, prepared: Prepared) -> bool:
    """Whether the model has trained weights with which some modules do not show, and probe weights may show them."""
    is_trained = bool(prepared.pristine.loaded_with) if planned.is_trained is None else planned.is_trained
    return is_trained and prepared.hides_modules


def _try_export(planned: CellTask, context: CellContext, trial: Trial, evidence: Evidence) -> None:
    """Export, judge the file, and keep it if files are kept."""
    with scratch_folder() as scratch:
        file = _export_and_judge(planned, context, scratch / file_name(planned.cell), trial, evidence.timings)
        # Where no node of the file shows where a fault begins, or no file could be made, parts of the model are exported alone.
        if not planned.stages and _is_to_be_located(planned, trial.findings):
            log = ""
            with _searching(context, evidence.complete("", ""), evidence.timings, trial):
                deadline = CLOCK.thread_time() + _seconds_to_locate(planned, evidence.timings)
                trial.findings, log = located_by_parts(trial.findings, trial.prepared, planned.cell, deadline)
            trial.logs.append(log)
        if file is not None and context.artifacts is not None:
            _keep(file.path, context.artifacts / planned.cell.recipe, evidence)


def _export_and_judge(
    planned: CellTask, context: CellContext, path: Path, trial: Trial, timings: dict[str, float]
) -> Artifact | None:
    """Export, apply the cell's stages, and judge the last file, which is returned unless it could not be made."""
    prepared = trial.prepared
    with timed("export", timings):
        exported = export(prepared, planned.cell, path)
    trial.logs.append(exported.log)
    trial.findings += exported.findings
    trial.inputs = prepared.inputs
    trial.observability = None if prepared.observability is None else prepared.observability.share
    if exported.artifact is None or planned.stages:
        return exported.artifact and _judge_after_stages(exported.artifact, planned, context, trial, timings)
    with skeleton(path) as readable:
        file = JudgedFile(path=readable, complete=path)
        trial.add(_judged(file, planned, prepared, context, timings, trial))
    is_usual = prepared.has_probe_weights and not _wrong_numbers(trial.findings)  # no other file is compared with it
    if planned.cell.exporter == CUSTOM and trial.outputs and not is_usual:
        trial.written_weights = _digest(path)
    return exported.artifact


def _judge_after_stages(
    exported: Artifact, planned: CellTask, context: CellContext, trial: Trial, timings: dict[str, float]
) -> Artifact | None:
    """Apply the cell's stages in order and judge the last file, which is returned unless a stage fails.

    If the last file is wrong, the files before it are judged, too, to find the stage that is at fault.
    """
    files = [exported]
    for number, stage in enumerate(planned.stages, start=1):
        with timed("post-export", timings):
            feeds = functools.partial(calibration_feeds, files[-1].path, trial.prepared)
            applied = apply_stage(stage, files[-1], exported.path.parent / f"{exported.path.stem}-{number}", feeds)
        trial.logs.append(applied.log)
        trial.findings += [_with_chain(each, planned) for each in applied.findings]
        if applied.artifact is None:
            return None
        files.append(applied.artifact)
    with skeleton(files[-1].path) as readable:
        file = JudgedFile(path=readable, complete=files[-1].path)
        judgement = _judged(file, planned, trial.prepared, context, timings, trial)
    first_stages: Mapping[_Fault, str] = {}
    if any(each.severity is Severity.ERROR for each in judgement.findings):
        first_stages = _first_stages(files[:-1], planned, trial.prepared, context)

    def introduced(finding: Finding) -> Finding:
        return _with_chain(_introduced(finding, first_stages, planned.stages[-1].name), planned)

    contract, numbers = tuple(map(introduced, judgement.contract)), tuple(map(introduced, judgement.numbers))
    trial.add(replace(judgement, contract=contract, numbers=numbers))
    return files[-1]


_Fault = tuple[str, str | None]
"""The rule that a file breaks, and the output that it is about."""


def _first_stages(files: Sequence[Artifact], planned: CellTask, prepared: Prepared, context: CellContext) -> dict[_Fault, str]:
    """After which step each fault appears first, of the export and all stages but the last."""
    names = [EXPORT, *(stage.name for stage in planned.stages)]
    first: dict[_Fault, str] = {}
    for count, file in enumerate(files):
        before = planned.before_stages(count)
        shipped = context.shared.shipped_reference(before, prepared, {})
        with skeleton(file.path) as readable:
            judged = JudgedFile(path=readable, complete=file.path)
            judgement = judge(judged, before, shipped, context.runtimes_of(planned), {})
        for error in judgement.findings:
            if error.severity is Severity.ERROR:
                first.setdefault((error.rule, error.output), names[count])
    return first


def _introduced(finding: Finding, first_stages: Mapping[_Fault, str], last: str) -> Finding:
    """A finding about the last file; an error with the stage that introduced it."""
    if finding.severity is not Severity.ERROR:
        return finding
    return replace(finding, introduced_by=first_stages.get((finding.rule, finding.output), last))


_REFUSED = frozenset({"stage-error", "checker", "load-error"})
"""Rules about a file that a stage could not convert, or that cannot be loaded after it."""


def _with_chain(finding: Finding, planned: CellTask) -> Finding:
    """A finding about a stage that did not convert the file of another one; its remedy says that it got that file."""
    names = [stage.name for stage in planned.stages]
    if finding.rule not in _REFUSED or finding.introduced_by not in names[1:]:
        return finding
    before = names[names.index(finding.introduced_by) - 1]
    chain = (
        f"The stages of then are a chain: {finding.introduced_by} got the file that {before} had made. If it should get the "
        "exporter's file, give it a recipe of its own (each={NAME: {'then': [STAGE]}}), or put it first."
    )
    return replace(finding, remedy=f"{chain} {finding.remedy}")


def _warned_lines(trial: Trial) -> Collection[SourceLine]:
    return {each.source for each in trial.findings if each.rule == "export-warning" and each.source is not None}


def _judged(
    file: JudgedFile,
    planned: CellTask,
    prepared: Prepared,
    context: CellContext,
    timings: dict[str, float],
    trial: Trial,
) -> Judgement:
    """What is known about the file of a trial, with where a fault begins. Writes the inputs on which the file fails."""
    shipped = context.shared.shipped_reference(planned, prepared, timings)
    judgement = judge(file, planned, shipped, context.runtimes_of(planned), timings)
    if judgement.signature is not None and not planned.is_lossy and _is_to_be_located(planned, judgement.findings):
        known = None if trial.evidence is None else trial.evidence.with_judgement(trial, judgement)
        findings, log = [*judgement.findings], ""
        with _searching(context, known, timings, trial):
            findings, log = located(
                judgement.findings,
                file.path,
                judgement.signature,
                judgement.prepared,
                exporter=planned.cell.exporter,
                max_drift=planned.max_drift,
                seconds=_seconds_to_locate(planned, timings),
                warned=_warned_lines(trial),
            )
        of_contract = len(judgement.contract)
        contract, numbers = tuple(findings[:of_contract]), tuple(findings[of_contract:])
        judgement = replace(judgement, contract=contract, numbers=numbers, log=log)
    fails_on_inputs = any(each.probe and each.severity is not Severity.NOTE for each in judgement.numbers)
    if context.failing_inputs is not None and fails_on_inputs:
        folder = context.failing_inputs / planned.cell.recipe / planned.cell.label.replace(":", "_")
        inputs = {probe.name: probe.inputs for probe in prepared.one_kind_per_probe.probes}  # in the types of the model
        save_failing(judgement.numbers, inputs, prepared.input_names, folder)
    return judgement


# --- where a fault begins ---------------------------------------------------------------------------------------------


def _seconds_to_locate(planned: CellTask, timings: Mapping[str, float]) -> float:
    spent = timings.get("locate", 0.0)
    return Limits.of(planned).seconds_for_search(sum(timings.values()) - spent, spent)


@contextlib.contextmanager
def _after_verdict(context: CellContext, known: CellEvidence | None) -> Iterator[None]:
    """While the cause of a failure is searched for: the end of the process must not cost what is known.

    Args:
        context: is told what is known.
        known: what that is; ``None`` if this only explains what was announced before.
    """
    if context.announce is None or known is None:
        yield
        return
    context.announce(known)
    yield
    context.announce(None)


@contextlib.contextmanager
def _searching(context: CellContext, known: CellEvidence | None, timings: dict[str, float], trial: Trial) -> Iterator[None]:
    """While the line of a failure is searched for. An error in that is for the log, and costs no finding."""
    with _after_verdict(context, known), timed("locate", timings):
        try:
            yield
        except Exception:
            trial.logs.append(traceback.format_exc())


def _is_to_be_located(planned: CellTask, findings: Sequence[Finding]) -> bool:
    """Whether a fault is searched for: one that is not expected, in a single file, on the CPU."""
    can_locate = planned.cell.gpu is None and planned.locates and planned.recipe.run_files is None
    return can_locate and bool(unexpected_rules(findings, allow=planned.allow, expect=planned.expectations))


# --- both kinds of weights --------------------------------------------------------------------------------------------

_NUMBERS = frozenset({"numeric-drift", "baked-value", "nonfinite-mismatch", "runtime-disagreement"})
"""Rules about values, which weights may hide or show."""
_HIDDEN = (
    "Both files have the same graph. Either it has a fault that the model's own weights hide, or a runtime is inaccurate for "
    "values that they do not lead to; training may."
)
_SAME_WEIGHTS = (
    "The export function writes the same weights for two models whose weights differ. It must export the model that it gets; "
    "if it loads the weights itself, declare weights='trained'."
)
_SHOWN = "Both files have the same graph, so look for what depends on the size of the model's own weights."


def _wrong_numbers(findings: Iterable[Finding]) -> list[str]:
    """The rules about values that an export breaks."""
    return sorted(broken_rules(findings) & _NUMBERS)


def _right_with_own_weights(planned: CellTask, context: CellContext) -> list[Trial]:
    """An export with the model's own weights, if that is right: the one with probe weights is wrong.

    If both are wrong, the second one only repeats what is known.
    """
    try:
        trial = Trial(prepared=context.shared.prepared(planned, Weights.OWN, {}))
    except (PrepareError, SkippedByRecipeError):
        return []
    with scratch_folder() as scratch:
        _export_and_judge(planned, context, scratch / "own-weights.onnx", trial, {})
    return [trial] if trial.outputs and not broken_rules(trial.findings) else []


def _disagreements(own: Trial, probed: Trial) -> Iterator[Finding]:
    """A note if the values of an export are wrong with the model's own weights or with probe weights only."""
    wrong = _wrong_numbers(own.findings) or _wrong_numbers(probed.findings)
    if not wrong or (_wrong_numbers(own.findings) and _wrong_numbers(probed.findings)):
        return

    def described(trial: Trial) -> str:
        worst = max((output.drift for output in trial.outputs), default=0.0)
        return f"{f'wrong ({listed(wrong)})' if _wrong_numbers(trial.findings) else 'right'}, with a drift of {worst:.3g}"

    ignores_model = own.written_weights is not None and own.written_weights == probed.written_weights
    yield finding(
        "numeric-drift",
        f"the file with the model's own weights is {described(own)}; the file with probe weights is {described(probed)}",
        remedy=_SAME_WEIGHTS if ignores_model else _HIDDEN if _wrong_numbers(probed.findings) else _SHOWN,
        severity=Severity.NOTE,
    )


def _digest(path: Path) -> str | None:
    """What identifies the weights in a file, or in several; ``None`` if there are none."""
    digest = hashlib.sha256()
    has_weights = False
    for weight in itertools.chain.from_iterable(map(stored_weights, files_in(path))):  # together they may not fit into memory
        digest.update(weight.array.tobytes())
        has_weights = True
    return digest.hexdigest() if has_weights else None


def _keep(path: Path, folder: Path, evidence: Evidence) -> None:
    """Keep the file of the last trial; one with probe weights only if it breaks a rule that the other one does not."""
    *earlier, trial = evidence.trials
    if not trial.prepared.has_probe_weights:
        remove_kept(folder / f"{path.stem}{SUFFIX}.onnx")  # an earlier run may have kept it
        evidence.artifact = str(move(path, folder))
    elif not path.is_dir() and earlier and broken_rules(trial.findings) - broken_rules(evidence.findings + earlier[0].findings):
        trial.logs.append(f"the file with probe weights is kept as {move(mark_probe_weights(path), folder)}")
