"""Baselines as another commit has them, read from git without touching the working tree."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from onnx_ci.baseline.file import Baseline, read
from onnx_ci.baseline.folder import BaselineFolder
from onnx_ci.errors import ConfigurationError, EnvironmentLacksError, first_line


def baselines_at(revision: str, folder: Path) -> dict[str, Baseline]:
    """The baselines that ``folder`` held at a revision, by recipe.

    Args:
        revision: in git's words: ``main``, ``HEAD~3``, a tag.
        folder: where baselines are kept now; it need not exist.

    Raises:
        ConfigurationError: there is no such revision or no repository, or a baseline of it cannot be read.
        EnvironmentLacksError: git is not installed.
    """
    above = next(each for each in (folder, *folder.parents) if each.is_dir())
    # A revision that begins with a dash would be an option.
    commit = _git(above, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").strip()
    top = Path(_git(above, "rev-parse", "--show-toplevel").strip())
    inside = Path(os.path.relpath(folder.resolve(), top.resolve())).as_posix()
    listed = _git(top, "ls-tree", "-z", "--name-only", commit, f"{inside}/").split("\0")
    found = {}
    for name in listed:
        if name.endswith(".toml"):
            baseline = read(_git(top, "show", f"{commit}:{name}"), Path(f"{revision}:{name}"))
            found[baseline.recipe] = baseline
    return found


def baselines_now(folder: BaselineFolder) -> dict[str, Baseline]:
    """The baselines that lie in ``folder``, by recipe. Raises as :meth:`BaselineFolder.load` does."""
    loaded = [folder.load_file(path) for path in folder.files()]
    return {each.recipe: each for each in loaded if each is not None}


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, check=True)
    except FileNotFoundError:
        raise EnvironmentLacksError("git is not installed, and other commits can only be read with it") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip() or f"there is no revision {words[-1].removesuffix('^{commit}')!r}"
        raise ConfigurationError(f"git: {first_line(Exception(said))}") from None
    return done.stdout.decode("utf-8", errors="replace")
