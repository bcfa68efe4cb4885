"""What is known so far about a cell while it runs, and about each of its exports."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from onnx_ci.matrix.plan import CellTask
from onnx_ci.pipeline.judge import Judgement
from onnx_ci.pipeline.model.places import source_line
from onnx_ci.pipeline.prepare.prepare import Prepared
from onnx_ci.results.records import CellEvidence, CpuVsGpu, ExportFacts, Finding, InputDomain, OutputDrift, SkipCause
from onnx_ci.results.verdict import broken_rules

_OF_RECIPE = frozenset({"unknown-axis", "name-mismatch", "vacuous"})
"""Rules about what a recipe declares. An error is at the recipe's line, unless another one is known."""


@dataclass(kw_only=True)
class Trial:
    """What is known so far about one export of the cell, or about an existing file."""

    prepared: Prepared
    findings: list[Finding] = field(default_factory=list)
    outputs: list[OutputDrift] = field(default_factory=list)
    cpu_vs_gpu: tuple[CpuVsGpu, ...] = ()
    facts: ExportFacts | None = None
    inputs: tuple[InputDomain, ...] = ()
    left_out: tuple[str, ...] = ()
    observability: float | None = None
    logs: list[str] = field(default_factory=list)
    written_weights: str | None = None
    """A digest of the weights in the file of the recipe's own export function."""

    def add(self, judgement: Judgement) -> None:
        """Add what is known about the file."""
        self.findings += judgement.findings
        self.outputs += judgement.outputs
        self.cpu_vs_gpu, self.facts = judgement.cpu_vs_gpu, judgement.facts
        self.logs.append(judgement.log)


@dataclass(kw_only=True)
class Evidence:
    """What is known so far about the cell."""

    task: CellTask
    timings: dict[str, float]
    findings: list[Finding] = field(default_factory=list)
    """Those that are about no export."""
    trials: list[Trial] = field(default_factory=list)
    """One for each export. If there are two, the second one has probe weights."""
    recorded: Prepared | None = None
    """The recipe with the weights with which a baseline is recorded."""
    disagreements: list[Finding] = field(default_factory=list)
    failures: list[Finding] = field(default_factory=list)
    """What ended the cell before its time."""
    logs: list[str] = field(default_factory=list)
    skip_cause: SkipCause | None = None
    reason: str = ""
    artifact: str | None = None
    digests: dict[str, str] = field(default_factory=dict)

    def begin(self, prepared: Prepared) -> None:
        """Note with what the cell begins."""
        self.findings += prepared.findings
        self.recorded = prepared

    def new_trial(self, prepared: Prepared) -> Trial:
        """A trial, which is noted before it begins, so that nothing is lost if it fails."""
        trial = Trial(prepared=prepared)
        self.trials.append(trial)
        return trial

    def with_judgement(self, trial: Trial, judgement: Judgement) -> CellEvidence:
        """All that is known once the file of a trial is judged. Neither is changed."""
        judged = replace(trial, findings=[*trial.findings], outputs=[*trial.outputs], logs=[*trial.logs])
        judged.add(judgement)
        trials = [judged if each is trial else each for each in self.trials]
        return replace(self, trials=trials, timings={**self.timings}).complete()

    def complete(self, printed: str = "", log_of_preparation: str = "") -> CellEvidence:
        """All that is known about the cell, with what was printed in its process, and while its recipe was prepared."""
        findings, outputs = [*self.findings], list[OutputDrift]()
        for trial in self.trials:
            # A finding says that its export has probe weights only if there are two exports.
            is_second = trial is not self.trials[0]
            seen = [replace(each, remedy="") for each in findings]  # the search may end before it has a remedy for the second
            findings += [replace(one, probe_weights=is_second) for one in trial.findings if replace(one, remedy="") not in seen]
            outputs += [replace(each, probe_weights=is_second) for each in trial.outputs]
        if broken := broken_rules(findings) & _OF_RECIPE:
            line = source_line(str(self.task.recipe.file), self.task.recipe.line)
            findings = [replace(each, source=line) if each.rule in broken and not each.lines else each for each in findings]
        observed = [trial.observability for trial in self.trials if trial.observability is not None]
        logs = [printed, log_of_preparation, *(log for trial in self.trials for log in trial.logs), *self.logs]
        return CellEvidence(
            cell=self.task.cell,
            findings=(*findings, *self.disagreements, *self.failures),
            outputs=tuple(outputs),
            skip_cause=self.skip_cause,
            reason=self.reason,
            log="\n".join(filter(None, logs)),
            timings=self.timings,
            artifact=self.artifact,
            digests=self.digests,
            observability=max(observed, default=None),
            cpu_vs_gpu=next(filter(None, (trial.cpu_vs_gpu for trial in self.trials)), ()),
            inputs=next(filter(None, (trial.inputs for trial in self.trials)), ()),
            left_out=next(filter(None, (trial.left_out for trial in self.trials)), ()),
            facts=next((trial.facts for trial in self.trials if trial.prepared is self.recorded), None),
        )
