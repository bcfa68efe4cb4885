"""The Python interface: run recipes, export one, or judge an existing file."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

from onnx_ci.collection.discovery import Found, relative_source
from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.settings import Settings, check_writable, find_root, load_settings
from onnx_ci.config.values import Shard, parse_device
from onnx_ci.engine.recipes import Recipes
from onnx_ci.engine.session import Session
from onnx_ci.errors import ConfigurationError, RecipeError, did_you_mean
from onnx_ci.matrix.plan import spec_of, task_of
from onnx_ci.matrix.scope import RecipeScope, scope_of
from onnx_ci.onnx_model.files import files_in
from onnx_ci.onnx_model.signature import opset_of
from onnx_ci.opsets import DEFAULT_OPSETS, default_exporter
from onnx_ci.pipeline.export.export import Artifact
from onnx_ci.pipeline.export.export import export as export_step
from onnx_ci.pipeline.model.call import PrepareError
from onnx_ci.pipeline.prepare.prepare import prepare
from onnx_ci.plugins import EXPORTERS
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.report.written import written_files
from onnx_ci.results.files import write_json
from onnx_ci.results.records import Cell, CellResult, SettingSource
from onnx_ci.results.run_report import RunReport

Words = str | Iterable[str]
Paths = str | Path | Iterable[str | Path]
"""A path, a list of paths, or a string of paths separated by commas."""


class FileOptions(TypedDict, total=False):
    """The settings that affect any file that is judged."""

    max_drift: float | str
    rules: Words | Mapping[str, Any]
    inputs: Paths
    isolation: str
    timeout: float | str
    memory_limit: str


class VerifyOptions(FileOptions, total=False):
    """The settings that affect a single cell. Each takes the values that its flag or ``pyproject.toml`` takes."""

    runtimes: Words
    weights: str | Mapping[str, str]
    strict: bool
    effort: str
    locate: bool
    jobs: int
    baseline: str
    baseline_folder: str | Path
    baseline_limits: str | Mapping[str, float]


class RunOptions(VerifyOptions, total=False):
    """All settings. Each takes the values that its flag or ``pyproject.toml`` takes."""

    opsets: int | str | Iterable[int | str]
    sample: int
    devices: Words
    require_devices: bool
    exporters: Words
    select: Words
    tags: Words
    shard: str | Shard
    durations: str | Path
    recipe_files: Words
    packages: Words
    cache: str | Path
    cache_days: int
    cache_ignore: Words
    cache_ignore_variables: Words
    report: str | Path
    html: str | Path
    junit: str | Path
    code_quality: str | Path
    artifacts: str | Path
    save_inputs: str | Path


def run(recipes: Iterable[Recipe], **options: Unpack[RunOptions]) -> RunReport:
    """Run every cell of ``recipes``: export it, and judge the file.

    Args:
        recipes: what ``@onnx_ci.recipe`` returned.
        **options: settings, such as ``opsets="9-17"`` or ``report="r.json"``. They take precedence over the environment and
            ``pyproject.toml``.

    Returns:
        The report of the run. A cell that fails is a result in it, not an exception.

    Raises:
        OnnxCiError: a setting is invalid, two recipes have the same name, or ONNX Runtime is not installed.
    """
    settings = settings_of(options, RunOptions.__optional_keys__)
    with Recipes(settings) as catalogue, Session(settings, catalogue, also_written=written_files(settings)) as session:
        for recipe in recipes:
            found = _found(recipe, settings)
            if recipe.name in catalogue.scopes:
                raise RecipeError(f"two recipes are named {recipe.name!r}; rename one of them with name=...")
            catalogue.add_object(found)
        session.plan(catalogue)
        for _ in session.events():
            pass
    return session.report


def export(
    recipe: Recipe, *, opset: int, exporter: str | None = None, device: str = "cpu", path: str | Path | None = None
) -> Artifact:
    """Export ``recipe`` as a cell does, with the recipe's own weights, without judging the file.

    Args:
        recipe: what ``@onnx_ci.recipe`` returned.
        opset: the opset to export at.
        exporter: ``torchscript``, ``dynamo``, ``custom`` or the name of a plug-in. Default: the opset's default exporter, or
            the first one that the recipe declares.
        device: where the model is built, such as ``cuda``.
        path: where to write the file. Default: a new temporary directory, which the caller must remove.

    Raises:
        ConfigurationError: the device is not a valid one.
        RecipeError: the recipe or the exporter fails; with the message of the finding.
    """
    settings = settings_of({}, ())
    scope = scope_of(_found(recipe, settings), settings)
    task = task_of(_cell(scope, opset, exporter, device), recipe, settings)
    task = dataclasses.replace(task, is_quick=True)
    with contextlib.ExitStack() as after_failure:
        if path is None:
            folder = tempfile.mkdtemp(prefix="onnx-ci-")
            after_failure.callback(shutil.rmtree, folder, ignore_errors=True)
            path = Path(folder, f"{recipe.name}.onnx")
        try:
            prepared = prepare(task)
            exported = export_step(prepared.model, prepared.untaken_branches, task.cell, Path(path))
        except PrepareError as error:
            raise RecipeError(f"{recipe.name}: {error.finding.message}") from None
        if exported.artifact is None:
            raise RecipeError(f"{recipe.name}: {exported.findings[0].message}")
        after_failure.pop_all()
        return exported.artifact


def verify(
    onnx_model: str | Path | bytes | Artifact,
    recipe: Recipe,
    *,
    opset: int | None = None,
    exporter: str | None = None,
    device: str = "cpu",
    graph_pass: str | None = None,
    report: str | Path | None = None,
    save_inputs: str | Path | None = None,
    **options: Unpack[VerifyOptions],
) -> CellResult:
    """Judge an existing file, as if ``recipe`` had just been exported to it.

    With ``baseline="check"`` the file is also compared with the committed baseline. The baseline of a recipe without trained
    weights is recorded with probe weights. So unless the recipe declares ``weights="trained"``, only what does not depend on
    the values of the weights is compared: signature, format, operators, sizes.

    A file can compute in a lower precision than the model (float16, bfloat16, int8, int4). Its inputs are then cast to the
    floating types that it declares, and a difference that the rounding of that precision explains is a note.

    Args:
        onnx_model: the path of the file, or its bytes; the folder of the files, if the recipe has several. They must contain
            the recipe's own weights.
        recipe: the recipe that the file is an export of.
        opset: the opset that the file should have. Default: the opset of the file.
        exporter: what exported the file: ``torchscript``, ``dynamo``, ``custom`` or the name of a plug-in. Default: the opset's
            default exporter, or the first one that the recipe declares.
        device: where to run it, such as ``cuda``.
        pass: the post-export pass of the recipe that made the file. The file may have the rounding and the operators of that
            pass. Default: the file is the exporter's own.
        report: where to write the result as JSON, as the report of a run.
        save_inputs: the folder for the inputs on which the file fails, as ``.npz`` files that ``inputs`` reads.
        **options: settings, as for :func:`run`.

    Returns:
        The verdict on the file. A file that fails is a result, not an exception.

    Raises:
        OnnxCiError: the file does not exist, the report cannot be written, a setting is invalid, the recipe has no such
            pass, or ONNX Runtime is not installed.
    """
    settings = settings_of(options, VerifyOptions.__optional_keys__)
    with Recipes(settings) as recipes:
        recipes.add_object(_found(recipe, settings))
        return verify_recipe(
            onnx_model,
            recipes,
            recipe.name,
            opset=opset,
            exporter=exporter,
            device=device,
            graph_pass=graph_pass,
            report=report,
            save_inputs=save_inputs,
        )


def verify_recipe(
    onnx_model: str | Path | bytes | Artifact,
    recipes: Recipes,
    name: str,
    *,
    opset: int | None,
    exporter: str | None,
    device: str,
    graph_pass: str | None,
    report: str | Path | None,
    save_inputs: str | Path | None,
) -> CellResult:
    """Judge an existing file as an export of the recipe called ``name``. The other arguments are those of :func:`verify`."""
    settings = recipes.settings
    if settings.baseline == "update" and settings.origins["baseline"].source is SettingSource.PYTHON:
        raise ConfigurationError("verify does not record baselines; record one with run(..., baseline='update')")
    settings = dataclasses.replace(
        settings,
        report=None if report is None else Path(report),
        save_inputs=None if save_inputs is None else Path(save_inputs),
        artifacts=None,
    )
    check_writable(settings)
    with scratch_folder() as folder, Session(settings, recipes, is_reporting=False) as session:
        if isinstance(onnx_model, bytes):
            path = folder / f"{name}.onnx"
            path.write_bytes(onnx_model)
        else:
            path = onnx_model.path if isinstance(onnx_model, Artifact) else Path(onnx_model)
        if recipes.scopes[name].has_several_files:
            if not path.is_dir() or not files_in(path):
                raise ConfigurationError(f"the recipe {name!r} has several files: give the folder that has them, and no others")
        elif not path.is_file():
            raise ConfigurationError(f"there is no file {path}")
        artifact = Artifact(path=path.absolute())  # a recipe may change directory
        opset = opset or opset_of(files_in(artifact.path)[0]) or DEFAULT_OPSETS[-1]
        cell = _cell(recipes.scopes[name], opset, exporter, device, graph_pass)
        spec = spec_of(cell, recipes.scopes[name], settings)
        result = session.judge(spec, artifact)
        if settings.report is not None:
            write_json(session.report, settings.report)
        return result


def settings_of(options: Mapping[str, Any], usable: Collection[str], what: str = "a single file") -> Settings:
    """The project's settings with ``options``, which must be ``usable`` where they are about ``what``."""
    names = sorted(usable)
    for name in options:
        if name not in RunOptions.__optional_keys__:
            nearest = did_you_mean(name, names)
            raise ConfigurationError(f"there is no setting {name!r}{nearest}; the settings are {', '.join(names)}")
        if name not in usable:
            raise ConfigurationError(f"the setting {name!r} has no effect on {what}; use one of {', '.join(names)}")
    return load_settings(find_root(Path.cwd()), flags=options, given_by=SettingSource.PYTHON)


def _found(recipe: Recipe, settings: Settings) -> Found:
    if not isinstance(recipe, Recipe):
        remedy = "pass what @onnx_ci.recipe returned; files of recipes are run by the command, onnx-ci run FILE"
        raise RecipeError(f"{type(recipe).__name__} is not a recipe: {remedy}")
    return Found(recipe, relative_source(Path(recipe.file), settings.root), is_named=True)


def _cell(scope: RecipeScope, opset: int, exporter: str | None, device: str, graph_pass: str | None = None) -> Cell:
    """A cell of a recipe, even if the recipe does not declare it."""
    try:
        parse_device(device)
    except ValueError as error:
        raise ConfigurationError(f"device: {error}") from None
    if exporter is not None:
        EXPORTERS.check(exporter)
    if exporter is not None and not scope.has_exporter(exporter):
        raise ConfigurationError(f"the recipe {scope.name!r} has no export function; declare one, @recipe(export=FUNCTION)")
    if graph_pass is not None and graph_pass not in scope.passes:
        passes = f"its passes are {', '.join(scope.passes)}" if scope.passes else "it has none (then=[...])"
        nearest = did_you_mean(graph_pass, scope.passes)
        raise ConfigurationError(f"the recipe {scope.name!r} has no pass {graph_pass!r}{nearest}; {passes}")
    default = default_exporter(opset)
    declared = scope.exporters or (default,)
    return Cell(
        source=scope.source,
        recipe=scope.name,
        exporter=exporter or (default if default in declared else declared[0]),
        opset=opset,
        device=device,
        graph_pass=graph_pass,
    )
