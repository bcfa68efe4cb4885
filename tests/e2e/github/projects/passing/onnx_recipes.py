"""A project whose exports are right. It prints what would be commands to GitHub's runner, and are none."""

import torch

import onnx_ci

print("::error title=owned::owned")
print("##[add-mask]owned")


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4))

    def forward(self, x):
        return torch.relu(x * self.weight)


@onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}})
def scale():
    return Scale(), (torch.randn(3, 4),)
