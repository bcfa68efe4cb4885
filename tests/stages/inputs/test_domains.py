"""Declared domains of inputs: what is drawn and what stands at their borders belongs to them, and nothing else does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import onnx_ci
from onnx_ci.stages.inputs.domain_values import contains, draw, edges
from onnx_ci.stages.inputs.domains import InputDomains

SIZES = {"frames": 7}

numbers = st.floats(-1000, 1000)
shapes = st.lists(st.integers(1, 6), max_size=3)
rows = st.lists(st.integers(1, 6), min_size=1, max_size=3)
floats = st.sampled_from([torch.float16, torch.float32, torch.float64])
integers = st.sampled_from([torch.int32, torch.int64])
masks = st.sampled_from([torch.bool, torch.int64, torch.float32])


@st.composite
def domains(draw_from):
    """A domain, and a tensor of a type and shape that an input with this domain can have."""

    def of(make, dtypes, shapes, *arguments, **keywords):
        return st.tuples(st.builds(make, *arguments, **keywords), dtypes, shapes)

    low, high = sorted(draw_from(st.tuples(st.integers(-50, 50), st.integers(-50, 50)).filter(lambda pair: pair[0] != pair[1])))
    width = draw_from(st.integers(1, 1000))
    domain, dtype, shape = draw_from(
        st.one_of(
            of(onnx_ci.floats, floats, shapes, st.just(low / 10), st.just(high / 10)),
            of(onnx_ci.integers, integers, shapes, st.just(low), st.just(high), ascending=st.booleans()),
            of(onnx_ci.one_of, floats, shapes, numbers, numbers, numbers),
            of(onnx_ci.lengths, integers, rows, of=st.just("frames")),
            of(onnx_ci.permutation, integers, rows),
            of(onnx_ci.one_hot, masks, rows),
            of(
                onnx_ci.mask,
                masks,
                rows,
                min_true=st.integers(0, 2),
                min_false=st.just(0),
                starts_with=st.sampled_from([None, True]),
            ),
            of(
                onnx_ci.boxes,
                st.just(torch.float32),
                rows.map(lambda shape: [*shape[:-1], 4]),
                st.sampled_from(["xyxy", "xywh", "cxcywh"]),
                within=st.just((width, 480.0)),
            ),
        )
    )
    return domain, torch.zeros(shape, dtype=dtype)


@settings(derandomize=True, database=None, deadline=None, max_examples=300)
@given(domains(), st.integers(0, 2**32))
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
