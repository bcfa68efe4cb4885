"""The runtimes by name.

A new runtime needs a module in this package, a line here, its name in :data:`onnx_ci.environment.versions.RUNTIMES`, and,
for its version to be recorded, its distribution in ``environment/versions.py`` and ``baseline/entry.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onnx_ci.stages.run.onnx_reference import ReferenceRuntime
from onnx_ci.stages.run.onnxruntime import OnnxRuntime
from onnx_ci.stages.run.openvino import OpenVinoRuntime
from onnx_ci.stages.run.runtime import Runtime

_MAKERS: Mapping[str, Callable[[bool], Runtime]] = {
    "onnxruntime": lambda tf32: OnnxRuntime(tf32=tf32),
    "reference": lambda tf32: ReferenceRuntime(),
    "openvino": lambda tf32: OpenVinoRuntime(),
}


def make_runtime(name: str, *, tf32: bool = False) -> Runtime:
    """A runtime of :data:`onnx_ci.environment.versions.RUNTIMES`.

    Args:
        name: its name.
        tf32: whether it may use TensorFloat-32 on CUDA.
    """
    return _MAKERS[name](tf32)
