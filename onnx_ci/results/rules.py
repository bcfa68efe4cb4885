"""The catalogue of rules: everything that can be wrong with a cell.

The id of a rule never changes: reports, expectations and settings contain it. A finding can have a more specific remedy than
its rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from onnx_ci.results.records import Finding, Severity, SourceLine


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One thing that can be wrong with a cell."""

    id: str
    phase: str
    """The phase that reports it, one of :data:`~onnx_ci.results.stages.PHASES`."""
    meaning: str
    remedy: str
    severity: Severity = Severity.ERROR
    leaves_unjudged: bool = False
    """Whether a cell that breaks the rule cannot be judged. The rule can be neither expected nor allowed."""
    leaves_no_file: bool = False
    """Whether a cell that breaks the rule has no file to compare. The rule can be expected, but not allowed."""
    is_about_expectations: bool = False
    """Whether the rule is about a recipe's expectations. The verdict itself reports it."""

    @property
    def can_be_expected(self) -> bool:
        """Whether a recipe can declare the rule as a known failure."""
        return not self.leaves_unjudged and not self.is_about_expectations

    @property
    def can_be_allowed(self) -> bool:
        """Whether a recipe can turn findings against the rule into notes."""
        return self.can_be_expected and not self.leaves_no_file

    @property
    def why_it_fails(self) -> str:
        """Why a rule that cannot be allowed fails a cell. The text ends the sentence "the cell …"."""
        if self.is_about_expectations:
            return "does not fail as its recipe expects"
        return "has no file to compare" if self.leaves_no_file else "was not judged"


_CATALOGUE = (
    Rule(
        id="recipe-error",
        phase="prepare",
        meaning="The recipe cannot be used: it raises, does not return what it should, or its model fails on its example.",
        remedy="Run the recipe's function by itself and call the model it returns with the args it returns.",
        leaves_unjudged=True,
    ),
    Rule(
        id="missing-device",
        phase="prepare",
        meaning="The cell's device is absent and the settings require it (require-devices), or its runtime cannot be imported.",
        remedy="onnx-ci doctor --devices=cuda shows what is missing. Without require-devices the cell is skipped.",
        leaves_unjudged=True,
    ),
    Rule(
        id="unknown-axis",
        phase="prepare",
        meaning="A dynamic axis is declared for a name that no input or output has, or for an axis that it does not have.",
        remedy="Declare dynamic axes under the names in input_names and output_names, with axes counted from 0.",
    ),
    Rule(
        id="vacuous",
        phase="compare",
        meaning="Nothing was verified: the comparison would pass whatever the file computes.",
        remedy="Give the recipe an example, or dynamic_sizes, for which the model's outputs are finite and can be compared.",
    ),
    Rule(
        id="nondeterministic",
        phase="prepare",
        meaning="The model returns different outputs on every run, so no export can be compared with it.",
        remedy="Put the model in eval() mode, pass training=self.training to F.dropout, or declare nondeterministic=True.",
    ),
    Rule(
        id="impure-model",
        phase="prepare",
        meaning="Running or exporting the model changes it; an ONNX file has no such state.",
        remedy="Return the state as an output and take it as an input, or do not change buffers in forward.",
    ),
    Rule(
        id="global-state",
        phase="prepare",
        meaning="The recipe changed global state of the process.",
        remedy="Restore what the recipe changes. What forward depends on should be part of the model.",
        severity=Severity.NOTE,
    ),
    Rule(
        id="loaded-weights",
        phase="prepare",
        meaning="The recipe loads weights without declaring it, so the model is exported with them and not with probe weights.",
        remedy="Declare weights='trained' in the recipe; or weights='seeded', if what it loads are not the model's weights.",
        severity=Severity.NOTE,
    ),
    Rule(
        id="model-kind",
        phase="prepare",
        meaning="The model is not exported as it is, such as a compiled module; or a part of it has no mode that can be set.",
        remedy="No action is needed if that is what you deploy. The message says what is exported.",
        severity=Severity.NOTE,
    ),
    Rule(
        id="baked-argument",
        phase="prepare",
        meaning="An argument is a number or a string, not a tensor: it becomes a constant of the file.",
        remedy="Pass a tensor, or fix the value in the model's constructor and remove it from the recipe's args.",
    ),
    Rule(
        id="export-warning",
        phase="export",
        meaning="The exporter warned about something that can make the file wrong.",
        remedy="Rewrite the line that it names, or name the warning in the recipe's allow_warnings.",
        severity=Severity.NOTE,
    ),
    Rule(
        id="size-relation",
        phase="prepare",
        meaning="The model accepts only some sizes of a dynamic axis, in a relation that the recipe does not declare.",
        remedy="Declare it: an axis as an expression such as 'past + 1', or dynamic_sizes={'height': onnx_ci.multiple_of(8)}.",
        severity=Severity.NOTE,
    ),
    Rule(
        id="untaken-branch",
        phase="export",
        meaning="A Python branch depends on sizes or values, but every known input takes the same side: the file has no other.",
        remedy="Give an input that takes the other side (inputs, dynamic_sizes), or use torch.where or torch.cond. If no input "
        "ever takes it, allow this rule in the recipe: allow='untaken-branch'.",
    ),
    Rule(
        id="undeclared-axis",
        phase="contract",
        meaning="An input's axis is symbolic in the file though it was not declared dynamic.",
        remedy="Declare the axis in dynamic_axes, so that other sizes are tested, or keep its size fixed.",
    ),
    Rule(
        id="foreign-domain",
        phase="contract",
        meaning="The graph uses operators of a domain that standard runtimes do not know and the recipe does not declare.",
        remedy="Declare the domain in custom_opsets, or replace the operator with standard ones.",
    ),
    Rule(
        id="absolute-path",
        phase="contract",
        meaning="The file contains paths of the machine that built it.",
        remedy="They reveal where and by whom it was built. Clear each node's metadata_props, where dynamo writes them.",
        severity=Severity.NOTE,
    ),
    Rule(
        id="probe-weights",
        phase="contract",
        meaning="The file has probe weights instead of the model's own, so it must not be deployed.",
        remedy="Use the file that --artifacts keeps without .probe-weights in its name, or export the model again.",
    ),
    Rule(
        id="no-float64",
        phase="prepare",
        meaning="The model cannot run in float64, so its noise is estimated by perturbing weights and inputs instead.",
        remedy="No action is needed. Constants and casts in the model's own type keep it from running in float64.",
        severity=Severity.NOTE,
    ),
    Rule(
        id="unsupported-opset",
        phase="export",
        meaning="The exporter does not support this opset.",
        remedy="Choose an opset that the exporter supports, or the other exporter.",
        leaves_no_file=True,
    ),
    Rule(
        id="unsupported-operator",
        phase="export",
        meaning="The model uses an operator that the exporter cannot convert at this opset.",
        remedy="Raise the opset, rewrite the operation, or declare the gap with expect=onnx_ci.unsupported(...).",
        leaves_no_file=True,
    ),
    Rule(
        id="export-error",
        phase="export",
        meaning="The exporter raised an exception, or made no file.",
        remedy="Read the exporter's message; the cell's log has everything it printed.",
        leaves_no_file=True,
    ),
    Rule(
        id="crash",
        phase="export",
        meaning="The process that ran the cell died.",
        remedy="The log contains its last output. Repeat the cell alone, with isolation=none under a debugger.",
        leaves_no_file=True,
    ),
    Rule(
        id="timeout",
        phase="export",
        meaning="The cell, or the preparation of its recipe, took longer than its time limit.",
        remedy="The log contains its last output. Fix the loop, shrink the model, or allow more time: timeout=SECONDS.",
        leaves_no_file=True,
    ),
    Rule(
        id="out-of-memory",
        phase="export",
        meaning="The cell's process used more memory than its limit, or its GPU ran out of memory.",
        remedy="Shrink the model of the recipe, run fewer cells at once (jobs), or allow more (memory-limit).",
        leaves_no_file=True,
    ),
    Rule(
        id="disk-error",
        phase="export",
        meaning="A file could not be written: the disk is full or read-only.",
        remedy="Free some space, or choose another folder: TMPDIR in the environment, or --artifacts.",
        leaves_unjudged=True,
    ),
    Rule(
        id="stage-error",
        phase="post-export",
        meaning="A post-export stage raised an exception, is not installed, or did not return a model.",
        remedy="Read the stage's message; the cell's log has everything it printed.",
        leaves_no_file=True,
    ),
    Rule(
        id="checker",
        phase="contract",
        meaning="onnx.checker rejects the file, so other tools will too.",
        remedy="Read the checker's message; a custom symbolic or a newer opset is the usual cause.",
    ),
    Rule(
        id="external-data",
        phase="contract",
        meaning="External data of the file is missing, incomplete, or outside the file's own folder.",
        remedy="The file and its external data belong together: commit and copy both, or export again.",
    ),
    Rule(
        id="opset-mismatch",
        phase="contract",
        meaning="The file is written at a different opset than requested.",
        remedy="Request the opset that the file has, or export it again. dynamo writes opset 18 and above only.",
    ),
    Rule(
        id="input-missing",
        phase="contract",
        meaning="A tensor argument of the model is not an input of the graph: the exporter dropped it or froze it into a "
        "constant.",
        remedy="Use the argument in forward as a tensor (no .item(), int() or numpy), or remove it from the recipe's args.",
    ),
    Rule(
        id="input-extra",
        phase="contract",
        meaning="The graph has an input that corresponds to no tensor argument of the model.",
        remedy="Remove numbers from the recipe's args, or pass them as tensors: an exporter can turn a number into an input.",
    ),
    Rule(
        id="output-mismatch",
        phase="contract",
        meaning="The graph has more or fewer outputs than the model returns tensors.",
        remedy="Return tensors from forward, in a flat tuple; the exporter drops everything else.",
    ),
    Rule(
        id="name-mismatch",
        phase="contract",
        meaning="The names or the order of the graph's inputs, outputs or dynamic axes differ from the declared ones.",
        remedy="Declare one name for every tensor, in the order of the flattened args and outputs.",
    ),
    Rule(
        id="dtype-mismatch",
        phase="contract",
        meaning="An input or output of the graph has a different data type than in the model.",
        remedy="Cast explicitly in forward, and use args of the data type that production sends.",
    ),
    Rule(
        id="shape-mismatch",
        phase="contract",
        meaning="An input or output of the graph has a different rank or size than in the model.",
        remedy="Compare the graph's declared shapes with those of the example.",
    ),
    Rule(
        id="static-axis",
        phase="contract",
        meaning="An axis that was declared dynamic is a fixed number in the file: it rejects every other size.",
        remedy="Keep sizes symbolic in forward: no int(), len(), Python loop or branch on a shape that may vary.",
    ),
    Rule(
        id="weight-mismatch",
        phase="contract",
        meaning="A tensor of the file is a weight of the model, but its values are not equal to the model's own.",
        remedy="Find what changed it after the export; declare a conversion to a lower precision as a stage: then=[...].",
    ),
    Rule(
        id="repeated-weight",
        phase="contract",
        meaning="A weight that the model has once is stored several times, so the file is larger than the model.",
        remedy="TorchScript stores a second, transposed copy of tied weights: declare do_constant_folding=False, or "
        "exporter='dynamo'.",
    ),
    Rule(
        id="unlisted-operator",
        phase="contract",
        meaning="The file uses an operator that is not among those that the recipe or the settings allow.",
        remedy="Replace the operation in the model, choose another opset, or add the operator to operators if it is supported.",
    ),
    Rule(
        id="ir-version",
        phase="contract",
        meaning="The file has a newer version of ONNX's intermediate representation than the recipe or the settings allow.",
        remedy="TorchScript writes older ones at lower opsets. If nothing in the file needs the newer one, lower it: "
        "then=[FUNCTION], where FUNCTION sets model.ir_version and returns the model.",
    ),
    Rule(
        id="symbolic-shape",
        phase="contract",
        meaning="A shape in the file is not fixed, though the recipe or the settings require static shapes.",
        remedy="Compute sizes from shapes, not from values: NonZero, boolean indices and unique have outputs of any size.",
    ),
    Rule(
        id="data-placement",
        phase="contract",
        meaning="The weights are in the file though the recipe declares external data, or the other way round.",
        remedy="dynamo does as external_data says; for TorchScript, save the model again in a stage: then=[FUNCTION], where "
        "FUNCTION takes two paths and calls onnx.save_model(..., save_as_external_data=True).",
    ),
    Rule(
        id="load-error",
        phase="run",
        meaning="The runtime cannot load the file.",
        remedy="Read the runtime's message. The usual cause is an opset, IR version or operator that it does not support: "
        "export with another opset or exporter, or use a newer runtime.",
    ),
    Rule(
        id="runtime-disagreement",
        phase="compare",
        meaning="One runtime is wrong where another is right, on the same file: the fault is the runtime's, not the export's.",
        remedy="Report it to the runtime's project; another opset or version may help, or turning its optimizer off.",
    ),
    Rule(
        id="run-error",
        phase="run",
        meaning="The runtime fails on the recipe's own example.",
        remedy="Read the runtime's message and compare the graph with the model at the node it names.",
    ),
    Rule(
        id="provider-mismatch",
        phase="run",
        meaning="The runtime ran the file, or some of its nodes, on a different device than requested.",
        remedy="Install the runtime's build for the device and check that its libraries load.",
    ),
    Rule(
        id="numeric-drift",
        phase="compare",
        meaning="The file computes different numbers than the model, by more than rounding explains.",
        remedy="Look for an operator whose meaning differs at this opset, or for weights that changed after the export. "
        "--runtimes=onnxruntime,reference shows whether it is the runtime that is imprecise.",
    ),
    Rule(
        id="baked-value",
        phase="compare",
        meaning="The file is right on the example and wrong on another input: a value was frozen while tracing.",
        remedy="Compute from tensors what is now computed from Python numbers, with torch.where instead of a branch and on "
        "whole tensors instead of in a loop.",
    ),
    Rule(
        id="baked-shape",
        phase="compare",
        meaning="The file works at the example's size only: a size was frozen while tracing.",
        remedy="Use sizes from tensor.shape directly in reshape and expand, never through int() or a constant, and compute on "
        "whole tensors instead of in a loop over a size. If only some sizes are meant, declare them in dynamic_sizes.",
    ),
    Rule(
        id="edge-mismatch",
        phase="compare",
        meaning="The file is right on usual inputs and wrong on one that the model may never get: all zeros, a row that is "
        "masked entirely, numbers far larger than the example's, a size at which the model computes nothing but NaN.",
        remedy="Declare which values the model gets, inputs={NAME: onnx_ci.mask()}, onnx_ci.floats(LOW, HIGH) or "
        "onnx_ci.integers(LOW, HIGH), and which sizes, dynamic_sizes={NAME: range(LOW, HIGH)}: the file must be right on "
        "these, and others are not tried.",
        severity=Severity.WARNING,
    ),
    Rule(
        id="nonfinite-mismatch",
        phase="compare",
        meaning="The file computes NaN or infinity where the model computes a number.",
        remedy="Look for a masked value, a division or a logarithm that the opset computes differently.",
    ),
    Rule(
        id="baseline-drift",
        phase="baseline",
        meaning="The export differs from its committed baseline: something changed since it was recorded.",
        remedy="If the change is intended, record it, review the difference and commit it: onnx-ci baseline update.",
    ),
    Rule(
        id="baseline-missing",
        phase="baseline",
        meaning="No baseline is recorded for the cell, so changes cannot be detected.",
        remedy="Record it, review what is recorded and commit it: onnx-ci baseline update.",
    ),
    Rule(
        id="unexpected-pass",
        phase="verdict",
        meaning="The recipe expects this cell to fail, but it does not fail in that way.",
        remedy="Remove the expectation, or narrow it to the cells that still fail.",
        is_about_expectations=True,
    ),
    Rule(
        id="internal-error",
        phase="engine",
        meaning="onnx-ci itself failed; the cell was not judged.",
        remedy="Please report it with the cell's log, which has the traceback, and the versions: both are in the JSON report.",
        leaves_unjudged=True,
    ),
)

RULES = {rule.id: rule for rule in _CATALOGUE}

BASELINE_CHANGES: Mapping[str, Severity] = {
    **dict.fromkeys(
        ("missing", "signature", "format", "operators", "size", "output-drift", "values", "weights", "inputs"), Severity.ERROR
    ),
    **dict.fromkeys(("observability", "versions"), Severity.NOTE),
}
"""The kinds of change since a baseline, each with its severity. The project can give another one to ``baseline-KIND``."""

DEATHS = frozenset({"crash", "timeout", "out-of-memory"})
"""The rules of cells whose process died, which depend on the state of the machine as much as on the export."""


class FindingFields(TypedDict, total=False):
    """The fields of a :class:`Finding` that only some rules set."""

    output: str | None
    probe: str | None
    operator: str | None
    opset: int | None
    drift: float | None
    introduced_by: str | None
    baseline_change: str | None
    source: SourceLine | None
    details: Mapping[str, Any]


def finding(
    rule: str, message: str, *, remedy: str | None = None, severity: Severity | None = None, **fields: Unpack[FindingFields]
) -> Finding:
    """A finding against a rule. By default, its severity and its remedy are the rule's."""
    broken = RULES[rule]
    return Finding(rule=rule, severity=severity or broken.severity, message=message, remedy=remedy or broken.remedy, **fields)
