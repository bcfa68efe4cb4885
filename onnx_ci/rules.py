"""The catalogue of rules: what a cell can be found guilty of.

A rule's id is stable: it stands in reports, expectations and settings. Texts are data; where a finding knows a better
remedy than its rule, it brings its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onnx_ci.records import Finding, Severity


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One thing a cell can be found guilty of."""

    id: str
    stage: str
    meaning: str
    remedy: str
    severity: Severity = Severity.ERROR


_CATALOGUE = (
    Rule(
        id="recipe-error",
        stage="prepare",
        meaning="The recipe cannot be used: it raises, does not return what it should, or its model refuses its example.",
        remedy="Run the recipe's function by itself and call the model it returns with the args it returns.",
    ),
    Rule(
        id="missing-device",
        stage="prepare",
        meaning="The device of the cell is not here, and the settings require it (require-devices).",
        remedy="onnx-ci doctor --devices=cuda tells what is missing. Without require-devices the cell is skipped.",
    ),
    Rule(
        id="unknown-axis",
        stage="prepare",
        meaning="A dynamic axis is declared for a name that no input or output has, or for an axis that is not there.",
        remedy="Declare dynamic axes under the names in input_names and output_names, with axes counted from 0.",
    ),
    Rule(
        id="vacuous",
        stage="compare",
        meaning="Nothing was proved: a comparison would have passed whatever the file computes.",
        remedy="Give the recipe an example, or probes, on which the model's outputs are finite and can be judged.",
    ),
    Rule(
        id="nondeterministic",
        stage="prepare",
        meaning="The model answers otherwise each time, so no file can be compared with it.",
        remedy="Put the model in eval(), pass training=self.training to F.dropout, or declare the recipe random=True.",
    ),
    Rule(
        id="impure-model",
        stage="prepare",
        meaning="Running or exporting the model changes it or its arguments; a file cannot remember that.",
        remedy="Return the state as an output and take it as an input, or register nothing that forward changes.",
    ),
    Rule(
        id="global-state",
        stage="prepare",
        meaning="The recipe changed something that belongs to the whole process.",
        remedy="Put back what the recipe changes, or set it where the model is used: what forward needs belongs to the model.",
        severity=Severity.NOTE,
    ),
    Rule(
        id="baked-argument",
        stage="prepare",
        meaning="An argument is a number or a text, and no tensor: no caller of the file can rely on giving another.",
        remedy="Pass a tensor, or fix the value when the model is made and take it out of the recipe's args.",
    ),
    Rule(
        id="export-warning",
        stage="export",
        meaning="The exporter warned of something that can make the file wrong.",
        remedy="Rewrite the line that it names, or name the warning in the recipe's allow_warnings.",
        severity=Severity.NOTE,
    ),
    Rule(
        id="undeclared-axis",
        stage="contract",
        meaning="An input's axis is symbolic in the file though it was not declared dynamic.",
        remedy="Declare the axis in dynamic_axes, so that it is tried at other sizes, or keep its size fixed.",
    ),
    Rule(
        id="foreign-domain",
        stage="contract",
        meaning="The graph uses operators of a domain that no standard runtime knows and the recipe does not declare.",
        remedy="Declare the domain in custom_opsets, or write the operator with standard ones.",
    ),
    Rule(
        id="absolute-path",
        stage="contract",
        meaning="The file holds paths of the machine that built it.",
        remedy="They tell others where and by whom it was built. Clear each node's metadata_props, where dynamo writes them.",
        severity=Severity.NOTE,
    ),
    Rule(
        id="no-float64",
        stage="prepare",
        meaning="The model cannot run in float64, so its noise is estimated by perturbing weights and inputs instead.",
        remedy="Nothing is wrong. Constants and casts in the model's own type keep it from running in float64.",
        severity=Severity.NOTE,
    ),
    Rule(
        id="unsupported-opset",
        stage="export",
        meaning="The exporter does not know this opset.",
        remedy="Ask for an opset that the exporter writes, or for the other exporter.",
    ),
    Rule(
        id="unsupported-operator",
        stage="export",
        meaning="The model uses an operator that the exporter cannot write at this opset.",
        remedy="Raise the opset, rewrite the operation, or declare the gap with expect=onnx_ci.unsupported(...).",
    ),
    Rule(
        id="export-error",
        stage="export",
        meaning="torch.onnx.export raised.",
        remedy="Read the exporter's message; the log of the cell has all that it printed.",
    ),
    Rule(
        id="crash",
        stage="export",
        meaning="The process that ran the cell died.",
        remedy="The log holds what it said last. Repeat the cell by itself, with isolation=none under a debugger.",
    ),
    Rule(
        id="timeout",
        stage="export",
        meaning="The cell, or the preparation of its recipe, took longer than its time limit.",
        remedy="The log holds what it said last. Mend the loop, shrink the model, or allow more time: timeout=SECONDS.",
    ),
    Rule(
        id="out-of-memory",
        stage="export",
        meaning="The cell's process held more memory than its limit, or its GPU has no more.",
        remedy="Shrink the model of the recipe, run fewer cells at once (jobs), or allow more (memory-limit).",
    ),
    Rule(
        id="disk-error",
        stage="export",
        meaning="A file could not be written: the disk is full or read-only.",
        remedy="Make room, or name another place: TMPDIR in the environment, or --artifacts.",
    ),
    Rule(
        id="checker",
        stage="contract",
        meaning="onnx.checker refuses the file, so other tools will too.",
        remedy="Read the checker's message; a custom symbolic or a newer opset is the usual cause.",
    ),
    Rule(
        id="external-data",
        stage="contract",
        meaning="Weights that the file keeps in another file are not there, not whole, or not below its own folder.",
        remedy="The file and its data belong together: commit and copy both, or export again.",
    ),
    Rule(
        id="opset-mismatch",
        stage="contract",
        meaning="The file is written at another opset than was asked for.",
        remedy="The dynamo exporter writes opset 18 and above only; use exporter='torchscript' for lower opsets.",
    ),
    Rule(
        id="input-missing",
        stage="contract",
        meaning="A tensor argument of the model is no input of the graph: the exporter dropped it or froze it to a constant.",
        remedy="Use the argument in forward as a tensor (no .item(), int() or numpy), or take it out of the recipe's args.",
    ),
    Rule(
        id="input-extra",
        stage="contract",
        meaning="The graph has an input that no tensor argument of the model fills.",
        remedy="Take numbers out of the recipe's args, or pass them as tensors: an exporter can make an input of a number.",
    ),
    Rule(
        id="output-mismatch",
        stage="contract",
        meaning="The graph has more or fewer outputs than the model returns tensors.",
        remedy="Return tensors from forward, in a flat tuple; the exporter drops what is no tensor.",
    ),
    Rule(
        id="name-mismatch",
        stage="contract",
        meaning="Names or order of the graph's inputs, outputs or dynamic axes differ from the declared ones.",
        remedy="Declare one name for every tensor, in the order of the flattened args and outputs.",
    ),
    Rule(
        id="dtype-mismatch",
        stage="contract",
        meaning="An input or output of the graph has another data type than the model's own.",
        remedy="Cast explicitly in forward, and give args of the data type that production sends.",
    ),
    Rule(
        id="shape-mismatch",
        stage="contract",
        meaning="An input or output of the graph has another rank or size than the model's own.",
        remedy="Compare the graph's declared shapes with those of the example.",
    ),
    Rule(
        id="static-axis",
        stage="contract",
        meaning="An axis that was declared dynamic is a fixed number in the file: it refuses every other size.",
        remedy="Keep sizes symbolic in forward: no int(), len() or Python branching on a shape that may vary.",
    ),
    Rule(
        id="load-error",
        stage="run",
        meaning="The runtime cannot load the file.",
        remedy="Read the runtime's message; an operator or opset that it does not implement is the usual cause.",
    ),
    Rule(
        id="runtime-disagreement",
        stage="compare",
        meaning="One runtime is wrong where another is right, on the same file: the fault is the runtime's, not the export's.",
        remedy="Report it to the runtime's project; another opset or version of it may help, or its optimiser switched off.",
    ),
    Rule(
        id="run-error",
        stage="run",
        meaning="The runtime fails on the recipe's own example.",
        remedy="Read the runtime's message and compare the graph with the model at the node it names.",
    ),
    Rule(
        id="provider-mismatch",
        stage="run",
        meaning="The runtime ran the file, or nodes of it, on another device than was asked for.",
        remedy="Install the runtime's build for the device and check that its libraries load.",
    ),
    Rule(
        id="numeric-drift",
        stage="compare",
        meaning="The file computes other numbers than the model, by more than rounding explains.",
        remedy="Look for an operator whose meaning differs at this opset, or for weights that changed after the export.",
    ),
    Rule(
        id="baked-value",
        stage="compare",
        meaning="The file is right on the example and wrong on another input: a value was frozen while tracing.",
        remedy="Compute from tensors what is now computed from Python numbers, or script the loop or branch.",
    ),
    Rule(
        id="baked-shape",
        stage="compare",
        meaning="The file works at the example's size only: a size was frozen while tracing.",
        remedy="Use sizes from tensor.shape directly in reshape, expand and loops, never through int() or a constant.",
    ),
    Rule(
        id="nonfinite-mismatch",
        stage="compare",
        meaning="The file computes NaN or infinity where the model computes a number.",
        remedy="Look for a masked value, a division or a logarithm that the opset computes differently.",
    ),
    Rule(
        id="baseline-drift",
        stage="baseline",
        meaning="The export is not what the committed baseline holds: something moved since it was recorded.",
        remedy="If the change is meant, record it, read the difference and commit it: onnx-ci baseline update.",
    ),
    Rule(
        id="baseline-missing",
        stage="baseline",
        meaning="Nothing is recorded for the cell, so nobody can tell whether it changed.",
        remedy="Record it, read what is recorded and commit it: onnx-ci baseline update.",
    ),
    Rule(
        id="unexpected-pass",
        stage="verdict",
        meaning="The recipe expects this cell to fail, and it does not fail that way.",
        remedy="Remove the expectation, or narrow it to the opsets that still fail.",
    ),
    Rule(
        id="internal-error",
        stage="engine",
        meaning="onnx-ci itself failed; the cell was not judged.",
        remedy="Please report it with the cell's log.",
    ),
)

RULES = {rule.id: rule for rule in _CATALOGUE}


def finding(rule: str, message: str, *, remedy: str | None = None, severity: Severity | None = None, **details: Any) -> Finding:
    """A finding against ``rule``, with the rule's severity and remedy unless told otherwise."""
    known = RULES[rule]
    return Finding(
        rule=rule, severity=severity or known.severity, message=message, remedy=remedy or known.remedy, details=details
    )
