"""The TorchScript exporter, ``torch.onnx.export(dynamo=False)``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import onnx
import torch

from onnx_ci.pipeline.export.exporter import ExportRequest
from onnx_ci.pipeline.export.handling import Handling, call_torch
from onnx_ci.pipeline.inputs.branches import UntakenBranch
from onnx_ci.pipeline.inputs.conditions import Condition
from onnx_ci.pipeline.model.containers import Container
from onnx_ci.pipeline.model.module import is_exportable
from onnx_ci.processes.capture import Notice


class TorchScriptExporter(Handling):
    """Traces the model, and warns wherever it freezes what may vary."""

    modules = (
        "onnx",
        "onnxruntime",
        "torch.onnx._internal.torchscript_exporter.utils",
        *(f"torch.onnx._internal.torchscript_exporter.symbolic_opset{opset}" for opset in range(7, 24)),
    )

    def export(self, request: ExportRequest, path: Path) -> None:
        """Write the model to ``path``."""
        if not self.takes_model(request.model):
            raise TypeError("torch.onnx.export would export it with dynamo, whatever it is asked for")
        mode = torch.onnx.TrainingMode.TRAINING if request.training else torch.onnx.TrainingMode.EVAL
        call_torch(request, path, dynamo=False, training=mode, dynamic_axes=request.dynamic_axes or None)

    def warm_up(self) -> None:
        """Load ONNX's definitions of operators, of which torch has a copy of its own: 0.04 s in each process."""
        onnx.defs.has("Relu")
        torch.onnx.export(torch.nn.ReLU(), (torch.zeros(1),), os.devnull, dynamo=False)

    def frozen_branches(self, branches: Iterable[UntakenBranch], notices: Sequence[Notice]) -> list[UntakenBranch]:
        """TorchScript warns where it freezes a branch, or a number that a branch in the same function may use.

        Without a warning, the branch was not traced: the code asks whether it is.
        """
        return [branch for branch in branches if any(_freezes(notice, branch.condition) for notice in notices)]

    def takes_model(self, model: torch.nn.Module | torch.export.ExportedProgram) -> bool:
        """``torch.onnx.export`` passes some classes to dynamo even with ``dynamo=False``."""
        return not (isinstance(model, torch.export.ExportedProgram) or is_exportable(model))

    def takes_argument(self, argument: Container) -> bool:
        """It passes a tuple or a dict in place of classes derived from these."""
        return False

    def takes_output(self, output: Container) -> bool:
        """It flattens what is a tuple, a list or a dict."""
        return issubclass(output.kind, (tuple, list, dict))


def _freezes(notice: Notice, condition: Condition) -> bool:
    if notice.filename != str(condition.path):
        return False
    is_of_branch = "Python boolean" in notice.message
    return notice.line in (condition.lines if is_of_branch else condition.function)
