"""The exporter ``custom``: a recipe's own function, ``@recipe(export=...)``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from onnx_ci.onnx_model.files import NotAModelError, write_returned, write_several
from onnx_ci.processes.capture import Notice
from onnx_ci.stages.export.dynamo import DynamoExporter
from onnx_ci.stages.export.handling import Handling
from onnx_ci.stages.export.protocol import ExportRequest
from onnx_ci.stages.export.torchscript import TorchScriptExporter
from onnx_ci.stages.inputs.branches import UntakenBranch


class CustomExporter(Handling):
    """Calls the function of the recipe. Most functions call one of torch's exporters; which one is not known."""

    modules = tuple(dict.fromkeys((*TorchScriptExporter.modules, *DynamoExporter.modules)))

    def export(self, request: ExportRequest, path: Path) -> None:
        """Call the function, and write what it returns to ``path`` unless it has written the file itself.

        Raises:
            NotAModelError: it has written no file and returns no model, or not the files by name that it should return.
        """
        if request.function is None:
            raise NotAModelError("the recipe has no export function")
        returned = request.function(request.model, request.args, dict(request.kwargs), request.opset_version, path)
        if request.returns_files:
            write_several(returned, path, _write)
        elif not path.is_file():  # torch.onnx.export also returns the program that it has written
            _write(returned, path)

    def frozen_branches(self, branches: Iterable[UntakenBranch], notices: Sequence[Notice]) -> list[UntakenBranch]:
        """Those that one of torch's exporters freezes."""
        untaken = list(branches)
        by_torchscript = TorchScriptExporter().frozen_branches(untaken, notices)
        by_dynamo = DynamoExporter().frozen_branches(untaken, notices)
        return [branch for branch in untaken if branch in by_torchscript or branch in by_dynamo]


def _write(returned: object, path: Path) -> None:
    if isinstance(returned, torch.onnx.ONNXProgram):
        returned.save(path)
    else:
        write_returned(returned, path)
