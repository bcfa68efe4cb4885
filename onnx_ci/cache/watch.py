"""Records what a process opens, looks for, lists, imports and starts, as Python's audit events and ``os.stat`` tell.

:func:`watch` is called before libraries and recipe files are imported; a fork continues the record of its parent. No event
tells that a file is looked for, so ``os.stat`` and its kin are replaced by functions that note their path. If something cannot
be recorded, the verdict is not kept.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import stat
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, cast

from onnx_ci.cache.packages import names_in, recorded_files
from onnx_ci.owners import file_of, is_installed, namespace_of, source_of
from onnx_ci.processes.scratch import is_scratch

ABSENT, FOLDER, THERE = "absent", "folder", "there"
_OWN = str(Path(__file__).parents[1]) + os.sep
_STANDARD = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120
_LOOKS_FOR_MODULES = ("<frozen importlib", "<frozen zipimport", f"{_STANDARD}importlib{os.sep}metadata{os.sep}")
"""Code that looks for modules and installed packages. What it finds counts as :class:`Search` and by its version."""
_KERNEL = ("/proc/", "/sys/", "/dev/")
"""Where the kernel describes the machine and its processes. Files of shared memory lie there, too, and count."""
_ABOVE = re.compile(rf"{re.escape(os.sep)}\.\.(?={re.escape(os.sep)}|$)")
_LOOKS = ("stat", "lstat", "access", "readlink", "statvfs")
"""The functions of :mod:`os` that look for a file; ``exists``, ``isfile``, ``resolve`` and others call them."""
_OPENS = frozenset({"open", "open64", "openat", "fopen", "fopen64", "dlopen", "stat", "lstat", "access", "opendir", "mmap"})
"""Functions of C that open files or look for them."""
_STARTS_PROCESSES = frozenset({"multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver"})
"""Modules that are imported before their first use. When they start a process, there is no event."""
_lstat, _stat, _readlink = os.lstat, os.stat, os.readlink


@dataclass(frozen=True, kw_only=True)
class Search:
    """Where modules were looked for: one that appears there can be imported instead of another, or of none."""

    folders: tuple[str, ...]
    """In the order of the search: ``sys.path``, or the ``__path__`` of a package."""
    names: tuple[str, ...]
    """The modules that were imported, or asked for in vain, without the name of their package."""


@dataclass(frozen=True, kw_only=True)
class ReadSet:
    """What a process saw of files that no installer has recorded. Paths are absolute."""

    files: Mapping[str, str] = field(default_factory=dict)
    """Files that were opened, imported or looked for, with their states when that happened first; see :func:`state_of`.

    One that was only made, removed or changed, which fails if it is there, or is not, is :data:`THERE` or absent.
    """
    listed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Folders with their entries, as :func:`entries_of` gives them."""
    searches: tuple[Search, ...] = ()
    not_kept: str = ""
    """Why a verdict cannot be kept: ``it connects to huggingface.co``; empty if it can."""


def _identity(status: os.stat_result) -> str:
    """Whether a file is the same as before on this machine, and nothing about its content."""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def state_of(path: str, describe: Callable[[os.stat_result], str] = _identity) -> str:
    """:data:`ABSENT`, :data:`FOLDER`, or what describes a file, by default size, times and inode; and the text of a link."""
    link = ""
    try:
        status = _lstat(path)
        if stat.S_ISLNK(status.st_mode):
            link = f" → {_readlink(path)}"
            status = _stat(path)
    except (OSError, ValueError):
        return f"{ABSENT}{link}"
    return f"{FOLDER if stat.S_ISDIR(status.st_mode) else describe(status)}{link}"


def entries_of(folder: str) -> tuple[str, ...]:
    """The entries of a folder, each with a null character and its state, where files have a size; none if it is unreadable."""
    return tuple(f"{name}\0{_state_in_listing(f'{folder}/{name}')}" for name in names_in(folder))


def _state_in_listing(path: str) -> str:
    return state_of(path, lambda status: "" if path.endswith(".py") else str(status.st_size))


def watch() -> None:
    """Start to record. Only the first call has an effect."""
    if _record.is_watching:
        return
    _record.is_watching = True
    _record.recorded = recorded_files(sys.path)
    is_installed(__file__)  # its first call lists folders
    for name in {*_LOOKS, "open"}.intersection(dir(os)):
        _watch_looks(name)
    sys.addaudithook(_hear)
    # The first of Python's finders, which finds nothing: no event tells of modules that are missing, or asked for alone.
    sys.meta_path.insert(0, cast(Any, SimpleNamespace(find_spec=lambda name, *_: _record.asked.add(name))))


def seen() -> ReadSet | None:
    """All that this process, and those from which it was forked, have seen since :func:`watch`; ``None`` without that."""
    if not _record.is_watching:
        return None
    for path in [*filter(None, map(file_of, list(sys.modules.values()))), *_mapped_files()]:
        if os.path.isabs(path):  # noqa: PTH117 (thousands of modules)
            _record_with(_looked_for, path)
    states = dict(_record.files)
    temporary = {path for path in set(_record.written) if state_of(path) == ABSENT == states.get(path, ABSENT)}
    listed = {
        folder: tuple(entry for entry in entries if f"{folder}/{entry.partition(chr(0))[0]}" not in temporary)
        for folder, entries in list(_record.listed.items())
        if not _lies_in(folder, temporary)
    }
    return ReadSet(
        files={path: state for path, state in states.items() if not _lies_in(os.path.dirname(path), temporary)},  # noqa: PTH120
        listed=listed,
        searches=tuple(_searches()),
        not_kept=_record.not_kept,
    )


class _Record:
    """What this process has seen so far. A fork has a copy."""

    def __init__(self) -> None:
        self.is_watching = False
        self.recorded: frozenset[str] = frozenset()
        self.files: dict[str, str] = {}
        self.written: set[str] = set()
        """Files and folders that this process has created or replaced."""
        self.has_links = False  # that it has made; they may be gone when what it saw through them is compared
        self.listed: dict[str, tuple[str, ...]] = {}
        self.asked: set[str] = set()
        self.not_kept = ""

    def do_not_keep(self, reason: str) -> None:
        """Note why the verdict is not kept. The first reason counts."""
        self.not_kept = self.not_kept or reason


_record = _Record()
_here = threading.local()


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if (handler := _HANDLERS.get(event)) is not None:
        _record_with(handler, *arguments)


def _record_with(handler: Callable[..., None], *arguments: Any) -> None:
    if getattr(_here, "is_busy", False):  # what is done to record does not count
        return
    _here.is_busy = True
    try:
        handler(*arguments)
    except Exception:
        _record.do_not_keep("what it opens could not be recorded")
    finally:
        _here.is_busy = False


def _watch_looks(name: str) -> None:
    """Replace a function of :mod:`os` by one that notes its path."""
    original = getattr(os, name)

    @functools.wraps(original)
    def look(path: Any, *args: Any, **options: Any) -> Any:
        if (folder := options.get("dir_fd")) is not None or name != "open":  # its event tells all but the open folder
            _record_with(_looked_for, path, folder)
        return original(path, *args, **options)

    setattr(os, name, look)
    for supported in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if original in supported:
            supported.add(look)


# --- files -----------------------------------------------------------------------------------------------------------------


def _path_of(path: Any, folder: int | None = None) -> str | None:
    """The absolute path of what is open, or of a path, which may be one in an open folder; ``None`` if it has none."""
    with contextlib.suppress(OSError, ValueError, TypeError):  # no path, or the current directory is gone
        place = "" if folder in (None, -1) else _open_path(folder)
        path = _open_path(path) if isinstance(path, int) else os.fsdecode(path)
        return None if path is None or place is None else _without_dots(os.path.join(place, path))  # noqa: PTH118
    return None


def _without_dots(path: str) -> str:
    """An absolute path. A ``..`` after a link stays in it, because only the system knows where that leads."""
    if os.pardir in path:
        path = os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118
        while up := _ABOVE.search(path):
            folder = os.path.abspath(path[: up.start()] or os.sep)  # noqa: PTH100
            if state_of(folder) != FOLDER:
                return path
            _note(folder)  # a link may take its place
            path = os.path.join(os.path.dirname(folder), path[up.end() :].lstrip(os.sep))  # noqa: PTH118, PTH120
    return os.path.realpath(path) if path.startswith("/proc/") else os.path.abspath(path)  # noqa: PTH100 (what is open)


def _open_path(descriptor: int) -> str | None:
    """The path of an open file or folder, on Linux; ``None`` for anything else, such as a pipe."""
    with contextlib.suppress(OSError):
        path = _readlink(f"/proc/self/fd/{descriptor}")
        return path if path.startswith("/") else None
    return None


def _looked_for(path: Any, folder: int | None = None, *, is_changed: bool = False) -> None:
    if not isinstance(path, int) and (file := _path_of(path, folder)) is not None:  # what is open was noted when it was opened
        _note(file, is_changed=is_changed)


def _opened(path: Any, mode: Any = None, flags: Any = 0, *_: Any) -> None:
    file = _path_of(path)
    flags = flags if isinstance(flags, int) else 0
    if file is None:
        return
    if flags & os.O_EXCL and flags & os.O_CREAT:
        _made(file)
    elif flags & (os.O_TRUNC | os.O_WRONLY):  # of a folder, if tempfile opens a new file in it
        if (state := state_of(file)) == ABSENT or (flags & os.O_TRUNC and state != FOLDER):
            _record.written.add(file)
    # A name without a mode may be that of a file in an open folder, or of a library that is found elsewhere.
    elif mode is not None or file == path or state_of(file) != ABSENT:
        _note(file)


def _connected(database: Any, *_: Any) -> None:
    """SQLite opens a file, which may be given as a URI, and the log of what was not yet written into it."""
    if isinstance(database, (str, bytes)):
        file = re.sub(r"^file:(?://)?([^?]*).*", r"\1", os.fsdecode(database))
        for path in (file, f"{file}-wal"):
            _looked_for(path)


def _note(path: str, *, is_changed: bool = False) -> None:
    """Note a file, unless it is recorded by an installer, is noted already, or was written here.

    Of one that is about to be changed, only whether it is there counts, until it is read.
    """
    record = _record
    if record.has_links and (real := os.path.realpath(path)) != path:
        _note(real)
    if path in record.recorded or record.files.get(path, THERE) != THERE or not _counts(path):
        return
    file = source_of(path)
    is_recorded = file in record.recorded or os.path.dirname(file) in record.recorded  # noqa: PTH120
    if not is_recorded and file not in record.written and record.files.get(file, THERE) == THERE:
        if is_changed:
            record.files.setdefault(file, THERE if os.path.lexists(file) else ABSENT)
        else:
            record.files[file] = state_of(file)


def _counts(path: str) -> bool:
    """Whether a path leads to a file: not into the kernel, to onnx-ci, its temporary folders or an editable installation."""
    is_kernels = path.startswith(_KERNEL) and not path.startswith("/dev/shm/")  # noqa: S108 (nothing is written there)
    return not (is_kernels or path.startswith(_OWN) or "__editable__" in path or is_scratch(Path(path)))


def _made(path: Any, folder: int | None = None) -> None:
    """Something is made, which fails if it is there, or the folder is not in which it is made."""
    if (file := _path_of(path, folder)) is None:
        return
    if not next(_files_at_work(), "").startswith(("<frozen importlib", tempfile.__file__)):  # they take names that nothing has
        _note(os.path.dirname(file))  # noqa: PTH120
        _note(file, is_changed=True)
    if state_of(file) == ABSENT:
        _record.written.add(file)


def _linked(target: Any, path: Any, *folders: int) -> None:
    if len(folders) == 2:  # a second name of a file
        _looked_for(target, folders[0])
    _made(path, folders[-1])
    _record.has_links = True


def _renamed(path: Any, to: Any, folder: int, to_folder: int) -> None:
    _looked_for(path, folder)
    if (new := _path_of(to, to_folder)) is not None:
        _record.written.add(new)


def _listed(path: Any = None, *_: Any) -> None:
    folder = _path_of(os.curdir if path is None else path)
    if folder is None or folder in _record.listed or folder in _record.written or not _counts(folder + os.sep):
        return
    caller = next((file for file in _files_at_work() if not _is_standard(file)), "")
    looks_for_dead = caller == f"{_OWN}processes{os.sep}scratch.py"  # processes, which have left temporary folders
    if not (looks_for_dead or next(_files_at_work(), "").startswith(_LOOKS_FOR_MODULES)):
        _record.listed[folder] = entries_of(folder)


def _mapped_files() -> set[str]:
    """The files that are mapped into memory now, on Linux: compiled code opens them without an event.

    Shared memory that can be written is no input: ONNX Runtime, for example, keeps a database of its use there.
    """
    paths: set[str] = set()
    with contextlib.suppress(OSError, ValueError), open("/proc/self/maps", "rb") as lines:  # noqa: PTH123 (before a codec is needed)
        for line in lines:
            _, permissions, _, _, _, *names = line.rstrip(b"\n").split(maxsplit=5)
            paths.update(os.fsdecode(name) for name in names if name.startswith(b"/") and permissions != b"rw-s")
    return {path for path in paths if path in _record.recorded or state_of(path) != ABSENT}


def _lies_in(path: str, places: Iterable[str]) -> bool:
    """Whether a path is one of ``places``, or lies in one."""
    while path not in places and path != (above := os.path.dirname(path)):  # noqa: PTH120 (thousands of files)
        path = above
    return path in places


# --- modules ---------------------------------------------------------------------------------------------------------------


def _searches() -> Iterator[Search]:
    """Where modules were looked for, except in packages that an installer has recorded."""
    names: dict[str, set[str]] = defaultdict(set)
    for module in [*sys.modules, *_record.asked]:
        package, _, name = module.rpartition(".")
        names[package].add(name)
    for package, members in names.items():
        searched = namespace_of(sys.modules.get(package)).get("__path__", ()) if package else sys.path
        with contextlib.suppress(TypeError):  # what a library calls a path
            folders = [path for folder in searched if isinstance(folder, str) and (path := _path_of(folder))]
            others = [each for each in folders if f"{each}/__init__.py" not in _record.recorded and _counts(f"{each}/")]
            if others:
                always = ("__init__",) if package else ("sitecustomize", "usercustomize")
                yield Search(folders=tuple(dict.fromkeys(others)), names=tuple(sorted({*members, *always})))


# --- what cannot be recorded -----------------------------------------------------------------------------------------------


def _files_at_work() -> Iterator[str]:
    """The files of the running functions, from the innermost one outwards."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if (file := frame.f_code.co_filename) != __file__:
            yield file
        frame = frame.f_back


def _is_library_at_work() -> bool:
    """Whether the innermost function outside of the standard library is that of an installed library, or onnx-ci's."""
    file = next((file for file in _files_at_work() if not _is_standard(file)), "")
    return file.startswith(_OWN) or (bool(file) and is_installed(file))


def _is_runtime_at_work() -> bool:
    """Whether a plug-in computes what a file computes. The programs that it starts are part of it, and count as files."""
    runtimes = f"{_OWN}tools{os.sep}engines{os.sep}"
    return next((file for file in _files_at_work() if file.startswith(_OWN)), "").startswith(runtimes)


def _is_standard(file: str) -> bool:
    return file.startswith(("<frozen", _STANDARD)) and f"-packages{os.sep}" not in file


def _started(program: Any, arguments: Any = (), *_: Any) -> None:
    """A program was started. Libraries start programs that compile, or that ask the system about its processor."""
    words = os.fsdecode(program).split()
    if _is_runtime_at_work():
        _looked_for(shutil.which(words[0]) if words else None)
        for each in filter(os.path.isfile, arguments if isinstance(arguments, (list, tuple)) else ()):  # such as a script
            _looked_for(each)
    elif not _is_library_at_work():
        _record.do_not_keep(f"it starts {os.path.basename(words[0]) if words else 'a program'}")  # noqa: PTH119


def _is_project_at_work() -> bool:
    """Whether the project's code called what is at work, and not onnx-ci's, with any number of libraries between."""
    callers = (file for file in _files_at_work() if file.startswith(_OWN) or not (_is_standard(file) or is_installed(file)))
    return not (next(callers, "").startswith(_OWN) or _is_runtime_at_work())


def _forked(*_: Any) -> None:
    """A process was forked. A fork of onnx-ci sends what it sees; a fork of a library may run the project's code unseen."""
    if _is_project_at_work():
        _record.do_not_keep("it forks a process")


def _imported(module: Any, *_: Any) -> None:
    if module in _STARTS_PROCESSES and _is_project_at_work():
        _record.do_not_keep("it starts processes")


def _called_from_c(_: Any, name: Any) -> None:
    """A function of a C library was looked up. There are no events for what it opens."""
    if name in _OPENS and not _is_library_at_work():
        _record.do_not_keep(f"it calls {name} through ctypes, whose files are not seen")


def _connects(host: Any, *_: Any) -> None:
    host = host.decode("utf-8", "replace") if isinstance(host, bytes) else host
    if isinstance(host, str) and host and not _is_runtime_at_work():
        _record.do_not_keep(f"it connects to {host}")


_HANDLERS: Mapping[str, Callable[..., None]] = {
    **dict.fromkeys(("open", "ctypes.dlopen", "onnx_ci.opened"), _opened),
    "sqlite3.connect": _connected,
    "os.mkdir": lambda path, _, folder: _made(path, folder),
    **dict.fromkeys(("os.symlink", "os.link"), _linked),
    **dict.fromkeys(("os.remove", "os.rmdir", "os.chmod"), lambda path, *more: _looked_for(path, more[-1], is_changed=True)),
    "os.rename": _renamed,
    **dict.fromkeys(("os.chdir", "os.listxattr"), _looked_for),
    **dict.fromkeys(("os.listdir", "os.scandir"), _listed),
    "import": _imported,
    "ctypes.dlsym": _called_from_c,
    **dict.fromkeys(("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.startfile"), _started),
    "os.spawn": lambda _, program, *__: _started(program),
    **dict.fromkeys(("os.fork", "os.forkpty"), _forked),
    # The address of a socket within this machine is a path.
    "socket.connect": lambda _, address: _connects(address[0] if isinstance(address, tuple) and address else None),
    "socket.getaddrinfo": _connects,
}
