"""Declared domains of inputs: what is drawn and what stands at their borders belongs to them, and nothing else does."""

from __future__ import annotations

import pytest
import torch

import onnx_ci
from onnx_ci.stages.inputs.domains import InputDomains, contains, draw, edges

SIZES = {"frames": 7}
DOMAINS = {
    "floats": (onnx_ci.floats(-2, 3), torch.float32, (2, 5)),
    "float16": (onnx_ci.floats(0.1, 0.7), torch.float16, (2, 5)),
    "integers": (onnx_ci.integers(3, 9), torch.int64, (2, 5)),
    "one integer": (onnx_ci.integers(4, 5), torch.int32, (2, 5)),
    "ascending": (onnx_ci.integers(0, 9, ascending=True), torch.int64, (2, 5)),
    "number": (onnx_ci.integers(0, 9, ascending=True), torch.int64, ()),
    "mask": (onnx_ci.mask(min_true=2), torch.bool, (4, 6)),
    "mask of integers": (onnx_ci.mask(), torch.int64, (4, 1)),
    "mask of anything": (onnx_ci.mask(min_true=0), torch.float32, (4, 6)),
    "one of": (onnx_ci.one_of(0.5, 2, 8), torch.float32, (3, 2)),
    "lengths": (onnx_ci.lengths(of="frames"), torch.int64, (4,)),
    "one length": (onnx_ci.lengths(of="frames"), torch.int64, (1,)),
    "permutation": (onnx_ci.permutation(), torch.int64, (3, 6)),
    "one hot": (onnx_ci.one_hot(), torch.float32, (3, 6)),
    "corners": (onnx_ci.boxes("xyxy", within=(640, 480)), torch.float32, (3, 4)),
    "corner and size": (onnx_ci.boxes("xywh"), torch.float32, (2, 3, 4)),
    "centre and size": (onnx_ci.boxes("cxcywh", within=(3, 2)), torch.float32, (3, 4)),
}


@pytest.mark.parametrize("name", DOMAINS)
def test_what_is_drawn_and_what_stands_at_the_borders_belongs_to_a_domain(name):
    domain, dtype, shape = DOMAINS[name]
    like = torch.zeros(shape, dtype=dtype)
    drawn = [draw(domain, like, SIZES, torch.Generator().manual_seed(seed)).to(dtype) for seed in range(20)]
    borders = [tensor.to(dtype) for _, tensor in edges(domain, like, SIZES)]
    assert borders
    for tensor in (*drawn, *borders):
        assert tensor.shape == like.shape
        assert contains(domain, tensor, SIZES)
    again = draw(domain, like, SIZES, torch.Generator().manual_seed(0)).to(dtype)
    assert torch.equal(again, drawn[0])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("floats", [[-2.001]]),
        ("floats", [[float("nan")]]),
        ("integers", [[9]]),
        ("ascending", [[4, 3]]),
        ("mask", [[True, False, False]]),
        ("mask", [[True, True], [True, False]]),
        ("mask of integers", [[2]]),
        ("one of", [[1.0]]),
        ("lengths", [0, 7]),
        ("lengths", [3, 6]),
        ("permutation", [[0, 0, 2]]),
        ("one hot", [[0.0, 0.0]]),
        ("one hot", [[0.5, 0.5]]),
        ("corners", [[10.0, 0.0, 5.0, 5.0]]),
        ("corners", [[0.0, 0.0, 5.0, 481.0]]),
        ("corner and size", [[0.5, 0.5, 0.6, 0.1]]),
        ("centre and size", [[0.1, 0.1, 0.5, 0.1]]),
        ("corners", [[1.0, 2.0]]),
    ],
)
def test_other_values_do_not(name, values):
    domain, dtype, _ = DOMAINS[name]
    assert not contains(domain, torch.tensor(values, dtype=dtype), SIZES)


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
