"""From the model of a recipe to an ONNX file: one call of an exporter, and what it means."""

from __future__ import annotations

import contextlib
import re
import shutil
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from onnx_ci.collection.axis_sizes import unnamed_axes
from onnx_ci.onnx_model.files import NotAModelError, files_in
from onnx_ci.onnx_model.signature import read_signature
from onnx_ci.opsets import CUSTOM
from onnx_ci.pipeline.export.exporter import Exporter, ExportRequest
from onnx_ci.pipeline.export.exporter_errors import judge_error
from onnx_ci.pipeline.export.exporter_warnings import judge_branches, judge_warnings, without_those_at
from onnx_ci.pipeline.export.handling import handling_of
from onnx_ci.pipeline.inputs.branches import UntakenBranch
from onnx_ci.pipeline.model.call import Call
from onnx_ci.pipeline.model.devices import exact_arithmetic, ran_out_of_memory
from onnx_ci.pipeline.model.module import exportable, is_training
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.prepare.side_effects import describe_changes
from onnx_ci.plugins import EXPORTERS
from onnx_ci.processes.allocator import return_free_memory
from onnx_ci.processes.capture import Notice, captured
from onnx_ci.processes.signals import no_forks_leave
from onnx_ci.results.records import Cell, Finding
from onnx_ci.results.rules import finding


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """The ONNX file of a cell, with its external data in the same folder; or a folder, if the recipe has several files."""

    path: Path

    def read_bytes(self) -> bytes:
        """The file's bytes, without external data."""
        return self.path.read_bytes()


@dataclass(frozen=True, kw_only=True)
class Written:
    """What one call of an exporter or of a pass has written, or why it has written no file."""

    artifact: Artifact | None
    findings: tuple[Finding, ...]
    log: str


def file_name(cell: Cell) -> str:
    """The name of a cell's file, which it keeps wherever it is moved: its external data is named after it."""
    return f"{cell.label.replace(':', '_')}.onnx"


def export(model: RecipeModel, untaken_branches: Sequence[UntakenBranch], cell: Cell, path: Path) -> Written:
    """Export a fresh copy of the model to ``path`` at the cell's opset, with the cell's exporter.

    What the exporter raises, prints or warns about is in the returned value. Only out-of-memory errors of a GPU are raised.
    """
    remove(path)
    exporter: Exporter = EXPORTERS.load(cell.exporter)
    recipe = model.recipe
    call = model.fresh(has_same_parameters=model.exports_own_parameters)
    request = _request(call, model, cell)
    failure: BaseException | None = None
    with captured() as caught, exact_arithmetic(tf32=recipe.tf32 and cell.device != "cpu"):
        # Deprecation warnings, such as TorchScript's, are about this call, not the user's code.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"onnx_ci\.|torch\.onnx")
        try:
            with no_forks_leave():
                exporter.export(request, path)
            if not path.exists():
                raise NotAModelError("returned without writing a file")
        except (Exception, SystemExit) as error:  # the exporter can raise anything, which becomes a finding
            if ran_out_of_memory(error):
                raise
            failure = error
            traceback.print_exc()  # for the log; the finding has one line only
    if model.exports_own_parameters:
        return_free_memory()  # beside a large model, there may be none for what follows
    obstacle = None if failure is None else judge_error(failure, cell, model)
    if failure is None and model.exports_own_parameters and not model.weights_are_unchanged():
        obstacle = finding("impure-model", "the export changed the weights")  # those that the file should have are lost
    if obstacle is not None:
        remove(path)
        return Written(artifact=None, findings=(obstacle,), log=caught.text)
    remarks = _remarks(call.model, caught.notices, model, untaken_branches, cell)
    return Written(artifact=Artifact(path=path), findings=tuple(remarks), log=caught.text)


def _request(call: Call, model: RecipeModel, cell: Cell) -> ExportRequest:
    """What an exporter is asked for: ``call`` is a copy of the model with its arguments."""
    recipe, declared = model.recipe, model.signature
    return ExportRequest(
        model=exportable(call.model),
        args=tuple(call.args),
        kwargs=call.kwargs,
        opset_version=cell.opset,
        # TorchScript knows axes by the names of their inputs only.
        input_names=recipe.input_names or (tuple(filter(None, declared.input_names)) if cell.exporter == "torchscript" else ()),
        output_names=recipe.output_names,
        dynamic_axes=declared.axes,
        dynamic_shapes=declared.dynamic_shapes,
        training=recipe.training,
        options=recipe.export_options,
        external_data=recipe.external_data,
        function=recipe.export,
        returns_files=recipe.run_files is not None,
    )


def _remarks(
    exported: torch.nn.Module,
    noticed: Sequence[Notice],
    model: RecipeModel,
    untaken_branches: Sequence[UntakenBranch],
    cell: Cell,
) -> Iterator[Finding]:
    """What there is to say about an export that wrote a file: what it warned of, froze or changed in its copy of the model."""
    recipe, handling = model.recipe, handling_of(cell.exporter)
    frozen = handling.frozen_branches(untaken_branches, noticed)
    notices = without_those_at(frozen, noticed)
    # A function of the project may wrap its copy in a module whose mode does not matter, or prepare it by changing it: only
    # what its file computes counts.
    is_custom = cell.exporter == CUSTOM
    may_train = recipe.training or (is_custom and not is_training(exported))
    # torch warns that it uses another name for an axis which the recipe does not name.
    other_names = [rf"axis name: {re.escape(axis)} will not be used" for axis in sorted(unnamed_axes(model.signature.axes))]
    allowed = [*recipe.allow_warnings, *other_names]
    yield from (*handling.remarks(model), *judge_branches(frozen), *judge_warnings(notices, allowed, training=may_train))
    changes = describe_changes(exported, model.pristine.model)
    changed = [change for change in changes if change not in model.changed_by_running]
    if changed and not recipe.training and not is_custom:
        message = f"the export changed {', '.join(changed[:3])}{' and more' if len(changed) > 3 else ''}"
        yield finding("impure-model", message)


def remove(path: Path) -> None:
    """Remove an ONNX file and the external data that the exporters write next to it, or a folder of files."""
    if path.is_dir():
        shutil.rmtree(path)
    for file in _files(path):
        file.unlink(missing_ok=True)


def move(path: Path, folder: Path) -> Path:
    """Move an ONNX file and the other files in its folder into ``folder``, replacing an earlier one, and return its new path.

    TorchScript writes each weight of a model above 2 GB to a file named after the weight. To avoid conflicts between cells,
    such a model gets its own folder. So do several files.
    """
    if path.is_dir():
        target = folder / path.stem
        target.mkdir(parents=True, exist_ok=True)
        for file in files_in(target):
            _remove_with_data(file)
        for file in path.iterdir():
            shutil.move(file, target / file.name)
        return target
    further_files = [file for file in path.parent.iterdir() if file not in _files(path)]
    if further_files:
        folder = folder / path.stem
        _remove_with_data(folder / path.name)
    folder.mkdir(parents=True, exist_ok=True)
    remove(folder / path.name)
    for file in (*_files(path), *further_files):
        if file.is_file():
            shutil.move(file, folder / file.name)
    return folder / path.name


def remove_kept(path: Path) -> None:
    """Remove the ONNX file that :func:`move` has moved to ``path``, or to a folder of its own."""
    remove(path)
    folder = path.with_suffix("")
    _remove_with_data(folder / path.name)
    with contextlib.suppress(OSError):  # it does not exist, or others have put files into it
        folder.rmdir()


def _remove_with_data(path: Path) -> None:
    """Remove an ONNX file and the files of weights in its folder that it names. Other files there are not its own."""
    signature = read_signature(path)
    if not isinstance(signature, Finding):
        for location in {each.location for each in signature.external_data if each.location == Path(each.location).name}:
            (path.parent / location).unlink(missing_ok=True)
    remove(path)


def _files(path: Path) -> tuple[Path, Path]:
    return path, path.with_name(path.name + ".data")
