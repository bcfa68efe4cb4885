"""What an exporter is: an object that writes a model to an ONNX file. Installed packages add their own as plug-ins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from onnx_ci.collection.keywords import ExportFunction


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """What an exporter is asked for, in the words of ``torch.onnx.export``. Later versions may add fields."""

    model: torch.nn.Module | torch.export.ExportedProgram
    """A copy of the recipe's model, which no other export gets. What the exporter changes in it is reported."""
    args: tuple[Any, ...]
    """The positional arguments of the example. The model and the tensors are on the device of the cell."""
    kwargs: Mapping[str, Any]
    opset_version: int
    input_names: tuple[str, ...]
    """Empty if the recipe names none; then the exporter chooses the names."""
    output_names: tuple[str, ...]
    dynamic_axes: Mapping[str, Mapping[int, str]]
    """The name of each dynamic axis, by the name of the input or output, whichever form the recipe uses."""
    dynamic_shapes: tuple[Any, ...] | None
    """The same for the inputs, in the form of ``torch.export``: a tree like the arguments, in the order of ``forward``'s
    parameters."""
    training: bool
    """Whether the model is exported in training mode."""
    options: Mapping[str, Any]
    """The recipe's other keywords for ``torch.onnx.export``, such as ``custom_opsets``."""
    external_data: bool | None = None
    """Whether the weights should be in another file; ``None`` if either will do."""
    function: ExportFunction | None = None
    """The recipe's own function, which the exporter ``custom`` calls."""
    returns_files: bool = False
    """Whether that function returns several files by name, which are written to a folder at the path of the file."""


class Exporter(Protocol):
    """Writes models to ONNX files. An entry point of the group ``onnx_ci.exporters`` names its class."""

    def export(self, request: ExportRequest, path: Path) -> None:
        """Write the model to ``path``, and external data, if there is any, to the same folder.

        Whatever it raises, warns about or prints becomes a part of the cell's result.
        """
