"""A loop whose count is an input: tracing unrolls it and drops the count; scripting keeps the loop. From opset 9."""

import torch

import onnx_ci


def loop(x, count):
    for i in range(int(count)):
        x = x + i
    return x


class Loop(torch.nn.Module):
    def forward(self, x, count):
        for i in range(int(count)):
            x = x + i
        return x


class Mixed(torch.nn.Module):
    """A traced module that calls a scripted function."""

    def __init__(self):
        super().__init__()
        self.loop = torch.jit.script(loop)

    def forward(self, x, count):
        return self.loop(x * 2, count + 1).sum(0)


SIGNATURE = {"input_names": ["input_data", "loop_range"], "output_names": ["output"]}
EXAMPLE = torch.ones(2, 3, dtype=torch.int64), torch.tensor(5)
NOT_SCRIPTED = onnx_ci.known_failure(
    "export-error", "torch.export does not accept scripted modules; see while_loop.py", seen="torch 2.13.0"
)
COUNT_FROM_DATA = onnx_ci.known_failure(
    "export-error", "torch.export rejects a loop count that is data; see while_loop.py", seen="torch 2.13.0"
)


@onnx_ci.recipe(
    **SIGNATURE,
    expect={
        "torchscript": onnx_ci.known_failure(
            "input-missing", "the loop is unrolled and its count is no longer an input", seen="torch 2.13.0"
        ),
        "dynamo": COUNT_FROM_DATA,
    },
)
def loop_traced():
    return Loop(), EXAMPLE


@onnx_ci.recipe(**SIGNATURE, expect={"dynamo": NOT_SCRIPTED})
def loop_scripted():
    return torch.jit.script(Loop()), EXAMPLE


@onnx_ci.recipe(**SIGNATURE, expect={"dynamo": COUNT_FROM_DATA})
def loop_mixed():
    return Mixed(), EXAMPLE
