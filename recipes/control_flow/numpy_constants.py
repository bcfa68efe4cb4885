"""NumPy in a model: TorchScript turns what NumPy computes on the example into constants. In torch instead: from opset 9."""

import numpy as np
import torch

import onnx_ci


class InNumPy(torch.nn.Module):
    def forward(self, x, y):
        return torch.from_numpy(np.concatenate((x.detach().cpu().numpy(), y.detach().cpu().numpy()), axis=1)) * 1


class PartlyInNumPy(torch.nn.Module):
    def forward(self, x, y):
        return torch.cat((x, y), dim=1) + torch.from_numpy(x.detach().cpu().numpy().cumsum(1)).sum()


class InTorch(torch.nn.Module):
    def forward(self, x, y):
        return torch.cat((x, y), dim=1)


SIGNATURE = {"input_names": ["x", "y"], "output_names": ["z"]}


@onnx_ci.recipe(
    **SIGNATURE,
    expect={"torchscript": onnx_ci.known_failure("input-missing", "the whole output is a constant", seen="torch 2.13.0")},
)
def in_numpy():
    return InNumPy(), (torch.randn(1, 2), torch.randn(1, 2))


@onnx_ci.recipe(
    **SIGNATURE,
    expect={
        "torchscript": onnx_ci.known_failure(
            "baked-value", "what NumPy computed on the example is a constant", seen="torch 2.13.0"
        )
    },
)
def partly_in_numpy():
    return PartlyInNumPy(), (torch.randn(1, 2), torch.randn(1, 2))


@onnx_ci.recipe(**SIGNATURE)
def in_torch():
    return InTorch(), (torch.randn(1, 2), torch.randn(1, 2))
