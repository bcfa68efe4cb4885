"""Each mistake in a line of a model is caught, its right twin passes, and the line is what the first finding names."""

from __future__ import annotations

import functools
from collections.abc import Callable
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
from onnx_ci import CellResult, Finding, Severity, Status
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


def cells(faults: list[LineFault], unmet: Callable[[str, str], bool] = lambda exporter, name: False) -> pytest.MarkDecorator:
    """Each fault in each of its cells. Where ``unmet``, the test is known to fail."""
    return pytest.mark.parametrize(
        ("fault", "exporter", "opset"),
        [
            pytest.param(
                fault,
                exporter,
                opset,
                id=f"{fault.name}-{exporter}{opset}",
                marks=[
                    *([] if fault.name in QUICK and exporter == "torchscript" else [pytest.mark.slow]),
                    *([pytest.mark.xfail(strict=True, reason="a known gap")] if unmet(exporter, fault.name) else []),
                ],
            )
            for fault in faults
            for exporter, opset in fault.cells
        ],
    )


@functools.cache
def judged(side: str, name: str, exporter: str, opset: int) -> CellResult:
    """The verdict on the ``wrong`` or ``right`` side of the fault called ``name``."""
    (recipe,) = [getattr(fault, side) for fault in FAULTS if fault.name == name]
    (result,) = onnx_ci.run([recipe], exporters=exporter, opsets=str(opset)).cells
    return result


def errors(result: CellResult) -> list[Finding]:
    return [finding for finding in result.findings if finding.severity is Severity.ERROR]


def lines(finding: Finding) -> list[tuple[str, int]]:
    """The lines that a finding names, by the names of their files, the likeliest first."""
    return [(Path(line.file).name, line.line) for line in finding.lines]


@cells(FAULTS, lambda exporter, name: name in GREEN)
def test_the_wrong_model_fails(fault: LineFault, exporter: str, opset: int) -> None:
    result = judged("wrong", fault.name, exporter, opset)
    assert result.status is Status.FAILED
    # There is a file, and it is the file that is wrong.
    assert any(not RULES[finding.rule].leaves_no_file for finding in errors(result))


@cells(FAULTS)
def test_its_right_twin_passes(fault: LineFault, exporter: str, opset: int) -> None:
    result = judged("right", fault.name, exporter, opset)
    assert (errors(result), result.status) == ([], Status.PASSED)


@cells([fault for fault in FAULTS if fault.name not in GREEN], lambda *cell: cell in UNNAMED)
def test_the_first_finding_names_the_marked_line_first(fault: LineFault, exporter: str, opset: int) -> None:
    first = errors(judged("wrong", fault.name, exporter, opset))[0]
    assert lines(first)[:1] and lines(first)[0] in fault.marks, (first.message, lines(first), fault.marks)


@cells([fault for fault in FAULTS if len(fault.marks) == 2 and fault.name not in GREEN], lambda *cell: cell in ONE_OF_TWO)
def test_both_of_two_mistakes_are_named(fault: LineFault, exporter: str, opset: int) -> None:
    named = {line for finding in errors(judged("wrong", fault.name, exporter, opset)) for line in lines(finding)}
    assert fault.marks <= named


def test_each_fault_marks_one_line_or_two() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names) >= 60
    assert {fault.name for fault in FAULTS if len(fault.marks) not in (1, 2)} == set()
    assert sum(len(fault.marks) == 2 for fault in FAULTS) >= 8
    assert set(names) >= QUICK
