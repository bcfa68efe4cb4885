"""``onnx-ci init``: the first files of a project."""

from __future__ import annotations

import configparser
import contextlib
import os
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.cli.common import with_exit_code
from onnx_ci.cli.first_files import ADDRESS, REF, pytest_ini, recipe_file, template, workflow
from onnx_ci.cli.project_scan import ScannedProject, read_toml, scan
from onnx_ci.collection.discovery import is_recipe_file, recipe_files
from onnx_ci.config.settings import Settings, find_root, load_settings
from onnx_ci.environment.git import repository_of
from onnx_ci.environment.versions import version_of
from onnx_ci.errors import ConfigurationError, ExitCode
from onnx_ci.text import count, listed, one_line
from onnx_ci.whole_files import write_whole


@dataclass(frozen=True, kw_only=True)
class NewFile:
    """A file to write."""

    path: Path
    """Relative to the project's folder."""
    text: str
    purpose: str
    """What it is for, in a few words."""
    home: Path
    """If this file exists, the new one is not written: ``path``, or another file that configures the tool."""
    is_shared: bool = False
    """Whether the text can be added to an existing file."""


@click.command()
@click.argument("folder", default=".", type=click.Path(path_type=Path))
@click.option("--github/--no-github", default=True, show_default=True, help="Write a workflow for GitHub Actions.")
@click.option(
    "--pre-commit/--no-pre-commit",
    default=False,
    show_default=True,
    help="Write a pre-commit configuration with the hooks of onnx-ci.",
)
@click.option("--tox/--no-tox", default=False, show_default=True, help="Write a tox.ini with one environment for each opset.")
@with_exit_code
def init(folder: Path, github: bool, pre_commit: bool, tox: bool) -> NoReturn:
    r"""Write a first recipe and a workflow into a project.

    The project is read, not imported: the recipe names its models and checkpoints in comments, and runs as it is. One workflow
    runs the recipes, another one comments on pull requests. Existing files are never changed; their names are printed, with
    what could be added to them. If all of it exists, nothing is written.

    \b
    Examples:
      onnx-ci init                        onnx_recipes.py and two workflows in .github/workflows
      onnx-ci init --no-github            only onnx_recipes.py
      onnx-ci init --pre-commit --tox     also .pre-commit-config.yaml and tox.ini
    """
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {folder}")
    if github and (top := _top_of_repository(folder)) is not None:
        raise ConfigurationError(
            f"GitHub only reads workflows at the root of a repository, which is {top}; "
            "run onnx-ci init there, or leave out the workflow with --no-github"
        )
    settings = load_settings(find_root(folder))
    project = scan(folder)
    files = list(_files(folder, project, settings, github=github, pre_commit=pre_commit, tox=tox))
    written = _write(folder, [file for file in files if not os.path.lexists(folder / file.home)])
    for file in files:
        if file in written:
            click.echo(f"wrote {file.path}: {file.purpose}")
        else:
            _show_left_alone(file, folder)
    if not written:
        click.echo("\nnothing was written: all of it exists")
    click.echo("\nnext:")
    for step in _next_steps(written, project, is_recipe=is_recipe_file((folder / "onnx_recipes.py").absolute(), settings)):
        click.echo(f"  - {step}")
    sys.exit(ExitCode.PASSED)


def _show_left_alone(file: NewFile, folder: Path) -> None:
    """Say which file is there already and, if onnx-ci is still missing from it, what could be added."""
    home = one_line(str(file.home))
    is_to_add = file.is_shared and not _mentions_onnx_ci(folder / file.home)
    because = "which exists" if file.home == file.path or file.is_shared else f"which takes the place of {file.path}"
    click.echo(f"left alone {home}, {because}" + (f"; a new {file.path} would contain:" if is_to_add else ""))
    if is_to_add:
        click.echo("\n" + textwrap.indent(file.text, "    "))


def _files(
    folder: Path, project: ScannedProject, settings: Settings, *, github: bool, pre_commit: bool, tox: bool
) -> Iterator[NewFile]:
    """The files that fit the project in ``folder``."""
    recipes = Path("onnx_recipes.py")
    existing = next(recipe_files(folder, settings), None)
    yield NewFile(
        path=recipes,
        home=recipes if existing is None else existing.relative_to(folder.absolute()),
        text=recipe_file(project),
        purpose=_purpose(project),
    )
    if project.unreachable and project.pytest_file is None:
        name, folders = Path("pytest.ini"), listed(project.unreachable)
        yield NewFile(path=name, home=name, text=pytest_ini(project.unreachable), purpose=f"recipes can import from {folders}")
    if github:
        yield from _workflows(project)
    if pre_commit:
        hooks = Path(".pre-commit-config.yaml")
        text = template("pre-commit-config.yaml")
        yield NewFile(path=hooks, home=hooks, text=text, purpose="hooks of onnx-ci", is_shared=True)
    if tox:
        home = Path(_home_of_tox(folder))
        yield NewFile(
            path=Path("tox.ini"), home=home, text=template("tox.ini"), purpose="an environment for each opset", is_shared=True
        )


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
    if gate_home in (None, gate) or verdict_home is not None:  # it works with the uploads of that workflow
        yield NewFile(
            path=verdict,
            home=verdict_home or verdict,
            text=template("onnx-verdict.yml"),
            purpose="comments on pull requests that change an export",
        )


def _purpose(project: ScannedProject) -> str:
    """What the recipe file is, and what it names of the project."""
    named = [
        count(len(found), noun) for found, noun in ((project.models, "model"), (project.checkpoints, "checkpoint")) if found
    ]
    return "a recipe that runs as it is" + (f", and {listed(named)} of this project in comments" if named else "")


def _home_of_tox(folder: Path) -> str:
    """The file that configures tox already, which a new ``tox.ini`` would override."""
    for name in ("tox.ini", "tox.toml"):
        if os.path.lexists(folder / name):
            return name
    tools = read_toml(folder / "pyproject.toml").get("tool")
    if isinstance(tools, dict) and "tox" in tools:
        return "pyproject.toml"
    parser = configparser.ConfigParser(interpolation=None)
    with contextlib.suppress(configparser.Error, UnicodeDecodeError):
        parser.read(folder / "setup.cfg", encoding="utf-8")
    return "setup.cfg" if parser.has_section("tox:tox") else "tox.ini"


def _top_of_repository(folder: Path) -> Path | None:
    """The root of the Git repository that contains ``folder``, if that is another folder."""
    top = repository_of(folder)
    return None if top == folder.resolve() else top


def _mentions_onnx_ci(path: Path) -> bool:
    try:
        return b"onnx-ci" in path.read_bytes()
    except OSError:
        return False


def _write(folder: Path, files: list[NewFile]) -> list[NewFile]:
    """Write files that do not exist, either all or none."""
    written: list[NewFile] = []
    try:
        for file in files:
            for place in reversed(file.path.parents):
                if (folder / place).is_symlink() and place != Path():
                    raise ConfigurationError(f"{place} is a symbolic link; onnx-ci init only writes inside the project")
                (folder / place).mkdir(exist_ok=True)
            write_whole(folder / file.path, [file.text.encode()], is_new=True)
            written.append(file)
    except BaseException as error:
        for done in written:
            (folder / done.path).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ConfigurationError(f"{file.path} cannot be written: {error.strerror or error}; nothing was written") from None
        raise
    return written


def _next_steps(written: list[NewFile], project: ScannedProject, *, is_recipe: bool) -> Iterator[str]:
    names = {str(file.path) for file in written}
    if "onnx_recipes.py" in names and not is_recipe:
        yield "add onnx_recipes.py to recipe-files in [tool.onnx-ci] of pyproject.toml, which does not include it"
    yield "run the example: onnx-ci run" if "onnx_recipes.py" in names else "run the recipes: onnx-ci run"
    if "onnx_recipes.py" in names:
        yield "replace the model in onnx_recipes.py with your own"
    if project.unreachable and project.pytest_file is not None:
        folders = listed(project.unreachable)
        yield f"let recipes import your models: install them, or add {folders} to pythonpath in {project.pytest_file}"
    if to_fill := [str(file.path) for file in written if ADDRESS in file.text]:
        yield f"replace {ADDRESS} and {REF} with your onnx-ci repository and commit in {listed(to_fill)}"
    if ".pre-commit-config.yaml" in names:
        yield "install the hooks: pre-commit install --hook-type pre-commit --hook-type pre-push"
    if "tox.ini" in names:
        yield "run all opsets, or a single one, with tox: tox run -e onnx, tox run -e opset13"
