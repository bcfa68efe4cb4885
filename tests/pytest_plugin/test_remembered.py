"""A run of pytest is recalled without importing a recipe file while nothing has changed, and only then.

What every front-end's memory depends on is tested in ``tests/cache/test_remembered_run.py``; here is what pytest adds.
"""

from __future__ import annotations

import json
import re
import shutil
import sys

import pytest

RECIPES = """
    import os
    import pathlib
    import helper

    with open(os.environ["LOG"], "a") as log:
        log.write("imported")
    del log

    @onnx_ci.recipe(input_names=["x"], tags=["vision"])
    def scaled():
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 2)
        model.note = pathlib.Path(__file__).with_name("weights.bin").read_bytes().hex()
        return model, (torch.randn(3, 2),)

    @onnx_ci.recipe(input_names=["x"], opsets="9-13")
    def relu():
        return torch.nn.ReLU(), (torch.ones(3),)
"""
WRONG = """
    class Wrong(torch.nn.Module):
        def forward(self, x):
            return x * 3 if torch.onnx.is_in_onnx_export() else x * 2

    @onnx_ci.recipe(input_names=["x"])
    def wrong():
        return Wrong(), (torch.ones(3),)
"""
AGAIN = "the next run imports the recipe files again: "


class Gate:
    """``pytest --onnx-export`` in a scratch project."""

    def __init__(self, project, log):
        self.project, self.root, self.log = project, project.root, log
        self.code, self.printed = 0, ""

    def imports(self, *arguments, is_fresh=False, **environment):
        """Run it; whether that imported a recipe file."""
        self.log.unlink(missing_ok=True)
        words = ["-p", "no:hypothesispytest", "--onnx-export", "--onnx-opsets=13", "--onnx-cache=.cache", *arguments]
        done = self.project.command("pytest", *words, is_fresh=is_fresh, LOG=str(self.log), **environment)
        self.code, self.printed = done.returncode, re.sub(r"in \d+\.\d\d?( )?s", "in 0 s", done.stdout + done.stderr)
        return self.log.exists()

    def remember(self, *arguments, **environment):
        """Run it twice; the first run is remembered."""
        assert [self.imports(*arguments, **environment) for _ in range(2)] == [True, False], self.printed

    def forget_runs(self):
        """Forget whole runs; what is known of each cell is kept."""
        shutil.rmtree(self.root / ".cache/runs")

    def write(self, name, text):
        self.project.write(name, text)


@pytest.fixture
def gate(project, tmp_path_factory):
    project.recipes(RECIPES)
    project.write("helper.py", "SCALE = 1\n")
    project.write("weights.bin", "1")
    project.write("pytest.ini", "[pytest]\n")
    return Gate(project, tmp_path_factory.mktemp("log") / "log")


def test_an_unchanged_project_is_not_imported_and_everything_is_the_same(gate):
    """What is shown, and what is written."""

    def seen():
        report = json.loads((gate.root / "report.json").read_text())
        report["summary"].pop("seconds")
        texts = [(gate.root / name).read_text() for name in ("junit.xml", "own.xml")]
        return gate.code, gate.printed, report, *(re.sub(r'(time|timestamp)="[^"]*"', "", text) for text in texts)

    words = "-v", "--onnx-report=report.json", "--junitxml=junit.xml", "--onnx-junit=own.xml", "--onnx-opsets=13-14"
    gate.remember(*words)
    after_run = seen()
    gate.forget_runs()
    assert gate.imports(*words)
    before = seen()
    assert not gate.imports(*words)
    assert after_run == before == seen()
    assert gate.code == 0
    assert AGAIN not in gate.printed
    assert [each["recipe"] for each in before[2]["exclusions"]] == ["relu"]
    assert 'classname="onnx_recipes.scaled" name="opset13-cpu"' in before[3]


@pytest.mark.slow
def test_selected_cells_are_recalled_like_all(gate):
    gate.remember("--onnx-opsets=11-13")
    for words, count in (
        (["-k", "vision and not opset11", "-x"], 2),
        (["-m", "onnx_export(opset=12)", "--lf"], 2),
        (["onnx_recipes.py::scaled", "--sw"], 3),
        (["--onnx-shard=2/3"], 2),
    ):
        assert gate.imports("--onnx-opsets=11-13", *words), words
        if f"{count} of them cached" not in gate.printed:  # pytest has imported the named file, too
            assert not gate.imports("--onnx-opsets=11-13", *words), words
        first = gate.printed
        assert f"{count} passed" in first
        assert not gate.imports("--onnx-opsets=11-13", *words), words
        assert (gate.code, gate.printed) == (0, first)
    assert not gate.imports("--onnx-opsets=11-13", "--co", "-q", "-k", "vision and not opset11", "-x")
    listed = [line for line in gate.printed.splitlines() if "::" in line]
    assert listed == ["onnx_recipes.py::scaled::opset12-cpu", "onnx_recipes.py::scaled::opset13-cpu"]
    assert not gate.imports("--onnx-opsets=11-13")


@pytest.mark.slow
def test_torch_onnx_and_numpy_are_not_imported(gate):
    for _ in range(2):
        words = ("-X", "importtime", "-m", "pytest", "--onnx-export", "--onnx-opsets=13", "--onnx-cache=.cache")
        done = gate.project.run(sys.executable, *words, LOG=str(gate.log))
        assert done.returncode == 0
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "onnx_ci" in modules
    assert not modules & {"torch", "onnx", "numpy", "onnxruntime"}


@pytest.mark.slow
def test_a_failing_cell_fails_the_same(gate):
    gate.project.recipes(RECIPES, WRONG)
    gate.remember("-v")
    before = gate.printed
    gate.forget_runs()
    assert [gate.imports("-v"), gate.printed, gate.code] == [True, before, 1]
    assert [gate.imports("-v"), gate.printed, gate.code] == [False, before, 1]
    assert "numeric-drift" in before
    assert "repeat with: pytest --onnx-export" in before
    assert [gate.imports("--lf", "-x"), gate.code, gate.imports("--lf", "-x"), gate.code] == [True, 1, False, 1]
    assert "1 failed, 2 deselected" in gate.printed


# --- what counts


def in_conftest(gate):
    gate.write("conftest.py", "EDITED = 1\n")


def in_conftest_of_folder(gate):
    """pytest imports it when it collects the folder, and forgets it when it imports that of the next folder."""
    gate.write("first/conftest.py", "EDITED = 1\n")


def in_new_folder(gate):
    (gate.root / "folder").mkdir()


def new_recipes(gate):
    gate.write("more/onnx_recipes.py", "import onnx_ci\n")


def new_conftest(gate):
    gate.write("more/conftest.py", "")


def in_ini_file(gate):
    gate.write("pytest.ini", "[pytest]\n# edited\n")


def other_ini_file(gate):
    gate.write("pytest.toml", "[pytest]\n")


def in_helper_of_conftest(gate):
    gate.write("of_conftest.py", "SCALE = 2\n")


def outside_of_project(gate):
    (gate.log.parent / "value").write_text("2")


def no_longer_absent(gate):
    (gate.log.parent / "absent").write_text("2")


def in_listed_folder(gate):
    (gate.log.parent / "listed/file").write_text("2")


def new_data_file(gate):
    gate.write("more/data.txt", "")


CONFTEST = """
    import os
    import of_conftest

    folder = os.path.dirname(os.environ["LOG"])
    open(f"{folder}/value").read()
    if os.path.exists(f"{folder}/listed"):
        os.listdir(f"{folder}/listed")
    try:
        open(f"{folder}/absent")
    except OSError:
        pass

    def pytest_configure(config):
        os.environ["OF_CONFTEST"] = "1"
"""


FREQUENT = (in_helper_of_conftest, outside_of_project, in_listed_folder, in_conftest_of_folder, in_ini_file, in_conftest)
RARE = (no_longer_absent, new_recipes, new_conftest, new_data_file, other_ini_file, in_new_folder)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [FREQUENT, RARE])
def test_a_change_is_seen(gate, changes):
    (gate.log.parent / "value").write_text("1")
    (gate.log.parent / "listed").mkdir()
    gate.write("of_conftest.py", "SCALE = 1\n")
    gate.write("conftest.py", CONFTEST)
    for folder in ("first", "second"):
        gate.write(f"{folder}/conftest.py", "")
        gate.write(f"{folder}/onnx_recipes.py", "import onnx_ci\n")
    gate.remember()
    for change in changes:
        change(gate)
        assert gate.imports(), change
        assert not gate.imports(), (change, gate.printed)


@pytest.mark.slow
def test_another_command_is_another_run(gate):
    gate.remember()
    environment = {"PYTEST_ADDOPTS": "--tb=short"}
    for words in (["-o", "xfail_strict=true"], ["-W", "ignore"], ["."]):
        assert gate.imports(*words), words
    assert not gate.imports(*words)
    assert gate.imports(**environment)
    assert not gate.imports(**environment)
    assert gate.imports(PYTEST_ADDOPTS="--tb=long")
    assert not gate.imports()
    assert not gate.imports("-v")


@pytest.mark.slow
def test_the_directory_counts(gate):
    (gate.root / "inner").mkdir()
    gate.remember(".")
    gate.project.root = gate.root / "inner"
    assert gate.imports("..", "--onnx-cache=.cache")


@pytest.mark.slow
def test_edited_recipes_helpers_and_data_are_seen(gate):
    gate.remember()
    for name, text in (("weights.bin", "2"), ("helper.py", "SCALE = 2\n")):
        gate.write(name, text)
        gate.remember()
    gate.project.recipes(RECIPES, WRONG)
    assert gate.imports()
    assert gate.code == 1


@pytest.mark.slow
def test_what_is_installed_counts(gate, tmp_path_factory):
    """A folder that pretends to hold what is installed for the user."""
    base = tmp_path_factory.mktemp("base")
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = base / "lib" / python / "site-packages"
    site.mkdir(parents=True)
    gate.remember(PYTHONUSERBASE=str(base))
    (site / "more-1.0.dist-info").mkdir()
    assert gate.imports(PYTHONUSERBASE=str(base))


# --- what is not remembered


def never(gate, why, *arguments, **environment):
    assert [gate.imports("-v", *arguments, **environment) for _ in range(3)] == [True, True, True]
    assert gate.code == 0, gate.printed
    assert f"{AGAIN}{why}" in gate.printed


@pytest.mark.slow
def test_a_session_with_other_tests_is_not_remembered(gate):
    gate.write("test_own.py", "def test_own():\n    pass\n")
    never(gate, "other tests are collected", "-m", "onnx_export")
    assert [gate.imports(".", "--ignore=test_own.py"), gate.imports(".", "--ignore=test_own.py")] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("pytest-xdist distributes the cells", ["-n", "1"]),
        ("cells run where files of them are kept", ["--onnx-artifacts=kept"]),
        ("coverage is measured", ["--cov=.", "--cov-report="]),
    ],
)
def test_how_cells_run_can_keep_a_run_from_being_remembered(gate, why, words):
    never(gate, why, *words)


@pytest.mark.slow
def test_what_happens_before_the_plugin_is_loaded_keeps_a_run_from_being_remembered(gate):
    gate.write("early.py", "")
    never(gate, f"{gate.root / 'early.py'} was imported before onnx-ci", "-p", "early")
    never(gate, f"{gate.root / 'early.py'} was imported before onnx-ci", PYTEST_PLUGINS="early")


@pytest.mark.slow
def test_another_program_that_calls_pytest_is_not_remembered(gate):
    words = ["-v", "--onnx-export", "--onnx-opsets=13", "--onnx-cache=.cache"]
    code = f"import sys, pytest\nsys.exit(pytest.main({words!r}))"
    for _ in range(3):
        gate.log.unlink(missing_ok=True)
        from toolbox import warm_python

        done = gate.project.run(warm_python.executable(), "-c", code, LOG=str(gate.log))
        assert done.returncode == 0, done.stdout
        assert gate.log.exists()
    assert f"{AGAIN}another program than pytest calls it" in done.stdout


@pytest.mark.slow
def test_what_a_conftest_does_that_cannot_be_recorded_is_told(gate):
    gate.write("conftest.py", "import subprocess\nsubprocess.run(['true'], check=True)\n")
    never(gate, f"{gate.root / 'conftest.py'} starts another program")


@pytest.mark.slow
def test_chance_in_a_conftest_is_told(gate):
    gate.write("conftest.py", "import uuid\nNUMBER = uuid.uuid4().int % 2**31\n")
    gate.project.recipes(
        RECIPES.replace("manual_seed(0)", "manual_seed(conftest.NUMBER)").replace("import helper", "import conftest")
    )
    never(gate, f"{gate.root / 'conftest.py'} asks the system for random numbers")


@pytest.mark.slow
def test_what_an_installed_plugin_does_that_cannot_be_recorded_is_told(gate, tmp_path_factory):
    """Of its import, it counts by version."""
    base = tmp_path_factory.mktemp("base")
    site = base / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    site.mkdir(parents=True)
    text = "import subprocess\nsubprocess.run(['true'])\ndef pytest_sessionstart(session):\n    {}\n"
    (site / "installed.py").write_text(text.format("pass"))
    environment = {"PYTHONUSERBASE": str(base), "PYTHONPATH": str(site)}
    gate.remember("-p", "installed", **environment)
    (site / "installed.py").write_text(text.format("subprocess.run(['true'])"))
    gate.imports("-p", "installed", **environment)
    assert gate.imports("-v", "-p", "installed", **environment)
    assert re.search(f"{AGAIN}.* starts another program", gate.printed)
    assert gate.imports("-v", "-p", "installed", **environment)


@pytest.mark.slow
def test_a_hook_that_changes_files_is_told(gate):
    gate.write("conftest.py", "def pytest_runtest_setup(item):\n    item.path.with_name('weights.bin').write_text('1')\n")
    never(gate, f"{gate.root / 'weights.bin'} changed during the run")


@pytest.mark.slow
def test_a_problem_is_never_remembered(gate):
    gate.write("more/onnx_recipes.py", "raise ValueError")
    assert [gate.imports() for _ in range(3)] == [True, True, True]
    assert gate.code == 1
    assert [gate.imports("-k", "scaled"), gate.imports("-k", "scaled"), gate.code] == [True, True, 0]


# --- what is decided otherwise than the last time, though nothing that is seen has changed


@pytest.mark.slow
def test_a_cell_whose_result_is_not_remembered_is_judged(gate):
    outside = gate.log.parent / "number"
    gate.write(
        "conftest.py",
        f"""
        import os

        def pytest_collection_modifyitems(items):
            items[:] = [items[os.stat({str(outside)!r}).st_size]]
        """,
    )
    outside.write_text("")
    gate.remember("-v")
    assert "scaled::opset13-cpu PASSED" in gate.printed
    outside.write_text("1")
    assert gate.imports("-v")
    assert "relu::opset13-cpu PASSED" in gate.printed
    assert not gate.imports("-v")


@pytest.mark.slow
def test_a_recipe_file_that_is_not_remembered_means_that_all_are_imported(gate):
    outside = gate.log.parent / "number"
    gate.write("more/onnx_recipes.py", "import onnx_ci\n")
    gate.write("other/onnx_recipes.py", "import onnx_ci\n")
    gate.write(
        "conftest.py",
        f"""
        import os

        def pytest_ignore_collect(collection_path):
            return collection_path.name in ("more", "other", "none")[os.stat({str(outside)!r}).st_size].split() or None
        """,
    )
    outside.write_text("")
    gate.remember()
    for text in ("1", "12", ""):
        outside.write_text(text)
        assert [gate.imports(), gate.imports()] == [True, False]


@pytest.mark.slow
def test_an_error_in_a_hook_is_reported_as_ever(gate):
    outside = gate.log.parent / "number"
    gate.write(
        "conftest.py",
        f"""
        import os

        def pytest_runtest_setup(item):
            assert not os.stat({str(outside)!r}).st_size
        """,
    )
    outside.write_text("")
    gate.remember("--onnx-report=report.json")
    outside.write_text("1")
    assert not gate.imports("--onnx-report=report.json")
    assert gate.code == 1
    report = json.loads((gate.root / "report.json").read_text())
    assert {rule["rule"] for cell in report["cells"] for rule in cell["findings"]} == {"internal-error"}
