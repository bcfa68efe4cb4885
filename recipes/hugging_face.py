"""A Hugging Face text model, built from a configuration, so that nothing is downloaded."""

import pytest
import torch

import onnx_ci


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
)
def bert():
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install onnx-ci[text]")
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    ids = torch.randint(0, 100, (2, 6))
    return transformers.BertModel(config), (ids,), {"attention_mask": (torch.arange(6) < torch.tensor([[6], [4]])).long()}
