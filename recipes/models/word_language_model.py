"""The word language model of PyTorch's examples: LSTM and GRU from opset 9, Transformer from opset 14."""

import math

import torch
from torch import nn

import onnx_ci

WORDS, SIZE, LAYERS, BATCH = 100, 32, 2, 2


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.encoder = nn.Embedding(WORDS, SIZE)
        self.rnn = kind(SIZE, SIZE, LAYERS)
        self.decoder = nn.Linear(SIZE, WORDS)
        self.decoder.weight = self.encoder.weight

    def forward(self, words, hidden):
        output, hidden = self.rnn(self.encoder(words), hidden)
        return torch.log_softmax(self.decoder(output), dim=-1), hidden


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(WORDS, SIZE)
        angles = torch.arange(100)[:, None] * torch.exp(torch.arange(0, SIZE, 2) * (-math.log(10000.0) / SIZE))
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, None])
        layer = nn.TransformerEncoderLayer(SIZE, 4, 2 * SIZE)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.decoder = nn.Linear(SIZE, WORDS)

    def forward(self, words):
        length = words.shape[0]
        is_later = torch.ones(length, length, dtype=torch.bool).triu(1)
        inputs = self.encoder(words) * math.sqrt(SIZE) + self.positions[:length]
        # Without is_causal, torch compares the mask with a causal one: a branch on data, which dynamo rejects.
        return torch.log_softmax(self.decoder(self.layers(inputs, mask=is_later, is_causal=True)), dim=-1)


def states():
    return torch.randn(LAYERS, BATCH, SIZE)


RECURRENT = {
    "dynamic_axes": {"words": {0: "sequence"}, "scores": {0: "sequence"}},
    "tags": ["text", "recurrent"],
    "expect": {
        "dynamo": [
            onnx_ci.known_failure("static-axis", "the sequence is unrolled; see control_flow/scan.py", seen="torch 2.13.0"),
            onnx_ci.known_failure("baked-shape", "the sequence is unrolled; see control_flow/scan.py", seen="torch 2.13.0"),
        ]
    },
}


@onnx_ci.recipe(input_names=["words", "hidden", "cell"], output_names=["scores", "next_hidden", "next_cell"], **RECURRENT)
def word_lstm():
    return Recurrent(nn.LSTM), (torch.randint(0, WORDS, (7, BATCH)), (states(), states()))


@onnx_ci.recipe(input_names=["words", "hidden"], output_names=["scores", "next_hidden"], **RECURRENT)
def word_gru():
    return Recurrent(nn.GRU), (torch.randint(0, WORDS, (7, BATCH)), states())


@onnx_ci.recipe(
    input_names=["words"],
    output_names=["scores"],
    dynamic_axes={"words": {1: "batch"}, "scores": {1: "batch"}},  # for any length see transformer_encoder.py
    tags=["text", "transformer"],
    expect={
        "torchscript 9-13": onnx_ci.unsupported(
            "slices with computed ends are supported from opset 10, unflatten from 13, scaled_dot_product_attention from 14",
            seen="torch 2.13.0",
        ),
        "dynamo 26-": [
            onnx_ci.known_failure("opset-mismatch", "the conversion fails and the file stays at opset 18", seen="torch 2.13.0"),
            onnx_ci.known_failure("checker", "the file contains Attention of opset 23", seen="torch 2.13.0"),
            onnx_ci.known_failure("load-error", "the file contains Attention of opset 23", seen="torch 2.13.0"),
        ],
    },
)
def word_transformer():
    return Transformer(), (torch.randint(0, WORDS, (7, BATCH)),)
