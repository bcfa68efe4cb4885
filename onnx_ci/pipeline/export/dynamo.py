"""The dynamo exporter, ``torch.onnx.export(dynamo=True)``, which is built on ``torch.export``."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from onnx_ci.pipeline.export.handling import Handling, call_torch, replaced
from onnx_ci.pipeline.export.protocol import ExportRequest
from onnx_ci.pipeline.export.repeated_work import done_once, read_torchlib
from onnx_ci.pipeline.inputs.branches import UntakenBranch
from onnx_ci.pipeline.model.containers import Container
from onnx_ci.pipeline.model.module import signature_of
from onnx_ci.processes.capture import Notice


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
        request = _without_default_nones(request)
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

        torch has no public function for it. A release without these private ones fails tests/e2e/tools/ops/test_command.py.
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


def _without_default_nones(request: ExportRequest) -> ExportRequest:
    """The same call without the arguments that are ``None`` by default.

    torch.onnx names no dynamic axes if there are more arguments than inputs of the file (torch 2.13).
    """
    signature = signature_of(request.model) if isinstance(request.model, torch.nn.Module) else None
    if signature is None or request.dynamic_shapes is None:
        return request
    arguments = signature.bind(*request.args, **request.kwargs).arguments
    parameters = [signature.parameters[name] for name in arguments]
    dropped = [each.name for each in parameters if arguments[each.name] is None and each.default is None]
    before = [*arguments].index(dropped[0]) if dropped else 0
    if not dropped or any(each.kind not in _BY_NAME for each in parameters[before:]):
        return request
    by_position = min(before, len(request.args))
    return dataclasses.replace(
        request,
        args=request.args[:by_position],
        kwargs={name: value for name, value in [*arguments.items()][by_position:] if name not in dropped},
        dynamic_shapes=tuple(
            shapes for name, shapes in zip(arguments, request.dynamic_shapes, strict=True) if name not in dropped
        ),
    )


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
