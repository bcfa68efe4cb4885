"""Random values that are like the example's."""

from __future__ import annotations

import pytest
import torch

from onnx_ci.pipeline.inputs.random_values import drawn_like

EYES = torch.eye(3).repeat(2, 1, 1)
CAMERA = torch.tensor([[500.0, 0.0, 320.0], [0.0, 500.0, 240.0], [0.0, 0.0, 1.0]])


@pytest.mark.parametrize("matrices", [EYES, EYES.half(), CAMERA, CAMERA.double()])
def test_regular_matrices_stay_regular(matrices):
    for seed in range(20):
        drawn = drawn_like(matrices, seed=seed)
        assert not torch.equal(drawn, matrices)
        assert bool((torch.linalg.det(drawn.double()).abs() > 0.01).all())


@pytest.mark.parametrize("zeros", [torch.eye(3)[:2], torch.ones(3, 3).tril(-1), torch.eye(9)[4]])
def test_other_zeros_change_their_places(zeros):
    assert any(not torch.equal(drawn_like(zeros, seed=seed) == 0, zeros == 0) for seed in range(5))
