"""No verdict of before the change is shown after it, and no cell runs again for what cannot matter; see ``changes.py``."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from e2e.cache.changes import AGAIN, FRONT_ENDS, KEPT, PROJECT, Again, Kept, Place, cloned, git, written
from toolbox import warm_python

from onnx_ci.cache.folder import VERDICT, Folder

COMMANDS = {
    "fork": ("onnx_ci", "run", "--isolation=fork", "--report={}"),
    "spawn": ("onnx_ci", "run", "--isolation=spawn", "--report={}"),
    "pytest": ("pytest", "-p", "no:cacheprovider", "--onnx-export", "--onnx-report={}"),
}
"""The front-ends, as arguments of ``python -m``."""

SETTINGS = '[tool.onnx-ci]\nopsets = 13\nexporters = "torchscript"\n'

QUICK = {
    "a variable that the export reads",
    "a file that appears, whose existence the export asks for",
    "a configuration that becomes an attribute of torch",
    "a script that the export starts",
    "a module that the export imports",
    "an ignored file that is read",
    "a fresh clone with a restored cache",
    "an unrelated Python file that is edited",
}
"""The rows that are tried with each front-end: with forked processes, in the tests that are not slow."""

OUTER = ("ONNX_CI_", "GITHUB_", "INPUT_", "PYTEST_", "RUNNER_", "CI_", "COV_")
"""How the variables begin that belong to the tests themselves, and to where they run."""


def prepared(row: Again | Kept, folder: Path) -> Place:
    """The project of a row, with everything that is there before its change."""
    place = Place(root=folder / "project", outside=folder / "outside")
    place.root.mkdir()
    place.outside.mkdir()
    files = {**PROJECT, **row.files} if isinstance(row, Kept) else {"onnx_recipes.py": row.recipe, **row.files}
    ignored = files.pop(".gitignore", "") if isinstance(row, Kept) else ".onnx-ci-cache/\n" + files.pop(".gitignore", "")
    for name, text in {"pyproject.toml": SETTINGS, ".gitignore": ignored, **files}.items():
        written(name, text)(place)
    place.environment.update({name: place.text(value) for name, value in row.environment.items()})
    row.before(place)
    if row.is_repository:
        for words in (("init", "--quiet", "--initial-branch=trunk"), ("add", "."), ("commit", "--quiet", "--message=one")):
            git(*words)(place)
    return place


def start(place: Place, *words: str, is_fresh: bool = False) -> subprocess.CompletedProcess[str]:
    """Run ``python WORDS`` in the project, without the settings and the cache of the tests themselves."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OUTER) and name != "CI"}
    if options := os.environ.get("PYTEST_ADDOPTS"):
        environment["PYTEST_ADDOPTS"] = options
    environment |= place.environment
    if "PYTHONPATH" in place.environment and "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]
    python = place.python or (sys.executable if is_fresh else warm_python.executable())
    done = subprocess.run(
        [python, *words],
        cwd=place.root,
        env=environment,
        umask=-1 if place.mask is None else place.mask,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    print(f"$ python {' '.join(words)}\n{done.stdout}{done.stderr}")  # shown if the test fails
    return done


def verdicts_of(report: Path) -> dict[str, tuple[str, bool]]:
    """The status of each cell, and whether it came from the cache."""
    cells = json.loads(report.read_text(encoding="utf-8"))["cells"]
    return {cell["id"]: (cell["status"], cell["cached"]) for cell in cells}


def run(place: Place, front_end: str, *options: str, is_fresh: bool = False) -> dict[str, tuple[str, bool]]:
    """Run the cells. The report lies outside of the project."""
    report = place.root.parent / "report.json"
    report.unlink(missing_ok=True)
    start(place, "-m", *(word.format(report) for word in COMMANDS[front_end]), *options, is_fresh=is_fresh)
    assert report.exists()
    return verdicts_of(report)


def skip_if_missing(needs: str | None) -> None:
    """Skip a row for which something is not installed."""
    if needs == "cc":
        if not shutil.which("cc"):
            pytest.skip("there is no C compiler")
    elif needs:
        try:
            importlib.import_module(needs)
        except (ImportError, RuntimeError) as error:  # not installed, or for another build of torch
            pytest.skip(f"{needs} cannot be imported: {error}")


def is_slow(name: str, front_end: str) -> bool:
    return front_end != "fork" or name not in QUICK


def marks_of(row: Again | Kept, front_end: str) -> list[pytest.MarkDecorator]:
    """A row that is a known limit must fail."""
    marks = [pytest.mark.slow] if is_slow(row.name, front_end) else []
    if isinstance(row, Again) and row.limit:
        marks.append(pytest.mark.xfail(reason=row.limit, strict=True))
    return marks


def rows_of(table: list) -> list:
    """A parameter for each row of a table: the quick ones in all front-ends, the others in one of them, by turns.

    What is watched does not depend on the front-end, only the process does in which it happens.
    """
    return [
        pytest.param(row, front_end, id=f"{front_end}-{row.name}", marks=marks_of(row, front_end))
        for number, row in enumerate(table)
        for turn, front_end in enumerate(row.front_ends)
        if row.name in QUICK or turn == number % len(row.front_ends)
    ]


CELL = "onnx_recipes.py::model::opset13-cpu"


def is_cached(verdicts: dict[str, tuple[str, bool]]) -> bool:
    return bool(verdicts) and all(cached for _, cached in verdicts.values())


@pytest.mark.skipif(sys.platform != "linux", reason="links, modes and forks")
@pytest.mark.parametrize(("row", "front_end"), rows_of(AGAIN))
def test_a_cell_runs_again_if_something_changes_that_it_depends_on(row, front_end, tmp_path):
    skip_if_missing(row.needs)
    place = prepared(row, tmp_path)
    assert run(place, front_end, is_fresh=row.is_fresh) == {CELL: ("passed", False)}
    unchanged = run(place, front_end, is_fresh=row.is_fresh)
    assert unchanged in (
        [{CELL: ("passed", True)}] if row.is_always_kept else [{CELL: ("passed", True)}, {CELL: ("passed", False)}]
    )
    row.change(place)
    status, cached = run(place, front_end, is_fresh=row.is_fresh)[CELL]
    assert not cached, "the verdict is that of before the change"
    assert (status != "passed") is row.has_other_verdict


@pytest.mark.skipif(sys.platform != "linux", reason="links, modes and forks")
@pytest.mark.parametrize(("row", "front_end"), rows_of(KEPT))
def test_a_verdict_is_kept_if_nothing_changes_that_its_cell_depends_on(row, front_end, tmp_path):
    place = prepared(row, tmp_path)
    assert run(place, front_end)[CELL] == ("passed", False)
    unchanged = run(place, front_end)
    assert is_cached(unchanged)
    row.change(place)
    assert run(place, front_end)[CELL] == ("passed", True)


OPTIONS = {
    "run": ["--junit=junit.xml", "-v", "-q", "--jobs=1"],
    "pytest": ["--junitxml=junit.xml", "-v", "-q", "-rA"],
}
PLAIN = Kept(name="plain", change=lambda _: None)


@pytest.mark.slow
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_what_a_run_writes_and_shows_does_not_matter(front_end, tmp_path):
    """Reports in the project count neither in the run that writes them nor in the next."""
    place = prepared(PLAIN, tmp_path)
    assert run(place, front_end)[CELL] == ("passed", False)
    for option in OPTIONS["pytest" if front_end == "pytest" else "run"]:
        for options in ([option], []):
            assert run(place, front_end, *options)[CELL] == ("passed", True), options


@pytest.mark.slow
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_report_in_the_project_does_not_matter(front_end, tmp_path):
    """Not even to the first run: it would see a project that has changed meanwhile."""
    place = prepared(PLAIN, tmp_path)
    for is_cached_now in (False, True, True):
        start(place, "-m", *(word.format("report.json") for word in COMMANDS[front_end]))
        assert verdicts_of(place.root / "report.json")[CELL] == ("passed", is_cached_now)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["list", "matrix", "list -v", "list --why", "doctor", "run --exporters=dynamo --opsets=18"])
def test_the_order_of_commands_does_not_matter(command, tmp_path):
    place = prepared(PLAIN, tmp_path)
    assert run(place, "fork")[CELL] == ("passed", False)
    start(place, "-m", "onnx_ci", *command.split())
    assert run(place, "fork")[CELL] == ("passed", True)


@pytest.mark.slow
def test_a_fresh_clone_with_a_restored_cache_imports_no_torch(tmp_path):
    place = prepared(PLAIN, tmp_path)
    command = ("-X", "importtime", "-m", "onnx_ci", "run")
    assert "1 cell: 1 passed in" in start(place, *command, is_fresh=True).stdout
    cloned(place)
    done = start(place, *command, is_fresh=True)
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "onnx_ci" in modules
    assert not modules & {"torch", "onnx", "numpy", "onnxruntime"}
    assert "1 cell: 1 passed, 1 of them cached" in done.stdout
    for _ in range(2):  # listing cells is not a run
        assert "last run: 1 cell from the cache" in start(place, "-m", "onnx_ci", "list", "--why", is_fresh=True).stdout


def test_each_row_has_a_name_of_its_own():
    names = [row.name for row in [*AGAIN, *KEPT]]
    assert len(names) == len(set(names))
    assert set(names) >= QUICK
    assert len(AGAIN) >= 80
    assert len(KEPT) >= 20


SLOW = """
import onnx_ci
import time
import torch


@onnx_ci.recipe(input_names=["x"], output_names=["y"])
def slow():
    time.sleep({seconds})
    return torch.nn.ReLU(), (torch.ones(3),)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="links, modes and forks")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("front_end", ["fork", "pytest"])
def test_a_verdict_is_kept_the_moment_its_cell_has_ended(front_end, ending, tmp_path):
    place = prepared(PLAIN, tmp_path)
    written("slow_recipe.py", SLOW.format(seconds=300))(place)
    words = [word.format("report.json") for word in COMMANDS[front_end]]
    environment = {**os.environ, "ONNX_CI_RECIPE_FILES": "onnx_recipes.py,slow_recipe.py", "ONNX_CI_JOBS": "2"}
    environment.pop("ONNX_CI_CACHE", None)
    with subprocess.Popen(
        [sys.executable, "-m", *words], cwd=place.root, env=environment, stdout=subprocess.DEVNULL
    ) as process:
        folder = Folder(place.root / ".onnx-ci-cache")
        limit = time.monotonic() + 120
        while not folder.files(VERDICT) and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.1)
        written("run.txt", "what it has said so far\n")(place)
        process.send_signal(ending)
    assert run(place, "fork", "onnx_recipes.py") == {CELL: ("passed", True)}
