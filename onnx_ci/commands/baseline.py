"""``onnx-ci baseline``: record what was accepted, show it, hold it against another commit, remove what nothing asks for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from onnx_ci.baseline.differences import differences
from onnx_ci.baseline.file import Baseline, Place, as_text
from onnx_ci.baseline.folder import BaselineFolder
from onnx_ci.baseline.revisions import baselines_at, baselines_now
from onnx_ci.commands.common import find_quietly, options_of, settle, show_problems, with_colour, with_exit_code, with_verbosity
from onnx_ci.commands.run import gate
from onnx_ci.config import ENVIRONMENT_PREFIX, OFF, OPTIONS, Settings
from onnx_ci.errors import ConfigurationError, did_you_mean
from onnx_ci.matrix import plan
from onnx_ci.opsets import format_opsets
from onnx_ci.records import Cell

_NARROWING = ("select", "tags", "shard", "sample")
"""Settings that keep cells from a run which are cells of the project all the same."""
_MATRIX = ("opsets", "exporters")
"""Settings that say which cells the project has, unless they come from the environment, for a run."""


@click.group()
@with_exit_code
def baseline() -> None:
    r"""Keep what was accepted of each cell.

    A baseline is a text file for each recipe, committed and reviewed.
    `onnx-ci run --baseline=check` holds what each cell makes against it.

    \b
    Examples:
      onnx-ci baseline update                     record every cell of the project
      onnx-ci baseline diff main                  what moved since another commit
      onnx-ci baseline show                       what is recorded
      onnx-ci baseline prune                      what is recorded and nothing asks for any more
    """


@baseline.command()
@options_of(*(option.name for option in OPTIONS if option.name != "baseline"))
@click.option("--no-cache", is_flag=True, help="Run every cell; the same as --cache=off.")
@with_verbosity
@with_colour
@with_exit_code
def update(paths: tuple[Path, ...], no_cache: bool, verbosity: str | None, **flags: str | None) -> None:
    r"""Record every cell that passes.

    The recipes in PATHS are run as `onnx-ci run` does, and what that changes in their baselines is said.
    What did not run keeps what is recorded of it; nothing is ever removed.

    \b
    Examples:
      onnx-ci baseline update
      onnx-ci baseline update --select='lstm::*'
      onnx-ci baseline update recipes/lstm.py --opsets=9-17
    """
    gate(paths, settle({**flags, "baseline": "update", **({"cache": OFF} if no_cache else {})}), None, verbosity)


@baseline.command()
@click.argument("revision")
@click.argument("recipes", nargs=-1)
@options_of("baseline-folder", "baseline-limits", paths=False)
@with_exit_code
def diff(revision: str, recipes: tuple[str, ...], **flags: str | None) -> None:
    r"""Tell what moved since another commit.

    Nothing is run: the baselines of RECIPES, or all, as they lie here are held against those of REVISION.

    \b
    Examples:
      onnx-ci baseline diff main
      onnx-ci baseline diff v1.2 lstm resnet18
    """
    settings = settle(flags)
    folder = _folder(settings)
    before, now = baselines_at(revision, folder.path), baselines_now(folder)
    lines = [
        f"{recipe} {line}"
        for recipe in _chosen(recipes, {**before, **now})
        for line in differences(before.get(recipe), now.get(recipe), settings.baseline_limits)
    ]
    for line in lines or [f"nothing moved since {revision}"]:
        click.echo(line)


@baseline.command()
@click.argument("recipes", nargs=-1)
@options_of("baseline-folder", paths=False)
@with_exit_code
def show(recipes: tuple[str, ...], **flags: str | None) -> None:
    r"""Show what is recorded.

    A line for each recipe, or all that is recorded of RECIPES and of cells of them.

    \b
    Examples:
      onnx-ci baseline show
      onnx-ci baseline show lstm
      onnx-ci baseline show lstm::opset13-cpu
    """
    folder = _folder(settle(flags))
    known = baselines_now(folder)
    if not known:
        raise ConfigurationError(f"nothing is recorded in {folder.path}; record it with onnx-ci baseline update")
    if not recipes:
        for recipe, each in sorted(known.items()):
            click.echo(f"{recipe}: {_in_short(each)}")
    for name in recipes:
        recipe, _, label = name.partition("::")
        _chosen([recipe], known)
        click.echo(as_text(_of_cell(known[recipe], label) if label else known[recipe]), nl=False)


@baseline.command()
@click.option("--yes", is_flag=True, help="Remove what is listed.")
@options_of("recipe-files", "packages", "baseline-folder", paths=False)
@with_exit_code
def prune(yes: bool, **flags: str | None) -> None:
    r"""Remove what nothing asks for any more.

    What is recorded and belongs to no cell of the project is listed and, with --yes, removed. The
    whole project is asked for its cells, without running them. Cells of devices that the settings do not name stay.

    \b
    Examples:
      onnx-ci baseline prune
      onnx-ci baseline prune --yes
    """
    settings = settle(flags)
    folder = _folder(settings)
    stale = _stale(settings, baselines_now(folder))
    for recipe, places in stale.items():
        click.echo(f"{folder.file_of(recipe).name}: {_in_words(places)}")
    if not stale:
        click.echo("everything that is recorded belongs to a cell of the project")
    elif not yes:
        click.echo("nothing is removed yet; onnx-ci baseline prune --yes does it")
    else:
        with folder.locked():
            for recipe, places in stale.items():
                known = folder.load(recipe)
                rest = {} if known is None else {place: each for place, each in known.cells.items() if place not in places}
                if rest:
                    folder.store(Baseline(recipe=recipe, cells=rest))
                else:
                    folder.remove(recipe)
        click.echo("removed")


def _stale(settings: Settings, known: dict[str, Baseline]) -> dict[str, list[Place]]:
    """What is recorded and no cell of the project asks for, by recipe.

    Raises:
        ConfigurationError: it cannot be known, because part of the project was left out.
    """
    narrowing = [settings.origins[name] for name in _NARROWING if getattr(settings, name) is not None]
    narrowing += [settings.origins[name] for name in _MATRIX if settings.origins[name].startswith(ENVIRONMENT_PREFIX)]
    if narrowing:
        raise ConfigurationError(f"{narrowing[0]} leaves cells out; prune has to know them all")
    catalogue = find_quietly(settings, ())
    if catalogue.problems:
        show_problems(catalogue)
        raise ConfigurationError("nobody knows which recipes are gone while recipe files cannot be used; mend them first")
    if not catalogue.recipes:
        raise ConfigurationError("no recipe was found, so everything would go; to that end, remove the folder yourself")
    # Recipes that run on request only are recipes of the project, too.
    everything = plan(catalogue.recipes.values(), dataclasses.replace(settings, select=("*",))).cells
    cells = {(each.cell.recipe, Place.of(each.cell)) for each in everything}
    stale = {}
    for recipe, each in sorted(known.items()):
        is_gone = recipe not in catalogue.recipes
        asked = [place for place in each.cells if is_gone or place.device in settings.devices]
        if gone := [place for place in sorted(asked) if (recipe, place) not in cells]:
            stale[recipe] = gone
    return stale


def _folder(settings: Settings) -> BaselineFolder:
    return BaselineFolder(settings.root / settings.baseline_folder)


def _chosen(recipes: Any, known: dict[str, Baseline]) -> list[str]:
    for recipe in recipes:
        if recipe not in known:
            raise ConfigurationError(f"nothing is recorded of {recipe!r}{did_you_mean(recipe, known)}")
    return list(recipes) or sorted(known)


def _in_short(baseline: Baseline) -> str:
    parts = []
    for (device, exporter), entries in baseline.sections().items():
        drifts = [value for entry in entries.values() for line, value in entry.items() if line[-1] == "drift"]
        drift = f", drift to {max(drifts):.2g}" if drifts else ""
        size = max(entry["file-bytes",] for entry in entries.values())
        parts.append(f"{exporter} {device} opset {format_opsets(entries)} (file {size:,} bytes{drift})")
    return "; ".join(parts)


def _in_words(places: list[Place]) -> str:
    by_section: dict[tuple[str, str], list[int]] = {}
    for place in places:
        by_section.setdefault((place.exporter, place.device), []).append(place.opset)
    return "; ".join(f"{' '.join(section)} opset {format_opsets(opsets)}" for section, opsets in by_section.items())


def _of_cell(baseline: Baseline, label: str) -> Baseline:
    """What is recorded of one cell, by its label."""
    by_label = {
        Cell(source="", recipe="", exporter=place.exporter, opset=place.opset, device=place.device).label: place
        for place in baseline.cells
    }
    if label not in by_label:
        raise ConfigurationError(f"{baseline.recipe!r} has no cell {label!r}{did_you_mean(label, by_label)}")
    return dataclasses.replace(baseline, cells={by_label[label]: baseline.cells[by_label[label]]})
