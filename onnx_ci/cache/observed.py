"""What this process reads and does that the verdicts of a run may depend on, as Python's audit events tell.

Only what Python opens is seen; compiled code may open other files.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Self

from onnx_ci.cache.files_state import ABSENT, TooManyFilesError, is_new, is_of_machine, state_of
from onnx_ci.cache.import_closure import process_started
from onnx_ci.environment.libraries import file_of, is_library_file, source_of
from onnx_ci.processes.scratch import is_scratch

_INFLUENCES = {
    "subprocess.Popen": "starts another program",
    "os.system": "starts another program",
    "os.exec": "starts another program",
    "os.posix_spawn": "starts another program",
    "os.fork": "starts another process",
    "os.forkpty": "starts another process",
    "sqlite3.connect": "opens a database",
    "socket.connect": "connects to a socket",
    "socket.getaddrinfo": "looks up a host",
}
"""What the project does on an audit event whose effect cannot be recorded."""
_STARTS_PROCESSES = frozenset({"multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver"})
"""Modules that are first imported when they are needed. Their way to start a process has no audit event."""
_OWN = str(Path(__file__).parents[1]) + os.sep
_TWISTER = 624
"""The length of the state of a Mersenne Twister, and where it stands when it has been seeded and not been used since."""
_LARGEST_SEED = 2**32
"""What somebody chooses as a seed is smaller; nearly all that torch draws for itself are larger: they have 53 bits or more."""
_read: dict[str, str] = {}
"""The state of each file when this process first tried to open it."""
_written: set[str] = set()
"""Files that this process tried to create or overwrite before it read them."""
_listed: dict[str, str] = {}
"""The state of each folder when this process first listed it."""
_fresh: set[str] = set()
_influences: set[str] = set()
_chance: set[str] = set()
_told: set[str] = set()
"""What :func:`news` leaves out; empty if this process is not observed."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What processes read, and what else they did that verdicts may depend on."""

    files: Mapping[str, str] = field(default_factory=dict)
    """The states of all files that they tried to open, and of imported modules, by absolute path; see :func:`state_of`."""
    folders: Mapping[str, str] = field(default_factory=dict)
    """The states of folders that they listed, except those of libraries."""
    fresh: frozenset[str] = frozenset()
    """The paths of those that this run had just made or changed. One that is gone at its end was temporary."""
    influences: frozenset[str] = frozenset()
    """In words: ``/project/onnx_recipes.py starts another program``."""
    chance: frozenset[str] = frozenset()
    """What may be different in each process, in words: ``/project/onnx_recipes.py asks the system for random numbers``."""

    _SETS: ClassVar = ("fresh", "influences", "chance")

    def __or__(self, other: Self) -> Observation:
        return Observation(
            files=_merged(self.files, other.files),
            folders=_merged(self.folders, other.folders),
            fresh=self.fresh | other.fresh,
            influences=self.influences | other.influences,
            chance=self.chance | other.chance,
        )

    def as_json(self) -> dict[str, Any]:
        """The observation as plain data, to be sent to another process."""
        sets = {name: sorted(getattr(self, name)) for name in self._SETS}
        return {"files": dict(self.files), "folders": dict(self.folders), **sets}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The observation that :meth:`as_json` returned."""
        return cls(files=data["files"], folders=data["folders"], **{name: frozenset(data[name]) for name in cls._SETS})


@functools.cache
def observe() -> None:
    """Observe this process from now on, and those that are forked from it. That cannot be ended."""
    is_library_file(__file__)  # the hook calls it, and its first call lists folders, which would call the hook again
    sys.addaudithook(_hear)
    for module, name in ((os, "urandom"), (random, "_urandom")):  # no audit event tells that; uuid, secrets and numpy call them
        setattr(module, name, _noting(getattr(module, name)))
    _told.add("")


@functools.cache
def observe_seeds() -> None:
    """From now on, count it as chance if the project lets torch seed itself; torch is imported."""
    torch: Any = sys.modules["torch"]
    torch.seed = torch.random.seed = _noting(torch.seed)


def _noting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def draw(*arguments: Any) -> Any:
        _note_influence("asks the system for random numbers", _chance)
        return function(*arguments)

    return draw


def add_file(file: str) -> None:
    """Count a file, given by its absolute path, as one that this process has tried to open."""
    if file not in _read:
        _read[file] = state = _state(file)
        if is_new(state, process_started()):
            _fresh.add(file)


def is_observed() -> bool:
    """Whether this process is observed."""
    return bool(_told)


def observation() -> Observation:
    """What is known of this process; of the time before :func:`observe`, only which modules were imported."""
    return _of(_files()) | Observation(chance=frozenset(_uses_of_generators()))


def news() -> Observation:
    """What :func:`observation` has that neither this function has returned before nor :func:`mark_as_known` has marked."""
    new = _files() - _told
    _told.update(new)
    return _of(new)


def mark_as_known() -> None:
    """From now on, :func:`news` leaves out what this process has read so far, here and in processes forked from it."""
    _told.update(_files())


def _files() -> set[str]:
    modules = {file for each in list(sys.modules.values()) if (file := file_of(each)) is not None}
    return modules | {file for file in list(_read) if file not in _written or not _is_new(file)}


def _of(files: Iterable[str]) -> Observation:
    sources = {source_of(os.path.abspath(file)) for file in files}  # noqa: PTH100 (thousands of files)
    return Observation(
        files={file: _read.get(file) or _state(file) for file in sources if _counts(file)},
        folders={folder: state for folder, state in list(_listed.items()) if _counts(folder)},
        fresh=frozenset(_fresh),
        influences=frozenset(_influences),
        chance=frozenset(_chance),
    )


@contextlib.contextmanager
def command_line_observed() -> Iterator[None]:
    """Count it as an influence if the project reads more of ``sys.argv`` in the block than the name of the program."""
    given = {name: getattr(sys, name) for name in ("argv", "orig_argv")}
    watched = {name: _WatchedArguments(arguments) for name, arguments in given.items()}
    vars(sys).update(watched)
    try:
        yield
    finally:
        for name, arguments in given.items():
            if getattr(sys, name) is watched[name]:  # otherwise, the project has replaced it
                setattr(sys, name, arguments)


class _WatchedArguments(list[str]):
    """Notes each access that shows an argument, or how many there are."""


def _watched(name: str) -> Callable[..., Any]:
    method = getattr(list, name)

    def access(arguments: _WatchedArguments, *values: Any) -> Any:
        if (name, values) != ("__getitem__", (0,)):
            _note_influence("reads the command line")
        return method(arguments, *values)

    return access


for _name in (
    *("__add__", "__contains__", "__eq__", "__ge__", "__getitem__", "__gt__", "__iter__", "__le__", "__len__", "__lt__"),
    *("__mul__", "__ne__", "__repr__", "__reversed__", "__rmul__", "copy", "count", "index", "pop", "remove"),
):
    setattr(_WatchedArguments, _name, _watched(_name))


def _uses_of_generators() -> Iterator[str]:
    """Which of the generators were used that have another seed in each process. Where recipes run, they get a fixed one."""
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if random.getstate()[1][-1] != _TWISTER:
        yield "the project or a library uses random while it is imported"
    if numpy is not None and not _is_unused(numpy.get_state(legacy=False)):
        yield "the project or a library uses numpy.random while it is imported"
    if torch is not None and torch.initial_seed() > _LARGEST_SEED:
        unused = torch.Generator().manual_seed(torch.initial_seed()).get_state()
        if not torch.equal(torch.get_rng_state(), unused):
            yield "the project or a library uses torch's random numbers without a seed while it is imported"


def _is_unused(state: Mapping[str, Any]) -> bool:
    """Whether nothing was drawn from numpy's generator since it was seeded with a number, or imported."""
    twister = state.get("state")
    if not isinstance(twister, Mapping) or "pos" not in twister:
        return False  # the project has given it another generator
    is_seeded = int(twister["key"][0]) != 0x80000000  # with a number
    return int(twister["pos"]) == (_TWISTER if is_seeded else _TWISTER - 1)


def _counts(file: str) -> bool:
    return not is_of_machine(file) and not is_scratch(Path(file))


def _merged(ours: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """All states by path; of one that processes have found in different states, a state that no file ever has."""
    return {**ours, **{path: state if ours.get(path, state) == state else "changing" for path, state in others.items()}}


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        if not isinstance(arguments[0], int):
            with contextlib.suppress(OSError, ValueError, TypeError):  # it is not a path, or the current directory is gone
                _note(os.fsdecode(arguments[0]), arguments[2], is_of_os=arguments[1] is None)
    elif event in ("os.listdir", "os.scandir"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            _note_folder(os.path.abspath(os.fsdecode(arguments[0] or os.curdir)))  # noqa: PTH100 (of each folder)
    elif event == "ctypes.dlopen":
        if isinstance(arguments[0], str) and os.path.isabs(arguments[0]):  # noqa: PTH117 (every library that is loaded)
            add_file(arguments[0])
    elif event == "import":
        if arguments[0] in _STARTS_PROCESSES:
            _note_influence("starts another process")
    elif event in _INFLUENCES:
        _note_influence(_INFLUENCES[event])


def _note(path: str, flags: int, *, is_of_os: bool) -> None:
    file = os.path.abspath(path)  # noqa: PTH100 (of every file that is opened)
    if file not in _read and flags & (os.O_TRUNC | os.O_EXCL):
        _written.add(file)
    elif os.path.isdir(file):  # noqa: PTH112 - see above
        _note_folder(file)
    elif not flags & os.O_WRONLY:
        add_file(source_of(file))
        if is_of_os and path != file and _read.get(file) == ABSENT:
            _note_influence("opens a file by its name in an open folder")


def _note_folder(folder: str) -> None:
    if folder in _listed or is_library_file(folder + os.sep):
        return
    if folder == tempfile.tempdir and _caller() is None:
        return  # onnx-ci removes there what its dead processes left, and every program leaves files there
    _listed[folder] = ABSENT  # looking at the folder lists it again
    _listed[folder] = _state(folder)
    if _is_new(folder):
        _fresh.add(folder)


def _note_influence(what: str, noted: set[str] = _influences) -> None:
    caller = _caller()
    if caller is not None:
        noted.add(f"{caller} {what}")


def _state(path: str) -> str:
    try:
        return state_of(path)
    except TooManyFilesError as error:
        _influences.add(str(error))
        return ABSENT


def _is_new(path: str) -> bool:
    """Whether a file or folder was changed by this run, or is gone."""
    try:
        return os.stat(path).st_ctime >= process_started()  # noqa: PTH116 - see above
    except (OSError, ValueError):
        return True


def _caller() -> str | None:
    """What is at work, in words; ``None`` if it is onnx-ci, or a library that is being imported.

    Where only a library is at work, such as a plugin of pytest, it is the program that was started.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OWN) and not file.startswith(f"{_OWN}recipes"):
            return None
        if not file.startswith("<") and not is_library_file(file):
            return file
        if frame.f_code.co_name == "<module>" and not file.startswith("<"):
            return file if frame.f_globals.get("__name__") == "__main__" else None
        frame = frame.f_back
    return "a thread that the project or a library started"
