"""Channels of different size in one output, such as boxes in pixels beside scores: each is judged by its own rounding."""

from __future__ import annotations

import pytest
import torch
from toolbox.cells import rules, run_one

import onnx_ci
from onnx_ci import Status
from onnx_ci.pipeline.reference.channel_noise import channel_noise


class Detector(torch.nn.Module):
    """Four columns in pixels and two scores, of which the file may have the second one wrong by ``error``."""

    def __init__(self, error=0.0):
        super().__init__()
        self.layer = torch.nn.Linear(16, 6)
        self.error = error

    def forward(self, x):
        y = self.layer(x)
        scores = y[..., 4:].sigmoid() * 0.01
        if torch.onnx.is_in_onnx_export() and self.error:
            scores = scores + torch.tensor([0.0, self.error])
        return torch.cat([y[..., :4].abs() * 1e4 + 600.0, scores], -1)


def judged(error):
    torch.manual_seed(0)
    recipe = onnx_ci.recipe(
        input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}}, name="net"
    )
    return run_one(recipe(lambda: (Detector(error), (torch.randn(2, 40, 16),))))


def test_a_small_error_of_small_numbers_beside_large_ones_is_found():
    right, wrong = judged(0.0), judged(2e-6)
    assert right.status is Status.PASSED
    assert (wrong.status, rules(wrong)[0]) == (Status.FAILED, "numeric-drift")
    assert wrong.outputs[0].index[-1] == 5
    assert wrong.outputs[0].drift == wrong.outputs[0].error / wrong.outputs[0].noise
    # One number for the whole output is that of the pixels, and would have hidden it.
    assert wrong.outputs[0].error < max(each.noise for each in right.outputs if each.index[-1] < 4)


def test_the_noise_of_a_channel_is_its_own():
    own = torch.ones(32, 3) * torch.tensor([1000.0, 1.0, 1.0])
    spread = torch.ones(32, 3, dtype=torch.float64) * torch.tensor([1e-4, 1e-7, 3e-7], dtype=torch.float64)
    channels = channel_noise(own, spread, 1e-4)
    assert channels.axis == 1
    assert channels.noise.tolist() == pytest.approx([1e-4, 1e-7, 3e-7])
    assert channels.spread_over(own).shape == own.shape


@pytest.mark.parametrize(
    ("sizes", "rows"),
    [([1.0, 2.0, 3.0], 32), ([1000.0, 1.0], 8), ([0.0, 1.0], 32), ([1.0], 32)],
    ids=["alike", "too few rows to measure", "one vanishes", "one channel"],
)
def test_channels_have_one_noise_if_they_are_alike_or_cannot_be_measured(sizes, rows):
    own = torch.ones(rows, len(sizes)) * torch.tensor(sizes)
    assert channel_noise(own, own.double() * 1e-7, 1e-4) is None


class Chroma(torch.nn.Module):
    """The saturation of pixels, which is exactly 0 where they are grey, beside their brightness."""

    def __init__(self, error=0.0):
        super().__init__()
        self.error = error

    def forward(self, image):
        brightness = 100 * image.mean(1, keepdim=True) ** 0.45
        saturation = image.amax(1, keepdim=True) - image.amin(1, keepdim=True)
        if torch.onnx.is_in_onnx_export() and self.error:
            saturation = saturation + self.error
        return torch.cat([saturation, brightness], 1)


@pytest.mark.parametrize(
    ("keywords", "exporter"),
    [({}, "torchscript"), ({"inputs": {"image": onnx_ci.floats(0, 1)}}, "dynamo")],
    ids=["any values", "from 0 to 1"],
)
def test_a_channel_may_vanish_beside_large_ones(keywords, exporter):
    axes = {"x": {0: "batch"}, "y": {0: "batch"}}
    recipe = onnx_ci.recipe(
        input_names=["image"], output_names=["y"], dynamic_axes={"image": axes["x"], "y": axes["y"]}, **keywords
    )

    def judged(error):
        def chroma():
            return Chroma(error), (torch.rand(2, 3, 24, 32),)

        return run_one(recipe(chroma), opsets="18", exporters=exporter)

    right, wrong = judged(0.0), judged(1e-3)
    assert (right.status, rules(right)) == (Status.PASSED, [])
    assert any(each.max_abs > 0 and each.noise > 0 for each in right.outputs)
    assert rules(wrong)


def test_the_noise_in_proportion_is_never_zero():
    measured = torch.ones(32, 2) * torch.tensor([1000.0, 1.0])
    channels = channel_noise(measured, measured.double() * 1e-7, 1e-4)
    grey = torch.ones(32, 2) * torch.tensor([1000.0, 0.0])
    assert channels.in_proportion(measured, grey, 2e-4).noise.tolist() == pytest.approx([2e-4, 2e-4], rel=0.5)


def test_a_channel_whose_rounding_shows_in_few_elements_has_the_noise_of_the_whole():
    own = torch.ones(32, 2) * torch.tensor([1000.0, 1.0])
    spread = torch.zeros(32, 2, dtype=torch.float64)
    spread[:, 0] = 1e-4
    spread[:3, 1] = 1e-9
    assert channel_noise(own, spread, 1e-4).noise.tolist() == pytest.approx([1e-4, 1e-4])


class Kept(torch.nn.Module):
    """The boxes, in pixels, of those anchors whose scores are high, beside these: there can be none."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, boxes, scores):
        kept = scores > 0.25
        if torch.onnx.is_in_onnx_export():
            scores = scores + self.error
        return torch.cat([boxes[kept], scores[kept, None]], 1)


@pytest.mark.parametrize("exporter", ["torchscript", pytest.param("dynamo", marks=pytest.mark.slow)])
def test_an_output_without_rows_has_channels_too(exporter):
    recipe = onnx_ci.recipe(
        input_names=["boxes", "scores"],
        output_names=["found"],
        dynamic_axes={"boxes": {0: "anchors"}, "scores": {0: "anchors"}, "found": {0: "found"}},
        inputs={"scores": onnx_ci.floats(0, 1)},
    )

    def judged(error):
        def keep():
            generator = torch.Generator().manual_seed(1)
            return Kept(error), (torch.rand(40, 4, generator=generator) * 600, torch.rand(40, generator=generator))

        return run_one(recipe(keep), opsets="18", exporters=exporter)

    right, wrong = judged(0.0), judged(0.01)
    assert (right.status, rules(right)) == (Status.PASSED, [])
    assert any(each.probe == "floats zero" for each in right.outputs)
    assert rules(wrong) == ["numeric-drift"]
