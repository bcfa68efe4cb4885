"""Find recipes in files and packages, and make sure that their names are unique.

The files are imported in this process. With isolation, each recipe file has a process of its own. A file that cannot be used
becomes a :class:`~onnx_ci.results.records.Problem`. The recipes of all other files stay usable.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from onnx_ci.collection.importing import import_file, not_on_path
from onnx_ci.collection.recipe import FOR_EACH, Declaration, Recipe, declarations
from onnx_ci.config.settings import Settings
from onnx_ci.errors import (
    ConfigurationError,
    RecipeError,
    describe_exception,
    describe_place,
    nearest_file,
    place_of,
    working_directory,
)
from onnx_ci.owners import Owner, owner_of, spec_of
from onnx_ci.processes.signals import no_forks_leave
from onnx_ci.results.records import Problem

SKIPPED_FOLDERS = ("*.egg", ".*", "_darcs", "build", "CVS", "dist", "node_modules", "venv", "{arch}", "__pycache__")
"""Folders that are not searched for recipe files: those that pytest skips by default."""


@dataclass(frozen=True)
class Found:
    """A recipe, and where it was found."""

    recipe: Recipe
    source: str
    """The file, relative to the project's root, with forward slashes."""
    is_named: bool = False
    """Whether the file was named, and not only a folder above it."""


@contextlib.contextmanager
def _folder_stays() -> Iterator[None]:
    """Return to the working directory of before if the block changes to a folder that is removed, where nothing is found."""
    before = working_directory()
    try:
        yield
    finally:
        try:
            Path.cwd()
        except FileNotFoundError:
            os.chdir(before)


@dataclass
class Catalogue:
    """The recipes of the files that this process imports, whose names are unique."""

    settings: Settings
    recipes: dict[str, Found] = field(default_factory=dict)

    def add_file(self, path: Path, *, is_named: bool = False) -> tuple[list[Found], list[Problem]]:
        """Import a recipe file and add its recipes, sorted by line. Returns the new recipes and problems."""
        source = relative_source(path, self.settings.root)
        count_before = len(declarations())
        try:
            with no_forks_leave(), _folder_stays():
                module = import_file(path)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a recipe file is user code and may raise anything, such as SystemExit
            return [], [self._problem(source, _import_message(error, self.settings.root), place_of(error))]
        added, problems = [], self._marked(source, path, module)
        recipes = self._recipes_of(module, declarations(count_before))
        for recipe in sorted(recipes, key=lambda recipe: (recipe.file != str(path), recipe.line)):
            first = self.recipes.get(recipe.name)
            if first is None:
                self.recipes[recipe.name] = Found(recipe, source, is_named)
                added.append(self.recipes[recipe.name])
            elif not _is_same_definition(first.recipe, recipe):
                root = self.settings.root
                places = [f"{relative_source(Path(each.file), root)}, line {each.line}" for each in (recipe, first.recipe)]
                message = used_twice(recipe.name, *places)
                problems.append(self._problem(source, message, (recipe.file, recipe.line)))
        return added, problems

    def _recipes_of(self, module: ModuleType, new: Iterable[Declaration]) -> list[Recipe]:
        """The recipes of a recipe file, even if it keeps no names for them.

        They are those that its own code declares, those that it imports by name, and those of the project's modules that were
        imported with it. Modules that are recipe files themselves are left out.
        """
        declared = [each.recipe for each in declarations() if each.namespace is vars(module)]
        held = [value for value in vars(module).values() if isinstance(value, Recipe)]
        of_other_modules = [
            each.recipe
            for each in new
            if each.file
            and Path(each.file).is_relative_to(self.settings.root)
            and owner_of(each.file) is Owner.PROJECT
            and not is_recipe_file(Path(each.file), self.settings)
        ]
        by_identity = {id(recipe): recipe for recipe in (*declared, *held, *of_other_modules)}
        return list(by_identity.values())

    def _marked(self, source: str, path: Path, module: ModuleType) -> list[Problem]:
        """Problems with recipes that are decorated with a mark of pytest."""
        problems = []
        marks = {name: value for name, value in vars(module).items() if type(value).__name__ == "MarkDecorator"}
        for name, mark in marks.items():
            if marked := [argument for argument in mark.args if isinstance(argument, Recipe)]:
                message = f"the mark of pytest on {name} does not apply to recipes; {FOR_EACH}, and tags=... to select it"
                problems.append(self._problem(source, message, (str(path), marked[0].line)))
        return problems

    def _problem(self, source: str, message: str, place: tuple[str, int] | None) -> Problem:
        file, line = (None, None) if place is None else (relative_source(Path(place[0]), self.settings.root), place[1])
        return Problem(source=source, message=message, file=file, line=line)


def used_twice(name: str, here: str, there: str) -> str:
    """The message about a recipe whose name another recipe has, given the file and the line of each."""
    return (
        f"the recipe name {name!r} ({here}) is already used by {there}; "
        f"give one of them another name with @onnx_ci.recipe(name=...), or {FOR_EACH}"
    )


def all_recipe_files(settings: Settings, paths: Iterable[Path] = ()) -> Iterator[Path]:
    """The recipe files in ``paths``, or in the project and its packages. Raises ``ConfigurationError`` if one is missing."""
    places = list(paths) or [settings.root, *package_folders(settings)]
    for place in places:
        try:
            exists = place.exists()
        except OSError as error:  # such as a name that is too long
            raise ConfigurationError(f"{place} is not a valid path: {error.strerror}") from None
        if not exists:
            raise ConfigurationError(f"there is no {place}{nearest_file(place)}")
    for place in places:
        yield from recipe_files(place, settings)


def recipe_files(place: Path, settings: Settings) -> Iterator[Path]:
    """``place`` itself if it is a file, or else the files in it that match the settings' patterns, sorted."""
    if place.is_file():
        yield place.absolute()
        return
    for folder, subfolders, files in os.walk(place.absolute()):
        subfolders[:] = sorted(
            name
            for name in subfolders
            if not any(fnmatch.fnmatch(name, pattern) for pattern in SKIPPED_FOLDERS)
            and not Path(folder, name, "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            path = Path(folder, name)
            if is_recipe_file(path, settings):
                yield path


def is_recipe_file(path: Path, settings: Settings) -> bool:
    """Whether ``path`` matches a pattern in the settings or is a module of one of their packages."""
    if path.suffix != ".py":
        return False
    if any(path.is_relative_to(folder) for folder in package_folders(settings)):
        return not path.name.startswith("_")
    source = relative_source(path, settings.root)
    for pattern in settings.recipe_files:
        if matches(pattern, source):
            # A link can lead nowhere, as Emacs' .#net.py does; a conftest.py that does not mention onnx_ci has no recipes.
            return path.is_file() and (path.name != "conftest.py" or b"onnx_ci" in path.read_bytes())
    return False


def matches(pattern: str, source: str) -> bool:
    """Whether a pattern of the settings matches a file: its path in the project, or only its name if it has no slash."""
    name = source if "/" in pattern else source.rpartition("/")[2]
    return any(fnmatch.fnmatch(name, each) for each in (pattern, pattern.replace("**/", "")))  # **/ can be no folder, too


def package_folders(settings: Settings) -> list[Path]:
    """Where the settings' packages are installed. Raises ``ConfigurationError`` if one is not."""
    folders: list[Path] = []
    for package in settings.packages:
        spec = spec_of(package)
        if spec is None or (spec.origin is None and not spec.submodule_search_locations):
            raise ConfigurationError(f"{settings.origins['packages']}: the package {package!r} is not installed")
        locations = spec.submodule_search_locations or [str(spec.origin)]
        folders.extend(Path(location).resolve() for location in locations)
    return folders


def relative_source(path: Path, root: Path) -> str:
    """``path`` as in the ids of cells: relative to ``root``, with forward slashes."""
    return Path(os.path.relpath(path, root)).as_posix()


def _is_same_definition(first: Recipe, second: Recipe) -> bool:
    """Whether two recipes come from one definition, because a module was imported under two names.

    Two recipes of one module have two definitions, even at the same line: a function may have created both.
    """
    if first.function.__module__ == second.function.__module__:
        return first is second
    return (os.path.realpath(first.file), first.line) == (os.path.realpath(second.file), second.line)


def _import_message(error: BaseException, root: Path) -> str:
    if isinstance(error, RecipeError):
        return f"{error}{describe_place(error)}"
    if type(error).__name__ == "Skipped":
        return f"the file skips itself ({error}), so its recipes are never checked; skip inside a recipe instead"
    advice = ""
    if isinstance(error, ModuleNotFoundError):
        advice = f"; {not_on_path(error.name or '', root) or 'install it, or import it inside the recipe'}"
    return f"cannot be imported: {describe_exception(error)}{advice}"
