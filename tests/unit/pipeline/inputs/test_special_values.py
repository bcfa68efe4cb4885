"""Special values of inputs: what they reach, and that they stay within the domains of the inputs."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toolbox.input_domains import SIZES, declared_inputs

import onnx_ci
from onnx_ci.pipeline.domains.domain_values import contains, draw
from onnx_ci.pipeline.domains.input_domains import UNKNOWN, InputDomains
from onnx_ci.pipeline.domains.uses import InputUse
from onnx_ci.pipeline.inputs.probes import InputStatus
from onnx_ci.pipeline.inputs.special_values import constants_of, variations


def made(example, domains=UNKNOWN, constants=()):
    return {each.name: each for each in variations(example, domains, constants)}


@pytest.mark.parametrize("shape", [(8, 16), (3, 5)])
def test_signs_of_two_inputs_meet_in_every_pair(shape):
    inputs = [torch.rand(shape) + 3, torch.rand(shape) + 3]
    mixed = [each.inputs for name, each in made(inputs).items() if name.startswith("floats mixed")]
    one, other = (torch.cat([pair[i].flatten() for pair in mixed]).sign().tolist() for i in (0, 1))
    assert set(zip(one, other, strict=True)) >= set(itertools.product((1.0, -1.0), repeat=2))
    assert {(0.0, -1.0), (0.0, 1.0), (-1.0, 0.0), (1.0, 0.0)} & set(zip(one, other, strict=True))


def test_signs_of_integers_meet_in_every_pair():
    inputs = [torch.randint(1, 9, (20,)), torch.randint(1, 9, (20,))]
    mixed = [each.inputs for name, each in made(inputs).items() if name.startswith("integers mixed")]
    pairs = {pair for one, other in mixed for pair in zip(one.sign().tolist(), other.sign().tolist(), strict=True)}
    assert pairs == set(itertools.product((1, -1), repeat=2))


def test_constants_ties_and_extreme_numbers_are_reached():
    found = made([torch.rand(40, 40)], constants=[0.3, 6.0])
    mixed = set(found["floats mixed"].inputs[0].unique().tolist())
    assert {0.0, 0.5, -0.5, 2.5, 6.0, -6.0} <= mixed
    assert float(torch.tensor(0.3)) in mixed
    extreme = found["floats extreme"]
    assert {20.0, -20.0, 100.0, -100.0} <= set(extreme.inputs[0].unique().tolist())
    assert {name for name, each in found.items() if each.legality is InputStatus.EXTREME} == {"floats extreme"}


def test_constants_are_those_of_modules_small_buffers_and_forward():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.activation = torch.nn.Hardshrink(0.3)
            self.bounded = torch.nn.Hardtanh(-3.5, 4.5)
            self.register_buffer("bounds", torch.tensor([0.25, 0.75]))
            self.register_buffer("table", torch.rand(100))

        def forward(self, x):
            return torch.where(x > 7, x, self.activation(x) * 0.125)

    found = constants_of(Net())
    assert {0.3, -3.5, 4.5, 0.25, 0.75, 7.0, 0.125} <= set(found)
    assert len(found) <= 16


@given(declared_inputs, st.integers(0, 2**32))
def test_declared_inputs_keep_to_their_domain(declared, seed):
    domain, like = declared
    inputs = [draw(domain, like, SIZES, torch.Generator().manual_seed(seed)).to(like.dtype), torch.rand(4, SIZES["frames"])]
    domains = InputDomains({"x": domain}, ["x", "y"], {"y": {1: "frames"}}, inputs)
    assert all(contains(domain, each.inputs[0], SIZES) for each in variations(inputs, domains))
    assert float(made(inputs, domains)["floats negated"].inputs[1].max()) < 0


def test_nan_and_infinity_are_tried_only_where_the_model_tests_for_them():
    tested = torch.tensor([[False, True, True, True]] * 12)
    inputs, uses = [torch.rand(12, 4), torch.rand(3)], [InputUse(tested={math.nan: tested, math.inf: tested}), InputUse()]

    def special(domains=UNKNOWN):
        found = variations(inputs, domains, uses=uses)
        return {each.name: each for each in found if not all(bool(tensor.isfinite().all()) for tensor in each.inputs)}

    found = special()
    assert set(found) == {
        f"floats {value} {words}" for value in ("nan", "inf") for words in ("first", "between", "last", "mixed")
    }
    for name, each in found.items():
        count = int((~each.inputs[0].isfinite()).sum())
        assert (count == 1) is not name.endswith("mixed")
        assert (count > 1, each.legality) == (each.is_edge, InputStatus.LEGAL)
        assert not bool((~each.inputs[0].isfinite() & ~tested).any())
        assert each.inputs[1] is inputs[1]
    assert not special(InputDomains({"x": onnx_ci.floats(0, 1)}, ["x", "y"], {}, inputs))


def test_a_masked_row_is_degenerate_unless_the_example_has_one():
    def legality(mask, name="mask"):
        found = made([mask], InputDomains({}, [name], {}, [mask]))
        return {word: found[word].legality.name for word in ("masks full", "masks empty", "first row true", "first row false")}

    row = torch.tensor([[True, True, False, True]])
    shown = {"masks full": "LEGAL", "masks empty": "DEGENERATE", "first row true": "LEGAL", "first row false": "DEGENERATE"}
    hidden = {"masks full": "DEGENERATE", "masks empty": "LEGAL", "first row true": "DEGENERATE", "first row false": "LEGAL"}
    assert legality(row) == shown
    assert legality(row.logical_not(), "key_padding_mask") == hidden
    both = torch.cat([row, torch.zeros_like(row), torch.ones_like(row)])
    assert set(legality(both).values()) == {"LEGAL"}
