"""A recipe file that crashes, hangs or ends its process while it is imported costs its own recipes at most, and is named."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from dataclasses import dataclass

import pytest
from e2e.chaos.faults import HEAD, IGNORES, healthy
from e2e.chaos.running import MODES, option, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="recipe files are imported in a process on Linux only"),
]

SETTINGS = '[tool.onnx-ci]\nrecipe-files = ["recipe_*.py"]\nopsets = 13\n'

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
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
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


# --- what is imported beside a recipe that is wrong: that may be lost, with a problem that names the file, or fail -----------

WRONG = """
class Total(torch.nn.Module):
    def forward(self, x):
        total = torch.zeros(4)
        for i in range(x.shape[0]):
            total = total + x[i]
        return total


@onnx_ci.recipe(input_names=["x"], output_names=["total"], dynamic_axes={{"x": {{0: "rows"}}}}, opsets="13")
def {name}():
    return Total(), (torch.randn(3, 4),)
"""
"""A recipe that is right on its example and wrong at any other number of rows."""


def wrong(name: str, after: str = "") -> str:
    """The file of a recipe that is wrong, with code after it."""
    return "\n\n".join([HEAD, WRONG.format(name=name), after]) + "\n"


@dataclass(frozen=True, kw_only=True)
class Import:
    """A recipe file that does ``body`` after it declares a recipe that is wrong."""

    name: str
    body: str
    is_harmless: bool = False
    """Whether nothing excuses that the recipe has another verdict than its true one."""
    takes_a_minute: bool = False
    """Whether only the deadline for imports ends it."""

    @property
    def file(self) -> str:
        return f"recipe_{self.name}.py"

    def source(self) -> str:
        """The recipe file."""
        return wrong(f"wrong_{self.name}", textwrap.dedent(self.body).strip())


ERROR = """
class Odd(Exception):
    def __str__(self):
        {0}

    __repr__ = __str__

raise Odd("odd")
"""
"""An error whose text is no help."""

LOSE_THE_RECIPE = {
    # An end that looks like success.
    "atexit": "import atexit\natexit.register(os._exit, 0)",
    "late_timer": "threading.Timer(2, os._exit, (0,)).start()",
    "plain_alarm": "signal.alarm(1)",
    "interrupt": "raise KeyboardInterrupt",
    "system_exit": "raise SystemExit(0)",
    "exits": "print('1 cell: 1 passed', flush=True)\nos._exit(0)",
    # A death, a flood.
    "abort": "os.abort()",
    "ends_group": "os.killpg(0, signal.SIGTERM)",
    "flood_of_bytes": "for _ in range(512):\n    os.write(2, b'\\xff' * 2**20)",
    "recursion": "def descend():\n    descend()\n\ndescend()",
    "stack_overflow": "sys.setrecursionlimit(10**9)\nparts = []\nfor _ in range(10**6):\n    parts = [parts]\nrepr(parts)",
    "memory_error": "raise MemoryError",
    # Processes and signals.
    "twin": "os.fork()",
    "twin_that_exits": "if os.fork():\n    os._exit(0)",
    "blocked_signals": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    # Output and limits.
    "no_stdout": "sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = None",
    "closed_stdout": "sys.stdout.close()\nsys.stderr.close()",
    "warnings_raise": "import warnings\nwarnings.simplefilter('error')",
    "few_files": "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))",
    "no_file_size": """
        import resource
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    """,
    "no_time": "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))",
    # The surroundings.
    "directory_gone": "folder = tempfile.mkdtemp()\nos.chdir(folder)\nos.rmdir(folder)",
    "environment_cleared": "os.environ.clear()",
    "own_file_gone": "os.remove(__file__)",
    "late_recipe": """
        def declare():
            time.sleep(0.3)
            globals()["late"] = onnx_ci.recipe(lambda: (Total(), (torch.randn(3, 4),)), name="late")

        threading.Thread(target=declare).start()
    """,
    # Errors without a text, or with too much of it.
    "error_without_text": ERROR.format("return 5"),
    "error_of_odd_text": ERROR.format("return '\\ud800\\x1b[2J\\0' + 'x' * 2**22"),
    "error_in_a_circle": "error = ValueError('x')\nother = KeyError('x')\nerror.__cause__, other.__cause__ = other, error\nraise error",
    "deep_group": "group = ValueError('x')\nfor _ in range(500):\n    group = ExceptionGroup('g', [group])\nraise group",
}

TAKE_A_MINUTE = {
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "hangs": IGNORES + "sleep_without_listening(300)",
    "hangs_in_c": "ctypes.PyDLL(None).sleep(300)  # with the interpreter's lock held",
}

ARE_HARMLESS = {
    "thread": "threading.Thread(target=time.sleep, args=(1000,)).start()",
    "child": "subprocess.Popen(['sleep', '1000'])",
    "daemon": """
        if not os.fork():
            os.setsid()
            if not os.fork():
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                sleep_without_listening(1000)
            os._exit(0)
    """,
    "ignores_signals": IGNORES,
    "clock_stopped": "time.monotonic = time.time = time.perf_counter = lambda: 0.0  # as freezegun does",
    "stdout_replaced": "import io\nsys.stdout = sys.stderr = io.StringIO()",
    "arguments": "sys.argv[:] = ['onnx-ci', '--allow=baked-value']",
    "directory": "os.chdir(tempfile.gettempdir())",
    "settings": "os.environ.update(ONNX_CI_ALLOW='baked-value', ONNX_CI_OPSETS='9', ONNX_CI_MAX_DRIFT='1e30')",
    "grad_disabled": "torch.set_grad_enabled(False)",
}

IMPORTS = [
    *(Import(name=name, body=body) for name, body in LOSE_THE_RECIPE.items()),
    *(Import(name=name, body=body, takes_a_minute=True) for name, body in TAKE_A_MINUTE.items()),
    *(Import(name=name, body=body, is_harmless=True) for name, body in ARE_HARMLESS.items()),
]


def check(mode: str, folder, imports: list[Import]) -> None:
    """Import files beside those of recipes that are right and one that is wrong, and check everything that must be right."""
    (folder / "pyproject.toml").write_text(SETTINGS)
    (folder / "recipe_0.py").write_text(healthy("first"))
    for each in imports:
        (folder / each.file).write_text(each.source())
    (folder / "recipe_y.py").write_text(wrong("total"))
    (folder / "recipe_z.py").write_text(healthy("last"))
    made = run(mode, folder, option(mode, "timeout", 60), seconds=400)
    print(made["stdout"][-8000:], made["stderr"][-8000:], sep="\n")  # shown if the test fails
    report = made["report"]
    assert report is not None, "there is no report"
    problems = {each["source"]: each["message"] for each in report["problems"]}
    files = {each.file for each in imports}
    others = {(each["source"], each["recipe"], each["status"]) for each in report["cells"] if each["source"] not in files}
    assert others == {
        ("recipe_0.py", "first", "passed"),
        ("recipe_y.py", "total", "failed"),
        ("recipe_z.py", "last", "passed"),
    }
    assert problems.keys() <= files
    wrongs = []
    for each in imports:
        statuses = {cell["status"] for cell in report["cells"] if cell["source"] == each.file}
        if each.is_harmless:
            is_right = statuses == {"failed"}
        else:
            is_right = statuses <= {"failed", "error"} and bool(statuses or each.file in problems)
        if not is_right:
            wrongs.append((each.name, statuses))
    assert wrongs == []
    assert made["returncode"] == 1 or (made["returncode"] == 2 and problems)
    assert "bug in onnx-ci" not in made["stdout"] + made["stderr"]
    assert made["processes"] == []
    assert made["files"] == []


ALONE = {"atexit", "late_timer", "plain_alarm", "interrupt", "system_exit", "exits", "daemon", "twin", "no_stdout"}
"""Those that are tried alone as well; with ``CHAOS_ALONE=all``, each is."""
LEFT_OUT = {
    # Each can declare its recipe in one worker and not in the other, and then pytest-xdist refuses to run anything.
    # And pytest-xdist cannot send a message with a lone surrogate.
    "workers": {"own_file_gone", "error_of_odd_text"},
}
TRIED_ALONE = [each for each in IMPORTS if each.name in ALONE or os.environ.get("CHAOS_ALONE") == "all"]


@pytest.mark.parametrize("each", TRIED_ALONE, ids=lambda each: each.name)
def test_an_import_changes_no_other_verdict_and_no_exit_code(each, tmp_path):
    check("command", tmp_path, [each])


@pytest.mark.parametrize("mode", MODES)
def test_all_imports_at_once(mode, tmp_path):
    """Each has its own process, so they are no worse together. Spawned ones take seconds each, so there are fewer of them."""
    chosen = TRIED_ALONE if mode == "spawn" else IMPORTS
    check(mode, tmp_path, [each for each in chosen if not each.takes_a_minute and each.name not in LEFT_OUT.get(mode, ())])


def test_imports_that_do_not_end(tmp_path):
    check("command", tmp_path, [each for each in IMPORTS if each.takes_a_minute])


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
    project.write("pyproject.toml", SETTINGS)
    project.write("recipe_segfault.py", f"{HEAD}\n{CODE['segfault'][0]}")
    project.write("recipe_z.py", healthy("last"))
    done = project.command(*command.split())
    assert done.returncode == code, done.stdout + done.stderr
    assert [each for each in printed if each not in done.stdout + done.stderr] == []


@pytest.mark.parametrize(
    "command", ["onnx_ci list", "onnx_ci matrix", "pytest -p no:cacheprovider --onnx-export --collect-only"]
)
@pytest.mark.parametrize("name", ["atexit", "interrupt", "thread"])
def test_a_command_that_runs_no_cell_lists_those_of_other_files(name, command, project):
    [each] = [each for each in IMPORTS if each.name == name]
    project.write("pyproject.toml", SETTINGS)
    project.write(each.file, each.source())
    project.write("recipe_z.py", healthy("last"))
    done = project.command(*command.split())
    told = done.stdout + done.stderr
    if name in ("atexit", "thread"):
        assert done.returncode == 0, told
    else:
        assert each.file in told
    if "matrix" not in command:
        assert "last" in told
    elif done.returncode == 0:
        assert "opset13-cpu" in told
    assert "Traceback" not in done.stderr
