"""Dicts and nested values are flattened into tensors, in order; the file does not contain the keys. From opset 9."""

import torch

import onnx_ci


class DictInput(torch.nn.Module):
    """A dict as the last argument, which torch.onnx.export by itself would take for keyword arguments."""

    def forward(self, x, parts):
        return x + parts["one"] * parts["other"]


class DictOutput(torch.nn.Module):
    def forward(self, x):
        return {"foo": x + 1, "bar": x * 2}


class Nested(torch.nn.Module):
    def forward(self, pair):
        x, (y, z) = pair
        return x, (x + y, [x + z, {"product": y * z}])


@onnx_ci.recipe(input_names=["x", "one", "other"], output_names=["y"])
def dict_input():
    return DictInput(), (torch.randn(3), {"one": torch.randn(3), "other": torch.randn(3)})


@onnx_ci.recipe(input_names=["x"], output_names=["foo", "bar"])
def dict_output():
    return DictOutput(), (torch.randn(3),)


@onnx_ci.recipe(input_names=["x", "y", "z"], output_names=["same", "with_y", "with_z", "product"])
def nested_values():
    return Nested(), ((torch.randn(3), (torch.randn(3), torch.randn(3))),)
