"""An ONNX Script function in the file: the documentation's SELU, in the form that torch 2.13 accepts. From opset 15.

The documentation's own code fails: the version in custom_opsets must be the function's own, and a function is defined for one
opset, so each opset needs its own function. The constants are exact here; the documentation rounds them.
"""

import onnxscript
import torch

import onnx_ci

DOMAIN = onnxscript.values.Opset(domain="onnx-script", version=1)


def selu_at(opset):
    """The symbolic function for SELU at an opset."""
    op = getattr(onnxscript, f"opset{opset}")

    @onnxscript.script(DOMAIN, default_opset=op)
    def Selu(X):  # noqa: N802, N803
        alpha = op.CastLike(1.6732632423543772, X)
        gamma = op.CastLike(1.0507009873554805, X)
        negative = gamma * (alpha * op.Exp(X) - alpha)
        return op.Where(op.CastLike(0, X) >= X, negative, gamma * X)

    return lambda g, x: g.onnxscript_op(Selu, x).setType(x.type())


@onnx_ci.recipe(
    input_names=["x"],
    output_names=["y"],
    dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
    custom_opsets={"onnx-script": 1},
)
def onnx_script():
    for opset in range(15, 24):
        torch.onnx.register_custom_op_symbolic("aten::selu", selu_at(opset), opset)
    return torch.nn.SELU(), (torch.randn(2, 3),)
