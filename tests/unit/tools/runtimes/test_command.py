"""Which version of ONNX Runtime is the oldest that computes a file right."""

from __future__ import annotations

import pytest

from onnx_ci import Status
from onnx_ci.pipeline.compare.attribution import is_of_other_runtime
from onnx_ci.results.records import Cell, CellResult
from onnx_ci.results.rules import finding
from onnx_ci.tools.runtimes.command import support_of

TRIED = ["1.15.0", "1.16.0", "1.17.0"]


def result(*findings, status=Status.FAILED):
    cell = Cell(source="r.py", recipe="net", exporter="dynamo", opset=18, device="cpu")
    return CellResult(cell=cell, status=status, findings=findings)


def wrong(runtime):
    return finding("load-error", f"{runtime} cannot load the file", details={"runtime": runtime})


@pytest.mark.parametrize(
    ("versions", "oldest"),
    [
        ([], "1.15.0"),
        (["1.15.0"], "1.16.0"),
        (["1.16.0"], "1.17.0"),  # an older one happens to be right
        (["1.17.0"], "1.31.1"),
    ],
)
def test_from_the_oldest_version_on_all_are_right(versions, oldest):
    support = support_of(result(*(wrong(f"onnxruntime@{version}") for version in versions)), TRIED, "1.31.1")
    assert (support.oldest, list(support.wrong), support.is_wrong) == (oldest, versions, False)


@pytest.mark.parametrize(
    ("judged", "is_wrong"),
    [
        (result(finding("numeric-drift", "it is off")), True),
        (result(wrong("onnxruntime")), True),
        (result(status=Status.SKIPPED), False),
        (result(status=Status.ERROR), True),
    ],
)
def test_a_file_that_is_wrong_or_not_judged_has_no_oldest_version(judged, is_wrong):
    support = support_of(judged, TRIED, "1.31.1")
    assert (support.oldest, support.is_wrong) == ("", is_wrong)


@pytest.mark.parametrize(("runtime", "is_other"), [("onnxruntime", False), ("onnxruntime@1.17.0", True), ("openvino", True)])
def test_only_the_faults_of_the_installed_version_are_searched_for(runtime, is_other):
    assert is_of_other_runtime(wrong(runtime)) == is_other
