"""The files that git tracks, and the states of all others that a recipe has seen."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import stat
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from onnx_ci.baseline.folder import is_baseline
from onnx_ci.cache.contents import Contents, digest_of_text
from onnx_ci.cache.packages import names_in
from onnx_ci.cache.places import Places
from onnx_ci.cache.watch import ABSENT, FOLDER, Search, entries_of
from onnx_ci.config.options import OUTPUTS
from onnx_ci.config.settings import Settings

_OF_TOOLS = re.compile(
    r"\.git|\.hg|\.svn|__pycache__|\.pytest_cache|\.mypy_cache|\.ruff_cache|\.tox|\.nox|\.hypothesis|node_modules|.*\.egg-info"
    r"|\.coverage.*|\.idea|\.vscode|\.ipynb_checkpoints|\.DS_Store"
)
"""Names of what tools write for themselves. They do not count among the entries of a folder that was listed."""
_MODULES = (".py", ".pyc", ".so", ".pyd")
_FOR_ALL = "conftest.py"
"""A Python file that counts for every recipe: pytest imports it, and what it does reaches their processes."""


@dataclass(frozen=True, kw_only=True)
class Project:
    """The project.

    Args:
        places: its root and the home folder.
        settings: the settings of the run.
        folder: the current directory.
        contents: the memory of contents.
    """

    places: Places
    settings: Settings
    folder: str
    contents: Contents

    def files(self) -> dict[str, str]:
        """The states of the files that count for every recipe, by name: those that git tracks, except Python files.

        Python files count for the recipes that use them. The files that settings name, such as weights, count, too.
        """
        paths = [os.path.join(self.folder, path) for path in (*self.settings.weights.values(), *self.settings.inputs)]  # noqa: PTH118
        named = {self.places.name(os.path.normpath(file)) for path in paths for file in glob.glob(path, recursive=True)}  # noqa: PTH207
        tracked = {
            name for name in _tracked_by_git(self.places.root) if not self._ignored.match(name) and not self._is_own(name)
        }
        counted = named | {name for name in tracked if not name.endswith(".py") or name.rpartition("/")[2] == _FOR_ALL}
        return {name: state for name in sorted(counted) if (state := self.state(name)) != ABSENT}

    def state(self, name: str) -> str:
        """The present state of a file: a digest of its content, :data:`ABSENT` or :data:`FOLDER`; and the text of a link."""
        path = self.places.path(name)
        link = ""
        try:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                link = f" → {self.places.normalized(os.readlink(path))}"  # noqa: PTH115
                status = os.stat(path)  # noqa: PTH116
        except (OSError, ValueError):
            return f"{ABSENT}{link}"
        if stat.S_ISDIR(status.st_mode):
            return f"{FOLDER}{link}"
        runs = " x" if status.st_mode & stat.S_IXUSR else ""
        return f"{self.contents.digest(path) or 'no file'}{runs}{link}"

    def listing(self, entries: Iterable[str]) -> str:
        """A digest of those of a folder's entries that count, as :func:`~onnx_ci.cache.watch.entries_of` gives them."""
        cache = f"{Path(self.settings.cache or '').name}/"
        counted = (entry for entry in entries if not _OF_TOOLS.fullmatch(_name_of(entry)) and entry != cache)
        return digest_of_text("\n".join(sorted(counted)))

    def present_listing(self, name: str) -> str:
        """As :meth:`listing`, of the present entries of a folder."""
        return self.listing(entries_of(self.places.path(name)))

    def modules(self, search: Search) -> str:
        """What a search for modules would find now: the files and folders with their names, in the order of the search."""
        names = set(search.names)
        return "\n".join(
            f"{place} {entry}"
            for place, folder in enumerate(search.folders)
            for entry in names_in(self.places.path(folder))
            if entry.partition(".")[0] in names and ("." not in entry or entry.endswith(_MODULES))
        )

    # --- what onnx-ci itself writes ---------------------------------------------------------------------------------------

    def _is_own(self, name: str) -> bool:
        """Whether this run writes a file, or reads it as a baseline. Baselines are compared outside the cache."""
        is_in_folder = name.rpartition("/")[0] == self._baselines
        return name in self._written or (is_in_folder and is_baseline(Path(self.places.path(name))))

    @cached_property
    def _baselines(self) -> str:
        folder = self.places.name(os.path.normpath(Path(self.places.root, self.settings.baseline_folder)))
        return "" if folder == "." else folder

    @cached_property
    def _written(self) -> frozenset[str]:
        """The files that this run writes."""
        written = (getattr(self.settings, option.field) for option in OUTPUTS)
        return frozenset(self.places.name(os.path.normpath(Path(self.folder, path))) for path in written if path is not None)

    @cached_property
    def _ignored(self) -> re.Pattern[str]:
        return re.compile("|".join(map(_as_pattern, self.settings.cache_ignore)) or r"(?!)", re.DOTALL)


def _name_of(entry: str) -> str:
    return entry.rstrip("/").partition("\0")[0]


def _as_pattern(pattern: str) -> str:
    """A regular expression for the names that a pattern of ``cache-ignore`` matches, as in a .gitignore."""
    if "/" not in pattern.rstrip("/"):
        return rf"(?:.*/)?{fnmatch.translate(pattern.rstrip('/'))[:-2]}(?:/.*)?\Z"
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern.strip("/"))
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return rf"(?:{''.join(words.get(part, re.escape(part)) for part in parts)})(?:/.*)?\Z"


def _tracked_by_git(root: str) -> list[str]:
    """The names of the files below a folder that git tracks, also those of submodules; none without git."""
    # A container's checkout often has another owner. A monitor of the file system would be a program of the user.
    options = ("-c", "safe.directory=*", "-c", "core.fsmonitor=false")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        listed = subprocess.run(
            ["git", *options, "ls-files", "-z", "--recurse-submodules"],
            cwd=root, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return []
    return [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
