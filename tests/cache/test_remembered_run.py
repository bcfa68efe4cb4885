"""A run is recalled without an import while nothing has changed, and only then."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import pytest
from toolbox.edits import edited_helper, edited_recipe, new_package
from toolbox.records import passed

from onnx_ci.cache.observed import Observation
from onnx_ci.cache.remembered_run import RememberedRun, RunMemory
from onnx_ci.config.settings import load_settings
from onnx_ci.environment.libraries import is_installed

RECIPES = """
    import os
    import pathlib
    import sys

    import helper

    print("imported")
    FOLDER = pathlib.Path(__file__).parent

    @onnx_ci.recipe(input_names=["x"])
    def scaled():
        torch.manual_seed(0)
        weights = FOLDER / "data" / "weights.bin"
        model = torch.nn.Linear(2, 2)
        model.note = weights.read_bytes().hex() if weights.exists() else ""
        return model, (torch.randn(3, 2),)

    @onnx_ci.recipe(opsets="9-13")
    def excluded():
        return torch.nn.ReLU(), (torch.randn(3),)
"""


@pytest.fixture
def gate(project):
    """Run the command; returns whether it imported the recipe file."""
    project.recipes(RECIPES)
    (project.root / "helper.py").write_text("SCALE = 1\n")
    (project.root / "data").mkdir()
    (project.root / "data/weights.bin").write_bytes(b"1")
    (project.root / "README.md").write_text("one\n")

    def run(*arguments, code=0, **environment):
        command = ["run", "--opsets=17", "--cache=.cache", "-v", *arguments]
        done = project.command("onnx_ci", *command, **environment)
        assert done.returncode == code, done.stdout + done.stderr
        print(done.stdout)  # shown if the test fails: why a run was not remembered
        return "imported" in done.stderr

    return run


def remembered(gate, *arguments, **options):
    """Run twice; the first run is remembered."""
    assert [gate(*arguments, **options) for _ in range(2)] == [True, False]


def test_an_unchanged_project_is_not_imported_and_reports_the_same(project, gate):
    """Both after the run of its cells, and after one that found each of them in the cache."""

    def reported():
        report = json.loads((project.root / "report.json").read_text())
        report["summary"].pop("seconds")
        return report

    words = "--report=report.json", "--junit=junit.xml"
    remembered(gate, *words)
    after_run = reported()
    shutil.rmtree(project.root / ".cache/runs")
    assert gate(*words)
    from_cells = reported()
    assert not gate(*words)
    assert after_run == from_cells == reported()
    assert from_cells["cells"][0]["cached"] is True
    assert from_cells["exclusions"]


def test_an_edit_of_one_recipe_is_remembered_at_once(project, gate):
    """Its cell runs; the others come from the cache."""
    project.write("more/onnx_recipes.py", """
        import onnx_ci, torch

        @onnx_ci.recipe
        def relu():
            return torch.nn.ReLU(), (torch.ones(3),)
    """)  # fmt: skip
    remembered(gate)
    edited_recipe(project.root)
    remembered(gate)


@pytest.mark.slow
@pytest.mark.usefixtures("gate")
def test_torch_onnx_and_numpy_are_not_imported(project):
    command = (sys.executable, "-X", "importtime", "-m", "onnx_ci", "run", "--opsets=17", "--cache=.cache")
    *_, done = (project.run(*command) for _ in range(2))
    assert done.returncode == 0
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "onnx_ci" in modules
    assert not modules & {"torch", "onnx", "numpy", "onnxruntime"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["README.md", "unused.py"])
def test_an_edited_text_that_nothing_opened_changes_nothing(project, gate, name):
    (project.root / name).write_text("one = 1\n")
    remembered(gate)
    (project.root / name).write_text("two = 2\n")
    assert not gate()


@pytest.mark.slow
def test_a_readme_that_is_opened_counts(project, gate):
    (project.root / "helper.py").write_text("SCALE = len(open('README.md').read())\n")
    remembered(gate)
    (project.root / "README.md").write_text("two\n")
    assert gate()


def edited_data(root):
    (root / "data/weights.bin").write_bytes(b"2")


def removed_data(root):
    (root / "data/weights.bin").unlink()


def new_file(root):
    (root / "data/more.bin").write_bytes(b"")


def new_recipes(root):
    (root / "more").mkdir()
    (root / "more/onnx_recipes.py").write_text("")


def new_configuration(root):
    with (root / "pyproject.toml").open("a") as file:
        file.write("# changed\n")


def touched(root):
    (root / "data/weights.bin").touch()


def new_folder(root):
    (root / "data/more").mkdir()


@pytest.mark.parametrize(
    "change",
    [
        edited_recipe,
        edited_data,
        *(
            pytest.param(change, marks=pytest.mark.slow)
            for change in (
                edited_helper,
                removed_data,
                touched,
                new_file,
                new_folder,
                new_package,
                new_recipes,
                new_configuration,
            )
        ),
    ],
)
def test_a_changed_file_is_seen(project, gate, change):
    remembered(gate)
    change(project.root)
    assert gate()


def test_a_file_outside_of_the_project_counts_if_it_was_opened(project, gate, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "value.txt"
    outside.write_text("1")
    (project.root / "helper.py").write_text(f"SCALE = int(open({str(outside)!r}).read())\n")
    remembered(gate)
    outside.write_text("2")
    assert gate()


@pytest.mark.slow
def test_a_file_that_did_not_exist_counts(project, gate, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "value.txt"
    text = f"try:\n    SCALE = int(open({str(outside)!r}).read())\nexcept OSError:\n    SCALE = 1\n"
    (project.root / "helper.py").write_text(text)
    remembered(gate)
    outside.write_text("1")
    assert gate()


@pytest.mark.slow
def test_what_the_recipe_function_opens_counts(project, gate, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "value.txt"
    outside.write_text("1")
    file = project.root / "onnx_recipes.py"
    file.write_text(file.read_text().replace("torch.manual_seed(0)", f"torch.manual_seed(int(open({str(outside)!r}).read()))"))
    remembered(gate)
    outside.write_text("2")
    assert gate()


@pytest.mark.slow
def test_a_file_that_only_the_export_looked_for_counts(project, gate, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "factor.txt"
    file = project.root / "onnx_recipes.py"
    model = f"""
class Scaled(torch.nn.Module):
    def forward(self, x):
        if torch.onnx.is_in_onnx_export():
            try:
                return x * int(open({str(outside)!r}).read())
            except OSError:
                pass
        return x * 2
"""
    file.write_text(file.read_text().replace("torch.nn.Linear(2, 2)", "Scaled()") + model)
    remembered(gate)
    outside.write_text("3")
    assert gate(code=1)


@pytest.mark.slow
def test_a_module_outside_of_the_project_counts(gate, tmp_path_factory, project):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "far.py").write_text("SCALE = 1\n")
    (project.root / "helper.py").write_text("import far\n")
    remembered(gate, PYTHONPATH=str(outside))
    (outside / "far.py").write_text("SCALE = 2\n")
    assert gate(PYTHONPATH=str(outside))


def test_a_folder_that_was_listed_counts(project, gate, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (project.root / "helper.py").write_text(f"import os\nSCALE = len(os.listdir({str(outside)!r}))\n")
    remembered(gate)
    (outside / "more").mkdir()
    assert gate()


@pytest.mark.slow
def test_a_file_that_is_edited_in_a_listed_folder_counts(project, gate, tmp_path_factory):
    """It may now be the newest."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "one.pt").write_text("1")
    (project.root / "helper.py").write_text(f"import os\nSCALE = len(os.listdir({str(outside)!r}))\n")
    remembered(gate)
    (outside / "one.pt").write_text("2")
    assert gate()


def test_what_a_killed_run_left_behind_is_removed_and_does_not_count(gate, tmp_path_factory):
    temporary = tmp_path_factory.mktemp("temporary")
    left = temporary / "onnx-ci-abandon_"
    left.with_suffix(".lock").touch()
    (left / "deep").mkdir(parents=True)
    (left / "deep" / "model.onnx").touch()
    assert gate(TMPDIR=str(temporary))
    assert not left.exists()
    assert not gate(TMPDIR=str(temporary))


@pytest.mark.slow
def test_bytecode_that_python_or_pytest_writes_beside_a_library_does_not_count(gate, tmp_path_factory):
    """pytest writes its own for each module of an installed plugin, when that is first imported there."""
    base = tmp_path_factory.mktemp("base")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    package = base / "lib" / version / "site-packages" / "library"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    remembered(gate, PYTHONUSERBASE=str(base))
    for folder in (package, package.parent):
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / "module.pyc").touch()
    assert not gate(PYTHONUSERBASE=str(base))
    (package / "module.py").touch()
    assert gate(PYTHONUSERBASE=str(base))


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="there is no /dev/shm")  # noqa: PTH112
def test_a_file_in_shared_memory_counts(project, gate):
    with tempfile.NamedTemporaryFile("w", dir="/dev/shm") as outside:
        outside.write("1")
        outside.flush()
        (project.root / "helper.py").write_text(f"SCALE = int(open({outside.name!r}).read())\n")
        remembered(gate)
        outside.write("2")
        outside.flush()
        assert gate()


@pytest.mark.slow
def test_a_file_that_could_not_be_created_because_it_exists_counts(project, gate, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "value.txt"
    outside.write_text("1")
    text = f"try:\n    open({str(outside)!r}, 'x')\nexcept FileExistsError:\n    SCALE = int(open({str(outside)!r}).read())\n"
    (project.root / "helper.py").write_text(text)
    remembered(gate)
    outside.write_text("2")
    assert gate()


@pytest.mark.slow
def test_where_a_link_to_a_folder_of_the_project_leads_counts(project, gate):
    (project.root / "other").mkdir()
    (project.root / "link").symlink_to("data")
    remembered(gate)
    (project.root / "link").unlink()
    (project.root / "link").symlink_to("other")
    assert gate()


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        """
open(f"{FOLDER}/link/same").read()
os.replace(f"{FOLDER}/link", f"{FOLDER}/old")
os.symlink("b" if os.readlink(f"{FOLDER}/old") == "a" else "a", f"{FOLDER}/link")
""",
        """
os.listdir(FOLDER)
tempfile.mkstemp(dir=FOLDER)
""",
        """
for number in range(99):
    if os.path.exists(f"{FOLDER}/{number}"):
        open(f"{FOLDER}/{number}").read()
        os.unlink(f"{FOLDER}/{number}")
        break
del number
""",
    ],
    ids=["a link that leads elsewhere", "a new file in a listed folder", "a removed file"],
)
def test_what_changes_after_it_was_read_is_seen(project, gate, tmp_path_factory, text):
    """The times of the files do not tell that."""
    outside = tmp_path_factory.mktemp("outside")
    for name in ("a", "b"):
        (outside / name).mkdir()
        (outside / name / "same").touch()
    (outside / "link").symlink_to("a")
    for number in range(99):
        (outside / f"{number}").touch()
    (project.root / "helper.py").write_text(f"import os, tempfile\nFOLDER = {str(outside)!r}\n{text}")
    assert [gate() for _ in range(3)] == [True, True, True]


@pytest.mark.slow
def test_a_temporary_folder_that_the_project_lists_counts(project, gate, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (project.root / "helper.py").write_text("import glob, tempfile\nSCALE = len(glob.glob(f'{tempfile.gettempdir()}/*.pt'))\n")
    assert gate(TMPDIR=str(outside))
    assert gate(TMPDIR=str(outside))
    (outside / "one.pt").touch()
    assert gate(TMPDIR=str(outside))


@pytest.mark.slow
def test_temporary_files_of_the_project_do_not_matter(project, gate):
    text = """
import os, pathlib, tempfile
with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder, "file")
    os.close(os.open(file, os.O_CREAT | os.O_WRONLY))
    file.read_bytes()
    os.listdir(folder)
del file, folder
"""
    (project.root / "helper.py").write_text(text)
    remembered(gate)


@pytest.mark.slow
@pytest.mark.parametrize(("isolation", "imports"), [("spawn", [True, False]), ("none", [True, True, False])])
def test_it_holds_for_every_isolation(project, gate, tmp_path_factory, isolation, imports):
    """Where all cells run in one process, one can change the key of the next, so two runs have to find the same keys."""
    outside = tmp_path_factory.mktemp("outside") / "value.txt"
    outside.write_text("1")
    file = project.root / "onnx_recipes.py"
    file.write_text(file.read_text().replace("torch.manual_seed(0)", f"torch.manual_seed(int(open({str(outside)!r}).read()))"))
    assert [gate(f"--isolation={isolation}") for _ in imports] == imports
    outside.write_text("2")
    assert gate(f"--isolation={isolation}")


@pytest.mark.slow
def test_a_verdict_that_another_run_stores_meanwhile_counts_with_the_files_that_it_depends_on(project, gate, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "factor.txt").write_text("2")
    file = project.root / "onnx_recipes.py"
    model = f"""
class Scaled(torch.nn.Module):
    runs = 0

    def forward(self, x):
        if torch.onnx.is_in_onnx_export():
            return x * int(open({str(outside / "factor.txt")!r}).read())
        if Scaled.runs:  # the key is known
            for stored in pathlib.Path({str(outside)!r}).glob("*.json"):
                shutil.copy(stored, {str(project.root / ".cache")!r})
        Scaled.runs += 1
        return x * 2
"""
    file.write_text("import shutil\n" + file.read_text().replace("torch.nn.Linear(2, 2)", "Scaled()") + model)
    gate()
    (stored,) = (project.root / ".cache").glob("*.json")
    shutil.move(stored, outside)
    shutil.rmtree(project.root / ".cache/runs")
    done = project.command("onnx_ci", "run", "--opsets=17", "--cache=.cache")
    assert "1 of them cached" in done.stdout
    (outside / "factor.txt").write_text("3")
    assert gate(code=1)


@pytest.mark.slow
def test_one_file_that_changes_means_that_all_are_imported(project, gate):
    (project.root / "conftest.py").write_text("import onnx_ci, torch\ntorch.set_default_dtype(torch.float32)\n")
    remembered(gate)
    (project.root / "conftest.py").write_text("import onnx_ci, torch\ntorch.set_default_dtype(torch.float64)\n")
    assert gate()


@pytest.mark.slow
def test_a_file_that_changes_during_the_run_is_seen(project, gate):
    (project.root / "helper.py").write_text("open(__file__.replace('helper.py', 'data/weights.bin'), 'wb').write(b'1')\n")
    assert [gate() for _ in range(3)] == [True, True, True]


@pytest.mark.slow
def test_a_folder_that_a_recipe_file_puts_on_the_path_counts(project, gate, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "far.py").write_text("SCALE = 1\n")
    (project.root / "helper.py").write_text(f"import sys\nsys.path.insert(0, {str(outside)!r})\nimport far\n")
    remembered(gate)
    (outside / "data.bin").touch()
    assert gate()


def test_where_nothing_ran_that_is_said_each_time(project, gate):
    for _ in range(3):
        done = project.command("onnx_ci", "run", "--opsets=17", "--cache=.cache", "--select=excluded::*")
        assert (done.returncode, "nothing ran: " in done.stderr) == (5, True)
        assert not done.stderr.strip().endswith("nothing ran:")


def test_a_variable_counts(gate):
    remembered(gate)
    assert gate(SOME_VARIABLE="1")


@pytest.mark.slow
def test_a_setting_counts(gate):
    remembered(gate)
    assert gate("--max-drift=15")


@pytest.mark.parametrize(
    "text",
    [
        "import subprocess\nSCALE = subprocess.run(['true'], check=True).returncode\n",
        *(
            pytest.param(text, marks=pytest.mark.slow)
            for text in (
                "import sqlite3\nsqlite3.connect(':memory:').close()\n",
                "import subprocess, threading\nt = threading.Thread(target=subprocess.run, args=(['true'],))\nt.start()\nt.join()\n",
                "import pty, os\nif (child := pty.fork()[0]) == 0:\n    os._exit(0)\nos.waitpid(child, 0)\ndel child\n",
                "import multiprocessing\nmultiprocessing.get_context('spawn').Pool(1).close()\n",
                "import os\nfolder = os.open('data', os.O_RDONLY)\nos.close(os.open('weights.bin', os.O_RDONLY, dir_fd=folder))\n",
                "import socket\ntry:\n    socket.create_connection(('127.0.0.1', 9), timeout=1)\nexcept OSError:\n    pass\n",
            )
        ),
    ],
)
def test_what_cannot_be_recorded_is_told_and_imported_each_time(project, gate, text):
    (project.root / "helper.py").write_text(text)
    assert [gate() for _ in range(3)] == [True, True, True]
    done = project.command("onnx_ci", "run", "--opsets=17", "--cache=.cache", "-v")
    assert "the next run imports the recipe files again: " in done.stdout
    assert f"{project.root / 'helper.py'} " in done.stdout or "Thread" in text


@pytest.mark.parametrize(
    ("seed", "imported"),
    [
        ("torch.seed()", "SCALE = 1"),
        *(
            pytest.param(seed, imported, marks=pytest.mark.slow)
            for seed, imported in (
                ("torch.manual_seed(uuid.uuid4().int % 2**32)", "SCALE = 1"),
                ("torch.manual_seed(secrets.randbits(32))", "SCALE = 1"),
                ("torch.manual_seed(int(numpy.random.default_rng().integers(2**32)))", "SCALE = 1"),
                ("torch.manual_seed(helper.SCALE)", "import random\nSCALE = random.randrange(2**32)"),
                ("torch.manual_seed(helper.SCALE)", "import numpy\nSCALE = int(numpy.random.randint(2**31))"),
                ("torch.manual_seed(helper.SCALE)", "import torch\nSCALE = int(torch.randint(2**31, ()))"),
                ("torch.manual_seed(helper.SCALE)", "import torch\ntorch.seed()\nSCALE = int(torch.randint(2**31, ()))"),
            )
        ),
    ],
)
def test_what_depends_on_chance_is_never_remembered(project, gate, seed, imported):
    file = project.root / "onnx_recipes.py"
    text = file.read_text().replace("torch.manual_seed(0)", seed)
    file.write_text(f"import numpy, secrets, uuid\n{text}")
    (project.root / "helper.py").write_text(f"{imported}\n")
    assert [gate(is_fresh=True) for _ in range(3)] == [True, True, True]


@pytest.mark.slow
def test_a_model_that_draws_when_it_runs_first_is_never_remembered(project, gate):
    """Its key is computed in that run."""
    file = project.root / "onnx_recipes.py"
    model = """
class Drawn(torch.nn.Module):
    def forward(self, x):
        if not hasattr(Drawn, "count"):
            Drawn.count = uuid.uuid4().int % 50
        for _ in range(Drawn.count):
            x = x + 1
        return x
"""
    file.write_text("import uuid\n" + file.read_text().replace("torch.nn.Linear(2, 2)", "Drawn()") + model)
    assert [gate(is_fresh=True) for _ in range(3)] == [True, True, True]


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["random.seed(3)", "numpy.random.seed(3)", "torch.manual_seed(3)\ntorch.rand(3)"])
def test_a_seed_that_is_set_while_a_file_is_imported_is_no_chance(project, gate, seed):
    (project.root / "helper.py").write_text(f"import random, numpy, torch\n{seed}\n")
    remembered(gate)


@pytest.mark.slow
def test_another_generator_of_numpy_does_no_harm(project, gate):
    (project.root / "helper.py").write_text("import numpy\nnumpy.random.set_bit_generator(numpy.random.PCG64(1))\n")
    assert gate(PYTHONWARNINGS="error::RuntimeWarning:onnx_ci.cache.observed")


@pytest.mark.slow
def test_a_project_can_fix_the_numbers_that_it_asks_the_system_for(project, gate):
    file = project.root / "onnx_recipes.py"
    file.write_text(file.read_text().replace("torch.manual_seed(0)", "torch.manual_seed(uuid.uuid4().int % 2**32)"))
    fixed = "import os, random\nos.urandom = random._urandom = lambda size: b'0' * size\n"
    (project.root / "helper.py").write_text(fixed)
    file.write_text(f"import helper, uuid\n{file.read_text()}")
    remembered(gate)


def test_why_a_run_is_not_remembered_that_may_depend_on_chance_is_told(project, gate):
    (project.root / "helper.py").write_text("import uuid\nSCALE = uuid.uuid4() is None\n")
    done = project.command("onnx_ci", "run", "--opsets=17", "--cache=.cache", "-v")
    told = f"the next run imports the recipe files again: {project.root / 'helper.py'} asks the system for random numbers"
    assert told in done.stdout


def test_chance_that_changes_no_key_does_not_matter(project, gate):
    """Two runs tell that."""
    (project.root / "helper.py").write_text("import uuid\nSCALE = uuid.uuid4() is None\n")
    assert [gate() for _ in range(3)] == [True, True, False]


@pytest.mark.slow
def test_a_verdict_that_is_not_kept_means_that_the_cell_runs_again(project, gate):
    file = project.root / "onnx_recipes.py"
    file.write_text(file.read_text().replace("model.note = ", "model.left = iter([1])\n    model.note = "))
    assert [gate() for _ in range(3)] == [True, True, True]


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["fork", "spawn"])
def test_a_cell_that_may_have_failed_for_the_machine_runs_again(project, gate, isolation):
    file = project.root / "onnx_recipes.py"
    model = """
class Crashing(torch.nn.Module):
    def forward(self, x):
        if torch.onnx.is_in_onnx_export():
            os.abort()
        return x
"""
    file.write_text(file.read_text().replace("torch.nn.Linear(2, 2)", "Crashing()") + model)
    assert [gate(f"--isolation={isolation}", code=1) for _ in range(3)] == [True, True, True]


@pytest.mark.slow
def test_odd_files_in_the_project_do_no_harm(project, gate):
    folder = project.root / "odd"
    folder.mkdir()
    (folder / "loop").symlink_to("loop")
    (folder / "up").symlink_to(project.root)
    (folder / "gone").symlink_to("nowhere")
    (folder / "line\nbreak").touch()
    os.mkfifo(folder / "pipe")
    os.close(os.open(os.fsencode(folder) + b"/\xff", os.O_CREAT))
    remembered(gate)


@pytest.mark.slow
def test_a_linked_folder_counts(project, gate, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (project.root / "link").symlink_to(outside)
    remembered(gate)
    (outside / "more.bin").touch()
    assert gate()


@pytest.mark.slow
def test_a_file_that_is_appended_to_and_read_counts(project, gate, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "log.txt"
    (project.root / "helper.py").write_text(f"file = open({str(outside)!r}, 'a+')\nfile.seek(0)\nSCALE = len(file.read())\n")
    assert [gate() for _ in range(3)] == [True, True, False]  # the first run makes the file
    outside.write_text("1")
    assert gate()


def test_failures_are_remembered_with_their_exit_code(project, gate):
    file = project.root / "onnx_recipes.py"
    text = file.read_text().replace("torch.nn.Linear(2, 2)", "Wrong()")
    wrong = """
class Wrong(torch.nn.Module):
    def forward(self, x):
        return x * 3 if torch.onnx.is_in_onnx_export() else x * 2
"""
    file.write_text(f"{text}\n{wrong}")
    remembered(gate, code=1)
    assert "numeric-drift" in project.command("onnx_ci", "run", "--opsets=17", "--cache=.cache").stdout


@pytest.mark.parametrize(
    "damage",
    [
        b'{"schema": 1, "sha256": "0"}',
        *(pytest.param(each, marks=pytest.mark.slow) for each in (b"", b"{}", b"[]", b"\xff")),
    ],
)
def test_a_damaged_memory_is_none(project, gate, damage):
    remembered(gate)
    (file,) = (project.root / ".cache/runs").glob("*.json")
    file.write_bytes(damage)
    assert gate()


@pytest.mark.slow
def test_clearing_the_cache_clears_it(project, gate):
    remembered(gate)
    project.command("onnx_ci", "cache", "--clear", "--cache=.cache")
    assert gate()


def test_files_of_the_project_in_the_folder_of_the_cache_are_not_overlooked(gate):
    assert [gate("--cache=data") for _ in range(3)] == [True, True, True]


@pytest.mark.slow
def test_files_of_the_project_where_runs_are_remembered_are_not_overlooked(project, gate):
    (project.root / "mine/runs").mkdir(parents=True)
    (project.root / "mine/runs/value.json").touch()
    assert [gate("--cache=mine") for _ in range(3)] == [True, True, True]
    project.command("onnx_ci", "cache", "--clear", "--cache=mine")
    assert (project.root / "mine/runs/value.json").exists()


@pytest.mark.slow
def test_a_file_that_the_command_itself_writes_into_the_project_is_named(project, gate):
    gate()
    with (project.root / "run.log").open("w") as log:
        words = [sys.executable, "-m", "onnx_ci", "run", "--opsets=17", "--cache=.cache", "-v"]
        done = subprocess.run(words, cwd=project.root, stdout=log, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 0
    text = (project.root / "run.log").read_text()
    assert f"the next run imports the recipe files again: {project.root / 'run.log'} changed during the run" in text


@pytest.mark.slow
def test_a_file_that_is_dated_in_the_future_does_no_harm(project, gate):
    tomorrow = time.time() + 86400
    os.utime(project.root / "data/weights.bin", (tomorrow, tomorrow))
    os.utime(project.root / "README.md", (tomorrow, tomorrow))
    remembered(gate)


def test_why_a_command_is_never_remembered_is_told(project, gate):
    gate()
    done = project.command("onnx_ci", "run", "--opsets=17", "--cache=.cache", "-v", "--artifacts=kept")
    assert "the next run imports the recipe files again: cells run where files of them are kept" in done.stdout


@pytest.mark.slow
def test_the_runs_that_are_used_are_kept(gate):
    """Eight are."""
    remembered(gate)
    for drift in range(11, 19):
        gate(f"--max-drift={drift}")
        assert not gate()


@pytest.mark.slow
def test_no_cache_runs_every_cell(gate):
    remembered(gate)
    assert gate("--no-cache")


def test_large_runs_are_remembered_as_far_as_there_is_room(tmp_path, monkeypatch):
    monkeypatch.setattr("onnx_ci.cache.memory.MOST_BYTES", 2**20)
    # Only the folders of libraries stay: into the others, tests that ran before in this process may have written files.
    monkeypatch.setattr(sys, "path", [place for place in sys.path if is_installed(f"{place}{os.sep}")])

    def remembered_run(name, size):
        """The memory of a command, and why it does not remember a run with a log of that many bytes."""
        memory = RunMemory(load_settings(tmp_path, flags={"cache": ".cache"}), [name], [])
        result = dataclasses.replace(passed(), cached=True, log="x" * size)
        return memory, memory.remember(RememberedRun(results=(result,), exclusions=(), files=()), Observation())

    _, why_not = remembered_run("huge", 2**20)
    assert why_not == "the results take more than 1 MiB"
    memories = []
    for name in ("first", "second", "third"):
        memory, why_not = remembered_run(name, 400_000)
        assert why_not == ""
        memories.append(memory)
    assert [memory.recall() is not None for memory in memories] == [False, True, True]
