"""Assignments with several index tensors or with broadcasting: what fails, and what to write instead. From opset 11."""

import torch

import onnx_ci


class RankTwo(torch.nn.Module):
    """Two index tensors, one of rank two: not supported according to the documentation, but it works."""

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
    """Makes the indexed axes adjacent, in a copy."""

    def forward(self, data, new):
        data = data.transpose(1, 2).clone()
        data[torch.tensor([2, 3]), torch.tensor([1, 2])] = new
        return data.transpose(1, 2)


class ThroughView(torch.nn.Module):
    """Makes the indexed axes adjacent, in a view: the write to it is missing from the file."""

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
NO_INDEX_PUT = onnx_ci.unsupported("index_put needs ScatterND, which ONNX has from opset 11", seen="torch 2.13.0")
DATA, WIDE = torch.arange(60.0).reshape(4, 5, 3), torch.arange(60.0).reshape(3, 4, 5)


@onnx_ci.recipe(**SIGNATURE, expect={"torchscript 9-10": NO_INDEX_PUT})
def write_with_rank_two():
    return RankTwo(), (DATA, torch.randn(2, 2, 3))


@onnx_ci.recipe(
    **SIGNATURE,
    expect={"torchscript": onnx_ci.known_failure("export-error", "index tensors must be adjacent", seen="torch 2.13.0")},
)
def write_apart():
    return Apart(), (DATA, torch.randn(2, 5))


@onnx_ci.recipe(**SIGNATURE, expect={"torchscript 9-10": NO_INDEX_PUT})
def write_transposed():
    return Transposed(), (DATA, torch.randn(2, 5))


@onnx_ci.recipe(
    **SIGNATURE,
    expect={
        "torchscript": onnx_ci.known_failure(
            "input-missing", "the write to a view is missing from the file", seen="torch 2.13.0"
        )
    },
)
def write_through_view():
    return ThroughView(), (DATA, torch.randn(2, 5))


@onnx_ci.recipe(
    **SIGNATURE,
    expect={
        "torchscript 9-10": NO_INDEX_PUT,
        "torchscript 11-": onnx_ci.known_failure(
            "run-error", "the new values are not broadcast to the indexed shape", seen="torch 2.13.0"
        ),
    },
)
def write_broadcast():
    return Broadcast(), (WIDE, torch.randn(5))


@onnx_ci.recipe(**SIGNATURE, expect={"torchscript 9-10": NO_INDEX_PUT})
def write_expanded():
    return Expanded(), (WIDE, torch.randn(5))
