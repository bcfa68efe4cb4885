"""Modules that the exporters import lazily, imported before processes are forked, so that each process has them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import warnings
from collections.abc import Iterable

from onnx_ci.environment.versions import version_of
from onnx_ci.pipeline.export.handling import handling_of


@functools.cache
def preload(exporter: str) -> None:
    """Import and compute what cells need before the first fork: in each process it would take most of the time."""
    # ONNX Runtime for CUDA may query GPUs when it is imported (1.31), and a fork cannot use the CUDA of its parent.
    skipped = "onnxruntime" if version_of("onnxruntime-gpu") else ""
    with contextlib.suppress(Exception):  # raised again where the exporter is needed
        handling = handling_of(exporter)
        import_quietly(name for name in handling.modules if name != skipped)
        handling.warm_up()


def import_quietly(names: Iterable[str]) -> None:
    """Import modules ahead of time; errors are left to the code that needs them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of these packages about each other
        for name in names:
            with contextlib.suppress(Exception):  # raised again where the module is needed
                importlib.import_module(name)
