"""The ``onnx-ci`` command: what it prints, its exit codes, and that it is the same gate as the plugin."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner
from e2e.pytest_plugin.test_plugin import DIES, WRONG
from hypothesis import given
from hypothesis import strategies as st
from toolbox import warm_python
from toolbox.any_report import reports
from toolbox.projects import FROZEN, RIGHT
from toolbox.records import failed, passed, run_of, skipped

from onnx_ci.cli.main import main
from onnx_ci.cli.progress import Progress, TimeLeft, about
from onnx_ci.cli.run import WaitingResults
from onnx_ci.environment.versions import versions
from onnx_ci.errors import ExitCode
from onnx_ci.plugins import COMMANDS
from onnx_ci.results.files import read_json, write_json
from onnx_ci.results.records import CellResult, Status
from onnx_ci.results.rules import finding
from onnx_ci.results.run_report import RunReport


@pytest.fixture
def cli(project):
    return lambda *arguments, **environment: project.command("onnx_ci", *arguments, **environment)


@pytest.fixture
def quick(project):
    """The command in this process, for what runs no cell and imports no recipe."""
    return lambda *arguments, **options: CliRunner().invoke(main, [*map(str, arguments)], **options)


def test_run_shows_every_recipe_and_the_grid_and_succeeds(project, cli):
    project.recipes(RIGHT)
    done = cli("run", "--opsets=12-13", "--report=out/r.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("[2/2] onnx_recipes.py::right  opsets 12-13 on cpu  passed (drift at most ")
    assert "2 cells: 2 passed in" in done.stdout
    report = json.loads((project.root / "out/r.json").read_text())
    assert [cell["status"] for cell in report["cells"]] == ["passed", "passed"]


@pytest.mark.slow
@pytest.mark.parametrize("place", [[], ["packages"], ["packages/vision/onnx_recipes.py", "packages/text"]])
@pytest.mark.parametrize("isolation", ["fork", "none"])
def test_a_run_has_one_configuration_and_names_the_files_of_another_one(project, cli, place, isolation):
    project.write("pyproject.toml", '[tool.onnx-ci]\nopsets = "12"\n')
    project.write("packages/vision/pyproject.toml", '[tool.onnx-ci]\nopsets = "13"\n')
    project.write("packages/text/pyproject.toml", '[project]\nname = "text"\n')
    project.recipes(RIGHT, name="packages/vision/onnx_recipes.py")
    project.recipes(RIGHT.replace("def right", "def text"), name="packages/text/onnx_recipes.py")
    done = cli("run", f"--isolation={isolation}", *place)
    assert (done.returncode, "1 cell: 1 passed, 1 problem" in done.stdout) == (2, True)
    assert "packages/vision/pyproject.toml: has [tool.onnx-ci] settings of its own" in done.stdout
    assert "packages/vision/onnx_recipes.py did not run: cd packages/vision && onnx-ci run\n" in done.stdout


@pytest.mark.slow
def test_a_failed_cell_is_exit_1_with_a_command_that_repeats_it(project, cli):
    project.recipes(RIGHT, WRONG)
    done = cli("run", "--opsets=12-13", ONNX_CI_MAX_DRIFT="16")
    assert done.returncode == 1
    first, rest = [line for line in done.stdout.splitlines() if line.startswith("[") and "wrong" in line]
    assert first == "[3/4] onnx_recipes.py::wrong::opset12-cpu failed (baked-shape at onnx_recipes.py:21)"
    assert rest == "[4/4] onnx_recipes.py::wrong::opset13-cpu failed (baked-shape at onnx_recipes.py:21)"
    assert "\nwrong: failed at opsets 12-13 on cpu\nonnx_recipes.py:21: baked-shape\n" in done.stdout
    commands = [line.partition("repeat with: ")[2] for line in done.stdout.splitlines() if "repeat with: " in line]
    assert commands == ["onnx-ci run --opsets=12 --max-drift=16 --no-cache --select=wrong::opset12-cpu onnx_recipes.py"]
    again = cli(*shlex.split(commands[0])[1:])
    assert (again.returncode, "1 cell: 1 failed" in again.stdout) == (1, True)


@pytest.mark.slow
def test_the_commands_below_a_failure_take_switches_as_switches(project, cli):
    project.recipes(WRONG)
    lines = cli("run", "--opsets=13", "--strict").stdout.splitlines()
    printed = [line.partition(": ")[2] for line in lines if line.startswith(("repeat with: ", "try remedies: "))]
    assert [command.split()[1] for command in printed] == ["run", "fix"]
    for command in printed:
        assert " --strict " in command
        assert cli(*shlex.split(command)[1:]).returncode == int(" run " in command)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run", "--opsets=17-9"], 2, "onnx-ci: --opsets: the range 17-9 runs backwards; write 9-17"),
        (["run", "nowhere"], 2, "there is no nowhere"),
        (["run", "x" * 300], 2, "is not a valid path: File name too long"),
        (["run", "onnx_recipe.py"], 2, "there is no onnx_recipe.py; did you mean 'onnx_recipes.py'?"),
        (["run", "--report=onnx_recipes.py/x"], 2, "cannot be written"),
        (["run", "--report=."], 2, ". cannot be written: it is a directory; name a file"),
        (["run", "--report=/"], 2, "/ cannot be written"),
        (["run", "--summary=onnx_recipes.py/x"], 2, "cannot be written"),
        (["run", "--report=onnx_recipes.py"], 2, "onnx_recipes.py would be overwritten, but onnx-ci did not write it"),
        (["run", "--summary=onnx_recipes.py"], 2, "would be overwritten"),
        (["run", "--junit=onnx_recipes.py"], 2, "would be overwritten"),
        (["run", "--opset=9"], 2, "--opsets"),
        (["run", "--select=banana"], 5, "nothing ran: no cell matches --select=banana; onnx-ci list shows"),
        (["run", "--select=rihgt"], 5, "no cell matches --select=rihgt; did you mean 'right'?"),
        (["list", "--select=rihgt::opset13-cpu"], 5, "did you mean 'right::opset13-cpu'?"),
        (["run", "no\n::error::where"], 2, "onnx-ci: there is no no ::error::where\n"),
        (["run", "--packages=nowhere_at_all"], 2, "is not installed"),
    ],
)
def test_a_mistake_is_one_message_and_its_exit_code(project, cli, quick, arguments, code, said):
    project.recipes(RIGHT)
    done = quick(*arguments) if code == 2 else cli(*arguments)
    assert (done.exit_code if code == 2 else done.returncode) == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_an_empty_project_is_exit_5_and_says_where_it_looked(project, cli):
    for command in ("run", "list"):
        done = cli(command)
        assert (done.returncode, "recipe files are onnx_recipes.py" in done.stderr) == (5, True)


@pytest.mark.slow
def test_a_broken_file_is_exit_2_where_every_cell_passes(project, cli):
    project.recipes(RIGHT)
    project.write("a/onnx_recipes.py", "import nowhere_at_all")
    done = cli("run", "--opsets=13")
    assert (done.returncode, "1 cell: 1 passed, 1 problem" in done.stdout) == (2, True)
    assert "a/onnx_recipes.py: cannot be imported: ModuleNotFoundError" in done.stdout
    listed = cli("list", "--opsets=13")
    assert (listed.returncode, listed.stdout) == (2, "onnx_recipes.py::right::opset13-cpu\n")
    assert "a/onnx_recipes.py: cannot be imported" in listed.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="a folder in which a process is cannot be removed there")
def test_a_recipe_file_that_leaves_the_process_in_a_folder_that_is_gone_is_judged(project, cli):
    gone = "import os, tempfile\nos.chdir(folder := tempfile.mkdtemp())\nos.rmdir(folder)\n"
    recipes = project.recipes(RIGHT)
    recipes.write_text(gone + recipes.read_text().replace("from __future__ import annotations", ""))
    done = cli("run", "--opsets=13")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 cell: 1 passed in ")


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
    assert (done.returncode, "are all installed and overwrite each other" in done.stderr) == (4, True)


def test_list_names_the_cells_that_run_would_run(project, cli):
    project.recipes(RIGHT)
    done = cli("list", "--opsets=12,18", "--exporters=torchscript")
    assert done.stdout.splitlines() == [
        "onnx_recipes.py::right::opset12-cpu",
        "onnx_recipes.py::right::opset18-cpu-torchscript",
    ]


@pytest.mark.slow
def test_list_tells_what_is_left_out_and_why(project, cli):
    project.recipes(RIGHT.replace("recipe(", "recipe(opsets='10-13', "), RIGHT.replace("def right", "def other"))
    select = "--select=right,other::opset9-*"
    here, there = (cli("list", "--opsets=9-11", select, f"--shard={n}/2").stdout.splitlines() for n in (1, 2))
    assert (len(here) + len(there), bool(here), bool(there)) == (3, True, True)
    done = cli("list", "--why", "--opsets=9-11", select, "--shard=1/2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        *here,
        "left out right at opset 9: the recipe declares opsets 10-13",
        *(f"left out onnx_recipes.py::other::opset{n}-cpu: {select} does not match it" for n in (10, 11)),
        *(f"left out {id}: it is in shard 2/2" for id in there),
    ]
    assert not [line for line in cli("list").stdout.splitlines() if line.startswith("left out")]


def test_a_list_whose_flag_is_given_twice_has_both(project, cli):
    project.recipes(RIGHT, RIGHT.replace("def right", "def other"), RIGHT.replace("def right", "def third"))
    done = cli("list", "--select=right", "--select", "other::opset13-cpu", "--opsets=12", "--opsets=13", "--opsets=13")
    cells = [line.removeprefix("onnx_recipes.py::") for line in done.stdout.splitlines()]
    assert (done.returncode, cells) == (0, ["right::opset12-cpu", "right::opset13-cpu", "other::opset13-cpu"])
    assert cli("list", "--sample=3", "--sample=1", "--select=right").stdout.count("right") == 1  # a single value: the last
    empty = cli("list", "--select=right", "--select=")
    assert (empty.returncode, "--select: is empty" in empty.stderr) == (2, True), empty.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["recipes", "empty"], "empty: no recipe was found there"),
        (["recipes", "again.py"], ""),  # it has the same recipe
        (["--select=right,wrong"], "--select: no cell matches 'wrong'"),
    ],
)
def test_what_was_asked_for_and_is_not_there_is_an_error_beside_what_is_there(project, cli, arguments, told):
    project.recipes(RIGHT, name="recipes/onnx_recipes.py")
    project.write("recipes/__init__.py", "")
    project.write("again.py", "from recipes.onnx_recipes import right")
    (project.root / "empty").mkdir()
    done = cli("list", "--opsets=13", *arguments)
    assert (done.returncode, done.stdout) == (2 if told else 0, "recipes/onnx_recipes.py::right::opset13-cpu\n"), done.stderr
    assert done.stderr.startswith(f"onnx-ci: {told}" if told else "")
    if told.startswith("--select"):
        assert cli("matrix", "--opsets=13", *arguments).returncode == 2


def test_a_cell_that_is_selected_and_left_out_by_another_flag_is_no_typo(project, cli):
    project.recipes(RIGHT.replace("recipe(", "recipe(opsets='17', "))
    done = cli("list", "--opsets=20", "--select=right::*")
    assert done.returncode == 5
    assert (
        done.stderr
        == "onnx-ci: no cells: --opsets left out every cell of --select=right::*: right has cells at opset 17 on cpu\n"
    )


MANUAL = RIGHT.replace("recipe(", "recipe(manual='needs 8 GiB', tags=['big'], ").replace("def right", "def big")


@pytest.mark.slow
def test_a_manual_recipe_is_listed_where_it_is_asked_for(project, cli):
    project.recipes(RIGHT, MANUAL)
    project.recipes(MANUAL, name="big/onnx_recipes.py")
    done = cli("list", "--opsets=9", "--why", ".")
    assert done.stdout.splitlines() == [
        "onnx_recipes.py::right::opset9-cpu",
        "left out big at every opset, unless requested by file, --select or --tags: needs 8 GiB",
    ]
    for asked in (["--tags=big", "big"], ["--select=big", "big"], ["big/onnx_recipes.py"]):
        assert cli("list", "--opsets=9", *asked).stdout.splitlines() == ["big/onnx_recipes.py::big::opset9-cpu"]
    done = cli("list", "--opsets=9", "--why", "--tags=big", "onnx_recipes.py")
    assert done.stdout.splitlines() == [
        "onnx_recipes.py::big::opset9-cpu", "left out right: it has no tag from --tags=big",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tags=bigg"], "no recipe has a tag from --tags=bigg; did you mean 'big'?"),
        (["--select=bik"], "no cell matches --select=bik; did you mean 'big'?; onnx-ci list shows the cells' ids"),
        (["--tags=big", "--select=other"], "no cell matches --select=other; onnx-ci list shows the cells' ids"),
        ([], "left out big at every opset, unless requested by file, --select or --tags: needs 8 GiB"),
    ],
)
def test_where_nothing_is_asked_for_the_nearest_is_named(project, cli, flags, said):
    project.recipes(MANUAL)
    for command in ("list", "run"):
        done = cli(command, "--opsets=9", *flags)
        assert done.returncode == 5
        assert done.stderr.splitlines()[-1].endswith(f": {said}")


LOUD = "import os\nprint('loud')\nos.system('echo louder')\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["list", "matrix"])
def test_what_recipe_files_print_does_not_stand_in_the_output(project, cli, command):
    project.recipes(RIGHT)
    quiet = cli(command, "--opsets=13")
    assert quiet.stdout.count("\n") == 1
    project.recipes(LOUD, RIGHT)
    loud = cli(command, "--opsets=13")
    assert (loud.returncode, loud.stdout) == (0, quiet.stdout)
    assert sorted(loud.stderr.split()) == ["loud", "louder"]


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["fork", "spawn"])
def test_what_several_recipe_files_print_alike_is_shown_once(project, cli, isolation):
    for name in ("first", "second", "third"):
        other = "print('of the third alone')\n" if name == "third" else ""
        project.recipes(LOUD, other, RIGHT.replace("right", name), name=f"{name}/onnx_recipes.py")
    loud = cli("list", "--opsets=13", f"--isolation={isolation}")
    assert loud.returncode == 0
    assert (loud.stderr.count("louder"), loud.stderr.count("of the third alone")) == (2, 1)


def test_help_has_examples_and_every_setting(quick):
    from onnx_ci.config.options import FLAGS

    text = quick("run", "-h").stdout
    assert "\n  Examples:\n    onnx-ci run  " in text
    assert all(f"--{option.name} " in text for option in FLAGS)
    assert "onnx-ci" in quick("--version").stdout


def under_headings(text, prefix="--"):
    """The names of the options in a help text, by the heading that they are under."""
    found, heading = {}, None
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            heading = found.setdefault(line.removesuffix(":"), [])
        elif heading is not None and (flag := re.match(rf"  (?:-\w, )?{prefix}([\w-]+)", line)):
            heading.append(flag[1])
    return found


def test_help_groups_the_settings_as_the_table_does(project, quick):
    from onnx_ci.config.options import FLAGS, Group

    table = {group.value: [option.name for option in FLAGS if option.group is group] for group in Group}
    of_run = under_headings(quick("run", "-h").output)
    assert list(of_run) == [*table, "Other"]
    own = {"What runs": ["exitfirst"], "Output": ["summary", "quiet", "verbose", "color"], "Machine": ["no-cache"]}
    assert of_run == {**{heading: names + own.get(heading, []) for heading, names in table.items()}, "Other": ["help"]}
    assert under_headings(quick("config", "-h").output) == {"Options": ["json", "schema", "check"], **table, "Other": ["help"]}
    of_pytest = under_headings(project.command("pytest", "--help").stdout, prefix="--onnx-")
    title = "ONNX export (onnx-ci)"
    assert of_pytest[title] == ["export", "runtime"]
    assert {heading: of_pytest[f"{title}: {heading.lower()}"] for heading in table} == table


def test_without_a_command_it_names_what_to_do_first_and_is_no_success(quick):
    done = quick()
    assert done.exit_code == 2
    named = [line.split()[1] for line in done.output.splitlines() if line.startswith("  onnx-ci ")]
    assert named == ["init", "run", "why", "fix", "baseline"]
    assert set(named) <= set(COMMANDS)
    assert "onnx-ci -h lists all commands" in done.output


def test_every_command_has_examples_and_one_line_in_the_list_of_commands(quick):
    text = quick("-h", terminal_width=80).output
    assert "\n  Examples:\n    onnx-ci run  " in text
    listed = [line for line in text.partition("\nCommands:\n")[2].splitlines() if line.startswith("  ")]
    assert [line.split()[0] for line in listed] == list(COMMANDS)
    assert text.index("\n  run ") < text.index("\nTools:\n") < text.index("\n  fix ")
    assert all(line.endswith(".") and not line.endswith("..") for line in listed)
    for name in COMMANDS:
        assert f"onnx-ci {name}" in quick(name, "-h").output.partition("\n  Examples:\n")[2], name


def test_every_command_of_baseline_has_examples_and_one_line_in_their_list(quick):
    listed = quick("baseline", "-h", terminal_width=80).output.partition("\nCommands:\n")[2].splitlines()
    assert all(line.endswith(".") and not line.endswith("..") for line in listed)
    for name in ("update", "diff", "show", "prune"):
        assert f"onnx-ci baseline {name}" in quick("baseline", name, "-h").output.partition("\n  Examples:\n")[2]


def test_a_broken_pyproject_is_exit_2(project, quick):
    project.recipes(RIGHT)
    project.write("pyproject.toml", "[tool.onnx-ci\n")
    for command in ("run", "list", "matrix"):
        done = quick(command)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert "pyproject.toml cannot be read: " in done.stderr


def test_an_error_of_onnx_ci_itself_is_exit_3(quick, monkeypatch, project):
    write_json(run_of(passed()), project.root / "r.json")
    monkeypatch.setattr("onnx_ci.cli.report.merge", lambda reports, **_: 1 // 0)
    done = quick("report", "r.json")
    assert done.exit_code == 3
    assert "ZeroDivisionError" in done.stderr
    assert "onnx-ci: this is a bug in onnx-ci; please report it with the lines above" in done.stderr
    assert all(f"{name} {version}" in done.stderr.splitlines()[-1] for name, version in versions().items())


# --- how much is shown, and how

PARTLY = WRONG.replace("recipe(", "recipe(expect={'13': onnx_ci.known_failure('baked-shape', 'the size is frozen')}, ").replace(
    "def wrong", "def partly"
)


@pytest.mark.slow
def test_what_passes_is_one_line_for_each_recipe_and_what_fails_first_a_line_at_once(project, cli):
    """The second failure of the same cause waits with the other cells of its recipe."""
    project.recipes(RIGHT, PARTLY)
    done = cli("run", "--opsets=12-14", "--isolation=none")
    lines = [line.partition(" (")[0] for line in done.stdout.splitlines() if line.startswith("[")]
    assert lines == [
        "[3/6] onnx_recipes.py::right  opsets 12-14 on cpu  passed",
        "[4/6] onnx_recipes.py::partly::opset12-cpu failed",
        "[6/6] onnx_recipes.py::partly::opset13-cpu xfailed",
        "[6/6] onnx_recipes.py::partly::opset14-cpu failed",
    ]
    verbose = cli("run", "--opsets=12-14", "--isolation=none", "-v").stdout
    shown = [line.split()[1].rpartition("::")[2] for line in verbose.splitlines() if line.startswith("[")]
    assert shown == [f"opset{opset}-cpu" for opset in (12, 13, 14)] * 2


def test_a_run_can_stop_after_the_first_failure(project, cli):
    project.recipes(FROZEN, RIGHT)
    done = cli("run", "-x", "--opsets=12-14", "--isolation=none", "--report=r.json")
    assert done.returncode == 1
    assert "did not run: 5 cells, first onnx_recipes.py::total::opset13-cpu" in done.stdout
    assert [cell.cell.opset for cell in read_json(project.root / "r.json").cells] == [12]


def test_results_wait_for_the_last_one_of_their_recipe_but_not_for_long():
    results = [passed(opset=opset) for opset in (9, 10, 11)] + [passed(recipe="other"), failed(opset=10, recipe="other")]
    now = [0.0]
    waiting = WaitingResults([result.cell for result in results], clock=lambda: now[0])
    assert waiting.add(results[0], waits=True) == []
    assert waiting.overdue() == []
    now[0] = 11.0
    assert waiting.add(results[1], waits=True) == results[:2]
    assert waiting.overdue() == []
    assert waiting.add(results[2], waits=True) == [results[2]]
    assert waiting.add(results[3], waits=True) == []
    assert waiting.add(results[4], waits=False) == [results[3]]
    assert waiting.take() == []


NOTED = """
    @onnx_ci.recipe(input_names=["x"], output_names=["y"])
    def noted():
        torch.set_printoptions(precision=3)
        torch.set_default_dtype(torch.float64)
        return Scale().float(), (torch.randn(3, 4),)
"""


def test_notes_are_counted_and_told_once_at_the_end(project, cli):
    project.recipes(NOTED, NOTED.replace("def noted", "def also"))
    done = cli("run", "--opsets=12-13", "--isolation=none")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].endswith("; 1 note)")
    told = [line for line in lines if line.startswith("note: ")]
    assert len(told) == 1
    assert told[0].startswith("note: noted and also in 4 cells: global-state: building the model changes torch's default dtype")
    assert done.stdout.count("    remedy: Restore what the recipe changes.") == 1


@pytest.mark.slow
def test_a_project_decides_what_a_rule_means_and_a_flag_does_so_without_running_a_cell_again(project, cli):
    project.recipes(RIGHT, RIGHT.replace("def right", "def also"))  # dynamo writes absolute paths into both files

    def decided(*flags, rules="", cached=False):
        project.write("pyproject.toml", rules)  # a file of the project: if it changes, all cells run again
        done = cli("run", "--opsets=18", "--cache=verdicts", "--report=r.json", *flags)
        cells = json.loads((project.root / "r.json").read_text())["cells"]
        assert [cell["cached"] for cell in cells] == [cached, cached]
        return done.returncode, [(cell["status"], [each["severity"] for each in cell["findings"]]) for cell in cells]

    noted, failed = ("passed", ["note"]), ("failed", ["error"])
    assert decided() == (0, [noted, noted])
    assert decided("--strict", cached=True) == (1, [failed, failed])
    assert decided("--strict", rules="[tool.onnx-ci.rules.also]\nabsolute-path = 'note'") == (1, [failed, noted])
    rules = "[tool.onnx-ci.rules]\nabsolute-path = 'ignore'\n[tool.onnx-ci.rules.'al*']\nabsolute-path = 'error'"
    assert decided(rules=rules) == (1, [("passed", []), failed])


@pytest.mark.slow
def test_it_is_said_why_a_verdict_cannot_be_kept_and_why_a_cell_ran(project, cli):
    asks = """
    import socket
    with socket.socket() as asked:
        asked.settimeout(0.01)
        asked.connect_ex(("127.0.0.1", 9))
    """
    project.recipes(asks, RIGHT)
    for _ in range(2):
        done = cli("run", "-v", "--opsets=13", "--cache=verdicts")
        assert "cached" not in done.stdout.splitlines()[-1], done.stdout
        assert "    ran because: no verdict on it is kept" in done.stdout
        assert "cache: the verdicts of onnx_recipes.py are not kept: it connects to 127.0.0.1" in done.stdout
    project.recipes(RIGHT)
    cli("run", "--opsets=13", "--cache=verdicts")
    project.recipes(RIGHT, "# edited")
    done = cli("run", "-v", "--opsets=13", "--cache=verdicts")
    assert "    ran because: onnx_recipes.py changed" in done.stdout


@pytest.mark.slow
def test_quiet_shows_failures_and_the_last_line(project, cli):
    project.recipes(LOUD, RIGHT, WRONG)
    done = cli("run", "-q", "--opsets=13")
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert lines[0].startswith("[2/2] onnx_recipes.py::wrong::opset13-cpu failed (baked-shape at onnx_recipes.py:")
    assert lines[-3].startswith("repeat with: ")
    assert lines[-2] == "try remedies: onnx-ci fix wrong::opset13-cpu onnx_recipes.py"
    assert lines[-1].startswith("2 cells: 1 passed, 1 failed in ")
    assert cli("run", "-q", "--opsets=13", "--select=right").stdout.count("\n") == 1


@pytest.mark.slow
def test_verbose_shows_notes_times_and_the_log_of_each_cell(project, cli):
    chatty = """
    @onnx_ci.recipe(input_names=["x"], output_names=["y"])
    def chatty():
        print("::error::said while building")
        return Scale(), (torch.randn(3, 4),)
    """
    project.recipes(chatty)
    done = cli("run", "-v", "--opsets=13")
    assert done.returncode == 0, done.stdout
    assert "    | ::error::said while building\n" in done.stdout
    assert " s: " in done.stdout
    assert "export 0." in done.stdout
    assert "said while building" not in cli("run", "--opsets=13").stdout


@pytest.mark.parametrize(
    ("arguments", "environment", "is_terminal", "has_colours"),
    [
        (["report"], {}, False, False),
        (["report"], {}, True, True),
        (["report"], {"NO_COLOR": "1"}, True, False),
        (["report"], {"NO_COLOR": ""}, True, True),
        (["report", "--color=never"], {}, True, False),
        (["report", "--color=always"], {}, False, True),
        (["report", "--color=always"], {"NO_COLOR": "1"}, False, True),
        (["report", "--color=auto"], {"NO_COLOR": "1"}, True, False),
        (["--color=always", "report"], {"NO_COLOR": "1"}, False, True),
        (["--color=always", "report", "--color=never"], {}, True, False),
        (["--color=never", "report"], {}, True, False),
    ],
)
def test_colours_follow_the_flag_the_environment_and_the_terminal(
    quick, project, arguments, environment, is_terminal, has_colours
):
    write_json(run_of(passed(), failed(opset=10)), project.root / "r.json")
    done = quick(*arguments, "r.json", env={"NO_COLOR": None} | environment, color=is_terminal)
    assert done.exit_code == 1
    assert ("\x1b[" in done.output) == has_colours


class Terminal:
    """A screen of one line that remembers the lines that scrolled away, and every line that stood last."""

    def __init__(self, text):
        self.lines, self.live, line, at = [], [], "", 0
        for character in text:
            if character == "\r":
                self.live.append(line.strip())
                at = 0
            elif character == "\n":
                self.lines.append(line.rstrip())
                line, at = "", 0
            else:
                line = line[:at] + character + line[at + 1 :]
                at += 1


@pytest.mark.parametrize("isolation", ["fork", "none"])
@pytest.mark.skipif(sys.platform != "linux", reason="needs a pseudo-terminal, and processes of cells are on Linux only")
def test_a_terminal_has_one_live_line_that_leaves_nothing_behind(project, isolation):
    import pty

    project.recipes(RIGHT)
    ours, theirs = pty.openpty()
    command = [warm_python.executable(), "-m", "onnx_ci", "run", "--opsets=12-13", "--color=never", f"--isolation={isolation}"]
    with subprocess.Popen(
        command, cwd=project.root, stdout=theirs, stderr=theirs, env={**os.environ, "COLUMNS": "100"}
    ) as process:
        os.close(theirs)
        read = b""
        while True:
            try:
                read += os.read(ours, 4096) or b"\n"
            except OSError:  # how Linux tells that the other end is closed
                break
    os.close(ours)
    terminal = Terminal(read.decode())
    assert process.returncode == 0, read
    assert terminal.lines[0].startswith("[2/2] onnx_recipes.py::right  opsets 12-13 on cpu  passed (drift at most ")
    assert not [line for line in terminal.lines[1:] if line.startswith("[")]
    assert terminal.lines[-1].startswith("2 cells: 2 passed in ")
    assert not [line for line in terminal.lines if line.startswith("[0/2]")]
    assert terminal.live[1] == "[0/2] right::opset12-cpu"
    assert any(line.startswith("[1/2] right::opset13-cpu (") and line.endswith(" left)") for line in terminal.live)
    assert any("building the model" in line or "starting" in line for line in terminal.live) == (isolation == "fork")


def took(seconds, opset, **changes):
    recipe = changes.pop("recipe", "net")
    return dataclasses.replace(passed(opset=opset, recipe=recipe), timings={"export": seconds}, **changes)


def test_the_estimate_comes_from_what_ran_and_from_earlier_runs():
    cells = [passed(opset=opset).cell for opset in range(9, 14)]

    def seconds_left(results, durations, elapsed):
        time_left = TimeLeft(cells, durations)
        for result in results:
            time_left.add(result)
        return time_left.seconds(elapsed)

    assert seconds_left([], {}, 5.0) is None
    assert seconds_left([took(1.0, 9, cached=True)], {}, 5.0) is None
    assert seconds_left([took(1.0, 9, cached=True), took(1.0, 10)], {}, 2.0) == 6.0
    # Opset 9 took 4 s and opset 13 took 20 s. The others count as 4 s each, and two run at once.
    durations = {cells[0].id: 4.0, cells[-1].id: 20.0}
    assert seconds_left([took(2.0, 9), took(2.0, 10)], durations, 4.0) == 4.0 * (4 + 4 + 20) / 8
    assert seconds_left([took(2.0, opset) for opset in range(9, 14)], durations, 4.0) == 0


def test_a_time_is_told_as_exactly_as_it_is_known():
    told = [about(seconds) for seconds in (3, 12, 58, 94, 130, 3599, 6000)]
    assert told == ["a few seconds", "about 10 s", "about 60 s", "about 90 s", "about 2 min", "about 60 min", "about 1.7 h"]


def test_the_live_line_names_as_much_as_there_is_room_for(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    cells = [passed(opset=opset).cell for opset in range(9, 18)]
    now = [0.0]
    progress = Progress(cells, {}, is_live=True, clock=lambda: now[0])
    assert capsys.readouterr().out == "\r[0/9] net::opset9-cpu"
    now[0] = 100.0
    progress.add(took(10.0, 9))
    capsys.readouterr()
    progress.show([f"net::opset{opset}-cpu" for opset in range(10, 14)])
    assert capsys.readouterr().out == "\r[1/9] net::opset10-cpu and 3 more (about 13 min left)"
    progress.show(["x" * 99])
    line = capsys.readouterr().out.removeprefix("\r")
    assert (len(line), line.endswith("xx (about 13 min left)")) == (59, True)
    progress.clear()
    assert capsys.readouterr().out == "\r" + " " * 59 + "\r"
    progress.clear()
    assert capsys.readouterr().out == ""


def test_where_there_is_no_terminal_a_line_says_what_runs_once_a_minute(capsys):
    now = [0.0]
    progress = Progress([passed().cell, passed(opset=10).cell], {}, is_live=False, clock=lambda: now[0])
    for seconds in (30.0, 50.0, 70.0, 90.0, 140.0):
        now[0] = seconds
        progress.show(["net: building the model"])
    assert capsys.readouterr().out == "[0/2] net: building the model\n" * 2
    progress.add(passed())
    now[0] = 190.0
    progress.show(["net::opset10-cpu"])
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(sys.platform != "linux", reason="cells have processes of their own on Linux only")
def test_a_session_with_processes_tells_what_they_are_doing(project):
    from onnx_ci.config.settings import load_settings
    from onnx_ci.engine.events import CellJudged, Waiting
    from onnx_ci.engine.recipes import find_recipes
    from onnx_ci.engine.session import Session

    project.recipes(RIGHT)
    settings = load_settings(project.root, flags={"opsets": "12-13", "jobs": "2"})
    with Session(settings) as session:
        session.plan(find_recipes(settings))
        events = list(session.events())
    assert [event.result.status for event in events if isinstance(event, CellJudged)] == [Status.PASSED, Status.PASSED]
    doing = [event.doing for event in events if isinstance(event, Waiting)]
    assert doing[0] == ("right: starting",)
    assert ("right::opset12-cpu", "right::opset13-cpu") in doing


# --- reports of several jobs


def test_report_merges_shows_and_writes(quick, project):
    write_json(run_of(passed(), skipped(opset=10, device="cuda")), project.root / "jobs/cpu/report.json")
    write_json(run_of(failed(opset=10, device="cuda"), seconds=2.0), project.root / "jobs/cuda/report.json")
    done = quick("report", "jobs", "--markdown=out/summary.md", "--json=out/all.json", "--html=out/page.html")
    assert (done.exit_code, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        "a/b.py::net::opset10-cuda failed (numeric-drift)",
        "",
        "net: failed at opset 10 on cuda",
        "numeric-drift: off by 3",
    ]
    assert (
        "repeat with: onnx-ci run --opsets=10 --devices=cuda --max-drift=16 --no-cache --select=net::opset10-cuda a/b.py"
        in lines
    )
    assert lines[-1] == "2 cells: 1 passed, 1 failed in 3.0 s together"
    assert "| net cuda | · | ❌ FAIL |" in (project.root / "out/summary.md").read_text(encoding="utf-8")
    page = (project.root / "out/page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "--select=net::opset10-cuda a/b.py" in page
    whole = read_json(project.root / "out/all.json")
    assert [part.name for part in whole.merged_from] == ["jobs/cpu/report.json", "jobs/cuda/report.json"]
    again = quick("report", "out/all.json")
    assert (again.exit_code, again.stdout) == (1, done.stdout)


def test_report_writes_one_rendering_to_standard_output_and_nothing_else(quick, project):
    write_json(run_of(passed(), failed(opset=10)), project.root / "r.json")
    assert quick("report", "r.json", "--markdown=-").stdout.startswith("## ONNX export: ❌ failed\n")
    assert RunReport.from_json(json.loads(quick("report", "r.json", "--json=-").stdout)) == read_json(project.root / "r.json")
    both = quick("report", "r.json", "--json=-", "--markdown=-")
    assert (both.exit_code, "only one form of the report can go to standard output" in both.stderr) == (2, True)
    both = quick("report", "r.json", "--html=page", "--junit=page")
    assert (both.exit_code, f"only one form of the report can go to {project.root / 'page'}" in both.stderr) == (2, True)
    assert not (project.root / "page").exists()


def test_report_shows_every_cell_if_verbose_and_failures_if_quiet(quick, project):
    write_json(run_of(passed(), failed(opset=10)), project.root / "r.json")
    assert "a/b.py::net::opset9-cpu passed (drift 1.5)\n" in quick("report", "r.json", "-v").stdout
    quiet = quick("report", "r.json", "-q").stdout.splitlines()
    assert (quiet[0], quiet[-1]) == ("a/b.py::net::opset10-cpu failed (numeric-drift)", "2 cells: 1 passed, 1 failed in 1.0 s")
    assert not [line for line in quiet if line.startswith("opset")]


@pytest.mark.parametrize(
    ("whole", "code"),
    [
        (run_of(passed()), 0),
        (run_of(passed(), failed(opset=10)), 1),
        (run_of(passed(), not_run=("x",)), 1),
        (run_of(CellResult(cell=passed().cell, status=Status.ERROR, findings=(finding("internal-error", "x"),))), 3),
        (run_of(skipped(device="cuda")), 4),
        (run_of(), 5),
    ],
)
def test_report_ends_as_the_run_did(quick, project, whole, code):
    write_json(whole, project.root / "r.json")
    done = quick("report", "r.json")
    assert done.exit_code == code
    assert ("onnx-ci: nothing ran: " in done.stderr) == (code in (4, 5))


def test_what_report_cannot_use_is_one_message_and_exit_2(quick, project):
    write_json(run_of(passed()), project.root / "a.json")
    write_json(run_of(failed(), seconds=2.0), project.root / "b.json")
    (project.root / "empty").mkdir()
    for arguments, said in (
        (["a.json", "b.json"], "a.json and b.json contradict each other about a/b.py::net::opset9-cpu"),
        (["empty"], "the folder empty contains no report"),
        (["c.json"], "the report c.json cannot be read: No such file or directory; did you mean 'b.json'?"),
        (["a.json", f"--json={project.root / 'a.json' / 'x'}"], "cannot be written"),
        (["a.json", "--markdown=empty"], "the report empty cannot be written: Is a directory; choose another path"),
    ):
        done = quick("report", *arguments)
        assert (done.exit_code, done.stderr.count("\n"), said in done.stderr) == (2, 1, True), done.stderr
    assert quick("report").exit_code == 2


def corrupted(text, rng):
    """The text of a report with one thing wrong with it that cannot be right."""
    data = json.loads(text)
    kind = rng.choice(["cut", "remove", "retype", "bytes"])
    if kind == "cut":
        return text[: rng.randrange(len(text) - 1)].encode()
    if kind == "bytes":
        at = rng.randrange(len(text))
        return text[:at].encode() + rng.choice([b"\xff", b"\x00", b"\x1b"]) + text[at:].encode()
    places = []

    def walk(value):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
            free = isinstance(value, dict) and key in (
                "details",
                "domains",
                "environment",
                "errors",
                "operators",
                "settings",
                "timings",
            )
            if isinstance(value, dict):
                places.append((value, key))
            if not free:
                walk(inner)

    walk(data)
    place, key = rng.choice(places)
    if kind == "remove":
        del place[key]
    else:
        place[key] = {"surprise": [place[key]]} if key != "details" else 3
    return json.dumps(data).encode()


@given(any_report=reports(), rng=st.randoms(use_true_random=False))
def test_a_corrupted_report_is_one_message_and_exit_2(quick, project, any_report, rng):
    path = project.root / "r.json"
    path.unlink(missing_ok=True)  # the last one may no longer look like a report
    write_json(any_report, path)
    path.write_bytes(corrupted(path.read_text(encoding="utf-8"), rng))
    done = quick("report", path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("onnx-ci: ")
    assert done.stderr.endswith("write one with onnx-ci run --report=PATH\n")
    assert done.stderr.count("\n") == 1
    assert str(path) in done.stderr


def test_the_report_command_loads_no_torch(project):
    write_json(run_of(passed()), project.root / "r.json")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "onnx_ci", "report", "r.json", "--markdown=x.md"],
        cwd=project.root, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "click" in imported
    assert not imported & {"torch", "onnx", "onnxruntime", "numpy"}


def test_a_process_that_dies_without_isolation_leaves_a_journal_and_no_partial_report(project, cli):
    project.recipes(RIGHT, DIES)
    done = cli("run", "--opsets=13", "--report=r.json", "--isolation=none")
    assert done.returncode == 9
    assert [each.name for each in project.root.glob("*r.json*")] == ["r.json.journal"]
    found = read_json(project.root / "r.json")
    assert ([each.cell.recipe for each in found.cells], len(found.not_run), found.verdict) == (["right"], 1, "failed")


@pytest.mark.slow
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
    assert "Invalid value for '--opset'" in cli("verify", str(file), "--recipe=right", "--opset=0", recipes.name).stderr

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


def test_a_cell_with_a_kept_verdict_is_not_run_beside_the_others(project):
    for name in ("first", "second"):
        project.write(
            f"recipe_{name}.py",
            f"""
            import onnx_ci, torch

            @onnx_ci.recipe(input_names=["x"], output_names=["y"])
            def {name}():
                return torch.nn.ReLU(), (torch.randn(3, 4),)
            """,
        )
    cache = project.root.parent / "cache"
    files = ("recipe_first.py", "recipe_second.py")
    command = ("onnx_ci", "run", *files, "--opsets=13", "--jobs=2", f"--cache={cache}", "--report=r.json")
    assert project.command(*command).returncode == 0
    slow = (project.root / "recipe_second.py").read_text().replace("    return", "    __import__('time').sleep(2)\n    return")
    project.write("recipe_second.py", slow)  # there is time to run the first one beside it
    assert project.command(*command).returncode == 0
    report = json.loads((project.root / "r.json").read_text())
    assert {cell["recipe"]: cell["cached"] for cell in report["cells"]} == {"first": True, "second": False}


@pytest.mark.parametrize("command", [("run",), ("list",), ("compare", "a.onnx", "b.onnx")])
def test_without_torch_that_is_what_a_command_says(project, command):
    project.write("onnx_recipes.py", "import torch\n")
    project.write(
        "sitecustomize.py",
        """
        import importlib.util, sys

        class WithoutTorch:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "torch":
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        def find_spec(name, package=None, true=importlib.util.find_spec):
            return None if name == "torch" else true(name, package)

        sys.meta_path.insert(0, WithoutTorch())
        importlib.util.find_spec = find_spec
        """,
    )
    done = project.command("onnx_ci", *command, PYTHONPATH=str(project.root))
    assert done.returncode == ExitCode.ENVIRONMENT
    assert done.stderr.splitlines() == ["onnx-ci: torch is not installed; pip install torch"]
