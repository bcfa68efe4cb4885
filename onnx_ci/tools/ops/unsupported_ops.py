"""All operators of a model that an exporter cannot convert. An export alone stops at the first one.

They are recorded during a real export, with the exporter's own messages. torch has no public function for that in either of its
exporters. A release without the private ones that are replaced here fails tests/e2e/tools/ops/test_command.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import onnx
import torch

from onnx_ci.errors import first_line
from onnx_ci.matrix.plan import CellTask
from onnx_ci.onnx_model.files import files_in
from onnx_ci.onnx_model.signature import opset_of
from onnx_ci.opsets import DEFAULT_OPSETS
from onnx_ci.pipeline.export.export import export
from onnx_ci.pipeline.export.exporter_errors import rule_of_error
from onnx_ci.pipeline.model.call import PrepareError, SkippedByRecipeError
from onnx_ci.pipeline.prepare.prepare import prepare
from onnx_ci.processes.capture import ESCAPES, captured
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.results.records import Cell


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
    """The opsets from the lowest default one to the newest that torch's exporters and onnx support."""
    from torch.onnx import _constants  # the newest opset has no public name

    return tuple(range(DEFAULT_OPSETS[0], min(_constants.ONNX_MAX_OPSET, onnx.defs.onnx_opset_version()) + 1))


def operator_support(task: CellTask) -> OperatorSupport:
    """Export a cell, and record the operators that are not supported."""
    cell = task.cell
    with captured(), scratch_folder() as scratch:
        try:
            prepared = prepare(dataclasses.replace(task, is_quick=True))
        except (PrepareError, SkippedByRecipeError) as error:
            return OperatorSupport(cell=cell, failure=first_line(error))
        path = scratch / "model.onnx"
        with _recorded(cell.exporter) as unsupported:
            exported = export(prepared.model, prepared.untaken_branches, cell, path)
        if unsupported:
            return OperatorSupport(cell=cell, unsupported=unsupported)
        if exported.artifact is None:
            return OperatorSupport(cell=cell, failure=exported.findings[0].message)
        others = [opset for opset in map(opset_of, files_in(path)) if opset != cell.opset]
        failure = f"the exporter writes opset {others[0]} instead" if others else ""
        return OperatorSupport(cell=cell, failure=failure)


@contextlib.contextmanager
def _recorded(exporter: str) -> Iterator[dict[str, str]]:
    """Within the block, an export adds each operator that it cannot convert, with its message, to the dictionary.

    With an exporter that is not torch's nothing is added: the export stops at the first one.
    """
    unsupported: dict[str, str] = {}
    if exporter == "torchscript":
        from torch.onnx._internal.torchscript_exporter import utils

        owner: ModuleType = utils
        name, recording = "_run_symbolic_function", _recording_of_torchscript
    elif exporter == "dynamo":
        from torch.onnx._internal.exporter import _core

        owner, name, recording = _core, "_exported_program_to_onnx_program", _recording_of_dynamo
    else:
        yield unsupported
        return
    original = getattr(owner, name)
    setattr(owner, name, recording(original, unsupported))
    try:
        yield unsupported
    finally:
        setattr(owner, name, original)


def _recording_of_torchscript(original: Callable[..., Any], unsupported: dict[str, str]) -> Callable[..., Any]:
    """Record each node that has no symbolic function, or whose symbolic function raises, and continue the export."""
    from_unsupported: set[str] = set()
    """Values computed from unsupported nodes, whose types and shapes may be unknown."""

    def run_symbolic_function(graph: Any, block: Any, node: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
        values = [value for value in inputs if isinstance(value, torch.Value)]
        is_downstream = any(_kind(value.node()) in unsupported or value.debugName() in from_unsupported for value in values)
        try:
            outputs = original(graph, block, node, inputs, *rest, **more)
        except Exception as error:  # whatever a symbolic function raises
            if rule_of_error(error) == "unsupported-opset":
                raise  # not about this operator
            if rule_of_error(error) or not is_downstream:
                has_none = type(error).__name__ == "UnsupportedOperatorError"
                doubt = " (possibly caused by an earlier one)" if is_downstream and not has_none else ""
                message = ESCAPES.sub("", first_line(error)).partition("[Caused by the value")[0].strip()
                first_sentence = re.split(r"(?<=[.!]) ", message, maxsplit=1)[0].rstrip(".")
                unsupported.setdefault(_kind(node), first_sentence + doubt)
            return None  # keeps the node unchanged
        if is_downstream:
            listed = outputs if isinstance(outputs, Sequence) else [outputs]
            from_unsupported.update(value.debugName() for value in listed if isinstance(value, torch.Value))
        return outputs

    return run_symbolic_function


def _kind(node: Any) -> str:
    """``aten::add``, also for ``add_``, which is exported like ``add``; ``aten::__xor__`` is unchanged."""
    kind: str = node.kind()
    return kind if kind.endswith("__") else kind.removesuffix("_")


def _recording_of_dynamo(original: Callable[..., Any], unsupported: dict[str, str]) -> Callable[..., Any]:
    """Look up each operator that remains after decomposition in the exporter's registry."""
    from torch.onnx._internal.exporter import _core, _dispatching

    def translate(program: Any, *, registry: Any, **more: Any) -> Any:
        graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
        for node in (node for graph in graphs for node in graph.nodes if node.op == "call_function"):
            if node.target is operator.getitem or _core._is_onnx_op(node.target):
                continue  # the exporter converts these itself
            function, message = _dispatching.dispatch(node, registry)
            if function is None:
                unsupported.setdefault(str(node.target), message)
        return original(program, registry=registry, **more)

    return translate
