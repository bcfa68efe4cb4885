"""The processes of recipe files, and those that work with their recipes, as the process that decides has them.

Where processes are forked, a new Python imports libraries only, and the process of each recipe file is forked from it. That one
imports its file and serves forks, in which workers and other work with its recipes run. Where processes are spawned, each
imports the file that it needs. What runs in these processes is in :mod:`onnx_ci.engine.recipe_process`.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx_ci.config.settings import Settings
from onnx_ci.engine import recipe_process
from onnx_ci.engine.deaths import death_with_file, death_without_process
from onnx_ci.engine.events import FileImported, WorkRequested, event_of, message_of
from onnx_ci.engine.preimports import Libraries, libraries_of, likely_exporters
from onnx_ci.environment.this_process import patches_of_coverage, set_torch_variables
from onnx_ci.processes.forked import ForkedProcesses
from onnx_ci.processes.limits import Limits, default_jobs
from onnx_ci.processes.run_in_child import processes_of
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.processes.supervisor import LAST, Death, Message, Processes
from onnx_ci.text import without_commands

News = tuple[object, Message | Death]
"""The key of a process, and what it sends, or how it ended."""
_MOST_FILES = 16
"""How many processes of recipe files may wait for something to do. Each keeps what its file has imported in memory. If there
are more, the file of the oldest is imported again when it is needed."""
_SECONDS_TO_SAVE = 10.0
_LIBRARIES = "libraries"


@dataclass(kw_only=True, eq=False)
class _File:
    """A recipe file, which is also the key of its process."""

    path: Path
    source: str
    is_importing: bool = False
    is_ready: bool = False
    """Whether its process waits for something to do."""
    imported: FileImported | None = None
    death: Death | None = None
    """How its process ended, if it did that by itself. Then it is not imported again for its other recipes."""
    is_shown: bool = False
    """Whether what it printed while it was imported has been shown."""
    forks: set[object] = field(default_factory=set)
    waiting: dict[object, Callable[[], None]] = field(default_factory=dict)
    """What starts the processes that wait for its import, by their keys."""


class FileProcesses:
    """The processes of a run, which are started when they are needed, and note what verdicts depend on if ``is_watched``."""

    def __init__(self, settings: Settings, *, is_watched: bool) -> None:
        self._settings, self._is_watched = settings, is_watched
        self._warm_up = functools.partial(recipe_process.import_worker, is_watched=is_watched)
        self._files: dict[str, _File] = {}
        self._shown: set[str] = set()
        """What files printed while they were imported: a library tells the same to each that imports it."""
        self._announced: list[Path] = []
        self._libraries: Libraries | None = None
        """What the process of libraries imports; ``None`` before it is started."""
        self._are_imported = False
        """Whether it has done so."""
        self._events: list[News] = []
        self._open = contextlib.ExitStack()
        self._started: Processes[Any] | None = None

    def close(self) -> None:
        """End all processes, and remove their files."""
        self._events.clear()
        for file in self._files.values():
            file.is_importing = file.is_ready = False
            file.death = None
            file.waiting.clear()
        if patches_of_coverage() is not None and isinstance(self._started, ForkedProcesses):
            self._started.let_end(_SECONDS_TO_SAVE)  # coverage.py saves what a process ran when that ends by itself
        self._started, self._libraries, self._are_imported = None, None, False
        self._open.close()

    @property
    def _processes(self) -> Processes[Any]:
        if self._started is None:
            set_torch_variables()
            scratch = self._open.enter_context(scratch_folder())
            processes = processes_of(self._settings.isolation, scratch)
            self._started = self._open.enter_context(contextlib.closing(processes))
        return self._started

    # --- recipe files

    def announce(self, paths: Iterable[Path]) -> None:
        """Announce files. Their libraries are imported together."""
        self._announced += paths

    def import_files(self, paths: Mapping[str, Path]) -> dict[str, FileImported | Death]:
        """Import recipe files, several at once. Returns what the process of each says of it, or how that ended."""
        files = [self.file(source, path) for source, path in paths.items()]
        self._announced += paths.values()
        waiting = [file for file in files if file.imported is None or not file.is_ready]
        most = self._settings.jobs or default_jobs()
        while waiting or any(file.is_importing for file in files):
            while waiting and sum(file.is_importing for file in files) < most:
                self._begin_import(waiting.pop(0))
            if any(file.is_importing for file in files):
                self._events += self._news(None)
        outcomes = {file.source: file.death or file.imported for file in files}
        return {source: outcome for source, outcome in outcomes.items() if outcome is not None}

    def file(self, source: str, path: Path) -> _File:
        """A recipe file, whether or not it is imported already."""
        return self._files.setdefault(source, _File(path=path, source=source))

    @property
    def _limits(self) -> Limits:
        """What the import of a file may use."""
        return Limits.of(self._settings).for_import()

    def _begin_import(self, file: _File) -> None:
        """Start the process of a file, or at first the one that it is forked from."""
        file.is_importing, file.imported, file.death = True, None, None
        self._make_room()
        arguments = (file.path, self._settings, self._limits.seconds, self._is_watched)
        try:
            processes = self._processes
            if not isinstance(processes, ForkedProcesses):
                work = functools.partial(recipe_process.import_and_wait, *arguments)
                processes.start(file, work, self._limits, warm_up=self._warm_up, has_inbox=True)
            elif self._are_imported:
                work = functools.partial(recipe_process.serve_recipes, *arguments)
                processes.start_from(_LIBRARIES, file, work, self._limits, can_fork=True)
            elif self._libraries is None:
                self._start_libraries(processes, libraries_of(self._announced, self._settings.root))
        except OSError as error:
            self._handle_death(file, death_without_process(error))

    def _start_libraries(self, processes: ForkedProcesses, libraries: Libraries) -> None:
        exporters = likely_exporters(self._announced, self._settings)
        work = functools.partial(recipe_process.import_libraries, libraries, exporters, self._is_watched)
        processes.start_python(_LIBRARIES, work, Limits(seconds=self._limits.seconds))
        self._libraries = libraries

    def _make_room(self) -> None:
        """End processes of files that have nothing to do, if there are too many."""
        idle = [file for file in self._files.values() if file.is_ready and not file.forks]
        for file in idle[: max(0, len(idle) + 1 - _MOST_FILES)]:
            file.is_ready = False
            self._processes.stop(file)

    def _handle_libraries(self, event: Message | Death) -> None:
        """Handle an event of the process that imports libraries."""
        importing = [file for file in self._files.values() if file.is_importing]
        if not isinstance(event, Death):
            self._are_imported = True
            self._processes.extend(_LIBRARIES, None)
            for file in importing:
                self._begin_import(file)
            return
        had_libraries, self._libraries, self._are_imported = bool(self._libraries), None, False
        try:
            if had_libraries and isinstance(self._processes, ForkedProcesses):
                self._start_libraries(self._processes, ())  # a recipe file that imports the one at fault says so
                return
        except OSError as error:
            event = death_without_process(error)
        for file in importing:
            self._handle_death(file, event)

    def _handle_file(self, file: _File, event: Message | Death) -> None:
        """Handle an event of the process of a file."""
        if not (file.is_importing or file.is_ready):
            return  # it has just been ended
        match event if isinstance(event, Death) else event_of(event):
            case Death() as death:
                self._handle_death(file, death)
            case FileImported() as imported:
                file.is_importing, file.is_ready, file.imported = False, True, imported
                self._processes.extend(file, None)
                printed = "" if file.is_shown else self._processes.printed(file).strip()
                if printed and printed not in self._shown:
                    sys.stderr.write(f"{without_commands(printed)}\n")
                self._shown.add(printed)
                file.is_shown = True
                while file.waiting:
                    file.waiting.pop(next(iter(file.waiting)))()

    def _handle_death(self, file: _File, death: Death) -> None:
        file.is_importing = file.is_ready = False
        file.death = death
        self._events += [(key, death_with_file(death, file.source)) for key in file.waiting]
        file.waiting.clear()

    # --- work with recipes

    def start(self, key: object, source: str, name: str, work: recipe_process.RecipeWork, limits: Limits) -> None:
        """Start a process that does something with a recipe of a file that :meth:`file` returns, once the file is imported."""
        file = self._files[source]
        launch = functools.partial(self._launch, key, file, name, work, limits)
        if file.death is not None:
            self._events.append((key, death_with_file(file.death, file.source)))
        elif file.is_ready:
            launch()
        else:
            file.waiting[key] = launch
            if not file.is_importing:
                self._begin_import(file)

    def start_here(self, key: object, work: Callable[..., None], limits: Limits, warm_up: Callable[[], object] | None) -> None:
        """Start a process that does something with what this process has. Raises ``OSError``."""
        self._processes.start(key, work, limits, warm_up=warm_up, has_inbox=True)

    def _launch(self, key: object, file: _File, name: str, what: recipe_process.RecipeWork, limits: Limits) -> None:
        """Start a process that does something with a recipe of a file that has been imported."""
        processes = self._processes
        work = functools.partial(recipe_process.do_with_recipe, name, what)
        try:
            if isinstance(processes, ForkedProcesses):
                processes.start_from(file, key, work, limits, has_inbox=True)
                file.forks.add(key)
            elif file.is_ready:
                file.is_ready = False
                processes.rename(file, key, limits)
                from onnx_ci.processes.pickling import pickled  # needs cloudpickle

                processes.post(key, message_of(WorkRequested(pickled=base64.b64encode(pickled(work)).decode())))
            else:
                arguments = (file.path, self._settings, self._limits.seconds, self._is_watched)
                again = functools.partial(recipe_process.import_and_do, *arguments, name, what)
                processes.start(key, again, limits, warm_up=self._warm_up, has_inbox=True)
        except (ConnectionError, TimeoutError) as error:  # it has just ended, or something keeps it from answering
            processes.stop(key)
            processes.stop(file)
            self._handle_death(file, Death(cause="crash", message=f"does not answer: {error}", log=""))
            self._events.append((key, death_with_file(file.death or death_without_process(error), file.source)))
        except OSError as error:
            self._events.append((key, death_without_process(error)))

    def wait(self, seconds: float | None = None) -> list[News]:
        """Messages and deaths of the processes that do something with recipes, as soon as there are any."""
        if not self._events:
            self._events += self._news(seconds)  # this can add events of its own
        events, self._events = self._events, []
        return events

    def _news(self, seconds: float | None) -> list[News]:
        """Messages and deaths of the processes that do something with recipes. Those of files and libraries are handled."""
        events = list[News]()
        for key, event in self._processes.wait(seconds):
            if key == _LIBRARIES:
                self._handle_libraries(event)
            elif isinstance(key, _File):
                self._handle_file(key, event)
            elif isinstance(event, Death):
                file = self._without_fork(key)
                # The system ends forks with the process that they were forked from.
                cause = None if file is None else file.death
                events.append((key, event if file is None or cause is None else death_with_file(cause, file.source)))
            else:
                if LAST in event:
                    self._without_fork(key)
                events.append((key, event))
        return events

    def _without_fork(self, key: object) -> _File | None:
        """Forget a fork that has ended. Returns the file from whose process it was forked."""
        for file in self._files.values():
            if key in file.forks:
                file.forks.discard(key)
                return file
        return None

    def post(self, key: object, message: Message) -> None:
        """Put a message into the inbox of a process. Raises ``OSError`` if it is dead."""
        self._processes.post(key, message)

    def extend(self, key: object, seconds: float | None) -> None:
        """Give a process ``seconds`` from now on, or no deadline at all."""
        self._processes.extend(key, seconds)

    def stop(self, key: object) -> None:
        """End a process."""
        self._without_fork(key)
        if not any(file.waiting.pop(key, None) for file in self._files.values()):
            self._processes.stop(key)
