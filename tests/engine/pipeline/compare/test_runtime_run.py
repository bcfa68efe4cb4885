"""Files that are run in steps on their own outputs: right ones pass, and faults are named with their step."""

from __future__ import annotations

import dataclasses

import onnx
import pytest
import torch
from onnx import helper
from toolbox.cells import rules, run_one
from torch import nn

import onnx_ci
from onnx_ci import Status
from onnx_ci.recipes.models.decoder_kv_cache import GrowingCache, StaticCache, decoder_kv_cache, decoder_static_cache


def with_steps(recipe, steps):
    return dataclasses.replace(recipe, steps=steps)


def without_steps(recipe, **changes):
    """The recipe as it is judged by single calls."""
    return dataclasses.replace(recipe, feedback={}, steps=None, step_inputs=None, **changes)


def file_of(recipe, model):
    """A file with the recipe's signature that computes what ``model`` does; both are created with the same weights."""

    def build():
        own, args = recipe.function()
        wrong = model()
        wrong.load_state_dict(own.state_dict())
        return wrong, args

    return onnx_ci.export(dataclasses.replace(recipe, function=build), opset=13)


def judged(recipe, model):
    return onnx_ci.verify(file_of(recipe, model), recipe, opset=13)


def wrong_on(result):
    """Each output that is wrong, and the inputs that show it."""
    return {each.output: (each.probe, *each.also_on) for each in result.findings if each.severity is onnx_ci.Severity.ERROR}


# --- what is right passes


@pytest.mark.parametrize("recipe", [decoder_kv_cache, decoder_static_cache], ids=lambda recipe: recipe.name)
def test_a_right_decoder_passes_and_its_drift_is_shown_for_each_step(recipe):
    result = run_one(recipe)
    assert (result.status, rules(result)) == (Status.PASSED, [])
    for step in range(1, 8):
        by_name = {each.name: each for each in result.outputs if each.probe == f"step={step}"}
        assert {"logits", "present_key", "present_value"} == by_name.keys()
        assert by_name["present_key"].shape[2] == (6 + step if recipe is decoder_kv_cache else 16)
        assert all(each.reference == "float64" and each.drift < 8 for each in by_name.values())


def test_a_growing_cache_is_also_judged_at_another_size_and_with_many_tokens_in_one_call():
    by_probe = {each.probe: each.shape for each in run_one(decoder_kv_cache).outputs if each.name == "present_key"}
    assert by_probe["batch=3,new=3,past=8"] == (3, 4, 11, 8)
    assert by_probe["batch=3,new=3,past=8,step=7"] == (3, 4, 32, 8)
    assert by_probe["prefill"] == (2, 4, 12, 8)
    assert by_probe["prefill,step=7"] == (2, 4, 13, 8)


class Cell(nn.Module):
    """One step of a recurrent cell."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x, *state):
        return self.cell(x, state if len(state) > 1 else state[0])


def rnn(cell, *states):
    @onnx_ci.recipe(
        name="rnn",
        input_names=["x", *(f"{name}0" for name in states)],
        output_names=[f"{name}1" for name in states],
        feedback={f"{name}1": f"{name}0" for name in states},
        steps=32,
    )
    def recipe():
        return Cell(cell(6, 12)), (torch.randn(2, 6), *(torch.zeros(2, 12) for _ in states))

    return recipe


@pytest.mark.parametrize(
    "recipe",
    [
        rnn(nn.GRUCell, "h"),
        rnn(nn.LSTMCell, "h", "c"),
        with_steps(decoder_kv_cache, 32),
    ],
    ids=["gru", "lstm", "decoder"],
)
def test_many_steps_raise_no_false_alarm(recipe):
    result = run_one(recipe)
    assert (result.status, rules(result)) == (Status.PASSED, [])
    assert max(each.drift for each in result.outputs if each.probe == "step=31") < 8


class Streaming(nn.Module):
    """A convolution over the end of the chunk before and this chunk."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3)

    def kept(self, joined):
        return joined[:, :, -2:]

    def forward(self, chunk, buffer):
        joined = torch.cat([buffer, chunk], 2)
        return self.conv(joined), self.kept(joined)


class KeepsTheWrongEnd(Streaming):
    def kept(self, joined):
        return joined[:, :, :2]


@onnx_ci.recipe(
    input_names=["chunk", "buffer"],
    output_names=["y", "rest"],
    dynamic_axes={"chunk": {2: "time"}, "y": {2: "time"}},
    feedback={"rest": "buffer"},
)
def streaming():
    return Streaming(), (torch.randn(1, 2, 5), torch.zeros(1, 2, 2))


def test_a_streaming_convolution_passes_in_chunks_and_in_one_call():
    result = run_one(streaming)
    assert (result.status, rules(result)) == (Status.PASSED, [])
    shapes = {each.probe: each.shape for each in result.outputs if each.name == "y"}
    assert shapes["step=7"] == (1, 4, 5)
    assert shapes["prefill"] == (1, 4, 35)


def test_a_streaming_convolution_that_keeps_the_wrong_end_of_its_buffer_is_found():
    result = judged(streaming, KeepsTheWrongEnd)
    assert result.status is Status.FAILED
    assert "step=1" in wrong_on(result)["rest"]


# --- faults of decoders, each planted in the file


class SwappedKeyAndValue(GrowingCache):
    def forward(self, *inputs):
        logits, key, value = super().forward(*inputs)
        return logits, value, key


class PastAfterPresent(GrowingCache):
    def forward(self, tokens, attention_mask, position_ids, past_key, past_value):
        logits, key, value = super().forward(tokens, attention_mask, position_ids, past_key, past_value)
        new, past = tokens.shape[1], past_key.shape[2]
        order = torch.cat([torch.arange(past, past + new), torch.arange(past)])
        return logits, key[:, :, order], value[:, :, order]


class MaskNotGrown(GrowingCache):
    """Tokens beyond the tenth are masked."""

    def forward(self, tokens, attention_mask, *rest):
        return super().forward(tokens, attention_mask * (torch.arange(attention_mask.shape[1]) < 10), *rest)


class PositionOffByOne(StaticCache):
    def forward(self, tokens, position, *caches):
        return super().forward(tokens, position + 1, *caches)


class CacheNotUpdated(StaticCache):
    def forward(self, tokens, position, key_cache, value_cache):
        logits, _, _ = super().forward(tokens, position, key_cache, value_cache)
        return logits, key_cache + 0, value_cache + 0


class PositionStopsAtSix(StaticCache):
    def forward(self, tokens, position, *caches):
        return super().forward(tokens, position.clamp(max=6), *caches)


@pytest.mark.parametrize(
    ("recipe", "model", "output"),
    [
        (decoder_kv_cache, SwappedKeyAndValue, "present_key"),
        pytest.param(decoder_kv_cache, PastAfterPresent, "present_key", marks=pytest.mark.slow),
        pytest.param(decoder_static_cache, PositionOffByOne, "present_key", marks=pytest.mark.slow),
        (decoder_static_cache, CacheNotUpdated, "present_value"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_fault_of_every_call_is_found_in_the_example_and_in_the_steps(recipe, model, output):
    result = judged(recipe, model)
    assert result.status is Status.FAILED
    assert wrong_on(result)[output][0] == "example"
    assert {"step=1", "step=7"} <= set(wrong_on(result)[output])


@pytest.mark.parametrize(
    ("recipe", "model", "first"),
    [
        # The largest size that is tried for a single call is 3 + 7.
        (
            dataclasses.replace(decoder_kv_cache, dynamic_sizes={"batch": (3,), "new": (3,), "past": (7,)}),
            MaskNotGrown,
            5,
        ),
        # Without the declaration, positions up to the number of embeddings are tried.
        (
            dataclasses.replace(decoder_static_cache, domains={"position": onnx_ci.integers(0, 6)}),
            PositionStopsAtSix,
            2,
        ),
    ],
    ids=["mask", "position"],
)
def test_a_fault_that_no_single_call_shows_is_found_and_named_with_its_step(recipe, model, first):
    file = file_of(recipe, model)
    alone = onnx_ci.verify(file, without_steps(recipe), opset=13)
    assert (alone.status, rules(alone)) == (Status.PASSED, [])
    in_steps = onnx_ci.verify(file, recipe, opset=13)
    assert in_steps.status is Status.FAILED
    named = wrong_on(in_steps)["logits"]
    assert named[0] == f"step={first}"
    assert not {f"step={step}" for step in range(1, first)} & set(named)
    assert f"on 'step={first}'" in next(each.message for each in in_steps.findings if each.output == "logits")


class WarmsUp(nn.Module):
    """Subtracts its state from the third call on. Tracing keeps the branch of the first call."""

    def forward(self, x, calls, state):
        y = x - state if int(calls) >= 2 else x
        return y, calls + 1, 0.5 * (state + x)


def test_a_branch_that_tracing_froze_is_found_in_the_step_that_takes_the_other():
    names = {"input_names": ["x", "calls", "state"], "output_names": ["y", "calls_after", "state_after"]}
    feedback = {"calls_after": "calls", "state_after": "state"}

    def build():
        return WarmsUp(), (torch.randn(3), torch.tensor(0), torch.randn(3))

    result = run_one(onnx_ci.recipe(name="net", **names, feedback=feedback, steps=4, allow="untaken-branch")(build))
    assert rules(result) == ["baked-value"]
    assert wrong_on(result) == {"y": ("step=2", "step=3")}
    alone = run_one(onnx_ci.recipe(name="net", **names)(build))
    assert rules(alone) == ["baked-value"]
    ((probe,),) = wrong_on(alone).values()
    assert probe.startswith("branch at test_runtime_run.py:")


def test_the_file_is_fed_its_own_outputs_and_not_those_of_the_model():
    """The state is off by less than the limit in each call, and by more than it once the calls have added it up."""

    @onnx_ci.recipe(input_names=["x", "sum"], output_names=["sum_after"], feedback={"sum_after": "sum"}, steps=16)
    def total():
        return Total(), (torch.rand(4, dtype=torch.float32), torch.ones(4))

    class Total(nn.Module):
        def forward(self, x, sum):
            return sum + 1e-3 * x

    model = onnx.load(onnx_ci.export(total, opset=13).path)
    (output,) = model.graph.output
    step = helper.make_node("Constant", [], ["tiny"], value=helper.make_tensor("tiny", onnx.TensorProto.FLOAT, [1], [4e-7]))
    add = helper.make_node("Add", ["exact", "tiny"], [output.name])
    model.graph.node[-1].output[0] = "exact"
    model.graph.node.extend([step, add])
    result = onnx_ci.verify(model.SerializeToString(), total, opset=13, max_drift=8)
    drifts = {each.probe: each.drift for each in result.outputs}
    assert rules(result) == ["numeric-drift"]
    assert drifts["example"] < 8 < drifts["step=15"]
    assert drifts["step=1"] < drifts["step=4"] < drifts["step=15"]


def test_a_file_that_fails_in_one_step_is_reported_for_that_step_only():
    class Table(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.table = nn.Parameter(torch.randn(size))

        def forward(self, position):
            return self.table[position], position + 1

    def recipe(size):
        return onnx_ci.recipe(name="table", input_names=["i"], output_names=["y", "next"], feedback={"next": "i"})(
            lambda: (Table(size), (torch.tensor([2]),))
        )

    result = onnx_ci.verify(onnx_ci.export(recipe(6), opset=13), recipe(6), opset=13)
    assert rules(result) == ["recipe-error"]
    result = onnx_ci.verify(onnx_ci.export(recipe(6), opset=13), recipe(32), opset=13)
    failing = [each for each in result.findings if "fails on" in each.message]
    assert [each.probe for each in failing] == ["step=4"]


# --- imprecise


def net():
    return nn.Linear(4, 4), (torch.randn(3, 4),)


def slightly_wrong(model):
    """The file with weights that are a little too large, so that it is about as far off on every input."""
    (weight,) = (each for each in model.graph.initializer if len(each.dims) == 2)
    larger = onnx.numpy_helper.to_array(weight) * (1 + 2**-18)
    weight.CopyFrom(onnx.numpy_helper.from_array(larger, weight.name))
    return model.SerializeToString()


def test_a_file_that_is_imprecise_on_all_inputs_has_no_frozen_value():
    names = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "b"}, "y": {0: "b"}}}
    recipe = onnx_ci.recipe(net, seed=1, **names)
    file = slightly_wrong(onnx.load(onnx_ci.export(recipe, opset=13).path))
    result = onnx_ci.verify(file, recipe, opset=13, max_drift=45)
    drifts = {each.probe: each.drift for each in result.outputs}
    assert drifts["example"] < 45 < drifts["random values"] < 2 * drifts["example"]
    assert (rules(result), wrong_on(result)["y"]) == (["weight-mismatch", "numeric-drift"], ("random values",))
