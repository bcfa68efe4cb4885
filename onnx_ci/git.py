"""git, asked from the project's folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

from onnx_ci.errors import ConfigurationError, EnvironmentLacksError

_PLAIN = ("-c", "color.ui=false", "-c", "log.showSignature=false")
"""What people set for their own eyes would stand between the words that are read here."""
_ASIDES = ("hint:", "warning:", "Aborting")
"""Lines that do not say why git refuses."""


class Git:
    """The git repository that holds a folder.

    Raises:
        EnvironmentLacksError: there is no git.
        ConfigurationError: the folder is in no repository that has a working tree.
    """

    def __init__(self, folder: Path) -> None:
        self.top = folder
        self.top = Path(self.ask("rev-parse", "--show-toplevel"))
        """The top folder of the working tree."""

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``git WORDS`` at the top of the working tree, whatever becomes of it."""
        command = ["git", *_PLAIN, *words]
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

    def ask(self, *words: str) -> str:
        """What ``git WORDS`` prints, without the last end of line.

        Raises:
            ConfigurationError: git refuses, with its own words on why.
        """
        done = self.run(*words)
        if done.returncode:
            lines = (done.stderr or done.stdout).splitlines()
            said = " ".join(line.strip() for line in lines if not line.startswith(_ASIDES)) or f"exit code {done.returncode}"
            raise ConfigurationError(f"git {words[0]}: {said.removeprefix('fatal: ').removeprefix('error: ')}")
        return done.stdout.rstrip("\n")

    def commit(self, revision: str) -> str:
        """The full name of the commit that ``revision`` means.

        Raises:
            ConfigurationError: it means none here.
        """
        done = self.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if done.returncode:
            raise ConfigurationError(
                f"there is no commit {revision!r} here; in a shallow clone, git fetch --unshallow brings them all"
            )
        return done.stdout.strip()
