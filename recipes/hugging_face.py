"""A Hugging Face text model, built from a configuration, so that nothing is downloaded. Holds from opset 10.

A wrapper gives it its tensors by name, for TorchScript hands all arguments on by position. With attention written out
(``eager``) an empty mask means the same everywhere; scaled_dot_product_attention answers it otherwise in the file.
"""

import contextlib

import pytest
import torch

import onnx_ci
from onnx_ci.recipes.torchvision_models import import_torchvision


class ByName(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        made = self.model(input_ids=input_ids, attention_mask=attention_mask)
        return made.last_hidden_state, made.pooler_output


@onnx_ci.recipe(
    input_names=["input_ids", "attention_mask"],
    output_names=["last_hidden_state", "pooler_output"],
    dynamic_axes={
        "input_ids": {0: "batch", 1: "length"},
        "attention_mask": {0: "batch", 1: "length"},
        "last_hidden_state": {0: "batch", 1: "length"},
        "pooler_output": {0: "batch"},
    },
    tags=["text", "transformer"],
    expect={
        "torchscript 9": onnx_ci.unsupported("a slice whose end is computed, from opset 10", seen="torch 2.13.0"),
        "dynamo 26-": [
            onnx_ci.fails("opset-mismatch", "the conversion fails, and the file is at opset 18", seen="torch 2.13.0"),
            onnx_ci.fails("checker", "it has the Gelu of opset 20 in it", seen="torch 2.13.0"),
            onnx_ci.fails("load-error", "it has the Gelu of opset 20 in it", seen="torch 2.13.0"),
        ],
    },
)
def bert():
    with contextlib.suppress(onnx_ci.RecipeError):
        import_torchvision()  # transformers imports it, where it is installed
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install onnx-ci[text]")
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        attn_implementation="eager",
    )
    ids, mask = torch.randint(0, 100, (2, 6)), (torch.arange(6) < torch.tensor([[6], [4]])).long()
    return ByName(transformers.BertModel(config)), (ids, mask)
