"""Baselines as another commit has them, read from git without touching the working tree."""

from __future__ import annotations

import os
from collections.abc import Iterator
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
    git, inside = repository_of(folder)
    found = {}
    for name, blob in files_at(git, git.commit(revision), inside):
        baseline = read(git.ask("cat-file", "blob", blob), Path(f"{revision}:{name}"))
        found[baseline.recipe] = baseline
    return found


def repository_of(folder: Path) -> tuple[Git, str]:
    """The repository that holds ``folder``, which need not exist, and the folder's path in it."""
    git = Git(next(each for each in (folder, *folder.parents) if each.is_dir()))
    return git, Path(os.path.relpath(folder.resolve(), git.top.resolve())).as_posix()


def files_at(git: Git, commit: str, folder: str) -> Iterator[tuple[str, str]]:
    """The names of the baselines that a commit holds in ``folder``, and what git calls their contents."""
    for each in git.ask("ls-tree", "-z", commit, f"{folder}/").split("\0"):
        about, _, name = each.partition("\t")
        if name.endswith(SUFFIX):
            yield name, about.split()[2]


def baselines_now(folder: BaselineFolder) -> dict[str, Baseline]:
    """The baselines that lie in ``folder``, by recipe. Raises as :meth:`BaselineFolder.load` does."""
    loaded = [folder.load_file(path) for path in folder.files()]
    return {each.recipe: each for each in loaded if each is not None}
