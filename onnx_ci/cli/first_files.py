"""The texts of the files that ``onnx-ci init`` writes, each a function of what was found in the project."""

from __future__ import annotations

import importlib.resources
import json
import re
from collections import defaultdict
from collections.abc import Sequence

from onnx_ci.cli.project_scan import ModelClass, ScannedProject
from onnx_ci.text import listed_shortly, one_line

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
        each = "\n    # One recipe for each of them, called models-small and so on.\n    each={name: {} for name in MODELS},"
        function = "def models(name):\n    model = MODELS[name]()"
    else:
        each = ""
        function = f"def example():\n    model = small_network()  # {_call(project.models)}"
    return template(
        "onnx_recipes.py.txt", models=models, each=each, function=function, checkpoints=_checkpoints(project.checkpoints)
    )


def family_of(models: Sequence[ModelClass]) -> list[ModelClass]:
    """The models that one recipe can declare together: their constructors need no arguments, and their inputs are the same.

    The largest group counts; it is empty if there are only a few such models, or if two have the same name.
    """
    groups: dict[tuple[str, ...], list[ModelClass]] = defaultdict(list)
    for model in models:
        if not model.arguments and model.inputs:
            groups[model.inputs].append(model)
    largest = max(groups.values(), key=len, default=[])
    are_distinct = len({model.name.lower() for model in largest}) == len(largest)
    return largest if are_distinct and _FEWEST_IN_A_FAMILY <= len(largest) <= _MOST_SHOWN else []


def workflow(project: ScannedProject, *, python: str, torch: str | None) -> str:
    """The workflow with the gate, with the Python and, if the project requires no other, the torch of this machine."""
    return template("onnx-export.yml", python=python, install=install_command(project, torch))


def install_command(project: ScannedProject, torch: str | None) -> str:
    """The command with which a workflow installs the project.

    Args:
        torch: the version of torch that is installed here.
    """
    places = [*(["-r requirements.txt"] if project.has_requirements else []), *project.packages]
    if places:
        return f"pip install {' '.join(places)}"
    release = re.fullmatch(r"(\d+(?:\.\d+)+)(?:\+.*)?", torch or "")  # not a build that no index has
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
    """First those whose constructors need no arguments."""
    return sorted(models, key=lambda model: (bool(model.arguments), model.source, model.line))


def _call(models: Sequence[ModelClass]) -> str:
    """What to write in place of the example, as a comment."""
    if not models:
        return "replace this with your own model"
    first = _by_ease(models)[0]
    return f"replace this with your own model: {first.name}({', '.join(first.arguments)})"


def _table(models: Sequence[ModelClass]) -> str:
    lines = ["", "", "MODELS = {", '    "small": small_network,  # replace this with your own models:']
    lines += [f'    # "{model.name.lower()}": {model.name},' for model in models]
    return "\n".join([*lines, "}", ""])


def _checkpoints(paths: Sequence[str]) -> str:
    """How a checkpoint is loaded, as a comment: the first one of the project."""
    first, *others = paths or ("checkpoint.pt",)
    name = json.dumps(first)  # in ASCII, on one line
    if first.endswith(".safetensors"):
        lines = [f"#     model.load_state_dict(safetensors.torch.load_file({name}))"]
    else:
        lines = [f'#     model.load_state_dict(torch.load({name}, map_location="cpu"))']
    if others:
        lines.append(f"# There are other checkpoints, too: {listed_shortly([one_line(other) for other in others])}.")
    return "\n".join(f"    {line}" for line in lines)
