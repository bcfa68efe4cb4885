"""A model with random outputs: shapes and distributions are compared instead of values. From opset 9."""

import torch

import onnx_ci


class Noise(torch.nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x), torch.rand_like(x)


NO_KERNEL = onnx_ci.known_failure(
    "load-error", "ONNX Runtime has no kernel for RandomNormalLike of opset 22", seen="onnxruntime 1.31.1"
)


@onnx_ci.recipe(
    input_names=["x"],
    output_names=["noisy", "uniform"],
    nondeterministic=True,
    expect={"torchscript 22-": NO_KERNEL, "dynamo 22-": NO_KERNEL},
)
def random_outputs():
    return Noise(), (torch.zeros(50, 40),)
