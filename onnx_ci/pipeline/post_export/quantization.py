"""The stages ``int8-dynamic`` and ``int8-static``: ``onnxruntime.quantization``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx_ci.collection.post_export import PostExportStage
from onnx_ci.pipeline.post_export.packages import import_package

Feeds = Callable[[], Sequence[Mapping[str, Any]]]
"""Gives inputs by name, as numpy arrays, for each input on which a file may be calibrated."""


class CalibrationError(Exception):
    """There are no inputs from which ranges can be determined."""

    remedy = "Give the recipe an example like the inputs in production: finite, and not all of one value."


def quantize_dynamic(before: Path, after: Path, **options: Any) -> None:
    """``quantize_dynamic``, with the stage's options as its keywords; types are given by name: ``weight_type="QUInt8"``."""
    package = _package()
    package.quantize_dynamic(before, after, **_with_enumerations(options, package))


def quantize_static(before: Path, after: Path, *, feeds: Feeds, **options: Any) -> None:
    """``quantize_static``, calibrated on the recipe's inputs; options as for :func:`quantize_dynamic`.

    Raises:
        CalibrationError: there are no inputs to calibrate on.
    """
    package = _package()
    inputs = feeds()
    if not inputs:
        raise CalibrationError("on every input of the recipe, floating-point values are not finite, or all the same")
    package.quantize_static(before, after, _reader(package, iter(inputs)), **_with_enumerations(options, package))


def _package() -> Any:
    return import_package("onnxruntime.quantization", package="onnxruntime", extra="cpu")


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


def _reader(package: Any, feeds: Iterator[Mapping[str, Any]]) -> Any:
    class Reader(package.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Mapping[str, Any] | None:
            return next(feeds, None)

    return Reader()


_MICROSOFT = ("com.microsoft",)
INT8_DYNAMIC = PostExportStage(name="int8-dynamic", transform=quantize_dynamic, lossy="int8", domains=_MICROSOFT)
INT8_STATIC = PostExportStage(name="int8-static", transform=quantize_static, lossy="int8", domains=_MICROSOFT, is_static=True)
