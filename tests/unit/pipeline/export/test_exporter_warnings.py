from __future__ import annotations

from pathlib import Path

import pytest
import torch

from onnx_ci import Severity
from onnx_ci.pipeline.export.exporter_warnings import judge_warnings
from onnx_ci.processes.capture import Notice
from onnx_ci.report.findings import describe_finding

BRANCH = "Converting a tensor to a Python boolean might cause the trace to be incorrect. We can't record the data flow."


def judged(*messages, allowed=(), training=False, **place):
    return judge_warnings([Notice(message=message, **place) for message in messages], allowed, training=training)


@pytest.mark.parametrize(
    ("message", "severity"),
    [
        ("Provided key inptu for dynamic axes is not a valid input/output name", Severity.ERROR),
        ("Trace had nondeterministic nodes. Did you forget call .eval() on your model?", Severity.ERROR),
        ("Exporting a model while it is in training mode.", Severity.ERROR),
        (
            "ONNX Preprocess - Removing mutation from node aten::add_ on block input: '0'. This changes graph semantics.",
            Severity.NOTE,
        ),
        (
            "# The axis name: n will not be used, since it shares the same shape constraints with another axis: m.",
            Severity.NOTE,
        ),
    ],
)
def test_what_a_warning_means_stands_in_the_table(message, severity):
    (found,) = judged(message)
    assert (found.rule, found.severity) == ("export-warning", severity)
    assert "line" not in found.remedy


@pytest.mark.parametrize(
    "message",
    [
        "something else altogether",
        "Constant folding - Only steps=1 can be constant folded for opset >= 10 onnx::Slice op. Constant folding not applied.",
        "`nn.functional.upsample` is deprecated. Use `nn.functional.interpolate` instead.",
        "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.",
        "BatchStream: statistics are only updated in training mode",
    ],
)
def test_what_the_table_does_not_know_is_left_to_the_log(message):
    assert judged(message) == []


def test_an_axis_whose_other_name_is_the_same_is_no_finding():
    same_name = "# The axis name: n will not be used, since it shares the same shape constraints with another axis: n."
    assert judged(same_name) == []


def test_a_warning_is_told_once_a_place_and_dropped_where_the_recipe_allows_it():
    here = {"filename": str(Path.cwd() / "net.py"), "line": 7}
    (found,) = judged(BRANCH, BRANCH, **here)
    assert (found.source.file, found.source.line) == ("net.py", 7)
    assert describe_finding(found).startswith("net.py:7: a value that may vary is frozen into the file: Converting a tensor")
    assert judged(BRANCH, allowed=["Python bool"], **here) == []
    assert judged(BRANCH, allowed=["may vary is frozen"], **here) == []  # what the finding says is the warning, too
    assert len(judged(BRANCH, allowed=["not folded"], **here)) == 1
    assert judged("Exporting a model while it is in training mode.", training=True) == []


def test_code_of_the_exporters_is_no_place_to_send_a_user_to():
    place = {"filename": torch.nn.modules.rnn.__file__, "line": 1}
    (found,) = judged("ONNX's Upsample/Resize operator did not match Pytorch's Interpolation until opset 11.", **place)
    assert found.source is None
    assert judged(BRANCH, "Iterating over a tensor might cause the trace to be incorrect.", **place) == []


def test_a_warning_in_a_library_is_told_at_the_line_of_the_project_that_leads_there():
    library, project = (pytest.__file__, 3), (str(Path.cwd() / "net.py"), 7)
    (found,) = judged(BRANCH, filename=library[0], line=library[1], stack=[library, project, (str(Path.cwd() / "main.py"), 1)])
    assert (found.source.file, found.source.line) == ("net.py", 7)
    assert found.source.library == "pytest/__init__.py:3"
    (alone,) = judged(BRANCH, filename=library[0], line=library[1], stack=[library])
    assert Path(alone.source.file).resolve() == Path(pytest.__file__).resolve()
    assert (alone.source.line, alone.source.library) == (3, "")
