"""The dynamo exporter, ``torch.onnx.export(dynamo=True)``, which is built on ``torch.export``."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch._dispatch.python import all_py_loaded_overloads  # no public function lists operators, or forgets their forms

from onnx_ci.pipeline.export.exporter import ExportRequest
from onnx_ci.pipeline.export.handling import Handling, call_torch
from onnx_ci.pipeline.export.repeated_work import done_once, read_torchlib
from onnx_ci.pipeline.inputs.branches import UntakenBranch
from onnx_ci.pipeline.model.adapter import adapt
from onnx_ci.pipeline.model.call import bound_arguments
from onnx_ci.pipeline.model.containers import Container
from onnx_ci.pipeline.model.module import signature_of
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.processes.capture import Notice
from onnx_ci.results.records import Finding, Severity
from onnx_ci.results.rules import finding


class DynamoExporter(Handling):
    """Exports the program that ``torch.export`` captures.

    It gets ``dynamic_shapes`` even where ``dynamic_axes`` are declared: torch 2.13 fails to convert those of nested arguments.
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
        # Operators remember across exports which form they get: a second LSTM is captured in another one (torch 2.13).
        for operator in all_py_loaded_overloads():
            operator._dispatch_cache.clear()
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

    def remarks(self, model: RecipeModel) -> Iterator[Finding]:
        """A warning if torch.onnx.export, called as declared, refuses the call or passes arguments to other parameters.

        To convert ``dynamic_axes``, torch 2.13 passes all by position, also after one that is left out, and ``*args`` as one.
        The wrapper that ``onnx_ci.adapt`` returns has ``*args``, too, but no user can change its signature.
        """
        signature = signature_of(model.pristine.model)
        if signature is None or type(model.pristine.model).__module__ == adapt.__module__ or not model.recipe.dynamic_axes:
            return
        arguments = bound_arguments(model.pristine)
        kinds = {signature.parameters[name].kind: name for name in arguments}
        places = [each.name for each in signature.parameters.values() if each.kind in _BY_POSITION]
        pairs = itertools.zip_longest(arguments, places[: len(arguments)])
        moved = next(((name, place) for name, place in pairs if name != place), None)
        variadic = kinds.get(inspect.Parameter.VAR_POSITIONAL)
        if moved is None or (inspect.Parameter.VAR_KEYWORD in kinds and not variadic):
            return
        name, place = moved
        what = f"{name!r} as {place!r}, and writes another file" if place else f"which forward does not take for {name!r}"
        does = f"refuses a forward that takes *{variadic}" if variadic else f"passes arguments of kwargs by position, {what}"
        shapes = dict(zip(arguments, model.signature.dynamic_shapes or (), strict=False))
        yield finding(
            "export-warning",
            f"with dynamic_axes, torch.onnx.export(dynamo=True) {does}: this file was exported with dynamic_shapes",
            remedy=f"Where you export, and in the recipe, declare dynamic_shapes={shapes!r} in place of dynamic_axes.",
            severity=Severity.WARNING,
        )

    def takes_argument(self, argument: Container) -> bool:
        """``torch.export`` needs the names of the children."""
        return argument.has_keys

    def takes_output(self, output: Container) -> bool:
        """``torch.export`` needs to flatten it."""
        return output.is_registered


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


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
