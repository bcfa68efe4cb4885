"""A Hugging Face text model, built from a configuration, so that nothing is downloaded. From opset 10.

A wrapper passes the tensors by name, because TorchScript passes all arguments by position. The attention is ``eager``: with
scaled_dot_product_attention, the file handles a mask that hides everything differently from PyTorch.
"""

import contextlib

import pytest
import torch

import onnx_ci
from onnx_ci.recipes.models.torchvision_models import import_torchvision


class ByName(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask)
        return outputs.last_hidden_state, outputs.pooler_output


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
        "torchscript 9": onnx_ci.unsupported("a slice with a computed end needs opset 10", seen="torch 2.13.0"),
        "dynamo 26-": [
            onnx_ci.known_failure("opset-mismatch", "the conversion fails and the file stays at opset 18", seen="torch 2.13.0"),
            onnx_ci.known_failure("checker", "the file contains Gelu of opset 20", seen="torch 2.13.0"),
            onnx_ci.known_failure("load-error", "the file contains Gelu of opset 20", seen="torch 2.13.0"),
        ],
    },
)
def bert():
    with contextlib.suppress(onnx_ci.RecipeError):
        import_torchvision()  # transformers imports torchvision if it is installed
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
