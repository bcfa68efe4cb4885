"""Runs git in the project's folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from onnx_ci.errors import ConfigurationError, EnvironmentLacksError
from onnx_ci.results.records import Revision

_PLAIN = ("-c", "color.ui=false", "-c", "log.showSignature=false")
"""Options that override user settings: these would change output that is parsed here."""
_HINTS = ("hint:", "warning:", "Aborting")
"""The beginnings of lines that do not say why git fails."""


def repository_of(folder: Path) -> Path | None:
    """The top of the repository that contains ``folder``, found without git; ``None`` if there is none."""
    resolved = folder.resolve()
    return next((place for place in (resolved, *resolved.parents) if (place / ".git").exists()), None)


def revision_of(folder: Path) -> Revision | None:
    """What is checked out in ``folder``; ``None`` if it is in no repository with a commit that git can read."""
    if repository_of(folder) is None:
        return None
    try:
        git = Git(folder)
        commit = git.commit("HEAD")
        # The user may be running git at the same time, so the index must not be locked.
        changed = git.ask("--no-optional-locks", "status", "--porcelain", "--untracked-files=no")
    except (ConfigurationError, EnvironmentLacksError):
        return None
    branch = git.run("symbolic-ref", "--quiet", "--short", "HEAD").stdout.strip() or _branch_of_job()
    return Revision(commit=commit, branch=branch or None, is_modified=bool(changed))


def _branch_of_job() -> str:
    """The branch of a job on GitHub, which checks out a commit and no branch; empty elsewhere and for tags."""
    of_pull_request = os.environ.get("GITHUB_HEAD_REF", "")
    is_branch = os.environ.get("GITHUB_REF_TYPE") == "branch"
    return of_pull_request or (os.environ.get("GITHUB_REF_NAME", "") if is_branch else "")


class Git:
    """The git repository that contains a folder. Raises ``EnvironmentLacksError`` without git, or ``ConfigurationError``."""

    def __init__(self, folder: Path) -> None:
        self.top = folder
        self.top = Path(self.ask("rev-parse", "--show-toplevel"))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``git ARGUMENTS`` at the top of the working tree. A nonzero exit code is not an error."""
        command = ["git", *_PLAIN, *arguments]
        try:
            return subprocess.run(
                command,
                cwd=self.top,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
        except OSError as error:
            raise EnvironmentLacksError(f"git cannot be started: {error.strerror or error}; install git") from None

    def ask(self, *arguments: str) -> str:
        """The output of ``git ARGUMENTS``, without trailing newlines. Raises ``ConfigurationError`` with git's own message."""
        git = self.run(*arguments)
        if git.returncode:
            lines = (git.stderr or git.stdout).splitlines()
            message = " ".join(line.strip() for line in lines if not line.startswith(_HINTS)) or f"exit code {git.returncode}"
            raise ConfigurationError(f"git {arguments[0]}: {message.removeprefix('fatal: ').removeprefix('error: ')}")
        return git.stdout.rstrip("\n")

    def commit(self, revision: str) -> str:
        """The full hash of the commit that ``revision`` names. Raises ``ConfigurationError`` if there is none."""
        git = self.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if git.returncode:
            raise ConfigurationError(
                f"there is no commit {revision!r} here; in a shallow clone, run git fetch --unshallow first"
            )
        return git.stdout.strip()
