"""What every host needs, imported and computed once in the process that all of them are forked from."""

from __future__ import annotations

import contextlib
import functools

import onnx

from onnx_ci.stages.export.preload import import_quietly, preload
from onnx_ci.stages.export.repeated_work import read_torchlib

_SMALL_MODEL = '<ir_version: 8, opset_import: ["": 17]> small (float[1] x) => (float[1] y) { y = Relu(x) }'


def warm_up(exporter: str) -> None:
    """Import and compute what the cells of an exporter need."""
    preload(exporter)
    _use_once()
    if exporter == "dynamo":
        read_torchlib()


@functools.cache
def _use_once() -> None:
    """Let the checker set itself up, which takes 8 ms in each process. No runtime is used here: a crash would end the run."""
    import_quietly(["onnx_ci.stages.model.adapter"])  # what recipes use of onnx-ci itself
    with contextlib.suppress(Exception):  # raised again where a cell needs it
        onnx.checker.check_model(onnx.parser.parse_model(_SMALL_MODEL), full_check=True)
