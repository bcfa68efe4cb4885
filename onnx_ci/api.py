"""onnx-ci from Python: run recipes, export one, or judge a file that exists. Thin over the engine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from onnx_ci.baseline.check import Baselines
from onnx_ci.calls import PrepareError
from onnx_ci.config import STAGES, Settings, check_writable, find_root, load_settings, parse_device
from onnx_ci.discovery import Found, relative_source
from onnx_ci.environment import require_runtime, versions
from onnx_ci.errors import ConfigurationError, RecipeError, did_you_mean
from onnx_ci.exporting import Artifact
from onnx_ci.exporting import export as export_stage
from onnx_ci.isolation import open_engine
from onnx_ci.matrix import PlannedCell, in_shard, plan, seconds_for_shard
from onnx_ci.onnx_file import opset_of
from onnx_ci.opsets import DEFAULT_OPSETS, default_exporter
from onnx_ci.prepare import prepare
from onnx_ci.recipe import Recipe
from onnx_ci.records import Cell, CellResult, RunReport
from onnx_ci.report.json_file import write_json


def run(recipes: Iterable[Recipe], **options: Any) -> RunReport:
    """Run every cell of ``recipes``.

    Args:
        recipes: what ``@onnx_ci.recipe`` returned.
        **options: settings by their names, such as ``opsets="9-17"`` or ``report="r.json"``; they win over the
            environment and ``pyproject.toml``.

    Raises:
        OnnxCiError: a setting cannot be used, two recipes share a name, or ONNX Runtime is not installed.
    """
    settings = _settings(options)
    found: dict[str, Found] = {}
    for recipe in recipes:
        if recipe.name in found:
            raise RecipeError(f"two recipes are called {recipe.name!r}; give one of them another with name=...")
        found[recipe.name] = _found(recipe, settings)
    require_runtime(settings.runtimes)
    check_writable(settings)
    start = time.perf_counter()
    matrix = in_shard(plan(found.values(), settings), settings.shard, seconds_for_shard(settings))
    baselines = Baselines(settings)
    baselines.open(found)
    with open_engine(settings) as engine:
        judged = zip(matrix.cells, engine.run(matrix.cells), strict=True)
        cells = tuple(baselines.judge(result, planned.recipe.allow) for planned, result in judged)
    if baselines.is_recording:
        baselines.record(cells)
    report = RunReport(
        environment=versions(),
        settings=settings.as_json(),
        cells=cells,
        exclusions=matrix.exclusions,
        seconds=time.perf_counter() - start,
    )
    if settings.report is not None:
        write_json(report, settings.report)
    return report


def export(
    recipe: Recipe, *, opset: int, exporter: str | None = None, device: str = "cpu", path: str | Path | None = None
) -> Artifact:
    """Export ``recipe`` as a cell does, with the recipe's own weights, and without judging the file.

    Args:
        path: where to write the file; a new temporary directory, which the caller owns, unless given.

    Raises:
        RecipeError: the recipe or the exporter failed; the message is the finding's.
    """
    settings = _settings({})
    cell = _cell(recipe, settings, opset, exporter, device)
    target = Path(path) if path is not None else Path(tempfile.mkdtemp(prefix="onnx-ci-")) / f"{recipe.name}.onnx"
    try:
        prepared = prepare(recipe, device, weights=settings.weights_for(recipe.name), without=STAGES)
        exported = export_stage(prepared, cell, target)
    except PrepareError as error:
        raise RecipeError(f"{recipe.name}: {error.finding.message}") from None
    if exported.artifact is None:
        raise RecipeError(f"{recipe.name}: {exported.findings[0].message}")
    return exported.artifact


def verify(
    onnx_model: str | Path | bytes | Artifact,
    recipe: Recipe,
    *,
    opset: int | None = None,
    exporter: str | None = None,
    device: str = "cpu",
    **options: Any,
) -> CellResult:
    """Judge a file that exists, as if ``recipe`` had just been exported to it.

    Args:
        onnx_model: the file's path, or its bytes. It holds the recipe's own weights.
        opset: the opset that the file should have; the one that it has unless given.
        **options: settings by their names, as for :func:`run`.

    Raises:
        OnnxCiError: the file does not exist, a setting cannot be used, or ONNX Runtime is not installed.
    """
    settings = _settings(options)
    require_runtime(settings.runtimes)
    with open_engine(settings) as engine, tempfile.TemporaryDirectory(prefix="onnx-ci-") as folder:
        if isinstance(onnx_model, bytes):
            path = Path(folder, f"{recipe.name}.onnx")
            path.write_bytes(onnx_model)
        else:
            path = onnx_model.path if isinstance(onnx_model, Artifact) else Path(onnx_model)
        if not path.is_file():
            raise ConfigurationError(f"there is no file {path}")
        artifact = Artifact(path=path.absolute())  # a recipe may change directory
        cell = _cell(recipe, settings, opset or opset_of(artifact.path) or DEFAULT_OPSETS[-1], exporter, device)
        return engine.run_cell(PlannedCell(cell=cell, recipe=recipe), artifact)


def _settings(options: dict[str, Any]) -> Settings:
    names = {field for field in Settings.__dataclass_fields__ if field not in ("root", "origins")}
    for name in options:
        if name not in names:
            known = ", ".join(sorted(names))
            raise ConfigurationError(f"there is no setting {name!r}{did_you_mean(name, names)}; the settings are {known}")
    return load_settings(find_root(Path.cwd()), flags=options)


def _found(recipe: Recipe, settings: Settings) -> Found:
    return Found(recipe, relative_source(Path(recipe.file), settings.root), is_named=True)


def _cell(recipe: Recipe, settings: Settings, opset: int, exporter: str | None, device: str) -> Cell:
    try:
        parse_device(device)
    except ValueError as error:
        raise ConfigurationError(f"device: {error}") from None
    return Cell(
        source=_found(recipe, settings).source,
        recipe=recipe.name,
        exporter=exporter or default_exporter(opset),
        opset=opset,
        device=device,
    )
