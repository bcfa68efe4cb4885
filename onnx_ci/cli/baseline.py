"""``onnx-ci baseline``: record baselines, show them, compare them with another commit, remove obsolete entries."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import click

from onnx_ci.baseline.changes import differences
from onnx_ci.baseline.file import Baseline, Place, as_text
from onnx_ci.baseline.folder import BaselineFolder, baselines_at
from onnx_ci.cli.common import (
    GroupedCommand,
    find_recipes,
    options_of,
    settings_from,
    show_problems,
    with_colour,
    with_exit_code,
    with_no_cache,
    with_verbosity,
)
from onnx_ci.cli.run import gate
from onnx_ci.config.options import OPTIONS, Role, options_with
from onnx_ci.config.settings import Settings
from onnx_ci.errors import ConfigurationError, did_you_mean
from onnx_ci.matrix.plan import plan
from onnx_ci.opsets import format_opsets
from onnx_ci.results.records import Cell, SettingSource


@click.group()
@with_exit_code
def baseline() -> None:
    r"""Manage the accepted baseline of each recipe.

    Each recipe has a text file with its baseline, which you commit and review. `onnx-ci run --baseline=check` compares each
    cell with it.

    \b
    Examples:
      onnx-ci baseline update                     record every cell of the project
      onnx-ci baseline diff main                  what changed since another commit
      onnx-ci baseline show                       what is recorded
      onnx-ci baseline prune                      what is recorded for cells that no longer exist
    """


@baseline.command(cls=GroupedCommand)
@options_of(*(option.name for option in OPTIONS if option.name != "baseline"))
@with_no_cache()
@with_verbosity
@with_colour
@with_exit_code
def update(paths: tuple[Path, ...], verbosity: str | None, **flags: str | None) -> None:
    r"""Record every cell that passes.

    Runs the recipes in PATHS like `onnx-ci run`, and shows what changes in their baselines. Cells that did not run keep what is
    recorded for them. Nothing is ever removed.

    \b
    Examples:
      onnx-ci baseline update
      onnx-ci baseline update --select='lstm::*'
      onnx-ci baseline update recipes/models/lstm.py --opsets=9-17
    """
    gate(paths, settings_from({**flags, "baseline": "update"}), None, verbosity)


@baseline.command()
@click.argument("revision")
@click.argument("recipes", nargs=-1)
@options_of("baseline-folder", "baseline-limits", paths=False)
@with_exit_code
def diff(revision: str, recipes: tuple[str, ...], **flags: str | None) -> None:
    r"""Show what changed since another commit.

    Nothing is run: the baselines in the working tree are compared with those of REVISION. Without RECIPES, all are compared.

    \b
    Examples:
      onnx-ci baseline diff main
      onnx-ci baseline diff v1.2 lstm resnet18
    """
    settings = settings_from(flags)
    folder = _folder(settings)
    before, now = baselines_at(revision, folder.path), folder.load_all()
    lines = [
        f"{recipe} {line}"
        for recipe in _chosen(recipes, {**before, **now})
        for line in differences(before.get(recipe), now.get(recipe), settings.baseline_limits)
    ]
    for line in lines or [f"nothing changed since {revision}"]:
        click.echo(line)


@baseline.command()
@click.argument("recipes", nargs=-1)
@options_of("baseline-folder", paths=False)
@with_exit_code
def show(recipes: tuple[str, ...], **flags: str | None) -> None:
    r"""Show what is recorded.

    Without RECIPES, one line for each recipe is shown. Otherwise, everything is shown that is recorded for RECIPES, or for
    single cells of them.

    \b
    Examples:
      onnx-ci baseline show
      onnx-ci baseline show lstm
      onnx-ci baseline show lstm::opset13-cpu
    """
    folder = _folder(settings_from(flags))
    baselines = folder.load_all()
    if not baselines:
        raise ConfigurationError(f"nothing is recorded in {folder.path}; record it with onnx-ci baseline update")
    if not recipes:
        for recipe, recorded in sorted(baselines.items()):
            click.echo(f"{recipe}: {_summary(recorded)}")
    for name in recipes:
        recipe, _, label = name.partition("::")
        _chosen([recipe], baselines)
        click.echo(as_text(_of_cell(baselines[recipe], label) if label else baselines[recipe]), nl=False)


@baseline.command()
@click.option("--yes", is_flag=True, help="Remove what is listed.")
@options_of("recipe-files", "packages", "baseline-folder", paths=False)
@with_exit_code
def prune(yes: bool, **flags: str | None) -> None:
    r"""Remove what is recorded for cells that no longer exist.

    Lists what is recorded for cells that the project does not have and, with --yes, removes it. The cells of the whole project
    are listed for that, but not run. Cells of devices that the settings do not name are kept.

    \b
    Examples:
      onnx-ci baseline prune
      onnx-ci baseline prune --yes
    """
    settings = settings_from(flags)
    folder = _folder(settings)
    obsolete = _obsolete(settings, folder.load_all())
    for recipe, places in obsolete.items():
        click.echo(f"{folder.file_of(recipe).name}: {_in_words(places)}")
    if not obsolete:
        click.echo("everything that is recorded belongs to a cell of the project")
    elif not yes:
        click.echo("nothing has been removed yet; onnx-ci baseline prune --yes removes it")
    else:
        with folder.locked():
            for recipe, places in obsolete.items():
                recorded = folder.load(recipe)
                cells = {} if recorded is None else recorded.cells
                rest = {place: entry for place, entry in cells.items() if place not in places}
                if rest:
                    folder.store(Baseline(recipe=recipe, cells=rest))
                else:
                    folder.remove(recipe)
        click.echo("removed")


def _obsolete(settings: Settings, baselines: dict[str, Baseline]) -> dict[str, list[Place]]:
    """What is recorded for cells that the project does not have, by recipe. Raises, unless all its cells are known."""
    selecting = [option.field for option in options_with(Role.SELECTION) if getattr(settings, option.field) is not None]
    matrix = [option.field for option in options_with(Role.MATRIX)]
    from_environment = [name for name in matrix if settings.origins[name].source is SettingSource.ENVIRONMENT]
    narrowing = [settings.origins[name] for name in (*selecting, *from_environment)]
    if narrowing:
        raise ConfigurationError(f"{narrowing[0]} excludes cells, but prune needs to know all of them")
    with find_recipes(settings, ()) as recipes:
        # What is recorded for manual recipes stays, although no run of the whole project has their cells.
        plans = plan([dataclasses.replace(each, manual="") for each in recipes.scopes.values()], settings).cells
    if recipes.problems:
        show_problems(recipes.problems)
        raise ConfigurationError(
            "cannot tell which recipes were removed while some recipe files fail to import; fix those first"
        )
    if not recipes.scopes:
        raise ConfigurationError(
            "no recipe was found, so everything would be removed; if that is intended, remove the folder yourself"
        )
    existing = {(spec.cell.recipe, Place.of(spec.cell)) for spec in plans}
    obsolete = {}
    for recipe, recorded in sorted(baselines.items()):
        is_removed = recipe not in recipes.scopes
        checked = [place for place in recorded.cells if is_removed or place.device in settings.devices]
        if places := [place for place in sorted(checked) if (recipe, place) not in existing]:
            obsolete[recipe] = places
    return obsolete


def _folder(settings: Settings) -> BaselineFolder:
    return BaselineFolder(settings.root / settings.baseline_folder)


def _chosen(recipes: Sequence[str], baselines: dict[str, Baseline]) -> list[str]:
    """The recipes, or all that have a baseline."""
    for recipe in recipes:
        if recipe not in baselines:
            raise ConfigurationError(f"nothing is recorded for {recipe!r}{did_you_mean(recipe, baselines)}")
    return list(recipes) or sorted(baselines)


def _summary(baseline: Baseline) -> str:
    parts = []
    for (target, exporter), entries in baseline.sections().items():
        drifts = [value for entry in entries.values() for line, value in entry.items() if line[-1] == "drift"]
        drift = f", drift up to {max(drifts):.2g}" if drifts else ""
        size = max(entry["file-bytes",] for entry in entries.values())
        parts.append(f"{exporter} {target} opset {format_opsets(entries)} (file {size:,} bytes{drift})")
    return "; ".join(parts)


def _in_words(places: list[Place]) -> str:
    by_section: dict[tuple[str, str], list[int]] = {}
    for place in places:
        by_section.setdefault((place.exporter, place.target), []).append(place.opset)
    return "; ".join(f"{' '.join(section)} opset {format_opsets(opsets)}" for section, opsets in by_section.items())


def _of_cell(baseline: Baseline, label: str) -> Baseline:
    """What is recorded for the cell with this label."""
    by_label = {
        Cell(
            source="",
            recipe="",
            exporter=place.exporter,
            opset=place.opset,
            device=place.device,
            graph_pass=place.graph_pass or None,
        ).label: place
        for place in baseline.cells
    }
    if label not in by_label:
        raise ConfigurationError(f"{baseline.recipe!r} has no cell {label!r}{did_you_mean(label, by_label)}")
    return dataclasses.replace(baseline, cells={by_label[label]: baseline.cells[by_label[label]]})
