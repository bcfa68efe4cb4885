"""The files of the project by content, and those that it mentions elsewhere.

What git does not ignore counts, as it is in the working tree: filters, LFS and flags make the index lie. Python does not tell
who asks whether a file exists, and compiled code opens files unseen. So a file that git ignores counts if a text of the project
has its name, and a path that leads out of the project counts if a text, a variable or a setting has it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import hashlib
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from onnx_ci.cache.digests import Digests
from onnx_ci.cache.places import Places, is_of_python, is_of_system
from onnx_ci.cache.texts import Text
from onnx_ci.config.settings import Settings
from onnx_ci.environment.libraries import is_installed
from onnx_ci.results.journal import journal_of

_LEFT_OUT = re.compile(
    r"\.git|\.hg|\.svn|__pycache__|\.pytest_cache|\.mypy_cache|\.ruff_cache|\.tox|\.nox|\.hypothesis|node_modules|.*\.egg-info"
    r"|\.coverage.*|\.idea|\.vscode|\.ipynb_checkpoints|\.DS_Store"
)
"""Names of what tools write for themselves."""
_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
"""What folders contain in which Python is installed."""
_MOST_WALKED = 20_000
"""How many files are looked at in an ignored folder, behind a link or elsewhere."""
_MOST_PATHS = 5_000
"""How many paths that lead elsewhere are looked at."""
_LISTING = "listing "


@dataclass(frozen=True, kw_only=True)
class Project:
    """The project.

    Args:
        places: its root and the home folder.
        settings: the settings of the run.
        folder: the current directory.
        digests: the memory of digests.
    """

    places: Places
    settings: Settings
    folder: str
    digests: Digests

    def files(self, variables: Mapping[str, str]) -> dict[str, str]:
        """What counts, by name: the digest of a file's content, or what a link or a folder contains.

        Args:
            variables: the environment variables that count. Their values may be paths.
        """
        counted, ignored = self._listed()
        found = {name: state for name in counted if not self.is_ignored(name) and (state := self._state(name)) is not None}
        texts = [self.text(name, state) for name, state in found.items()]
        words = {word for text in texts for word in text.words} if ignored else set()
        values = [path for value in [*variables.values(), *self._in_settings] for path in (value, *value.split(os.pathsep))]
        mentioned = [name for name in ignored if os.path.basename(name) in words]  # noqa: PTH119 (thousands of files)
        for name in [*mentioned, *self._in_settings_ignored(ignored, values)]:
            if (state := self._state(name)) is not None:
                found[name] = state
        found.update(self._folders_without_files(found))
        found.update(self._elsewhere(found, texts, values))
        return found

    def text(self, name: str, state: str) -> Text:
        """What a file of the project mentions."""
        return self.digests.text(self.places.path(name), state.partition(" ")[0])

    def imports(self, name: str, state: str) -> tuple[str, ...]:
        """What the import statements of a Python file of the project name."""
        return self.digests.imports(self.places.path(name), state.partition(" ")[0])

    def content(self, path: str) -> str:
        """The content of what lies at an absolute path, as of a file of the project; ``absent`` if there is nothing."""
        return self._state_at(path) or "absent"

    def listing(self, path: str, entries: Iterable[str]) -> str:
        """A digest of a folder's entries, as :func:`entries_of` gives them, without what does not count."""
        name = self.places.name(path)
        prefix = "" if name == "." else f"{name}/"
        kept = (each for each in entries if not self._is_left_out(prefix + _name_of(each)))
        return hashlib.sha256("\n".join(sorted(kept)).encode("utf-8", "surrogateescape")).hexdigest()

    def is_ignored(self, name: str) -> bool:
        """Whether ``cache-ignore`` names a file."""
        return bool(self._ignored.match(name))

    def is_own(self, name: str) -> bool:
        """Whether onnx-ci writes a file itself."""
        return f"{name}/".startswith(self._own) or name.startswith(self._journals)

    def is_temporary(self, path: str) -> bool:
        """Whether a path leads to the folder of temporary files, and not into the project."""
        return path.startswith(f"{_temporary()}/") and not self.places.is_inside(path)

    # --- the list of files ------------------------------------------------------------------------------------------------

    def _listed(self) -> tuple[list[str], list[str]]:
        """The names of files that count, and of those that git ignores."""
        counted, ignored = _list_files(self.places.root)
        found = self._without_environments(counted)
        return found, sorted(set(self._without_environments(ignored)) - set(found))

    def _without_environments(self, names: Iterable[str]) -> list[str]:
        names = list(names)
        marks = (
            re.fullmatch(rf"(.*?)/(?:{'|'.join(_ENVIRONMENTS)})(?:/.*)?", name)
            for name in names
            if "/" in name and _may_mark(name)
        )
        environments = tuple({f"{match[1]}/" for match in marks if match is not None})
        return sorted({name for name in names if not name.startswith(environments) and not self._is_left_out(name)})

    def _is_left_out(self, name: str) -> bool:
        """Whether a tool or onnx-ci writes a file for itself."""
        return any(map(_is_of_tool, name.split("/"))) or self.is_own(name)

    @cached_property
    def _own(self) -> tuple[str, ...]:
        """What onnx-ci writes itself. A baseline is compared outside of the cache."""
        settings = self.settings
        in_root = (settings.cache, settings.baseline_folder)
        elsewhere = (settings.report, settings.junit, settings.sarif, settings.artifacts, settings.save_inputs)
        paths = [os.path.join(self.places.root, path) for path in in_root if path is not None]  # noqa: PTH118
        paths += [os.path.join(self.folder, path) for path in elsewhere if path is not None]  # noqa: PTH118
        paths += [str(journal_of(Path(os.path.join(self.folder, settings.report))))] if settings.report else []  # noqa: PTH118
        names = {self.places.name(os.path.normpath(path)) for path in paths}
        return tuple(sorted(f"{name}/" for name in names - {"."}))

    @cached_property
    def _journals(self) -> tuple[str, ...]:
        """How the names of files begin that are being written, beside what onnx-ci writes."""
        heads = (name.rstrip("/").rpartition("/") for name in self._own)
        return tuple(f"{folder}{slash}.{name}." for folder, slash, name in heads)

    @cached_property
    def _ignored(self) -> re.Pattern[str]:
        return re.compile("|".join(_as_pattern(each) for each in self.settings.cache_ignore) or r"(?!)", re.DOTALL)

    def _folders_without_files(self, found: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """The folders that a text names and that git does not list: they are empty, or ignored."""
        listed = {"", *(parent for name in found for parent in _parents(name))}
        for name in {
            os.path.normpath(os.path.join(base, each))  # noqa: PTH118 (thousands of names)
            for file, state in found.items()
            for each in self.text(file, state).names
            if " " not in each and len(each) > 1
            for base in ("", os.path.dirname(file))  # noqa: PTH120
        }:
            if name not in listed and os.path.isdir(os.path.join(self.places.root, name)) and not self._is_left_out(name):  # noqa: PTH112, PTH118
                yield f"{name}/", "folder"

    # --- what is in a file ------------------------------------------------------------------------------------------------

    def _state(self, name: str) -> str | None:
        return self._state_at(os.path.join(self.places.root, name))  # noqa: PTH118 (thousands of files)

    def _state_at(self, path: str) -> str | None:
        try:
            status = os.lstat(path)
            if not stat.S_ISLNK(status.st_mode):
                return self._state_of(path, status)
            link = f" → {self.places.normalized(os.readlink(path))}"  # noqa: PTH115
        except (OSError, ValueError):
            return None
        try:
            return f"{self._state_of(path, os.stat(path))}{link}"  # noqa: PTH116
        except OSError:
            return f"nothing{link}"

    def _state_of(self, path: str, status: os.stat_result) -> str:
        if stat.S_ISDIR(status.st_mode):
            return self._folder(path)
        runs = " x" if status.st_mode & stat.S_IXUSR else ""
        return f"{self.digests.of(path) or 'no file'}{runs}"

    def _folder(self, top: str) -> str:
        """What all files in a folder contain, such as one to which a link leads."""
        hashed = hashlib.sha256()
        for path in _walk(top):
            digest = self.digests.of(path)
            hashed.update(f"{path[len(top) :]} {digest}\n".encode("utf-8", "surrogateescape"))
        return hashed.hexdigest()

    # --- what lies elsewhere ----------------------------------------------------------------------------------------------

    @cached_property
    def _in_settings(self) -> list[str]:
        """The paths in settings that name files to be read, patterns resolved."""
        paths = [os.path.join(self.folder, path) for path in self.settings.weights.values()]  # noqa: PTH118
        for pattern in self.settings.inputs:
            path = os.path.join(self.folder, pattern)  # noqa: PTH118
            paths += [path, *glob.glob(path, recursive=True)]  # noqa: PTH207 (absolute)
        return [path for path in paths if os.path.lexists(path)]

    def _in_settings_ignored(self, ignored: Iterable[str], values: Iterable[str]) -> list[str]:
        """The ignored files to which settings and variables lead."""
        inside = {self.places.name(os.path.normpath(path)) for path in values if self.places.is_inside(os.path.normpath(path))}
        return [name for name in ignored if inside and (name in inside or os.path.dirname(name) in inside)]  # noqa: PTH120

    def _elsewhere(self, found: Mapping[str, str], texts: Iterable[Text], values: Iterable[str]) -> Iterator[tuple[str, str]]:
        """The files outside of the project to which a path in it leads, and what is in folders there."""
        names = {name for text in texts for name in text.names}
        folders = {os.path.dirname(name) for name in found if name.endswith(".py")} | {""}  # noqa: PTH120
        bases = {self.folder, *(os.path.join(self.places.root, folder) for folder in folders)}  # noqa: PTH118
        paths = set()
        for mentioned in {path for text in texts for path in text.outside} | set(values):
            if mentioned.startswith(("/", "~")):
                paths.add(self._expanded(mentioned))
            elif mentioned.startswith("..") or "/.." in mentioned:
                paths.update(os.path.normpath(os.path.join(base, mentioned)) for base in bases)  # noqa: PTH118
        for path in sorted(paths)[:_MOST_PATHS]:
            if self.places.is_inside(path) or not self._may_count(path):
                continue
            with contextlib.suppress(OSError, ValueError):
                if stat.S_ISDIR(os.stat(path).st_mode):  # noqa: PTH116
                    yield from self._below(path, names)
                elif (state := self._state_at(path)) is not None:
                    yield self.places.name(path), state

    def _expanded(self, path: str) -> str:
        home = self.places.home if path == "~" or path.startswith("~/") else ""
        return os.path.normpath(f"{home}{path[1:]}" if home else path)

    def _below(self, folder: str, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """A folder's listing, and each file in it that the project names. That of a folder that others use does not count."""
        entries = entries_of(folder)
        present = {_name_of(entry) for entry in entries}
        is_shared = any(
            f"{place}/".startswith(f"{folder.rstrip('/')}/") for place in (self.places.root, self.places.home, _temporary())
        )
        if not is_shared:
            yield f"{self.places.name(folder)}/", _LISTING + self.listing(folder, entries)
        for name in names:
            if name.partition("/")[0] in present:
                path = os.path.join(folder, name)  # noqa: PTH118
                if not self.places.is_inside(path) and os.path.isfile(path) and (state := self._state_at(path)):  # noqa: PTH113
                    yield self.places.name(path), state

    def _may_count(self, path: str) -> bool:
        return path not in ("", "/", "~") and not (is_of_system(path) or is_of_python(path) or is_installed(f"{path}/"))


def entries_of(folder: str) -> tuple[str, ...]:
    """What a folder contains: ``a/``, ``a.py``, other files with their size, ``a.bin 12``. Empty if it cannot be read."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    found.append(f"{entry.name}/")
                elif entry.name.endswith(".py"):
                    found.append(entry.name)
                else:
                    with contextlib.suppress(OSError):
                        found.append(f"{entry.name} {entry.stat().st_size}")
    except (OSError, ValueError):
        return ()
    return tuple(sorted(found))


def _name_of(entry: str) -> str:
    return entry[:-1] if entry.endswith("/") else entry if entry.endswith(".py") else entry.rpartition(" ")[0]


def _parents(name: str) -> Iterator[str]:
    while name := name.rpartition("/")[0]:
        yield name


def _is_of_tool(part: str) -> bool:
    return (part[:1] in "._n" or part.endswith(".egg-info")) and _LEFT_OUT.fullmatch(part) is not None


def _may_mark(name: str) -> bool:
    return name.endswith("/pyvenv.cfg") or "/conda-meta/" in name


def _temporary() -> str:
    return tempfile.gettempdir()


def _as_pattern(glob: str) -> str:
    """A regular expression for the names that a pattern of ``cache-ignore`` matches, as in a .gitignore."""
    if "/" not in glob.rstrip("/"):
        return rf"(?:.*/)?{fnmatch.translate(glob.rstrip('/'))[:-2]}(?:/.*)?\Z"
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob.strip("/"))
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return rf"(?:{''.join(words.get(part, re.escape(part)) for part in parts)})(?:/.*)?\Z"


# --- lists of files --------------------------------------------------------------------------------------------------------


def _list_files(root: str) -> tuple[list[str], list[str]]:
    """The names of all files of a folder, and of those that git ignores; links are not followed."""
    listed = _listed_by_git(root, ()) if _is_in_repository(root) else None
    if listed is None or not (listed[0] or listed[1]) or listed[1] == ["./"]:  # git ignores the folder itself
        with tempfile.TemporaryDirectory(prefix="onnx-ci-git-", ignore_cleanup_errors=True) as empty:
            for name in ("objects", "refs"):
                Path(empty, name).mkdir()
            Path(empty, "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
            listed = _listed_by_git(root, (f"--git-dir={empty}", f"--work-tree={root}"))
    if listed is None:
        return [path[len(root) + 1 :] for path in _walk(root, follow=False)], []
    counted: list[str] = []
    ignored: list[str] = []
    for name in listed[0]:
        path = os.path.join(root, name)  # noqa: PTH118 (thousands of files)
        if not name.endswith("/") and (not os.path.isdir(path) or os.path.islink(path)):  # noqa: PTH112, PTH114
            counted.append(name)
            continue
        for names, inner in zip((counted, ignored), _list_files(path.rstrip("/")), strict=True):  # another repository
            names += [f"{name.rstrip('/')}/{each}" for each in inner]
    for name in listed[1]:
        folder = os.path.join(root, name.rstrip("/"))  # noqa: PTH118
        if not name.endswith("/"):
            ignored.append(name)
        elif not _is_of_tool(os.path.basename(folder)):  # noqa: PTH119
            ignored += [path[len(root) + 1 :] for path in _walk(folder, follow=False)]
    return counted, ignored


def _listed_by_git(root: str, options: tuple[str, ...]) -> tuple[list[str], list[str]] | None:
    """What git does not ignore, and what it does; ``None`` if it cannot say that."""
    # A container's checkout often has another owner. A monitor of the file system would be the user's program.
    command = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", *options, "ls-files", "-z", "--exclude-standard"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    outputs: list[list[str]] = []
    try:
        running = [
            subprocess.Popen(
                [*command, *kind],
                cwd=root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            for kind in (("--cached", "--others"), ("--others", "--ignored", "--directory"))
        ]
        for each in running:
            output = each.communicate()[0]
            outputs.append([os.fsdecode(name) for name in output.split(b"\0") if name])
    except OSError:
        return None
    return None if any(each.returncode for each in running) else (outputs[0], outputs[1])


def _is_in_repository(folder: str) -> bool:
    return any((place / ".git").exists() for place in (Path(folder), *Path(folder).parents))


def _walk(top: str, *, follow: bool = True) -> Iterator[str]:
    """The files in a folder, in order, without those of tools and environments; loops of links are cut."""
    waiting, seen, count = [top], {os.path.realpath(top)}, 0
    while waiting and count < _MOST_WALKED:
        try:
            with os.scandir(waiting.pop()) as found:
                entries = sorted(found, key=lambda entry: entry.name)
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
                elif (real := os.path.realpath(entry.path) if entry.is_symlink() else entry.path) not in seen:
                    seen.add(real)
                    waiting.append(entry.path)
