"""Output that cannot be written costs no verdict: the run goes on, and its files are written."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from toolbox.projects import FROZEN, RIGHT

from onnx_ci.cli.common import with_exit_code
from onnx_ci.errors import ExitCode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the shell's redirections and /dev/full are Linux's")

SHELL = """
set -o pipefail
{command} -m onnx_ci {arguments} {redirection}
"""


@pytest.fixture
def shell(project):
    project.recipes(RIGHT)

    def run(arguments, redirection):
        text = SHELL.format(command=shlex.quote(sys.executable), arguments=arguments, redirection=redirection)
        return project.run("bash", "-c", text)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        ("| head -n 1", 0, ""),
        ("> /dev/full", 4, "onnx-ci: the output is incomplete: No space left on device\n"),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        ("> /dev/full 2> /dev/full", 4, ""),
    ],
)
def test_a_run_goes_on_and_writes_its_report(project, shell, redirection, code, said):
    done = shell("run --opsets=12-14 --no-cache --isolation=none --report=r.json", redirection)
    assert (done.returncode, done.stderr) == (code, said)
    report = json.loads((project.root / "r.json").read_text())
    assert (len(report["cells"]), report["not_run"], report["summary"]["verdict"]) == (3, [], "passed")


@pytest.mark.parametrize(
    "encoding", ["ascii:strict", *(pytest.param(f"{each}:strict", marks=pytest.mark.slow) for each in ("latin-1", "utf-8"))]
)
def test_what_the_encoding_of_the_terminal_lacks_is_escaped(project, encoding):
    project.recipes(RIGHT)
    done = project.command("onnx_ci", "list", "--select=…", PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert (done.returncode, done.stdout) == (5, "")
    assert "no cell matches --select=" in done.stderr
    assert "Traceback" not in done.stderr


def interrupted() -> None:
    with contextlib.suppress(KeyboardInterrupt):  # as a compiled module does whose import is interrupted
        os.kill(os.getpid(), signal.SIGINT)
    fails()


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def fails() -> None:
    raise RuntimeError("half of a module")


@pytest.fixture
def interruptible():
    """The handler that Python installs, which it does not in a process that a script has started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (interrupted, 130, "onnx-ci: interrupted"),
        (stopped, 130, "onnx-ci: interrupted"),
        (fails, ExitCode.INTERNAL, "this is a bug in onnx-ci"),
    ],
)
def test_an_interrupt_is_no_bug_whatever_follows_it(command, code, said):
    for _ in range(2):
        done = CliRunner().invoke(click.command()(with_exit_code(command)))
        assert done.exit_code == code
        assert said in done.output
        assert ("half of a module" in done.output) is (code == ExitCode.INTERNAL)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


CLICK = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)
"""


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("is_script", [False, True])
def test_an_interrupt_during_the_imports_ends_the_command_without_a_traceback(project, is_script):
    project.write("modules/click.py", CLICK)
    settings = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    module, _, function = settings["project"]["scripts"]["onnx-ci"].partition(":")
    script = ["-c", f"from {module} import {function}; {function}()"]
    words = shlex.join([sys.executable, *(script if is_script else ["-m", "onnx_ci"])])
    done = project.run("bash", "-c", f"{words}; exit $?", PYTHONPATH=str(project.root / "modules"))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.slow
def test_a_page_is_written_though_nobody_reads_the_terminal(project, shell):
    shell("run --opsets=13 --isolation=none --report=r.json", "")
    done = shell("report r.json --html=page.html", "| true")
    assert (done.returncode, done.stderr) == (0, "")
    assert "</html>" in (project.root / "page.html").read_text()


@pytest.mark.slow
def test_a_list_that_is_incomplete_is_no_success(shell):
    assert shell("list", "> /dev/full").returncode == 4
    assert shell("list", "| true").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("redirection", "said"),
    [
        ("> /dev/full", "No space left on device"),
        ("> /dev/full 2>&1", ""),
        ("| true", "Broken pipe"),
        ("| head -n 1", "Broken pipe"),
    ],
)
def test_pytest_goes_on_and_writes_its_report_but_does_not_succeed(project, redirection, said, workers):
    project.recipes(RIGHT)
    flags = f"--onnx-opsets=12-14 --onnx-report=r.json -v --no-onnx-cache {f'-n {workers}' if workers else ''}"
    unbuffered = "1" if workers else ""  # as in containers: then each write fails at once
    command = f"PYTHONUNBUFFERED={unbuffered} {shlex.quote(sys.executable)} -m pytest --onnx-export {flags} {redirection}"
    done = project.run("bash", "-c", f"set -o pipefail; {command}")
    assert done.returncode == pytest.ExitCode.INTERNAL_ERROR
    assert done.stderr == (f"onnx-ci: the output is incomplete: {said}\n" if said else "")
    report = json.loads((project.root / "r.json").read_text())
    assert (len(report["cells"]), report["not_run"], report["summary"]["verdict"]) == (3, [], "passed")


def test_a_recipe_file_that_changes_directory_does_not_move_the_files_of_the_run(project):
    (project.root / "elsewhere").mkdir()
    project.recipes("import os; os.chdir('elsewhere')", RIGHT)
    done = project.command("onnx_ci", "run", "--opsets=13", "--report=r.json", "--summary=s.md", "--artifacts=kept")
    assert done.returncode == 0, done.stderr
    assert [each.name for each in (project.root / "elsewhere").iterdir()] == []
    assert json.loads((project.root / "r.json").read_text())["settings"]["report"]["value"] == "r.json"
    assert (project.root / "s.md").is_file()
    assert (project.root / "kept" / "right" / "opset13-cpu.onnx").is_file()


@pytest.mark.slow
def test_a_file_that_cannot_be_written_at_the_end_hides_no_failure(project, shell):
    project.recipes(FROZEN)
    done = shell("run --opsets=13 --no-cache --isolation=none --junit=/dev/full", "")
    assert done.returncode == 1
    assert ": baked-value\n" in done.stdout
    assert "1 cell: 1 failed" in done.stdout
    assert "/dev/full cannot be written: No space left on device" in done.stderr
    project.recipes(RIGHT)
    done = shell("run --opsets=13 --no-cache --isolation=none --junit=/dev/full --baseline=update", "")
    assert (done.returncode, "1 cell: 1 passed" in done.stdout) == (2, True), done.stderr
    assert list((project.root / "onnx-baselines").iterdir())


def test_no_file_is_written_in_two_formats(project, shell):
    done = shell("run --opsets=13 --report=r.json --junit=r.json", "")
    assert (done.returncode, done.stderr) == (2, "onnx-ci: r.json would be written twice, in two formats; name two files\n")
    assert not (project.root / "r.json").exists()
