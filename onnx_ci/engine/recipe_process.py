"""In the process of a recipe file: import the file, say what its recipes declare, and have others forked that work with them.

Only libraries are imported in the process that it is forked from. So what a recipe file does to Python, to torch or to onnx-ci
reaches its own recipes and nothing else.
"""

from __future__ import annotations

import base64
import builtins
import contextlib
import faulthandler
import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from onnx_ci.cache.watch import ReadSet, seen, watch
from onnx_ci.collection.discovery import Catalogue, Found, relative_source
from onnx_ci.collection.pythonpath import add_pythonpath
from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.settings import Settings
from onnx_ci.errors import RecipeError
from onnx_ci.matrix.scope import scope_of
from onnx_ci.owners import LIBRARIES
from onnx_ci.processes.child import Inbox
from onnx_ci.processes.forked import ForkServer
from onnx_ci.processes.supervisor import Send
from onnx_ci.results.json_data import to_json
from onnx_ci.results.records import Problem
from onnx_ci.text import listed_shortly

READY, DECLARED, WORK = "ready", "declared", "work"
"""The keys of messages: libraries are imported; what a file declares; what a spawned process is to do."""
_STANDARD_ERROR = 2
_loads = pickle.loads
_recipes: dict[str, Recipe] = {}
"""The recipes of the file that this process has imported, by name."""
_problems: list[Problem] = []
"""What is wrong with the file."""
_is_watched = False

RecipeWork = Callable[..., None]
"""What is done with a recipe: called with it, a function to send messages and, if it has one, an inbox."""


def import_worker() -> None:
    """Import what workers need, before the limits of a spawned process count."""
    from onnx_ci.engine import worker as worker


def import_libraries(
    libraries: Sequence[tuple[str, Sequence[str]]], exporters: Iterable[str], send: Send, server: ForkServer
) -> None:
    """The main function of the process from which those of recipe files are forked.

    Args:
        libraries: the modules that recipe files import, each with the names that they import from it, which may be modules or
            imported only when they are asked for.
        exporters: those that cells are expected to need.
    """
    from onnx_ci.engine import worker as worker
    from onnx_ci.pipeline.export.handling import import_quietly, preload

    for exporter in exporters:
        preload(exporter)
    import_quietly(name for name, _ in libraries)
    for name, members in libraries:
        for member in members:
            with contextlib.suppress(BaseException):  # raised again where the recipe file imports it
                getattr(sys.modules[name], member)
    send({READY: True})
    server.serve()


def serve_recipes(path: Path, settings: Settings, seconds: float, is_watched: bool, send: Send, server: ForkServer) -> None:
    """The main function of the process of a recipe file, where processes can be forked from it."""
    send({DECLARED: _declare(path, settings, seconds, is_watched=is_watched)})
    server.serve()


def import_and_wait(path: Path, settings: Settings, seconds: float, is_watched: bool, send: Send, inbox: Inbox) -> None:
    """The main function of the spawned process of a recipe file, which is given one thing to do with its recipes."""
    send({DECLARED: _declare(path, settings, seconds, is_watched=is_watched)})
    for request in inbox:
        _loads(base64.b64decode(request[WORK]))(send, inbox)
        return


def import_and_do(
    path: Path, settings: Settings, seconds: float, is_watched: bool, name: str, work: RecipeWork, send: Send, inbox: Inbox
) -> None:
    """The main function of a spawned process that imports a recipe file in order to do something with a recipe."""
    _declare(path, settings, seconds, is_watched=is_watched)
    do_with_recipe(name, work, send, inbox)


def do_with_recipe(name: str, work: RecipeWork, send: Send, inbox: Inbox) -> None:
    """Do something with a recipe of the file that this process has imported."""
    if name not in _recipes:
        why = _problems[0].message if _problems else "it declares no such recipe any more"
        raise RecipeError(f"the recipe {name!r} is gone since its file was imported first: {why}; run again")
    work(_recipes[name], send, inbox)


def _declare(path: Path, settings: Settings, seconds: float, *, is_watched: bool) -> dict[str, Any]:
    """Import a recipe file, and return what its recipes declare and what is wrong with it."""
    sys.argv[:] = ["onnx-ci"]  # no recipe depends on how a run is asked for
    add_pythonpath(settings.root)
    if is_watched:
        _begin_to_watch(settings.root)
    python = _Python()
    recipes, problems = list[Found](), list[Problem]()
    faulthandler.dump_traceback_later(0.9 * seconds, file=_STANDARD_ERROR)  # so that it is known where it hangs
    try:
        recipes, problems = Catalogue(settings).add_file(path)
    except BaseException:
        python.put_back()
        if not python.lost:
            raise
    finally:
        python.put_back()
        faulthandler.cancel_dump_traceback_later()
        for stream in (sys.stdout, sys.stderr):  # what was printed is shown once the file is imported
            with contextlib.suppress(Exception):
                stream.flush()
    if python.lost:
        message = f"cannot be used: it leaves Python without {listed_shortly(python.lost)}"
        problem = Problem(source=relative_source(path, settings.root), message=message, file=None, line=None)
        recipes, problems = [], [problem]
    _recipes.update((each.recipe.name, each.recipe) for each in recipes)
    _problems[:] = problems
    return {
        "scopes": [to_json(scope_of(each, settings)) for each in recipes],
        "problems": to_json(problems),
        "seen": seen().as_json() if is_watched else None,
    }


_UNNEEDED = frozenset({"print", "input", "breakpoint", "help", "exit", "quit", "copyright", "credits", "license"})
"""Builtins that a recipe file may take away."""


class _Python:
    """What nothing works without in this process, and a recipe file can take away while it is imported."""

    def __init__(self) -> None:
        self._builtins = {name: value for name, value in vars(builtins).items() if callable(value) and name not in _UNNEEDED}
        needed = sys.stdlib_module_names | LIBRARIES
        self._modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in needed}
        self._lists: dict[str, list[Any]] = {
            "sys.path": sys.path,
            "sys.meta_path": sys.meta_path,
            "sys.path_hooks": sys.path_hooks,
        }
        self._entries = {name: [*entries] for name, entries in self._lists.items()}
        self._callable = callable
        self.lost: list[str] = []

    def put_back(self) -> None:
        """Put back what was taken away, and note its names. Without builtins, as long as they may be gone."""
        there = builtins.__dict__
        for name, value in self._builtins.items():
            if name not in there or not self._callable(there[name]):
                there[name] = value
                self.lost += [f"builtins.{name}"]
        if "sys" not in sys.modules:
            self.lost += ["sys.modules"]
            sys.modules.update(self._modules)
        for name, module in self._modules.items():
            if module is not None and name in sys.modules and sys.modules[name] is None:
                sys.modules[name] = module
                self.lost += [name]
        for name, entries in self._entries.items():
            if entries and not self._lists[name]:
                self._lists[name][:] = entries
                self.lost += [name]


def _begin_to_watch(root: Path) -> None:
    global _is_watched
    watch(root)
    _is_watched = True


def seen_so_far() -> ReadSet | None:
    """What this process and its parents have read that verdicts depend on; ``None`` if that is not recorded."""
    return seen() if _is_watched else None
