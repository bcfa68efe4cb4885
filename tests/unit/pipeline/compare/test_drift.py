"""Cosine, SQNR and the top class, with ties told apart."""

from __future__ import annotations

import math

import pytest
import torch

from onnx_ci.pipeline.compare.drift import agreement, similarity


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
