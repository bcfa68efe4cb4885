"""All operators of a model that an exporter cannot convert. An export alone stops at the first one.

They are recorded during a real export, with the exporter's own messages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from onnx_ci.errors import first_line
from onnx_ci.matrix.plan import CellTask
from onnx_ci.onnx_model.files import files_in
from onnx_ci.onnx_model.signature import opset_of
from onnx_ci.opsets import DEFAULT_OPSETS
from onnx_ci.pipeline.export.exporter import export
from onnx_ci.pipeline.model.call import PrepareError, SkippedByRecipeError
from onnx_ci.pipeline.prepare.prepare import prepare
from onnx_ci.processes.capture import captured
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.results.records import Cell
from onnx_ci.tools.ops.recording import recording


@dataclass(frozen=True, kw_only=True)
class OperatorSupport:
    """Which operators of a model an exporter cannot convert at one opset."""

    cell: Cell
    unsupported: Mapping[str, str] = field(default_factory=dict)
    """The unsupported operators, in the order of the graph, each with the exporter's message."""
    failure: str = ""
    """Why the export failed otherwise; empty if it did not."""

    @property
    def is_supported(self) -> bool:
        """Whether the model can be exported."""
        return not self.unsupported and not self.failure


def known_opsets() -> tuple[int, ...]:
    """The opsets from the lowest default one to the newest that torch's exporters and onnx support.

    torch has no public name for its newest opset.
    """
    from torch.onnx import _constants

    return tuple(range(DEFAULT_OPSETS[0], min(_constants.ONNX_MAX_OPSET, onnx.defs.onnx_opset_version()) + 1))


def operator_support(task: CellTask) -> OperatorSupport:
    """Export a cell, and record the operators that are not supported."""
    cell = task.cell
    unsupported: dict[str, str] = {}
    with captured(), scratch_folder() as scratch:
        try:
            prepared = prepare(dataclasses.replace(task, is_quick=True))
        except (PrepareError, SkippedByRecipeError) as error:
            return OperatorSupport(cell=cell, failure=first_line(error))
        path = Path(scratch, "model.onnx")
        with recording(cell.exporter, unsupported):
            exported = export(prepared.model, prepared.untaken_branches, cell, path)
        if unsupported:
            return OperatorSupport(cell=cell, unsupported=unsupported)
        if exported.artifact is None:
            return OperatorSupport(cell=cell, failure=exported.findings[0].message)
        others = [opset for opset in map(opset_of, files_in(path)) if opset != cell.opset]
        failure = f"the exporter writes opset {others[0]} instead" if others else ""
        return OperatorSupport(cell=cell, failure=failure)
