"""Modules that the exporters import lazily, imported before processes are forked, so that each process has them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import warnings
from collections.abc import Iterable

from onnx_ci.environment.versions import version_of
from onnx_ci.processes.garbage import no_garbage_collection
from onnx_ci.stages.export.repeated_work import read_torchlib

_USED_BY = {
    "torchscript": (
        "onnx",
        "onnxruntime",
        "torch.onnx._internal.torchscript_exporter.utils",
        *(f"torch.onnx._internal.torchscript_exporter.symbolic_opset{opset}" for opset in range(7, 24)),
    ),
    "dynamo": (
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
    ),
}
"""What each exporter imports when it is first used; names that this version of torch does not have are ignored."""


@functools.cache
def preload(exporter: str) -> None:
    """Import what cells need before the first fork: in each process it would take most of the time."""
    # ONNX Runtime for CUDA may query GPUs when it is imported (1.31), and a fork cannot use the CUDA of its parent.
    skipped = "onnxruntime" if version_of("onnxruntime-gpu") else ""
    import_quietly(name for name in _USED_BY[exporter] if name != skipped)
    if exporter == "dynamo":
        read_torchlib()


def import_quietly(names: Iterable[str]) -> None:
    """Import modules ahead of time; errors are left to the code that needs them."""
    with warnings.catch_warnings(), no_garbage_collection():
        warnings.simplefilter("ignore")  # warnings of these packages about each other
        for name in names:
            with contextlib.suppress(Exception):  # raised again where the module is needed
                importlib.import_module(name)
