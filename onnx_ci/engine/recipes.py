"""The recipes of a run, as the process that decides has them: what they declare, and where something can be done with them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from onnx_ci.cache.verdicts import VerdictCache
from onnx_ci.collection import discovery
from onnx_ci.collection.importing import add_pythonpath
from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.settings import TABLE, Settings, own_configuration
from onnx_ci.engine.deaths import problem_of_death
from onnx_ci.engine.events import FileImported
from onnx_ci.engine.file_processes import FileProcesses
from onnx_ci.engine.recipe_process import RecipeWork
from onnx_ci.matrix.plan import CellSpec, CellTask, Matrix, plan, with_recipe
from onnx_ci.matrix.scope import RecipeScope, scope_of, unmatched
from onnx_ci.processes.limits import Limits
from onnx_ci.processes.run_in_child import messages_of, must_start
from onnx_ci.processes.supervisor import LAST, Death, Message
from onnx_ci.results.json_data import from_json, to_json
from onnx_ci.results.records import Problem, SettingSource
from onnx_ci.text import listed_shortly

_Key = TypeVar("_Key")


class Recipes(contextlib.AbstractContextManager["Recipes"]):
    """The recipes of a run, by name, and what is wrong with recipe files; a context manager that ends their processes.

    Attributes:
        scopes: what the recipes declare, by name, in order.
        problems: what is wrong with recipe files.
        processes: where something is done with them.
    """

    def __init__(self, settings: Settings, *, cache: VerdictCache | None = None) -> None:
        self.settings = settings
        self.scopes: dict[str, RecipeScope] = {}
        self.problems: list[Problem] = []
        self.processes = FileProcesses(settings, is_watched=cache is not None)
        self._cache = cache
        self._sources: set[str] = set()
        """The files that have recipes, also of other files, or problems of their own."""
        self._objects: dict[str, discovery.Found] = {}
        """The recipes that this process has, by name."""
        self._catalogue = discovery.Catalogue(settings)
        """The recipe files that this process imports, without isolation."""

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes. What the recipes declare is still known, and new processes can be started."""
        self.processes.close()

    def add(self, paths: Sequence[Path], *, named: Collection[Path] = ()) -> tuple[list[RecipeScope], list[Problem]]:
        """Add the recipes of files. Returns the new recipes and problems.

        A run has one configuration. Files that belong to another one are problems.
        """
        packages = discovery.package_folders(self.settings)  # these were asked for, wherever they are
        of_project = [path for path in paths if not any(path.is_relative_to(folder) for folder in packages)]
        configurations = {path: own_configuration(path, self.settings.root) for path in of_project}
        paths = [path for path in paths if configurations.get(path) is None]
        new, problems = self._import(paths, named)
        problems += self._of_other_configurations(configurations)
        self.problems += problems
        return new, problems

    def _of_other_configurations(self, configurations: Mapping[Path, Path | None]) -> Iterator[Problem]:
        """A problem for each configuration of which files were to be added; the files are left out."""
        files: dict[Path, list[str]] = {}
        for path, folder in configurations.items():
            if folder is not None:
                files.setdefault(folder, []).append(discovery.relative_source(path, self.settings.root))
        for folder, sources in files.items():
            self._sources.update(sources)
            place = Path(os.path.relpath(folder)).as_posix()
            message = (
                f"has [{TABLE}] settings of its own, which a run in another folder does not read, so {listed_shortly(sources)} "
                f"did not run: cd {shlex.quote(place)} && onnx-ci run"
            )
            file = discovery.relative_source(folder / "pyproject.toml", self.settings.root)
            yield Problem(source=file, message=message, file=file, line=None)

    def add_object(self, found: discovery.Found) -> None:
        """Add a recipe that this process has."""
        self._objects[found.recipe.name] = found
        self.scopes[found.recipe.name] = scope_of(found, self.settings)

    def recipe_here(self, name: str) -> Recipe | None:
        """The recipe of this name, if this process has it."""
        entry = self._objects.get(name)
        return None if entry is None else entry.recipe

    def completed(self, spec: CellSpec) -> CellSpec:
        """A cell with its recipe, if this process has it."""
        recipe = None if isinstance(spec, CellTask) else self.recipe_here(spec.cell.recipe)
        return spec if recipe is None else with_recipe(spec, recipe, self.settings)

    def plan(self, names: Iterable[str] | None = None) -> Matrix:
        """The cells of the recipes of these names, or of all of them."""
        chosen = self.scopes if names is None else names
        return plan((self._objects.get(name) or self.scopes[name] for name in chosen), self.settings)

    def unused(self, paths: Sequence[Path], *, is_whole: bool, others: Iterable[Path] = ()) -> list[Problem]:
        """What was asked for and is not there: paths, patterns, globs and tags that name nothing although others do.

        The front-end uses or leaves out the ``others``, whether or not they have recipes.
        """
        if not self.scopes:
            return []  # the front-ends say why nothing runs
        used = {*self._sources, *(discovery.relative_source(path, self.settings.root) for path in others)}
        problems = []
        for path in paths:
            folder = discovery.relative_source(path.absolute(), self.settings.root)
            if not any(source == folder or Path(source).is_relative_to(folder) for source in used):
                patterns = ", ".join(self.settings.recipe_files)
                message = f"no recipe was found there; recipe files are {patterns} (recipe-files), or files given as arguments"
                problems.append(Problem(source=str(path), message=message))
        is_chosen = self.settings.origins["recipe_files"].source is not SettingSource.DEFAULT
        problems += [
            Problem(source="--recipe-files", message=f"{pattern!r} matches no file with a recipe")
            for pattern in (self.settings.recipe_files if is_chosen and is_whole else ())
            if not any(discovery.matches(pattern, source) for source in used)
        ]
        return problems + unmatched(tuple(self.scopes.values()), self.settings, is_whole=is_whole)

    def _import_here(self, path: Path, *, is_named: bool) -> FileImported:
        """Import a file in this process, which thereby has its recipes."""
        add_pythonpath(self.settings.root)
        entries, problems = self._catalogue.add_file(path, is_named=is_named)
        self._objects.update((entry.recipe.name, entry) for entry in entries)
        self._sources.add(discovery.relative_source(path, self.settings.root))
        scopes = tuple(scope_of(entry, self.settings) for entry in entries)
        return FileImported(scopes=scopes, problems=tuple(problems), read_set=None)

    def _import(self, paths: Iterable[Path], named: Collection[Path]) -> tuple[list[RecipeScope], list[Problem]]:
        """Import files in processes of their own, except those of which the cache knows what they declare."""
        sources = {discovery.relative_source(path, self.settings.root): path for path in paths}
        outcomes: dict[str, FileImported | Death] = {}
        if self.settings.isolation == "none":
            outcomes = {source: self._import_here(path, is_named=path in named) for source, path in sources.items()}
        else:
            for source, path in sources.items():
                self.processes.file(source, path)
            outcomes = {source: outcome for source in sources if (outcome := self._cached(source)) is not None}
            outcomes |= self.processes.import_files({each: path for each, path in sources.items() if each not in outcomes})
        new, problems = list[RecipeScope](), list[Problem]()
        for source, path in sources.items():
            match outcomes[source]:
                case Death() as death:
                    scopes, problems_of_file = tuple[RecipeScope](), (problem_of_death(source, death, self.settings.root),)
                case FileImported(scopes=scopes, problems=problems_of_file, read_set=read_set):
                    if self._cache is not None and read_set is not None and not problems_of_file:
                        self._cache.keep_recipes(source, to_json(scopes), read_set)
            if scopes or problems_of_file:
                self._sources.add(source)
            problems += problems_of_file
            for scope in scopes:
                first = self.scopes.setdefault(scope.name, dataclasses.replace(scope, is_named=path in named))
                if first.source == source and _origin(first) == _origin(scope):
                    new.append(first)
                elif _origin(first) != _origin(scope):  # otherwise both files import the same one
                    message = discovery.used_twice(scope.name, *(f"{each.file}, line {each.line}" for each in (scope, first)))
                    problems.append(Problem(source=source, message=message, file=scope.file, line=scope.line))
        return new, problems

    def _cached(self, source: str) -> FileImported | Death | None:
        """What the import of a file would say, if the cache knows that."""
        data = None if self._cache is None else self._cache.recipes(source)
        with contextlib.suppress(ValueError):  # the cache is data from outside
            return FileImported(scopes=from_json(tuple[RecipeScope, ...], data), problems=(), read_set=None)
        return None

    def start(
        self,
        key: object,
        name: str,
        work: RecipeWork,
        limits: Limits,
        *,
        recipe: Recipe | None = None,
        warm_up: Callable[[], object] | None = None,
    ) -> None:
        """Start a process that does something with a recipe, which this process has or a file declares. Raises ``OSError``."""
        recipe = recipe or self.recipe_here(name)
        if recipe is None:
            self.processes.start(key, self.scopes[name].source, name, work, limits)
        else:
            self.processes.start_here(key, functools.partial(work, recipe), limits, warm_up)

    def run_all(
        self, works: Mapping[_Key, tuple[str, RecipeWork]], limits: Limits, *, jobs: int = 1
    ) -> Iterator[tuple[_Key, Message | Death]]:
        """Do something with recipes, each in a process of its own, and yield its messages or its death.

        Without isolation, it is done in this process, which has the recipes.
        Works are called with the recipe that they name, and a function to send messages; the last one has the key ``LAST``.
        """
        if self.settings.isolation == "none":
            for key, (name, work) in works.items():
                yield from ((key, message) for message in messages_of(functools.partial(work, self._objects[name].recipe)))
            return
        waiting = list(works.items())
        running: dict[object, _Key] = {}
        with must_start():
            while waiting or running:
                while waiting and len(running) < jobs:
                    key, (name, work) = waiting.pop(0)
                    running["work", key] = key
                    self.start(("work", key), name, functools.partial(_without_inbox, work), limits)
                for working, event in self.processes.wait():
                    if working in running:
                        yield running[working], event
                        if isinstance(event, Death) or LAST in event:
                            del running[working]


def _origin(scope: RecipeScope) -> tuple[str, int, str]:
    """What two recipes of one name have in common if they are the same one, which two files import."""
    return scope.file, scope.line, scope.declared_in


def _without_inbox(work: RecipeWork, recipe: Recipe, send: Callable[[Message], None], inbox: object) -> None:
    work(recipe, send)


def find_recipes(settings: Settings, paths: Iterable[Path] = (), *, cache: VerdictCache | None = None) -> Recipes:
    """Every recipe in ``paths``, or in the settings' recipe files and packages if no path is given."""
    paths = tuple(paths)
    files = list(discovery.all_recipe_files(settings, paths))
    recipes = Recipes(settings, cache=cache)
    with contextlib.ExitStack() as undo:
        undo.callback(recipes.close)
        recipes.add(files, named={path.absolute() for path in paths if path.is_file()})
        recipes.problems += recipes.unused(paths, is_whole=not paths)
        undo.pop_all()
    return recipes
