"""Perturbed weights, which show the rounding of a model that cannot run in float64."""

from __future__ import annotations

import pytest
import torch

from onnx_ci.stages.prepare import reference


@pytest.mark.parametrize("shape", [(7,), (7, 3), (3, 7), (1, 7), (2, 3, 5)])
@pytest.mark.parametrize("at_once", [1, 4, 6, 20])
def test_a_large_tensor_is_perturbed_in_parts_as_it_is_at_once(shape, at_once, monkeypatch):
    tensor = torch.randn(shape)
    whole = reference.perturbed(tensor, torch.Generator().manual_seed(0))
    monkeypatch.setattr(reference, "AT_ONCE", at_once)
    assert torch.equal(reference.perturbed(tensor, torch.Generator().manual_seed(0)), whole)


def test_an_expanded_tensor_is_perturbed_in_parts(monkeypatch):
    tensor = torch.randn(1, 3).expand(4, 3)
    whole = reference.perturbed(tensor, torch.Generator().manual_seed(0))
    monkeypatch.setattr(reference, "AT_ONCE", 3)
    assert torch.equal(reference.perturbed(tensor, torch.Generator().manual_seed(0)), whole)
