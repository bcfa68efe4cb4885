"""What every host needs, imported and computed once in the process that all of them are forked from."""

from __future__ import annotations

import contextlib
import functools

import onnx

from onnx_ci.cache import installed
from onnx_ci.cache.import_closure import NotCacheableError
from onnx_ci.stages.export.preload import import_quietly, preload
from onnx_ci.stages.export.repeated_work import read_torchlib

_SMALL_MODEL = '<ir_version: 8, opset_import: ["": 17]> small (float[1] x) => (float[1] y) { y = Relu(x) }'


def warm_up(exporter: str, *, is_cached: bool, exports: bool) -> None:
    """Import and compute what hosts need.

    Args:
        exporter: the exporter of the next cell.
        is_cached: whether cells are looked up in the cache.
        exports: whether files are exported, not given.
    """
    preload(exporter)
    _use_once()
    if exporter == "dynamo" and exports and not is_cached:
        read_torchlib()  # with a cache, a host reads it once it knows that it has to export
    if is_cached:
        with contextlib.suppress(NotCacheableError):
            installed.versions()
            installed.own_files()


@functools.cache
def _use_once() -> None:
    """Let the checker set itself up, which takes 8 ms in each process. No runtime is used here: a crash would end the run."""
    import_quietly(["onnx_ci.stages.prepare.adapter"])  # what recipes use of onnx-ci itself
    with contextlib.suppress(Exception):  # raised again where a cell needs it
        onnx.checker.check_model(onnx.parser.parse_model(_SMALL_MODEL), full_check=True)
