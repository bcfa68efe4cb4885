"""The fixtures that all tests share."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from toolbox import warm_python
from toolbox.projects import Project

import onnx_ci

pytest_plugins = ["pytester"]

# The same examples in each run, however slow the machine is. A fixture serves all examples of a test.
hypothesis.settings.register_profile(
    "tests",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tests")

# Read when torch is imported. By default, its idle threads wait in a loop and keep the cores from the tests beside this one.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_collection_finish() -> None:
    """The collector need not look at torch and the tests again: it runs often, in the forks of this process, too."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def git_and_the_metadata_of_packages_are_read_once() -> Iterator[None]:
    """Each run reads them for its report, which takes a third of the time of a small cell."""
    from onnx_ci.engine import session

    versions = session.versions
    of_packages = functools.cache(lambda *_: versions())
    patch = pytest.MonkeyPatch()
    patch.setattr(session, "revision_of", functools.cache(session.revision_of))
    patch.setattr(session, "versions", lambda: dict(of_packages(importlib.metadata.version, *sys.path)))
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own ONNX_CI_* variables, an outer CI's files, and verdicts of other runs must not reach the tests."""
    for name in list(os.environ):
        if name.startswith(("ONNX_CI_", "GITHUB_", "INPUT_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ONNX_CI_CACHE", "off")
    # pytest's plugin of hypothesis imports all of it at the end of every run, which takes longer than most of these runs.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")


@pytest.fixture(autouse=True)
def same_random_numbers_each_time() -> None:
    """Tests draw inputs; no test may pass or fail by chance, or by the order of the tests."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def no_folder_stays_on_the_path() -> Iterator[None]:
    """Recipes that a test imports put its folder on ``sys.path``, which verdicts of later tests depend on."""
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """An empty scratch project, which is the current directory. Its modules are forgotten: others have the same names."""
    monkeypatch.chdir(tmp_path)
    before = {*sys.modules}
    yield Project(tmp_path)
    for name in sys.modules.keys() - before:
        spec = getattr(sys.modules[name], "__spec__", None)
        places = (getattr(spec, "origin", None), *(getattr(spec, "submodule_search_locations", None) or ()))
        if any(place and Path(place).is_relative_to(tmp_path) for place in places):
            del sys.modules[name]


@pytest.fixture
def warm_spawned_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spawned processes are ready at once; see :mod:`toolbox.warm_python`. Their memory cannot be measured."""
    monkeypatch.setattr(sys, "executable", warm_python.executable())


@pytest.fixture
def run_cells(project: Project) -> Callable[..., onnx_ci.RunReport]:
    """Run every recipe of the project through a session and give the report."""
    from onnx_ci.config.settings import load_settings
    from onnx_ci.engine.recipes import find_recipes
    from onnx_ci.engine.session import Session

    def run(**options: object) -> onnx_ci.RunReport:
        settings = load_settings(project.root, flags={"opsets": "13", **options})
        with Session(settings) as session:
            session.plan(find_recipes(settings))
            for _ in session.events():
                pass
        return session.report

    return run
