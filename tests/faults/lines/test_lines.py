"""Each mistake in a line of a model is caught, its right twin passes, and the line is what the first finding names."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.lines import (
    attention,
    caches,
    detection,
    graphs,
    rare,
    recommenders,
    recurrent,
    speech,
    time_series,
    unet,
    vision_transformer,
)
from faults.lines.line_fault import LineFault

import onnx_ci
from onnx_ci import CellResult, Finding, Recipe, Severity, Status
from onnx_ci.results.rules import RULES

MODULES = (attention, caches, detection, graphs, rare, recommenders, recurrent, speech, time_series, unet, vision_transformer)
FAULTS = [fault for module in MODULES for fault in module.FAULTS]

QUICK = {
    *("LinearBias", "RotaryAttention", "SlidingWindow", "Grid", "LoopOverNodes", "RecencyWeights", "UnrolledCell"),
    *("Subsampling", "MainPeriod", "CroppedSkip", "SquareGrid", "Anomalies", "GatedByEnergy"),
}
"""Faults that are tried with every run of the tests, by TorchScript; all others are slow."""
GREEN = {"FirstSteps", "LongChunks", "SilentInput"}
"""Faults that onnx-ci misses: only silence, or larger inputs than it tries, show them."""
ONE_OF_TWO = {
    *(("torchscript", name) for name in ("TrimmedCausal", "PackedCache", "Virtual", "ResizedTwice")),
    *(("dynamo", name) for name in ("AnchorHead", "ResizedTwice")),
}
"""Mistakes of which only one is named."""
UNNAMED = {("dynamo", "TrendBasis")}
"""Faults whose line is not the first that is named: ``np.arange(steps) / steps`` is wrong on the example, too."""


every_cell = pytest.mark.parametrize(
    ("fault", "exporter", "opset"),
    [
        pytest.param(
            fault,
            exporter,
            opset,
            id=f"{fault.name}-{exporter}{opset}",
            marks=[] if fault.name in QUICK and exporter == "torchscript" else [pytest.mark.slow],
        )
        for fault in FAULTS
        for exporter, opset in fault.cells
    ],
)


def judged(recipe: Recipe, exporter: str, opset: int) -> CellResult:
    (result,) = onnx_ci.run([recipe], exporters=exporter, opsets=str(opset)).cells
    return result


def errors(result: CellResult) -> list[Finding]:
    return [finding for finding in result.findings if finding.severity is Severity.ERROR]


def lines(finding: Finding) -> list[tuple[str, int]]:
    """The lines that a finding names, by the names of their files, the likeliest first."""
    return [(Path(line.file).name, line.line) for line in finding.lines]


@every_cell
def test_the_wrong_model_fails_and_its_line_is_the_first_that_is_named(fault: LineFault, exporter: str, opset: int) -> None:
    result = judged(fault.wrong, exporter, opset)
    if fault.name in GREEN:
        assert result.status is Status.PASSED
        return
    found = errors(result)
    assert result.status is Status.FAILED
    # There is a file, and it is the file that is wrong.
    assert any(not RULES[finding.rule].leaves_no_file for finding in found)
    first = lines(found[0])
    assert any(line in fault.marks for line in first[:1]) is ((exporter, fault.name) not in UNNAMED), (first, fault.marks)
    if len(fault.marks) == 2:
        named = {line for finding in found for line in lines(finding)}
        assert (fault.marks <= named) is ((exporter, fault.name) not in ONE_OF_TWO)


@every_cell
def test_its_right_twin_passes(fault: LineFault, exporter: str, opset: int) -> None:
    result = judged(fault.right, exporter, opset)
    assert (errors(result), result.status) == ([], Status.PASSED)


def test_each_fault_marks_one_line_or_two() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names) >= 60
    assert {fault.name for fault in FAULTS if len(fault.marks) not in (1, 2)} == set()
    assert sum(len(fault.marks) == 2 for fault in FAULTS) >= 8
    assert set(names) >= QUICK
