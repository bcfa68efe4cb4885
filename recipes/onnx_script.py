"""An ONNX Script function in the file: the documentation's SELU, as torch 2.13 takes it. From opset 15.

The documentation's own lines fail: the version in custom_opsets must be the function's own, and a function is written for
one opset, so that there is one for each. Its rounded constants would cost six digits.
"""

import onnxscript
import torch

import onnx_ci

DOMAIN = onnxscript.values.Opset(domain="onnx-script", version=1)


def selu_at(opset):
    """The symbolic function of SELU at an opset."""
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
