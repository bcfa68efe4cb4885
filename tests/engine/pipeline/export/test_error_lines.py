"""An export that fails names the line of the model, what is wrong there, and a remedy for it."""

from __future__ import annotations

import re

import pytest
import torch
from toolbox.cells import recipe_of, run_one

import onnx_ci
from onnx_ci.report.findings import describe_finding

AXES = {"x": {0: "batch", 1: "length"}}
FLOATS = torch.linspace(-1, 1, 6).reshape(2, 3)


class Loop(torch.nn.Module):
    def forward(self, x):
        rows = [row.cumsum(0) for row in x]  # the fault
        return torch.stack(rows)


class Fixed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(3, 3), Added())

    def forward(self, x):
        return self.inner(x)


class Added(torch.nn.Module):
    def forward(self, x):
        return x + torch.ones(2, 3)  # the fault


class Value(torch.nn.Module):
    def forward(self, x):
        if x.mean() > 0.5:  # the fault
            return x * 2
        return x


class Windows(torch.nn.Module):
    """What fixes the size is a number computed from it."""

    def forward(self, x):
        count = x.shape[0] - 1
        return torch.stack([x[i : i + 2].sum(0) for i in range(count)])  # the fault


class Unknown(torch.nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)  # the fault


class Raising(torch.nn.Module):
    def forward(self, x):
        if torch.onnx.is_in_onnx_export() or torch.compiler.is_exporting():
            raise NotImplementedError("no export of this layer\n\nAsk its author.")  # the fault
        return x * 2


class Fallback(torch.nn.Module):
    def forward(self, x):
        try:
            float("there is no such number")
        except ValueError:
            if x.mean() > 0.5:  # the fault
                return x * 2
        return x


def error_of(model, exporter, x=FLOATS, **keywords):
    given = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}}, **keywords}
    result = run_one(onnx_ci.recipe(lambda: (model, (x,)), name="net", exporter=exporter, **given), opsets="18")
    (found,) = (each for each in result.findings if each.severity is onnx_ci.Severity.ERROR)
    return found


def check_line(found):
    assert found.source.file == "tests/engine/pipeline/export/test_error_lines.py"
    assert found.source.text.endswith("# the fault")
    assert describe_finding(found).startswith(f"{found.source}, `{found.source.text}`: the ")


@pytest.mark.parametrize("model", [Loop(), Fixed(), Windows()], ids=["loop", "in a submodule", "of a computed size"])
def test_a_size_that_torch_export_fixes_is_named_as_in_the_recipe_with_the_line_that_fixes_it(model):
    found = error_of(model, "dynamo")
    check_line(found)
    assert "tracing inferred a static size of 2 for the axis 'batch' of 'x'" in found.message
    assert re.match("(torch.export|The loop) fixes the axis 'batch' of 'x' to 2[,:] ", found.remedy)


class Smallest(torch.nn.Module):
    def __init__(self, smaller):
        super().__init__()
        self.smaller = smaller

    def forward(self, x):
        k = self.smaller(x)
        return x.topk(k, dim=0).values.sum(0)  # the fault


def smaller(a: int, b: int) -> int:
    return min(b, a)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_a_scripted_function_that_returns_a_number_has_a_remedy_that_works():
    scripted = torch.jit.script(smaller)
    given = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}}, "opsets": "17"}
    results = [
        run_one(onnx_ci.recipe(lambda: (Smallest(each), (torch.randn(3, 4),)), name="net", **given), opsets="17")  # noqa: B023
        for each in (lambda x: scripted(2, x.shape[0]), lambda x: torch._shape_as_tensor(x)[0].clamp(max=2))
    ]
    assert [each.status for each in results] == ["failed", "passed"]
    assert "torch._shape_as_tensor(x)[1].clamp(max=k)" in results[0].findings[0].remedy


class Nested(torch.nn.Module):
    def forward(self, pair, scale):
        return pair["a"] * scale + torch.stack(list(pair["b"]))  # the fault


def test_an_axis_of_a_tensor_in_a_container_is_named_too():
    function = lambda: (Nested(), ({"a": FLOATS, "b": FLOATS}, torch.tensor(2.0)))  # noqa: E731
    names = {"input_names": ["first", "second", "scale"], "dynamic_axes": {"first": {0: "rows"}, "second": {0: "rows"}}}
    result = run_one(onnx_ci.recipe(function, name="net", exporter="dynamo", **names), opsets="18")
    (found,) = result.findings
    check_line(found)
    assert "size of 2 for the axis 'rows' of 'first'" in found.message
    assert "size of 2 for the axis 'rows' of 'second'" in found.message


def by_torch_export(model, args, kwargs, opset, path):
    program = torch.export.export(model, args, dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.onnx.export(program, (), path, opset_version=opset, input_names=["x"], output_names=["y"])


@pytest.mark.parametrize("size", [1, 2])
def test_an_axis_of_size_1_in_the_example_is_told_where_torch_export_takes_it_for_constant(size):
    recipe = onnx_ci.recipe(
        lambda: (torch.nn.Linear(3, 2), (torch.randn(size, 3),)),
        name="net",
        export=by_torch_export,
        input_names=["x"],
        dynamic_axes={"x": {0: "batch"}},
    )
    errors = [each for each in run_one(recipe, opsets="18").findings if each.rule == "export-error"]
    if size > 1:  # the remedy works
        assert not errors
        return
    (found,) = errors
    assert "due to hint of 1 for the axis 'batch' of 'x'" in found.message
    assert found.remedy == (
        "torch.export takes a size of 0 or 1 for a constant: let the axis 'batch' of 'x' be 2 or more in the example."
    )


def test_the_size_that_torch_export_finds_constant_is_named_where_the_exporter_says_so_in_other_words():
    def export(model, args, kwargs, opset, path):
        advice = "If you're using mark_dynamic, remove it. If you're using Dim.DYNAMIC, replace it with Dim.STATIC or Dim.AUTO"
        fixed = "You marked L['input'].size()[0] as dynamic but your code specialized it to be a constant (5)"
        raise RuntimeError(f"Constraints violated (L['input'].size()[0])!\n  - {fixed}. {advice}.")

    recipe = onnx_ci.recipe(
        lambda: (torch.nn.Linear(3, 2), (torch.randn(5, 3),)),
        name="net",
        export=export,
        input_names=["x"],
        dynamic_axes={"x": {0: "batch"}},
    )
    (found,) = run_one(recipe, opsets="18").findings
    assert found.message.endswith("- a static size of 5 for the axis 'batch' of 'x'.")
    assert found.remedy.startswith("torch.export fixes the axis 'batch' of 'x' to 5, ")


LIBRARY_THAT_EXPORTS = """
import torch

class Layer(torch.nn.Module):
    def forward(self, x):
        if torch.compiler.is_exporting() or torch.jit.is_tracing():
            raise ValueError("not for export")
        return x * 2

def export(model, args, kwargs, opset, path):
    raise ValueError("no such format")

def run(model, args, kwargs, opset, path):
    torch.export.export(model, args)
"""


@pytest.mark.parametrize(("function", "line"), [("run", 7), ("export", None)])
def test_a_line_of_a_library_is_named_if_it_is_of_the_model_and_not_of_the_librarys_exporter(function, line, tmp_path):
    file, library = tmp_path / "site-packages" / "library.py", {"__name__": "library"}
    exec(compile(LIBRARY_THAT_EXPORTS, file, "exec"), library)
    recipe = onnx_ci.recipe(lambda: (library["Layer"](), (FLOATS,)), name="net", export=library[function])
    (found,) = run_one(recipe, opsets="18").findings
    assert found.rule == "export-error"
    assert (found.source and found.source.line) == line


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_an_operator_without_a_translation_is_named_with_its_line_and_the_way_to_translate_it(exporter):
    found = error_of(Unknown(), exporter)
    check_line(found)
    assert found.rule == "unsupported-operator"
    how = {
        "torchscript": "torch.onnx.register_custom_op_symbolic('aten::special_bessel_j0', FUNCTION, 18)",
        "dynamo": "custom_translation_table={torch.ops.prims.bessel_j0.default: FUNCTION}",
    }
    assert how[exporter] in found.remedy


class InHelper(torch.nn.Module):
    def middle(self, x):
        return x.kthvalue(2, dim=1).values  # the fault

    def forward(self, x):
        return torch.relu(self.middle(x))


def test_an_operator_that_a_helper_calls_is_named_there():
    found = error_of(InHelper(), "dynamo")
    assert found.operator == "aten.kthvalue.default"
    check_line(found)


def test_an_operator_of_another_namespace_is_named_with_the_way_to_translate_it():
    name = "error_lines::soft_clip"

    @torch.library.custom_op(name, mutates_args=())
    def soft_clip(x: torch.Tensor, limit: float) -> torch.Tensor:
        return limit * torch.tanh(x / limit)

    def translation(g, x, limit):
        return g.op("Mul", g.op("Tanh", g.op("Div", x, limit)), limit)

    recipe = recipe_of(lambda x: soft_clip(x, 5.0), torch.randn(3))
    (found,) = run_one(recipe, opsets="13").findings
    assert found.rule == "unsupported-operator"
    assert f"torch.onnx.register_custom_op_symbolic({name!r}, FUNCTION, 13)" in found.remedy
    torch.onnx.register_custom_op_symbolic(name, translation, 13)  # the remedy works
    try:
        assert not run_one(recipe, opsets="13").findings
    finally:
        torch.onnx.unregister_custom_op_symbolic(name, 13)


def test_a_branch_on_a_value_is_named_where_dynamo_refuses_it():
    found = error_of(Value(), "dynamo")
    check_line(found)
    assert "Could not guard on data-dependent expression" in found.message
    assert "(Size-like symbols: none)" in found.message  # the whole paragraph
    assert "torch.where" in found.remedy


class ByList(torch.nn.Module):
    def forward(self, x):
        columns = x[0].abs().argsort().tolist()
        return x[:, [each - 1 for each in columns]]  # the fault


class ByNumpy(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.numpy().max() > 1 else x  # the fault


@pytest.mark.parametrize(("model", "remedy"), [(ByList(), "compute with the tensor"), (ByNumpy(), "A graph has no numpy")])
def test_a_number_that_a_graph_does_not_know_is_no_question_of_branches(model, remedy):
    found = error_of(model, "dynamo")
    check_line(found)
    assert remedy in found.remedy


def test_an_exception_that_the_model_handles_is_not_the_cause():
    found = error_of(Fallback(), "dynamo")
    check_line(found)
    assert "there is no such number" not in found.message


def test_what_no_operator_is_gets_no_translation():
    model = torch.nn.AdaptiveAvgPool2d(3)
    result = run_one(onnx_ci.recipe(lambda: (model, (torch.randn(1, 1, 7, 7),)), name="pool"), opsets="13")
    (found,) = result.findings
    assert (found.rule, "FUNCTION" in found.remedy) == ("unsupported-operator", False)


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["none", "fork"])
def test_what_calls_the_exporter_is_no_part_of_the_model(project, isolation):
    project.write("site-packages/library.py", LIBRARY)
    project.write("onnx_recipes.py", RECIPE)
    done = project.command("onnx_ci", "run", "--opsets=18", f"--isolation={isolation}")
    assert "net::opset18-cpu failed (export-error at site-packages/library.py:6)" in done.stdout


LIBRARY = """
import torch

class Loop(torch.nn.Module):
    def forward(self, x):
        rows = x.unbind(0)
        return torch.stack([row * 2 for row in rows])
"""
RECIPE = """
import sys

sys.path.insert(0, "site-packages")
import onnx_ci
import torch
from library import Loop

@onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "rows"}})
def net():
    return Loop(), (torch.randn(2, 3),)
"""


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_an_error_of_the_model_itself_is_told_in_its_first_paragraph(exporter):
    found = error_of(Raising(), exporter)
    check_line(found)
    assert found.message.endswith("NotImplementedError: no export of this layer")
