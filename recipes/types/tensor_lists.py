"""Lists of tensors: scripted, they become ONNX sequences (from opset 11); traced, they disappear (from opset 9)."""

import torch

import onnx_ci


class ListLoop(torch.nn.Module):
    def forward(self, x):
        forwards: list[torch.Tensor] = []
        backwards: list[torch.Tensor] = []
        parts = x.split(2, 0)
        count = torch.zeros(3, 4, dtype=torch.int64)
        for i in range(len(parts)):
            forwards.append(parts[i].sum(0))
            backwards.append(parts[-1 - i].sum(0))
            count += 1
        return torch.stack(forwards), torch.stack(backwards), count


class ListOutput(torch.nn.Module):
    def forward(self, x):
        rows: list[torch.Tensor] = []
        for i in range(x.shape[0]):
            rows.append(x[i])
        return rows


class TuplesInList(torch.nn.Module):
    def forward(self, x):
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for i in range(x.shape[0]):
            pairs.append((x[i], x[i] + 1))
        total = torch.zeros_like(x[0])
        for one, other in pairs:
            total = total + one * other
        return total


class Unbind(torch.nn.Module):
    def forward(self, x):
        return x.unbind(0)


class Split(torch.nn.Module):
    def forward(self, x):
        return [part.squeeze(0) for part in torch.split(x, [1, 1, 1], dim=0)]


class ListInput(torch.nn.Module):
    def forward(self, parts):
        return torch.stack(parts).sum(0)


NOT_SCRIPTED = onnx_ci.known_failure("export-error", "torch.export does not accept scripted modules", seen="torch 2.13.0")
NO_SEQUENCE = onnx_ci.unsupported("ONNX has sequences from opset 11", seen="torch 2.13.0")
ROWS = torch.arange(9.0).reshape(3, 3)


@onnx_ci.recipe(
    input_names=["x"],
    output_names=["forwards", "backwards", "count"],
    dynamic_axes={"x": {0: "length"}, "forwards": {0: "parts"}, "backwards": {0: "parts"}},
    expect={"torchscript 9-10": NO_SEQUENCE, "dynamo": NOT_SCRIPTED},
)
def list_in_loop():
    return torch.jit.script(ListLoop()), (torch.randn(16),)


@onnx_ci.recipe(
    input_names=["x"],
    expect={
        "torchscript 9-10": NO_SEQUENCE,
        "torchscript 11-": onnx_ci.known_failure(
            "output-mismatch", "the list is a single output, a sequence", seen="torch 2.13.0"
        ),
        "dynamo": NOT_SCRIPTED,
    },
)
def list_output():
    return torch.jit.script(ListOutput()), (ROWS,)


@onnx_ci.recipe(
    input_names=["x"],
    output_names=["y"],
    expect={
        "torchscript": onnx_ci.known_failure("export-error", "ONNX sequences cannot contain tuples", seen="torch 2.13.0"),
        "dynamo": NOT_SCRIPTED,
    },
)
def list_of_tuples():
    return torch.jit.script(TuplesInList()), (ROWS,)


@onnx_ci.recipe(input_names=["x"], output_names=["y"])
def list_of_tuples_traced():
    return TuplesInList(), (ROWS,)


@onnx_ci.recipe(input_names=["x"], output_names=["first", "second", "third"])
def list_from_unbind():
    return Unbind(), (ROWS,)


@onnx_ci.recipe(input_names=["x"], output_names=["first", "second", "third"])
def list_from_split():
    return Split(), (ROWS,)


@onnx_ci.recipe(input_names=["first", "second", "third"], output_names=["total"])
def list_input():
    return ListInput(), (list(ROWS),)
