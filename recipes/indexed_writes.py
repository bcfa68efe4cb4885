"""Assignments with several index tensors, or to fewer axes than the place has: what fails, and what to write. From opset 11."""

import torch

import onnx_ci


class RankTwo(torch.nn.Module):
    """An index of rank two beside another one: the documentation forbids it, and it works."""

    def forward(self, data, new):
        data = data.clone()
        data[torch.tensor([[1, 2], [2, 3]]), torch.tensor([2, 3])] = new
        return data


class Apart(torch.nn.Module):
    def forward(self, data, new):
        data = data.clone()
        data[torch.tensor([2, 3]), :, torch.tensor([1, 2])] = new
        return data


class Transposed(torch.nn.Module):
    """Brings the indexed axes together, in a copy."""

    def forward(self, data, new):
        data = data.transpose(1, 2).clone()
        data[torch.tensor([2, 3]), torch.tensor([1, 2])] = new
        return data.transpose(1, 2)


class ThroughView(torch.nn.Module):
    """Brings the indexed axes together, in a view: what is written to it is lost."""

    def forward(self, data, new):
        data = data.clone()
        data.transpose(1, 2)[torch.tensor([2, 3]), torch.tensor([1, 2])] = new
        return data


class Broadcast(torch.nn.Module):
    def forward(self, data, new):
        data = data.clone()
        data[torch.tensor([[0, 2], [1, 1]]), 1:3] = new
        return data


class Expanded(torch.nn.Module):
    def forward(self, data, new):
        data = data.clone()
        data[torch.tensor([[0, 2], [1, 1]]), 1:3] = new.expand(2, 2, 2, 5)
        return data


SIGNATURE = {"input_names": ["data", "new"], "output_names": ["changed"]}
NO_INDEX_PUT = onnx_ci.unsupported("index_put needs ScatterND, from opset 11", seen="torch 2.13.0")
DATA, WIDE = torch.arange(60.0).reshape(4, 5, 3), torch.arange(60.0).reshape(3, 4, 5)


@onnx_ci.recipe(**SIGNATURE, expect={"torchscript 9-10": NO_INDEX_PUT})
def write_with_rank_two():
    return RankTwo(), (DATA, torch.randn(2, 2, 3))


@onnx_ci.recipe(
    **SIGNATURE,
    expect={"torchscript": onnx_ci.fails("export-error", "index tensors must stand beside each other", seen="torch 2.13.0")},
)
def write_apart():
    return Apart(), (DATA, torch.randn(2, 5))


@onnx_ci.recipe(**SIGNATURE, expect={"torchscript 9-10": NO_INDEX_PUT})
def write_transposed():
    return Transposed(), (DATA, torch.randn(2, 5))


@onnx_ci.recipe(
    **SIGNATURE,
    expect={"torchscript": onnx_ci.fails("input-missing", "a write to a view of the data is lost", seen="torch 2.13.0")},
)
def write_through_view():
    return ThroughView(), (DATA, torch.randn(2, 5))


@onnx_ci.recipe(
    **SIGNATURE,
    expect={
        "torchscript 9-10": NO_INDEX_PUT,
        "torchscript 11-": onnx_ci.fails("run-error", "the new values are not broadcast to the place", seen="torch 2.13.0"),
    },
)
def write_broadcast():
    return Broadcast(), (WIDE, torch.randn(5))


@onnx_ci.recipe(**SIGNATURE, expect={"torchscript 9-10": NO_INDEX_PUT})
def write_expanded():
    return Expanded(), (WIDE, torch.randn(5))
