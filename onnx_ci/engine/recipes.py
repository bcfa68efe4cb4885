"""The recipes of a run, and the processes that work with them, as the process that decides has them.

It imports no recipe file. Each file is imported in a process of its own (:mod:`onnx_ci.engine.recipe_file`), which says what
its recipes declare. Whatever is done with a recipe is done in a fork of that process, or in a spawned one that imports the file
as well. Recipes that are given as objects are worked with in forks of this process.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from onnx_ci.cache.verdicts import VerdictCache
from onnx_ci.cache.watch import Seen
from onnx_ci.collection.discovery import Catalogue, Found, all_recipe_files, relative_source, used_twice
from onnx_ci.collection.pythonpath import add_pythonpath
from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.settings import Settings
from onnx_ci.engine.libraries import Libraries, libraries_of, likely_exporters
from onnx_ci.engine.recipe_file import (
    DECLARED,
    READY,
    WORK,
    RecipeWork,
    do_with_recipe,
    import_and_do,
    import_and_wait,
    import_libraries,
    serve_recipes,
)
from onnx_ci.environment.coverage import patches_of_coverage
from onnx_ci.environment.libraries import is_library_file
from onnx_ci.environment.torch_variables import set_torch_variables
from onnx_ci.errors import EnvironmentLacksError
from onnx_ci.matrix.plan import CellPlan, Matrix, PlannedCell, plan, with_recipe
from onnx_ci.matrix.scope import RecipeScope, scope_of
from onnx_ci.processes.apart import processes_of
from onnx_ci.processes.control_groups import usable_cores
from onnx_ci.processes.descriptors import open_channels
from onnx_ci.processes.forked import ForkedProcesses
from onnx_ci.processes.limits import ProcessLimits, default_jobs, process_limits
from onnx_ci.processes.pickling import pickled
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.processes.supervisor import LAST, Death, Message, Processes
from onnx_ci.results.json_data import from_json, to_json
from onnx_ci.results.records import Problem
from onnx_ci.text import without_commands

_Key = TypeVar("_Key")

_LEAST_SECONDS, _MOST_SECONDS = 60.0, 1e6
"""The limits of the time limit of an import: libraries can take long, and the system takes no larger number."""
_MOST_FILES = 16
"""How many processes of recipe files may wait for something to do. Each keeps what its file has imported in memory; the file of
another one is imported again."""
_SECONDS_TO_SAVE = 10.0
_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)')
"""A line of a stack as :mod:`faulthandler` writes it."""
_LIBRARIES = "libraries"
"""The key of the process that imports libraries only."""


@dataclass(frozen=True)
class _FileKey:
    """The key of the process of a recipe file."""

    source: str


@dataclass(kw_only=True)
class _File:
    """A recipe file, and its process."""

    path: Path
    source: str
    is_importing: bool = False
    is_ready: bool = False
    """Whether its process waits for something to do."""
    declared: Mapping[str, Any] | None = None
    """What it said; ``None`` if its process died, or has not said anything yet."""
    death: Death | None = None
    working: set[object] = field(default_factory=set)
    """The keys of the forks of its process."""

    @property
    def key(self) -> _FileKey:
        """The key of its process."""
        return _FileKey(self.source)


@dataclass(frozen=True, kw_only=True)
class _Start:
    """A process that is to be started once the file of its recipe is imported."""

    name: str
    work: RecipeWork
    limits: ProcessLimits


class Recipes:
    """The recipes of a run, by name, and what is wrong with recipe files; a context manager that ends their processes.

    Args:
        settings: the settings of the run.
        cache: what is known from earlier runs; ``None`` for nothing.

    Attributes:
        scopes: what the recipes declare, by name, in order.
        problems: what is wrong with recipe files.
    """

    def __init__(self, settings: Settings, *, cache: VerdictCache | None = None) -> None:
        self.settings, self.cache = settings, cache
        self.scopes: dict[str, RecipeScope] = {}
        self.problems: list[Problem] = []
        self._channels = open_channels()
        """Pipes and sockets of this process that no recipe may reach."""
        self._objects: dict[str, Found] = {}
        """The recipes that this process has, by name."""
        self._catalogue = Catalogue(settings)
        """The recipe files that this process imports, without isolation."""
        self._files: dict[str, _File] = {}
        self._announced: list[Path] = []
        self._libraries: Libraries | None = None
        """What the process of libraries imports; ``None`` before it is started."""
        self._is_prepared = False
        """Whether it has done so."""
        self._waiting: dict[object, _Start] = {}
        self._events: list[tuple[object, Message | Death]] = []
        self._open = contextlib.ExitStack()
        self._started: Processes[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, and remove their files."""
        self._waiting.clear()
        for file in self._files.values():
            file.is_importing = file.is_ready = False
        if patches_of_coverage() is not None and isinstance(self._started, ForkedProcesses):
            self._started.let_end(_SECONDS_TO_SAVE)  # coverage.py saves what a process ran when that ends by itself
        self._started, self._libraries, self._is_prepared = None, None, False
        self._open.close()

    # --- what they declare

    def announce(self, paths: Iterable[Path]) -> None:
        """Say which files will be added, so that libraries of all of them are imported once."""
        self._announced += paths

    def add(self, paths: Sequence[Path], *, named: Collection[Path] = ()) -> tuple[list[RecipeScope], list[Problem]]:
        """Add the recipes of files. Returns the new recipes and problems.

        Args:
            paths: the files.
            named: those that are named, and not only a folder above them.
        """
        if self.settings.isolation == "none":
            return self._import_here(paths, named)
        files = [self._file(path) for path in paths]
        unknown = []
        for file in files:
            known = None if self.cache is None else self.cache.recipes(file.source)
            file.declared = None if known is None else {"scopes": known, "problems": []}
            if known is None:
                unknown.append(file)
        self._import(unknown)
        scopes, problems = list[RecipeScope](), list[Problem]()
        for file in files:
            of_file, wrong = self._declared_by(file)
            is_named = file.path in named
            new, twice = self._without_twice([dataclasses.replace(each, is_named=is_named) for each in of_file], file.source)
            scopes += new
            problems += [*wrong, *twice]
        self.problems += problems
        return scopes, problems

    def add_object(self, found: Found) -> None:
        """Add a recipe that this process has."""
        self._objects[found.recipe.name] = found
        self.scopes[found.recipe.name] = scope_of(found, self.settings)

    def recipe_here(self, name: str) -> Recipe | None:
        """The recipe of this name, if this process has it."""
        found = self._objects.get(name)
        return None if found is None else found.recipe

    def completed(self, planned: CellPlan) -> CellPlan:
        """A cell with its recipe, if this process has it."""
        if isinstance(planned, PlannedCell):
            return planned
        recipe = self.recipe_here(planned.cell.recipe)
        return planned if recipe is None else with_recipe(planned, recipe, self.settings)

    def plan(self, names: Iterable[str] | None = None) -> Matrix:
        """The cells of the recipes of these names, or of all of them."""
        chosen = self.scopes if names is None else names
        return plan((self._objects.get(name) or self.scopes[name] for name in chosen), self.settings)

    def _file(self, path: Path) -> _File:
        source = relative_source(path, self.settings.root)
        return self._files.setdefault(source, _File(path=path, source=source))

    def _import_here(self, paths: Iterable[Path], named: Collection[Path]) -> tuple[list[RecipeScope], list[Problem]]:
        """Without isolation, import files in this process."""
        add_pythonpath(self.settings.root)
        scopes, problems = list[RecipeScope](), list[Problem]()
        for path in paths:
            found, wrong = self._catalogue.add_file(path, is_named=path in named)
            for each in found:
                self.add_object(each)
                scopes.append(self.scopes[each.recipe.name])
            problems += wrong
        self.problems += problems
        return scopes, problems

    def _import(self, files: Sequence[_File]) -> None:
        """Import files in processes of their own, several at once, and wait for what they declare."""
        if not files:
            return
        self._announced += [file.path for file in files]
        waiting = list(files)
        most = self.settings.jobs or default_jobs(usable_cores())
        while waiting or any(file.is_importing for file in files):
            while waiting and sum(file.is_importing for file in files) < most:
                self._begin_import(waiting.pop(0))
            self._events += self._news(None)

    def _declared_by(self, file: _File) -> tuple[tuple[RecipeScope, ...], list[Problem]]:
        """The recipes of a file that has been imported, and what is wrong with it."""
        if file.declared is None:
            return (), [self._problem_of_death(file)]
        problems = from_json(tuple[Problem, ...], file.declared["problems"])
        scopes = from_json(tuple[RecipeScope, ...], file.declared["scopes"])
        seen = file.declared.get("seen")
        if self.cache is not None and seen is not None and not problems:
            self.cache.keep_recipes(file.source, to_json(scopes), Seen.from_json(seen))
        return scopes, list(problems)

    def _problem_of_death(self, file: _File) -> Problem:
        death = file.death
        how = "ended" if death is None else death.message
        place = None if death is None else _place(death.log, self.settings.root)
        if place is None:
            return Problem(
                source=file.source, message=f"cannot be imported: the process that tried {how}", file=None, line=None
            )
        path, line = relative_source(Path(place[0]), self.settings.root), place[1]
        message = f"cannot be imported: the process that tried {how}, at {path}, line {line}"
        return Problem(source=file.source, message=message, file=path, line=line)

    def _without_twice(self, scopes: Iterable[RecipeScope], source: str) -> tuple[list[RecipeScope], list[Problem]]:
        """Those whose names are new, and problems with the others, unless a file has only imported them."""
        new, problems = list[RecipeScope](), list[Problem]()
        for scope in scopes:
            known = self.scopes.setdefault(scope.name, scope)
            if known is scope:
                new.append(scope)
            elif _origin(known) != _origin(scope):
                message = used_twice(scope.name, scope.line, f"{known.file}, line {known.line}")
                problems.append(Problem(source=source, message=message, file=scope.file, line=scope.line))
        return new, problems

    # --- processes of recipe files

    @property
    def processes(self) -> Processes[Any]:
        """The processes, supervised."""
        if self._started is None:
            set_torch_variables()
            scratch = self._open.enter_context(scratch_folder())
            processes = processes_of(self.settings.isolation, scratch, self._channels)
            self._started = self._open.enter_context(contextlib.closing(processes))
        return self._started

    @property
    def _seconds(self) -> float:
        """How long an import may take."""
        return min(max(self.settings.timeout, _LEAST_SECONDS), _MOST_SECONDS)

    def _begin_import(self, file: _File) -> None:
        """Start the process of a file, or at first the one that it is forked from."""
        file.is_importing, file.death = True, None
        self._make_room()
        try:
            if isinstance(self.processes, ForkedProcesses):
                if self._is_prepared:
                    self._fork_file(self.processes, file)
                elif self._libraries is None:
                    self._start_libraries(self.processes, libraries_of(self._announced, self.settings.root))
                return
            arguments = (file.path, self.settings, self._seconds, self.cache is not None)
            work = functools.partial(import_and_wait, *arguments)
            self.processes.start(file.key, work, process_limits(self._seconds, None), has_inbox=True)
        except OSError as error:
            self._handle_death(file, Death(cause="crash", message=f"could not be started: {error}", log=""))

    def _start_libraries(self, processes: ForkedProcesses, libraries: Libraries) -> None:
        work = functools.partial(import_libraries, libraries, likely_exporters(self._announced, self.settings))
        processes.start_python(_LIBRARIES, work, ProcessLimits(seconds=self._seconds))
        self._libraries = libraries

    def _fork_file(self, processes: ForkedProcesses, file: _File) -> None:
        arguments = (file.path, self.settings, self._seconds, self.cache is not None)
        work = functools.partial(serve_recipes, *arguments)
        limits = process_limits(self._seconds, None)
        processes.start_from(_LIBRARIES, file.key, work, limits, can_fork=True)

    def _make_room(self) -> None:
        """End processes of files that have nothing to do, if there are too many."""
        idle = [file for file in self._files.values() if file.is_ready and not file.working]
        for file in idle[: max(0, len(idle) + 1 - _MOST_FILES)]:
            file.is_ready = False
            self.processes.stop(file.key)

    def _handle(self, key: object, event: Message | Death) -> bool:
        """Handle an event of the process of a file, or of libraries. Returns whether it is one."""
        if key == _LIBRARIES:
            self._handle_libraries(event)
            return True
        if not isinstance(key, _FileKey):
            return False
        file = self._files[key.source]
        if isinstance(event, Death):
            self._handle_death(file, event)
        elif DECLARED in event:
            file.is_importing, file.is_ready, file.declared = False, True, event[DECLARED]
            self.processes.extend(key, None)
            if printed := self.processes.printed(key).strip():
                sys.stderr.write(f"{without_commands(printed)}\n")
            for waiting in [waiting for waiting, start in self._waiting.items() if self._source(start.name) == file.source]:
                self._launch(waiting, file, self._waiting.pop(waiting))
        return True

    def _handle_libraries(self, event: Message | Death) -> None:
        if isinstance(self.processes, ForkedProcesses) and isinstance(event, Death):
            tried, self._is_prepared = self._libraries, False
            if tried:  # one of the libraries is at fault; a recipe file that imports it says so
                self._start_libraries(self.processes, ())
                return
            for file in self._files.values():
                if file.is_importing:
                    self._handle_death(file, event)
            self._libraries = None
        elif isinstance(self.processes, ForkedProcesses) and not isinstance(event, Death) and READY in event:
            self._is_prepared = True
            self.processes.extend(_LIBRARIES, None)
            for file in self._files.values():
                if file.is_importing:
                    self._begin_import(file)

    def _handle_death(self, file: _File, death: Death) -> None:
        if file.is_importing:
            file.declared = None
        file.is_importing = file.is_ready = False
        file.death = death
        for waiting in [waiting for waiting, start in self._waiting.items() if self._source(start.name) == file.source]:
            del self._waiting[waiting]
            self._events.append((waiting, _of_file(death, file)))

    # --- work with recipes

    def start(
        self,
        key: object,
        name: str,
        work: RecipeWork,
        limits: ProcessLimits,
        *,
        recipe: Recipe | None = None,
        warm_up: Callable[[], object] | None = None,
    ) -> None:
        """Start a process that does something with a recipe, once the recipe's file is imported.

        Args:
            key: what its messages come under.
            name: the name of the recipe.
            work: called with the recipe, a function to send messages, and an inbox; pickled where the recipe has a file.
            limits: what it may use.
            recipe: the recipe, if this process has it.
            warm_up: imports what the work needs before its limits count, where the recipe has no file.

        Raises:
            OSError: no process can be started.
        """
        recipe = recipe or self.recipe_here(name)
        if recipe is not None:
            work_with_it = functools.partial(work, recipe)
            self.processes.start(key, work_with_it, limits, warm_up=warm_up, has_inbox=True)
            return
        file = self._files[self._source(name)]
        start = _Start(name=name, work=work, limits=limits)
        if file.is_ready:
            self._launch(key, file, start)
        else:
            self._waiting[key] = start
            if not file.is_importing:
                self._begin_import(file)

    def _source(self, name: str) -> str:
        return self.scopes[name].source

    def _launch(self, key: object, file: _File, start: _Start) -> None:
        """Start a process that does something with a recipe of a file that has been imported."""
        try:
            if isinstance(self.processes, ForkedProcesses):
                work = functools.partial(do_with_recipe, start.name, start.work)
                self.processes.start_from(file.key, key, work, start.limits, has_inbox=True)
                file.working.add(key)
            elif file.is_ready and not file.working:
                file.is_ready = False
                self.processes.rename(file.key, key, start.limits)
                work = functools.partial(do_with_recipe, start.name, start.work)
                self.processes.post(key, {WORK: base64.b64encode(pickled(work)).decode()})
            else:
                arguments = (file.path, self.settings, self._seconds, self.cache is not None)
                work = functools.partial(import_and_do, *arguments, start.name, start.work)
                self.processes.start(key, work, start.limits, has_inbox=True)
        except OSError as error:
            self._events.append((key, Death(cause="crash", message=f"could not be started: {error}", log="")))

    def _ended(self, key: object) -> _File | None:
        """The file whose process has forked one that has ended."""
        for file in self._files.values():
            if key in file.working:
                file.working.discard(key)
                return file
        return None

    def wait(self, seconds: float | None = None) -> list[tuple[object, Message | Death]]:
        """Messages and deaths of the processes that work with recipes, as soon as there are any.

        Args:
            seconds: after which there may be none.
        """
        if not self._events:
            self._events += self._news(seconds)
        events, self._events = self._events, []
        return events

    def _news(self, seconds: float | None) -> list[tuple[object, Message | Death]]:
        """Messages and deaths of processes, without those of recipe files, which are handled; there may be none."""
        events = []
        for key, event in self.processes.wait(seconds):
            if self._handle(key, event):
                continue
            has_ended = isinstance(event, Death) or LAST in event
            file = self._ended(key) if has_ended else None
            # The system ends the forks of a process with it.
            cause = file.death if file is not None and isinstance(event, Death) else None
            events.append((key, event if cause is None or file is None else _of_file(cause, file)))
        return events

    def post(self, key: object, message: Message) -> None:
        """Put a message into the inbox of a process.

        Raises:
            OSError: it is dead.
        """
        self.processes.post(key, message)

    def extend(self, key: object, seconds: float | None) -> None:
        """Give a process ``seconds`` from now on, or no deadline at all."""
        self.processes.extend(key, seconds)

    def stop(self, key: object) -> None:
        """End a process."""
        self._ended(key)
        if self._waiting.pop(key, None) is None:
            self.processes.stop(key)

    def run_all(
        self, works: Mapping[_Key, tuple[str, RecipeWork]], limits: ProcessLimits, *, jobs: int = 1
    ) -> Iterator[tuple[_Key, Message | Death]]:
        """Do something with recipes, each in a process of its own, and yield its last message or its death.

        Args:
            works: the name of a recipe, and what is done with it, which is called with the recipe and a function to send
                messages, and ends with a message that has the key :data:`~onnx_ci.processes.supervisor.LAST`.
            limits: of each process.
            jobs: how many run at once.

        Raises:
            EnvironmentLacksError: no process could be started.
        """
        waiting, running = list(works.items()), 0
        try:
            while waiting or running:
                while waiting and running < jobs:
                    key, (name, work) = waiting.pop(0)
                    self.start(("work", key), name, functools.partial(_without_inbox, work), limits)
                    running += 1
                for event_key, event in self.wait():
                    running -= isinstance(event, Death) or LAST in event
                    yield event_key[1], event  # type: ignore[index]
        except OSError as error:
            raise EnvironmentLacksError(f"no process could be started: {error}; use --isolation=none") from None


def _origin(scope: RecipeScope) -> tuple[str, int, str]:
    """What two recipes of one name have in common if they are the same, which two files import."""
    return scope.file, scope.line, scope.declared_in


def _of_file(death: Death, file: _File) -> Death:
    """The end of a process that ended with that of its recipe file."""
    return dataclasses.replace(death, message=f"ended with the process of {file.source}, which {death.message}")


def _place(log: str, root: Path) -> tuple[str, int] | None:
    """The innermost line of the project in a stack."""
    for frame in _FRAME.finditer(log):
        if Path(frame["file"]).is_relative_to(root) and not is_library_file(frame["file"]):
            return frame["file"], int(frame["line"])
    return None


def _without_inbox(work: RecipeWork, recipe: Recipe, send: Callable[[Message], None], inbox: object) -> None:
    work(recipe, send)


def find_recipes(
    settings: Settings,
    paths: Iterable[Path] = (),
    *,
    cache: VerdictCache | None = None,
) -> Recipes:
    """Every recipe in ``paths``, or in the settings' recipe files and packages if no path is given.

    Args:
        settings: the settings.
        paths: files and folders.
        cache: what is known from earlier runs.

    Raises:
        ConfigurationError: a path does not exist, or a package is not installed.
    """
    paths = tuple(paths)
    files = list(all_recipe_files(settings, paths))
    recipes = Recipes(settings, cache=cache)
    with contextlib.ExitStack() as undo:
        undo.callback(recipes.close)
        recipes.add(files, named={path.absolute() for path in paths if path.is_file()})
        undo.pop_all()
    return recipes
