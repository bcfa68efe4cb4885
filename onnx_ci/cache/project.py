"""The files of the project by content, and files elsewhere that it mentions.

All files count that git does not ignore, as they are in the working tree: filters, LFS and flags make the index lie. Python
does not tell who asks whether a file exists, and compiled code opens files unseen. So an ignored file counts if a text of the
project mentions its name. A path that leads elsewhere counts if a text, a variable or a setting mentions it. A folder counts
with all that is in it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from onnx_ci.cache.contents import Contents, Mentions, digest_of_text
from onnx_ci.cache.places import Places, is_of_python, is_of_system
from onnx_ci.config.options import OUTPUTS
from onnx_ci.config.settings import Settings
from onnx_ci.owners import is_installed
from onnx_ci.results.journal import journal_of

ABSENT = "absent"
"""The state of a file that does not exist."""
_OF_TOOLS = re.compile(
    r"\.git|\.hg|\.svn|__pycache__|\.pytest_cache|\.mypy_cache|\.ruff_cache|\.tox|\.nox|\.hypothesis|node_modules|.*\.egg-info"
    r"|\.coverage.*|\.idea|\.vscode|\.ipynb_checkpoints|\.DS_Store"
)
"""Names of what tools write for themselves."""
_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
"""A folder that contains one of them has a Python installed in it."""
_MOST_WALKED = 20_000
"""The largest number of files that count in an ignored folder, or behind a link."""
_MOST_PATHS = 5_000
"""The largest number of paths that count of those that lead elsewhere."""
_MOST_FILES, _MOST_BYTES, _DEEPEST = 500, 256 * 2**20, 4
"""The largest folder elsewhere whose files all count by content."""


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

    def files(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The states of all that counts, by name. The name of a folder ends with a slash.

        Args:
            variables: the environment variables that count. Their values may be paths.
        """
        counted, ignored = self._listed()
        states = {name: state for name in counted if not self._ignored.match(name) and (state := self._state(name)) != ABSENT}
        texts = {name: self.text(name, state) for name, state in states.items()}
        words = {word for text in texts.values() for word in text.words} if ignored else set()
        for name in ignored:
            if os.path.basename(name) in words and (state := self._state(name)) != ABSENT:  # noqa: PTH119 (thousands of files)
                states[name] = state
        values = {
            *self._in_settings,
            *(path for value in variables.values() for path in (value, *re.split(r"[\s:;,=]", value))),
        }
        return {**dict(self._mentioned(states, texts, values)), **states}

    def text(self, name: str, state: str) -> Mentions:
        """What a file of the project mentions."""
        return self.contents.text(self.places.path(name), state.partition(" ")[0])

    def state(self, name: str) -> str:
        """The present state of a file, or of a folder's listing if the name ends with a slash."""
        path = self.places.path(name.rstrip("/"))
        return self.listing(path, entries_of(path)) if name.endswith("/") else self._state(name)

    def listing(self, path: str, entries: Iterable[str]) -> str:
        """A digest of those of a folder's entries that count, as :func:`entries_of` gives them."""
        name = self.places.name(path)
        prefix = "" if name == "." else f"{name}/"
        counted = (entry for entry in entries if not self._is_left_out(prefix + _name_of(entry)))
        return digest_of_text("\n".join(sorted(counted)))

    def is_own(self, name: str) -> bool:
        """Whether onnx-ci itself writes a file."""
        return f"{name}/".startswith(self._own) or name.startswith(self._unfinished)

    # --- the list of files ------------------------------------------------------------------------------------------------

    def _listed(self) -> tuple[list[str], list[str]]:
        """The names of files that git does not ignore, and of files that it ignores."""
        counted, ignored = (self._without_environments(names) for names in _list_files(self.places.root))
        return sorted(counted), sorted(ignored - counted)

    def _without_environments(self, names: Iterable[str]) -> set[str]:
        counted = {name for name in names if not self._is_left_out(name)}
        marks = (name.rpartition(f"/{mark}") for name in counted for mark in _ENVIRONMENTS if f"/{mark}" in name)
        environments = tuple({f"{folder}/" for folder, _, _ in marks})
        return {name for name in counted if not name.startswith(environments)}

    def _is_left_out(self, name: str) -> bool:
        """Whether a tool or onnx-ci writes a file for itself."""
        return any(map(_is_of_tool, name.split("/"))) or self.is_own(name)

    @cached_property
    def _own(self) -> tuple[str, ...]:
        """The files and folders that onnx-ci itself writes, baselines among them: they are compared outside the cache."""
        settings = self.settings
        paths = [Path(self.places.root, path) for path in (settings.cache, settings.baseline_folder) if path is not None]
        written = (getattr(settings, option.field) for option in OUTPUTS)
        paths += [Path(self.folder, path) for path in written if path is not None]
        paths += [journal_of(Path(self.folder, settings.report))] if settings.report else []
        names = {self.places.name(os.path.normpath(path)) for path in paths}
        return tuple(sorted(f"{name}/" for name in names - {"."}))

    @cached_property
    def _unfinished(self) -> tuple[str, ...]:
        """How the names of unfinished files of onnx-ci begin; see :mod:`onnx_ci.whole_files`."""
        paths = (name.rstrip("/").rpartition("/") for name in self._own)
        return tuple(f"{folder}{slash}.{name}." for folder, slash, name in paths)

    @cached_property
    def _ignored(self) -> re.Pattern[str]:
        return re.compile("|".join(map(_as_pattern, self.settings.cache_ignore)) or r"(?!)", re.DOTALL)

    # --- states -----------------------------------------------------------------------------------------------------------

    def _state(self, name: str) -> str:
        """The state of a file or a link, or of all files of a folder."""
        path = self.places.path(name)
        link = ""
        try:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                link = f" → {self.places.normalized(os.readlink(path))}"  # noqa: PTH115
                status = os.stat(path)  # noqa: PTH116
        except (OSError, ValueError):
            return f"nothing{link}" if link else ABSENT
        if stat.S_ISDIR(status.st_mode):
            files = "\n".join(f"{file[len(path) :]} {self.contents.digest(file)}" for file in walk(path))
            return digest_of_text(files) + link
        runs = " x" if status.st_mode & stat.S_IXUSR else ""
        return f"{self.contents.digest(path) or 'no file'}{runs}{link}"

    # --- what is mentioned ------------------------------------------------------------------------------------------------

    @cached_property
    def _in_settings(self) -> list[str]:
        """The paths of files to be read in settings, and the files that match those that are patterns."""
        paths = [os.path.join(self.folder, path) for path in (*self.settings.weights.values(), *self.settings.inputs)]  # noqa: PTH118
        return [*paths, *(file for path in paths for file in glob.glob(path, recursive=True))]  # noqa: PTH207 (absolute)

    def _mentioned(
        self, states: Mapping[str, str], texts: Mapping[str, Mentions], values: set[str]
    ) -> Iterator[tuple[str, str]]:
        """The states of files and folders to which paths lead, except for those that git lists."""
        folders = {name.rpartition("/")[0] for name in states if name.endswith(".py")} | {""}
        bases = {self.folder, *map(self.places.path, folders)}
        paths: set[str] = set()
        for path in {path for text in texts.values() for path in text.outside} | values:
            if path.startswith(("/", "~")):
                paths.add(os.path.normpath(self.places.path(re.sub("^/+", "/", path))))
            elif path.startswith("..") or "/.." in path:
                paths.update(os.path.normpath(f"{base}/{path}") for base in bases)
        listed = {name[: slash.start()] for name in states for slash in re.finditer("/", name)}
        names = {name for text in texts.values() for name in text.names}
        for path in sorted(paths)[:_MOST_PATHS]:
            if path == "/" or is_of_system(path) or is_of_python(path) or is_installed(f"{path}/"):
                continue
            if (name := self.places.name(path)) not in states and name not in listed and not self._is_left_out(name):
                yield from self._elsewhere(path, names)
        relative = {
            os.path.normpath(f"{base}/{name}")
            for file, text in texts.items()
            for name in text.names
            if len(name) > 1 and " " not in name
            for base in (self.places.root, f"{self.places.root}/{file.rpartition('/')[0]}")
        }
        for path in relative:
            name = self.places.name(path)
            is_listed = name == "." or name in listed or self._is_left_out(name)
            if not is_listed and self.places.is_inside(path) and os.path.isdir(path):  # noqa: PTH112 (thousands of names)
                yield f"{name}/", "an empty or ignored folder"

    def _elsewhere(self, path: str, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """The state of a file; or those of a folder's listing and of its files. If these are too many, only ``names`` count."""
        files = [path]
        if os.path.isdir(path):  # noqa: PTH112 (thousands of paths)
            shared = (self.places.root, self.places.home, tempfile.gettempdir(), "/dev/shm")  # noqa: S108 (nothing is written)
            is_shared = any(f"{place}/".startswith(f"{path}/") for place in shared)
            entries = entries_of(path)
            if not is_shared:
                yield f"{self.places.name(path)}/", self.listing(path, entries)
            all_files = None if is_shared else _all_files(path)
            if all_files is None:
                present = {_name_of(entry) for entry in entries}
                named = (f"{path}/{name}" for name in names if name.partition("/")[0] in present)
                files = [file for file in named if os.path.isfile(file)]  # noqa: PTH113 (thousands of names)
            else:
                files = all_files
        for file in files:
            name = self.places.name(file)
            if not self._is_left_out(name) and (state := self._state(name)) != ABSENT:
                yield name, state


def entries_of(folder: str) -> tuple[str, ...]:
    """The entries of a folder: ``a/``, ``a.py``, other files with a null character and their size; none if it is unreadable."""
    names = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir():
                        names.append(f"{entry.name}/")
                    else:
                        names.append(entry.name if entry.name.endswith(".py") else f"{entry.name}\0{entry.stat().st_size}")
    except (OSError, ValueError):
        return ()
    return tuple(sorted(names))


def _name_of(entry: str) -> str:
    return entry.rstrip("/").partition("\0")[0]


def _is_of_tool(part: str) -> bool:
    return (part[:1] in "._n" or part.endswith(".egg-info")) and _OF_TOOLS.fullmatch(part) is not None


def _as_pattern(pattern: str) -> str:
    """A regular expression for the names that a pattern of ``cache-ignore`` matches, as in a .gitignore."""
    if "/" not in pattern.rstrip("/"):
        return rf"(?:.*/)?{fnmatch.translate(pattern.rstrip('/'))[:-2]}(?:/.*)?\Z"
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern.strip("/"))
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return rf"(?:{''.join(words.get(part, re.escape(part)) for part in parts)})(?:/.*)?\Z"


# --- lists of files --------------------------------------------------------------------------------------------------------


def _list_files(root: str) -> tuple[list[str], list[str]]:
    """The names of the files of a folder that git does not ignore, and of those that it ignores. Links are not followed."""
    is_in_repository = any(os.path.lexists(f"{place}/.git") for place in (root, *Path(root).parents))
    listed = _listed_by_git(root) if is_in_repository else None
    if listed is None or not any(listed) or listed[1] == ["./"]:  # git ignores the folder itself
        with tempfile.TemporaryDirectory(prefix="onnx-ci-git-", ignore_cleanup_errors=True) as repository:
            for name in ("objects", "refs"):
                Path(repository, name).mkdir()
            Path(repository, "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
            listed = _listed_by_git(root, f"--git-dir={repository}", f"--work-tree={root}")
    if listed is None:
        return [path[len(root) + 1 :] for path in walk(root, follow=False)], []
    counted: list[str] = []
    ignored: list[str] = []
    for name in listed[0]:
        path = f"{root}/{name.rstrip('/')}"
        if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114 (thousands of files)
            for names, inner_names in zip((counted, ignored), _list_files(path), strict=True):  # another repository
                names += [f"{name.rstrip('/')}/{inner_name}" for inner_name in inner_names]
        else:
            counted.append(name)
    for name in listed[1]:
        is_folder = name.endswith("/")
        ignored += [path[len(root) + 1 :] for path in walk(f"{root}/{name[:-1]}", follow=False)] if is_folder else [name]
    return counted, ignored


def _listed_by_git(root: str, *options: str) -> tuple[list[str], list[str]] | None:
    """The names that git does not ignore, and those that it ignores; ``None`` if git fails."""
    # A container's checkout often has another owner. A monitor of the file system would be a program of the user.
    command = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", *options, "ls-files", "-z", "--exclude-standard"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    kinds = (("--cached", "--others"), ("--others", "--ignored", "--directory"))
    try:
        running = [
            subprocess.Popen(
                [*command, *kind], cwd=root, env=environment, stdout=subprocess.PIPE,
                stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for kind in kinds
        ]  # fmt: skip
    except OSError:
        return None
    counted, ignored = ([os.fsdecode(name) for name in git.communicate()[0].split(b"\0") if name] for git in running)
    return None if any(git.returncode for git in running) else (counted, ignored)


def _all_files(top: str) -> list[str] | None:
    """All files in a folder except bytecode; ``None`` if they are too many, too large or too deep."""
    files, size = [], 0
    for path in walk(top):
        if path.endswith(".pyc"):
            continue
        with contextlib.suppress(OSError):
            size += os.stat(path).st_size  # noqa: PTH116
        files.append(path)
        if len(files) > _MOST_FILES or size > _MOST_BYTES or path[len(top) :].count("/") > _DEEPEST:
            return None
    return files


def walk(top: str, *, follow: bool = True) -> Iterator[str]:
    """The files in a folder, in order, except those of tools and environments. Loops of links are cut."""
    waiting, folders, count = [top], {os.path.realpath(top)}, 0
    while waiting and count < _MOST_WALKED:
        try:
            with os.scandir(waiting.pop()) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError:
            continue
        if any(entry.name in _ENVIRONMENTS for entry in entries):
            continue
        for entry in entries:
            with contextlib.suppress(OSError):
                if _is_of_tool(entry.name):
                    continue
                if not entry.is_dir(follow_symlinks=follow):
                    count += 1
                    yield entry.path
                elif (real := os.path.realpath(entry.path) if entry.is_symlink() else entry.path) not in folders:
                    folders.add(real)
                    waiting.append(entry.path)
