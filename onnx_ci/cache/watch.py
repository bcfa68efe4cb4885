"""Records what a recipe file's process opens, looks for, lists and starts, as Python's audit events tell.

:func:`watch` is called before the file is imported. A fork continues the record of its parent. Recipes can change anything in
the interpreter, so the hook has its own references to what it calls. If something cannot be recorded, the verdict is not kept.
Nothing is replaced in any process.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

from onnx_ci.cache.places import is_of_python, is_of_system
from onnx_ci.cache.project import ABSENT, entries_of
from onnx_ci.owners import file_of, is_installed, source_of
from onnx_ci.processes.scratch import is_scratch
from onnx_ci.results.json_data import from_json, to_json

_PYTHON = (".py", ".pyw")
_OWN = str(Path(__file__).parents[1]) + os.sep
_STANDARD = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120
_LOOKS_FOR_MODULES = ("<frozen importlib", "<frozen zipimport", f"{_STANDARD}importlib{os.sep}metadata{os.sep}")
"""Code that looks for modules and installed packages. What it finds counts elsewhere."""
_METADATA = re.compile(r"\.(?:dist|egg)-info/|__path_hook__$")
"""Files about installed packages, which count elsewhere."""
_OPENS = frozenset({"open", "open64", "openat", "fopen", "fopen64", "dlopen", "stat", "lstat", "access", "opendir", "mmap"})
"""Functions of C that open files or look for them."""
_STARTS_PROCESSES = frozenset({"multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver"})
"""Modules that are imported before their first use. When they start a process, there is no event."""
_abspath, _fsdecode, _getframe, _isdir, _open, _stat = (
    *(os.path.abspath, os.fsdecode, sys._getframe, os.path.isdir, open, os.stat),
)  # fmt: skip
"""Own references: a recipe can replace the originals."""


@dataclass(frozen=True, kw_only=True)
class ReadSet:
    """What a process saw. Paths are absolute."""

    python: tuple[str, ...] = ()
    """Python files that were imported or opened, except installed ones."""
    opened: Mapping[str, str] = field(default_factory=dict)
    """All files that were opened or looked for, with their states at that moment: :data:`ABSENT`, or size, times and inode."""
    listed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Folders with their entries, as :func:`onnx_ci.cache.project.entries_of` gives them."""
    missing_modules: tuple[str, ...] = ()
    """Modules that were imported in vain."""
    not_kept: str = ""
    """Why a verdict cannot be kept: ``it connects to huggingface.co``; empty if it can."""

    def __or__(self, other: Self) -> ReadSet:
        return ReadSet(
            python=tuple(sorted({*self.python, *other.python})),
            opened={**other.opened, **self.opened},
            listed={**other.listed, **self.listed},
            missing_modules=tuple(sorted({*self.missing_modules, *other.missing_modules})),
            not_kept=self.not_kept or other.not_kept,
        )

    def as_json(self) -> dict[str, Any]:
        """The value as plain data, for another process."""
        data: dict[str, Any] = to_json(self)
        return data

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The value that :meth:`as_json` returned.

        Raises:
            ValueError: ``data`` is not such a value.
        """
        seen: Self = from_json(cls, data)
        return seen


def state_of(path: str) -> str:
    """The state of a file, with links followed; see :attr:`ReadSet.opened`. It only says whether a file is unchanged."""
    try:
        status = _stat(path)
    except (OSError, ValueError):
        return ABSENT
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def watch(root: Path) -> None:
    """Start to record. Nothing can stop it, and only the first call has an effect.

    Args:
        root: the project's root.
    """
    if not _record.hooks:
        _record.root = os.path.realpath(root) + os.sep
        _record.temporary = os.path.realpath(tempfile.gettempdir())
        is_installed(__file__)  # its first call lists folders
        _record.hooks.append(_make_hook())
        sys.addaudithook(_record.hooks[0])
        sys.meta_path.append(_Missing)


def seen() -> ReadSet:
    """All that this process, and those from which it was forked, have seen since :func:`watch`."""
    modules = [file for module in list(sys.modules.values()) if (file := file_of(module)) is not None]
    for path in [*(file for file in modules if os.path.isabs(file)), *_mapped_files()]:  # noqa: PTH117 (thousands of modules)
        _note_file(path)
    opened = {path: state for path, state in list(_record.opened.items()) if not is_scratch(Path(path))}
    missing = (name for name in list(_record.missing) if sys.modules.get(name) is None)
    return ReadSet(
        python=tuple(sorted(path for path, state in opened.items() if path.endswith(_PYTHON) and state != ABSENT)),
        opened=opened,
        listed={path: entries for path, entries in list(_record.listed.items()) if not is_scratch(Path(path))},
        missing_modules=tuple(sorted(missing)),
        not_kept=_record.not_kept,
    )


def seen_if_watched() -> ReadSet | None:
    """What :func:`seen` returns; ``None`` unless this process, or one from which it was forked, has called :func:`watch`."""
    return seen() if _record.hooks else None


class _Record:
    """What this process has seen so far. A fork has a copy."""

    def __init__(self) -> None:
        self.hooks: list[Callable[[str, tuple[Any, ...]], None]] = []
        self.root = self.temporary = ""
        self.opened: dict[str, str] = {}
        self.written: set[str] = set()
        """Files and folders that this process created before it read them."""
        self.listed: dict[str, tuple[str, ...]] = {}
        self.missing: set[str] = set()
        self.not_kept = ""

    def do_not_keep(self, reason: str) -> None:
        """Note why the verdict is not kept. The first reason counts."""
        self.not_kept = self.not_kept or reason


_record = _Record()


class _Missing:
    """The last of Python's finders, which finds nothing. It is asked for missing modules, for which there is no event."""

    @staticmethod
    def find_spec(name: str, _path: Any = None, _target: Any = None) -> None:
        """Note the name of a module."""
        _record.missing.add(name)


def _make_hook() -> Callable[[str, tuple[Any, ...]], None]:
    """The hook. It has its own references to all that it uses, because a recipe can replace the originals."""
    record, handlers, error, thread = _record, dict(_HANDLERS), Exception, threading.local()

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        handler = handlers.get(event)
        if handler is None or thread.__dict__.get("is_busy"):  # the hook's own actions do not count
            return
        thread.is_busy = True
        try:
            handler(*arguments)
        except error:
            record.do_not_keep("what it opens could not be recorded")
        finally:
            thread.is_busy = False

    return hear


# --- files -----------------------------------------------------------------------------------------------------------------


def _path_of(path: Any) -> str | None:
    if path is None or isinstance(path, int):
        return None
    try:
        return _abspath(_fsdecode(path))
    except (OSError, ValueError, TypeError):  # no path, or the current directory is gone
        return None


def _opened(path: Any, mode: Any = None, flags: Any = 0, *_: Any) -> None:
    if isinstance(path, str) and _is_of_python(path):
        return
    file = _path_of(path)
    # A name without a mode may be that of a file in an open folder, or of a library that is found elsewhere.
    if file is not None and (mode is not None or file == path or state_of(file) != ABSENT):
        _note_file(file, flags if isinstance(flags, int) else 0)


def _connected(database: Any, *_: Any) -> None:
    """SQLite opens a file, which may be given as a URI."""
    if isinstance(database, (str, bytes)):
        _opened(re.sub(r"^file:(?://)?([^?]*).*", r"\1", _fsdecode(database)))


def _note_file(file: str, flags: int = 0) -> None:
    record = _record
    if not _counts(file) or _METADATA.search(file) or (file := source_of(file)) in record.opened or _is_written_here(file):
        return
    if flags & (os.O_TRUNC | os.O_EXCL):
        record.written.add(file)
    elif not flags & os.O_WRONLY and not _isdir(file):
        record.opened[file] = state_of(file)


def _counts(path: str) -> bool:
    """Whether a file or folder counts here: those that are installed, onnx-ci's and the system's count elsewhere."""
    if path.startswith(_OWN) or _is_of_python(path) or (is_of_system(path) and not path.startswith(_record.root)):
        return False
    return not is_installed(path)


def _is_of_python(path: str) -> bool:
    """Whether a path belongs to Python, and not to a project that lies in Python's own folder, such as /usr/local."""
    return is_of_python(path) and not (path.startswith(_record.root) and is_of_python(_record.root))


def _is_written_here(path: str) -> bool:
    """Whether this process created a file, or a folder in which it lies."""
    return any(path == place or path.startswith(f"{place}{os.sep}") for place in _record.written)


def _made(path: Any, *_: Any) -> None:
    if (folder := _path_of(path)) is not None and state_of(folder) == ABSENT:
        _record.written.add(folder)


def _listed(path: Any = None, *_: Any) -> None:
    folder = _path_of(os.curdir if path is None else path)
    if folder is None or folder in (*_record.listed, _record.temporary) or not _counts(folder + os.sep):
        return
    if not _is_written_here(folder) and not next(_files_at_work(), "").startswith(_LOOKS_FOR_MODULES):
        _record.listed[folder] = entries_of(folder)


def _mapped_files() -> set[str]:
    """The files that are mapped into memory now, on Linux: compiled code opens them without an event.

    Shared memory that can be written is no input: ONNX Runtime, for example, keeps a database of its use there.
    """
    paths: set[str] = set()
    try:
        with _open("/proc/self/maps", "rb") as lines:  # text would need a codec, which may be gone
            for line in lines:
                _, permissions, _, _, _, *names = line.rstrip(b"\n").split(maxsplit=5)
                paths.update(_fsdecode(name) for name in names if name.startswith(b"/") and permissions != b"rw-s")
    except (OSError, ValueError):
        return set()
    return {path for path in paths if state_of(path) != ABSENT}


# --- what cannot be recorded -----------------------------------------------------------------------------------------------


def _files_at_work() -> Iterator[str]:
    """The files of the running functions, from the innermost one outwards."""
    frame: FrameType | None = _getframe(1)
    while frame is not None:
        if (file := frame.f_code.co_filename) != __file__:
            yield file
        frame = frame.f_back


def _is_library_at_work() -> bool:
    """Whether the innermost function outside of the standard library is that of an installed library, or onnx-ci's."""
    file = next((file for file in _files_at_work() if not _is_standard(file)), "")
    return file.startswith(_OWN) or (bool(file) and is_installed(file))


def _is_standard(file: str) -> bool:
    return file.startswith(("<frozen", _STANDARD)) and f"-packages{os.sep}" not in file


def _started(program: Any, *_: Any) -> None:
    """A program was started. Libraries start programs that compile, or that ask the system about its processor."""
    if not _is_library_at_work():
        words = _fsdecode(program).split()
        _record.do_not_keep(f"it starts {os.path.basename(words[0]) if words else 'a program'}")  # noqa: PTH119


def _forked(*_: Any) -> None:
    """A process was forked. A fork of onnx-ci sends what it sees; a fork of a library may run the project's code unseen."""
    callers = (file for file in _files_at_work() if file.startswith(_OWN) or not (_is_standard(file) or is_installed(file)))
    if not next(callers, "").startswith(_OWN):
        _record.do_not_keep("it forks a process")


def _imported(module: Any, *_: Any) -> None:
    if module in _STARTS_PROCESSES:
        _record.do_not_keep("it starts processes")


def _called_from_c(_: Any, name: Any) -> None:
    """A function of a C library was looked up. There are no events for what it opens."""
    if name in _OPENS and not _is_library_at_work():
        _record.do_not_keep(f"it calls {name} through ctypes, whose files are not seen")


def _connects(host: Any, *_: Any) -> None:
    if isinstance(host, bytes):
        host = host.decode("utf-8", "replace")
    if isinstance(host, str) and host:
        _record.do_not_keep(f"it connects to {host}")


def _socket(_: Any, address: Any) -> None:
    if isinstance(address, tuple) and address:  # the address of a socket within this machine is a path
        _connects(address[0])


_HANDLERS: Mapping[str, Callable[..., None]] = {
    "open": _opened,
    "ctypes.dlopen": _opened,
    "onnx_ci.opened": _opened,
    "sqlite3.connect": _connected,
    "os.mkdir": _made,
    "os.listdir": _listed,
    "os.scandir": _listed,
    "import": _imported,
    "ctypes.dlsym": _called_from_c,
    "subprocess.Popen": _started,
    "os.system": _started,
    "os.exec": _started,
    "os.posix_spawn": _started,
    "os.spawn": lambda _, program, *__: _started(program),
    "os.startfile": _started,
    "os.fork": _forked,
    "os.forkpty": _forked,
    "socket.connect": _socket,
    "socket.getaddrinfo": _connects,
}
