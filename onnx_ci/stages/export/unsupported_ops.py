"""All operators of a model that an exporter cannot convert, where an export stops at the first.

They are recorded during a real export, with the exporter's own messages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import torch

from onnx_ci.errors import first_line
from onnx_ci.matrix.plan import PlannedCell
from onnx_ci.onnx_model.signature import opset_of
from onnx_ci.opsets import DEFAULT_OPSETS
from onnx_ci.processes.capture import ESCAPES, captured
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.results.records import Cell
from onnx_ci.results.stages import SKIPPABLE_STAGES
from onnx_ci.stages.export.exporter import export
from onnx_ci.stages.export.exporter_errors import rule_of_error
from onnx_ci.stages.model.live_model import PrepareError, SkippedByRecipeError
from onnx_ci.stages.prepare.prepare import prepare


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
    from torch.onnx import _constants

    return tuple(range(DEFAULT_OPSETS[0], min(_constants.ONNX_MAX_OPSET, onnx.defs.onnx_opset_version()) + 1))


def operator_support(planned: PlannedCell) -> OperatorSupport:
    """Export a cell, and record the operators that are not supported."""
    cell = planned.cell
    unsupported: dict[str, str] = {}
    with captured(), scratch_folder() as scratch:
        try:
            prepared = prepare(dataclasses.replace(planned, skip_stages=SKIPPABLE_STAGES))
        except (PrepareError, SkippedByRecipeError) as error:
            return OperatorSupport(cell=cell, failure=first_line(error))
        path = Path(scratch, "model.onnx")
        with _RECORDERS[cell.exporter](unsupported):
            exported = export(prepared, cell, path)
        if unsupported:
            return OperatorSupport(cell=cell, unsupported=unsupported)
        if exported.artifact is None:
            return OperatorSupport(cell=cell, failure=exported.findings[0].message)
        written = opset_of(path)
        failure = "" if written == cell.opset else f"the exporter writes opset {written} instead"
        return OperatorSupport(cell=cell, failure=failure)


# --- recording ------------------------------------------------------------------------------------------------------
# torch has no public API for this, so these two functions replace a private one of each exporter. If a release of torch does
# not have it, tests/cli/test_ops.py fails with an AttributeError.


@contextlib.contextmanager
def _replaced(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def _record_torchscript(unsupported: dict[str, str]) -> Iterator[None]:
    """Record each node that has no symbolic function, or whose symbolic function raises, and continue the export."""
    from torch.onnx._internal.torchscript_exporter import utils

    from_unsupported: set[str] = set()
    """Values computed from unsupported nodes, whose types and shapes may be unknown."""

    def make(original: Any) -> Callable[..., Any]:
        def run_symbolic_function(graph: Any, block: Any, node: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
            given = [value for value in inputs if isinstance(value, torch._C.Value)]
            is_downstream = any(_kind(value.node()) in unsupported or value.debugName() in from_unsupported for value in given)
            try:
                made = original(graph, block, node, inputs, *rest, **more)
            except Exception as error:  # whatever a symbolic function raises
                if rule_of_error(error) == "unsupported-opset":
                    raise  # not about this operator
                if rule_of_error(error) or not is_downstream:
                    has_none = type(error).__name__ == "UnsupportedOperatorError"
                    doubt = " (possibly caused by an earlier one)" if is_downstream and not has_none else ""
                    unsupported.setdefault(_kind(node), _first_sentence(error) + doubt)
                return None  # keeps the node unchanged
            if is_downstream:
                values = made if isinstance(made, Sequence) else [made]
                from_unsupported.update(value.debugName() for value in values if isinstance(value, torch._C.Value))
            return made

        return run_symbolic_function

    with _replaced(utils, "_run_symbolic_function", make):
        yield


@contextlib.contextmanager
def _record_dynamo(unsupported: dict[str, str]) -> Iterator[None]:
    """Look up each operator that remains after decomposition in the exporter's registry."""
    from torch.onnx._internal.exporter import _core, _dispatching

    def make(original: Any) -> Callable[..., Any]:
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

    with _replaced(_core, "_exported_program_to_onnx_program", make):
        yield


def _kind(node: Any) -> str:
    """``aten::add``, also for ``add_``, which is exported like ``add``; ``aten::__xor__`` is unchanged."""
    kind: str = node.kind()
    return kind if kind.endswith("__") else kind.removesuffix("_")


_RECORDERS = {"torchscript": _record_torchscript, "dynamo": _record_dynamo}


def _first_sentence(error: BaseException) -> str:
    """The first sentence of a symbolic function's error, without the node."""
    first = ESCAPES.sub("", first_line(error)).partition("[Caused by the value")[0].strip()
    return re.split(r"(?<=[.!]) ", first, maxsplit=1)[0].rstrip(".")
