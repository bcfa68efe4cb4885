"""Steps whose inputs are outputs of the step before: their inputs, their noise, and what is refused."""

from __future__ import annotations

import itertools

import pytest
import torch
from toolbox.cells import task
from torch import nn

import onnx_ci
from onnx_ci.pipeline.model.call import PrepareError
from onnx_ci.pipeline.prepare.prepare import prepare


class Net(nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


NAMES = {"input_names": ["x", "state"], "output_names": ["y", "after"], "feedback": {"after": "state"}}
GROWING = {**NAMES, "dynamic_axes": {"x": {0: "new"}, "state": {0: "past"}, "after": {0: "total"}}}


def make(function, *args, settings=None, **keywords):
    model = function if isinstance(function, nn.Module) else Net(function)
    return prepare(task(onnx_ci.recipe(name="net", **{**NAMES, **keywords})(lambda: (model, args)), **(settings or {})))


def refused(function, *args, **keywords):
    with pytest.raises(PrepareError) as caught:
        make(function, *args, **keywords)
    assert caught.value.finding.rule == "recipe-error"
    return caught.value.finding


def by_name(prepared):
    return {probe.name: probe for probe in prepared.probes.all}


def add(x, state):
    return x * 2, state + x


def join(x, state):
    return x * 2, torch.cat([state, x])


# --- inputs


def test_each_step_takes_outputs_of_the_step_before_and_new_inputs():
    steps = by_name(make(add, torch.randn(4), torch.randn(4), steps=4))
    sequence = [steps[name] for name in ("example", "step=1", "step=2", "step=3")]
    assert "step=4" not in steps
    for before, after in itertools.pairwise(sequence):
        assert after.follows == before.name
        assert after.fed == {1: 1}
        assert torch.equal(after.inputs[1], before.reference.own[1])
        assert not torch.equal(after.inputs[0], before.inputs[0])
        assert torch.equal(after.reference.own[1], after.inputs[0] + after.inputs[1])


def test_steps_are_the_same_each_time_and_eight_unless_the_recipe_names_another_number():
    x = torch.randn(4), torch.randn(4)
    one, other = (by_name(make(add, *x)) for _ in range(2))
    assert [name for name in one if "step" in name] == [f"step={number}" for number in range(1, 8)]
    assert all(map(torch.equal, one["step=7"].inputs, other["step=7"].inputs))


def test_integers_are_drawn_from_the_examples_range_and_a_single_value_is_kept():
    def forward(tokens, rate, state):
        return tokens + rate, state + 1

    names = {"input_names": ["tokens", "rate", "state"], "output_names": ["y", "after"]}
    steps = by_name(make(forward, torch.tensor([3, 9, 5, 6]), torch.tensor(16), torch.zeros(1), **names))
    drawn = torch.stack([steps[f"step={number}"].inputs[0] for number in range(1, 8)])
    assert 3 <= int(drawn.min()) < int(drawn.max()) <= 9
    assert {int(probe.inputs[1]) for name, probe in steps.items() if "step" in name} == {16}


def test_several_outputs_are_fed_back_in_any_order():
    names = {"input_names": ["a", "b", "x"], "output_names": ["y", "b1", "a1"], "feedback": {"a1": "a", "b1": "b"}}
    steps = by_name(make(lambda a, b, x: (a + b + x, b * x, a - x), torch.randn(3), torch.randn(3), torch.randn(3), **names))
    assert steps["step=2"].fed == {0: 2, 1: 1}
    assert torch.equal(steps["step=2"].inputs[0], steps["step=1"].reference.own[2])


def test_step_inputs_are_asked_with_the_fed_back_values_and_the_examples_others():
    asked = {}

    def follow(step, inputs):
        asked.setdefault((step, len(inputs["state"])), inputs)
        return {"place": inputs["place"] + step, "mask": torch.ones(len(inputs["state"]) + len(inputs["x"]))}

    def forward(x, place, mask, state):
        return x * place, mask * torch.cat([state, x])

    prepared = make(
        forward, torch.randn(1), torch.tensor([5]), torch.ones(4), torch.randn(3), step_inputs=follow, steps=3,
        input_names=["x", "place", "mask", "state"],
        dynamic_axes={"x": {0: "new"}, "state": {0: "past"}, "mask": {0: "total"}, "after": {0: "total"}},
    )  # fmt: skip
    steps = by_name(prepared)
    assert [(probe.inputs[1].item(), len(probe.inputs[2])) for name, probe in steps.items() if name.startswith("step=")] == [
        (6, 5),
        (7, 6),
    ]
    assert torch.equal(asked[2, 5]["state"], steps["step=2"].inputs[3])
    assert torch.equal(asked[2, 5]["x"], steps["example"].inputs[0])
    # It also completes inputs of other sizes, so that the model does not refuse them.
    assert len(steps["past=7"].inputs[2]) == 8
    assert prepared.findings == ()


def test_step_inputs_for_one_size_only_cost_the_other_sizes_their_steps_but_not_their_calls():
    def follow(step, inputs):
        return {"mask": torch.ones(2, 4 + step)}

    def forward(mask, x, state):
        joined = torch.cat([state, x], 1)
        return x * 2, joined * mask

    prepared = make(
        forward, torch.ones(2, 4), torch.randn(2, 1), torch.randn(2, 3), step_inputs=follow,
        input_names=["mask", "x", "state"],
        dynamic_axes={"mask": {0: "batch", 1: "total"}, "x": {0: "batch"}, "state": {0: "batch", 1: "past"},
                      "y": {0: "batch"}, "after": {0: "batch", 1: "total"}},
    )  # fmt: skip
    assert {"step=7", "batch=5"} <= by_name(prepared).keys()
    (note,) = prepared.findings
    assert (note.rule, note.severity) == ("vacuous", onnx_ci.Severity.NOTE)
    assert note.message.startswith("the steps were not compared from 'batch=")
    assert "sizes from the inputs" in note.remedy


# --- sizes


def test_an_axis_that_only_the_steps_move_is_tested():
    def forward(x, state):
        if len(state) not in range(3, 11):
            raise ValueError(len(state))
        return join(x, state)

    axes = {"state": {0: "past"}, "after": {0: "total"}}
    known = make(forward, torch.randn(1), torch.randn(3), dynamic_axes=axes, dynamic_sizes={"past": (20,)})
    assert known.findings == ()


def test_a_sequence_is_also_run_in_one_call_where_new_inputs_have_an_axis_of_their_own():
    steps = by_name(make(join, torch.randn(1), torch.randn(3), steps=5, **{**GROWING, "feedback": NAMES["feedback"]}))
    new = [steps[name].inputs[0] for name in ("example", "step=1", "step=2", "step=3")]
    assert torch.equal(steps["prefill"].inputs[0], torch.cat(new))
    assert torch.equal(steps["prefill"].inputs[1], steps["example"].inputs[1])
    assert steps["prefill,step=4"].follows == "prefill"
    assert torch.equal(steps["prefill,step=4"].inputs[0], steps["step=4"].inputs[0])
    assert len(steps["prefill,step=4"].inputs[1]) == len(steps["step=4"].inputs[1]) == 7


@pytest.mark.parametrize("axes", [{}, {"x": {0: "batch"}, "state": {0: "batch"}, "y": {0: "batch"}, "after": {0: "batch"}}])
def test_a_batch_axis_is_no_place_for_further_steps(axes):
    assert not [name for name in by_name(make(add, torch.randn(2), torch.randn(2), dynamic_axes=axes)) if "prefill" in name]


def test_the_first_other_size_is_run_in_steps_too():
    steps = by_name(make(join, torch.randn(1), torch.randn(3), steps=3, **GROWING))
    assert steps["new=2,past=5,step=1"].follows == "new=2,past=5"
    assert [len(steps[f"new=2,past=5,step={number}"].inputs[1]) for number in (1, 2)] == [7, 9]


# --- noise


def test_the_noise_of_a_step_is_the_rounding_of_all_steps_up_to_then():
    def forward(x, state):
        return x * 2, state + x / 3

    steps = by_name(make(forward, torch.rand(64), torch.rand(64), steps=20))
    own = exact = steps["example"].inputs[1]
    exact = exact.double()
    for name in ("example", *(f"step={number}" for number in range(1, 20))):
        x = steps[name].inputs[0]
        own, exact = own + x / 3, exact + x.double() / 3
        reference = steps[name].reference
        assert reference.method == "float64"
        assert torch.equal(reference.own[1], own)
        assert torch.equal(reference.exact[1], exact)
        assert reference.noise[1] >= (own.double() - exact).abs().max()
    assert steps["step=19"].reference.noise[1] > 2 * steps["example"].reference.noise[1]


def test_a_model_that_cannot_run_in_float64_gets_the_noise_of_its_steps_from_perturbation():
    def only_float32(x, state):
        if x.element_size() != 4:
            raise TypeError("float32 only")
        return x * 2, state + x / 3

    prepared = make(only_float32, torch.rand(64), torch.rand(64))
    steps = by_name(prepared)
    assert {probe.reference.method for probe in prepared.probes.all if probe.fed} == {"perturbation"}
    assert 0 < steps["step=7"].reference.noise[1] < 1e-4
    (note,) = (each for each in prepared.findings if each.rule == "no-float64")
    assert "step" not in note.message


def test_steps_whose_noise_hides_half_of_the_digits_are_vacuous():
    def chaotic(x, state):
        return x * 2, 3.99 * state * (1 - state)

    assert make(chaotic, torch.rand(4), torch.rand(4), steps=4).findings == ()
    (found,) = make(chaotic, torch.rand(4), torch.rand(4), steps=40).findings
    assert found.rule == "vacuous"
    assert "too noisy to compare by drift on 'step=" in found.message
    assert "fewer steps" in found.remedy


def test_a_model_that_changes_its_state_in_place_and_one_that_cannot_be_copied_are_run_as_others():
    def in_place(x, state):
        return x * 2, state.add_(x)

    class Uncopyable(nn.Module):
        def __deepcopy__(self, memo):
            raise TypeError("no copy")

        def forward(self, x, state):
            return add(x, state)

    start = torch.randn(4), torch.randn(4)
    expected = by_name(make(add, *start))["step=7"].reference.own
    recipe = onnx_ci.recipe(name="net", **NAMES)(lambda: (Uncopyable(), start))
    for prepared in (make(in_place, *start), prepare(task(recipe))):
        assert all(map(torch.equal, by_name(prepared)["step=7"].reference.own, expected))


# --- what is refused


@pytest.mark.parametrize(
    ("function", "args", "keywords", "message", "remedy"),
    [
        (
            lambda x, state: (x, (state + 1).double()),
            (torch.ones(2), torch.ones(2)),
            {},
            "in step 1, feedback feeds output 'after' (float64[2]) to input 'state' (float32[2]), but their data types differ",
            "Return it from forward as float32.",
        ),
        (
            lambda x, state: (x, state[None]),
            (torch.ones(2), torch.ones(2)),
            {},
            "output 'after' (float32[1, 2]) to input 'state' (float32[2]), but their ranks differ",
            "Return it from forward with rank 1.",
        ),
        (
            join,
            (torch.ones(1), torch.ones(3)),
            {},
            (
                "output 'after' (float32[4]) to input 'state' (float32[3]), but the sizes of axis 0 differ, and it is not declared "
                "dynamic"
            ),
            "dynamic_axes={'state': {0: \"NAME\"}}. If not, return it from forward with size 3.",
        ),
        (
            lambda x, state: (x, torch.tensor([1.0, 2.0, 3.0])[state.long()] + 1),
            (torch.ones(1), torch.zeros(1)),
            {},
            "in step 2, the model raised IndexError: index 4 is out of bounds",
            "Declare fewer steps",
        ),
        (
            add,
            (torch.ones(2), torch.ones(2)),
            {"input_names": ["x", "state", "bias"], "feedback": {"after": "bias"}},
            "feedback names 'bias', but the model has only 2 such tensors: x, state",
            "Declare one name for every tensor",
        ),
        (
            add,
            (torch.ones(2), torch.ones(2)),
            {"step_inputs": lambda step, inputs: [inputs["x"]]},
            "step_inputs returned list for step 0 instead of a dictionary",
            "Return a dictionary of inputs",
        ),
        (
            add,
            (torch.ones(2), torch.ones(2)),
            {"step_inputs": lambda step, inputs: {"xx": inputs["x"]}},
            "step_inputs returned 'xx' for step 0, which is not an input; did you mean 'x'?",
            "Return a dictionary of inputs",
        ),
        (
            add,
            (torch.ones(2), torch.ones(2)),
            {"step_inputs": lambda step, inputs: {"x": 3}},
            "step_inputs returned 'x' for step 0, which is not a tensor but 3",
            "Return a dictionary of inputs",
        ),
        (
            add,
            (torch.ones(2), torch.ones(2)),
            {"step_inputs": lambda step, inputs: {"state": inputs["state"]}},
            "step_inputs returned 'state' for step 0, which is fed back",
            "Leave it out of feedback or of what step_inputs returns.",
        ),
        (
            add,
            (torch.ones(2), torch.ones(2)),
            {"step_inputs": lambda step, inputs: {"x": torch.ones(2 + step)}},
            "in step 1, step_inputs gives a tensor (float32[3]) to input 'x' (float32[2]), but the sizes of axis 0 differ",
            "dynamic_axes={'x': {0: \"NAME\"}}. If not, return it from step_inputs with size 2.",
        ),
        (
            add,
            (torch.ones(2), torch.ones(2)),
            {"step_inputs": lambda step, inputs: {"x": inputs["y"]}},
            "step_inputs raised KeyError: 'y'",
            "Return a dictionary of inputs",
        ),
    ],
)
def test_a_sequence_that_cannot_be_run_is_refused_with_its_remedy(function, args, keywords, message, remedy):
    finding = refused(function, *args, **keywords)
    assert message in finding.message
    assert remedy in finding.remedy
