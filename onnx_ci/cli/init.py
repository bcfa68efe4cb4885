"""``onnx-ci init``: the first files of a project."""

from __future__ import annotations

import configparser
import contextlib
import importlib.resources
import os
import secrets
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import click

from onnx_ci.cli.common import with_exit_code
from onnx_ci.collection.discovery import is_recipe_file
from onnx_ci.config.settings import find_root, load_settings
from onnx_ci.environment.git import repository_of
from onnx_ci.errors import ConfigurationError, ExitCode

ADDRESS, REF = "OWNER/onnx-ci", "REF"
"""The GitHub repository and commit of onnx-ci. It has no public repository yet, so users replace these placeholders."""


@dataclass(frozen=True, kw_only=True)
class NewFile:
    """A file to write."""

    path: Path
    """Relative to the project's folder."""
    text: str
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

    Existing files are never changed; their names are printed, with what could be added to them. The exit code is 5 if nothing
    was written.

    \b
    Examples:
      onnx-ci init                        onnx_recipes.py and .github/workflows/onnx-export.yml
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
    files = list(_files(folder, github=github, pre_commit=pre_commit, tox=tox))
    written = _write(folder, [file for file in files if not os.path.lexists(folder / file.home)])
    for file in files:
        if file in written:
            click.echo(f"wrote {file.path}")
        else:
            click.echo(f"skipped {file.home}, which exists" + (f"; a new {file.path} would contain:" if file.is_shared else ""))
            if file.is_shared:
                click.echo("\n" + textwrap.indent(file.text, "    "))
    if not written:
        sys.exit(ExitCode.NOTHING_RAN)
    click.echo("\nnext:")
    for step in _next_steps(written, is_recipe=is_recipe_file((folder / "onnx_recipes.py").absolute(), settings)):
        click.echo(f"  - {step}")
    sys.exit(ExitCode.PASSED)


def template(name: str, **values: str) -> str:
    """A file of ``onnx_ci/templates`` in which ``@NAME@`` is replaced with the value of ``name``."""
    text = importlib.resources.files("onnx_ci").joinpath("templates", name).read_text(encoding="utf-8")
    for key, value in {"address": ADDRESS, "ref": REF, **values}.items():
        text = text.replace(f"@{key.upper()}@", value)
    return text


def _files(folder: Path, *, github: bool, pre_commit: bool, tox: bool) -> Iterator[NewFile]:
    """The files to write into ``folder``."""
    recipes = Path("onnx_recipes.py")
    yield NewFile(path=recipes, home=recipes, text=template("onnx_recipes.py.txt"))
    if github:
        workflow = Path(".github", "workflows", "onnx-export.yml")
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        yield NewFile(path=workflow, home=workflow, text=template("onnx-export.yml", python=python, install=_install(folder)))
    if pre_commit:
        hooks = Path(".pre-commit-config.yaml")
        yield NewFile(path=hooks, home=hooks, text=template("pre-commit-config.yaml"), is_shared=True)
    if tox:
        yield NewFile(path=Path("tox.ini"), home=Path(_home_of_tox(folder)), text=template("tox.ini"), is_shared=True)


def _install(folder: Path) -> str:
    """The command with which a workflow installs the project."""
    if (folder / "requirements.txt").is_file():
        return "pip install -r requirements.txt"
    is_package = "project" in _toml(folder / "pyproject.toml") or (folder / "setup.py").is_file()
    return "pip install ." if is_package else "pip install torch"


def _home_of_tox(folder: Path) -> str:
    """The file that configures tox already, which a new ``tox.ini`` would override."""
    for name in ("tox.ini", "tox.toml"):
        if os.path.lexists(folder / name):
            return name
    tools = _toml(folder / "pyproject.toml").get("tool")
    if isinstance(tools, dict) and "tox" in tools:
        return "pyproject.toml"
    parser = configparser.ConfigParser(interpolation=None)
    with contextlib.suppress(configparser.Error, UnicodeDecodeError):
        parser.read(folder / "setup.cfg", encoding="utf-8")
    return "setup.cfg" if parser.has_section("tox:tox") else "tox.ini"


def _toml(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _top_of_repository(folder: Path) -> Path | None:
    """The root of the Git repository that contains ``folder``, if that is another folder."""
    top = repository_of(folder)
    return None if top == folder.resolve() else top


def _write(folder: Path, files: list[NewFile]) -> list[NewFile]:
    """Write files that do not exist, either all or none."""
    written: list[NewFile] = []
    try:
        for file in files:
            for place in reversed(file.path.parents):
                if (folder / place).is_symlink() and place != Path():
                    raise ConfigurationError(f"{place} is a symbolic link; onnx-ci init only writes inside the project")
                (folder / place).mkdir(exist_ok=True)
            _write_new(folder / file.path, file.text)
            written.append(file)
    except BaseException as error:
        for done in written:
            (folder / done.path).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ConfigurationError(f"{file.path} cannot be written: {error.strerror or error}; nothing was written") from None
        raise
    return written


def _write_new(path: Path, text: str) -> None:
    """Write a file atomically, without ever replacing an existing one."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("x", encoding="utf-8") as stream:
            stream.write(text)
        path.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)


def _next_steps(written: list[NewFile], *, is_recipe: bool) -> Iterator[str]:
    names = {str(file.path) for file in written}
    if "onnx_recipes.py" in names:
        if not is_recipe:
            yield "add onnx_recipes.py to recipe-files in [tool.onnx-ci] of pyproject.toml, which does not include it"
        yield "run the example: onnx-ci run"
        yield "replace the model in onnx_recipes.py with your own"
    if to_fill := [str(file.path) for file in written if ADDRESS in file.text]:
        yield f"replace {ADDRESS} and {REF} with your onnx-ci repository and commit in {' and '.join(to_fill)}"
    if ".pre-commit-config.yaml" in names:
        yield "install the hooks: pre-commit install --hook-type pre-commit --hook-type pre-push"
    if "tox.ini" in names:
        yield "run all opsets, or a single one, with tox: tox run -e onnx, tox run -e opset13"
