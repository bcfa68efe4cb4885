"""Records the operators that an exporter cannot convert, while it exports.

torch has no public function for either of its exporters. A release without the private ones that are replaced here fails
tests/e2e/tools/ops/test_command.py.
"""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from onnx_ci.errors import first_line
from onnx_ci.pipeline.export.exporter_errors import rule_of_error
from onnx_ci.processes.capture import ESCAPES


def recording(exporter: str, unsupported: dict[str, str]) -> AbstractContextManager[None]:
    """Within the block, an export adds each operator that it cannot convert, with its message, to ``unsupported``.

    With an exporter that is not torch's nothing is added: the export stops at the first one.
    """
    record = {"torchscript": _torchscript, "dynamo": _dynamo}.get(exporter)
    return contextlib.nullcontext() if record is None else record(unsupported)


@contextlib.contextmanager
def _torchscript(unsupported: dict[str, str]) -> Iterator[None]:
    """Record each node that has no symbolic function, or whose symbolic function raises, and continue the export."""
    from torch.onnx._internal.torchscript_exporter import utils

    from_unsupported: set[str] = set()
    """Values computed from unsupported nodes, whose types and shapes may be unknown."""

    def replacement_of(original: Any) -> Callable[..., Any]:
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

    with _replaced(utils, "_run_symbolic_function", replacement_of):
        yield


def _kind(node: Any) -> str:
    """``aten::add``, also for ``add_``, which is exported like ``add``; ``aten::__xor__`` is unchanged."""
    kind: str = node.kind()
    return kind if kind.endswith("__") else kind.removesuffix("_")


@contextlib.contextmanager
def _dynamo(unsupported: dict[str, str]) -> Iterator[None]:
    """Look up each operator that remains after decomposition in the exporter's registry."""
    from torch.onnx._internal.exporter import _core, _dispatching

    def replacement_of(original: Any) -> Callable[..., Any]:
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

    with _replaced(_core, "_exported_program_to_onnx_program", replacement_of):
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, replacement_of: Callable[[Any], Callable[..., Any]]) -> Iterator[None]:
    """Within the block, a function of a module is replaced by what ``replacement_of`` makes of it."""
    original = getattr(owner, name)
    setattr(owner, name, replacement_of(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
