"""Four front-ends, one gate: pytest, the command, Python and the action report the same about one project."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
from toolbox import warm_python
from toolbox.github_runner import ROOT, Job
from toolbox.projects import RIGHT, TINY

FRONT_ENDS = ("pytest", "command", "python", "action")
ELSEWHERE = ("report", "artifacts", "cache")
"""Settings that say where things go, which each front-end sets for itself."""
GIVEN_HERE = ("command-line", "pytest", "python")
"""The sources of settings that were given to the front-end itself."""

GAP = """

@onnx_ci.recipe(
    input_names=["x"], output_names=["total"], dynamic_axes={"x": {0: "rows"}}, exporter="torchscript",
    expect={"torchscript": [onnx_ci.known_failure(rule, "the loop is unrolled") for rule in ("baked-value", "baked-shape")]},
)
def gap():
    return Total(), (torch.randn(3, 4),)
"""
"""A recipe that is expected to fail, for the project that has one that passes and one that fails."""

WAITING = """
    @onnx_ci.recipe
    def waiting():
        import pathlib, time

        pathlib.Path("waits").touch()
        time.sleep(600)
"""


def start(front_end, root, recipes, **options):
    """One run of the project in ``root`` through pytest, the command or Python; its report is ``<front-end>.json`` there."""
    options = {**options, "report": f"{front_end}.json"}
    flags = {name.replace("_", "-"): value for name, value in options.items()}
    if front_end == "pytest":
        words = ["-m", "pytest", "--onnx-export", *(f"--onnx-{name}={value}" for name, value in flags.items())]
    elif front_end == "command":
        words = ["-m", "onnx_ci", "run", *(f"--{name}={value}" for name, value in flags.items())]
    else:
        listed = ", ".join(f"onnx_recipes.{name}" for name in recipes)
        words = ["-c", f"import onnx_ci, onnx_recipes; onnx_ci.run([{listed}], **{options!r})"]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("ONNX_CI_")}
    return subprocess.Popen(
        [warm_python.executable(), *words], cwd=root, env={**environment, "ONNX_CI_CACHE": "off"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def read(file):
    return json.loads(Path(file).read_text(encoding="utf-8"))


def comparable(report):
    """A report without what may differ: times, where files lie, and how a front-end writes a setting."""
    for each in report["cells"]:
        del each["timings"], each["artifact"]
    del report["summary"]["seconds"]
    settings = {}
    for name, each in report["settings"].items():
        if name not in ELSEWHERE:
            origin = each["origin"]
            source = "given" if origin["source"] in GIVEN_HERE else origin["source"]
            given_as = origin["given_as"].removeprefix("--").removeprefix("onnx-").removesuffix("=").replace("_", "-")
            settings[name] = (each["value"], source, given_as)
    return {**report, "settings": settings}


def without_problems(report):
    """What is reported about the cells alone."""
    summary = {name: value for name, value in report["summary"].items() if name != "problems"}
    return {**report, "summary": summary, "problems": []}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The JSON reports of one project, by front-end."""
    job = Job(tmp_path_factory.mktemp("front-ends"))
    shutil.copytree(ROOT / "tests" / "e2e" / "github" / "projects" / "failing", job.checkout, dirs_exist_ok=True)
    with (job.checkout / "onnx_recipes.py").open("a") as recipes:
        recipes.write(GAP)
    (job.checkout / "broken").mkdir()
    (job.checkout / "broken" / "onnx_recipes.py").write_text("import onnx_ci\n\nundefined\n")
    found = {}
    for name in ("pytest", "command", "python"):
        process = start(name, job.checkout, ["double", "total", "gap"], opsets="13,18", max_drift=8)
        printed, _ = process.communicate(timeout=600)
        assert process.returncode == (0 if name == "python" else 1), printed
        found[name] = comparable(read(job.checkout / f"{name}.json"))
    ran = job.use(opsets="13,18", args="--max-drift=8", cache="false")
    assert ran.code == 1
    found["action"] = comparable(read(ran.outputs["report"]))
    return found


@pytest.mark.slow
def test_the_project_has_an_outcome_of_each_kind(reports):
    usual = reports["command"]
    statuses = [(each["recipe"], each["status"]) for each in usual["cells"]]
    assert statuses == [
        (name, status) for name, status in (("double", "passed"), ("total", "failed"), ("gap", "xfailed")) for _ in range(2)
    ]
    assert [each["source"] for each in usual["problems"]] == ["broken/onnx_recipes.py"]
    assert usual["settings"]["max-drift"] == ("8", "given", "max-drift")


@pytest.mark.slow
@pytest.mark.parametrize("front_end", ["pytest", "action"])
def test_they_report_the_same(reports, front_end):
    assert reports[front_end] == reports["command"]


@pytest.mark.slow
def test_python_reports_the_same_of_the_recipes_that_it_is_given(reports):
    """A file that cannot be imported is not among them."""
    assert reports["python"]["problems"] == []
    assert without_problems(reports["python"]) == without_problems(reports["command"])


# --- a run that is interrupted


def interrupt(process, root):
    """Stop ``process`` as Ctrl-C does, once the first recipe is done and the second one waits."""
    end = time.monotonic() + 120
    while not (root / "waits").exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)


def test_a_second_ctrl_c_while_processes_end_does_not_cost_the_report(project, monkeypatch):
    from onnx_ci.config.settings import load_settings
    from onnx_ci.engine.recipes import find_recipes
    from onnx_ci.engine.session import Session

    def again():
        raise KeyboardInterrupt

    project.recipes(RIGHT)
    settings = load_settings(project.root, flags={"opsets": "12-13", "report": "r.json", "isolation": "none"})
    with pytest.raises(KeyboardInterrupt), Session(settings) as session:
        session.plan(find_recipes(settings))
        next(session.events())
        monkeypatch.setattr(session.engine, "close", again)
    report = read("r.json")
    assert [each["id"] for each in report["cells"]] == ["onnx_recipes.py::right::opset12-cpu"]
    assert report["not_run"] == ["onnx_recipes.py::right::opset13-cpu"]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """The JSON reports of the same project by front-end, each of a run that was interrupted."""
    found = {}
    for name in FRONT_ENDS:
        job = Job(tmp_path_factory.mktemp(name))
        parts = (TINY, RIGHT, WAITING, RIGHT.replace("def right", "def last"))
        (job.checkout / "onnx_recipes.py").write_text("\n".join(map(textwrap.dedent, parts)))
        (job.checkout / "pyproject.toml").write_text("")
        if name == "action":
            stop = functools.partial(interrupt, root=job.checkout)
            ran = job.use(opsets="13", args="--jobs=1", cache="false", meanwhile=stop)
            code, printed, file = ran.code, ran.log, Path(ran.outputs["report"])
        else:
            process = start(name, job.checkout, ["right", "waiting", "last"], opsets="13", jobs=1)
            interrupt(process, job.checkout)
            printed, _ = process.communicate(timeout=60)
            code, file = process.returncode, job.checkout / f"{name}.json"
        assert code != 0, printed
        assert file.is_file(), printed
        found[name] = comparable(read(file))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_an_interrupted_run_reports_what_is_done_and_what_did_not_run(interrupted, front_end):
    report = interrupted[front_end]
    assert [(each["id"], each["status"]) for each in report["cells"]] == [("onnx_recipes.py::right::opset13-cpu", "passed")]
    assert report["not_run"] == [f"onnx_recipes.py::{name}::opset13-cpu" for name in ("waiting", "last")]
    assert report["summary"]["verdict"] == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("front_end", ["pytest", "python", "action"])
def test_interrupted_runs_are_reported_the_same(interrupted, front_end):
    assert interrupted[front_end] == interrupted["command"]
