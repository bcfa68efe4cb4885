"""What is inferred about inputs that a recipe does not declare: the legal values, as far as names, values and use tell."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import onnx_ci
from onnx_ci.collection.domains import Unchanged
from onnx_ci.pipeline.domains.inferred_domains import inferred_domains
from onnx_ci.pipeline.domains.input_domains import InputDomains
from onnx_ci.pipeline.domains.uses import InputUse

MIN = torch.finfo(torch.float32).min
HOLES = [[1, 1, 0, 1], [1, 0, 0, 1]]
CAUSAL = torch.ones(4, 4).tril()


def inferred(name, tensor, axes=None, **others):
    """The domain of ``tensor``, as a recipe would declare it; ``None`` if nothing is inferred."""
    names, example = [name, *others], [torch.as_tensor(tensor), *others.values()]
    found = inferred_domains(names, example, axes or {}).get(0)
    return None if found is None else str(found.domain) if found.is_drawn else "like the example"


@pytest.mark.parametrize(
    ("name", "tensor", "domain"),
    [
        # a mask shows every token, or its first one, or hides the last
        ("attention_mask", torch.ones(2, 5, dtype=torch.int64), "mask(starts_with=True)"),
        ("attention_mask", torch.ones(2, 5), "mask(starts_with=True)"),
        ("x", torch.tensor(HOLES, dtype=torch.bool), "mask(starts_with=True)"),
        ("x", torch.tensor([[0, 1, 1], [1, 1, 0]]), "mask()"),
        ("labels", torch.tensor([[False, True, True], [True, True, False]]), "mask()"),
        ("causalMask", CAUSAL.bool(), "mask(starts_with=True)"),
        ("mask", CAUSAL.bool().logical_not(), "mask(min_true=0, min_false=1, starts_with=False)"),
        ("key_padding_mask", torch.tensor([[False, False, True]]), "mask(min_true=0, min_false=1, starts_with=False)"),
        ("mask", CAUSAL.log(), "the example's values"),
        ("mask", (1 - CAUSAL) * MIN, "the example's values"),
        # numbers that are 0 and 1 by chance
        ("x", torch.ones(2, 5), None),
        ("x", torch.tensor([[0.0, 1.0], [1.0, 1.0]]), None),
        ("x", torch.tensor([1]), None),
        ("token_type_ids", torch.zeros(2, 5, dtype=torch.int64), "like the example"),
        # one-hot rows, permutations, offsets, boxes
        ("labels", torch.eye(4)[[2, 0, 1]], "one_hot()"),
        ("x", torch.eye(4, dtype=torch.bool), "one_hot()"),
        ("order", torch.tensor([3, 1, 0, 2, 4]), "permutation()"),
        ("positions", torch.arange(6), "like the example"),
        ("offsets", torch.tensor([0, 3, 7]), "integers(0, 8, ascending=True)"),
        ("boxes", torch.tensor([[1.0, 2.0, 30.0, 40.0]]), 'boxes("xyxy", within=(30, 40))'),
        ("boxes", torch.tensor([[0.5, 0.5, 0.2, 0.4], [0.1, 0.1, 0.2, 0.2]]), 'boxes("xywh", within=(1, 1))'),
        ("rois", torch.tensor([[0.0, 1.0, 2.0, 30.0, 40.0]]), "the example's values"),
        # everything else is like the example
        ("pixel_values", torch.rand(1, 3, 8, 8), None),
        ("divisor", torch.tensor([3, 7]), None),
        ("position_ids", torch.tensor([5]), "like the example"),
        ("float8", torch.ones(3).to(torch.float8_e4m3fn), None),
        ("empty", torch.zeros(0, 4), None),
        (None, torch.randn(3), None),
    ],
)
def test_a_domain_is_inferred_from_name_type_and_values(name, tensor, domain):
    assert inferred(name, tensor) == domain


@pytest.mark.parametrize(
    ("name", "values", "domain"),
    [
        ("lengths", [7, 3], 'lengths(of="frames")'),
        ("n", [2, 7], 'lengths(of="frames")'),
        ("input_length", 7, 'lengths(of="frames")'),
        ("n", 7, None),
        ("lengths", [5, 3], "like the example"),
        ("n", [0, 7], None),
    ],
)
def test_lengths_are_those_whose_largest_is_the_size_of_a_dynamic_axis(name, values, domain):
    axes = {"x": {0: "batch", 1: "frames"}}
    assert inferred(name, torch.tensor(values), axes, x=torch.zeros(2, 7, 4)) == domain


def from_use(tensor, use, name="x"):
    found = inferred_domains([name], [torch.as_tensor(tensor)], {}, [use]).get(0)
    return None if found is None else str(found.domain)


def test_what_is_looked_up_in_an_embedding_has_its_size():
    tokens = torch.randint(0, 9, (2, 5))
    assert from_use(tokens, InputUse(vocabulary=30)) == "integers(0, 30)"
    assert from_use(tokens + 30, InputUse(vocabulary=30)) is None  # some of them are something else


@pytest.mark.parametrize(
    ("tensor", "use", "domain"),
    [
        # what could be a mask is an index
        ([0, 0, 0, 1, 1, 1], InputUse(), "mask(starts_with=False)"),
        ([0, 0, 0, 1, 1, 1], InputUse(rows=2), "integers(0, 2, ascending=True)"),
        ([0, 0, 0, 1, 1, 1], InputUse(rows=2, grows=True), "segment numbers"),
        ([0, 1, 0, 1], InputUse(rows=2, grows=True), "integers(0, 4)"),
        ([0, 0, 2, 2], InputUse(rows=3, grows=True), "integers(0, 6, ascending=True)"),
        ([[4], [2]], InputUse(rows=7), "integers(0, 7)"),
        # where the order of equal indices matters, none are equal in the example
        ([3, 0, 2], InputUse(rows=7, overwrites=True), None),
        ([3, 0, 3], InputUse(rows=7, overwrites=True), "integers(0, 7)"),
        # counted from the end
        ([-1, 0, 0], InputUse(rows=7), None),
    ],
)
def test_an_index_is_no_mask_and_chooses_among_the_rows_that_there_are(tensor, use, domain):
    assert from_use(tensor, use) == domain


def test_what_is_named_a_mask_is_one_whatever_it_chooses():
    assert from_use([0, 1, 1], InputUse(rows=2), "mask") == "mask(starts_with=False)"


WORDS = ["attention_mask", "key_padding_mask", "boxes", "lengths", "tokens", "offsets", "labels", "x", None]


@st.composite
def tensors(choose):
    shape = choose(st.lists(st.integers(1, 5), max_size=3))
    dtype = choose(st.sampled_from([torch.bool, torch.int32, torch.int64, torch.float32]))
    largest = choose(st.sampled_from([1, 2, 9]))
    values = st.lists(st.integers(0, largest), min_size=math.prod(shape), max_size=math.prod(shape))
    return torch.tensor(choose(values)).reshape(shape).to(dtype)


@settings(max_examples=200)
@given(st.sampled_from(WORDS), tensors())
def test_an_example_belongs_to_what_is_inferred_from_it(name, tensor):
    """Otherwise, no value of the input would count as legal."""
    example = [tensor, torch.zeros(2, 4)]
    domains = InputDomains({}, [name, "other"], {"other": {1: "length"}}, example)
    for index, domain in domains.items():
        assert domains.allows(index, example) or isinstance(domain, Unchanged)


def test_a_declaration_takes_the_place_of_an_inference():
    example = [torch.ones(2, 4, dtype=torch.int64)]
    (inferred,) = InputDomains({}, ["mask"], {}, example).described()
    assert inferred.in_words == "mask: int64[2, 4], mask(starts_with=True) (inferred: named a mask)"
    (declared,) = InputDomains({"mask": onnx_ci.mask(min_true=2)}, ["mask"], {}, example).described()
    assert declared.in_words == "mask: int64[2, 4], mask(min_true=2) (declared)"
