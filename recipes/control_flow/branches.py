"""A branch that depends on data: tracing keeps only the branch that the example takes; scripting keeps both. From opset 9."""

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
    """Computes both branches and selects one."""

    def forward(self, x):
        return torch.where(x.sum() > 0, x * 2, x - 1)


SIGNATURE = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "length"}, "y": {0: "length"}}}
EXAMPLE = (torch.tensor([1.0, 2.0, -0.5]),)


@onnx_ci.recipe(
    **SIGNATURE,
    expect={
        "torchscript": onnx_ci.known_failure(
            "baked-value", "the file always takes the branch that the example takes", seen="torch 2.13.0"
        ),
        "dynamo": onnx_ci.known_failure(
            "export-error", "torch.export rejects a branch that depends on data; see cond.py", seen="torch 2.13.0"
        ),
    },
)
def branch_traced():
    return Branch(), EXAMPLE


@onnx_ci.recipe(
    **SIGNATURE,
    expect={
        "dynamo": onnx_ci.known_failure(
            "export-error", "torch.export does not accept scripted modules; see cond.py", seen="torch 2.13.0"
        )
    },
)
def branch_scripted():
    return torch.jit.script(Branch()), EXAMPLE


@onnx_ci.recipe(**SIGNATURE)
def branch_where():
    return Where(), EXAMPLE
