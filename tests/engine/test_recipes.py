"""Recipe files are imported once, each in a process of its own, and never in the process that decides."""

from __future__ import annotations

import json
import sys

import pytest
from toolbox.projects import RIGHT, TINY

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")

LOGGED = """
    import os, sys
    with open(os.environ["LOG"], "a") as log:
        log.write(f"{os.path.basename(__file__)} {os.getpid()} {sys.argv} {os.getcwd()}\\n")
"""
NAMED = """
    @onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={{"x": {{0: "batch"}}, "y": {{0: "batch"}}}})
    def {name}():
        return Scale(), (torch.randn(3, 4),)
"""
COMMANDS = {
    "run": ("onnx_ci", "run", "--opsets=13-14", "--report=r.json"),
    "pytest": ("pytest", "-p", "no:cacheprovider", "--onnx-export", "--onnx-opsets=13-14", "--onnx-report=r.json"),
}


def run(project, kind, *words, **environment):
    """The report of a run, by recipe and opset, the problems with files, and the exit code."""
    done = project.command(*COMMANDS[kind], *words, **environment)
    report = json.loads((project.root / "r.json").read_text())
    cells = {f"{cell['recipe']} {cell['opset']}": cell["status"] for cell in report["cells"]}
    return cells, {problem["source"]: problem["message"] for problem in report["problems"]}, done.returncode


@linux
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_file_is_imported_once_in_a_process_of_its_own(kind, project):
    project.recipes(LOGGED, RIGHT, NAMED.format(name="other"))
    project.recipes(LOGGED, NAMED.format(name="third"), name="more/onnx_recipes.py")
    cells, problems, code = run(project, kind, LOG=str(project.root / "log"))
    assert set(cells.values()) == {"passed"}
    assert (len(cells), problems, code) == (6, {}, 0)
    lines = (project.root / "log").read_text().splitlines()
    assert len({line.split()[1] for line in lines}) == len(lines) == 2
    assert all(line.endswith(f"['onnx-ci'] {project.root}") for line in lines)


@pytest.mark.parametrize("words", [("run", "--opsets=13"), pytest.param(("matrix",), marks=pytest.mark.slow)], ids=" ".join)
def test_the_process_that_decides_imports_neither_torch_nor_a_recipe_file(words, project):
    project.recipes(RIGHT)
    project.write(
        "decides.py",
        f"""
        import sys
        from onnx_ci.cli.main import main
        sys.argv = ["onnx-ci", *{words!r}]
        try:
            main()
        finally:
            heavy = sorted({{"torch", "onnx", "numpy", "onnxruntime"}} & sys.modules.keys())
            own = [name for name in sys.modules if "onnx_recipes" in name]
            print("imported:", heavy + own, file=sys.stderr)
        """,
    )
    done = project.run(sys.executable, "decides.py")
    assert done.returncode == 0, done.stderr
    assert "imported: []" in done.stderr


@linux
def test_what_a_file_does_when_it_is_imported_reaches_no_other_file(project):
    change = """
        import os, torch
        torch.relu = lambda x: x * 2
        torch.onnx.export = None
        os.environ["LEFT"] = "by the first"
    """
    project.recipes(change, name="a/onnx_recipes.py")
    project.recipes("import os\nassert 'LEFT' not in os.environ", RIGHT, name="b/onnx_recipes.py")
    cells, problems, code = run(project, "run")
    assert (cells, problems, code) == ({"right 13": "passed", "right 14": "passed"}, {}, 0)


@linux
def test_a_library_that_ends_the_process_is_a_problem_of_the_file_that_imports_it(project, tmp_path_factory):
    site = tmp_path_factory.mktemp("site")
    (site / "deadly.py").write_text("import os\nos._exit(3)\n")
    (site / "deadly-1.0.dist-info").mkdir()
    (site / "deadly-1.0.dist-info/RECORD").write_text("deadly.py,,\n")
    project.recipes("import deadly", name="a/onnx_recipes.py")
    project.recipes(RIGHT, name="b/onnx_recipes.py")
    cells, problems, code = run(project, "run", PYTHONPATH=str(site))
    assert (cells, code) == ({"right 13": "passed", "right 14": "passed"}, 2)
    assert problems == {
        "a/onnx_recipes.py": "cannot be imported: the process that tried ended by itself with exit code 3"
    }  # fmt: skip


@linux
@pytest.mark.slow
def test_more_files_than_processes_are_kept(project):
    for number in range(20):
        project.recipes(NAMED.format(name=f"net{number}"), name=f"part{number}/onnx_recipes.py")
    cells, problems, code = run(project, "run")
    assert (len(cells), set(cells.values()), problems, code) == (40, {"passed"}, {}, 0)


@pytest.mark.parametrize("isolation", ["fork", pytest.param("spawn", marks=pytest.mark.slow), "none"])
def test_a_recipe_that_two_files_import_is_one_and_two_of_one_name_are_a_problem(isolation, project):
    if isolation == "fork" and sys.platform != "linux":
        pytest.skip("processes are forked on Linux only")
    factory = """
        import onnx_ci, torch

        def make(factor):
            @onnx_ci.recipe(name="made", input_names=["x"])
            def made():
                return torch.nn.ReLU(), (torch.full((3,), factor),)
            return made
    """
    project.write("lib.py", TINY, NAMED.format(name="shared"))
    project.write("factory.py", factory)
    project.write("a_recipes.py", "from lib import shared\nimport factory\none = factory.make(1.0)")
    project.write("b_recipes.py", "from lib import shared\nimport factory\nother = factory.make(2.0)")
    project.write("pyproject.toml", '[tool.onnx-ci]\nrecipe-files = ["*_recipes.py"]')
    cells, problems, code = run(project, "run", f"--isolation={isolation}")
    assert sorted(cells) == ["made 13", "made 14", "shared 13", "shared 14"]
    assert (list(problems), code) == (["b_recipes.py"], 2)
    assert "the recipe name 'made' (factory.py, line 5) is already used by factory.py, line 5" in problems["b_recipes.py"]


@linux
def test_the_end_of_a_files_process_is_the_cause_of_what_its_cells_lack(project):
    timer = """
        import os, pathlib, threading, time
        started = pathlib.Path(__file__).with_name("started")

        def end_once_a_cell_has_started():
            while not started.exists():
                time.sleep(0.01)
            os._exit(0)

        threading.Thread(target=end_once_a_cell_has_started, daemon=True).start()

        class Slow(torch.nn.Module):
            def forward(self, x):
                started.touch()
                time.sleep(60.0)
                return x * 2

        @onnx_ci.recipe(input_names=["x"])
        def slow():
            return Slow(), (torch.randn(3),)
    """
    project.recipes(timer, name="a/onnx_recipes.py")
    project.recipes(RIGHT, name="b/onnx_recipes.py")
    done = project.command(*COMMANDS["run"])
    report = json.loads((project.root / "r.json").read_text())
    assert done.returncode == 1
    cells = {f"{cell['recipe']} {cell['opset']}": cell for cell in report["cells"]}
    assert {name: cell["status"] for name, cell in cells.items()} == {
        "slow 13": "failed", "slow 14": "failed", "right 13": "passed", "right 14": "passed"
    }  # fmt: skip
    ended = "ended with the process of a/onnx_recipes.py, which ended by itself with exit code 0"
    assert all(ended in cells[f"slow {opset}"]["findings"][0]["message"] for opset in (13, 14))


@linux
def test_the_memory_that_a_file_takes_when_it_is_imported_counts(project):
    project.recipes("import time\nkept = bytearray(b'x') * (600 * 2**20)\ntime.sleep(20)", name="a/onnx_recipes.py")
    project.recipes(RIGHT, name="b/onnx_recipes.py")
    cells, problems, code = run(project, "run", "--memory-limit=300MiB")
    assert (cells, code) == ({"right 13": "passed", "right 14": "passed"}, 2)
    assert "of memory where 300 MiB are allowed" in problems["a/onnx_recipes.py"].replace("0.293 GiB", "300 MiB")


@linux
def test_a_process_that_no_longer_answers_keeps_its_own_cells_only(project, monkeypatch):
    stops = """
        import os, signal, threading
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGSTOP)).start()
    """
    project.recipes(stops, RIGHT, RIGHT.replace("right", "second"), name="a/onnx_recipes.py")
    project.recipes("import time\ntime.sleep(1.5)", RIGHT.replace("right", "other"), name="b/onnx_recipes.py")
    monkeypatch.setattr("onnx_ci.processes.forked._REPLY_SECONDS", 1.0)
    from onnx_ci.config.settings import load_settings
    from onnx_ci.engine.events import CellJudged
    from onnx_ci.engine.recipes import find_recipes
    from onnx_ci.engine.session import Session

    with Session(load_settings(project.root, flags={"opsets": "13"})) as session:
        session.plan(find_recipes(session.settings))
        results = {event.result.cell.recipe: event.result for event in session.events() if isinstance(event, CellJudged)}
    assert {name: str(result.status) for name, result in results.items()} == {
        "right": "failed", "second": "failed", "other": "passed"
    }  # fmt: skip
    for name in ("right", "second"):
        (broken,) = results[name].findings
        assert "ended with the process of a/onnx_recipes.py, which does not answer" in broken.message


@linux
def test_if_no_process_can_be_started_each_file_has_that_problem(project, monkeypatch):
    from onnx_ci.config.settings import load_settings
    from onnx_ci.engine.recipes import find_recipes
    from onnx_ci.processes.forked import ForkedProcesses

    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ForkedProcesses, "start_from", refuse)
    for number in range(4):
        project.recipes(RIGHT.replace("right", f"net{number}"), name=f"part{number}/onnx_recipes.py")
    with find_recipes(load_settings(project.root)) as recipes:
        assert [problem.source for problem in recipes.problems] == [f"part{n}/onnx_recipes.py" for n in range(4)]
        assert all("No space left on device" in problem.message for problem in recipes.problems)


@pytest.mark.slow
@linux
def test_files_are_imported_with_the_options_of_the_python_that_decides(project):
    project.recipes("assert False, 'with assertions'", RIGHT)
    done = project.run(sys.executable, "-O", "-m", "onnx_ci", "list", "--opsets=13")
    assert done.returncode == 0, done.stderr
