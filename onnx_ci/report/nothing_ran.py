"""Why a run judged no cell: the sentence that every front-end shows, with what to do about it."""

from __future__ import annotations

from onnx_ci.collection.discovery import Catalogue
from onnx_ci.config.settings import Settings
from onnx_ci.errors import did_you_mean
from onnx_ci.matrix.plan import Matrix, unselected_cells, why_empty
from onnx_ci.report.text import left_out


def why_nothing_ran(
    catalogue: Catalogue, settings: Settings, *, whole: Matrix, part: Matrix, is_deselected: bool = False
) -> str:
    """Why no cell was judged.

    Args:
        catalogue: the recipes that were found.
        settings: the settings of the run.
        whole: all planned cells.
        part: those in the shard of the settings; ``whole`` without a shard.
        is_deselected: whether the front-end itself can leave out planned cells and has left out all of them.
    """
    if not catalogue.recipes:
        patterns = ", ".join(settings.recipe_files)
        return (
            f"no recipe was found below {settings.root}; recipe files are {patterns} (recipe-files in [tool.onnx-ci]), or "
            "files given as arguments; onnx-ci init writes a first one"
        )
    if part.cells:
        if not is_deselected:
            return "every cell was skipped"
        return "every cell was deselected" if settings.shard is None else f"no selected cell is in shard {settings.shard}"
    if whole.cells and settings.shard is not None:
        return why_empty(whole, settings.shard)
    if settings.tags is not None:
        tags = {tag for each in catalogue.recipes.values() for tag in each.recipe.tags}
        if not tags & set(settings.tags):
            meant = next(filter(None, (did_you_mean(tag, tags) for tag in settings.tags)), "")
            return f"no recipe has a tag from --tags={','.join(settings.tags)}{meant}"
    if settings.select is not None:
        cells = unselected_cells(catalogue.recipes.values(), settings)
        names = [*catalogue.recipes, *(name for cell in cells for name in (f"{cell.recipe}::{cell.label}", cell.id))]
        meant = next(filter(None, (did_you_mean(glob, names) for glob in settings.select)), "")
        return f"no cell matches --select={','.join(settings.select)}{meant}; onnx-ci list shows the cells' ids"
    return "; ".join(f"left out {each}" for each in left_out(whole.exclusions))
