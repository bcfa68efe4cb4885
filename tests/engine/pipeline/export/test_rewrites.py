"""What the table of exporters' errors says to write in place of something computes the same, and both exporters take it."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from toolbox.cells import run_one
from torch.distributions import Categorical
from torch.nn.functional import one_hot, scaled_dot_product_attention

import onnx_ci
from onnx_ci.pipeline.export import exporter_errors
from onnx_ci.tools.fix.advised import ADVICE

TABLE = tomllib.loads(Path(exporter_errors.__file__).with_suffix(".toml").read_text(encoding="utf-8"))
REMEDIES = [each["remedy"] for each in TABLE["remedy"]]
REMEDIES_TEXT = " ".join(REMEDIES)
REWRITES = dict(match.groups()[::-1] for remedy in REMEDIES if (match := ADVICE.search(remedy)))

SAID = {
    "torch.stack(values)[torch.tensor(x.shape[1])]": lambda x: torch.arange(30.0).reshape(30, 1)[torch.tensor(x.shape[1])],
    "torch.while_loop(condition, step, (x,))[0]": lambda x: torch.while_loop(
        lambda x: x.abs().max() > 1, lambda x: (x / 2,), (x,)
    )[0],
    "torch._higher_order_ops.scan(step, first, x, dim=1), where step(state, x[:, i]) returns (state, state.clone())": (
        lambda x: _last_and_all(*torch._higher_order_ops.scan(_step, x.new_zeros(x.shape[0]), x, dim=1))
    ),
    "torch.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, step(x)), (torch.zeros_like(n), x))[1]": lambda x: (
        torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x / 2), (torch.zeros((), dtype=torch.int64), x))[1]
    ),
    "torch.where(mask, x, 0).sum(1) / n": lambda x: torch.where(_mask_of(x), x, 0).sum(1) / torch.tensor([1, 3, 5]),
    "torch.where(mask[..., None], x, 0).sum(1) / n[:, None]": lambda x: (
        torch.where(_mask_of(x)[..., None], x[..., None], 0).sum(1) / torch.tensor([1, 3, 5])[:, None]
    ),
    "m(x.shape[-2]) @ x @ m(x.shape[-1]).T": lambda x: averages(x.shape[-2]) @ x @ averages(x.shape[-1]).T,
    "w * (m / torch.linalg.vector_norm(w, dim=-1, keepdim=True)).clamp(max=1)": lambda x: (
        x * (1.5 / torch.linalg.vector_norm(x, dim=-1, keepdim=True)).clamp(max=1)
    ),
    "torch.stack([torch.tensor(n) for n in (h, w)])": lambda x: (
        x.sum() / torch.stack([torch.tensor(n) for n in x.shape]).float()
    ),
    "y[torch.arange(y.shape[0]), lengths - 1]": lambda x: x[torch.arange(x.shape[0]), torch.tensor([1, 3, 5]) - 1],
    "torch.div(x, w, rounding_mode='floor') % 2 == 1": lambda x: torch.div(x.abs().long(), 2, rounding_mode="floor") % 2 == 1,
    "torch.tensor(x.shape[1]).float().sqrt(). With .long(), slices": lambda x: x[
        :, : torch.tensor(x.shape[1]).float().sqrt().long()
    ],
    "F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]": lambda x: scaled_dot_product_attention(
        *[x.T[None, None]] * 3
    )[:, 0].transpose(1, 2),
    "F.one_hot(x, 10)": lambda x: one_hot(x.abs().long(), 10),
    "x.topk(torch.tensor(x.shape[0]).clamp(max=3))": lambda x: _of_selected(x).topk(
        torch.tensor(_of_selected(x).shape[0]).clamp(max=3)
    )[0],
    "x[:3] takes fewer": lambda x: _of_selected(x)[:3],
    "torch.where(mask.any(), torch.where(mask[:, None], x, 0).sum(0) / mask.sum(), y)": lambda x: torch.where(
        (x[:, 0] > 0).any(), torch.where((x[:, 0] > 0)[:, None], x, 0).sum(0) / (x[:, 0] > 0).sum(), x[0]
    ),
    "torch.where(mask[:, None], x, -torch.inf).amax(0)": lambda x: torch.where((x[:, 0] > 0)[:, None], x, -torch.inf).amax(0),
    "(torch.tensor(n).double() * 0.75).long()": lambda x: x.topk((torch.tensor(x.shape[1]).double() * 0.75).long(), 1)[0],
    "(torch.tensor(n).double() * 0.75).round().long()": lambda x: x[
        :, : (torch.tensor(x.shape[1]).double() * 0.75).round().long()
    ],
    "torch.where(hit, start.scatter_reduce(0, index, y, 'amax'), x)": lambda x: _reduced(x),
    "x[..., : k * w].unflatten(-1, (k, w))": lambda x: (
        x[..., : x.shape[-1] // 2 * 2].unflatten(-1, (x.shape[-1] // 2, 2)).sum(-1)
    ),
    "torch.where(mask, x, 0).sum(1) is x[i, :n[i]].sum()": lambda x: torch.where(_mask_of(x), x, 0).sum(1),
    "torch.tensor(x.shape[1]).float().log()": lambda x: x[:, : (2 * torch.tensor(x.shape[1]).float().log()).long()],
    "torch.where(mask, x, -torch.inf).softmax(1)": lambda x: torch.where(_mask_of(x), x, -torch.inf).softmax(1),
    "torch.sin(torch.pi * torch.arange(n) / (n - 1)) ** 2": lambda x: (
        x * torch.sin(torch.pi * torch.arange(x.shape[1]) / (x.shape[1] - 1)) ** 2
    ),
    "Categorical(logits=x, validate_args=False)": lambda x: Categorical(logits=x, validate_args=False).entropy(),
    "torch.stack([d, -b, -c, a], -1).unflatten(-1, (2, 2)) / (a * d - b * c)[..., None, None]": lambda x: _inverse(x),
    "torch.stack([(a + d) / 2 - r, (a + d) / 2 + r], -1) with r = (((a - d) / 2) ** 2 + b * b).sqrt()": lambda x: _eigenvalues(
        x
    ),
    "(x[:, None] == y).any(1)": lambda x: (x[0].round()[:, None] == torch.tensor([1.0, 2.0])).any(1),
    "(x[:, None] == y).sum(1)": lambda x: (x[0].round()[:, None] == torch.tensor([1.0, 2.0])).sum(1),
    "zeros.scatter_add(0, index, x) / zeros.scatter_add(0, index, torch.ones_like(x)).clamp(min=1)": lambda x: _mean_by(x),
}
"""Code that remedies show, with a model of it; some of it only dynamo takes."""


def _mask_of(x):
    return torch.arange(x.shape[1]) < torch.tensor([1, 3, 5])[:, None]


def _of_selected(x):
    return x[x > 0.5]


def _step(state, column):
    state = 0.5 * state + column
    return state, state.clone()


def _last_and_all(last, states):
    return torch.cat([last[:, None], states], 1)


def _reduced(x):
    index, y = torch.tensor([0, 0, 2])[:, None].expand_as(x), 2 * x
    hit, start = torch.zeros_like(x).scatter_add(0, index, torch.ones_like(y)) > 0, torch.full_like(x, -torch.inf)
    return torch.where(hit, start.scatter_reduce(0, index, y, "amax"), x)


def test_what_is_not_reduced_is_kept():
    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    index = torch.tensor([0, 0, 2])[:, None].expand_as(x)
    torch.testing.assert_close(_reduced(x), x.scatter_reduce(0, index, 2 * x, "amax", include_self=False))


def _inverse(x):
    a, b, c, d = x, x.sin(), x.cos() + 2, 2 * x - 1
    return torch.stack([d, -b, -c, a], -1).unflatten(-1, (2, 2)) / (a * d - b * c)[..., None, None]


def _eigenvalues(x):
    a, b, d = x, x.sin(), 2 * x - 1
    r = (((a - d) / 2) ** 2 + b * b).sqrt()
    return torch.stack([(a + d) / 2 - r, (a + d) / 2 + r], -1)


def test_matrices_of_two_rows_have_these_inverses_and_eigenvalues():
    x = torch.linspace(-2, 2, 7)
    a, b, c, d = x, x.sin(), x.cos() + 2, 2 * x - 1
    torch.testing.assert_close(_inverse(x), torch.linalg.inv(torch.stack([a, b, c, d], -1).unflatten(-1, (2, 2))))
    torch.testing.assert_close(_eigenvalues(x), torch.linalg.eigvalsh(torch.stack([a, b, b, d], -1).unflatten(-1, (2, 2))))


def _mean_by(x):
    index, zeros = torch.tensor([0, 0, 2])[:, None].expand_as(x), torch.zeros_like(x)
    return zeros.scatter_add(0, index, x) / zeros.scatter_add(0, index, torch.ones_like(x)).clamp(min=1)


def names(columns=8):
    """What the names in the table's code stand for."""
    generator = torch.Generator().manual_seed(1)
    x, y = (2 * torch.randn(3, columns, generator=generator) for _ in range(2))
    return {
        "x": x, "y": y, "s": x.round().sort(1).values, "index": torch.tensor([0, 0, 2]), "lengths": torch.tensor([1, 2]),
        "a": torch.arange(-4, columns - 4), "b": torch.full((columns,), 3), "mask": x > 0,
    }  # fmt: skip


K = 3


def averages(n):
    """The matrix that makes K means of n columns, as the table says."""
    return inside(n) / inside(n).sum(1, keepdim=True)


def inside(n):
    """Which of n columns each of K means is of."""
    i, j = torch.arange(K)[:, None], torch.arange(n)
    return (j >= i * n // K) & (j < ((i + 1) * n + K - 1) // K)


class Computes(torch.nn.Module):
    def __init__(self, code):
        super().__init__()
        self.code = code

    def forward(self, x, y, s, index, lengths, a, b, mask):
        if not isinstance(self.code, str):
            return self.code(x)
        index = torch.tensor([0, 1, 1]) if "new_zeros" in self.code else index  # the segments of the lengths
        of_size = {"n": x.shape[-1], "low": -1.0, "high": 1.0, "w": x.T @ x, "m": averages, "inside": inside, "k": K}
        named = {**of_size, "x": x, "y": y, "s": s, "index": index, "a": a, "b": b, "lengths": lengths, "mask": mask}
        return eval(self.code, {"torch": torch}, named)


def run(path, values):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {each.name: values[each.name].numpy() for each in session.get_inputs()})[0]


def check(code, exporter, path, expected=None):
    values, model = names(), Computes(code).eval()
    axes = {name: {tensor.dim() - 1: "n"} for name, tensor in values.items() if name not in ("index", "lengths")}
    options = {"dynamo": True, "opset_version": 20} if exporter == "dynamo" else {"dynamo": False, "opset_version": 17}
    shapes = {name: dict.fromkeys(axes.get(name, ()), torch.export.Dim.DYNAMIC) for name in values}
    how = {"dynamic_shapes": shapes} if exporter == "dynamo" else {"dynamic_axes": axes, "input_names": [*values]}
    torch.onnx.export(model, tuple(values.values()), path, **options, **how)
    for columns in (8, 5, 11):
        values = names(columns)
        wanted = model(*values.values()) if expected is None else Computes(expected)(*values.values())
        np.testing.assert_allclose(run(path, values), wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_the_table_has_rewrites():
    assert len(REWRITES) >= 14
    assert "x.kthvalue(3, -1).values" in REWRITES


@pytest.mark.parametrize("code", REWRITES)
@pytest.mark.parametrize("exporter", ["torchscript", pytest.param("dynamo", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore")
def test_what_to_write_computes_the_same_in_the_file(code, exporter, tmp_path):
    check(REWRITES[code], exporter, tmp_path / "model.onnx", expected=code)


@pytest.mark.parametrize("said", SAID)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_code_in_remedies_can_be_exported(said, tmp_path):
    remedies = [*REMEDIES, *exporter_errors.REMEDIES.values()]
    assert any(said in remedy for remedy in remedies), said
    check(SAID[said], "dynamo", tmp_path / "model.onnx")
    if "torch._higher_order_ops" not in said and "while_loop" not in said:
        check(SAID[said], "torchscript", tmp_path / "other.onnx")


def turned(x):
    re, im = x.unbind(-1)
    t, r = im.detach(), re.detach().abs()
    return torch.stack([re * t.cos() - im * t.sin(), re * t.sin() + im * t.cos()], -1) * r[..., None]


def projected(gates: torch.Tensor, weight_hh_l0: torch.Tensor, weight_hr_l0: torch.Tensor):
    h, c = torch.zeros([gates.size(0), weight_hr_l0.size(0)]), torch.zeros([gates.size(0), weight_hr_l0.size(1)])
    steps = torch.zeros([gates.size(0), 0, weight_hr_l0.size(0)])
    for t in range(gates.size(1)):
        i, f, g, o = (gates[:, t] + h @ weight_hh_l0.T).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = (o.sigmoid() * c.tanh()) @ weight_hr_l0.T
        steps = torch.cat([steps, h[:, None]], 1)
    return steps


class Projected(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.steps = torch.nn.LSTM(2, 3, proj_size=2, batch_first=True), torch.jit.script(projected)

    def forward(self, x):
        of = self.lstm
        return self.steps(x @ of.weight_ih_l0.T + of.bias_ih_l0 + of.bias_hh_l0, of.weight_hh_l0, of.weight_hr_l0)


@pytest.mark.filterwarnings("ignore")
def test_complex_numbers_and_projections_are_computed_as_the_remedies_say(tmp_path):
    x, other, model = torch.randn(3, 4, 2), torch.randn(2, 7, 2), Projected().eval()
    axes = {"x": {0: "rows", 1: "steps"}, "y": {0: "rows", 1: "steps"}}
    said = REMEDIES_TEXT
    for part in (
        "torch.stack([re * t.cos() - im * t.sin(), re * t.sin() + im * t.cos()], -1) * r[..., None]",
        "c = f.sigmoid() * c + i.sigmoid() * g.tanh()",
        "h = (o.sigmoid() * c.tanh()) @ weight_hr_l0.T",
    ):
        assert part in said
    expected = torch.view_as_real(torch.view_as_complex(x) * torch.polar(x[..., 0].abs(), x[..., 1]))
    torch.testing.assert_close(turned(x), expected)
    torch.testing.assert_close(model(x), model.lstm(x)[0])
    names = {"input_names": ["x"], "output_names": ["y"]}
    torch.onnx.export(model, (x,), tmp_path / "model.onnx", dynamo=False, opset_version=17, dynamic_axes=axes, **names)
    np.testing.assert_allclose(run(tmp_path / "model.onnx", {"x": other}), model.lstm(other)[0].detach(), rtol=1e-4, atol=1e-5)


class Model(torch.nn.Module):
    def __init__(self, forward, layer=None):
        super().__init__()
        self.layer, self.does = layer or torch.nn.Linear(4, 4), forward

    def forward(self, x, n):
        return self.does(self.layer, x, n)


def refuses(layer, x, n):
    if not bool((x.abs() <= 300).all()):
        raise ValueError
    return layer(x) + n.sum()


def repeats(layer, x, n):
    for _ in range(int(n[0])):
        x = layer(x)
    return x


def selects(layer, x, n):
    kept = layer(x)[x > 0.5]
    if len(kept) == 0:
        return x + n.sum()
    return x * kept.mean() + n.sum()


def goes_over_rows(layer, x, n):
    return layer(torch.stack([row[:last].mean().expand(4) for row, last in zip(x, n.tolist(), strict=True)]))


def rounds(layer, x, n):
    return layer(x)[:, : int(math.sqrt(x.shape[0]))] + n.sum()


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        (lambda: Model(refuses), "Leave the check to what calls the model"),
        (lambda: Model(selects), "The mean of the rows x[mask], or y if there are none, is torch.where(mask.any(), "),
        pytest.param(lambda: Model(repeats), "torch.while_loop(condition, step, (x,))", marks=pytest.mark.slow),
        pytest.param(lambda: Model(goes_over_rows), "compute for all rows at once", marks=pytest.mark.slow),
        pytest.param(lambda: Model(rounds), "Compute with a tensor what a function of math computes", marks=pytest.mark.slow),
        pytest.param(
            lambda: Model(lambda layer, x, n: layer(x) + n.sum(), torch.jit.script(torch.nn.Linear(4, 4))),
            "keep the module itself in the model instead of torch.jit.script(module)",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["refuses", "selects", "repeats", "rows", "rounds", "scripted"],
)
@pytest.mark.filterwarnings("ignore")
def test_what_dynamo_refuses_has_a_remedy_of_its_kind(model, remedy):
    axes = {"input_names": ["x", "n"], "output_names": ["y"], "dynamic_axes": {"x": {0: "b"}, "n": {0: "b"}, "y": {0: "b"}}}
    made = onnx_ci.recipe(
        lambda: (model(), (torch.linspace(-1, 1, 12).reshape(3, 4), torch.tensor([1, 2, 3]))),
        name="net",
        exporter="dynamo",
        **axes,
    )
    found = run_one(made, opsets="20", isolation="none", cache="off", locate="false").findings
    assert any(remedy in each.remedy for each in found), [each.remedy for each in found]
