"""Shards in the command and in pytest, and the matrix of jobs that have them."""

from __future__ import annotations

import json

import pytest
from toolbox.projects import RIGHT
from toolbox.records import report_with

NAMES = ("one", "two", "three")


@pytest.fixture
def three(project):
    """A project with three recipes in two files: six cells at opsets 12 and 13."""
    project.write("pyproject.toml", '[tool.onnx-ci]\nrecipe-files = ["*_recipes.py"]\n')
    project.recipes(*(RIGHT.replace("def right", f"def {name}") for name in NAMES[:2]))
    project.recipes(RIGHT.replace("def right", "def three"), name="deep/more_recipes.py")
    project.write("old.json", json.dumps(report_with({ID[name].format(12): 3.5 if name == "two" else 2 for name in NAMES})))
    return project


ID = {name: f"{'deep/more' if name == 'three' else 'onnx'}_recipes.py::{name}::opset{{}}-cpu" for name in NAMES}


def listed(project, *arguments):
    return project.command("onnx_ci", "list", "--opsets=12-13", *arguments).stdout.splitlines()


def collected(project, *arguments):
    flags = ["--onnx-export", "--onnx-opsets=12-13", "--co", "-q", "-p", "no:cacheprovider"]
    done = project.command("pytest", *flags, *arguments)
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.slow
def test_the_shards_of_the_command_and_of_pytest_are_the_same_and_are_everything(three):
    durations = "durations=old.json"
    shards = [listed(three, f"--shard={n}/2", f"--{durations}") for n in (1, 2)]
    # Opset 13, which is not in the report, counts as the mean.
    assert shards == [
        [ID["two"].format(12), ID["two"].format(13)],
        [ID[n].format(o) for n in ("one", "three") for o in (12, 13)],
    ]
    for n, shard in enumerate(shards, start=1):
        assert sorted(collected(three, f"--onnx-shard={n}/2", f"--onnx-{durations}")) == sorted(shard)
    unweighed = [listed(three, f"--shard={n}/2") for n in (1, 2)]
    assert unweighed != shards
    assert sorted(id for shard in unweighed for id in shard) == sorted(listed(three))


@pytest.mark.slow
def test_run_runs_its_shard_and_says_so_in_the_report(three):
    done = three.command("onnx_ci", "run", "--opsets=13", "--report=r.json", ONNX_CI_SHARD="2/2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "shard 2/2: 1 of 3 cells" in done.stdout
    report = json.loads((three.root / "r.json").read_text())
    assert [cell["id"] for cell in report["cells"]] == [ID["one"].format(13)]
    assert report["settings"]["shard"] == {
        "value": "2/2",
        "origin": {"source": "environment", "given_as": "ONNX_CI_SHARD"},
    }
    assert report["settings"]["durations"] == {"value": None, "origin": {"source": "default", "given_as": "default"}}
    assert (three.command("onnx_ci", "run", "--opsets=13", "--shard=1/2", "--durations=r.json").returncode) == 0


@pytest.mark.slow
def test_pytest_runs_its_shard_with_and_without_workers(three):
    arguments = ["-p", "no:cacheprovider", "--onnx-export", "--onnx-opsets=13", "--onnx-report=r.json"]
    seen = []
    for shard, workers in (("1/2", ["-n", "2"]), ("2/2", [])):
        done = three.command("pytest", f"--onnx-shard={shard}", *arguments, *workers)
        assert done.returncode == 0, done.stdout
        assert f"shard {shard}" in done.stdout
        report = json.loads((three.root / "r.json").read_text())
        assert (report["summary"]["verdict"], report["not_run"]) == ("passed", [])
        ids = [cell["id"] for cell in report["cells"]]
        assert sorted(ids + report["in_other_jobs"]) == sorted(ID[name].format(13) for name in NAMES)
        seen += ids
    assert "2 deselected" in done.stdout
    assert sorted(seen) == sorted(ID[name].format(13) for name in NAMES)


@pytest.mark.slow
def test_a_cell_is_in_the_same_shard_whatever_narrows_the_run(three):
    three.write("test_own.py", "def test_own(): ...")
    first = collected(three, "--onnx-shard=1/2")
    assert "test_own.py::test_own" in first
    for name in ("one", "two"):
        ids = [ID[name].format(opset) for opset in (12, 13)]
        assert collected(three, "--onnx-shard=1/2", "-k", name) == [id for id in first if id in ids]
    every = [ID[name].format(opset) for name in reversed(NAMES) for opset in (13, 12)]
    assert collected(three, "--onnx-shard=1/2", *every) == [id for id in every if id in first]


@pytest.mark.slow
def test_the_reports_of_shards_are_a_success_only_together(three):
    three.command("onnx_ci", "matrix", "--opsets=13", "--shards=2", "--plan=reports/plan.json")
    for n in (1, 2):
        assert three.command("onnx_ci", "run", "--opsets=13", f"--shard={n}/2", f"--report=reports/{n}.json").returncode == 0
    assert three.command("onnx_ci", "report", "reports").returncode == 0
    assert three.command("onnx_ci", "report", "reports/1.json", "reports/2.json").returncode == 0
    for names in (["reports/1.json"], ["reports/plan.json", "reports/1.json"], ["reports/plan.json"]):
        done = three.command("onnx_ci", "report", *names)
        assert done.returncode == 1
        assert "did not run: " in done.stdout
    assert three.command("onnx_ci", "report", "reports/1.json", "--part").returncode == 0


@pytest.mark.slow
def test_cells_that_k_leaves_out_are_not_missing_from_a_merge(three):
    for n in (1, 2):
        flags = ["--onnx-export", "--onnx-opsets=13", "-k", "one or three", f"--onnx-shard={n}/2"]
        three.command("pytest", "-p", "no:cacheprovider", *flags, f"--onnx-report=reports/{n}.json")
    done = three.command("onnx_ci", "report", "reports")
    assert done.returncode == 0, done.stdout
    assert "2 cells: 2 passed" in done.stdout


def test_cells_of_other_shards_are_no_success(three):
    arguments = ["--onnx-export", "--onnx-opsets=13", "--onnx-shard=2/2", "-p", "no:cacheprovider"]
    done = three.command("pytest", *arguments, ID["two"].format(13), ID["three"].format(13))
    assert done.returncode == 5, done.stdout
    assert "nothing was verified: no selected cell is in shard 2/2" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_an_empty_shard_is_exit_5_in_pytest_and_says_why(three, workers):
    done = three.command("pytest", "--onnx-export", "--onnx-opsets=13", "--onnx-shard=5/5", "-p", "no:cacheprovider", *workers)
    assert done.returncode == 5
    assert "nothing was verified: shard 5/5 is empty: there are only 3 cells; use 3 shards or fewer, such as 1/3" in done.stdout


@pytest.mark.parametrize("command", ["run", "list"])
def test_an_empty_shard_is_exit_5_in_the_command_and_says_why(three, command):
    done = three.command("onnx_ci", command, "--opsets=13", "--shard=5/5")
    assert done.returncode == 5
    assert "shard 5/5 is empty: there are only 3 cells; use 3 shards or fewer, such as 1/3" in done.stderr
    alone = three.command("onnx_ci", command, "--opsets=13", "--shard=2/2", "--select=one")
    assert (alone.returncode, "there is only 1 cell; run without a shard" in alone.stderr) == (5, True)


@pytest.mark.slow
def test_wrong_shards_and_durations_are_one_message_in_both_front_ends(three):
    said = "shard: there is no shard 0 of 5; shards are numbered 1/5 to 5/5"
    command = three.in_process("list", "--shard=0/5")
    plugin = three.command("pytest", "--onnx-export", "--onnx-shard=0/5")
    assert (command.returncode, f"onnx-ci: --{said}" in command.stderr) == (2, True)
    assert (plugin.returncode, f"onnx-ci: --onnx-{said}" in plugin.stderr) == (4, True)
    said = (
        "durations: pyproject.toml is truncated or not JSON, so it is not a report of onnx-ci; "
        "write one with onnx-ci run --report=PATH, or leave durations out"
    )
    three.write("pyproject.toml", '[tool.onnx-ci]\nrecipe-files = ["*_recipes.py"]\ndurations = "pyproject.toml"\n')
    command = three.in_process("run", "--shard=1/2")
    plugin = three.command("pytest", "--onnx-export", "--onnx-shard=1/2", "-n", "2")
    assert (command.returncode, said in command.stderr) == (2, True)
    assert (plugin.returncode, said in plugin.stderr) == (4, True)
    assert len(listed(three)) == 6  # without a shard nobody reads them


# --- onnx-ci matrix


def matrix(project, *arguments):
    done = project.command("onnx_ci", "matrix", *arguments)
    assert done.returncode == 0, done.stderr
    return done


def test_the_matrix_is_one_line_of_json_whatever_recipe_files_print(three):
    three.write("more/loud_recipes.py", "print('loud')")
    done = matrix(three, "--opsets=12-13")
    assert done.stdout.count("\n") == 1
    assert json.loads(done.stdout) == {
        "include": [
            {"id": f"opset{n}-cpu", "opset": n, "device": "cpu", "runner": "ubuntu-latest"} for n in (12, 13)
        ]
    }  # fmt: skip
    assert "loud" in done.stderr


@pytest.mark.slow
def test_each_entry_of_the_matrix_is_a_run_and_together_they_are_everything(three):
    done = matrix(three, "--opsets=12-13", "--shards=2", "--durations=old.json")
    entries = json.loads(done.stdout)["include"]
    assert [entry["id"] for entry in entries] == ["shard-1-of-2", "shard-2-of-2"]
    parts = [listed(three, f"--devices={e['device']}", f"--shard={e['shard']}", "--durations=old.json") for e in entries]
    assert parts[0] == [ID["two"].format(12), ID["two"].format(13)]
    assert sorted(parts[0] + parts[1]) == sorted(listed(three))


def test_more_shards_than_cells_are_fewer_entries(three):
    done = matrix(three, "--opsets=13", "--shards=9")
    assert [entry["shard"] for entry in json.loads(done.stdout)["include"]] == ["1/3", "2/3", "3/3"]
    assert "onnx-ci: 3 shards instead of 9: cpu has no more cells" in done.stderr


def test_the_matrix_as_a_table(three):
    done = matrix(three, "--opsets=12", "--shards=2", "--durations=old.json", "--format=text")
    assert done.stdout.splitlines() == [
        "job           device  runner         cells  seconds",
        "shard-1-of-2  cpu     ubuntu-latest      1      3.5",
        "shard-2-of-2  cpu     ubuntu-latest      2      4.0",
    ]
    assert "seconds" not in matrix(three, "--format=text").stdout


def test_the_runner_of_cuda_is_the_callers_to_name(three):
    done = three.command("onnx_ci", "matrix", "--devices=cpu,cuda")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "there are cells for cuda, but no runner is specified for them; pass its label with --cuda-runner=LABEL" in done.stderr
    )
    named = matrix(three, "--devices=cpu,cuda", "--opsets=13", "--cuda-runner=my gpu")
    assert [entry["runner"] for entry in json.loads(named.stdout)["include"]] == ["ubuntu-latest", "my gpu"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--select=banana"], 5, "no cells: no cell matches --select=banana"),
        (
            ["--opsets=1-23", f"--devices=cpu,cuda,{','.join(f'cuda:{n}' for n in range(1, 11))}", "--cuda-runner=x"],
            2,
            "276 jobs, but GitHub allows 256",
        ),
        (["broken"], 2, "broken/broken_recipes.py: cannot be imported"),
    ],
)
def test_what_makes_no_matrix_prints_none(three, arguments, code, said):
    three.write("broken/broken_recipes.py", "import nowhere_at_all")
    done = three.command("onnx_ci", "matrix", *(arguments if "broken" in arguments else [*arguments, "deep"]))
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
