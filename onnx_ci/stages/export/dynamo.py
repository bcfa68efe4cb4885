"""The dynamo exporter, ``torch.onnx.export(dynamo=True)``, which is built on ``torch.export``."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from onnx_ci.processes.capture import Notice
from onnx_ci.stages.export.handling import Handling
from onnx_ci.stages.export.protocol import ExportRequest
from onnx_ci.stages.export.repeated_work import done_once, read_torchlib
from onnx_ci.stages.export.torch_onnx import call_torch, replaced
from onnx_ci.stages.inputs.branches import UntakenBranch
from onnx_ci.stages.model.containers import Container


class DynamoExporter(Handling):
    """Exports the program that ``torch.export`` captures.

    It gets ``dynamic_shapes`` even where a recipe declares ``dynamic_axes``: its own conversion of these fails on nested
    arguments (torch 2.13).
    """

    modules = (
        "onnx",
        "onnxruntime",
        "onnxscript.function_libs.torch_lib.ops",
        "onnxscript.rewriter.onnx_fusions",
        "sympy.tensor.tensor",
        "torch._dynamo.repro.after_dynamo",
        "torch._dynamo.testing",
        "torch._export.non_strict_utils",
        "torch._inductor.compile_fx",
        "torch.export",
        "torch.onnx._internal.exporter._core",
        "torch.onnx._internal.exporter._registration",
    )

    def export(self, request: ExportRequest, path: Path) -> None:
        """Write the model to ``path``."""
        with done_once():
            placed = {} if request.external_data is None else {"external_data": request.external_data}
            call_torch(request, path, dynamo=True, dynamic_shapes=request.dynamic_shapes, verbose=False, **placed)

    def warm_up(self) -> None:
        """Read the source of torchlib's functions."""
        read_torchlib()

    def frozen_branches(self, branches: Iterable[UntakenBranch], notices: Sequence[Notice]) -> list[UntakenBranch]:
        """Those on sizes, except for ``min`` and ``max``.

        dynamo freezes branches on sizes without a warning, keeps ``min`` and ``max`` of sizes, and rejects branches on values.
        """
        return [branch for branch in branches if branch.by_sizes and not branch.condition.is_call]

    def remedy_of_operator(self, operator: str, opset: int) -> str:
        """A translation in onnxscript."""
        return f"custom_translation_table={{torch.ops.{operator}: FUNCTION}} in the recipe"

    def takes_argument(self, argument: Container) -> bool:
        """``torch.export`` needs the names of the children."""
        return argument.has_keys

    def takes_output(self, output: Container) -> bool:
        """``torch.export`` needs to flatten it."""
        return output.is_registered

    @contextlib.contextmanager
    def recording(self, unsupported: dict[str, str]) -> Iterator[None]:
        """Look up each operator that remains after decomposition in the exporter's registry.

        torch has no public function for it. A release without these private ones fails tests/e2e/cli/test_ops.py.
        """
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

        with replaced(_core, "_exported_program_to_onnx_program", replacement_of):
            yield
