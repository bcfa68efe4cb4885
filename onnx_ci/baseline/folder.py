"""The folder with the baselines of a project: one file for each recipe, written whole; now, and at other commits."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from onnx_ci.baseline.file import HEAD, Baseline, BaselineError, as_text, read
from onnx_ci.environment.git import Git
from onnx_ci.processes.scratch import HAS_LOCKS, lock
from onnx_ci.results.files import write_text
from onnx_ci.whole_files import ABANDONED_AFTER, read_regular, remove_unfinished

SUFFIX = ".toml"
_PLAIN = re.compile(r"[a-z_][a-z0-9_-]{0,63}")
"""Names that are safe file names. Others get a digest, because some file systems ignore case."""
_LARGEST_FILE = 64 * 2**20
"""In bytes. Larger files are not read."""
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d|.*-[0-9a-f]{8})")
"""Names of devices on Windows, and names that end like those with a digest."""


def file_name(recipe: str) -> str:
    """The file name for a recipe: its name if that is safe, otherwise the safe part of it and a digest."""
    if _PLAIN.fullmatch(recipe) and not _RESERVED.fullmatch(recipe):
        return f"{recipe}{SUFFIX}"
    safe = re.sub(r"[^a-z0-9_-]+", "-", recipe.lower()).strip("-")[:48] or "recipe"
    return f"{safe}-{hashlib.sha256(recipe.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}{SUFFIX}"


def is_baseline(path: Path) -> bool:
    """Whether a file is named like a baseline, and says of itself that it is one."""
    try:
        return path.suffix == SUFFIX and read_regular(path, _LARGEST_FILE).startswith(HEAD.encode())
    except OSError:
        return False


class BaselineFolder:
    """The store of baselines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file_of(self, recipe: str) -> Path:
        """The path of a recipe's baseline, whether or not it exists."""
        return self.path / file_name(recipe)

    def files(self) -> list[Path]:
        """All baseline files."""
        if not self.path.is_dir():
            return []
        return sorted(file for file in self.path.glob(f"*{SUFFIX}") if not file.name.startswith("."))

    def load(self, recipe: str) -> Baseline | None:
        """What is recorded for ``recipe``, or ``None``. Raises :class:`BaselineError` if the file cannot be used."""
        return self.load_file(self.file_of(recipe))

    def load_file(self, path: Path) -> Baseline | None:
        """The baseline in a file of the folder, or ``None`` if there is none. Raises the errors of :meth:`load`."""
        try:
            text = read_regular(path, _LARGEST_FILE).decode()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            raise BaselineError(f"{path} is not a text file; restore the file with git") from None
        except OSError as error:
            raise BaselineError(f"{path} cannot be read: {error.strerror}") from None
        baseline = read(text, path)
        if file_name(baseline.recipe) != path.name:
            raise BaselineError(f"{path} is the baseline of {baseline.recipe!r}; rename it to {file_name(baseline.recipe)}")
        return baseline

    def load_all(self) -> dict[str, Baseline]:
        """Everything that is recorded, by recipe. Raises the errors of :meth:`load`."""
        baselines = map(self.load_file, self.files())
        return {baseline.recipe: baseline for baseline in baselines if baseline is not None}

    def store(self, baseline: Baseline) -> None:
        """Replace what is recorded for a recipe. Raises ``ConfigurationError`` and keeps the old file if that fails."""
        write_text(as_text(baseline), self.file_of(baseline.recipe), "the baseline")

    def remove(self, recipe: str) -> None:
        """Remove what is recorded for ``recipe``."""
        try:
            self.file_of(recipe).unlink()
        except OSError as error:
            raise BaselineError(f"{self.file_of(recipe)} cannot be removed: {error.strerror}") from None

    def check_writable(self) -> None:
        """Check that baselines can be written. Raises :class:`BaselineError`."""
        with self.locked():
            pass

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for the block, once no other process holds it. Raises :class:`BaselineError` if that fails."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not os.access(self.path, os.W_OK):
                raise PermissionError(0, "it is read-only")
            folder = os.open(self.path, os.O_RDONLY) if HAS_LOCKS else None
        except OSError as error:
            raise BaselineError(
                f"baselines cannot be written to {self.path}: {error.strerror}; make it writable, or set another folder with "
                "baseline-folder"
            ) from None
        with contextlib.ExitStack() as undo:
            is_locked = False
            if folder is not None:
                undo.callback(os.close, folder)
                is_locked = lock(folder)
            remove_unfinished(self.path, seconds=0 if is_locked else ABANDONED_AFTER)  # under the lock, no other process writes
            yield


# --- at other commits, read from git without changing the working tree ------------------------------------------------


def baselines_at(revision: str, folder: Path) -> dict[str, Baseline]:
    """The baselines in a folder, which need not exist now, at a revision of git, by recipe. Raises ``ConfigurationError``."""
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
