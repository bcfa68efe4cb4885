"""The TorchScript exporter, ``torch.onnx.export(dynamo=False)``."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from onnx_ci.errors import first_line
from onnx_ci.pipeline.export.exporter_errors import rule_of_error
from onnx_ci.pipeline.export.handling import Handling, call_torch, replaced
from onnx_ci.pipeline.export.protocol import ExportRequest
from onnx_ci.pipeline.inputs.branches import UntakenBranch
from onnx_ci.pipeline.inputs.conditions import Condition
from onnx_ci.pipeline.model.containers import Container
from onnx_ci.pipeline.model.module import is_exportable
from onnx_ci.processes.capture import ESCAPES, Notice


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

    def frozen_branches(self, branches: Iterable[UntakenBranch], notices: Sequence[Notice]) -> list[UntakenBranch]:
        """TorchScript warns where it freezes a branch, or a number that a branch in the same function may use.

        Without a warning, the branch was not traced: the code asks whether it is.
        """
        return [branch for branch in branches if any(_freezes(notice, branch.condition) for notice in notices)]

    def remedy_of_operator(self, operator: str, opset: int) -> str:
        """A symbolic function."""
        return f"torch.onnx.register_custom_op_symbolic({operator!r}, FUNCTION, {opset})"

    def takes_model(self, model: torch.nn.Module | torch.export.ExportedProgram) -> bool:
        """``torch.onnx.export`` passes some classes to dynamo even with ``dynamo=False``."""
        return not (isinstance(model, torch.export.ExportedProgram) or is_exportable(model))

    def takes_argument(self, argument: Container) -> bool:
        """It passes a tuple or a dict in place of classes derived from these."""
        return False

    def takes_output(self, output: Container) -> bool:
        """It flattens what is a tuple, a list or a dict."""
        return issubclass(output.kind, (tuple, list, dict))

    @contextlib.contextmanager
    def recording(self, unsupported: dict[str, str]) -> Iterator[None]:
        """Record each node that has no symbolic function, or whose symbolic function raises, and continue the export.

        torch has no public function for it. A release without this private one fails tests/e2e/tools/ops/test_command.py.
        """
        from torch.onnx._internal.torchscript_exporter import utils

        from_unsupported: set[str] = set()
        """Values computed from unsupported nodes, whose types and shapes may be unknown."""

        def replacement_of(original: Any) -> Callable[..., Any]:
            def run_symbolic_function(graph: Any, block: Any, node: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
                values = [value for value in inputs if isinstance(value, torch.Value)]
                is_downstream = any(
                    _kind(value.node()) in unsupported or value.debugName() in from_unsupported for value in values
                )
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

        with replaced(utils, "_run_symbolic_function", replacement_of):
            yield


def _freezes(notice: Notice, condition: Condition) -> bool:
    if notice.filename != str(condition.path):
        return False
    is_of_branch = "Python boolean" in notice.message
    return notice.line in (condition.lines if is_of_branch else condition.function)


def _kind(node: Any) -> str:
    """``aten::add``, also for ``add_``, which is exported like ``add``; ``aten::__xor__`` is unchanged."""
    kind: str = node.kind()
    return kind if kind.endswith("__") else kind.removesuffix("_")
