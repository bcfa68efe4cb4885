"""Negative indices in several index tensors: TorchScript reads the wrong elements. Counted from 0 instead: from opset 9."""

import torch

import onnx_ci


class Read(torch.nn.Module):
    def forward(self, data, rows, columns):
        return data[rows, columns]


class ReadFromZero(torch.nn.Module):
    def forward(self, data, rows, columns):
        return data[rows % data.shape[0], columns % data.shape[1]]


class ReadRows(torch.nn.Module):
    def forward(self, data, rows):
        return data[rows]


class Write(torch.nn.Module):
    def forward(self, data, rows, columns, new):
        data = data.clone()
        data[rows, columns] = new
        return data


DATA = torch.arange(40.0).reshape(4, 5, 2)
ROWS, COLUMNS = torch.tensor([[1, 2], [2, -3]]), torch.tensor([-2, 3])
READ = {"input_names": ["data", "rows", "columns"], "output_names": ["elements"]}


@onnx_ci.recipe(
    **READ,
    expect={
        "torchscript": onnx_ci.known_failure("numeric-drift", "negative indices read the wrong elements", seen="torch 2.13.0")
    },
)
def negative_indices():
    return Read(), (DATA, ROWS, COLUMNS)


@onnx_ci.recipe(**READ)
def negative_indices_from_zero():
    return ReadFromZero(), (DATA, ROWS, COLUMNS)


@onnx_ci.recipe(input_names=["data", "rows"], output_names=["elements"])
def negative_index_alone():
    return ReadRows(), (DATA, torch.tensor([1, -2]))


@onnx_ci.recipe(
    input_names=["data", "rows", "columns", "new"],
    output_names=["changed"],
    expect={
        "torchscript 9-10": onnx_ci.unsupported("index_put needs ScatterND, which ONNX has from opset 11", seen="torch 2.13.0")
    },
)
def negative_indices_written():
    return Write(), (torch.arange(20.0).reshape(4, 5), torch.tensor([1, -2]), COLUMNS, torch.randn(2))
