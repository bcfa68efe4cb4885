"""Apply one post-export stage to a file. Whatever the stage raises or returns becomes a file or a finding."""

from __future__ import annotations

import inspect
import os
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from onnx_ci.collection.post_export import PostExportStage
from onnx_ci.errors import describe_exception, disk_error
from onnx_ci.processes.capture import captured
from onnx_ci.results.records import Finding
from onnx_ci.results.rules import finding
from onnx_ci.stages.export.exporter import Artifact
from onnx_ci.stages.model.devices import ran_out_of_memory
from onnx_ci.stages.post_export.files import copy, save
from onnx_ci.stages.post_export.float16 import to_float16
from onnx_ci.stages.post_export.packages import MissingPackageError
from onnx_ci.stages.post_export.quantization import CalibrationError, Feeds, quantize_dynamic, quantize_static
from onnx_ci.stages.post_export.simplifiers import onnxsim, onnxslim, ort_optimized

_BUILT_IN: Mapping[str, Callable[[Path, Path, PostExportStage, Feeds], None]] = {
    "onnxsim": onnxsim,
    "onnxslim": onnxslim,
    "ort-optimized": ort_optimized,
    "float16": to_float16,
    "int8-dynamic": quantize_dynamic,
    "int8-static": quantize_static,
}
"""Each reads the file at one path and writes that at another."""


@dataclass(frozen=True, kw_only=True)
class Applied:
    """The result of one stage."""

    artifact: Artifact | None
    findings: tuple[Finding, ...]
    log: str


class _NotAModelError(Exception):
    """A stage returned something other than a model or the path of one."""


def apply_stage(stage: PostExportStage, before: Artifact, folder: Path, feeds: Feeds) -> Applied:
    """Apply ``stage`` to the file ``before``, which is not changed.

    Only out-of-memory errors are raised.

    Args:
        stage: the stage.
        before: the exporter's file, or that of the stage before.
        folder: where the stage's file is written; it must not exist.
        feeds: inputs by name, for a stage that runs the file.
    """
    folder.mkdir(parents=True)
    path = folder / before.path.name
    failure: BaseException | None = None
    with captured() as caught:
        warnings.simplefilter("ignore", DeprecationWarning)  # of the stage's package about its own dependencies
        try:
            if stage.transform is None:
                _BUILT_IN[stage.name](before.path, path, stage, feeds)
            else:
                _apply_function(stage.transform, before.path, path)
        except (Exception, SystemExit) as error:  # a stage can raise anything, which becomes a finding
            if ran_out_of_memory(error):
                raise
            failure = error
            traceback.print_exc()  # for the log; the finding has one line only
    if failure is None and not path.is_file():
        failure = _NotAModelError("returned without writing a file")
    if failure is None:
        return Applied(artifact=Artifact(path=path), findings=(), log=caught.text)
    return Applied(artifact=None, findings=(_failed(stage, failure, (before.path, path)),), log=caught.text)


def _failed(stage: PostExportStage, error: BaseException, paths: tuple[Path, ...]) -> Finding:
    if full := disk_error(error):
        return finding("disk-error", f"{full.filename or 'a file'}: {full.strerror}; {stage.name} was writing its file")
    message, remedy = f"{stage.name} raised {describe_exception(error)}", None
    if isinstance(error, MissingPackageError):
        message, remedy = f"{stage.name} needs {error.package}, which is not installed", error.remedy
    elif isinstance(error, CalibrationError):
        message, remedy = f"{stage.name} cannot be calibrated: {error}", error.remedy
    elif isinstance(error, _NotAModelError):
        message, remedy = f"{stage.name} {error}", _RETURN
    for path in paths:  # they differ each time
        message = message.replace(str(path), "the file")
    return finding("stage-error", message, remedy=remedy, introduced_by=stage.name)


_RETURN = "Return the model that the stage made, as a ModelProto or as the path of a file."


# --- functions --------------------------------------------------------------------------------------------------------


def _apply_function(transform: Callable[[Any], Any], before: Path, path: Path) -> None:
    if _takes_path(transform):
        copy(before, path)  # so that a function that changes its file does not change that of the stage before
        made = transform(path)
    else:
        made = transform(onnx.load(before))
    if isinstance(made, onnx.ModelProto):
        save(made, path)
    elif isinstance(made, (str, os.PathLike)):
        if not Path(made).is_file():
            raise _NotAModelError(f"returned the path {os.fspath(made)!r}, where there is no file")
        if Path(made).resolve() != path.resolve():
            copy(Path(made), path)
    else:
        raise _NotAModelError(f"returned {'None' if made is None else f'a {type(made).__name__}'} instead of a model")


def _takes_path(transform: Callable[[Any], Any]) -> bool:
    """Whether a function annotates its first parameter as a path."""
    try:
        first = next(iter(inspect.signature(transform).parameters.values()))
    except (TypeError, ValueError, StopIteration):
        return False
    names = first.annotation if isinstance(first.annotation, str) else getattr(first.annotation, "__name__", "")
    return names.rpartition(".")[2] in ("Path", "str", "PathLike")
