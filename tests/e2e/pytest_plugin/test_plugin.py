"""``pytest --onnx-export`` as its users run it, each time in a scratch project and a process of its own."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from toolbox.projects import RIGHT

WRONG = """
    class Random(torch.nn.Module):
        def forward(self, x):
            return x.reshape(int(x.shape[0]) * 4)

    @onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}})
    def wrong():
        return Random(), (torch.randn(3, 4),)
"""
DIES = """
    @onnx_ci.recipe
    def dies():
        import os
        os._exit(9)
"""
ID = "onnx_recipes.py::{}::opset{}-cpu"


@pytest.fixture
def run(project):
    def run(*arguments, **environment):
        return project.command("pytest", "-p", "no:cacheprovider", *arguments, **environment)

    return run


def outcomes(done):
    """The words and counts of pytest's last line."""
    words = done.stdout.strip().splitlines()[-1].strip("= ").split(" in ")[0].replace(",", "").split()
    return {
        word.rstrip("s") if word.startswith("error") else word: int(count)
        for count, word in zip(words[::2], words[1::2], strict=True)
    }


def report_of(project):
    return json.loads((project.root / "r.json").read_text(encoding="utf-8"))


def test_without_the_flag_nothing_changes(project, run):
    project.write("onnx_recipes.py", "raise RuntimeError('imported')")
    project.write(
        "test_own.py", "import sys\n\ndef test_own():\n    assert 'torch' not in sys.modules and 'click' not in sys.modules\n"
    )
    done = run("--strict-markers", is_fresh=True)
    assert (done.returncode, outcomes(done)) == (0, {"passed": 1})
    assert "onnx export" not in done.stdout.lower()


def test_cells_are_collected_run_and_shown_as_a_grid(project, run):
    project.recipes(RIGHT)
    done = run("--onnx-export", "--onnx-report=r.json", "-v")
    assert (done.returncode, outcomes(done)) == (0, {"passed": 9})
    assert f"{ID.format('right', 9)} PASSED (drift " in done.stdout
    heading, row = (line.split() for line in done.stdout.splitlines() if line.startswith(("opset ", "right cpu ")))
    assert heading[1:] == [str(opset) for opset in range(9, 18)]
    assert len([float(number) for number in row[2:]]) == 9
    assert "9 cells: 9 passed in" in done.stdout
    report = report_of(project)
    assert report["schema_version"] == 1
    assert [cell["id"] for cell in report["cells"]] == [ID.format("right", opset) for opset in range(9, 18)]
    assert all(cell["status"] == "passed" and cell["outputs"] for cell in report["cells"])
    assert report["summary"] | {"seconds": 0} == {
        "verdict": "passed", "cells": 9, "passed": 9, "warned": 0, "problems": 0, "not_run": 0, "seconds": 0,
    }  # fmt: skip
    assert report["environment"]["torch"] == importlib.metadata.version("torch")


@pytest.mark.slow
def test_a_failing_cell_prints_what_to_do_and_a_command_that_repeats_it(project, run):
    project.recipes(RIGHT, WRONG)
    done = run("--onnx-export", "--onnx-opsets=12-13", "--onnx-max-drift=16")
    assert (done.returncode, outcomes(done)) == (1, {"failed": 2, "passed": 2})
    assert "onnx_recipes.py:21: baked-shape\n" in done.stdout
    assert "onnxruntime fails on 'batch=4'" in done.stdout
    assert "remedy: " in done.stdout
    assert "Traceback" not in done.stdout
    assert "onnx_ci/" not in done.stdout
    assert "\n    >       " in done.stdout  # the line in its function
    first = ID.format("wrong", 12)
    assert f"baked-shape at onnx_recipes.py:21: same cause as {first}\n" in done.stdout
    assert "(the same cause at opsets 12-13 on cpu)\n" in done.stdout
    assert f"FAILED {first}" in done.stdout  # the rule after it is shown by pytest 9
    verbose = run("--onnx-export", "--onnx-opsets=12-13", "--onnx-max-drift=16", "-v")
    commands = [line.partition("repeat with: ")[2] for line in verbose.stdout.splitlines() if "repeat with: " in line]
    assert commands[1] == f"pytest --onnx-export --onnx-opsets=13 --onnx-max-drift=16 --no-onnx-cache {ID.format('wrong', 13)}"
    again = run(*shlex.split(commands[1])[1:])
    assert (again.returncode, outcomes(again)) == (1, {"failed": 1})


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [
        (["-k", "(right and opset13) or vision"], 10),
        (["-m", "onnx_export(opset=13) or onnx_export(recipe='right', device='cpu')"], 10),
        (["--onnx-select=right::opset9-cpu", "--onnx-select=other"], 10),
        ([ID.format("other", 11), "onnx_recipes.py::right"], 10),
    ],
)
def test_pytests_own_selection_works(project, run, selection, chosen):
    project.recipes(RIGHT, RIGHT.replace("def right", "def other").replace("recipe(", "recipe(tags=['vision'], "))
    done = run("--onnx-export", "--co", "-q", *selection)
    assert done.returncode == 0
    assert sum(line.startswith("onnx_recipes.py::") for line in done.stdout.splitlines()) == chosen


def test_the_file_of_a_pass_is_selected_by_its_mark(project, run):
    project.recipes(RIGHT.replace("recipe(", "recipe(then='ort-optimized', "))
    for graph_pass, suffix in (("'ort-optimized'", "+ort-optimized"), ("None", "")):
        done = run("--onnx-export", "--onnx-opsets=13", "--co", "-q", "-m", f"onnx_export(graph_pass={graph_pass})")
        assert [line for line in done.stdout.splitlines() if "::" in line] == [ID.format("right", 13) + suffix]


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["."], 0),
        ([ID.format("big", 9)], 1),
        (["--onnx-tags=big"], 1),
    ],
)
def test_a_manual_recipe_is_collected_where_it_is_asked_for(project, run, arguments, count):
    project.recipes(RIGHT.replace("recipe(", "recipe(manual='slow', tags=['big'], ").replace("def right", "def big"))
    done = run("--onnx-export", "--onnx-opsets=9", "--co", "-q", *arguments)
    assert sum(line.startswith("onnx_recipes.py::") for line in done.stdout.splitlines()) == count


def test_stopping_at_the_first_failure_says_what_did_not_run(project, run):
    project.recipes(WRONG, RIGHT)
    done = run("--onnx-export", "--onnx-opsets=12-13", "-x", "--onnx-report=r.json", "--onnx-isolation=none")
    assert (done.returncode, outcomes(done)) == (1, {"failed": 1})
    assert "did not run: 3 cells" in done.stdout
    report = report_of(project)
    assert report["not_run"] == [ID.format("wrong", 13), ID.format("right", 12), ID.format("right", 13)]
    assert report["summary"]["verdict"] == "failed"


def test_stopping_at_the_first_failure_keeps_what_ran_ahead(project, run):
    project.recipes(WRONG, RIGHT)
    done = run("--onnx-export", "--onnx-opsets=12-13", "-x", "--onnx-report=r.json")
    assert (done.returncode, outcomes(done)) == (1, {"failed": 1})
    report = report_of(project)
    known = [cell["id"] for cell in report["cells"]]
    assert known[0] == ID.format("wrong", 12)
    assert sorted([*known, *report["not_run"]]) == sorted(
        ID.format(name, opset) for name in ("wrong", "right") for opset in (12, 13)
    )
    assert report["summary"]["verdict"] == "failed"


def test_junit_names_every_cell(project, run):
    project.recipes(RIGHT, WRONG)
    run("--onnx-export", "--onnx-opsets=13", "--junitxml=junit.xml")
    cases = {case.get("classname"): case for case in ElementTree.parse(project.root / "junit.xml").iter("testcase")}
    assert set(cases) == {"onnx_recipes.right", "onnx_recipes.wrong"}
    assert cases["onnx_recipes.right"].get("name") == "opset13-cpu"
    assert cases["onnx_recipes.right"].find("failure") is None
    assert "baked-shape" in cases["onnx_recipes.wrong"].find("failure").text


@pytest.mark.parametrize("extra", [["-n", "2"], ["-p", "no:xdist"]])
def test_the_report_is_the_same_with_and_without_workers(project, run, extra):
    project.recipes(RIGHT, WRONG)
    done = run("--onnx-export", "--onnx-opsets=12-13", "--onnx-report=r.json", *extra)
    assert (done.returncode, outcomes(done)) == (1, {"failed": 2, "passed": 2})
    report = report_of(project)
    assert {cell["id"]: cell["status"] for cell in report["cells"]} == {
        ID.format(name, opset): status for name, status in (("right", "passed"), ("wrong", "failed")) for opset in (12, 13)
    }
    assert "wrong cpu" in done.stdout


@pytest.mark.slow
def test_workers_get_whole_recipes_and_share_the_last_one_if_one_of_them_would_be_idle(project, run):
    def workers(done):
        """By recipe, the workers that ran its cells."""
        found = {}
        for worker, recipe in re.findall(r"^\[(gw\d)\].*PASSED.* onnx_recipes\.py::(\w+)::", done.stdout, re.MULTILINE):
            found.setdefault(recipe, []).append(worker)
        return {recipe: sorted(each) for recipe, each in found.items()}

    project.recipes(RIGHT, RIGHT.replace("right", "other"), RIGHT.replace("right", "third"))
    flags = ["--onnx-export", "--onnx-opsets=11-14", "-n", "2", "-v"]
    one, other, last = ["gw0"] * 4, ["gw1"] * 4, ["gw0"] * 2 + ["gw1"] * 2
    found = workers(run(*flags))
    first, second = (one, other) if found["right"] == one else (other, one)  # chance decides which worker is ready first
    assert (found["right"], found["other"]) == (first, second)
    assert found["third"] in (last, one, other)  # a worker that is much slower leaves the last recipe's parts to the other one
    assert workers(run(*flags, "-k", "third")) == {"third": last}


@pytest.mark.slow
def test_a_worker_that_dies_without_isolation_costs_its_own_cell_only(project, run):
    project.recipes(RIGHT, DIES)
    done = run("--onnx-export", "--onnx-opsets=12-13", "--onnx-report=r.json", "-n", "2", "--onnx-isolation=none")
    assert done.returncode == 1
    report = report_of(project)
    statuses = {cell["id"]: [cell["status"], *(each["rule"] for each in cell["findings"])] for cell in report["cells"]}
    assert statuses == {
        ID.format("right", 12): ["passed"],
        ID.format("right", 13): ["passed"],
        ID.format("dies", 12): ["failed", "crash"],
        ID.format("dies", 13): ["failed", "crash"],
    }
    assert report["not_run"] == []


def test_a_glob_that_names_nothing_is_a_test_that_fails_with_workers_too(project, run):
    project.recipes(RIGHT)
    done = run("--onnx-export", "--onnx-opsets=13", "--onnx-select=right,wrong", "--onnx-report=r.json", "-n", "2")
    assert (done.returncode, outcomes(done)) == (1, {"failed": 1, "passed": 1})
    assert "--select: no cell matches 'wrong'" in done.stdout
    assert json.loads((project.root / "r.json").read_text())["summary"]["problems"] == 1


HIDDEN = """
    import pytest

    def pytest_collection_modifyitems(items):
        for item in items:
            item.add_marker(pytest.mark.xfail)
"""
SWALLOWED = """
    import pytest

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport():
        report = yield
        report.outcome = "passed"
        return report
"""


@pytest.mark.parametrize("conftest", [HIDDEN, SWALLOWED])
def test_a_failure_that_a_conftest_hides_fails_the_run(project, run, conftest):
    project.write("conftest.py", conftest)
    raising = """
        @onnx_ci.recipe
        def raising():
            raise ValueError("no weights")
    """
    project.recipes(RIGHT, raising)
    done = run("--onnx-export", "--onnx-opsets=13")
    assert done.returncode == 1, done.stdout
    assert "1 cell failed, although a conftest.py or a plugin hides that from pytest" in done.stdout


SKIPS = """
    import pytest

    def pytest_collection_modifyitems(items):
        for item in items:
            if "left" in item.nodeid or "broken" in item.nodeid:
                item.add_marker(pytest.mark.skip(reason="not asked for"))
"""


@pytest.mark.parametrize("names", [["left"], ["right", "left"]])
def test_a_cell_that_a_conftest_skips_is_no_success(project, run, names):
    project.write("conftest.py", SKIPS)
    project.recipes(*(RIGHT.replace("right", name) for name in names))
    done = run("--onnx-export", "--onnx-opsets=13", "--onnx-report=r.json", "-n", "1", "--no-onnx-cache")
    assert (done.returncode, report_of(project)["summary"]["verdict"]) == (1, "failed"), done.stdout
    assert "did not run: 1 cell, first onnx_recipes.py::left::opset13-cpu" in done.stdout


def test_a_broken_file_that_a_conftest_skips_is_no_success(project, run):
    project.write("conftest.py", SKIPS)
    project.write("broken/onnx_recipes.py", "import onnx_ci, missing_module")
    project.recipes(RIGHT)
    done = run("--onnx-export", "--onnx-opsets=13")
    assert (done.returncode, outcomes(done)) == (1, {"passed": 1, "failed": 1}), done.stdout
    assert "INTERNALERROR" not in done.stdout + done.stderr


def test_expected_failures_are_shown_as_pytest_shows_them(project, run):
    project.recipes(
        WRONG.replace("recipe(", "recipe(expect={13: onnx_ci.known_failure('baked-shape', 'known')}, "),
        RIGHT.replace("recipe(", "recipe(expect={13: onnx_ci.unsupported('gone')}, "),
    )
    done = run("--onnx-export", "--onnx-opsets=12-13", "-rx")
    assert (done.returncode, outcomes(done)) == (1, {"failed": 2, "xfailed": 1, "passed": 1})
    assert "known" in done.stdout
    assert "unexpected-pass" in done.stdout


def test_an_absent_device_skips_its_cells_with_the_reason(project, run):
    import torch

    if torch.cuda.device_count():  # unlike is_available(), this lets forks use CUDA
        pytest.skip("this machine has a CUDA device")
    project.recipes(RIGHT)
    done = run("--onnx-export", "--onnx-opsets=13", "--onnx-devices=cpu,cuda", "--onnx-report=r.json")
    assert (done.returncode, outcomes(done)) == (0, {"passed": 1, "skipped": 1})
    assert "skipped 1 cell: no cuda: " in done.stdout
    cell = report_of(project)["cells"][1]
    assert (cell["id"], cell["status"]) == ("onnx_recipes.py::right::opset13-cuda", "skipped")
    assert cell["reason"].startswith("no cuda: ")


def test_only_skipped_cells_are_no_success(project, run):
    import torch

    if torch.cuda.device_count():  # unlike is_available(), this lets forks use CUDA
        pytest.skip("this machine has a CUDA device")
    project.recipes(RIGHT)
    done = run("--onnx-export", "--onnx-devices=cuda", "--onnx-opsets=13")
    assert done.returncode == 5
    assert "nothing was verified: every cell was skipped" in done.stdout


# --- bad input


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--onnx-opsets=17-9"], "onnx-ci: --onnx-opsets: the range 17-9 runs backwards; write 9-17"),
        (["--onnx-report=onnx_recipes.py/r.json"], "cannot be written"),
    ],
)
def test_a_wrong_flag_is_one_message_before_any_work(project, run, flags, said):
    project.recipes(RIGHT)
    done = run("--onnx-export", *flags)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert said in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert sorted(path.name for path in project.root.iterdir() if path.name != "__pycache__") == ["onnx_recipes.py"]


def test_a_misspelt_setting_names_the_nearest(project, run):
    project.recipes(RIGHT)
    project.write("pyproject.toml", '[tool.onnx-ci]\nopset = "9"\n')
    done = run("--onnx-export")
    assert (done.returncode, "[tool.onnx-ci] has no setting 'opset'; did you mean 'opsets'?" in done.stderr) == (4, True)
    assert run().returncode == 5  # without --onnx-export the table is not even read


def test_settings_outside_of_pytests_rootdir_are_not_left_out_in_silence(project, run):
    project.recipes(RIGHT, name="tests/onnx_recipes.py")
    project.write("tests/pytest.ini", "[pytest]\n")
    project.write("pyproject.toml", "[tool.onnx-ci]\nopsets = 13\n")
    done = run("--onnx-export", "tests")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"but settings are in {project.root}; add --rootdir={project.root}" in done.stderr
    done = run("--onnx-export", "tests", f"--rootdir={project.root}")
    assert (done.returncode, outcomes(done)) == (0, {"passed": 1}), done.stdout
    assert run("tests").returncode == 5  # without the flag, pytest alone decides


def test_no_recipe_found_says_where_it_looked(project, run):
    done = run("--onnx-export")
    assert done.returncode == 5
    assert "recipe files are onnx_recipes.py, conftest.py" in done.stdout


def test_no_cell_is_no_success_though_other_tests_pass(project, run):
    project.write("test_own.py", "def test_own(): ...")
    done = run("--onnx-export")
    assert (done.returncode, outcomes(done)) == (5, {"passed": 1})


def test_whoever_has_the_flag_in_addopts_can_run_other_tests_alone(project, run):
    project.write("pyproject.toml", "[tool.pytest.ini_options]\naddopts = ['--onnx-export']\n[tool.onnx-ci]\nopsets = 13\n")
    project.write("test_own.py", "def test_own(): ...")
    assert run().returncode == 5  # no recipe is found, and that must not pass
    project.recipes(RIGHT)
    for part in (["test_own.py"], ["-k", "own"]):
        done = run(*part)
        assert (done.returncode, "nothing was verified: " in done.stdout) == (0, True), done.stdout
        assert run("--onnx-export", *part).returncode == 5
    assert run("-k", "neither").returncode == 5
    done = run()
    assert (done.returncode, outcomes(done)) == (0, {"passed": 2})


def test_a_variable_that_a_conftest_sets_when_the_session_starts_is_seen_by_the_cache(project, run):
    project.write(
        "conftest.py",
        """
        import os

        def pytest_addoption(parser):
            parser.addoption("--kind", default="good")

        def pytest_sessionstart(session):
            os.environ["MODEL_KIND"] = session.config.getoption("--kind")
        """,
    )
    project.recipes(RIGHT)
    flags = ("--onnx-export", "--onnx-opsets=13", "--onnx-cache=verdicts")
    told = ["1 of them cached" in run(*flags, *kind).stdout for kind in ([], [], ["--kind=bad"], ["--kind=bad"])]
    assert told == [False, True, False, True]


def test_everything_deselected_is_no_success(project, run):
    project.recipes(RIGHT)
    done = run("--onnx-export", "-k", "nothing_like_that")
    assert done.returncode == 5
    assert "every cell was deselected" in done.stdout


@pytest.mark.parametrize("extra", [[], pytest.param(["-n", "2"], marks=pytest.mark.slow)])
def test_a_broken_file_fails_the_run_and_costs_no_cell_its_result(project, run, extra):
    project.recipes(RIGHT)
    project.write("a/onnx_recipes.py", "import nowhere_at_all")
    project.write("b/onnx_recipes.py", "x = (")
    project.write("z/onnx_recipes.py", "import onnx_ci\n\n@onnx_ci.recipe\ndef right(): ...")
    done = run("--onnx-export", "--onnx-opsets=13", "--onnx-report=r.json", *extra)
    assert (done.returncode, outcomes(done)) == (1, {"failed": 3, "passed": 1})
    assert "a/onnx_recipes.py: cannot be imported: ModuleNotFoundError" in done.stdout
    assert "b/onnx_recipes.py: cannot be imported: SyntaxError" in done.stdout
    assert "the recipe name 'right' (z/onnx_recipes.py, line 3) is already used by onnx_recipes.py" in done.stdout
    assert "Traceback" not in done.stdout
    report = report_of(project)
    assert [cell["status"] for cell in report["cells"]] == ["passed"]
    assert sorted(problem["source"] for problem in report["problems"]) == [f"{name}/onnx_recipes.py" for name in "abz"]


def test_a_broken_recipe_fails_its_cells_and_no_other(project, run):
    project.recipes(RIGHT, "@onnx_ci.recipe\ndef broken():\n    raise ValueError('no such weights')")
    done = run("--onnx-export", "--onnx-opsets=12-13")
    assert (done.returncode, outcomes(done)) == (1, {"failed": 2, "passed": 2})
    assert "recipe-error: the recipe raised ValueError: no such weights (onnx_recipes.py, line " in done.stdout
    assert "Traceback" not in done.stdout


def test_a_runtime_must_be_there(project):
    """Two of them are one too many; see the tests of the command."""
    project.recipes(RIGHT)
    project.write(
        "fake.py",
        """
        import importlib.metadata, importlib.util

        def version(name, true=importlib.metadata.version):
            if name.startswith("onnxruntime"):
                raise importlib.metadata.PackageNotFoundError(name)
            return true(name)

        importlib.metadata.version = version
        importlib.util.find_spec = lambda name, true=importlib.util.find_spec: None if name == "onnxruntime" else true(name)
        """,
    )
    done = project.command("pytest", "-p", "fake", "--onnx-export", PYTHONPATH=str(project.root))
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ONNX Runtime is not installed, so no file can be run; install onnx-ci[cpu]" in done.stderr


@pytest.mark.slow
def test_recipes_of_packages_are_collected_where_no_path_is_given(project, run):
    project.write("site/exports_of_mine/__init__.py", "")
    project.recipes(RIGHT, name="site/exports_of_mine/nets.py")
    project.write("work/pyproject.toml", '[tool.onnx-ci]\npackages = ["exports_of_mine"]\nopsets = 13\n')
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--onnx-export", "-v"],
        cwd=project.root / "work", env={**os.environ, "PYTHONPATH": str(project.root / "site")},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, outcomes(done)) == (0, {"passed": 1})


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_file_that_cannot_be_written_at_the_end_hides_no_failure(project, run):
    project.recipes(WRONG)
    project.write("test_other.py", "def test_other():\n    assert 0, 'another failure'\n")
    done = run("--onnx-export", "--onnx-opsets=13", "--onnx-isolation=none", "--onnx-junit=/dev/full")
    assert done.returncode == 1
    assert "another failure" in done.stdout
    assert "::wrong::opset13-cpu" in done.stdout
    assert "onnx-ci: the report /dev/full cannot be written: No space left on device" in done.stdout


@pytest.mark.parametrize("name", ["timeout", "other"])
def test_pytest_timeout_does_not_count_what_a_cell_waits_for(project, name):
    project.recipes("""
        @onnx_ci.recipe(opsets="13")
        def net():
            return Scale(), (torch.randn(3, 4),)
    """)
    project.write(
        "conftest.py",
        f"""
        import pytest

        def pytest_configure(config):
            config.pluginmanager.register(object(), {name!r})
            config.addinivalue_line("markers", "timeout(seconds): stands for that of pytest-timeout")

        def pytest_collection_modifyitems(items):
            print("limits", [mark.args for item in items for mark in item.iter_markers("timeout")])
        """,
    )
    done = project.command("pytest", "-p", "no:cacheprovider", "--onnx-export", "--collect-only", "--strict-markers", "-s")
    assert f"limits {[(0,)] if name == 'timeout' else []}" in done.stdout
