"""Files quantized to int8 by ONNX Runtime, with dynamic or calibrated ranges. From opset 13.

They are judged in units of the rounding of int8, simulated on the model. A static quantization is calibrated on the recipe's
own inputs, and not compared where an input leaves the calibrated ranges.
"""

import torch

import onnx_ci

BATCH = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}


def network():
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 8)]
    return torch.nn.Sequential(*layers), (torch.randn(4, 3, 8, 8),)


@onnx_ci.recipe(
    **BATCH,
    opsets="17-18",
    then="int8-dynamic",
    expect={
        "dynamo +int8-dynamic": onnx_ci.known_failure(
            "pass-error",
            "quantize_dynamic transposes the weights of Gemm but not their shapes in value_info, which dynamo writes",
            seen="torch 2.13.0, onnxruntime 1.31.1",
        )
    },
)
def int8_dynamic():
    return network()


@onnx_ci.recipe(**BATCH, opsets="17-18", then=onnx_ci.graph_pass("int8-static", per_channel=True))
def int8_static():
    return network()
