"""Cells are listed and planned without an import while nothing has changed that they depend on, and only then."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from toolbox.edits import edited_helper, edited_recipe, new_package
from toolbox.records import passed, report

RECIPES = """
    import os
    import pathlib
    import onnx_ci
    import helper

    print("imported")
    FOLDER = pathlib.Path(__file__).parent

    @onnx_ci.recipe(tags=["small"], opsets="9-20")
    def first():
        ...

    @onnx_ci.recipe(exporter=["torchscript", "dynamo"], opsets="17-19", then=["onnxslim"])
    def second():
        ...

    @onnx_ci.recipe(manual="needs 8 GiB", devices="cpu", tags=["big"])
    def third():
        ...

    for name in (FOLDER / "data" / "names.txt").read_text().split():
        onnx_ci.recipe(name=name)(lambda: None)

    if "MORE" in os.environ:
        onnx_ci.recipe(name="more")(lambda: None)
"""
OTHER = "import onnx_ci\nonnx_ci.recipe(name='other')(lambda: None)\n"


@pytest.fixture
def cli(project):
    """Run a command; returns whether it imported the recipe file, and what it printed."""
    project.write("onnx_recipes.py", RECIPES)
    project.write("helper.py", "SCALE = 1\n")
    project.write("data/names.txt", "fourth\n")

    def run(*arguments, code=0, **environment):
        done = project.command("onnx_ci", *arguments, "--cache=.cache", **environment)
        assert done.returncode == code, done.stdout + done.stderr
        return "imported" in done.stderr, done.stdout

    return run


@pytest.fixture
def is_imported(cli):
    """Whether a listing imports the recipe file."""
    return lambda *arguments, **options: cli("list", "--opsets=17", *arguments, **options)[0]


def recalled(is_imported, *arguments, **options):
    """List until that imports nothing."""
    assert [is_imported(*arguments, **options) for _ in range(2)] == [True, False]


@pytest.mark.slow
def test_whatever_cells_are_chosen_they_are_the_same_without_an_import(cli):
    assert cli("list")[0]
    for command in (
        ["list"],
        ["list", "--why", "--opsets=12-18", "--sample=2", "--exporters=dynamo", "--runtimes=reference"],
        ["list", "--why", "--select=fi*::opset9-*,th*", "--devices=cpu,cuda", "--shard=1/2"],
        ["list", "--why", "--tags=big"],
        ["matrix", "--devices=cpu,cuda", "--cuda-runner=gpu"],
        ["matrix", "--shards=4", "--format=text"],
    ):
        is_imported, shown = cli(*command)
        assert not is_imported
        assert cli(*command, "--no-cache") == (True, shown)


@pytest.mark.slow
def test_where_no_cell_is_chosen_the_reason_is_the_same(project, cli):
    def stderr(*arguments):
        done = project.command("onnx_ci", "list", "--cache=.cache", *arguments)
        assert done.returncode == 5
        return done.stderr

    assert cli("list")[0]
    for arguments in (["--select=frist"], ["--tags=bigg"], ["--shard=99/99"]):
        again = stderr(*arguments)
        assert "onnx-ci: no cells: " in again
        assert stderr(*arguments, "--no-cache") == f"imported\n{again}"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["onnx_recipes.py"], ["more", "--opsets=18-"]], ids=["a recipe", "the settings"])
def test_the_newest_opset_is_remembered_where_a_range_has_no_end(project, arguments):
    """No program may be started to find it out."""
    project.write("onnx_recipes.py", "import onnx_ci\nonnx_ci.recipe(name='net', opsets='18-')(lambda: None)\n")
    project.write("more/onnx_recipes.py", OTHER)
    hook = "lambda event, _: event == 'subprocess.Popen' and print('a program\\n', end='')"  # threads start two at once
    guard = project.write("guard/sitecustomize.py", f"import sys\nsys.addaudithook({hook})\n")

    def lines(*arguments):
        done = project.command("onnx_ci", "list", "--cache=.cache", *arguments, PYTHONPATH=str(guard.parent))
        return done.stdout.splitlines()

    assert "a program" not in lines("more")
    first, again = lines(*arguments), lines(*arguments)
    assert "a program" in first
    assert again == [line for line in first if line != "a program"]
    assert again[0].endswith("opset18-cpu")


def edited_data(root):
    (root / "data/names.txt").write_text("fifth\n")


def new_recipes(root):
    (root / "more").mkdir()
    (root / "more/onnx_recipes.py").write_text(OTHER)


def new_configuration(root):
    (root / "pyproject.toml").write_text("[tool.onnx-ci]\nsample = 3\n")


def new_pythonpath(root):
    (root / "src").mkdir()
    (root / "src/helper.py").write_text("SCALE = 4\n")
    (root / "pytest.ini").write_text("[pytest]\npythonpath = src\n")


def touched(root):
    (root / "data/names.txt").touch()


@pytest.mark.parametrize(
    "change",
    [
        edited_recipe,
        edited_data,
        new_recipes,
        *(
            pytest.param(change, marks=pytest.mark.slow)
            for change in (edited_helper, new_package, new_configuration, new_pythonpath, touched)
        ),
    ],
)
def test_a_changed_file_is_seen(project, is_imported, change):
    recalled(is_imported)
    change(project.root)
    assert is_imported()


def test_new_and_removed_recipes_are_listed(project, cli):
    file = project.write("more/onnx_recipes.py", OTHER)
    everything = cli("list")[1]
    assert "more/onnx_recipes.py::other::opset9-cpu" in everything
    file.unlink()
    assert cli("list") == (
        True,
        everything.replace("".join(f"more/onnx_recipes.py::other::opset{n}-cpu\n" for n in range(9, 18)), ""),
    )
    assert "more" not in cli("list")[1]
    project.write("more/onnx_recipes.py", OTHER)
    assert cli("list") == (True, everything)
    edited_data(project.root)
    assert cli("list") == (True, everything.replace("fourth", "fifth"))


def test_a_variable_counts(cli):
    assert "more" not in cli("list")[1]
    is_imported, shown = cli("list", MORE="1")
    assert (is_imported, "::more::" in shown) == (True, True)
    assert "more" not in cli("list")[1]


def test_paths_and_recipe_files_count(is_imported):
    recalled(is_imported)
    assert is_imported("onnx_recipes.py")
    assert is_imported(".")
    assert is_imported("--recipe-files=*_recipes.py")


@pytest.mark.slow
def test_the_current_directory_counts(project):
    project.write("pyproject.toml", "")
    project.write("onnx_recipes.py", "import os, onnx_ci\nonnx_ci.recipe(name=os.path.basename(os.getcwd()))(lambda: None)\n")
    for name in ("one", "two"):
        (project.root / name).mkdir()
    for name in ("one", "two"):
        command = [sys.executable, "-P", "-m", "onnx_ci", "list", "--cache=.cache"]  # -P: it is not on the path, either
        done = subprocess.run(command, cwd=project.root / name, capture_output=True, text=True, check=True)
        assert f"onnx_recipes.py::{name}::opset9-cpu\n" in done.stdout


def test_a_manual_recipe_whose_file_is_named_is_another_listing(cli):
    cli("list")
    assert "::third::" not in cli("list")[1]
    for imports in (True, False):
        is_imported, shown = cli("list", "onnx_recipes.py")
        assert (is_imported, "::third::" in shown) == (imports, True)


def test_a_file_outside_of_the_project_counts_if_it_was_opened(project, is_imported, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "value.txt"
    outside.write_text("1")
    project.write("helper.py", f"SCALE = int(open({str(outside)!r}).read())\n")
    recalled(is_imported)
    outside.write_text("2")
    assert is_imported()


def test_a_folder_that_is_listed_counts(project, is_imported, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    project.write("helper.py", f"import pathlib\nSCALE = len(list(pathlib.Path({str(outside)!r}).glob('*.pt')))\n")
    recalled(is_imported)
    (outside / "new.pt").touch()
    assert is_imported()


def test_where_a_link_leads_that_the_command_names_counts(project, is_imported, tmp_path_factory):
    """The files that it leads to belong to the project, so their folder is not one that was listed outside of it."""
    link = tmp_path_factory.mktemp("outside") / "link"
    for name in ("empty", "more"):
        (project.root / name).mkdir()
    project.write("more/onnx_recipes.py", OTHER)
    link.symlink_to(project.root / "empty")
    recalled(is_imported, "onnx_recipes.py", str(link))
    link.unlink()
    link.symlink_to(project.root / "more")
    assert is_imported("onnx_recipes.py", str(link))


@pytest.mark.slow
def test_a_new_module_of_an_installed_package_with_recipes_is_listed(project, cli, tmp_path_factory):
    base = tmp_path_factory.mktemp("base")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    installed = base / "lib" / version / "site-packages"
    package = installed / "library" / "deep" / "exports"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "one.py").write_text(f"print('imported')\n{OTHER}")

    def listed():
        return cli("list", "--packages=library.deep.exports", PYTHONUSERBASE=str(base), PYTHONPATH=str(installed))

    assert [listed()[0] for _ in range(2)] == [True, False]
    (package / "two.py").write_text(OTHER.replace("other", "another"))
    is_imported, shown = listed()
    assert (is_imported, "::another::" in shown) == (True, True)


def test_what_git_has_checked_out_counts_if_it_was_read(project, is_imported):
    project.write(".git/HEAD", "ref: refs/heads/main\n")
    project.write("helper.py", "SCALE = len(open('.git/HEAD').read())\n")
    recalled(is_imported)
    project.write(".git/HEAD", "ref: refs/heads/other\n")
    assert is_imported()


def test_durations_are_read_each_time(cli, tmp_path_factory):
    durations = tmp_path_factory.mktemp("outside") / "old.json"

    def shown(longest):
        results = (
            dataclasses.replace(
                passed(source="onnx_recipes.py", recipe=name, opset=16), timings={"run": 9.0 if name == longest else 1.0}
            )
            for name in ("first", "fourth")
        )
        durations.write_text(json.dumps(report(*results).as_json()))
        select = "--select=first::opset16-*,fourth::opset16-*"
        return cli("list", select, "--shard=1/2", f"--durations={durations}")

    assert shown("first") == (True, "onnx_recipes.py::first::opset16-cpu\n")
    assert shown("fourth") == (False, "onnx_recipes.py::fourth::opset16-cpu\n")


@pytest.mark.parametrize(
    "text",
    [
        "import subprocess\nSCALE = subprocess.run(['true'], check=True).returncode\n",
        "import sys\nSCALE = len(sys.argv[1:])\n",
        "import sys\nSCALE = '--deep' in sys.argv\n",
        "import sys\nSCALE = [*sys.orig_argv]\n",
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--deep')\nSCALE = parser.parse_known_args()\n",
        "open(__file__.replace('helper.py', 'data/names.txt'), 'w').write('fourth')\n",
    ],
    ids=["a program", "arguments", "an argument", "the original arguments", "a parser", "a file that it writes"],
)
def test_what_cannot_be_recorded_is_imported_each_time(project, is_imported, text):
    project.write("helper.py", text)
    assert [is_imported() for _ in range(3)] == [True, True, True]


def test_the_name_of_the_program_is_no_argument(project, is_imported):
    project.write(
        "helper.py", "import argparse, sys\nargparse.ArgumentParser()\nprint(sys.argv[0])\nsys.argv.append('--deep')\n"
    )
    recalled(is_imported)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nowhere_at_all", "cannot be imported: ModuleNotFoundError"),
        (OTHER.replace("other", "first"), "is already used by"),
    ],
)
def test_what_is_wrong_with_a_file_is_shown_each_time(project, cli, text, said):
    cli("list")
    file = project.write("more/onnx_recipes.py", text)
    for _ in range(3):
        done = project.command("onnx_ci", "list", "--cache=.cache")
        assert (done.returncode, f"onnx-ci: more/onnx_recipes.py: {said}" in done.stderr) == (2, True) or said in done.stderr
        assert "onnx_recipes.py::first::opset9-cpu\n" in done.stdout
        done = project.command("onnx_ci", "matrix", "--cache=.cache")
        assert (done.returncode, done.stdout, said in done.stderr) == (2, "", True)
    file.unlink()
    assert cli("list")[0]


def test_files_without_recipes_are_imported_each_time(project):
    project.write("onnx_recipes.py", "print('imported')\n")
    for _ in range(3):
        done = project.command("onnx_ci", "list", "--cache=.cache")
        assert (done.returncode, "imported" in done.stderr, "no recipe was found" in done.stderr) == (5, True, True)


@pytest.mark.parametrize("arguments", [["--no-cache"], ["--cache=off"]])
@pytest.mark.parametrize("command", ["list", "matrix"])
def test_without_a_cache_the_files_are_imported(project, cli, command, arguments):
    cli(command)
    assert not cli(command)[0]
    done = project.command("onnx_ci", command, "--cache=.cache", *arguments)
    assert "imported" in done.stderr


def test_the_inputs_of_models_come_from_the_models_each_time(project):
    project.recipes("print('imported')\n@onnx_ci.recipe\ndef net():\n    return torch.nn.ReLU(), (torch.randn(2, 3),)\n")
    for _ in range(3):
        done = project.command("onnx_ci", "list", "-v", "--opsets=17", "--cache=.cache")
        assert "imported" in done.stderr
        assert done.stdout == "onnx_recipes.py::net::opset17-cpu\n    input: float32[2, 3], like the example\n"
    assert "imported" not in project.command("onnx_ci", "list", "--cache=.cache").stderr


def test_the_folder_of_the_cache_is_one_that_git_leaves_out(project, is_imported):
    recalled(is_imported)
    assert (project.root / ".cache/.gitignore").read_text() == "*\n"
    assert (project.root / ".cache/CACHEDIR.TAG").exists()


@pytest.mark.parametrize(
    "damage", ["turned", *(pytest.param(each, marks=pytest.mark.slow) for each in (b"", b"{}", b"[]", b"\xff", "cut"))]
)
def test_a_damaged_memory_is_none(project, is_imported, damage):
    recalled(is_imported)
    (file,) = (project.root / ".cache/recipes").iterdir()
    content = file.read_bytes()
    damaged = {"cut": content[:-9], "turned": content.replace(b"fourth", b"fifthh")}.get(damage, damage)
    assert damaged != content
    file.write_bytes(damaged)
    assert is_imported()


def test_clearing_the_cache_clears_it(project, is_imported):
    recalled(is_imported)
    project.command("onnx_ci", "cache", "--clear", "--cache=.cache")
    assert is_imported()


def test_files_of_the_project_in_the_folder_of_the_cache_are_not_overlooked(project):
    project.write("data/onnx_recipes.py", "print('imported')\n" + OTHER)
    for _ in range(3):
        assert "imported" in project.command("onnx_ci", "list", "--cache=data").stderr
    assert {file.name for file in (project.root / "data").iterdir()} - {"__pycache__"} == {"onnx_recipes.py"}


@pytest.mark.slow
def test_a_run_does_not_depend_on_what_was_listed(project):
    project.recipes("print('imported')\n@onnx_ci.recipe\ndef net():\n    return torch.nn.ReLU(), (torch.randn(2, 3),)\n")
    for command, imports in (("list", True), ("run", True), ("run", False), ("list", False)):
        done = project.command("onnx_ci", command, "--opsets=17", "--cache=.cache")
        assert (command, "imported" in done.stderr) == (command, imports)


@pytest.mark.slow
def test_a_list_that_is_written_into_the_project_is_complete_each_time(project, cli):
    everything = cli("list")[1]
    for _ in range(3):
        with (project.root / "cells.txt").open("w") as file:
            subprocess.run(
                [sys.executable, "-m", "onnx_ci", "list", "--cache=.cache"], cwd=project.root, stdout=file, check=True
            )
        assert (project.root / "cells.txt").read_text() == everything
