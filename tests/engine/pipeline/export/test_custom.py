"""A recipe's own export function: its file is judged as that of any exporter, and what it does wrong is named."""

from __future__ import annotations

import copy
import functools

import onnx
import pytest
import torch
from toolbox.cells import errors, recipe_of, rules, run_one

import onnx_ci
from onnx_ci import Status

AXES = {"x": {0: "batch"}, "y": {0: "batch"}}
NAMES = {"input_names": ["x"], "output_names": ["y"]}
OPSETS = {"torchscript": 17, "dynamo": 18}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.dropout = torch.nn.Dropout(0.5)
        self.second = torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.second(self.dropout(self.norm(self.first(x)).relu()))


class Wrapper(torch.nn.Module):
    """In training mode, as a new module is; the model in it is not."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)


def net():
    return Net(), (torch.randn(5, 4),)


def by_torchscript(model, args, kwargs, opset, path, **options):
    torch.onnx.export(model, args, path, opset_version=opset, dynamo=False, dynamic_axes=AXES, **{**NAMES, **options})


def by_dynamo(model, args, kwargs, opset, path, **options):
    shapes = ({0: "batch"},)
    torch.onnx.export(model, args, path, opset_version=opset, dynamo=True, dynamic_shapes=shapes, **{**NAMES, **options})


EXPORTS = {"torchscript": by_torchscript, "dynamo": by_dynamo}
both = pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])


def judged(export, opset=17, function=net, **keywords):
    declared = {**NAMES, "dynamic_axes": AXES, **keywords}
    return run_one(onnx_ci.recipe(name="net", export=export, **declared)(function), opsets=opset)


# --- right ones -------------------------------------------------------------------------------------------------------


@both
def test_a_file_that_it_writes_is_judged_at_each_opset(exporter):
    result = judged(EXPORTS[exporter], OPSETS[exporter])
    assert (result.status, result.cell.label) == (Status.PASSED, f"opset{OPSETS[exporter]}-cpu-custom"), result.findings


def returned_program(model, args, kwargs, opset, path):
    return torch.onnx.export(model, args, opset_version=opset, dynamo=True, dynamic_shapes=({0: "batch"},), **NAMES)


def returned_model(model, args, kwargs, opset, path):
    by_torchscript(model, args, kwargs, opset, path)
    model = onnx.load(path)
    path.unlink()
    return model


def returned_path(model, args, kwargs, opset, path):
    elsewhere = path.parent / "elsewhere" / "model.onnx"
    elsewhere.parent.mkdir()
    by_torchscript(model, args, kwargs, opset, elsewhere)
    return str(elsewhere)


def written_and_returned(model, args, kwargs, opset, path):
    by_torchscript(model, args, kwargs, opset, path)
    return "done"


@pytest.mark.parametrize(
    ("export", "opset"),
    [(returned_program, 18), (returned_model, 17), (returned_path, 17), (written_and_returned, 17)],
)
def test_it_may_return_what_it_made(export, opset):
    assert judged(export, opset).status is Status.PASSED


@pytest.mark.parametrize(("exporter", "declared"), [("torchscript", {}), ("dynamo", NAMES)], ids=["unnamed", "named"])
def test_names_come_from_the_file_where_the_recipe_declares_none(exporter, declared):
    def export(model, args, kwargs, opset, path):
        torch.onnx.export(
            model, args, path, opset_version=opset, dynamo=exporter == "dynamo", input_names=["left"], output_names=["right"]
        )

    result = run_one(onnx_ci.recipe(name="net", export=export, **declared)(net), opsets=OPSETS[exporter])
    assert set(rules(result)) == ({"name-mismatch"} if declared else set())
    assert {output.name for output in result.outputs} == {"right"}


@both
def test_it_may_wrap_the_model_or_change_it(exporter):
    def wrapped(model, args, *rest):
        EXPORTS[exporter](Wrapper(model), args, *rest)

    def fused(model, args, *rest):
        model.first = torch.nn.utils.fusion.fuse_linear_bn_eval(model.first, model.norm)
        model.norm = torch.nn.Identity()
        EXPORTS[exporter](model, args, *rest)

    for export in (wrapped, fused):
        result = judged(export, OPSETS[exporter])
        assert result.status is Status.PASSED, result.findings
        assert {each.rule for each in result.findings} <= {"absolute-path"}


def test_it_gets_keyword_arguments_and_the_model_in_the_mode_of_the_recipe():
    seen = []

    def export(model, args, kwargs, opset, path):
        seen.append((model.training, len(args), tuple(kwargs), opset))
        names = ["x", "scale"]
        torch.onnx.export(model, args, path, kwargs=kwargs, opset_version=opset, dynamo=False, input_names=names)

    class Scaled(torch.nn.Module):
        def forward(self, x, scale):
            return x * scale

    recipe = onnx_ci.recipe(name="net", export=export, input_names=["x", "scale"])(
        lambda: (Scaled(), (torch.randn(3),), {"scale": torch.randn(3)})
    )
    assert run_one(recipe, opsets=15).status is Status.PASSED
    assert set(seen) == {(False, 1, ("scale",), 15)}


def test_it_stands_beside_the_exporters_of_torch():
    recipe = onnx_ci.recipe(name="net", export=by_torchscript, exporter=["torchscript", "custom"], **NAMES, dynamic_axes=AXES)(
        net
    )
    cells = onnx_ci.run([recipe], opsets=17, isolation="none").cells
    assert [(each.cell.label, each.status) for each in cells] == [
        ("opset17-cpu", Status.PASSED),
        ("opset17-cpu-custom", Status.PASSED),
    ]


def test_a_recipe_without_a_function_has_no_such_cells():
    plain = onnx_ci.recipe(name="plain", **NAMES)(net)
    report = onnx_ci.run([plain], opsets=17, exporters=["torchscript", "custom"], isolation="none")
    assert [each.cell.label for each in report.cells] == ["opset17-cpu"]
    assert [each.reason for each in report.exclusions] == ["custom: the recipe declares no export function"]
    with pytest.raises(onnx_ci.ConfigurationError, match="'plain' has no export function"):
        onnx_ci.export(plain, opset=17, exporter="custom")


def test_a_single_file_is_exported_and_judged_with_it(tmp_path):
    recipe = onnx_ci.recipe(name="net", export=by_torchscript, **NAMES, dynamic_axes=AXES)(net)
    made = onnx_ci.export(recipe, opset=17, path=tmp_path / "net.onnx")
    result = onnx_ci.verify(made, recipe)
    assert (result.status, result.cell.exporter) == (Status.PASSED, "custom")


# --- wrong ones -------------------------------------------------------------------------------------------------------


@both
def test_one_that_exports_in_training_mode_is_told(exporter):
    def export(model, args, *rest):
        options = {"training": torch.onnx.TrainingMode.TRAINING} if exporter == "torchscript" else {}
        EXPORTS[exporter](model.train(), args, *rest, **options)

    result = judged(export, OPSETS[exporter])
    assert "export-warning" in rules(result)
    assert "training mode" in " ".join(each.message for each in errors(result))


def test_one_that_exports_other_weights_is_told():
    def export(model, args, *rest):
        torch.manual_seed(7)
        by_torchscript(Net().eval(), args, *rest)

    assert "numeric-drift" in rules(judged(export))


def subtracted(a, b):
    return a - 2 * b


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exporter", "declared"), [("torchscript", {}), ("dynamo", {"input_names": ["a", "b"]})], ids=["unnamed", "named"]
)
def test_one_that_swaps_the_inputs_is_told(exporter, declared):
    class Swapped(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, b, a):
            return self.model(a, b)

    def export(model, args, kwargs, opset, path):
        torch.onnx.export(
            Swapped(model), args[::-1], path, opset_version=opset, dynamo=exporter == "dynamo", input_names=["b", "a"]
        )

    recipe = recipe_of(subtracted, torch.randn(3, 4), torch.randn(3, 4), export=export, **declared)
    result = run_one(recipe, opsets=OPSETS[exporter])
    assert "name-mismatch" in rules(result) if declared else "numeric-drift" in rules(result)


def test_one_that_ignores_the_opset_is_told():
    def export(model, args, kwargs, opset, path):
        by_torchscript(model, args, kwargs, 14, path)

    assert judged(export, 14).status is Status.PASSED
    (wrong,) = errors(judged(export, 17))
    assert wrong.rule == "opset-mismatch"
    assert "opset_version=opset" in wrong.remedy


def test_one_that_fixes_a_declared_axis_is_told():
    def export(model, args, kwargs, opset, path):
        torch.onnx.export(model, args, path, opset_version=opset, dynamo=False, **NAMES)

    assert "static-axis" in rules(judged(export))


def raises(model, args, kwargs, opset, path):
    raise ValueError("no such thing")  # FAULT


def test_an_error_of_its_own_is_told_at_its_line():
    (wrong,) = errors(judged(raises))
    assert (wrong.rule, wrong.message) == ("export-error", "the export function raises raised ValueError: no such thing")
    assert wrong.source.text.endswith("# FAULT")


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "returned None instead of a model"),
        (torch.nn.Identity(), "returned a Identity instead of a model"),
        ("nowhere.onnx", "returned the path 'nowhere.onnx', where there is no file"),
    ],
)
def test_one_that_makes_no_file_is_told(returned, said):
    def makes_none(model, args, kwargs, opset, path):
        return returned

    (wrong,) = errors(judged(makes_none))
    assert (wrong.rule, wrong.message) == ("export-error", f"the export function makes_none {said}")
    assert wrong.remedy.startswith("Write the file to the path that the function gets")


class Branching(torch.nn.Module):
    """The other side is for sizes that no probe has."""

    def __init__(self, *, asks_whether_traced):
        super().__init__()
        self.asks_whether_traced = asks_whether_traced

    def forward(self, x):
        if not (self.asks_whether_traced and torch.onnx.is_in_onnx_export()) and x.shape[0] > 100:
            return x / 10
        return x / 5 / 2 if self.asks_whether_traced else x * 2


@both
def test_a_branch_that_it_freezes_is_told(exporter):
    def found(**options):
        result = judged(EXPORTS[exporter], OPSETS[exporter], lambda: (Branching(**options), (torch.randn(3, 4),)))
        return set(rules(result)) & {"untaken-branch", "baked-value"}

    assert found(asks_whether_traced=False)
    if exporter == "torchscript":  # it warns where it freezes a branch, so without a warning it has frozen none
        assert not found(asks_whether_traced=True)


# --- declared wrongly -------------------------------------------------------------------------------------------------


def test_a_callable_object_is_a_function_too():
    assert judged(functools.partial(by_torchscript, do_constant_folding=True)).status is Status.PASSED


def test_each_export_gets_a_copy():
    seen = []

    def export(model, args, kwargs, opset, path):
        seen.append(copy.deepcopy(model.first.weight.detach()))
        by_torchscript(model, args, kwargs, opset, path)
        model.first.weight.data.zero_()

    recipe = onnx_ci.recipe(name="net", export=export, opsets="16-17", **NAMES, dynamic_axes=AXES)(net)
    cells = onnx_ci.run([recipe], isolation="none").cells
    assert [each.status for each in cells] == [Status.PASSED, Status.PASSED]
    assert len(seen) == 2
    assert torch.equal(*seen)
