"""A file with int8 weights is judged the same on every processor, although sums of its products overflow on some."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from toolbox.cells import rules
from torch import nn

import onnx_ci
from onnx_ci import Severity, Status
from onnx_ci.pipeline.compare.attribution import without_overflow
from onnx_ci.pipeline.compare.runtime_run import RuntimeRun
from onnx_ci.results.records import OutputDrift
from onnx_ci.results.rules import finding


def run(*wrong, outputs=("y",)):
    """A run of a file with these outputs, of which some are wrong on the example."""
    return RuntimeRun(
        runtime="onnxruntime",
        is_deployed=True,
        outputs=tuple(drift_of(name) for name in outputs),
        findings=tuple(finding("numeric-drift", f"{name} is off", output=name, probe="example", drift=9.0) for name in wrong),
    )


def drift_of(name):
    return OutputDrift(
        name=name,
        probe="example",
        dtype="float32",
        shape=(1,),
        drift=1.0,
        limit=4.0,
        error=1.0,
        noise=1.0,
        max_abs=1.0,
        max_rel=1.0,
        index=(0,),
        reference="float64",
    )


def test_what_only_overflow_makes_wrong_is_a_warning():
    exact = run()
    judged, (warning,) = without_overflow(run("y"), exact)
    assert judged is exact
    assert (warning.rule, warning.severity) == ("runtime-disagreement", Severity.WARNING)
    assert "y is off" in warning.message
    assert "reduce_range" in warning.remedy


def test_what_is_wrong_without_overflow_remains_an_error():
    wrong = run("y")
    judged, warnings = without_overflow(wrong, dataclasses.replace(wrong))
    assert judged is wrong
    assert warnings == []


def test_an_output_that_is_wrong_without_overflow_is_an_error_beside_the_warning():
    judged, (warning,) = without_overflow(run("y", "z", outputs=("y", "z")), run("z", outputs=("y", "z")))
    assert [each.output for each in judged.findings] == ["z"]
    assert (warning.output, warning.severity) == ("y", Severity.WARNING)


def test_a_file_that_does_not_load_with_exact_sums_stays_wrong():
    unloaded = dataclasses.replace(run(outputs=()), findings=(finding("load-error", "it does not load"),))
    wrong = run("y")
    assert without_overflow(wrong, unloaded) == (wrong, [])


@pytest.mark.parametrize("options", [{"reduce_range": True}, {}], ids=["reduced range", "full range"])
def test_the_verdict_on_a_quantized_file_does_not_depend_on_the_processor(options):
    @onnx_ci.recipe(input_names=["x"], output_names=["y"], then=onnx_ci.graph_pass("int8-dynamic", **options))
    def net():
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), (torch.randn(5, 64),)

    result = onnx_ci.run([net], opsets=17, cache="off").cells[-1]
    assert result.cell.graph_pass == "int8-dynamic"
    assert (result.status, rules(result)) == (Status.PASSED, [])
    if options:
        assert not [each for each in result.findings if each.severity is Severity.WARNING]
