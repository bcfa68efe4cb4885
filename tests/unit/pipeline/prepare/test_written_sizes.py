"""Where a model has a size of its example as a number, the finding names the line and what to write there."""

from __future__ import annotations

import re

import pytest
import torch
from toolbox.cells import errors, task
from torch import nn

import onnx_ci
from onnx_ci.pipeline.prepare.prepare import prepare


class Net(nn.Module):
    """Layers before a function that has a size of the example."""

    def __init__(self, function):
        super().__init__()
        self.conv, self.head, self.function, self.batch = nn.Conv2d(3, 8, 3), nn.Linear(8, 4), function, 2

    def forward(self, image):
        return self.function(self, self.conv(image))


def viewed(net, x):
    x = x.view(2, 8, -1)  # HERE
    return net.head(x.mean(2))


def swallowed(net, x):
    return net.head(x.reshape(2, -1, 8).mean(1))  # HERE


def unflattened(net, x):
    return net.head(x.flatten(0, 1).unflatten(0, (2, -1)).mean((2, 3)))  # HERE


def multiplied(net, x):
    x = x.view(8, 2, 6, 6)  # HERE
    return net.head(x.view(x.shape[0] // 4, 8, -1).mean(2))


def added(net, x):
    x = x.mean((2, 3))
    return net.head(x + torch.zeros(2, 8))  # HERE


def stated(net, x):
    state = torch.zeros(2, 8)  # HERE
    return net.head(torch.stack([state, x.mean((2, 3))]).sum(0))


def by_attribute(net, x):
    return net.head(x.reshape(net.batch, 8, -1).mean(-1))  # HERE


def in_two_lines(net, x):
    x = x.view(2, 8, -1).mean(2)  # HERE
    return net.head(x + torch.zeros(2, 8))


def zeros():
    return torch.zeros(2, 8)  # HERE


def without_a_tensor(net, x):
    return net.head(x.mean((2, 3)) + zeros())


REMEDIES = {
    viewed: "Write x.shape[0] instead of 2 in view().",
    swallowed: "Write x.shape[0] instead of 2 in reshape().",
    unflattened: "Write x.shape[0] instead of 2 in unflatten().",
    multiplied: "Write 4 * x.shape[0] instead of 8 in view().",
    added: "Write x.shape[0] instead of 2 in zeros().",
    stated: "Write x.shape[0] instead of 2 in zeros().",
    by_attribute: "Write x.shape[0] instead of what is 2 in reshape().",
    in_two_lines: "Write x.shape[0] instead of 2 in view() and x.shape[0] instead of 2 in zeros() at LINE.",
    without_a_tensor: "Write the size of 'batch' instead of 2 in zeros().",
}


def faults(function, example, **declared):
    axes = {"image": {0: "batch"}, "y": {0: "batch"}}
    names = {"input_names": ["image"], "output_names": ["y"], "dynamic_axes": axes, **declared}
    prepared = prepare(task(onnx_ci.recipe(name="net", **names)(lambda: (Net(function), (example,)))))
    return errors(prepared)


@pytest.mark.parametrize("function", REMEDIES, ids=lambda function: function.__name__)
def test_the_number_that_should_be_a_size_is_named_with_its_line_and_what_to_write(function):
    (found,) = faults(function, torch.randn(2, 3, 8, 8))
    assert found.source.text.endswith("# HERE")
    assert re.sub(r"\S+\.py:\d+", "LINE", found.remedy) == REMEDIES[function]


def test_a_number_that_is_one_is_named_too():
    def flattened(net, x):
        return net.head(x.mean((2, 3)).view(1, -1)[:, :8])

    (found,) = faults(flattened, torch.randn(1, 3, 8, 8))
    assert (found.rule, found.remedy) == ("vacuous", "Write x.shape[0] instead of 1 in view().")


def test_an_axis_that_is_another_one_of_the_output_is_named():
    def transposed(net, x):
        return net.head(x.mean((2, 3))).T

    (found,) = faults(transposed, torch.randn(2, 3, 8, 8))
    assert found.source is None
    follows = "its size does not follow that of 'batch', but that of axis 1 does"
    assert found.remedy == f"Leave axis 0 out of dynamic_axes['y']: {follows}."


def test_a_mean_over_the_batch_has_no_number_that_could_be_a_size():
    def averaged(net, x):
        return net.head(x.mean((0, 2, 3)))

    (found,) = faults(averaged, torch.randn(2, 3, 8, 8))
    assert found.source is None
    assert found.remedy == "Leave axis 0 out of dynamic_axes['y']: its size does not follow that of 'batch'."
    assert faults(averaged, torch.randn(2, 3, 8, 8), dynamic_axes={"image": {0: "batch"}}) == []


def test_an_axis_of_another_size_under_the_name_of_an_input_is_only_a_name():
    def repeated(net, x):
        return net.head(x.mean((2, 3))).repeat(2, 1)

    assert faults(repeated, torch.randn(3, 3, 8, 8)) == []
