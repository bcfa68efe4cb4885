"""The texts of the files that ``onnx-ci init`` writes, each a function of what the scan of the project found."""

from __future__ import annotations

import importlib.resources
import json
import re
from collections import defaultdict
from collections.abc import Sequence

from onnx_ci.text import listed_shortly, one_line
from onnx_ci.tools.init.project_scan import ModelClass, ScannedProject

ADDRESS, REF = "OWNER/onnx-ci", "REF"
"""The GitHub repository and commit of onnx-ci. It has no public repository yet, so users replace these placeholders."""

_FEWEST_IN_A_FAMILY = 3
"""With fewer models, one recipe for each is simpler than one for all."""
_MOST_SHOWN = 20
"""How many models a recipe file names at most."""

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


def template(name: str, **values: str) -> str:
    """A file of ``onnx_ci/templates`` in which ``@NAME@`` is replaced with the value of ``name``."""
    text = importlib.resources.files("onnx_ci").joinpath("templates", name).read_text(encoding="utf-8")
    for key, value in {"address": ADDRESS, "ref": REF, **values}.items():
        text = text.replace(f"@{key.upper()}@", value)
    return text


def recipe_file(project: ScannedProject) -> str:
    """The first recipe file: it runs as it is, and names the models and checkpoints of the project in comments."""
    family = family_of(project.models)
    models = _imports(project.models) + f"\n{_NETWORK}"
    if family:
        models += _table(family)
        keyword = "\n    # One recipe for each of them, called models-small and so on.\n    each={name: {} for name in MODELS},"
        function = "def models(name):\n    model = MODELS[name]()"
    else:
        keyword = ""
        function = f"def example():\n    model = small_network()  # {_call(project.models)}"
    checkpoints = _checkpoints(project.checkpoints)
    return template("onnx_recipes.py.txt", models=models, each=keyword, function=function, checkpoints=checkpoints)


def family_of(models: Sequence[ModelClass]) -> list[ModelClass]:
    """The models that one recipe can declare together: their constructors need no arguments, and their inputs are the same.

    The largest group counts. There is none if a group has only a few models, or two of the same name.
    """
    groups: dict[tuple[str, ...], list[ModelClass]] = defaultdict(list)
    for model in models:
        if not model.arguments and model.inputs:
            groups[model.inputs].append(model)
    largest = max(groups.values(), key=len, default=[])
    are_distinct = len({model.name.lower() for model in largest}) == len(largest)
    return largest if are_distinct and _FEWEST_IN_A_FAMILY <= len(largest) <= _MOST_SHOWN else []


def workflow(project: ScannedProject, *, python: str, torch: str | None) -> str:
    """The workflow with the gate.

    Args:
        project: decides what the workflow installs.
        python: the version of Python that it sets up.
        torch: the version of torch that it installs if the project requires nothing; ``None`` for the newest.
    """
    return template("onnx-export.yml", python=python, install=install_command(project, torch))


def install_command(project: ScannedProject, torch: str | None) -> str:
    """The command with which a workflow installs the project, or else torch."""
    requirements = [*(["-r requirements.txt"] if project.has_requirements else []), *project.packages]
    if requirements:
        return f"pip install {' '.join(requirements)}"
    release = re.fullmatch(r"(\d+(?:\.\d+)+)(?:\+.*)?", torch or "")  # no index has the other builds
    return f"pip install torch=={release[1]}" if release else "pip install torch"


def pytest_ini(folders: Sequence[str]) -> str:
    """A configuration of pytest with which recipes and tests can import the modules in ``folders``."""
    return f"[pytest]\npythonpath = {' '.join(folders)}\n"


def _imports(models: Sequence[ModelClass]) -> str:
    """The imports of the models, as comments."""
    if not models:
        return ""
    lines = ["", "# Models that the source of this project declares; import those that must export:"]
    for model in _by_ease(models)[:_MOST_SHOWN]:
        needs = f", needs {', '.join(model.arguments)}" if model.arguments else ""
        lines.append(f"# from {model.module} import {model.name}  # {one_line(model.source)}:{model.line}{needs}")
    if (more := len(models) - _MOST_SHOWN) > 0:
        lines.append(f"# … and {more} more")
    return "\n".join(lines) + "\n"


def _by_ease(models: Sequence[ModelClass]) -> list[ModelClass]:
    """The models whose constructors need no arguments first."""
    return sorted(models, key=lambda model: (bool(model.arguments), model.source, model.line))


def _call(models: Sequence[ModelClass]) -> str:
    """What to write instead of the example, as a comment."""
    if not models:
        return "replace this with your own model"
    easiest = _by_ease(models)[0]
    return f"replace this with your own model: {easiest.name}({', '.join(easiest.arguments)})"


def _table(models: Sequence[ModelClass]) -> str:
    lines = ["", "", "MODELS = {", '    "small": small_network,  # replace this with your own models:']
    lines += [f'    # "{model.name.lower()}": {model.name},' for model in models]
    return "\n".join([*lines, "}", ""])


def _checkpoints(paths: Sequence[str]) -> str:
    """A comment that shows how the first checkpoint of the project is loaded, and names the others."""
    first, *others = paths or ("checkpoint.pt",)
    name = json.dumps(first)  # in ASCII, on one line
    if first.endswith(".safetensors"):
        lines = [f"#     model.load_state_dict(safetensors.torch.load_file({name}))"]
    else:
        lines = [f'#     model.load_state_dict(torch.load({name}, map_location="cpu"))']
    if others:
        lines.append(f"# There are other checkpoints, too: {listed_shortly([one_line(path) for path in others])}.")
    return "\n".join(f"    {line}" for line in lines)
