"""A model that takes another branch during export; the file is compared with the normal branch. From opset 9."""

import torch

import onnx_ci


class Gelu(torch.nn.Module):
    """Uses the formula of GELU during export, for runtimes without the operator; both branches must give the same numbers."""

    def forward(self, x):
        if torch.onnx.is_in_onnx_export():
            return x * 0.5 * (1 + torch.erf(x * 0.5**0.5))
        return torch.nn.functional.gelu(x)


class Forgotten(torch.nn.Module):
    def forward(self, x):
        return x * 2 if torch.onnx.is_in_onnx_export() else x * 2 + 1


SIGNATURE = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
WRONG_BRANCH = onnx_ci.known_failure("numeric-drift", "the branch for the export omits an addition", seen="torch 2.13.0")


@onnx_ci.recipe(**SIGNATURE)
def export_branch():
    return Gelu(), (torch.randn(2, 3),)


@onnx_ci.recipe(**SIGNATURE, expect={"torchscript": WRONG_BRANCH, "dynamo": WRONG_BRANCH})
def export_branch_wrong():
    return Forgotten(), (torch.randn(2, 3),)
