"""Declared domains of inputs: what is drawn and what stands at their borders belongs to them, and nothing else does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toolbox.input_domains import SIZES, declared_inputs

import onnx_ci
from onnx_ci.collection.domains import Segments
from onnx_ci.pipeline.domains.domain_values import contains, draw, edges
from onnx_ci.pipeline.domains.input_domains import InputDomains


@settings(max_examples=150)
@given(declared_inputs, st.integers(0, 2**32))
def test_what_is_drawn_and_what_stands_at_the_borders_belongs_to_a_domain(declared, seed):
    domain, like = declared
    drawn, again = (draw(domain, like, SIZES, torch.Generator().manual_seed(seed)).to(like.dtype) for _ in range(2))
    assert torch.equal(drawn, again)
    borders = [tensor.to(like.dtype) for _, tensor in edges(domain, like, SIZES)]
    assert borders
    for tensor in (drawn, *borders):
        assert tensor.shape == like.shape
        assert contains(domain, tensor, SIZES)


@pytest.mark.parametrize(
    ("domain", "values"),
    [
        (onnx_ci.floats(-2, 3), [[-2.001]]),
        (onnx_ci.floats(-2, 3), [[float("nan")]]),
        (onnx_ci.integers(3, 9), [[9]]),
        (onnx_ci.integers(0, 9, ascending=True), [[4, 3]]),
        (onnx_ci.mask(min_true=2), [[True, False, False]]),
        (onnx_ci.mask(min_true=2), [[True, True], [True, False]]),
        (onnx_ci.mask(), [[2]]),
        (onnx_ci.one_of(0.5, 2, 8), [[1.0]]),
        (onnx_ci.lengths(of="frames"), [0, 7]),
        (onnx_ci.lengths(of="frames"), [3, 6]),
        (onnx_ci.permutation(), [[0, 0, 2]]),
        (onnx_ci.one_hot(), [[0.0, 0.0]]),
        (onnx_ci.one_hot(), [[0.5, 0.5]]),
        (onnx_ci.boxes("xyxy", within=(640, 480)), [[10.0, 0.0, 5.0, 5.0]]),
        (onnx_ci.boxes("xyxy", within=(640, 480)), [[0.0, 0.0, 5.0, 481.0]]),
        (onnx_ci.boxes("xywh"), [[0.5, 0.5, 0.6, 0.1]]),
        (onnx_ci.boxes("cxcywh", within=(3, 2)), [[0.1, 0.1, 0.5, 0.1]]),
        (onnx_ci.boxes("xyxy", within=(640, 480)), [[1.0, 2.0]]),
    ],
)
def test_other_values_do_not(domain, values):
    assert not contains(domain, torch.tensor(values), SIZES)


@pytest.mark.parametrize("shape", [(1,), (6,), (2, 9)])
def test_segment_numbers_begin_at_zero_and_leave_out_none(shape):
    like = torch.zeros(shape, dtype=torch.int64)
    drawn = [draw(Segments(), like, SIZES, torch.Generator().manual_seed(seed)) for seed in range(20)]
    assert all(each.shape == like.shape and contains(Segments(), each, SIZES) for each in drawn)
    assert len({int(each.max()) for each in drawn}) > 2 or like.numel() < 2
    assert not any(contains(Segments(), torch.tensor(values), SIZES) for values in ([1, 1], [0, 2], [0, 1, 0]))


def test_every_value_of_a_domain_comes_up():
    generator = torch.Generator().manual_seed(0)

    def seen(domain, like):
        return set(torch.cat([draw(domain, like, SIZES, generator).flatten().double() for _ in range(50)]).tolist())

    assert seen(onnx_ci.integers(3, 6), torch.zeros(9)) == {3, 4, 5}
    assert seen(onnx_ci.one_of(1, 2, 4), torch.zeros(9)) == {1, 2, 4}
    assert seen(onnx_ci.lengths(of="frames"), torch.zeros(9)) == set(range(1, 8))
    assert seen(onnx_ci.mask(), torch.zeros(2, 5)) == {0, 1}


def test_a_function_gets_the_sizes_of_the_inputs_that_it_draws_for():
    sizes = []

    def draws(given, generator):
        sizes.append(dict(given))
        return torch.rand(given["batch"], 3, generator=generator)

    recipe = onnx_ci.recipe(lambda: None, name="net", input_names=["x", "y"], inputs={"x": draws})
    example = (torch.rand(2, 3), torch.rand(2, 5))
    domains = InputDomains(recipe.domains, ("x", "y"), {"x": {0: "batch"}, "y": {0: "batch"}}, example)
    drawn = domains.drawn((torch.zeros(6, 3), torch.zeros(6, 5)), seed=1)
    assert {index: tuple(tensor.shape) for index, tensor in drawn.items()} == {0: (6, 3)}
    assert sizes == [{"batch": 6, "x[0]": 6, "x[1]": 3, "y[0]": 6, "y[1]": 5}]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: onnx_ci.floats(1, 0), "floats takes two finite numbers, the lower one first, not 1 and 0"),
        (lambda: onnx_ci.floats(0, float("inf")), "two finite numbers"),
        (lambda: onnx_ci.integers(0.5, 3), "integers takes two integers"),
        (lambda: onnx_ci.mask(min_true=-1), "min_true must be an integer of at least 0"),
        (lambda: onnx_ci.one_of(), "one_of takes at least one number"),
        (lambda: onnx_ci.boxes("xyhw"), "boxes takes the format xyxy, xywh or cxcywh, not 'xyhw'"),
        (lambda: onnx_ci.boxes("xyxy", within=(0, 1)), "within must be the width and height"),
        (
            lambda: onnx_ci.recipe(name="n", inputs={"x": 3})(lambda: None),
            r"inputs\['x'\] must be a domain, such as onnx_ci.mask",
        ),
    ],
)
def test_a_domain_that_makes_no_sense_is_refused_where_it_is_declared(make, said):
    with pytest.raises(onnx_ci.RecipeError, match=said):
        make()
