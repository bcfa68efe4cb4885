"""``onnx-ci init``: the first files of a project."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.cli.common import with_exit_code
from onnx_ci.collection.discovery import is_recipe_file, recipe_files
from onnx_ci.config.settings import Settings, find_root, load_settings
from onnx_ci.environment.git import repository_of
from onnx_ci.environment.versions import version_of
from onnx_ci.errors import ConfigurationError, ExitCode
from onnx_ci.text import count, listed, one_line
from onnx_ci.tools.init.first_files import ADDRESS, REF, pytest_ini, recipe_file, template, workflow
from onnx_ci.tools.init.project_scan import ScannedProject, scan
from onnx_ci.tools.observe.observe import ObservedModel, observed_models, recipes_of
from onnx_ci.whole_files import write_whole

_RECIPES = Path("onnx_recipes.py")


@dataclass(frozen=True, kw_only=True)
class NewFile:
    """A file to write."""

    path: Path
    """Relative to the project's folder."""
    text: str
    purpose: str
    """What it is for, in a few words."""
    home: Path
    """If this file exists, the new one is not written: ``path``, or another file that does the same."""


@click.command()
@click.argument("folder", default=".", type=click.Path(path_type=Path))
@click.option("--github/--no-github", default=True, show_default=True, help="Write workflows for GitHub Actions.")
@click.option(
    "--observe",
    metavar="COMMAND",
    help="Run a program, and write recipes for the models that it calls, with its inputs' sizes.",
)
@with_exit_code
def init(folder: Path, github: bool, observe: str | None) -> NoReturn:
    r"""Write a first recipe and workflows into a project.

    The project is read, not imported: the recipe names its models and checkpoints in comments, and runs as it is. One workflow
    runs the recipes, another one comments on pull requests. Existing files are never changed. If all of it exists, nothing is
    written.

    With --observe, a program of the project runs as usual, until it ends or Ctrl-C ends it. The recipes are those of the models
    that it calls: built as it builds them, with inputs as it gives them, and sizes that differ between calls as dynamic axes.

    \b
    Examples:
      onnx-ci init                        onnx_recipes.py and two workflows in .github/workflows
      onnx-ci init --no-github            only onnx_recipes.py
      onnx-ci init --observe "python serve.py"
    """
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {folder}")
    if github and (top := _top_of_repository(folder)) is not None:
        raise ConfigurationError(
            f"GitHub only reads workflows at the root of a repository, which is {top}; "
            "run onnx-ci init there, or leave out the workflows with --no-github"
        )
    settings = load_settings(find_root(folder))
    project = scan(folder)
    models = None if observe is None else observed_models(observe, folder)
    files = list(_files(folder, project, models, settings, github=github))
    new_files = [file for file in files if not os.path.lexists(folder / file.home)]
    _write(folder, new_files)
    for file in files:
        if file in new_files:
            click.echo(f"wrote {file.path}: {file.purpose}")
        else:
            because = "which exists" if file.home == file.path else f"which takes the place of {file.path}"
            click.echo(f"left alone {one_line(str(file.home))}, {because}")
    if not new_files:
        click.echo("\nnothing was written: all of it exists")
    if models is not None and _RECIPES not in {file.path for file in new_files}:
        click.echo(f"\nadd to your recipes:\n\n{files[0].text}")
    click.echo("\nnext:")
    is_recipe = is_recipe_file((folder / _RECIPES).absolute(), settings)
    for step in _next_steps(new_files, project, is_recipe=is_recipe, is_example=models is None):
        click.echo(f"  - {step}")
    sys.exit(ExitCode.PASSED)


def _files(
    folder: Path, project: ScannedProject, models: Sequence[ObservedModel] | None, settings: Settings, *, github: bool
) -> Iterator[NewFile]:
    """The files that fit the project in ``folder``, the recipes first.

    Args:
        folder: the folder of the project.
        project: what was found in it.
        models: the models that were observed, if any were.
        settings: the settings of the project.
        github: whether it gets workflows.
    """
    existing = next(recipe_files(folder, settings), None)
    yield NewFile(
        path=_RECIPES,
        home=_RECIPES if existing is None else existing.relative_to(folder.absolute()),
        text=recipe_file(project) if models is None else recipes_of(models),
        purpose=_purpose(project) if models is None else f"recipes for {listed([model.name for model in models])}",
    )
    if project.unreachable and project.pytest_file is None:
        path, folders = Path("pytest.ini"), listed(project.unreachable)
        yield NewFile(path=path, home=path, text=pytest_ini(project.unreachable), purpose=f"recipes can import from {folders}")
    if github:
        yield from _workflows(project)


def _workflows(project: ScannedProject) -> Iterator[NewFile]:
    """The workflow with the gate and the one that comments on pull requests."""
    gate, verdict = (Path(".github", "workflows", name) for name in ("onnx-export.yml", "onnx-verdict.yml"))
    gate_home, verdict_home = (Path(name) if name else None for name in (project.workflows.gate, project.workflows.verdict))
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    yield NewFile(
        path=gate,
        home=gate_home or gate,
        text=workflow(project, python=python, torch=version_of("torch")),
        purpose="runs the recipes on each push and pull request, and uploads the report",
    )
    if gate_home in (None, gate) or verdict_home is not None:  # it reads what the workflow above uploads
        yield NewFile(
            path=verdict,
            home=verdict_home or verdict,
            text=template("onnx-verdict.yml"),
            purpose="comments on pull requests that change an export",
        )


def _purpose(project: ScannedProject) -> str:
    """What the recipe file is, and what it names of the project."""
    named = [
        count(len(paths), noun) for paths, noun in ((project.models, "model"), (project.checkpoints, "checkpoint")) if paths
    ]
    return "a recipe that runs as it is" + (f", and {listed(named)} of this project in comments" if named else "")


def _top_of_repository(folder: Path) -> Path | None:
    """The root of the Git repository that contains ``folder``, if that is another folder."""
    top = repository_of(folder)
    return None if top == folder.resolve() else top


def _write(folder: Path, files: Sequence[NewFile]) -> None:
    """Write files that do not exist, either all or none."""
    written: list[Path] = []
    try:
        for file in files:
            for parent in reversed(file.path.parents):
                if (folder / parent).is_symlink() and parent != Path():
                    raise ConfigurationError(f"{parent} is a symbolic link; onnx-ci init only writes inside the project")
                (folder / parent).mkdir(exist_ok=True)
            write_whole(folder / file.path, [file.text.encode()], is_new=True)
            written.append(folder / file.path)
    except BaseException as error:
        for path in written:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ConfigurationError(f"{file.path} cannot be written: {error.strerror or error}; nothing was written") from None
        raise


def _next_steps(new_files: Sequence[NewFile], project: ScannedProject, *, is_recipe: bool, is_example: bool) -> Iterator[str]:
    has_new_recipe = _RECIPES in {file.path for file in new_files}
    if has_new_recipe and not is_recipe:
        yield f"add {_RECIPES} to recipe-files in [tool.onnx-ci] of pyproject.toml, which does not include it"
    if has_new_recipe and is_example:
        yield "run the example: onnx-ci run"
        yield f"replace the model in {_RECIPES} with your own"
    else:
        yield "run the recipes: onnx-ci run"
    if project.unreachable and project.pytest_file is not None:
        folders = listed(project.unreachable)
        yield f"let recipes import your models: install them, or add {folders} to pythonpath in {project.pytest_file}"
    if unfinished := [str(file.path) for file in new_files if ADDRESS in file.text]:
        yield f"replace {ADDRESS} and {REF} with your onnx-ci repository and commit in {listed(unfinished)}"
