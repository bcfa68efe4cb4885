"""``onnx-ci init``: the first files of a project."""

from __future__ import annotations

import contextlib
import importlib.resources
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.cli.common import with_exit_code
from onnx_ci.collection.discovery import is_recipe_file, recipe_files
from onnx_ci.config.settings import find_root, load_settings
from onnx_ci.environment.git import repository_of
from onnx_ci.environment.versions import version_of
from onnx_ci.errors import ConfigurationError, ExitCode
from onnx_ci.text import listed, one_line
from onnx_ci.tools.observe.observe import observed_models, recipe_name, recipes_of
from onnx_ci.whole_files import write_whole

ADDRESS, REF = "OWNER/onnx-ci", "REF"
"""The GitHub repository and commit of onnx-ci. It has no public repository yet, so users replace these placeholders."""

_RECIPES = Path("onnx_recipes.py")
_NETWORK = '''

def small_network():
    """An example model. Replace it with your own."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, kernel_size=3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 10),
    )
'''


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
@click.option("--model", metavar="MODULE:CLASS", help="Write the recipe for this model of the project.")
@click.option(
    "--observe",
    metavar="COMMAND",
    help="Run a program, and write recipes for the models that it calls, with its inputs' sizes.",
)
@with_exit_code
def init(folder: Path, github: bool, model: str | None, observe: str | None) -> NoReturn:
    r"""Write a first recipe and workflows into a project.

    The recipe runs as it is, with an example; with --model, write the arguments of your model where the example's are. One
    workflow runs the recipes, another one comments on pull requests. Existing files are never changed. If all of it exists,
    nothing is written.

    With --observe, a program of the project runs as usual, until it ends or Ctrl-C ends it. The recipes are those of the models
    that it calls: built as it builds them, with inputs as it gives them, and sizes that differ between calls as dynamic axes.
    If it exports them with torch.onnx.export, the recipes have the names, axes, options, exporter and opsets of these exports.

    \b
    Examples:
      onnx-ci init                        onnx_recipes.py and two workflows in .github/workflows
      onnx-ci init --no-github            only onnx_recipes.py
      onnx-ci init --model=shop.nets:Ranker
      onnx-ci init --observe "python serve.py"
      onnx-ci init --observe "python export.py"
    """
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {folder}")
    top = repository_of(folder)
    if github and top not in (None, folder.resolve()):
        raise ConfigurationError(
            f"GitHub only reads workflows at the root of a repository, which is {top}; "
            "run onnx-ci init there, or leave out the workflows with --no-github"
        )
    if model is not None and observe is not None:
        raise ConfigurationError("--model and --observe both say what the recipe is for: give one of them")
    settings = load_settings(find_root(folder))
    text, purpose, steps = _recipes(folder, model, observe)
    existing = next(recipe_files(folder, settings), None)
    home = _RECIPES if existing is None else existing.relative_to(folder.absolute())
    files = [NewFile(path=_RECIPES, home=home, text=text, purpose=purpose), *(_workflows(folder) if github else ())]
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
    if files[0] not in new_files:
        steps = ["run the recipes: onnx-ci run"]
        if (model, observe) != (None, None):
            click.echo(f"\nadd to your recipes:\n\n{text}")
    elif not is_recipe_file((folder / _RECIPES).absolute(), settings):
        steps.insert(0, f"add {_RECIPES} to recipe-files in [tool.onnx-ci] of pyproject.toml, which does not include it")
    if unfinished := [str(file.path) for file in new_files if ADDRESS in file.text]:
        steps.append(f"replace {ADDRESS} and {REF} with your onnx-ci repository and commit in {listed(unfinished)}")
    click.echo("\nnext:")
    for step in steps:
        click.echo(f"  - {step}")
    sys.exit(ExitCode.PASSED)


def template(file: str, **values: str) -> str:
    """A file of ``onnx_ci/templates`` in which ``@PLACE@`` is replaced with the value of ``place``."""
    text = importlib.resources.files("onnx_ci").joinpath("templates", file).read_text(encoding="utf-8")
    for key, value in {"address": ADDRESS, "ref": REF, **values}.items():
        text = text.replace(f"@{key.upper()}@", value)
    return text


def _recipes(folder: Path, model: str | None, observe: str | None) -> tuple[str, str, list[str]]:
    """The text of the recipe file, its purpose, and what to do next."""
    if observe is not None:
        models = observed_models(observe, folder)
        text = recipes_of(models)
        steps = [f"write what {_RECIPES} leaves open, where it raises NotImplementedError"] * ("NotImplementedError" in text)
        return text, f"recipes for {listed([each.name for each in models])}", [*steps, "run the recipes: onnx-ci run"]
    if model is None:
        values = {"network": _NETWORK, "recipe": "example", "import": "", "call": "small_network()"}
        steps = ["run the example: onnx-ci run", f"replace the model in {_RECIPES} with your own"]
        return template("onnx_recipes.py.txt", **values), "a recipe that runs as it is", steps
    module, _, name = model.partition(":")
    if not all(map(str.isidentifier, (*module.split("."), name))):
        raise ConfigurationError(f"--model must be MODULE:CLASS, such as shop.nets:Ranker, not {model!r}")
    values = {"network": "", "recipe": recipe_name(name), "import": f"\n    from {module} import {name}\n", "call": f"{name}()"}
    steps = [f"write the arguments of {name}, and its inputs and outputs, into {_RECIPES}", "run the recipe: onnx-ci run"]
    return template("onnx_recipes.py.txt", **values), f"a recipe for {name}", steps


def _workflows(root: Path) -> Iterator[NewFile]:
    """The workflow with the gate and the one that comments on pull requests, which reads what the first one uploads."""
    gate, verdict = (Path(".github", "workflows", name) for name in ("onnx-export.yml", "onnx-verdict.yml"))
    gate_home = _workflow_with(r"onnx-ci(/\.github/workflows/onnx-export\.yml)?@|\bonnx-ci run\b|--onnx-export\b", root)
    verdict_home = _workflow_with(r"onnx-ci/publish@", root)
    yield NewFile(
        path=gate,
        home=gate_home or gate,
        text=template("onnx-export.yml", python=".".join(map(str, sys.version_info[:2])), install=_install_command(root)),
        purpose="runs the recipes on each push and pull request, and uploads the report",
    )
    if gate_home in (None, gate) or verdict_home is not None:
        yield NewFile(
            path=verdict,
            home=verdict_home or verdict,
            text=template("onnx-verdict.yml"),
            purpose="comments on pull requests that change an export",
        )


def _workflow_with(pattern: str, root: Path) -> Path | None:
    """The first workflow of the project in which a line that is no comment has the pattern."""
    for path in sorted((root / ".github" / "workflows").glob("*.y*ml")):
        with contextlib.suppress(OSError):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            if any(re.search(pattern, line) for line in lines if not line.lstrip().startswith("#")):
                return path.relative_to(root)
    return None


def _install_command(root: Path) -> str:
    """The command with which a workflow installs the project and what it requires, or else torch."""
    requirements, project = root / "requirements.txt", root / "pyproject.toml"
    is_package, has_requirements = (root / "setup.py").is_file(), requirements.is_file()
    with contextlib.suppress(OSError, ValueError, RecursionError):
        is_package |= "project" in tomllib.loads(project.read_text(encoding="utf-8"))
    with contextlib.suppress(OSError, ValueError):  # pip refuses to install the same folder twice
        is_package &= re.search(r"^\s*(-e|--editable)?[ =]*\.", requirements.read_text(encoding="utf-8"), re.MULTILINE) is None
    words = [*(["-r requirements.txt"] if has_requirements else []), *(["."] if is_package else [])]
    release = re.fullmatch(r"(\d+(?:\.\d+)+)(?:\+.*)?", version_of("torch") or "")  # no index has the other builds
    return f"pip install {' '.join(words) or ('torch' if release is None else f'torch=={release[1]}')}"


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
