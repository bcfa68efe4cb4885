"""What tensors hold: their largest values, whether all are finite, and parts of large ones."""

from __future__ import annotations

import math

import pytest
import torch

from onnx_ci.pipeline.model import tensors
from onnx_ci.pipeline.model.tensors import blocks, is_all_finite, largest_value

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn]


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_largest_value_is_the_largest_finite_one(dtype):
    values = torch.tensor([1.0, -4.0, 0.5])
    assert (largest_value(values.to(dtype)), is_all_finite(values.to(dtype))) == (4.0, True)
    with_nan = torch.cat([values, torch.tensor([math.nan])]).to(dtype)
    assert (largest_value(with_nan), is_all_finite(with_nan)) == (4.0, False)
    assert (largest_value(values[:0].to(dtype)), is_all_finite(values[:0].to(dtype))) == (0.0, True)


def test_infinity_is_no_value():
    assert largest_value(torch.tensor([-math.inf, 2.0])) == 2.0
    assert not is_all_finite(torch.tensor([-math.inf, 2.0]))
    assert largest_value(torch.tensor([math.nan, math.inf])) == 0.0


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64])
def test_integers_and_booleans_are_finite(dtype):
    assert (largest_value(torch.tensor([0, 1]).to(dtype)), is_all_finite(torch.tensor([0, 1]).to(dtype))) == (1.0, True)
    assert largest_value(torch.tensor([-(2**63), 1])) == 2.0**63


@pytest.mark.parametrize("shape", [(), (0,), (5,), (120,), (3, 40), (40, 3), (2, 5, 12), (2, 2, 2, 2, 8)])
def test_blocks_have_each_element_once_and_say_where_they_begin(monkeypatch, shape):
    monkeypatch.setattr(tensors, "BLOCK", 16)
    whole = torch.arange(math.prod(shape)).reshape(shape)
    found = torch.full(shape, -1)
    for start, (part, twice) in blocks((whole, 2 * whole)):
        place = tuple(slice(first, first + size) for first, size in zip(start, part.shape, strict=True))
        assert torch.equal(twice, 2 * part)
        assert bool((found[place] == -1).all())
        found[place] = part
    assert torch.equal(found, whole)
