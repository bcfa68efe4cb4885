"""References, noise and moved axes: the unit of every comparison."""

from __future__ import annotations

import dataclasses
import random
import time
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from toolbox.cells import task

import onnx_ci
from onnx_ci.pipeline.model.call import Call, PrepareError
from onnx_ci.pipeline.model.copies import copied_call
from onnx_ci.pipeline.prepare.prepare import prepare
from onnx_ci.results.records import Severity


class Net(torch.nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def make(model, args, kwargs=None, **keywords):
    return prepare(task(onnx_ci.recipe(name="net", **keywords)(lambda: (model, args, kwargs or {}))))


def finding_of(model, args, kwargs=None, **keywords):
    with pytest.raises(PrepareError) as caught:
        make(model, args, kwargs, **keywords)
    return caught.value.finding


def test_noise_is_the_distance_between_the_own_type_and_float64():
    torch.manual_seed(0)
    x = torch.randn(64, 300)
    prepared = make(torch.nn.Linear(300, 50), (x,))
    reference = prepared.probes.example.reference
    model = prepared.model.fresh().model
    with torch.no_grad():
        expected = (model(x).double() - model.double()(x.double())).abs().max().item()
    assert reference.method == "float64"
    assert reference.noise == (expected,)
    assert 0 < expected < 1e-5


def test_noise_on_special_inputs_can_include_how_ill_conditioned_the_model_is_there():
    """Of integers, the model itself rounds nothing; but its result depends on the last digits of its weight."""

    class Fractions(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.tensor(1024.0))

        def forward(self, x):
            return x * self.scale - (x * 1024).round() + 1

    prepared = make(Fractions(), (torch.arange(1.0, 50.0),))
    large = next(each for each in prepared.probes.all if each.name == "floats large")
    *_, runtimes, perturbed = (refine() for refine in large.refinements)
    assert perturbed.noise[0] >= 4 * runtimes.noise[0]
    assert perturbed.exact == runtimes.exact
    assert (
        len(large.refinements) == len(prepared.probes.example.refinements) + 2
    )  # the example has neither this nor a quick one


def test_noise_never_falls_below_one_unit_in_the_last_place():
    prepared = make(Net(lambda x: x * 2), (torch.tensor([0.25, 3.0]),))
    assert prepared.probes.example.reference.noise == (2**2 * torch.finfo(torch.float32).eps,)


def test_integers_and_booleans_have_the_unit_as_their_noise():
    reference = make(Net(lambda x: (x + 1, x > 2)), (torch.arange(4),)).probes.example.reference
    assert reference.noise == (1.0, 1.0)
    assert [tensor.dtype for tensor in reference.exact] == [torch.int64, torch.bool]


def test_a_cast_in_the_model_does_not_round_the_exact_reference():
    def forward(x):
        return (x.double().sum() if x.dtype == torch.float64 else x.float().sum()).to(torch.float32) / 3

    exact = make(Net(forward), (torch.tensor([0.1, 0.2]),)).probes.example.reference.exact[0]
    assert exact.item() == (torch.tensor([0.1, 0.2]).double().sum() / 3).item()


def test_a_branch_of_torch_cond_runs_in_float64_with_its_casts():
    def forward(x):
        return torch.cond(x.sum() > 0, lambda x: x.to(torch.float32) / 3, lambda x: x - 1, (x,))

    x = torch.tensor([0.1, 0.2])
    reference = make(Net(forward), (x,)).probes.example.reference
    assert reference.method == "float64"
    assert torch.equal(reference.exact[0], x.double() / 3)


ANSWERS = {torch.float64: 0.5, torch.float32: 1.0, torch.bfloat16: 2.0, torch.float16: 3.0}
OWN = {torch.float32: "Float", torch.bfloat16: "BFloat16", torch.float16: "Half"}
QUESTIONS = {
    "of a tensor": lambda layer, x: ANSWERS[x.dtype],
    "of a weight": lambda layer, x: ANSWERS[layer.weight.dtype],
    "of all parameters": lambda layer, x: ANSWERS[next(layer.parameters()).dtype],
    "not float64": lambda layer, x: 1.0 if x.dtype != torch.float64 else 2.0,
    "of two tensors": lambda layer, x: ANSWERS[torch.result_type(x, layer.weight)],
    "to which types are promoted": lambda layer, x: ANSWERS[torch.promote_types(x.dtype, torch.float16)],
    "limits": lambda layer, x: torch.finfo(x.dtype).eps,
    "text": lambda layer, x: 1.0 if str(x.dtype) == "torch.float64" else 2.0,
    "class": lambda layer, x: next(value for dtype, value in ANSWERS.items() if isinstance(x, class_of(dtype))),
    "name of the class": lambda layer, x: 1.0 if x.type() == "torch.DoubleTensor" else 2.0,
    "integers are none": lambda layer, x: 1.0 if x.long().dtype == torch.int64 else 2.0,
    "in torch": lambda layer, x: torch.distributions.Bernoulli(probs=torch.ones_like(x)).logits,
    "a constant": lambda layer, x: torch.tensor([[0.75, 1.0, 2.0]], dtype=x.dtype) @ x.T,
    "a constant of a fixed type": lambda layer, x: torch.tensor([[0.75, 1.0, 2.0]], dtype=layer.weight.dtype) @ x.T,
    "a type for casts": lambda layer, x: x.double().to(x.dtype).type(x.type()).type_as(layer.weight),
}


def class_of(dtype):
    return getattr(torch, f"{OWN.get(dtype, 'Double')}Tensor")


IN_HALF = ("of a tensor", "of two tensors", "limits", "class", "a constant of a fixed type", "a type for casts")


@pytest.mark.parametrize(
    ("name", "own"),
    [
        *((name, torch.float32) for name in QUESTIONS),
        *((name, torch.float16) for name in IN_HALF),
        ("class", torch.bfloat16),
        ("limits", torch.bfloat16),
    ],
)
def test_what_is_asked_about_types_is_answered_in_float64_as_in_the_own_type(name, own):
    layer, question = torch.nn.Linear(3, 3), QUESTIONS[name]

    class Asking(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x).mean() + question(self.layer, x)

    x = torch.tensor([[0.25, 1.5, 2.0]] * 3)
    reference = make(Asking().to(own), (x.to(own),)).probes.example.reference
    assert reference.method == "float64"
    assert reference.noise[0] <= 8 * torch.finfo(own).eps * reference.own[0].abs().max()


def test_classes_of_tensors_are_what_they_were():
    before = torch.FloatTensor
    make(Net(lambda x: x + 1), (torch.ones(2),))
    assert torch.FloatTensor is before


def test_a_type_that_is_only_named_is_no_cast():
    reference = make(Net(lambda x: x * 3 if torch.can_cast(x.dtype, torch.float16) else x), (torch.ones(3),)).probes.example
    assert reference.reference.eps == torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_noise_is_measured_in_the_models_own_type(dtype):
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    reference = make(torch.nn.Linear(16, 4).to(dtype), (x.to(dtype),)).probes.example.reference
    assert reference.own[0].dtype == dtype
    assert reference.noise[0] > 1e-4


@pytest.mark.parametrize(("function", "is_coarse"), [(lambda x: x.float().sin().double(), True), (torch.sin, False)])
def test_a_model_of_float64_that_computes_a_part_in_float32_has_the_noise_of_that(function, is_coarse):
    prepared = make(Net(function), (torch.rand(10, dtype=torch.float64),))
    assert (prepared.probes.example.reference.noise[0] > 1e-8) == is_coarse


def only_float32(x):
    if x.element_size() != 4:
        raise TypeError("float32 only")
    return x.cumsum(0)


def test_a_model_that_cannot_run_in_float64_gets_its_noise_from_perturbation_and_says_so():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    prepared = make(Net(only_float32), (x,))
    reference = prepared.probes.example.reference
    own_rounding = (x.cumsum(0).double() - x.double().cumsum(0)).abs().max().item()
    assert reference.method == "perturbation"
    assert own_rounding / 10 < reference.noise[0] < own_rounding * 10
    (note,) = prepared.findings
    assert (note.rule, note.severity) == ("no-float64", onnx_ci.Severity.NOTE)


def test_noise_that_hides_half_of_the_digits_is_vacuous():
    prepared = make(Net(lambda x: (x + 1e7) - 1e7), (torch.rand(10),))
    assert "too noisy to compare by drift" in prepared.findings[0].message
    assert {each.rule for each in prepared.findings} == {"vacuous"}
    judged_otherwise = make(Net(lambda x: (x + 1e7) - 1e7), (torch.rand(10),), atol=1.0)
    assert not [each for each in judged_otherwise.findings if "too noisy to compare by drift" in each.message]


def since_the_first(t):
    return (t - t[0]).sin()


@pytest.mark.parametrize(("start", "is_vacuous"), [(1.75e9, False), (1e14, True)])
def test_noise_in_float64_is_vacuous_if_it_hides_half_of_the_digits_of_float32(start, is_vacuous):
    prepared = make(Net(since_the_first), (torch.arange(10, dtype=torch.float64) + start,))
    assert ["too noisy to compare by drift" in each.message for each in prepared.findings] == [True] * is_vacuous


def with_noise_of_its_own_seed(x):
    torch.manual_seed(0)
    return x + torch.randn_like(x)  # other numbers in float64


def test_noise_of_numbers_that_the_model_draws_under_its_own_seed_is_no_bad_condition():
    found = make(Net(with_noise_of_its_own_seed), (torch.rand(4, 8),)).findings[0]
    assert (found.rule, found.source.text) == ("vacuous", "return x + torch.randn_like(x)  # other numbers in float64")
    assert "a buffer or an input" in found.remedy
    assert "rtol" not in found.remedy


def test_what_a_clock_changes_is_neither_rounding_nor_the_order_of_equal_values():
    def forward(x):
        return x + time.perf_counter() * 1e3 % 7

    findings = [each for each in make(Net(forward), (torch.rand(4, 8),)).findings if each.severity is Severity.ERROR]
    assert findings[0].rule == "nondeterministic"
    assert not [each for each in findings if "rtol" in each.remedy or "equal values" in each.message]


def test_a_dynamic_axis_of_an_output_that_only_degenerate_inputs_move_is_vacuous():
    """Without a token, there is one row; an error in the number of rows would only be a warning there."""

    def forward(x, mask):
        return x[: int(mask.any()) + 1]

    def vacuous(**keywords):
        args, names = (torch.randn(3, 4), torch.tensor([[True, False, True]])), {"input_names": ["x", "mask"]}
        prepared = make(Net(forward), args, **names, output_names=["y"], dynamic_axes={"y": {0: "rows"}}, **keywords)
        return [each.message for each in prepared.findings if each.rule == "vacuous"]

    assert vacuous() == ["axis 0 of output 'y' is declared dynamic as 'rows', but has size 2 on every input"]
    assert vacuous(inputs={"mask": onnx_ci.mask(min_true=0)}) == []


def test_an_output_that_follows_an_axis_that_no_input_declares_says_which():
    axes = {"dynamic_axes": {"x": {0: "rows"}, "y": {0: "rows", 1: "words"}}, "input_names": ["x"], "output_names": ["y"]}
    (found,) = (each for each in make(Net(torch.exp), (torch.randn(2, 5),), **axes).findings if each.rule == "vacuous")
    assert (
        "Declare axis 1 of 'x' dynamic, too, which is as long in the example: dynamic_axes={'x': {1: 'words'}}" in found.remedy
    )


def test_every_copy_of_the_model_is_fresh():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            x *= 2
            return x + self.calls

    prepared = make(Counter(), (torch.ones(3),))
    assert prepared.probes.example.reference.own[0].tolist() == [3.0, 3.0, 3.0]
    call = prepared.model.fresh()
    assert call.model.calls.item() == 0
    assert call.args[0].tolist() == [1.0, 1.0, 1.0]
    assert prepared.probes.example.inputs[0].tolist() == [1.0, 1.0, 1.0]


def numbers():
    return torch.randn(3, generator=torch.Generator().manual_seed(0))


def inference_numbers():
    with torch.inference_mode():
        return numbers()


@pytest.mark.parametrize(
    "make_argument",
    [
        numbers,
        inference_numbers,
        lambda: torch.complex(numbers(), numbers()).conj(),
        lambda: torch.complex(numbers(), numbers()).conj().imag,
        lambda: numbers()[1:],
        lambda: torch.from_numpy(np.arange(3.0)),
        lambda: numbers().to(torch.float8_e4m3fn),
        lambda: numbers().requires_grad_(),
    ],
    ids=["plain", "inference", "conjugated", "negated", "part", "numpy", "float8", "gradient"],
)
def test_an_argument_of_any_kind_is_copied_as_it_is(make_argument):
    argument = make_argument()
    call = Call(model=torch.nn.Identity(), args=(argument,), kwargs={})
    copied = copied_call(call)
    assert copied is not None
    (copy,) = copied.args
    values = [each.detach().to(torch.complex128).tolist() for each in (argument, copy)]
    assert values[0] == values[1]
    assert (copy.dtype, copy.requires_grad) == (argument.dtype, argument.requires_grad)
    with torch.no_grad():
        copy.copy_(torch.zeros_like(copy))
    assert argument.detach().to(torch.complex128).tolist() == values[0]


class Shares(torch.nn.Module):
    """Tensors of every kind that share their memory, and a run that writes to one of them."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.tied = self.weight
        self.register_buffer("rows", torch.ones(2, 3))
        self.first = self.rows[0]

    def forward(self, x):
        with torch.no_grad():
            self.rows.mul_(2)
            self.weight.mul_(2)
        return x * self.tied + self.first


def test_what_a_copy_writes_to_is_its_own_and_what_shares_memory_in_the_model_does_so_in_the_copy():
    prepared = make(Shares(), (torch.zeros(3),))
    assert prepared.probes.example.reference.own[0].tolist() == [2.0] * 3
    copies = [prepared.model.fresh().model for _ in range(2)]
    copies[0](torch.zeros(3))
    for model, value in ((copies[0], 2.0), (copies[1], 1.0), (prepared.model.pristine.model, 1.0)):
        assert all(bool((each == value).all()) for each in (model.weight, model.tied, model.rows, model.first))
        assert model.tied is model.weight


def double(module, args, output):
    return output * 2


class CopiesItself(torch.nn.Module):
    copied = False

    def __deepcopy__(self, memo):
        made = CopiesItself()
        made.copied = True
        return made

    def forward(self, x):
        return x


class Refers(torch.nn.Module):
    """Modules that refer to each other, one that is used twice, one with a hook and one with its own way of being copied."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.layer.owners = [self]
        self.layer.register_forward_hook(double)
        self.again, self.own = self.layer, CopiesItself()

    def forward(self, x):
        return self.own(self.again(self.layer(x)))


def test_a_copy_refers_to_its_own_modules():
    prepared = make(Refers(), (torch.randn(2, 3),))
    model, pristine = prepared.model.fresh().model, prepared.model.pristine.model
    assert model.again is model.layer is not pristine.layer
    assert model.layer.owners == [model]
    assert model.own.copied
    assert list(model.layer._forward_hooks.values()) == [double]
    model.layer.register_forward_pre_hook(double)
    assert not pristine.layer._forward_pre_hooks
    x = torch.randn(2, 3)
    assert torch.equal(prepared.model.fresh().model(x), pristine(x))


def test_a_model_that_cannot_be_copied_is_built_again():
    @onnx_ci.recipe
    def net():
        model = torch.nn.Linear(3, 3)
        model.derived = model.weight * 2  # no leaf: copy.deepcopy refuses it
        return model, (torch.randn(2, 3),)

    first, second = prepare(task(net)).model.fresh().model, prepare(task(net)).model.fresh().model
    assert torch.equal(first.weight, second.weight)
    assert first is not second


def test_a_recipe_runs_under_its_seed_and_leaves_the_callers_random_state_alone():
    @onnx_ci.recipe(seed=7)
    def net():
        return torch.nn.Linear(3, 3), (torch.randn(2, 3) + random.random(),)

    torch.manual_seed(1)
    random.seed(1)
    expected = torch.rand(()), random.random()
    torch.manual_seed(1)
    random.seed(1)
    one, other = prepare(task(net)).probes.example, prepare(task(net)).probes.example
    assert torch.equal(one.inputs[0], other.inputs[0])
    assert torch.equal(one.reference.own[0], other.reference.own[0])
    assert (torch.rand(()), random.random()) == expected


def test_the_model_is_put_in_eval_unless_the_recipe_trains():
    assert not make(torch.nn.BatchNorm1d(3), (torch.randn(4, 3),)).model.fresh().model.training
    assert make(torch.nn.BatchNorm1d(3), (torch.randn(4, 3),), training=True).model.fresh().model.training


# --- moved axes


def moved(prepared):
    """The sizes that the dynamic axes were moved to, but for far longer ones."""
    return [probe.name for probe in prepared.probes.all if "=" in probe.name and not probe.is_long]


def probe(prepared, name):
    return next(probe for probe in prepared.probes.all if probe.name == name)


def test_every_dynamic_axis_moves_and_axes_of_one_name_move_together():
    prepared = make(
        Net(lambda a, b: a + b.sum(1, keepdim=True)),
        (torch.randn(3, 4), torch.randn(3, 5)),
        input_names=["a", "b"],
        dynamic_axes={"a": {0: "batch"}, "b": {0: "batch", 1: "width"}},
    )
    assert moved(prepared) == ["batch=4,width=7", "batch=7", "batch=1", "width=11", "width=1", "batch=1,width=1"]
    assert [tuple(tensor.shape) for tensor in probe(prepared, "batch=4,width=7").inputs] == [(4, 4), (4, 7)]


def test_nested_and_keyword_arguments_keep_forwards_order():
    def forward(x, states, *, scale, shift):
        return x + states[0] * scale + states[1] * shift

    prepared = make(
        Net2(forward),
        (torch.ones(2), (torch.ones(2) * 2, torch.ones(2) * 3)),
        {"shift": torch.tensor(5.0), "scale": torch.tensor(4.0)},
        input_names=["x", "a", "b", "scale", "shift"],
        dynamic_axes={"x": [0], "a": {0: "x_dynamic_axes_1"}, "b": {0: "x_dynamic_axes_1"}},
    )
    assert [tensor.flatten()[0].item() for tensor in prepared.probes.example.inputs] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert moved(prepared) == ["x_dynamic_axes_1=3", "x_dynamic_axes_1=5", "x_dynamic_axes_1=1"]
    probed = probe(prepared, "x_dynamic_axes_1=3")
    x, a, b, scale, shift = probed.inputs
    assert torch.allclose(probed.reference.own[0], x + a * scale + b * shift)


class Net2(torch.nn.Module):
    """A module whose forward has named arguments."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, states, scale=None, shift=None):
        return self.function(x, states, scale=scale, shift=shift)


def test_a_size_that_the_model_refuses_is_not_used():
    def forward(x):
        assert x.shape[0] % 4 == 0
        return x * 2

    prepared = make(Net(forward), (torch.randn(4, 2),), input_names=["x"], dynamic_axes={"x": {0: "n"}})
    assert moved(prepared) == ["n=12", "n=8"]


def test_axes_move_together_by_multiples_that_each_alone_has_shown():
    def forward(x):
        assert x.shape[0] % 4 == 0
        assert x.shape[1] % 2 == 0
        return x * 2

    axes = {"x": {0: "rows", 1: "columns"}}
    prepared = make(Net(forward), (torch.randn(8, 12),), input_names=["x"], dynamic_axes=axes)
    assert moved(prepared) == ["rows=20", "rows=4", "columns=26", "columns=2", "rows=12,columns=16", "rows=4,columns=2"]


def test_axes_that_cannot_move_together_move_one_at_a_time():
    def forward(x, y):
        assert (x.shape[0] == 3) or (y.shape[0] == 3)
        return x.sum() + y.sum()

    axes = {"x": {0: "n"}, "y": {0: "m"}}
    prepared = make(Net(forward), (torch.randn(3), torch.randn(3)), input_names=["x", "y"], dynamic_axes=axes)
    assert moved(prepared) == ["n=7", "n=1", "m=7", "m=1"]


def test_an_axis_that_nothing_can_move_is_vacuous_until_the_recipe_names_a_size():
    def forward(x):
        assert x.shape[0] in (5, 77)
        return x * 2

    keywords = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}}
    prepared = make(Net(forward), (torch.randn(5),), **keywords)
    (vacuous,) = (each for each in prepared.findings if "was not tested" in each.message)
    assert vacuous.rule == "vacuous"
    assert "dynamic_sizes={'n': SIZE}" in vacuous.remedy
    assert moved(make(Net(forward), (torch.randn(5),), **keywords, dynamic_sizes={"n": 77})) == ["n=77"]


def test_moved_integers_stay_among_the_examples_values():
    table = torch.nn.Embedding(5, 3)
    prepared = make(table, (torch.tensor([4, 0, 2]),), input_names=["x"], dynamic_axes={"x": {0: "n"}})
    assert moved(prepared) == ["n=4", "n=7", "n=1"]
    for probed in prepared.probes.all:
        assert 0 <= int(probed.inputs[0].min()) <= int(probed.inputs[0].max()) <= 4


def test_dynamic_shapes_and_dynamic_axes_say_the_same():
    args = (torch.ones(2, 3), (torch.ones(2), torch.ones(2)))
    model = Net2(lambda x, states, **_: x.sum(1) + states[0] + states[1])
    names = ["x", "a", "b"]
    by_axes = make(model, args, input_names=names, dynamic_axes={"x": {0: "n"}, "a": {0: "n"}, "b": {0: "n"}})
    by_tree = make(model, args, input_names=names, dynamic_shapes=({0: "n"}, ({0: "n"}, ["n"])))
    by_name = make(
        model, args, input_names=names,
        dynamic_shapes={"x": {0: torch.export.Dim("n"), 1: torch.export.Dim.STATIC}, "states": ({0: "n"}, {0: "n"})},
    )  # fmt: skip
    by_axes, by_tree, by_name = (each.model.signature for each in (by_axes, by_tree, by_name))
    assert by_axes.axes == by_tree.axes == by_name.axes
    assert by_axes.dynamic_shapes == ({0: "n"}, ({0: "n"}, {0: "n"}))


# --- what cannot be used


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (None, "the recipe returned NoneType instead of (model, args) or (model, args, kwargs)"),
        ((1,), "a tuple of 1 instead of"),
        ((1, 2, 3, 4), "a tuple of 4 instead of"),
        (("net", ()), "not a torch.nn.Module but str"),
        ((lambda x: x, ()), "do not match FunctionModel.forward(x): missing a required argument: 'x'"),
        ((torch.nn.ReLU, (torch.ones(1),)), "the class ReLU; create an instance of it"),
        ((torch.nn.ReLU(), [torch.ones(1)]), "args are a list, not a tuple"),
        ((torch.nn.ReLU(), (torch.ones(1),), [1]), "kwargs are not a dict"),
        ((torch.nn.ReLU(), ()), "do not match ReLU.forward(input"),
        ((torch.nn.ReLU(), (torch.ones(1),), {"inputs": 1}), "got an unexpected keyword argument 'inputs'"),
        ((Net(lambda x: int("three")), (torch.ones(1),)), "the model raised ValueError: invalid literal for int()"),
        ((Net(lambda x: 3), (torch.ones(1),)), "returns no tensor"),
        ((Net(lambda x: x * 1j), (torch.ones(1),)), "complex tensor"),
    ],
)
def test_a_wrong_recipe_is_one_finding_with_its_remedy(made, said):
    with pytest.raises(PrepareError) as caught:
        prepare(task(onnx_ci.recipe(name="net")(lambda: made)))
    found = caught.value.finding
    assert found.rule == "recipe-error"
    assert said in found.message
    assert "\n" not in found.remedy


def test_a_recipe_that_raises_is_told_with_its_own_line():
    def net():
        raise ValueError("no such file")

    with pytest.raises(PrepareError) as caught:
        prepare(task(onnx_ci.recipe(net)))
    line = net.__code__.co_firstlineno + 1
    assert caught.value.finding.message.startswith("the recipe raised ValueError: no such file (")
    assert caught.value.finding.message.endswith(f"test_prepare.py, line {line})")


@pytest.mark.parametrize(
    ("keywords", "rule", "said"),
    [
        ({"dynamic_axes": {"inptu": {0: "n"}}}, "unknown-axis", "neither in input_names nor in output_names; did you mean 'input'?"),
        ({"dynamic_axes": {"input": {2: "n"}}}, "unknown-axis", "'input' has no axis 2: it has 2 axes, counted from 0"),
        ({"dynamic_axes": {"input": {-1: "n"}}}, "unknown-axis", "no axis -1"),
        ({"dynamic_axes": {"out": {2: "n"}}}, "unknown-axis", "'out' has no axis 2"),
        ({"dynamic_axes": {"input": {0: "n"}}, "dynamic_sizes": {"n": 2}}, "vacuous", "gives no size for 'n' other than the example's, 2"),
        ({"dynamic_axes": {"input": {0: "n"}}, "dynamic_sizes": {"m": 3}}, "unknown-axis", "names the axis 'm', which is not declared"),
        ({"dynamic_shapes": {"inptu": {0: "n"}}}, "unknown-axis", "not an argument of forward; did you mean 'input'?"),
        ({"dynamic_shapes": 5}, "unknown-axis", "does not match the structure of args: it has no entry for 'input'"),
    ],
)  # fmt: skip
def test_a_wrong_axis_is_told_with_the_nearest_name(keywords, rule, said):
    found = finding_of(
        torch.nn.Linear(3, 2), (torch.ones(2, 3),), **{"input_names": ["input"], "output_names": ["out"], **keywords}
    )
    assert found.rule == rule
    assert said in found.message
    assert "dynamic_shapes" not in found.message or "dynamic axes under" not in found.remedy


def test_the_shapes_of_torch_export_need_no_names():
    class Net(torch.nn.Module):
        def forward(self, batch, scale):
            return batch["x"] * scale

    shapes = {"batch": {"x": {0: "rows"}}, "scale": {0: torch.export.Dim.DYNAMIC}}
    prepared = make(Net(), ({"x": torch.ones(2, 3)}, torch.ones(2, 1)), dynamic_shapes=shapes)
    assert (prepared.model.signature.input_names, prepared.model.recipe.input_names) == (("batch.x", "scale"), ())
    few = finding_of(Net(), ({"x": torch.ones(2, 3)}, torch.ones(2, 1)), dynamic_shapes=shapes, input_names=["x"])
    assert few.message == "dynamic_shapes needs input_names: 2 names, one for every tensor in args"
    assert prepared.model.signature.axes == {"batch.x": {0: "rows"}, "scale": {0: "scale_dim_0"}}


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_a_method_that_was_scripted_takes_the_arguments_it_takes():
    class Scripted(torch.jit.ScriptModule):
        @torch.jit.script_method
        def forward(self, x):
            return x + 2

    assert make(Scripted(), (torch.ones(2),)).findings == ()
    assert "missing a required argument: 'x'" in finding_of(Scripted(), ()).message


@pytest.mark.parametrize(
    ("compare", "tests_for_nan"), [(lambda x: x > 0, False), (lambda x: (x > 0).any(), False), (lambda x: x.isnan(), True)]
)
def test_a_comparison_is_no_test_for_nan(compare, tests_for_nan):
    class Net(torch.nn.Module):
        def forward(self, x):
            return x.argmax(1), compare(x)

    probes = make(Net(), (torch.randn(3, 4),)).probes.all
    assert any("nan" in probe.name for probe in probes) == tests_for_nan


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Record:
    first: Any
    second: Any


torch.export.register_dataclass(Record)


class Batch(torch.nn.Module):
    def forward(self, batch):
        return batch.first.tanh() + batch.second


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        (Pair, Pair({0: "rows"}, {0: "rows"})),
        (Pair, ({0: "rows"}, {0: "rows"})),
        (Record, [{0: "rows"}, {0: "rows"}]),
        (Record, {"first": {0: "rows"}, "second": {0: "rows"}}),
    ],
)
def test_the_shapes_of_a_class_are_a_list_or_the_class(kind, shapes):
    prepared = make(Batch(), (kind(torch.ones(2, 3), torch.ones(2, 3)),), dynamic_shapes=(shapes,))
    assert prepared.model.signature.axes == {"batch.first": {0: "rows"}, "batch.second": {0: "rows"}}
    few = finding_of(Batch(), (kind(torch.ones(2, 3), torch.ones(2, 3)),), dynamic_shapes=([{0: "rows"}],))
    assert "it has no entry for 'batch.second'" in few.message


# --- layers that are seen through steps


class Layer(torch.nn.Module):
    def __init__(self, seen, bias=0.0):
        super().__init__()
        self.mix, self.seen, self.bias = torch.nn.Linear(17, 17), seen, bias

    def forward(self, x):
        return self.seen(self.mix(x) + self.bias)


ROUNDED = {
    "round": lambda y: torch.round(y * 3),
    "sign": torch.sign,
    "bins": lambda y: torch.bucketize(y, torch.tensor([-0.5, 0.0, 0.5])),
    "argmax": lambda y: y.argmax(-1),
    "fake quantized": lambda y: (y / 0.1).round().clamp(-128, 127) * 0.1,
    "order": lambda y: torch.argsort(y, dim=-1, stable=True).float(),
}
CUT_OFF = {
    "a ReLU": (lambda y: y.relu(), -50.0),
    "a clamp": (lambda y: y.clamp(max=1.0), 50.0),
    "a sign that is always the same": (torch.sign, 50.0),
    "nothing": (lambda y: torch.round(y * 0.0) + 1.0, 0.0),
}


@pytest.mark.parametrize("seen", ROUNDED.values(), ids=ROUNDED)
def test_a_layer_is_seen_through_steps(seen):
    x = torch.randn(45, 17, generator=torch.Generator().manual_seed(3))
    assert "vacuous" not in {each.rule for each in make(Layer(seen), (x,)).findings}


@pytest.mark.parametrize(("seen", "bias"), CUT_OFF.values(), ids=CUT_OFF)
def test_a_layer_behind_which_nothing_changes_is_not_seen(seen, bias):
    x = torch.randn(45, 17, generator=torch.Generator().manual_seed(3))
    [found] = [each for each in make(Layer(seen, bias), (x,)).findings if "no measurable effect" in each.message]
    assert found.severity is onnx_ci.Severity.ERROR
