"""The folder that holds the baselines of a project: a file a recipe, each replaced as a whole."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from onnx_ci.baseline.file import Baseline, BaselineError, as_text, read
from onnx_ci.report.json_file import write_text

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".toml"
_PLAIN = re.compile(r"[a-z_][a-z0-9_-]{0,63}")
"""Names that are files as they are. Others get a digest: some file systems hold letters of both cases to be the same."""
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d|.*-[0-9a-f]{8})")
_LEFT_BEHIND = re.compile(r"\..+\.toml\.\w{8}")
"""Files of a process that was killed before it put them in place."""


def file_name(recipe: str) -> str:
    """The name of a recipe's file: its own where that is safe, else what is safe of it and a digest."""
    if _PLAIN.fullmatch(recipe) and not _RESERVED.fullmatch(recipe):
        return f"{recipe}{SUFFIX}"
    safe = re.sub(r"[^a-z0-9_-]+", "-", recipe.lower()).strip("-")[:48] or "recipe"
    return f"{safe}-{hashlib.sha256(recipe.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}{SUFFIX}"


class BaselineFolder:
    """The store."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file_of(self, recipe: str) -> Path:
        """Where a recipe's baseline lies, or will."""
        return self.path / file_name(recipe)

    def files(self) -> list[Path]:
        """The files of all baselines."""
        if not self.path.is_dir():
            return []
        return sorted(each for each in self.path.glob(f"*{SUFFIX}") if not each.name.startswith("."))

    def load(self, recipe: str) -> Baseline | None:
        """What is recorded of ``recipe``, or ``None``.

        Raises:
            BaselineError: there is a file, and it cannot be used.
        """
        return self.load_file(self.file_of(recipe))

    def load_file(self, path: Path) -> Baseline | None:
        """What a file of the folder holds, or ``None`` where it is not there. Raises as :meth:`load` does."""
        text = _text_of(path)
        if text is None:
            return None
        baseline = read(text, path)
        if file_name(baseline.recipe) != path.name:
            raise BaselineError(f"{path} is the baseline of {baseline.recipe!r}; call it {file_name(baseline.recipe)}")
        return baseline

    def store(self, baseline: Baseline) -> None:
        """Put a baseline in the place of what is recorded; whoever reads meanwhile sees the one or the other, whole.

        Raises:
            ConfigurationError: it cannot be written; what was recorded stays.
        """
        write_text(as_text(baseline), self.file_of(baseline.recipe), "the baseline")

    def remove(self, recipe: str) -> None:
        """Remove what is recorded of ``recipe``."""
        try:
            self.file_of(recipe).unlink()
        except OSError as error:
            raise BaselineError(f"{self.file_of(recipe)} cannot be removed: {error.strerror}") from None

    def check_writable(self) -> None:
        """Make sure, before the work, that baselines can be written.

        Raises:
            BaselineError: they cannot; the message names the place.
        """
        with self.locked():
            pass

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from changing anything while the block reads and writes. Waits for them to end.

        Raises:
            BaselineError: the folder cannot be made or written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not os.access(self.path, os.W_OK):
                raise PermissionError(0, "it is read-only")
            folder = os.open(self.path, os.O_RDONLY) if fcntl else None
        except OSError as error:
            raise BaselineError(
                f"baselines cannot be written to {self.path}: {error.strerror}; make it writable, or name another place with "
                "baseline-folder"
            ) from None
        try:
            if folder is not None:
                fcntl.flock(folder, fcntl.LOCK_EX)
            for each in self.path.iterdir():
                if _LEFT_BEHIND.fullmatch(each.name):  # nobody else writes now
                    each.unlink(missing_ok=True)
            yield
        finally:
            if folder is not None:
                os.close(folder)


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise BaselineError(f"{path} is no text; restore the file with git") from None
    except OSError as error:
        raise BaselineError(f"{path} cannot be read: {error.strerror}") from None
