"""A model exported without constant folding, which only TorchScript can turn off. From opset 9."""

import torch

import onnx_ci


class Positions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        return x @ self.weight.T.exp() + torch.arange(3, device=x.device) * 2


@onnx_ci.recipe(
    input_names=["x"],
    output_names=["y"],
    dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
    do_constant_folding=False,
)
def constants_unfolded():
    return Positions(), (torch.randn(2, 4),)
