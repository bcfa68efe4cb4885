"""Why a run judged no cell, as a sentence for every front-end, with what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from onnx_ci.config.settings import Settings
from onnx_ci.errors import did_you_mean
from onnx_ci.matrix.plan import why_empty
from onnx_ci.matrix.scope import RecipeScope, choose_cells, nameable
from onnx_ci.report.causes import describe_cells
from onnx_ci.report.text import describe_exclusions
from onnx_ci.text import listed_shortly


def why_nothing_ran(
    scopes: Sequence[RecipeScope],
    settings: Settings,
    paths: Sequence[str | Path] = (),
    *,
    is_planned: bool,
    is_deselected: bool = False,
) -> str:
    """Why no cell of the recipes that were found in ``paths``, or in the whole project, was judged.

    Whether one was planned is about the shard, if there is one. The front-end may have deselected all that were.
    """
    if not scopes:
        patterns = ", ".join(settings.recipe_files)
        where = f"in {listed_shortly([*map(str, paths)])}" if paths else f"below {settings.root}"
        return (
            f"no recipe was found {where}; recipe files are {patterns} (recipe-files in [tool.onnx-ci]), or "
            "files given as arguments; onnx-ci init writes a first one"
        )
    if is_planned:
        if not is_deselected:
            return "every cell was skipped"
        return "every cell was deselected" if settings.shard is None else f"no selected cell is in shard {settings.shard}"
    whole = choose_cells(scopes, settings)
    if whole.cells and settings.shard is not None:
        return why_empty(len(whole.cells), settings.shard)
    if settings.tags is not None:
        tags = {tag for each in scopes for tag in each.tags}
        if not tags & set(settings.tags):
            meant = next(filter(None, (did_you_mean(tag, tags) for tag in settings.tags)), "")
            return f"no recipe has a tag from --tags={','.join(settings.tags)}{meant}"
    if settings.select is not None:
        declared = choose_cells(scopes, replace(settings, opsets=None, exporters=None)).cells
        if declared and (asked := [f"--{name}" for name in ("opsets", "exporters") if getattr(settings, name) is not None]):
            left_out = f"{' and '.join(asked)} left out every cell of --select={','.join(settings.select)}"
            return f"{left_out}: {declared[0].recipe} has cells {describe_cells(declared)}"
        names = nameable(scopes, settings)
        meant = next(filter(None, (did_you_mean(glob, names) for glob in settings.select)), "")
        return f"no cell matches --select={','.join(settings.select)}{meant}; onnx-ci list shows the cells' ids"
    return "; ".join(f"left out {each}" for each in describe_exclusions(whole.exclusions))
