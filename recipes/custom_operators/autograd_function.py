"""torch.autograd.Function: with a symbolic method, inlined, and as a PythonOp; dynamo always inlines it. From opset 9."""

import torch

import onnx_ci


class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clamp(min=0)

    @staticmethod
    def symbolic(g, x):
        return g.op("Relu", x)


class Clip(torch.autograd.Function):
    """As in the documentation. Clip takes its bounds as inputs only from opset 11."""

    @staticmethod
    def forward(ctx, x):
        return x.clamp(min=0)

    @staticmethod
    def symbolic(g, x):
        return g.op("Clip", x, g.op("Constant", value_t=torch.tensor(0.0)))


class LogExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.exp().log().log()


class Above(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bound):
        return x.clamp(min=bound)


class Apply(torch.nn.Module):
    def __init__(self, function, *constants):
        super().__init__()
        self.function, self.constants = function, constants

    def forward(self, x):
        return self.function.apply(x, *self.constants) * 2


def python_op(g, *args, name, **attributes):
    """The symbolic function for every autograd function without one; ``name`` says which it is."""
    if name != "Above":
        return torch.onnx.symbolic_helper._unimplemented("prim::PythonOp", f"unknown function {name}")
    x, bound = args
    return g.op("Max", x, g.op("Constant", value_t=torch.tensor(bound))).setType(g.original_node.output().type())


SIGNATURE = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}


@onnx_ci.recipe(**SIGNATURE)
def function_with_symbolic():
    return Apply(Relu), (torch.randn(2, 3),)


OLD_CLIP = "at this opset, Clip takes its bounds as attributes"


@onnx_ci.recipe(
    **SIGNATURE,
    expect={
        "torchscript 9-10": [
            onnx_ci.known_failure("checker", OLD_CLIP, seen="torch 2.13.0"),
            onnx_ci.known_failure("load-error", OLD_CLIP, seen="torch 2.13.0"),
        ]
    },
)
def function_with_newer_symbolic():
    return Apply(Clip), (torch.randn(2, 3),)


@onnx_ci.recipe(**SIGNATURE)
def function_inlined():
    return Apply(LogExp), (torch.rand(2, 3) + 2,)


@onnx_ci.recipe(
    **SIGNATURE,
    autograd_inlining=False,
    expect={"torchscript": onnx_ci.known_failure("export-error", "PythonOp has no symbolic function", seen="torch 2.13.0")},
)
def function_not_inlined():
    return Apply(LogExp), (torch.rand(2, 3) + 2,)


@onnx_ci.recipe(**SIGNATURE, autograd_inlining=False)
def function_as_python_op():
    torch.onnx.register_custom_op_symbolic("prim::PythonOp", python_op, 9)
    return Apply(Above, -0.5), (torch.randn(2, 3),)
