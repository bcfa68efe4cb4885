"""What can be applied to a file by name, with packages that are imported then: simplifiers, half precision, quantization."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from onnx_ci.collection.post_export import GraphPass
from onnx_ci.onnx_model.files import has_external_data

Feeds = Callable[[], Sequence[Mapping[str, Any]]]
"""Gives inputs by name, as numpy arrays, for each input on which a file may be calibrated."""


class CannotApplyError(Exception):
    """A package is not installed, or inputs for a calibration are missing."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.remedy = remedy


def _import(module: str, *, package: str, extra: str) -> Any:
    """Import a module of a package that an extra of onnx-ci requires."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.startswith(error.name):
            problem = f"needs {package}, which is not installed"
            raise CannotApplyError(problem, f"pip install onnx-ci[{extra}]") from None
        raise


def onnxsim(model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    """``onnxsim.simplify``, with the options as its keywords."""
    package = _import("onnxsim", package="onnxsim", extra="onnxsim")
    simplified: onnx.ModelProto
    simplified, is_valid = package.simplify(model, **options)
    if not is_valid:
        raise ValueError("onnxsim's own check of the simplified model failed")
    return simplified


def onnxslim(model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    """``onnxslim.slim``, with the options as its keywords."""
    slimmed: onnx.ModelProto = _import("onnxslim", package="onnxslim", extra="onnxslim").slim(model, **options)
    return slimmed


def ort_optimized(before: Path, after: Path, **options: Any) -> None:
    """ONNX Runtime's offline mode: the optimized graph of a session, saved with ``optimized_model_filepath``.

    The default level is ``extended``: ``all`` adds layouts for the processor at hand, so its file cannot be deployed
    elsewhere (ONNX Runtime's documentation, "Graph Optimizations").
    """
    ort = _import("onnxruntime", package="onnxruntime", extra="cpu")
    levels = {
        "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    }
    level = options.get("level", "extended")
    if options.keys() - {"level"} or level not in levels:
        raise ValueError(f"ort-optimized takes level='basic', 'extended' or 'all', not {options}")
    session_options = ort.SessionOptions()
    session_options.log_severity_level = 3  # a note that the file is for this machine is no finding
    session_options.graph_optimization_level = levels[level]
    session_options.optimized_model_filepath = str(after)
    if has_external_data(before):  # otherwise the new file would refer to data that is in the folder of the old one
        entry = "session.optimized_model_external_initializers_file_name"
        session_options.add_session_config_entry(entry, f"{after.name}.data")
    ort.InferenceSession(before, sess_options=session_options, providers=["CPUExecutionProvider"])


def to_float16(model: onnx.ModelProto, *, keep_io_types: bool, **options: Any) -> onnx.ModelProto:
    """``onnxconverter_common.float16.convert_float_to_float16``, with the options as its keywords."""
    package = _import("onnxconverter_common.float16", package="onnxconverter-common", extra="float16")
    converted: onnx.ModelProto = package.convert_float_to_float16(model, keep_io_types=keep_io_types, **options)
    return converted


def quantize_dynamic(before: Path, after: Path, **options: Any) -> None:
    """``quantize_dynamic``, with the options as its keywords; types are given by name: ``weight_type="QUInt8"``."""
    package = _import("onnxruntime.quantization", package="onnxruntime", extra="cpu")
    package.quantize_dynamic(before, after, **_with_enumerations(options, package))


def quantize_static(before: Path, after: Path, *, feeds: Feeds, **options: Any) -> None:
    """``quantize_static``, calibrated on the recipe's inputs; options as for :func:`quantize_dynamic`.

    Raises:
        CannotApplyError: there are no inputs to calibrate on.
    """
    package: Any = _import("onnxruntime.quantization", package="onnxruntime", extra="cpu")
    inputs = feeds()
    if not inputs:
        problem = "cannot be calibrated: on every input of the recipe, floating-point values are not finite, or all the same"
        remedy = "Give the recipe an example like the inputs in production: finite, and not all of one value."
        raise CannotApplyError(problem, remedy)
    waiting = iter(inputs)

    class Reader(package.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Mapping[str, Any] | None:
            return next(waiting, None)

    package.quantize_static(before, after, Reader(), **_with_enumerations(options, package))


_ENUMERATIONS = {
    "weight_type": "QuantType",
    "activation_type": "QuantType",
    "quant_format": "QuantFormat",
    "calibrate_method": "CalibrationMethod",
}


def _with_enumerations(options: Mapping[str, Any], package: Any) -> dict[str, Any]:
    """Options in which the names of enumerations' values are replaced by the values."""
    return {
        name: getattr(package, _ENUMERATIONS[name])[value] if name in _ENUMERATIONS and isinstance(value, str) else value
        for name, value in options.items()
    }


_MICROSOFT = ("com.microsoft",)
ONNXSIM = GraphPass(name="onnxsim", transform=onnxsim)
ONNXSLIM = GraphPass(name="onnxslim", transform=onnxslim)
ORT_OPTIMIZED = GraphPass(name="ort-optimized", transform=ort_optimized, domains=_MICROSOFT)
FLOAT16 = GraphPass(name="float16", transform=to_float16, lossy="float16", keep_io_types=False)
INT8_DYNAMIC = GraphPass(name="int8-dynamic", transform=quantize_dynamic, lossy="int8", domains=_MICROSOFT)
INT8_STATIC = GraphPass(name="int8-static", transform=quantize_static, lossy="int8", domains=_MICROSOFT, is_static=True)
