"""A recipe file that crashes or hangs when it is imported costs the run its own recipes, and is named with its line."""

from __future__ import annotations

import re
import sys

import pytest
from chaos.faults import HEAD, healthy
from chaos.running import MODES, option, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="recipe files are imported in a process on Linux only"),
]

CODE = {
    "segfault": ("ctypes.string_at(0)\n", "was killed by SIGSEGV"),
    "exit": ("os._exit(0)\n", "ended by itself with exit code 0"),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)\n", "was killed by SIGKILL"),
    "hangs": ("time.sleep(300)\n", "did not end within 60 s"),
    "output": ("while True:\n    print('x' * 2**20)\n", "printed more than 64 MiB"),
}
PLACED = {"segfault", "hangs"}
"""Those that leave a stack."""


@pytest.mark.parametrize("mode", MODES)
def test_a_file_that_ends_the_process_that_imports_it_is_a_problem_of_its_own(mode, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.onnx-ci]\nrecipe-files = ["recipe_*.py"]\nopsets = 13\n')
    (tmp_path / "recipe_0.py").write_text(healthy("first"))
    faults = {name: fault for name, fault in CODE.items() if name != "hangs" or mode == "command"}  # a minute each
    for name, (code, _) in faults.items():
        (tmp_path / f"recipe_{name}.py").write_text(f"{HEAD}\n{code}")
    (tmp_path / "recipe_z.py").write_text(healthy("last"))
    made = run(mode, tmp_path, option(mode, "timeout", 4), seconds=240)
    assert made["returncode"] not in (None, 0), made["stdout"] + made["stderr"]
    assert {cell["recipe"]: cell["status"] for cell in made["report"]["cells"]} == {"first": "passed", "last": "passed"}
    problems = {each["source"]: each for each in made["report"]["problems"]}
    assert problems.keys() == {f"recipe_{name}.py" for name in faults}
    for name, (_, ended) in faults.items():
        problem = problems[f"recipe_{name}.py"]
        assert re.search(f"cannot be imported: the process that tried {ended}", problem["message"])
        if name in PLACED:
            assert problem["file"] == f"recipe_{name}.py"
            assert problem["line"] > HEAD.count("\n")
            assert problem["message"].endswith(f", at recipe_{name}.py, line {problem['line']}")
    assert made["processes"] == []
    assert made["files"] == []


SEGFAULT = "recipe_segfault.py: cannot be imported: the process that tried was killed by SIGSEGV, at recipe_segfault.py, line "


@pytest.mark.parametrize(
    ("command", "code", "printed"),
    [
        ("onnx_ci list", 2, ["recipe_z.py::last::opset13-cpu", SEGFAULT]),
        ("onnx_ci matrix", 2, [SEGFAULT, "no matrix: "]),
        ("onnx_ci ops last --opsets=13", 0, ["every operator can be exported"]),
        (
            "pytest -p no:cacheprovider --onnx-export --collect-only",
            0,
            ["<RecipeNode last>", "<RecipeFile recipe_segfault.py>"],
        ),
    ],
)
def test_a_command_that_runs_no_cell_outlives_such_a_file_too(command, code, printed, project):
    project.write("pyproject.toml", '[tool.onnx-ci]\nrecipe-files = ["recipe_*.py"]\nopsets = 13\n')
    project.write("recipe_segfault.py", f"{HEAD}\n{CODE['segfault'][0]}")
    project.write("recipe_z.py", healthy("last"))
    done = project.command(*command.split())
    assert done.returncode == code, done.stdout + done.stderr
    assert [each for each in printed if each not in done.stdout + done.stderr] == []
