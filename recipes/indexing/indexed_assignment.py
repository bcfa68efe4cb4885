"""Assignment by index, ``data[1] = new``: from opset 11; with scatter instead, from opset 9."""

import torch

import onnx_ci


class Assign(torch.nn.Module):
    """Modifies its argument, as the documentation's example does; the exported model leaves its input unchanged."""

    def forward(self, data, new):
        data[1] = new
        return data


class AssignAt(torch.nn.Module):
    def forward(self, data, index, new):
        data = data.clone()
        data[index] = new
        return data


class Scatter(torch.nn.Module):
    def forward(self, data, index, new):
        return data.scatter(0, index.expand(1, new.shape[0]), new.unsqueeze(0))


NO_INDEX_PUT = onnx_ci.unsupported("index_put needs ScatterND, which ONNX has from opset 11", seen="torch 2.13.0")
DATA, INDEX, NEW = torch.zeros(3, 4), torch.tensor(1), torch.arange(4.0)


@onnx_ci.recipe(input_names=["data", "new"], output_names=["changed"], expect={"torchscript 9-10": NO_INDEX_PUT})
def indexed_assignment():
    return Assign(), (DATA, NEW)


@onnx_ci.recipe(
    input_names=["data", "index", "new"],
    output_names=["changed"],
    expect={
        "torchscript 9-10": NO_INDEX_PUT,
        "dynamo": onnx_ci.known_failure(
            "export-error", "torch.export converts a zero-dimensional index to a number", seen="torch 2.13.0"
        ),
    },
)
def indexed_assignment_at():
    return AssignAt(), (DATA, INDEX, NEW)


@onnx_ci.recipe(input_names=["data", "index", "new"], output_names=["changed"])
def assignment_by_scatter():
    return Scatter(), (DATA, INDEX, NEW)
