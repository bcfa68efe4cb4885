"""A Transformer encoder with a padding mask: any batch from opset 14; any length with dynamo, or with explicit attention.

Under TorchScript, torch.nn.MultiheadAttention turns the length into a constant. Attention written as matrix products and a
softmax does not, and works from opset 9.
"""

import torch
from torch import nn

import onnx_ci

SIZE, HEADS = 32, 4


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(SIZE, HEADS, 2 * SIZE, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens, is_padding):
        return self.layers(tokens, src_key_padding_mask=is_padding)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(SIZE, SIZE) for _ in range(4))

    def forward(self, tokens, is_padding):
        batch, length, _ = tokens.shape
        query, key, value = (
            layer(tokens).view(batch, length, HEADS, SIZE // HEADS).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-2, -1) * (SIZE // HEADS) ** -0.5
        scores = scores.masked_fill(is_padding[:, None, None, :], float("-inf"))
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, SIZE))


def example():
    return torch.randn(3, 6, SIZE), torch.arange(6) >= torch.tensor([[6], [4], [3]])


NAMES = {"input_names": ["tokens", "is_padding"], "output_names": ["encoded"], "tags": ["text", "transformer"]}
ANY_BATCH = {name: {0: "batch"} for name in ("tokens", "is_padding", "encoded")}
ANY_LENGTH = {name: {0: "batch", 1: "length"} for name in ("tokens", "is_padding", "encoded")}


UNSUPPORTED = onnx_ci.unsupported(
    "unflatten is supported from opset 13, scaled_dot_product_attention from 14", seen="torch 2.13.0"
)
NO_BROADCAST = onnx_ci.known_failure(
    "run-error", "ONNX Runtime's Attention does not broadcast the mask", seen="onnxruntime 1.31.1"
)
NOT_CONVERTED = [
    onnx_ci.known_failure("opset-mismatch", "the conversion fails and the file stays at opset 18", seen="torch 2.13.0"),
    onnx_ci.known_failure("checker", "the file contains Attention of opset 23", seen="torch 2.13.0"),
    onnx_ci.known_failure("load-error", "the file contains Attention of opset 23", seen="torch 2.13.0"),
]
DYNAMO = {"dynamo 23-25": NO_BROADCAST, "dynamo 26-": NOT_CONVERTED}


@onnx_ci.recipe(**NAMES, dynamic_axes=ANY_BATCH, expect={"torchscript 9-13": UNSUPPORTED, **DYNAMO})
def transformer_encoder():
    return Encoder(), example()


@onnx_ci.recipe(
    **NAMES,
    dynamic_axes=ANY_LENGTH,
    expect={
        "torchscript 9-13": UNSUPPORTED,
        "torchscript 14-": onnx_ci.known_failure(
            "baked-shape", "the length is a constant; see the recipe attention", seen="torch 2.13.0"
        ),
        **DYNAMO,
    },
)
def transformer_encoder_of_any_length():
    return Encoder(), example()


@onnx_ci.recipe(**NAMES, dynamic_axes=ANY_LENGTH)
def attention():
    return Attention(), example()
