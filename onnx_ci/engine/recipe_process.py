"""In the process of a recipe file: import the file, say what its recipes declare, and have others forked that work with them.

Only libraries are imported in the process that it is forked from. So what a recipe file does to torch reaches its own recipes
and nothing else.
"""

from __future__ import annotations

import base64
import contextlib
import faulthandler
import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from onnx_ci.cache.watch import seen, watch
from onnx_ci.collection.discovery import Catalogue
from onnx_ci.collection.importing import add_pythonpath
from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.settings import Settings
from onnx_ci.engine.events import Conditions, FileImported, Job, LibrariesImported, WorkRequested, message_of
from onnx_ci.errors import RecipeError
from onnx_ci.matrix.scope import scope_of
from onnx_ci.processes.child import Inbox
from onnx_ci.processes.forked import ForkServer
from onnx_ci.processes.supervisor import Send
from onnx_ci.results.json_data import from_json
from onnx_ci.results.records import Problem

_STANDARD_ERROR = 2
_recipes: dict[str, Recipe] = {}
"""The recipes of the file that this process has imported, by name."""
_problems: list[Problem] = []
RecipeWork = Callable[..., None]
"""What is done with a recipe: called with it, a function to send messages and, if it has one, an inbox."""


def import_worker(*, is_watched: bool) -> None:
    """Import what workers need, before the limits of a spawned process count."""
    if is_watched:
        watch()
    from onnx_ci.engine import worker as worker


def run_worker(first: Job, conditions: Conditions, recipe: Recipe, send: Send, inbox: Inbox) -> None:
    """Be a worker; see :func:`onnx_ci.engine.worker.serve`, which needs torch."""
    from onnx_ci.engine.worker import serve

    serve(first, conditions, recipe, send, inbox)


def import_libraries(
    libraries: Sequence[tuple[str, Sequence[str]]], exporters: Iterable[str], is_watched: bool, send: Send, server: ForkServer
) -> None:
    """The main function of the process from which those of recipe files are forked. Names in ``libraries`` may be modules."""
    import_worker(is_watched=is_watched)
    from onnx_ci.pipeline.export.handling import import_quietly, preload

    for exporter in exporters:
        preload(exporter)
    import_quietly(name for name, _ in libraries)
    for name, members in libraries:
        for member in members:
            with contextlib.suppress(BaseException):  # raised again where the recipe file imports it
                getattr(sys.modules[name], member)
    send(message_of(LibrariesImported()))
    server.serve()


def serve_recipes(path: Path, settings: Settings, seconds: float, is_watched: bool, send: Send, server: ForkServer) -> None:
    """The main function of the process of a recipe file, where processes can be forked from it."""
    send(message_of(_import(path, settings, seconds, is_watched=is_watched)))
    server.serve()


def import_and_wait(path: Path, settings: Settings, seconds: float, is_watched: bool, send: Send, inbox: Inbox) -> None:
    """The main function of the spawned process of a recipe file, which is given one thing to do with its recipes."""
    send(message_of(_import(path, settings, seconds, is_watched=is_watched)))
    for request in inbox:
        work: WorkRequested = from_json(WorkRequested, request)
        pickle.loads(base64.b64decode(work.pickled))(send, inbox)
        return


def import_and_do(
    path: Path, settings: Settings, seconds: float, is_watched: bool, name: str, work: RecipeWork, send: Send, inbox: Inbox
) -> None:
    """The main function of a spawned process that imports a recipe file in order to do something with a recipe."""
    _import(path, settings, seconds, is_watched=is_watched)
    do_with_recipe(name, work, send, inbox)


def do_with_recipe(name: str, work: RecipeWork, send: Send, inbox: Inbox) -> None:
    """Do something with a recipe of the file that this process has imported."""
    if name not in _recipes:
        why = _problems[0].message if _problems else "it declares no such recipe any more"
        raise RecipeError(f"the recipe {name!r} is gone since its file was imported first: {why}; run again")
    work(_recipes[name], send, inbox)


def _import(path: Path, settings: Settings, seconds: float, *, is_watched: bool) -> FileImported:
    """Import a recipe file."""
    sys.argv[:] = ["onnx-ci"]  # no recipe depends on how a run is asked for
    add_pythonpath(settings.root)
    if is_watched:
        watch()
    faulthandler.dump_traceback_later(0.9 * seconds, file=_STANDARD_ERROR)  # so that it is known where it hangs
    try:
        recipes, problems = Catalogue(settings).add_file(path)
    finally:
        faulthandler.cancel_dump_traceback_later()
        for stream in (sys.stdout, sys.stderr):  # what was printed is shown once the file is imported
            with contextlib.suppress(Exception):
                stream.flush()
    _recipes.update((each.recipe.name, each.recipe) for each in recipes)
    _problems[:] = problems
    scopes = tuple(scope_of(each, settings) for each in recipes)
    return FileImported(scopes=scopes, problems=tuple(problems), read_set=seen())
