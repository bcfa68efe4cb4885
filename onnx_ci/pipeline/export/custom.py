"""The exporter ``custom``: a recipe's own function, ``@recipe(export=...)``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from onnx_ci.onnx_model.files import NotAModelError, write_returned
from onnx_ci.pipeline.export.dynamo import DynamoExporter
from onnx_ci.pipeline.export.exporter import ExportRequest
from onnx_ci.pipeline.export.handling import Handling
from onnx_ci.pipeline.export.torchscript import TorchScriptExporter
from onnx_ci.pipeline.inputs.branches import UntakenBranch
from onnx_ci.processes.capture import Notice


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
            _write_several(returned, path)
        elif not path.is_file():  # torch.onnx.export also returns the program that it has written
            _write(returned, path)

    def frozen_branches(self, branches: Iterable[UntakenBranch], notices: Sequence[Notice]) -> list[UntakenBranch]:
        """Those that one of torch's exporters freezes."""
        untaken = list(branches)
        by_torchscript = TorchScriptExporter().frozen_branches(untaken, notices)
        by_dynamo = DynamoExporter().frozen_branches(untaken, notices)
        return [branch for branch in untaken if branch in by_torchscript or branch in by_dynamo]


_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


def _write_several(returned: object, folder: Path) -> None:
    """Write the files that the function returned by name to ``folder``, each as ``NAME.onnx``."""
    if not isinstance(returned, Mapping) or not returned:
        what = "an empty dictionary" if returned == {} else "None" if returned is None else f"a {type(returned).__name__}"
        raise NotAModelError(f"returned {what} instead of the files by name, which run_files runs")
    folder.mkdir()
    for name, each in returned.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise NotAModelError(
                f"returned a file with the name {name!r}; use letters, digits, '_', '-' and '.', such as 'decode'"
            )
        try:
            _write(each, folder / f"{name}.onnx")
        except NotAModelError as error:
            raise NotAModelError(f"{error} for {name!r}") from None


def _write(returned: object, path: Path) -> None:
    if isinstance(returned, torch.onnx.ONNXProgram):
        returned.save(path)
    else:
        write_returned(returned, path)
