"""Sketches of tensors: the same for the same tensors on another machine, and others for others."""

from __future__ import annotations

import math

import pytest
import torch

from onnx_ci.baseline.changes import SAME_TENSORS
from onnx_ci.pipeline.model.tensor_sketch import sketch


def drawn(*shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def distance(one, other):
    pairs = zip((one.norm, *one.projections), (other.norm, *other.projections), strict=True)
    return max(abs(a - b) for a, b in pairs) / one.norm


def test_it_counts_and_measures():
    tensors = drawn((40, 30), (7,), ())
    sketched = sketch(tensors)
    assert (sketched.tensors, sketched.values) == (3, 1208)
    assert sketched.norm == pytest.approx(math.sqrt(sum(float((each.double() ** 2).sum()) for each in tensors)), rel=1e-6)
    assert sketch(tensors) == sketched


def test_last_digits_do_not_show():
    tensors = drawn((300, 300), (1000,))
    nudged = [each * (1 + 6e-8 * torch.randn_like(each)) for each in tensors]
    assert not all(map(torch.equal, tensors, nudged))
    assert distance(sketch(tensors), sketch(nudged)) < SAME_TENSORS / 10


@pytest.mark.parametrize("place", [0, 1, 511, 512, 89_999])
def test_a_single_value_shows(place):
    tensors = drawn((300, 300))
    other = [tensors[0].clone()]
    other[0].view(-1)[place] += 0.1
    assert distance(sketch(tensors), sketch(other)) > SAME_TENSORS


def test_order_shape_and_type_show():
    one, two = drawn((8, 512), (8, 512))
    assert distance(sketch([one, two]), sketch([two, one])) > SAME_TENSORS
    layouts = {sketch([each]).layout for each in (one, one.view(512, 8), one.double(), one.half())}
    assert len(layouts) == 4


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([0.0, -math.inf, math.nan]),
        torch.zeros(0),
        torch.tensor(3),
        torch.tensor([True, False]),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(600, dtype=torch.bfloat16),
    ],
)
def test_every_kind_of_tensor_has_one(tensor):
    sketched = sketch([tensor])
    assert all(map(math.isfinite, (sketched.norm, *sketched.projections)))
    assert sketched.values == tensor.numel()


def test_none_at_all():
    assert sketch([]).norm == 0
