"""The exporter of transformers, ``OnnxExporter``: dynamo with what the library changes for its own models.

transformers calls it experimental. What is asked of it here was tried with version 5.23.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx_ir
import torch
from torch.utils import _pytree as pytree  # where classes are registered for torch.export; it has no public name

from onnx_ci.errors import EnvironmentLacksError, RecipeError
from onnx_ci.pipeline.export.exporter import ExportRequest
from onnx_ci.pipeline.model.module import signature_of
from onnx_ci.pipeline.model.operators import tensor_leaves


class TransformersExporter:
    """Exports models of transformers, also within a wrapper such as that of :func:`onnx_ci.adapt`.

    Raises:
        EnvironmentLacksError: transformers is not installed, or has no such exporter.
    """

    def __init__(self) -> None:
        if find_spec("transformers") is None or find_spec("transformers.exporters") is None:
            needed = "the exporter 'transformers' needs transformers 5.23 or later"
            raise EnvironmentLacksError(f"{needed}; install onnx-ci with the extra transformers")

    def export(self, request: ExportRequest, path: Path) -> None:
        """Write the model to ``path``, with the recipe's names. The recipe's options are passed to ``OnnxConfig``.

        Raises:
            RecipeError: an argument has no name, or the model is a program.
        """
        if not isinstance(request.model, torch.nn.Module):
            raise RecipeError("the exporter of transformers takes modules only; return program.module()")
        exporters = import_module("transformers.exporters")
        arguments, shapes = _by_name(request.model, request)
        if shapes is not None:
            # Without the tensors, which the exporter prepares itself.
            others = {name: value for name, value in arguments.items() if not tensor_leaves(value)}
            _, _, flags = import_module("transformers.exporters.utils").prepare_for_export(request.model, others)
            shapes = {name: shape for name, shape in shapes.items() if name not in flags}
        config = exporters.OnnxConfig(dynamic_shapes=shapes, opset_version=request.opset_version, **request.options)
        own_forward = vars(request.model).get("forward")
        program, _ = exporters.OnnxExporter().export_program(request.model, arguments, config)
        if own_forward is None:
            vars(request.model).pop("forward", None)  # the exporter replaces the method and puts it back as an attribute
        _rename(program.graph.inputs, request.input_names)
        _rename(program.graph.outputs, request.output_names)
        _name_axes(program.graph, request.dynamic_axes)
        exporters.OnnxExporter.save_program(program, path)


def _by_name(model: torch.nn.Module, request: ExportRequest) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The arguments by the names of forward's parameters, because the exporter takes no others; and their dynamic shapes."""
    signature = signature_of(model) or inspect.Signature()
    arguments = signature.bind(*request.args, **request.kwargs).arguments
    shapes = None if request.dynamic_shapes is None else dict(zip(arguments, request.dynamic_shapes, strict=True))
    for parameter in signature.parameters.values():
        if parameter.name in arguments and parameter.kind is parameter.VAR_POSITIONAL:
            named = len(request.args) - len(arguments[parameter.name])
            has = f"{type(model).__name__}.forward has names for {named} of {len(request.args)}"
            remedy = "declare them as parameters instead of *args"
            raise RecipeError(f"the exporter of transformers takes arguments by name, and {has}; {remedy}")
        if parameter.name in arguments and parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(parameter.name)
            if shapes is not None:
                shapes |= shapes.pop(parameter.name)
    return arguments, None if shapes is None else pytree.tree_map_only(str, lambda _: torch.export.Dim.DYNAMIC, shapes)


def _rename(values: Sequence[onnx_ir.Value], names: Sequence[str]) -> None:
    for value, name in zip(values, names, strict=False):
        value.name = name


def _name_axes(graph: onnx_ir.Graph, axes: Mapping[str, Mapping[int, str]]) -> None:
    """Give the dynamic axes of the inputs, and the axes that are the same in other tensors, the names of the recipe."""
    names: dict[str | None, str] = {}
    for value in graph.inputs:
        for axis, name in axes.get(value.name or "", {}).items():
            if value.shape is not None and isinstance(dim := value.shape[axis], onnx_ir.SymbolicDim):
                names.setdefault(dim.value, name)
    values = [*graph.inputs, *(output for node in graph.all_nodes() for output in node.outputs)]
    for value in values:
        if value.shape is not None:  # it may be frozen, so it is replaced
            dims = (names.get(dim.value, dim) if isinstance(dim, onnx_ir.SymbolicDim) else dim for dim in value.shape)
            value.shape = onnx_ir.Shape(dims)
