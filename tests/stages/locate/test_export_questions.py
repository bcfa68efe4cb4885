"""A model that asks whether it is being exported, and then computes something else: the fault is where it asks."""

from __future__ import annotations

import pytest
import torch
from toolbox.cells import planned, recipe_of, run_one
from torch.onnx import is_in_onnx_export as asks_by_another_name

import onnx_ci
from onnx_ci.stages.locate.export_questions import run_as_in_export
from onnx_ci.stages.prepare.prepare import prepare

FLOATS = torch.linspace(-1, 1, 8).reshape(2, 4)
DYNAMIC = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
QUESTIONS = (torch.onnx.is_in_onnx_export, torch.jit.is_tracing, torch.compiler.is_exporting, torch.compiler.is_compiling)


def in_onnx_export(x):
    if torch.onnx.is_in_onnx_export():  # the question
        x = x * 1.01
    return x.sin() + 1


def under_another_name(x):
    return x * 2 if asks_by_another_name() else x * 3  # the question


def tracing(x):
    x = x.sin()
    return x - 1 if torch.jit.is_tracing() else x  # the question


def exporting(x):
    x = x.sin()
    return x - 1 if torch.compiler.is_exporting() else x  # the question


def compiling(x):
    x = x.sin()
    return x - 1 if torch.compiler.is_compiling() else x  # the question


def error_of(function, exporter="torchscript"):
    result = run_one(recipe_of(function, FLOATS, **DYNAMIC), exporters=exporter, opsets="18")
    (found,) = [each for each in result.findings if each.severity is onnx_ci.Severity.ERROR]
    return found


@pytest.mark.parametrize(
    ("function", "exporter", "name"),
    [
        (in_onnx_export, "torchscript", "torch.onnx.is_in_onnx_export"),
        (in_onnx_export, "dynamo", "torch.onnx.is_in_onnx_export"),
        (under_another_name, "torchscript", "torch.onnx.is_in_onnx_export"),
        (tracing, "torchscript", "torch.jit.is_tracing"),
        (exporting, "dynamo", "torch.compiler.is_exporting"),
        (compiling, "dynamo", "torch.compiler.is_compiling"),
    ],
)
def test_the_line_that_asks_is_named(function, exporter, name):
    error = error_of(function, exporter)
    (culprit,) = error.culprits
    assert (error.rule, culprit.operators) == ("numeric-drift", (name,))
    assert "# the question" in culprit.source.text
    assert error.remedy.startswith(f"The model itself computes this where {name}() is true")
    assert {each.source for each in error.steps if each.is_culprit} <= {culprit.source}


def test_a_question_whose_answer_changes_nothing_is_not_blamed_for_another_fault():
    def forward(x):
        doubled = x + x if torch.onnx.is_in_onnx_export() else x * 2
        return doubled * int(x.shape[0])  # the fault

    error = error_of(forward)
    assert (error.rule, error.culprits[0].source.text) == ("baked-value", "return doubled * int(x.shape[0])  # the fault")


def test_a_model_that_asks_nothing_has_no_question():
    attention = torch.nn.TransformerEncoderLayer(4, 2, batch_first=True).eval()  # torch's own code asks
    prepared = prepare(planned(recipe_of(attention, torch.randn(2, 3, 4))))
    assert [run_as_in_export(prepared, prepared.example, exporter) for exporter in ("torchscript", "dynamo")] == [None, None]


def test_all_functions_are_what_they_were_even_if_the_model_raises():
    def forward(x):
        if torch.onnx.is_in_onnx_export():
            raise ValueError("not here")
        return x

    prepared = prepare(planned(recipe_of(forward, FLOATS)))
    assert run_as_in_export(prepared, prepared.example, "torchscript") is None
    assert run_as_in_export(prepared, prepared.example, "dynamo") is None
    assert [question() for question in QUESTIONS] == [False] * 4
