"""A model that asks whether it is being exported, and then computes something else: the fault is where it asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from toolbox.cells import recipe_of, run_one, task
from torch.onnx import is_in_onnx_export as asks_by_another_name

import onnx_ci
from onnx_ci.matrix.drift_limit import DriftLimit
from onnx_ci.pipeline.locate.export_questions import QuestionedModel
from onnx_ci.pipeline.prepare.prepare import prepare
from onnx_ci.report.causes import causes_of

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
        pytest.param(in_onnx_export, "dynamo", "torch.onnx.is_in_onnx_export", marks=pytest.mark.slow),
        (under_another_name, "torchscript", "torch.onnx.is_in_onnx_export"),
        (tracing, "torchscript", "torch.jit.is_tracing"),
        (exporting, "dynamo", "torch.compiler.is_exporting"),
        pytest.param(compiling, "dynamo", "torch.compiler.is_compiling", marks=pytest.mark.slow),
    ],
)
def test_the_line_that_asks_is_named(function, exporter, name):
    error = error_of(function, exporter)
    (culprit,) = error.culprits
    assert error.rule == "numeric-drift"
    assert "# the question" in culprit.source.text
    assert error.remedy.startswith(f"Where {name}() is true, as in an export, the model itself computes something else")
    assert {each.source for each in error.steps if each.is_culprit} <= {culprit.source}


def harmless_first(x):
    if torch.jit.is_tracing() or torch.compiler.is_exporting():
        x = x + 0
    x = x.sin()
    return x * 1.5 if torch.onnx.is_in_onnx_export() else x  # the question


def is_exported():
    return torch.onnx.is_in_onnx_export()


def through_a_helper(x):
    for _ in range(3):
        x = x + 1 if is_exported() else x + 1.0
    return x.cos() if is_exported() else x.sin()  # the question


@pytest.mark.parametrize("exporter", ["torchscript", pytest.param("dynamo", marks=pytest.mark.slow)])
@pytest.mark.parametrize("function", [harmless_first, through_a_helper])
def test_of_several_questions_the_one_that_makes_it_wrong_is_named(function, exporter):
    error = error_of(function, exporter)
    assert "# the question" in error.culprits[0].source.text
    assert "torch.onnx.is_in_onnx_export() is true" in error.remedy


class RoundedInExport(torch.nn.Module):
    """The file of the remainder differs from the model's, which is wrong there, too: no replay can explain it."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(97, 4)

    def forward(self, user):
        number = user.float() if torch.onnx.is_in_onnx_export() else user.double()  # the question
        return self.table(torch.remainder(number, 97).long())


def test_a_file_that_is_wrong_in_its_own_way_where_the_model_is_wrong_too_has_the_question():
    inputs = {"user": onnx_ci.integers(0, 2**40)}
    recipe = onnx_ci.recipe(
        lambda: (RoundedInExport(), (torch.tensor([3, 2**20]),)),
        name="net",
        input_names=["user"],
        output_names=["y"],
        inputs=inputs,
    )
    result = run_one(recipe, opsets="17", exporters="torchscript")
    found = [each for each in result.findings if each.severity is onnx_ci.Severity.ERROR]
    assert found
    assert {each.lines[0].text.endswith("# the question") for each in found} == {True}
    assert {"torch.onnx.is_in_onnx_export() is true" in each.remedy for each in found} == {True}


def test_each_output_has_its_own_question():
    def forward(x):
        first = x + 1 if torch.onnx.is_in_onnx_export() else x  # first
        return first, x * 2 if torch.jit.is_tracing() else x * 3  # second

    result = run_one(recipe_of(forward, FLOATS, input_names=["x"], output_names=["a", "b"]))
    errors = [each for each in result.findings if each.severity is onnx_ci.Severity.ERROR]
    assert {each.output: each.culprits[0].source.text.rpartition("# ")[2] for each in errors} == {"a": "first", "b": "second"}


def test_an_axis_that_an_answer_fixes_has_its_question():
    def forward(x):
        rows = 2 if torch.compiler.is_exporting() else x.shape[0]  # the question
        return x.new_zeros(rows, 4) + x.abs().sum()

    result = run_one(recipe_of(forward, FLOATS, **DYNAMIC), exporters="dynamo", opsets="18")
    errors = [each for each in result.findings if each.severity is onnx_ci.Severity.ERROR]
    assert {"static-axis", "baked-shape"} <= {each.rule for each in errors}
    assert {each.lines[0].text.endswith("# the question") for each in errors} == {True}
    assert len(causes_of(errors)) == 1


# --- what is not the fault of a question


def rounded_answers(x):
    return x + x if torch.onnx.is_in_onnx_export() else x * 2


class Placeholder(torch.autograd.Function):
    """Right in the file only: its eager function stands for an operator of the runtime."""

    @staticmethod
    def forward(ctx, x):
        return torch.zeros_like(x)

    @staticmethod
    def symbolic(g, x):
        return g.op("Add", x, x)


def placeholder(x):
    return Placeholder.apply(x) if torch.onnx.is_in_onnx_export() else x * 2


def another_number_of_outputs(x):
    if torch.onnx.is_in_onnx_export() and not torch._C._get_tracing_state():
        return x * 2, x
    return x * 2


def raises_in_eager_mode(x):
    if torch.onnx.is_in_onnx_export() and not torch._C._get_tracing_state():
        raise ValueError("not here")
    return x * 2


@pytest.mark.parametrize("asks", [rounded_answers, placeholder, another_number_of_outputs, raises_in_eager_mode])
def test_another_fault_is_placed_as_without_the_question(asks):
    def forward(x):
        x = asks(x)
        if isinstance(x, tuple):
            return x
        return x * int(x.shape[0])  # the fault

    error = error_of(forward)
    assert (error.rule, error.culprits[0].source.text) == ("baked-value", "return x * int(x.shape[0])  # the fault")
    assert "is_in_onnx_export" not in error.remedy


def guilty_questions(recipe, exporter, output_of_file):
    prepared = prepare(task(recipe))
    model = QuestionedModel(
        model=prepared.model,
        example=prepared.probes.example,
        probe=prepared.probes.example,
        exporter=exporter,
        outputs=["y"],
        max_drift=DriftLimit(default=16.0),
        deadline=float("inf"),
    )
    return model.guilty_questions(["y"], lambda: [output_of_file])


def test_torchs_own_questions_are_answered_as_usual():
    of_torch: dict[str, Any] = {"torch": torch}
    exec(compile("def asks(): return torch.jit.is_tracing()", Path(torch.__file__).with_name("own.py"), "exec"), of_torch)
    of_user: dict[str, Any] = {"torch": torch}
    exec(compile("def asks(): return torch.jit.is_tracing()", "own.py", "exec"), of_user)
    for namespace, guilty in ((of_torch, []), (of_user, ["y"])):
        recipe = recipe_of(lambda x, asks=namespace["asks"]: x * 1.5 if asks() else x, FLOATS, **DYNAMIC)
        assert [*guilty_questions(recipe, "torchscript", FLOATS * 1.5)] == guilty


def test_all_functions_are_what_they_were_even_if_the_model_raises():
    def forward(x):
        if torch.onnx.is_in_onnx_export():
            raise ValueError("not here")
        return x

    for exporter in ("torchscript", "dynamo"):
        assert guilty_questions(recipe_of(forward, FLOATS, **DYNAMIC), exporter, FLOATS + 1) == {}
    assert [question() for question in QUESTIONS] == [False] * 4
