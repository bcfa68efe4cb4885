"""The baselines of another commit, read from git without changing the working tree."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from onnx_ci.baseline.file import Baseline, read
from onnx_ci.baseline.folder import SUFFIX, BaselineFolder
from onnx_ci.environment.git import Git


def baselines_at(revision: str, folder: Path) -> dict[str, Baseline]:
    """The baselines in ``folder`` at a revision, by recipe.

    Args:
        revision: a git revision, such as ``main``, ``HEAD~3`` or a tag.
        folder: where baselines are stored now. It need not exist.

    Raises:
        ConfigurationError: the revision or the repository does not exist, or a baseline cannot be read.
        EnvironmentLacksError: git is not installed.
    """
    git, inside = git_of(folder)
    baselines = [
        read(git.ask("cat-file", "blob", blob), Path(f"{revision}:{name}"))
        for name, blob in files_at(git, git.commit(revision), inside)
    ]
    return {baseline.recipe: baseline for baseline in baselines}


def git_of(folder: Path) -> tuple[Git, str]:
    """The repository that contains ``folder``, and the path of the folder in it. The folder need not exist."""
    git = Git(next(place for place in (folder, *folder.parents) if place.is_dir()))
    return git, Path(os.path.relpath(folder.resolve(), git.top.resolve())).as_posix()


def files_at(git: Git, commit: str, folder: str) -> Iterator[tuple[str, str]]:
    """The file names of the baselines in ``folder`` at a commit, each with its blob."""
    for entry in git.ask("ls-tree", "-z", commit, f"{folder}/").split("\0"):
        status, _, name = entry.partition("\t")
        if name.endswith(SUFFIX):
            yield name, status.split()[2]


def baselines_now(folder: BaselineFolder) -> dict[str, Baseline]:
    """The baselines in ``folder``, by recipe. Raises the errors of :meth:`BaselineFolder.load`."""
    baselines = [folder.load_file(path) for path in folder.files()]
    return {baseline.recipe: baseline for baseline in baselines if baseline is not None}
