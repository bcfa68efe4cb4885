"""``git bisect run``, as docs/baselines.md shows it, finds the commit that broke a cell."""

from __future__ import annotations

import re
import shlex

import pytest
from toolbox.projects import ROOT, Repository, on_path

RECIPE = """
    import onnx_ci, torch
    from model import Model

    @onnx_ci.recipe(input_names=["x"], output_names=["y"])
    def scale():
        return Model(), (torch.randn(3, 4),)
"""
MODEL = """
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4))

        def forward(self, x):
            return torch.relu(x * self.weight){}
"""
RIGHT = MODEL.format("")
BAKED = MODEL.format(" + float(x.sum())")
NO_IMPORT = "import nothing_of_the_kind"


@pytest.mark.slow
def test_the_commit_is_found_although_a_recipe_between_cannot_be_imported(project, tmp_path_factory):
    repository = Repository(project, tmp_path_factory.mktemp("home"))
    project.write(".gitignore", "__pycache__\n.onnx-ci-cache\nbin\n")
    project.write("onnx_recipes.py", RECIPE)
    subjects = []
    for subject, model in [
        ("First", RIGHT),
        ("Import what is not there", NO_IMPORT),
        ("Go back", RIGHT),
        ("Bake a sum", BAKED),
        ("Touch", BAKED),
    ]:
        project.write("model.py", model, f"# {subject}")
        repository.commit_all(subject)
        subjects.append(repository.git("rev-parse", "HEAD"))
    page = (ROOT / "docs" / "baselines.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^git bisect run (.*)$", page, re.MULTILINE)
    repository.git("bisect", "start", subjects[-1], subjects[0])
    command = shlex.split(shown.replace("lstm::", "scale::"))
    done = project.run("git", "bisect", "run", *command, **repository.environment, **on_path(project.root / "bin"))
    assert (done.returncode, f"{subjects[3]} is the first bad commit" in done.stdout) == (0, True), done.stdout + done.stderr
