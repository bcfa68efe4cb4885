"""No easy pass and no false alarm: models and files that a weaker gate gets wrong, one way or the other."""

from __future__ import annotations

from typing import NamedTuple

import onnx
import pytest
import torch
from onnx import helper
from toolbox.cells import recipe_of, rules, run_one

import onnx_ci
from onnx_ci import Status


def verify_other(wrong, right, *args, **keywords):
    """The rules that a file of the model ``wrong`` breaks where the recipe's model is ``right``."""
    names = {"input_names": [f"x{i}" for i in range(len(args))], "output_names": ["y"]}
    file = onnx_ci.export(recipe_of(wrong, *args, **names, **keywords), opset=13)
    return rules(onnx_ci.verify(file, recipe_of(right, *args, **names, **keywords), opset=13))


# --- no easy pass


def test_a_model_that_exits_is_an_error_of_its_own_cell():
    def leave(x):
        raise SystemExit(0)

    report = onnx_ci.run([recipe_of(leave, torch.ones(1), name="leaves"), recipe_of(torch.exp, torch.ones(1))], opsets="13")
    assert [each.status for each in report.cells] == [Status.ERROR, Status.PASSED]
    assert "SystemExit" in report.cells[0].findings[0].message


def test_recipes_of_one_factory_are_not_one_recipe(project):
    from toolbox.discovered import discover

    from onnx_ci.config.settings import load_settings

    project.write(
        "onnx_recipes.py",
        """
        import onnx_ci

        def make(value):
            @onnx_ci.recipe
            def model():
                return value
            return model

        first, second = make(1), make(2)
        """,
    )
    catalogue = discover(load_settings(project.root, environment={}))
    assert len(catalogue.recipes) == 1
    assert "the recipe name 'model' (onnx_recipes.py, line 5) is already used" in catalogue.problems[0].message


def test_axes_of_one_size_are_moved_apart():
    def square_only(x):
        return x + x.T.sum() if x.shape[0] == x.shape[1] else x

    axes = {"dynamic_axes": {"x": {0: "a", 1: "b"}}}
    result = run_one(recipe_of(square_only, torch.randn(4, 4), input_names=["x"], output_names=["y"], **axes))
    assert "baked-value" in rules(result)


def test_a_lost_mask_of_infinities_is_an_error():
    mask = torch.tensor([False, True, False])
    found = verify_other(lambda x: x * 1, lambda x: x.masked_fill(mask, -torch.inf), torch.tensor([1.0, 2.0, 3.0]))
    assert "nonfinite-mismatch" in found


def test_rounding_on_purpose_is_part_of_the_model():
    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    assert "numeric-drift" in verify_other(lambda x: x * 2.2, lambda x: x.half().float() * 2, x)
    assert verify_other(lambda x: x * 2, lambda x: x.half().float() * 2, x) == []  # a runtime may keep more digits
    assert verify_other(lambda x: x.half().float() * 2, lambda x: x.half().float() * 2, x) == []


def test_a_single_element_is_not_repeated():
    def last(x):
        return x[int(x.shape[0]) - 1] * 2

    result = run_one(recipe_of(last, torch.randn(1), input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "n"}}))
    assert "baked-value" in rules(result)


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_a_skipped_keyword_does_not_shift_the_dynamic_shapes(exporter):
    class Keywords(torch.nn.Module):
        def forward(self, x, a=None, b=None):
            return x.sum() + b

    @onnx_ci.recipe(input_names=["x", "b"], output_names=["y"], dynamic_shapes={"x": {0: "n"}, "b": {0: "m"}})
    def keywords():
        return Keywords(), (torch.randn(3),), {"b": torch.randn(4)}

    result = run_one(keywords, opsets="18", exporters=exporter)
    assert rules(result) == []
    assert "n=4,m=6" in {output.probe for output in result.outputs}


def test_an_expected_failure_excuses_no_other():
    wrong = recipe_of(lambda x: x * 2, torch.randn(3), input_names=["x"], output_names=["other"])
    expecting = recipe_of(
        lambda x: x * 3,
        torch.randn(3),
        input_names=["x"],
        output_names=["y"],
        expect={"13": onnx_ci.known_failure("name-mismatch", "known")},
    )
    result = onnx_ci.verify(onnx_ci.export(wrong, opset=13), expecting, opset=13)
    assert (result.status, set(rules(result))) == (Status.FAILED, {"name-mismatch", "numeric-drift"})
    both = [onnx_ci.known_failure("name-mismatch", "one"), onnx_ci.known_failure("numeric-drift", "other")]
    expecting = recipe_of(lambda x: x * 3, torch.randn(3), input_names=["x"], output_names=["y"], expect={"13": both})
    assert onnx_ci.verify(onnx_ci.export(wrong, opset=13), expecting, opset=13).status is Status.XFAILED


def test_a_declared_size_that_the_run_contradicts():
    axes = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "n"}}}
    recipe = recipe_of(lambda x: x * 2, torch.randn(3, 2), **axes)
    model = onnx.load(onnx_ci.export(recipe, opset=13).path)
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 3
    result = onnx_ci.verify(model.SerializeToString(), recipe, opset=13)
    assert "shape-mismatch" in rules(result)
    assert any("but has size 4" in each.message for each in result.findings)


def test_a_recipe_may_skip_itself_with_its_reason():
    def skips():
        pytest.skip("no licence here")

    def skips_as_unittest_does():
        import unittest

        raise unittest.SkipTest("not today")

    report = onnx_ci.run([onnx_ci.recipe(skips), onnx_ci.recipe(skips_as_unittest_does)], opsets="13")
    assert [(each.status, each.reason) for each in report.cells] == [
        (Status.SKIPPED, "no licence here"), (Status.SKIPPED, "not today"),
    ]  # fmt: skip


def test_a_foreign_operator_must_be_declared():
    recipe = recipe_of(lambda x: x * 2, torch.ones(3), input_names=["x"], output_names=["y"])
    model = onnx.load(onnx_ci.export(recipe, opset=13).path)
    model.graph.node.insert(0, helper.make_node("Magic", ["x"], ["unused"], domain="com.example"))
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    assert "foreign-domain" in rules(onnx_ci.verify(model.SerializeToString(), recipe, opset=13))


def test_allowed_rules_and_warnings_are_notes():
    class Text(torch.nn.Module):
        def forward(self, x, how):
            return x.sum() if how == "sum" else x.mean()

    def made():
        return Text(), (torch.randn(3), "sum")

    assert rules(run_one(onnx_ci.recipe(name="text")(made))) == ["baked-argument"]
    allowed = run_one(onnx_ci.recipe(name="text", allow=["baked-argument"])(made))
    assert (allowed.status, [each.rule for each in allowed.findings]) == (Status.PASSED, ["baked-argument"])


# --- no false alarm


def passes(recipe, opset=13, **options):
    result = run_one(recipe, opsets=str(opset), **options)
    assert (rules(result), result.status) == ([], Status.PASSED), [each.message for each in result.findings]
    return result


def test_a_patched_or_hooked_model_is_built_again_rather_than_copied():
    @onnx_ci.recipe
    def patched():
        model = torch.nn.Linear(3, 3)
        forward = model.forward
        model.forward = lambda x: forward(x) * 2
        return model, (torch.randn(2, 3),)

    @onnx_ci.recipe
    def hooked():
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
        model[0].register_forward_hook(lambda module, args, output: output + model[1].weight.sum())
        return model, (torch.randn(2, 3),)

    passes(patched)
    passes(hooked)


def test_one_model_for_all_calls_that_cannot_be_copied_is_refused():
    shared = torch.nn.Linear(3, 3)
    shared.derived = shared.weight * 2
    result = run_one(onnx_ci.recipe(name="shared")(lambda: (shared, (torch.randn(2, 3),))))
    assert rules(result) == ["recipe-error"]
    assert "Build the model inside the recipe" in result.findings[0].remedy
    assert shared.weight.dtype == torch.float32


def test_a_double_model_has_noise_of_its_own():
    @onnx_ci.recipe
    def double():
        layers = torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.Tanh(), torch.nn.Linear(32, 8), torch.nn.Softmax(1)
        return torch.nn.Sequential(*layers).double(), (torch.randn(4, 16).double(),)

    passes(double)


def test_ends_of_a_types_range_and_steps_do_not_count_as_noise():
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(8) > 5
    passes(recipe_of(lambda x: x.masked_fill(mask, torch.finfo(x.dtype).min), x))
    passes(recipe_of(lambda x: (x * 2).double(), x))
    passes(recipe_of(lambda x: (x @ x.T).sign() + (x @ x.T), x))
    passes(recipe_of(lambda x: x.bfloat16().float() * 2, x))


def test_an_attention_mask_stays_lawful():
    def attend(q, mask):
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    q = torch.randn(2, 4, 8)
    mask = torch.full((4, 4), -torch.inf).triu(1)
    axes = {"dynamic_axes": {"q": {1: "t"}, "m": {0: "t", 1: "t"}, "y": {1: "t"}}}
    passes(recipe_of(attend, q, mask, input_names=["q", "m"], output_names=["y"], **axes), opset=14)


def test_values_that_only_one_order_makes_legal():
    def sorted_only(x):
        assert bool((x[1:] >= x[:-1]).all()) or x.shape[0] == 1
        return x * 2

    x = torch.arange(3.0)
    result = run_one(
        recipe_of(sorted_only, x, input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "n"}, "y": {0: "n"}})
    )
    assert rules(result) == []


@pytest.mark.parametrize("opset", [13, 18])
def test_bfloat16_goes_in_and_comes_out(opset):
    recipe = recipe_of(lambda x: (x.float() * 3).bfloat16(), torch.randn(8).bfloat16(), input_names=["x"], output_names=["y"])
    result = passes(recipe, opset)
    assert result.outputs[0].dtype == "bfloat16"


def test_a_number_that_becomes_an_input_is_told_as_what_it_is():
    class Scaled(torch.nn.Module):
        def forward(self, x, flag, scale):
            return x * scale if flag else x

    recipe = onnx_ci.recipe(name="scaled", input_names=["x"])(lambda: (Scaled(), (torch.randn(3), True, 3.0)))
    assert set(rules(run_one(recipe))) <= {"baked-argument", "input-extra"}


def test_dynamo_may_name_the_axes_of_outputs():
    @onnx_ci.recipe(
        input_names=["x"], output_names=["y"], dynamic_axes={"x": {2: "w"}, "y": {2: "w_out"}}, allow_warnings=["axis name"]
    )
    def convolution():
        return torch.nn.Conv1d(2, 3, 3), (torch.randn(2, 2, 9),)

    @onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": [0], "y": [0]})
    def nameless():
        return torch.nn.Linear(3, 3), (torch.randn(4, 3),)

    passes(convolution, 18)
    passes(nameless, 18)
    passes(convolution, 13)


def test_a_lazy_module_is_itself_each_time():
    passes(onnx_ci.recipe(name="lazy")(lambda: (torch.nn.LazyLinear(3), (torch.randn(2, 5),))))


def test_float_buffers_that_share_memory_can_be_perturbed():
    class Expanded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("ones", torch.ones(1).expand(4))

        def forward(self, x):
            if x.element_size() != 4:
                raise TypeError("float32 only")
            return x + self.ones

    passes(onnx_ci.recipe(name="expanded")(lambda: (Expanded(), (torch.randn(4),))))


def test_trained_weights_are_exported_as_they_are_and_probed_where_they_are_blind(tmp_path):
    def trained():
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
        torch.nn.init.zeros_(model[2].weight)  # nothing before it can be seen
        return model, (torch.randn(3, 4),)

    result = run_one(onnx_ci.recipe(weights="trained")(trained), artifacts=tmp_path)
    assert result.status is Status.PASSED
    assert {output.input_title for output in result.outputs} >= {"example", "example, probe weights"}
    assert result.observability == 1.0
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(result.artifact).graph.initializer}
    assert not weights["2.weight"].any()


# --- what a run remembers, and what a declaration claims


class Remembers(torch.nn.Module):
    """Remembers its calls in attributes that are no buffers."""

    def __init__(self, remember):
        super().__init__()
        self.remember = remember
        self.count = 0
        self.mean = torch.zeros(4)
        self.past = []
        self.register_buffer("last", None)

    def forward(self, x):
        return x + self.remember(self, x)


def count(self, x):
    self.count += 1
    return self.count


def average(self, x):
    self.mean = 0.5 * self.mean + x.mean(0)
    return self.mean


def average_in_place(self, x):
    return self.mean.mul_(0.5).add_(x.mean(0))


def collect(self, x):
    self.past.append(x.mean(0))
    return sum(self.past)


def last(self, x):
    before = 0 if self.last is None else self.last
    self.last = x.clone()
    return before


@pytest.mark.parametrize("remember", [count, average, average_in_place, collect, last])
def test_a_model_that_remembers_is_impure_wherever_it_keeps_it(remember):
    result = run_one(onnx_ci.recipe(name="remembers")(lambda: (Remembers(remember), (torch.randn(3, 4),))))
    assert "impure-model" in rules(result)


def test_one_axis_name_is_one_size():
    axes = {"dynamic_axes": {"x": {0: "n", 1: "n"}}}
    result = run_one(recipe_of(lambda x: x * 2, torch.randn(3, 4), input_names=["x"], output_names=["y"], **axes))
    assert rules(result) == ["name-mismatch"]
    assert "used for axes of size 3 and 4" in result.findings[0].message


def test_an_axis_name_that_the_run_contradicts():
    axes = {"dynamic_axes": {"x": {0: "n"}, "y": {0: "n"}}}
    result = run_one(recipe_of(lambda x: x[1:] * 2, torch.randn(3, 4), input_names=["x"], output_names=["y"], **axes))
    assert "shape-mismatch" in rules(result)
    assert any("declared as 'n', which is 3, but has size 2" in each.message for each in result.findings)


def test_an_outputs_dynamic_axis_must_move():
    axes = {"dynamic_axes": {"x": {0: "n"}, "y": {0: "k"}}}
    result = run_one(recipe_of(lambda x: x.T @ x, torch.randn(3, 4), input_names=["x"], output_names=["y"], **axes))
    assert "vacuous" in rules(result)


class Named(NamedTuple):
    mean: torch.Tensor
    scale: torch.Tensor


@pytest.mark.parametrize(
    ("made", "names"),
    [
        (lambda x: Named(x.mean(0), x.std(0)), ["scale", "mean"]),
        (lambda x: (x, {"a": x.mean(0), "b": x.std(0)}), ["x", "b", "a"]),
    ],
)
def test_output_names_keep_the_models_own_order(made, names):
    assert "name-mismatch" in rules(run_one(recipe_of(made, torch.randn(3, 4), output_names=names)))


def test_input_names_keep_forwards_own_order():
    class Difference(torch.nn.Module):
        def forward(self, a, b):
            return a - b

    def made():
        return Difference(), (torch.randn(3), torch.randn(3))

    assert rules(run_one(onnx_ci.recipe(name="swapped", input_names=["b", "a"])(made))) == ["name-mismatch"]
    passes(onnx_ci.recipe(name="right", input_names=["a", "b"])(made))
    passes(onnx_ci.recipe(name="renamed", input_names=["left", "b2"])(made))


def test_a_mask_of_integers_is_also_tried_full_and_empty():
    def forward(x, mask):
        return (x * 2 if bool((mask == 0).all()) else x) + mask.sum()

    result = run_one(recipe_of(forward, torch.randn(3), torch.tensor([1, 0, 1]), input_names=["x", "m"]))
    assert [each.rule for each in result.warnings] == ["edge-mismatch"]


def test_the_order_of_equals_is_nobodys_mistake():
    passes(recipe_of(lambda x: x.topk(2)[1], torch.randn(3, 4)))


def test_half_precision_inside_a_model_is_half_precision():
    x = torch.randn(8, 8)
    passes(recipe_of(lambda x: (x.half() @ x.half().T).float(), x))
