"""What a recipe file's process opens, looks for, lists and starts, as Python's audit events tell.

:func:`watch` is called before the file is imported. Processes that are forked from this one go on with its record. Recipes may
do anything to the interpreter meanwhile, so the hook has bound what it calls. What it cannot record makes the verdict not kept.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

from onnx_ci.cache.places import is_of_python, is_of_system
from onnx_ci.cache.project import entries_of
from onnx_ci.environment.libraries import file_of, is_installed, source_of
from onnx_ci.processes.scratch import is_scratch
from onnx_ci.results.json_data import from_json, to_json

ABSENT = "absent"
"""The state of a file that did not exist when it was first looked for."""
_PYTHON = (".py", ".pyw")
_MOST_ENTRIES = 10_000
_IMPORTING = ("<frozen importlib", "<frozen zipimport")
_METADATA = re.compile(r"\.(?:dist|egg)-info/|__path_hook__$")
"""What says what is installed, which counts otherwise."""
_PROGRAMS = re.compile(r"(?:^|[/\s\"';&|(])(?:python|pypy)[\w.-]*(?:$|[\s\"';&|)])")
_abspath, _fsdecode, _getframe, _open, _readlink, _scandir, _stat = (
    *(os.path.abspath, os.fsdecode, sys._getframe, open, os.readlink, os.scandir, os.stat),
)  # fmt: skip
"""Recipes can replace these where they come from."""
_OPENING = frozenset({"open", "open64", "openat", "fopen", "fopen64", "dlopen", "stat", "lstat", "access", "opendir", "mmap"})
"""Functions of C that open files or look for them."""
_STARTS_BY_ITSELF = frozenset({"multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver"})
"""Modules that are imported when they are needed first. Their way to start a process has no event."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a process saw of the world. Paths are absolute."""

    python: tuple[str, ...] = ()
    """Python files that were imported or opened, without installed ones."""
    opened: Mapping[str, str] = field(default_factory=dict)
    """All files that were opened or looked for, and their states at that moment: :data:`ABSENT`, or size, times and inode."""
    listed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Folders, and what was in them, as :func:`onnx_ci.cache.project.entries_of` tells."""
    missing_modules: tuple[str, ...] = ()
    """Modules that were asked for and are not there."""
    starts_programs: bool = False
    """Whether other programs were started, which may read any Python file of the project."""
    not_kept: str = ""
    """Why a verdict cannot be kept: ``it connects to huggingface.co``."""

    def __or__(self, other: Self) -> Seen:
        return Seen(
            python=tuple(sorted({*self.python, *other.python})),
            opened={**other.opened, **self.opened},
            listed={**other.listed, **self.listed},
            missing_modules=tuple(sorted({*self.missing_modules, *other.missing_modules})),
            starts_programs=self.starts_programs or other.starts_programs,
            not_kept=self.not_kept or other.not_kept,
        )

    def as_json(self) -> dict[str, Any]:
        """The value as plain data, to be sent to another process."""
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
    """The state of a file, links followed; see :attr:`Seen.opened`. It says only whether a file is still as it was opened."""
    try:
        status = _stat(path)
    except (OSError, ValueError):
        return ABSENT
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def watch(root: Path) -> None:
    """Record from now on. That cannot be ended, and only the first call has an effect.

    Args:
        root: the project's root.
    """
    if not _record.hooks:
        _record.root = os.path.realpath(root)
        _record.temporary = os.path.realpath(tempfile.gettempdir())
        is_installed(__file__)  # its first call lists folders
        os.register_at_fork(after_in_child=_record.busy.clear)
        _record.hooks.append(_make_hook())
        sys.addaudithook(_record.hooks[0])
        sys.meta_path.append(_Missing)


def seen() -> Seen:
    """All that this process has seen since :func:`watch`, and the processes from which it was forked."""
    modules = [file for module in list(sys.modules.values()) if (file := _file_of(module)) is not None]
    for path in [*modules, *_files_in_use()]:
        _note_file(path, 0)
    opened = {path: state for path, state in list(_record.opened.items()) if not is_scratch(Path(path))}
    missing = (name for name in list(_record.missing) if sys.modules.get(name) is None)
    return Seen(
        python=tuple(sorted(path for path, state in opened.items() if path.endswith(_PYTHON) and state != ABSENT)),
        opened=opened,
        listed={path: entries for path, entries in list(_record.listed.items()) if not is_scratch(Path(path))},
        missing_modules=tuple(sorted(missing)),
        starts_programs=_record.starts_programs,
        not_kept=_record.not_kept,
    )


class _Record:
    """What is known so far. A fork has a copy."""

    def __init__(self) -> None:
        self.hooks: list[Callable[[str, tuple[Any, ...]], None]] = []
        self.root = self.temporary = ""
        self.opened: dict[str, str] = {}
        self.written: set[str] = set()
        """What this process created before it read it, and folders that it made."""
        self.listed: dict[str, tuple[str, ...]] = {}
        self.missing: set[str] = set()
        self.starts_programs = False
        self.not_kept = ""
        self.busy: set[int] = set()
        """The threads in which the hook is at work. What it does itself is no event."""


_record = _Record()


class _Missing:
    """The last of Python's finders. It finds nothing: it is asked for modules that are not there, which no event tells."""

    @staticmethod
    def find_spec(name: str, _path: Any = None, _target: Any = None) -> None:
        """Note the name of a module."""
        _record.missing.add(name)


def _make_hook() -> Callable[[str, tuple[Any, ...]], None]:
    """The hook. Names that it uses are bound here, because a recipe can replace them where they come from."""
    record, busy, handlers, error, thread = _record, _record.busy, dict(_HANDLERS), Exception, threading.get_ident

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        handler = handlers.get(event)
        if handler is None or (current := thread()) in busy:
            return
        busy.add(current)
        try:
            handler(*arguments)
        except error:
            record.not_kept = record.not_kept or "what it opens could not be recorded"
        finally:
            busy.discard(current)

    return hear


def _path_of(path: Any) -> str | None:
    if path is None or isinstance(path, int):
        return None
    try:
        return _abspath(_fsdecode(path))
    except (OSError, ValueError, TypeError):  # no path, or the current directory is gone
        return None


def _opened(path: Any, mode: Any, flags: Any) -> None:
    if isinstance(path, str) and is_of_python(path):
        return
    file = _path_of(path)
    # A file that is opened by its name in an open folder is not where its name leads to.
    if file is not None and (mode is not None or file == path or state_of(file) != ABSENT):
        _note_file(file, flags if isinstance(flags, int) else 0)


def _note_file(file: str, flags: int) -> None:
    record = _record
    if not _counts(file) or _METADATA.search(file) or (file := source_of(file)) in record.opened or _is_own(file):
        return
    if flags & (os.O_TRUNC | os.O_EXCL):
        record.written.add(file)
    elif not flags & os.O_WRONLY and not _is_folder(file):
        record.opened[file] = state_of(file)


def _counts(path: str) -> bool:
    """Whether a file or folder is neither installed nor onnx-ci's or the system's, which count otherwise."""
    if (
        is_of_python(path)
        or path.startswith(_OWN)
        or (is_of_system(path) and not f"{path}{os.sep}".startswith(f"{_record.root}{os.sep}"))
    ):
        return False
    return not is_installed(path)


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(_stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _is_own(path: str) -> bool:
    """Whether this process made a file, or a folder in which it lies."""
    written = _record.written
    if not written or path in written:
        return bool(written)
    return any(path.startswith(f"{each}{os.sep}") for each in written)


def _looked_up(path: Any = None, *_: Any) -> None:
    if path is not None and not isinstance(path, (str, bytes)):
        return
    folder = _path_of("." if path is None else path)
    record = _record
    if folder is None or folder in record.listed or not _counts(folder + os.sep) or _is_own(folder):
        return
    if folder == record.temporary or _is_of_import_system(_getframe(1)):
        return
    entries = entries_of(folder)
    if len(entries) > _MOST_ENTRIES:
        record.not_kept = record.not_kept or f"it lists a folder with {len(entries):,} files"
    record.listed[folder] = entries[:_MOST_ENTRIES]


def _is_of_import_system(frame: FrameType | None) -> bool:
    """Whether Python looks for modules or metadata: what is found then is seen otherwise."""
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    if frame is None:
        return False
    file = frame.f_code.co_filename
    return file.startswith(_IMPORTING) or f"{os.sep}importlib{os.sep}metadata{os.sep}" in file


def _globbed(pattern: Any, _recursive: Any = False, base: Any = None, *_: Any) -> None:
    """A pattern can lead to a file that no event tells, or to a folder that is not there. What it lists is told."""
    text = _fsdecode(pattern)
    fixed = text if (magic := re.search(r"[*?[]", text)) is None else text[: magic.start()].rpartition("/")[0]
    path = _path_of(os.path.join(_fsdecode(base), fixed) if base is not None else fixed or os.curdir)  # noqa: PTH118
    if path is not None:
        _note_file(path, 0)


def _imported(module: Any, *_: Any) -> None:
    if isinstance(module, str) and module in _STARTS_BY_ITSELF:
        _record.starts_programs = True


def _loaded(name: Any, *_: Any) -> None:
    if isinstance(name, str) and os.sep in name:
        _opened(name, None, 0)


def _called_from_c(_: Any, name: Any) -> None:
    """A function of a library is asked for by its name. What C's own functions open is not told."""
    if name in _OPENING and not _is_library_at_work(_getframe(1)):
        _record.not_kept = _record.not_kept or f"it calls {name} through ctypes, whose files are not seen"


def _connected(database: Any, *_: Any) -> None:
    if isinstance(database, (str, bytes)) and os.fsdecode(database) not in (":memory:", ""):
        _opened(re.sub(r"^file:(?://)?([^?]*).*", r"\1", os.fsdecode(database)), None, 0)


def _started(program: Any, arguments: Any = (), folder: Any = None, *_: Any) -> None:
    """A program was started. Those of libraries that ask the system, as for its processor, read no file of the project."""
    words = [arguments] if isinstance(arguments, (str, bytes)) else list(arguments or ())
    texts = [os.fsdecode(word) for word in [program, *words] if isinstance(word, (str, bytes, os.PathLike))]
    base = folder if isinstance(folder, (str, bytes, os.PathLike)) else os.curdir
    names_file = False
    for word in (word for text in texts for word in (text, *text.split())):
        file = _path_of(os.path.join(os.fsdecode(base), word.rpartition("=")[2] or word))  # noqa: PTH118
        if file is not None and os.path.isfile(file):  # noqa: PTH113
            names_file = names_file or file.startswith(f"{_record.root}{os.sep}")
            _note_file(file, 0)
    name = os.path.basename(texts[0].split()[0]) if texts and texts[0].strip() else ""  # noqa: PTH119
    if name and os.sep not in texts[0]:
        for place in os.get_exec_path():
            _note_file(os.path.join(_abspath(place), name), 0)  # noqa: PTH118
    by_project = not _is_library_at_work(_getframe(1))
    if by_project and any(os.path.basename(text) == "git" or text.startswith("git ") for text in texts):  # noqa: PTH119
        _record.not_kept = _record.not_kept or "it asks git, whose history does not count"
    if by_project or names_file or any(_PROGRAMS.search(text) for text in texts):
        _record.starts_programs = True


def _forked(*_: Any) -> None:
    """A process was forked. What it opens is not told here; what onnx-ci forks tells it itself."""
    frame: FrameType | None = _getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OWN) and file != __file__:
            return
        if file != __file__ and not is_of_python(file) and not file.startswith("<frozen"):
            break
        frame = frame.f_back
    _record.starts_programs = True
    _record.not_kept = _record.not_kept or "it forks a process, whose files are not seen"


def _is_library_at_work(frame: FrameType | None) -> bool:
    """Whether the innermost code that is not of the standard library is that of an installed library, or onnx-ci's."""
    while frame is not None:
        file = frame.f_code.co_filename
        is_standard = file.startswith(("<frozen", *_STANDARD)) and f"-packages{os.sep}" not in file
        if file != __file__ and not is_standard:
            return is_installed(file) or file.startswith(_OWN)
        frame = frame.f_back
    return False


def _network(host: Any, *_: Any) -> None:
    name = host.decode("utf-8", "replace") if isinstance(host, bytes) else str(host or "")
    if name:
        _record.not_kept = _record.not_kept or f"it connects to {name}"


def _socket(socket: Any, address: Any) -> None:
    if isinstance(address, tuple) and address:  # that of a socket of this machine is a path
        _network(address[0])


def _made(path: Any, *_: Any) -> None:
    if (folder := _path_of(path)) is not None and not os.path.exists(folder):  # noqa: PTH110
        _record.written.add(folder)


def _renamed(source: Any, target: Any, *_: Any) -> None:
    old, new = _path_of(source), _path_of(target)
    if old is not None and new is not None and _is_own(old) and new not in _record.opened:
        _record.written.add(new)


_OWN = str(Path(__file__).parents[1]) + os.sep
_STANDARD = (f"{os.path.dirname(os.__file__)}{os.sep}",)  # noqa: PTH120
_HANDLERS: Mapping[str, Callable[..., None]] = {
    "open": _opened,
    "os.listdir": _looked_up,
    "os.scandir": _looked_up,
    "glob.glob": _globbed,
    "glob.glob/2": _globbed,
    "import": _imported,
    "ctypes.dlopen": _loaded,
    "ctypes.dlsym": _called_from_c,
    "sqlite3.connect": _connected,
    "subprocess.Popen": _started,
    "os.system": _started,
    "os.exec": _started,
    "os.posix_spawn": _started,
    "os.spawn": lambda mode, path, arguments, *_: _started(path, arguments),
    "os.startfile": _started,
    "os.fork": _forked,
    "os.forkpty": _forked,
    "socket.connect": _socket,
    "socket.getaddrinfo": _network,
    "onnx_ci.opened": lambda path: _opened(path, None, 0),
    "os.mkdir": _made,
    "os.rename": _renamed,
}


def _file_of(module: object) -> str | None:
    file = file_of(module)
    is_installed_or_none = file is None or is_of_python(file) or not os.path.isabs(file)  # noqa: PTH117 (thousands of modules)
    return None if is_installed_or_none else file


def _files_in_use() -> set[str]:
    """Files that are mapped into memory or open now, on Linux: compiled code opens them without an event.

    Those that are open for writing are no inputs, such as the database in which ONNX Runtime notes that it was used.
    """
    found: set[str] = set()
    written: set[str] = set()
    try:
        with _open("/proc/self/maps", "rb") as lines:  # text would need a codec, which may be gone
            for line in lines:
                _, permissions, _, _, _, *path = line.rstrip(b"\n").split(maxsplit=5)
                if path and path[0].startswith(b"/"):
                    (written if permissions == b"rw-s" else found).add(_fsdecode(path[0]))
        with _scandir("/proc/self/fd") as entries:
            numbers = [entry.name for entry in entries]
    except (OSError, ValueError):
        return set()
    for number in numbers:
        try:
            path_of_number = _readlink(f"/proc/self/fd/{number}")
            with _open(f"/proc/self/fdinfo/{number}", "rb") as lines:
                flags = next(int(line.split()[1], 8) for line in lines if line.startswith(b"flags:"))
        except (OSError, ValueError, StopIteration):
            continue
        (written if flags & (os.O_WRONLY | os.O_RDWR) else found).add(path_of_number)
    return {path for path in found - written if path.startswith("/") and _counts(path) and _is_regular(path)}


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(_stat(path).st_mode)
    except (OSError, ValueError):
        return False
