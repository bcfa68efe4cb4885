"""The stages ``int8-dynamic`` and ``int8-static``: ``onnxruntime.quantization``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx_ci.collection.post_export import PostExportStage
from onnx_ci.stages.post_export.packages import import_package

Feeds = Callable[[], Sequence[Mapping[str, Any]]]
"""Gives inputs by name, as numpy arrays, for each input on which a file may be calibrated."""


class CalibrationError(Exception):
    """There are no inputs from which ranges can be determined."""

    remedy = "Give the recipe an example like the inputs in production: finite, and not all of one value."


def quantize_dynamic(before: Path, path: Path, stage: PostExportStage, feeds: Feeds) -> None:
    """``quantize_dynamic``, with the stage's options as its keywords; types are given by name: ``weight_type="QUInt8"``."""
    package = _package()
    package.quantize_dynamic(before, path, **_options(stage, package))


def quantize_static(before: Path, path: Path, stage: PostExportStage, feeds: Feeds) -> None:
    """``quantize_static``, calibrated on the recipe's inputs; options as for :func:`quantize_dynamic`.

    Raises:
        CalibrationError: there are no inputs to calibrate on.
    """
    package = _package()
    usable = feeds()
    if not usable:
        raise CalibrationError("on every input of the recipe, floating-point values are not finite, or all the same")
    package.quantize_static(before, path, _reader(package, iter(usable)), **_options(stage, package))


def _package() -> Any:
    return import_package("onnxruntime.quantization", package="onnxruntime", extra="cpu")


_ENUMERATIONS = {
    "weight_type": "QuantType",
    "activation_type": "QuantType",
    "quant_format": "QuantFormat",
    "calibrate_method": "CalibrationMethod",
}


def _options(stage: PostExportStage, package: Any) -> dict[str, Any]:
    """The stage's options, with values of enumerations that are given by name."""
    return {
        name: getattr(package, _ENUMERATIONS[name])[value] if name in _ENUMERATIONS and isinstance(value, str) else value
        for name, value in stage.options.items()
    }


def _reader(package: Any, feeds: Iterator[Mapping[str, Any]]) -> Any:
    class Reader(package.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Mapping[str, Any] | None:
            return next(feeds, None)

    return Reader()
