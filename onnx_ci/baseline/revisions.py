"""Baselines as another commit has them, read from git without touching the working tree."""

from __future__ import annotations

import os
from pathlib import Path

from onnx_ci.baseline.file import Baseline, read
from onnx_ci.baseline.folder import SUFFIX, BaselineFolder
from onnx_ci.git import Git


def baselines_at(revision: str, folder: Path) -> dict[str, Baseline]:
    """The baselines that ``folder`` held at a revision, by recipe.

    Args:
        revision: in git's words: ``main``, ``HEAD~3``, a tag.
        folder: where baselines are kept now; it need not exist.

    Raises:
        ConfigurationError: there is no such revision or no repository, or a baseline of it cannot be read.
        EnvironmentLacksError: git is not installed.
    """
    git = Git(next(each for each in (folder, *folder.parents) if each.is_dir()))
    commit = git.commit(revision)
    inside = Path(os.path.relpath(folder.resolve(), git.top.resolve())).as_posix()
    found = {}
    for name in git.ask("ls-tree", "-z", "--name-only", commit, f"{inside}/").split("\0"):
        if name.endswith(SUFFIX):
            baseline = read(git.ask("show", f"{commit}:{name}"), Path(f"{revision}:{name}"))
            found[baseline.recipe] = baseline
    return found


def baselines_now(folder: BaselineFolder) -> dict[str, Baseline]:
    """The baselines that lie in ``folder``, by recipe. Raises as :meth:`BaselineFolder.load` does."""
    loaded = [folder.load_file(path) for path in folder.files()]
    return {each.recipe: each for each in loaded if each is not None}
