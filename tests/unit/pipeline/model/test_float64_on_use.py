"""Weights that are in float64 only while an operator reads them: the results of a whole copy, without its memory."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

from onnx_ci.pipeline.model import copies, float64_on_use
from onnx_ci.pipeline.model.call import Call
from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.float64_on_use import Float64OnUse
from onnx_ci.pipeline.model.operators import Intervention
from onnx_ci.pipeline.model.running import run
from onnx_ci.pipeline.reference.float64 import run_in_float64


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Every model is large, and so is every weight."""
    monkeypatch.setattr(copies, "LARGE", 0)
    monkeypatch.setattr(float64_on_use, "LEAST", 0)


def call_of(model, *args):
    return Call(model=model.eval(), args=args, kwargs={})


def in_float64(call, *, on_use):
    """The outputs, and whether weights are still converted on use."""
    model = Copies(call, lambda: call)
    if not on_use:
        model.convert_at_once()
    outputs, _ = run_in_float64(model, run(model.fresh()), None)
    assert outputs is not None
    return outputs, model.convert_at_once()


def is_converted_on_use(call):
    """Whether the model can run like that; the results are the same in any case."""
    before = {name: tensor.clone() for name, tensor in call.model.state_dict().items()}
    outputs, is_on_use = in_float64(call, on_use=True)
    expected, _ = in_float64(call, on_use=False)
    assert [tensor.dtype for tensor in outputs] == [tensor.dtype for tensor in expected]
    assert all(map(torch.equal, outputs, expected))
    assert all(torch.equal(tensor, before[name]) for name, tensor in call.model.state_dict().items())
    return is_on_use


class Applies(nn.Module):
    """Applies a function to an input, a weight and a buffer, and to nothing else."""

    def __init__(self, function, *shape):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(*shape or (6, 6)))
        self.register_buffer("table", torch.randn(6, 6))

    def forward(self, x):
        return self.function(x, self.weight, self.table)


class Attends(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True, **options)

    def forward(self, x):
        return self.attention(x, x, x)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 6), nn.Linear(6, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words):
        return self.head(self.embedding(words))


class ReadsWeightOfChild(Tied):
    def forward(self, words):
        return nn.functional.linear(self.embedding(words), self.head.weight)


def normalized():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 4))
    return nn.Sequential(layer, nn.LayerNorm(4), nn.PReLU(4))


class Inferring(nn.Module):
    """Runs a module in inference mode, in which operators that consist of others come in one piece."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    @torch.inference_mode()
    def forward(self, *args):
        return self.module(*args)


X, WORDS = torch.linspace(-1, 2, 30).reshape(5, 6), torch.tensor([[0, 3, 8], [5, 3, 1]])
SEQUENCES, IMAGES = torch.linspace(-2, 1, 60).reshape(2, 5, 6), torch.linspace(-1, 1, 192).reshape(1, 3, 8, 8)
LAYER = {"d_model": 6, "nhead": 2, "dim_feedforward": 8, "batch_first": True}


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (lambda: nn.Linear(6, 4), X),
        (lambda: nn.Linear(6, 4).half(), X.half()),
        (lambda: nn.Bilinear(6, 6, 4), (X, X)),
        (lambda: nn.Conv2d(3, 6, 3, groups=3), IMAGES),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GroupNorm(2, 4)), IMAGES),
        (lambda: nn.Embedding(9, 6, padding_idx=3), WORDS),
        (lambda: nn.EmbeddingBag(9, 6), WORDS),
        (lambda: nn.EmbeddingBag(9, 6, mode="sum", padding_idx=3), WORDS.int()),
        (lambda: nn.EmbeddingBag(9, 6, mode="max"), WORDS),
        (lambda: nn.LSTM(6, 4, 2, bidirectional=True, batch_first=True), SEQUENCES),
        (lambda: Inferring(nn.LSTM(6, 4, 2, batch_first=True)), SEQUENCES),
        (lambda: Inferring(nn.GRU(60, 40, batch_first=True)), torch.linspace(-2, 1, 6000).reshape(2, 50, 60)),
        (lambda: Inferring(Attends()), SEQUENCES),
        (lambda: Attends(), SEQUENCES),
        (lambda: Attends(add_bias_kv=True), SEQUENCES),
        (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(**LAYER), 2), SEQUENCES),
        (Tied, WORDS),
        (ReadsWeightOfChild, WORDS),
        (lambda: torch.fx.symbolic_trace(ReadsWeightOfChild()), WORDS),
        (normalized, X),
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4)), X),
    ],
    ids=lambda value: "",
)
def test_modules_compute_what_a_whole_copy_computes(make, x):
    torch.manual_seed(0)
    assert is_converted_on_use(call_of(make(), *(x if isinstance(x, tuple) else (x,))))


FUNCTIONS = {
    "rows": lambda x, weight, table: nn.functional.linear(x, weight[:4]),
    "an element": lambda x, weight, table: x * weight[2, 3] + float(weight[0, 0]),
    "transposed": lambda x, weight, table: x @ weight.t() + (x @ weight.mT.contiguous()),
    "expanded": lambda x, weight, table: torch.bmm(x.expand(3, 5, 6), weight.expand(3, 6, 6)),
    "permuted": lambda x, weight, table: torch.einsum("ij,abj->iab", x, weight.view(2, 3, 6).permute(1, 0, 2)),
    "parts": lambda x, weight, table: torch.cat([x @ each.t() for each in weight.chunk(3)], 1) + sum(weight.unbind()),
    "picked": lambda x, weight, table: table[[0, 2, 2]].sum(0) + x.index_select(1, torch.arange(6)) @ weight,
    "gathered": lambda x, weight, table: weight.gather(1, torch.tensor([[0, 5], [2, 1]])) + x[:2, :2],
    "a cast": lambda x, weight, table: x @ weight.float() + table.float().sum(0),
    "both": lambda x, weight, table: x @ (weight * table.softmax(-1)) + torch.cat([weight, table])[3:8],
    "added to": lambda x, weight, table: x.clone().add_(table[0]).mul_(weight.sum()),
    "returned": lambda x, weight, table: (x, weight, table[1:]),
    "in inference mode": lambda x, weight, table: inferred(x, weight, table),
    "with a gradient": lambda x, weight, table: gradient(x, weight),
    "assigned": lambda x, weight, table: assigned(x, weight),
    "numpy": lambda x, weight, table: x @ torch.from_numpy(weight.detach().numpy()),
    "shared": lambda x, weight, table: x @ torch.from_dlpack(weight.detach()),
    "memory": lambda x, weight, table: x[:, :2] @ weight.as_strided((2, 6), (6, 1), 3),
    "bits": lambda x, weight, table: x * (weight.view(torch.float16)[0, :6] > 0),
    "complex": lambda x, weight, table: x * torch.view_as_complex(table.view(6, 3, 2))[0].abs().sum() + weight[0],
    "branches": lambda x, weight, table: torch.cond(x.sum() > 0, lambda x, w: x @ w, lambda x, w: x - w[0], (x, weight)),
}


@torch.inference_mode()
def inferred(x, weight, table):
    return nn.functional.linear(x, weight.reshape(6, 6)[:2].to(x), weight[0, :2]), table.to(torch.float64).expand_as(table) * 1


def gradient(x, weight):
    with torch.enable_grad():
        return torch.autograd.grad((x @ weight).square().sum(), [weight])[0]


def assigned(x, weight):
    weight.data = weight * 2
    return x @ weight


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_compute_what_they_compute_of_a_whole_copy(function):
    torch.manual_seed(0)
    assert is_converted_on_use(call_of(Applies(function), X))


def test_an_empty_weight_has_nothing_to_convert():
    assert is_converted_on_use(call_of(Applies(lambda x, weight, table: x @ weight, 6, 0), X))


WHOLE = {
    "in place": lambda x, weight, table: x @ weight.mul_(2),
    "a view in place": lambda x, weight, table: (weight[0].zero_(), x @ weight)[1],
    "into it": lambda x, weight, table: x @ torch.mm(weight, weight.clone(), out=table),
    "several in place": lambda x, weight, table: (torch._foreach_mul_([weight, table], 2.0), x @ weight)[1],
    "renormalized": lambda x, weight, table: nn.functional.embedding(torch.tensor([1, 2]), weight, max_norm=1.0),
    "the view of a view in place": lambda x, weight, table: (weight[:4][0].zero_(), x @ weight)[1],
    "a list": lambda x, weight, table: x @ torch.tensor(weight.tolist()).to(x),
}


@pytest.mark.parametrize("function", WHOLE.values(), ids=WHOLE)
def test_what_needs_a_whole_copy_gets_one(function):
    torch.manual_seed(0)
    assert not is_converted_on_use(call_of(Applies(function), X))


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), torch.jit.script(nn.Linear(6, 4))

    def forward(self, x):
        return self.second(self.first(x))


@pytest.mark.filterwarnings("ignore:.*is deprecated", "ignore:The .grad attribute:UserWarning")
def test_scripted_modules_in_a_model():
    torch.manual_seed(0)
    assert is_converted_on_use(call_of(Scripted(), X))


def hooked():
    """A model that is not copied, because its hook has a closure."""
    torch.manual_seed(0)
    layer = nn.Linear(6, 4)
    layer.register_forward_hook(lambda module, args, output: output + layer.bias)
    return call_of(layer, X)


def test_a_model_that_cannot_be_copied_is_converted_at_once():
    model = Copies(hooked(), hooked)
    outputs, _ = run_in_float64(model, run(hooked()), None)
    assert outputs is not None
    assert not model.convert_at_once()


@pytest.mark.parametrize("on_device", ["cpu", "meta"])
def test_only_large_plain_weights_have_placeholders(on_device, monkeypatch):
    monkeypatch.setattr(float64_on_use, "LEAST", 4 * 6 * 6)
    model = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6).double()]).to(on_device)
    names = {id(weight): name for name, weight in model.named_parameters()}
    placeholders = Float64OnUse().placeholders(model.parameters())
    assert [names[key] for key in placeholders] == (["0.weight"] if on_device == "cpu" else [])


class Deep(nn.Module):
    """Layers that are all of one size, used one after another."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(6))
        self.table = nn.Embedding(1000, 32)

    def forward(self, words):
        x = self.table(words)
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return x


class WatchesCasts(Intervention):
    """The memory of all results of casts that are alive at a time."""

    def __init__(self):
        super().__init__()
        self.count, self.most = 0, 0
        self._alive = []

    def run(self, call):
        result = call.run()
        if (
            call.operator is torch.ops.aten._to_copy.default
            and result.is_floating_point()
            and result.nbytes == 8 * result.numel()
        ):
            self.count += 1
            self._alive.append(weakref.ref(result))
            self.most = max(self.most, sum(each().nbytes for each in self._alive if each() is not None))
        return result


def test_no_more_than_one_weight_is_in_float64_at_a_time():
    call = call_of(Deep(), WORDS)
    model = Copies(call, lambda: call)
    model.share()
    with model.in_float64():  # makes the copy, so that what is watched is a run
        pass
    with WatchesCasts() as watched:
        run_in_float64(model, run(call), None)
    assert watched.count == 6  # the layers; the table is never converted
    assert watched.most == 8 * 32 * 32


def test_the_copy_has_no_weights_of_its_own():
    call = call_of(nn.Linear(6, 4), X)
    with Copies(call, lambda: call).in_float64() as copied:
        weight = copied.model.weight
        assert (type(weight), weight.dtype, weight.shape) == (nn.Parameter, torch.float64, (4, 6))
        assert weight.untyped_storage().nbytes() == 8
        with torch.no_grad():
            call.model.weight.fill_(7.0)  # nothing but a test may do that
        assert bool((weight == 7).all())
