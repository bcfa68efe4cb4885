"""A branch on data: traced, the path of the example is all that is left; scripted, it stays a branch. From opset 9."""

import torch

import onnx_ci


class Branch(torch.nn.Module):
    def forward(self, x):
        if bool(x.sum() > 0):
            y = x * 2
        else:
            y = x - 1
        return y


class Where(torch.nn.Module):
    """Both ways are computed, and one is chosen."""

    def forward(self, x):
        return torch.where(x.sum() > 0, x * 2, x - 1)


SIGNATURE = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "length"}, "y": {0: "length"}}}
EXAMPLE = (torch.tensor([1.0, 2.0, -0.5]),)


@onnx_ci.recipe(
    **SIGNATURE,
    expect={
        "torchscript": onnx_ci.fails("baked-value", "the branch that the example takes is always taken", seen="torch 2.13.0"),
        "dynamo": onnx_ci.fails("export-error", "torch.export refuses a branch on data; see cond.py", seen="torch 2.13.0"),
    },
)
def branch_traced():
    return Branch(), EXAMPLE


@onnx_ci.recipe(
    **SIGNATURE,
    expect={"dynamo": onnx_ci.fails("export-error", "torch.export takes no scripted module; see cond.py", seen="torch 2.13.0")},
)
def branch_scripted():
    return torch.jit.script(Branch()), EXAMPLE


@onnx_ci.recipe(**SIGNATURE)
def branch_where():
    return Where(), EXAMPLE
