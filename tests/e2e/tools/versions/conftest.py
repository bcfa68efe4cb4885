"""The stand-in index, and a project with a recipe that its exporter exports."""

from __future__ import annotations

import pytest
from e2e.tools.versions.stand_in import RECIPE, Index


@pytest.fixture
def index(tmp_path_factory):
    return Index(tmp_path_factory.mktemp("index"))


@pytest.fixture
def cli(project, index):
    """Run ``onnx-ci`` with what is installed from the stand-in index."""
    project.write("pyproject.toml", "")
    project.recipes(RECIPE)
    return lambda *words, **more: project.command("onnx_ci", *words, **{**index.environment, **more})
