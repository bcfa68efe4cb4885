"""A pass of one's own: a function that takes a model and returns one. From opset 9."""

from pathlib import Path

import onnx
import torch

import onnx_ci


def with_metadata(model):
    """Gets a ModelProto with its weights."""
    onnx.helper.set_model_props(model, {"version": "1.0"})
    return model


def without_texts(path: Path):
    """Gets the path of a copy of the file, because its parameter is annotated as a path."""
    model = onnx.load(path)
    for node in model.graph.node:
        node.doc_string = ""
    onnx.save_model(model, path)
    return path


@onnx_ci.recipe(input_names=["x"], output_names=["y"], opsets="17-18", then=[with_metadata, without_texts])
def own_passes():
    return torch.nn.Linear(4, 2), (torch.randn(3, 4),)
