"""The ``onnx-ci`` command: what it prints, its exit codes, and that it is the same gate as the plugin."""

from __future__ import annotations

import json
import shlex

import pytest
from conftest import RIGHT
from test_pytest_plugin import DIES, WRONG


@pytest.fixture
def cli(project):
    return lambda *arguments, **environment: project.command("onnx_ci", *arguments, **environment)


def test_run_shows_every_cell_and_the_grid_and_succeeds(project, cli):
    project.recipes(RIGHT)
    done = cli("run", "--opsets=12-13", "--report=out/r.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "[1/2] onnx_recipes.py::right::opset12-cpu passed (drift " in done.stdout
    assert "2 cells: 2 passed in" in done.stdout
    report = json.loads((project.root / "out/r.json").read_text())
    assert [cell["status"] for cell in report["cells"]] == ["passed", "passed"]


def test_a_failed_cell_is_exit_1_with_a_command_that_repeats_it(project, cli):
    project.recipes(RIGHT, WRONG)
    done = cli("run", "--opsets=12-13", ONNX_CI_DRIFT="16")
    assert done.returncode == 1
    commands = [line.partition("repeat with: ")[2] for line in done.stdout.splitlines() if "repeat with: " in line]
    assert commands[1] == "onnx-ci run --opsets=13 --drift=16 --select=wrong::opset13-cpu onnx_recipes.py"
    again = cli(*shlex.split(commands[1])[1:])
    assert (again.returncode, "1 cell: 1 failed" in again.stdout) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run", "--opsets=17-9"], 2, "onnx-ci: --opsets: the range 17-9 runs backwards; write 9-17"),
        (["run", "--opsets=banana"], 2, "'banana' is no opset"),
        (["run", "nowhere"], 2, "there is no nowhere"),
        (["run", "onnx_recipe.py"], 2, "there is no onnx_recipe.py; did you mean 'onnx_recipes.py'?"),
        (["run", "--report=onnx_recipes.py/x"], 2, "cannot be written"),
        (["run", "--opset=9"], 2, "--opsets"),
        (["run", "--select=banana"], 5, "nothing ran: no cell matches --select=banana"),
        (["list", "--select=banana"], 5, "no cells: no cell matches --select=banana"),
        (["run", "--packages=nowhere_at_all"], 2, "is not installed"),
    ],
)
def test_a_mistake_is_one_message_and_its_exit_code(project, cli, arguments, code, said):
    project.recipes(RIGHT)
    done = cli(*arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_an_empty_project_is_exit_5_and_says_where_it_looked(project, cli):
    for command in ("run", "list"):
        done = cli(command)
        assert (done.returncode, "no recipe was found; recipe files are onnx_recipes.py" in done.stderr) == (5, True)


def test_a_broken_file_is_exit_2_where_every_cell_passes(project, cli):
    project.recipes(RIGHT)
    project.write("a/onnx_recipes.py", "import nowhere_at_all")
    done = cli("run", "--opsets=13")
    assert (done.returncode, "1 cell: 1 passed, 1 problem" in done.stdout) == (2, True)
    assert "a/onnx_recipes.py: cannot be imported: ModuleNotFoundError" in done.stdout
    listed = cli("list", "--opsets=13")
    assert (listed.returncode, listed.stdout) == (2, "onnx_recipes.py::right::opset13-cpu\n")
    assert "a/onnx_recipes.py: cannot be imported" in listed.stderr


def test_no_runtime_is_exit_4(project, cli):
    project.recipes(RIGHT)
    project.write(
        "sitecustomize.py",
        """
        import importlib.metadata

        def version(name, true=importlib.metadata.version):
            return "1.0" if name.startswith("onnxruntime") else true(name)

        importlib.metadata.version = version
        """,
    )
    done = cli("run", PYTHONPATH=str(project.root))
    assert (done.returncode, "are both installed" in done.stderr) == (4, True)


def test_list_names_the_cells_that_run_would_run(project, cli):
    project.recipes(RIGHT)
    done = cli("list", "--opsets=12,18", "--exporters=torchscript")
    assert done.stdout.splitlines() == [
        "onnx_recipes.py::right::opset12-cpu",
        "onnx_recipes.py::right::opset18-cpu-torchscript",
    ]


def test_help_has_examples_and_every_setting(project, cli):
    from onnx_ci.config import OPTIONS

    text = cli("run", "-h").stdout
    assert "\n  Examples:\n    onnx-ci run  " in text
    assert all(f"--{option.name} " in text for option in OPTIONS)
    assert "onnx-ci" in cli("--version").stdout


def without_times(report):
    """What must not differ between front-ends: everything but times and the names of flags."""
    for cell in report["cells"]:
        assert all(seconds >= 0 for seconds in cell.pop("timings").values())
    report["summary"].pop("seconds")
    for setting in report["settings"].values():
        setting["from"] = setting["from"].replace("--onnx-", "--")
    report["settings"].pop("report")
    return report


def test_pytest_and_the_command_give_the_same_report(project, cli):
    project.write("pyproject.toml", '[tool.onnx-ci]\ndrift = 31\nrecipe-files = ["exports/*.py"]\n')
    project.recipes(RIGHT, WRONG, name="exports/nets.py")
    project.write("exports/broken.py", "import nowhere_at_all")
    cli("run", "--opsets=12-13", "--report=cli.json")
    project.command("pytest", "--onnx-export", "--onnx-opsets=12-13", "--onnx-report=pytest.json")
    one, other = (json.loads((project.root / f"{name}.json").read_text()) for name in ("cli", "pytest"))
    assert one["cells"]
    assert one["problems"]
    assert without_times(one) == without_times(other)


def test_a_process_that_dies_without_isolation_leaves_no_partial_report(project, cli):
    project.recipes(RIGHT, DIES)
    done = cli("run", "--opsets=13", "--report=r.json", "--isolation=none")
    assert done.returncode == 9
    assert not list(project.root.glob("*r.json*"))


def test_verify_judges_a_file_against_its_recipe(project, cli):
    import onnx

    project.recipes(RIGHT)
    cli("run", "--opsets=12", "--artifacts=kept")
    recipes = project.recipes(RIGHT.replace("recipe(", "recipe(weights='trained', "))
    cli("run", "--opsets=12", "--artifacts=kept")
    file = project.root / "kept/right/opset12-cpu.onnx"
    done = cli("verify", str(file), "--recipe=right")
    assert (done.returncode, "passed (drift " in done.stdout) == (0, True), done.stdout + done.stderr
    assert "opset-mismatch" in cli("verify", str(file), "--recipe=right", "--opset=13", recipes.name).stdout

    def broken(change):
        model = onnx.load(file)
        change(model.graph)
        onnx.save(model, project.root / "broken.onnx")
        judged = cli("verify", "broken.onnx", "--recipe=right")
        assert judged.returncode == 1
        return judged.stdout

    def weight(graph):
        values = onnx.numpy_helper.to_array(graph.initializer[0]) * 1.01
        graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(values, graph.initializer[0].name))

    def axis(graph):
        graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3

    assert "numeric-drift" in broken(weight)
    assert "static-axis" in broken(axis)
    for arguments, said in (
        (["none.onnx", "--recipe=right"], "there is no file none.onnx"),
        ([str(file), "--recipe=rihgt"], "there is no recipe 'rihgt'; did you mean 'right'?"),
    ):
        wrong = cli("verify", *arguments)
        assert (wrong.returncode, said in wrong.stderr) == (2, True)


def test_verify_finds_swapped_outputs(project, cli):
    import onnx

    two = """
    class Two(torch.nn.Module):
        def forward(self, x):
            return x.amin(1), x.amax(1)

    @onnx_ci.recipe(input_names=["x"], output_names=["low", "high"])
    def two():
        return Two(), (torch.randn(3, 4),)
    """
    project.recipes(two)
    cli("run", "--opsets=12", "--artifacts=kept")
    model = onnx.load(project.root / "kept/two/opset12-cpu.onnx")
    low, high = model.graph.output
    low.name, high.name = high.name, low.name
    onnx.save(model, project.root / "swapped.onnx")
    done = cli("verify", "swapped.onnx", "--recipe=two")
    assert (
        done.returncode,
        "name-mismatch: the outputs are declared as low, high and the graph has high, low" in done.stdout,
    ) == (1, True)
