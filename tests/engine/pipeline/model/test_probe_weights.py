"""Probe weights and what they make visible."""

from __future__ import annotations

import copy

import pytest
import torch
from toolbox.cells import rules, run_one, task
from torch import nn

import onnx_ci
from onnx_ci.pipeline.model.call import Call
from onnx_ci.pipeline.model.probe_weights import with_probe_weights
from onnx_ci.pipeline.prepare.observability import observe
from onnx_ci.pipeline.prepare.prepare import Weights, prepare


def call_of(model, *args):
    return Call(model=model.eval(), args=args, kwargs={})


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.scale = nn.Parameter(torch.full((4,), 1e-6))
        self.temperature = nn.Parameter(torch.tensor(2.0))
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        nn.init.zeros_(self.head.weight)
        self.register_buffer("frozen", torch.ones(4))
        self.register_buffer("table", torch.arange(4))

    def forward(self, x):
        y = self.norm(self.conv(x)).mean((2, 3)) * self.frozen
        return self.head(y * self.scale / self.temperature) + self.embed(self.table).sum(1).repeat(7)[:7]


def test_probe_weights_keep_what_a_model_relies_on():
    torch.manual_seed(0)
    model = Everything()
    before = copy.deepcopy(model.state_dict())
    probed = with_probe_weights(call_of(model, torch.randn(2, 3, 8, 8))).model
    assert probed.head.weight is probed.embed.weight
    assert (probed.norm.running_var > 0).all()
    assert torch.equal(probed.frozen, before["frozen"])
    assert torch.equal(probed.table, before["table"])
    assert torch.equal(probed.temperature, before["temperature"])
    assert (probed.scale > 0.1).all()
    assert len(probed.embed.weight.unique()) > 20
    assert len(probed.norm.weight.unique()) == 4
    ratio = probed.conv.weight / before["conv.weight"]
    assert torch.allclose(ratio, ratio.flatten()[0].expand_as(ratio))  # what was random already is only scaled


def test_activations_stay_near_one():
    torch.manual_seed(0)
    layers = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.ReLU())]
    x = torch.randn(32, 64)
    plain = nn.Sequential(*layers)
    probed = with_probe_weights(call_of(copy.deepcopy(plain), x)).model
    with torch.no_grad():
        assert plain(x).std() < 0.05
        assert 0.3 < probed(x).std() < 3


@pytest.mark.parametrize("with_bias", [True, False])
def test_tiny_weights_do_not_vanish_beside_the_bias(with_bias):
    torch.manual_seed(0)
    embedding, layer, head = nn.Embedding(20, 4), nn.Linear(6, 16, bias=with_bias), nn.Linear(16, 1, bias=False)
    for module in (embedding, layer, head):
        nn.init.normal_(module.weight, std=1e-4)
    if with_bias:
        nn.init.zeros_(layer.bias)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.layer, self.head = embedding, layer, head

        def forward(self, user, x):
            return self.head(self.layer(torch.cat([self.embedding(user), x], 1)).relu())

    user, x = torch.randint(0, 20, (8,)), torch.rand(8, 2)
    probed = with_probe_weights(call_of(Net(), user, x)).model
    with torch.no_grad():
        outputs = probed(user, x)
        assert (probed((user + 1) % 20, x) - outputs).abs().mean() > 0.1
        assert outputs.std() > 0.1


def test_a_bias_is_at_most_as_large_as_what_the_inputs_contribute():
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 32), torch.randn(64, 8)
    nn.init.normal_(layer.weight, std=1e-3)
    nn.init.normal_(layer.bias)
    probed = with_probe_weights(call_of(layer, x)).model
    with torch.no_grad():
        assert 0.5 < (x @ probed.weight.T).std() < 2
        assert 0.25 < probed.bias.std() < 2


class Gated(nn.Module):
    """A sigmoid over features that are the same everywhere but for a little, as those of object queries are."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)
        self.head = nn.Linear(32, 1, bias=bias)

    def forward(self, x):
        x = x.mean(1, keepdim=True) + 0.05 * x
        return torch.sigmoid(self.head(self.second(self.first(x).relu()).relu()))


@pytest.mark.parametrize(("seed", "bias"), [(0, True), (1, False), (2, True)])
def test_a_sigmoid_is_not_saturated(seed, bias):
    torch.manual_seed(seed)
    probed = with_probe_weights(call_of(Gated(bias=bias), torch.rand(2, 20, 32))).model
    with torch.no_grad():
        gates = probed(torch.rand(2, 20, 32))
    assert gates.min() > 0.02
    assert gates.max() < 0.98
    result = run_one(onnx_ci.recipe(name="net", seed=seed)(lambda: (Gated(bias=bias), (torch.rand(2, 20, 32),))))
    assert (result.status, rules(result)) == (onnx_ci.Status.PASSED, [])


def test_outputs_that_hardly_differ_are_not_all_rounding():
    torch.manual_seed(0)
    x = 1 + 1e-6 * torch.randn(8, 16)
    head = with_probe_weights(call_of(nn.Linear(16, 1), x)).model
    with torch.no_grad():
        exact, own = copy.deepcopy(head).double()(x.double()), head(x)
    assert (exact - own).abs().max() < 1e-6 * own.abs().max()


def test_the_recipes_own_model_is_never_changed():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = copy.deepcopy(model.state_dict())
    prepared = prepare(task(onnx_ci.recipe(name="net")(lambda: (copy.deepcopy(model), (torch.randn(3, 4),)))), Weights.PROBE)
    assert all(torch.equal(before[name], model.state_dict()[name]) for name in before)
    assert not torch.equal(prepared.model.fresh().model.state_dict()["1.running_mean"], before["1.running_mean"])


def test_weights_that_make_the_model_fail_are_not_used():
    class Strict(nn.Module):
        def __init__(self):
            super().__init__()
            self.ones = nn.Parameter(torch.ones(4))

        def forward(self, x):
            if not bool((self.ones == 1).all()):
                raise ValueError("ones only")
            return x * self.ones

    assert with_probe_weights(call_of(Strict(), torch.randn(4))) is None
    prepared = prepare(task(onnx_ci.recipe(name="strict")(lambda: (Strict(), (torch.randn(4),)))), Weights.PROBE)
    assert prepared.model.fresh().model.ones.tolist() == [1.0] * 4


def test_observability_names_the_modules_that_cannot_be_seen():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.ReLU(inplace=True))
    observability = observe(call_of(model, torch.randn(3, 4)), [1e-7], [32.0])
    assert (observability.share, observability.hidden) == (1.0, ())
    nn.init.zeros_(model[2].weight)
    observability = observe(call_of(model, torch.randn(3, 4)), [1e-7], [32.0])
    assert observability.hidden == ("0", "1")
    assert observability.share == 0.5


class Hidden(nn.Module):
    """What the layer returns shows only where the mask is zero."""

    def __init__(self):
        super().__init__()
        self.layer, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, mask):
        self.unused(x)
        return (1.0 - mask) * self.layer(x) + x


def test_what_a_mask_of_the_example_hides_is_seen_with_another_mask():
    recipe = onnx_ci.recipe(name="net", input_names=["x", "mask"])(lambda: (Hidden(), (torch.randn(3, 4), torch.ones(3, 4))))
    prepared = prepare(task(recipe), Weights.PROBE)
    assert prepared.observability.visible == ("layer",)
    assert (prepared.observability.hidden, prepared.observability.without_gradient) == (("unused",), ("unused",))
    assert not prepared.hides_modules


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_observability_is_unknown_where_gradients_cannot_tell():
    class Index(nn.Module):
        def forward(self, x):
            return x.argmax(-1)

    assert observe(call_of(Index(), torch.randn(3, 4)), [1.0], [32.0]) is None
    scripted = torch.jit.script(nn.Linear(3, 3))
    assert observe(call_of(scripted, torch.randn(2, 3)), [1e-7], [32.0]) is None
