"""A model that computes otherwise while it is exported; onnx-ci compares with what it computes at other times. From opset 9."""

import torch

import onnx_ci


class Gelu(torch.nn.Module):
    """Writes the formula out for runtimes without the operator; both ways must give the same numbers."""

    def forward(self, x):
        if torch.onnx.is_in_onnx_export():
            return x * 0.5 * (1 + torch.erf(x * 0.5**0.5))
        return torch.nn.functional.gelu(x)


class Forgotten(torch.nn.Module):
    def forward(self, x):
        return x * 2 if torch.onnx.is_in_onnx_export() else x * 2 + 1


SIGNATURE = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
OTHER = onnx_ci.fails("numeric-drift", "the exported branch leaves something out", seen="torch 2.13.0")


@onnx_ci.recipe(**SIGNATURE)
def export_branch():
    return Gelu(), (torch.randn(2, 3),)


@onnx_ci.recipe(**SIGNATURE, expect={"torchscript": OTHER, "dynamo": OTHER})
def export_branch_wrong():
    return Forgotten(), (torch.randn(2, 3),)
