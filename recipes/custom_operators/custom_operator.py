"""A custom operator: without a definition, with one in the file, and composed of ONNX operators. From opset 9."""

import onnxscript
import torch
from onnxscript import opset15 as op
from onnxscript import opset18
from torch.onnx import symbolic_helper

import onnx_ci

DOMAIN = onnxscript.values.Opset(domain="custom_domain", version=1)


@torch.library.custom_op("custom_ops::foo_forward", mutates_args=())
def foo_forward(one: torch.Tensor, other: torch.Tensor, factor: float, count: int) -> torch.Tensor:
    return one * factor + other * count


@foo_forward.register_fake
def _(one, other, factor, count):
    return torch.empty_like(one)


class Foo(torch.nn.Module):
    def forward(self, one, other):
        return torch.ops.custom_ops.foo_forward(one, other, 0.5, 3)


@onnxscript.script(DOMAIN, default_opset=op)
def FooBody(one, other, factor: float, count: int):  # noqa: N802
    return one * op.Constant(value_float=factor) + other * op.Cast(op.Constant(value_int=count), to=1)


@symbolic_helper.parse_args("v", "v", "f", "i")
def bare(g, one, other, factor, count):
    return g.op("custom_domain::Foo", one, other, factor_f=factor, count_i=count)


@symbolic_helper.parse_args("v", "v", "f", "i")
def defined(g, one, other, factor, count):
    return g.onnxscript_op(FooBody, one, other, factor_f=factor, count_i=count).setType(one.type())


@symbolic_helper.parse_args("v", "v", "f", "i")
def composed(g, one, other, factor, count):
    factor, count = (g.op("Constant", value_t=torch.tensor(float(number))) for number in (factor, count))
    return g.op("Add", g.op("Mul", one, factor), g.op("Mul", other, count))


def translated(one, other, factor: float, count: int):
    return opset18.Add(opset18.Mul(one, factor), opset18.Mul(other, float(count)))


SIGNATURE = {
    "input_names": ["one", "other"],
    "output_names": ["foo"],
    "dynamic_axes": {"one": {0: "batch"}, "other": {0: "batch"}, "foo": {0: "batch"}},
}
EXAMPLE = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)
NO_TRANSLATION = onnx_ci.unsupported("dynamo ignores symbolic functions; see custom_operator_composed", seen="torch 2.13.0")


@onnx_ci.recipe(
    **SIGNATURE,
    custom_opsets={"custom_domain": 2},
    expect={
        "torchscript": onnx_ci.known_failure(
            "load-error", "ONNX Runtime needs a library that implements the operator", seen="onnxruntime 1.31.1"
        ),
        "dynamo": NO_TRANSLATION,
    },
)
def custom_operator():
    torch.onnx.register_custom_op_symbolic("custom_ops::foo_forward", bare, 9)
    return Foo(), EXAMPLE


@onnx_ci.recipe(
    **SIGNATURE,
    custom_opsets={"custom_domain": 1},
    expect={
        "torchscript 19-": onnx_ci.known_failure(
            "checker", "the function is defined with opset 15; see onnx_script.py", seen="torch 2.13.0"
        ),
        "dynamo": NO_TRANSLATION,
    },
)
def custom_operator_with_body():
    torch.onnx.register_custom_op_symbolic("custom_ops::foo_forward", defined, 9)
    return Foo(), EXAMPLE


@onnx_ci.recipe(**SIGNATURE, custom_translation_table={torch.ops.custom_ops.foo_forward.default: translated})
def custom_operator_composed():
    torch.onnx.register_custom_op_symbolic("custom_ops::foo_forward", composed, 9)
    return Foo(), EXAMPLE
