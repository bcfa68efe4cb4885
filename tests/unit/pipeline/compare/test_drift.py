"""Cosine, SQNR and the top class, with ties told apart; and whether a comparison proves anything."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from onnx_ci.matrix.drift_limit import DriftLimit
from onnx_ci.pipeline.compare.drift import agreement, compare, similarity
from onnx_ci.pipeline.compare.runtime_run import too_noisy
from onnx_ci.pipeline.inputs.probes import Probe
from onnx_ci.pipeline.reference.reference import Reference


def alike(got, exact, noise=0.1):
    got, exact = torch.tensor(got).double(), torch.tensor(exact).double()
    return similarity(got, exact, torch.ones(exact.shape, dtype=torch.bool), noise)


def test_equal_tensors_are_as_alike_as_can_be():
    found = alike([[1.0, 2.0]], [[1.0, 2.0]])
    assert (found.cosine, found.sqnr, found.agreement, found.ties) == (pytest.approx(1.0), math.inf, 1.0, 0)


def test_the_ratio_of_powers_is_in_decibels():
    assert alike([[1.1, 0.0]], [[1.0, 0.0]]).sqnr == pytest.approx(20)
    assert alike([[0.0, 1.0]], [[1.0, 0.0]]).cosine == 0
    assert alike([1.0], [0.0]).sqnr == -math.inf


def test_a_top_class_within_the_noise_is_a_tie():
    exact = [[1.0, 0.0], [1.0, 0.95], [0.0, 1.0]]
    found = alike([[1.0, 0.0], [0.9, 1.0], [1.0, 0.0]], exact)
    assert (found.agreement, found.ties) == (0.5, 1)
    assert alike([[1.0, 1.0]], [[1.0, 1.0]]).agreement is None


def test_what_has_no_classes_has_no_agreement():
    assert (alike([1.0, 2.0], [1.0, 2.0]).agreement, alike([[1.0]], [[1.0]]).agreement) == (None, None)


def test_integers_agree_where_they_do_not_depend_on_rounding():
    found = agreement(torch.tensor([True, False, False]), torch.tensor([True, True, False]))
    assert (found.cosine, found.sqnr, found.agreement, found.ties) == (None, None, 0.5, 1)
    assert found.in_words == "equal in 50%, 1 tie left out"


# --- what a comparison proves


def compared(own, exact, noise, got, *, limit=16.0, **tolerance):
    own, exact = torch.tensor(own), torch.tensor(exact).double()
    reference = Reference(
        own=(own,),
        exact=(exact,),
        noise=(noise,),
        stable=(torch.ones(own.shape, dtype=torch.bool),),
        eps=1e-7,
        method="float64",
    )
    probe = Probe(name="floats large", inputs=(), reference=reference)
    (output,) = compare(["y"], [torch.tensor(got)], probe, DriftLimit(default=limit, **tolerance)).outputs
    return output


def test_where_zeros_would_pass_nothing_is_proved():
    assert compared([1.0, -0.5], [1.0, -0.5], 0.1, [0.2, 0.3]).unproven == "too noisy"
    assert compared([1.0, -0.5], [1.0, -0.5], 0.05, [0.9, -0.5]).unproven == ""
    assert compared([0.0, 0.0], [0.0, 0.0], 0.1, [0.0, 0.0]).unproven == ""
    assert compared([1.0, -0.5], [1.0, -0.5], 0.1, [1.0, -0.5], rtol=1e-3).unproven == ""


def test_an_input_on_which_an_output_is_too_noisy_is_named_once():
    def message(*probes):
        noisy = [dataclasses.replace(compared([1.0, -0.5], [1.0, -0.5], 0.1, [0.2, 0.3]), probe=name) for name in probes]
        return next(iter(too_noisy(noisy))).message

    sizes = "its noise is 0.1, and its largest value is 1"
    assert message("n=1") == f"output 'y' is too noisy on 'n=1' to prove anything: {sizes}"
    assert message("n=1", "n=2") == f"output 'y' is too noisy on 'n=1' and 'n=2' to prove anything: on 'n=1', {sizes}"


def test_an_output_that_is_zero_but_for_the_noise_of_the_example_is_no_note():
    noisy = dataclasses.replace(compared([1.0, -0.5], [1.0, -0.5], 0.1, [0.2, 0.3]), probe="floats small")

    def notes(**example):
        return [
            *too_noisy([dataclasses.replace(noisy, **{"probe": "example", "unproven": "", "noise": 0.01, **example}), noisy])
        ]

    assert [len(notes()), len(notes(noise=0.1)), len(notes(limit=noisy.limit / 64))] == [1, 0, 0]
    assert len(notes(unproven="too noisy")) == 1


def test_where_nothing_is_finite_nothing_is_proved():
    nan = math.nan
    assert compared([nan, nan], [nan, nan], 0.1, [nan, nan]).unproven == "nothing finite"
    assert compared([nan, 1.0], [nan, 1.0], 1e-7, [nan, 1.0]).unproven == ""
