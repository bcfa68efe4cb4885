"""``action.yml`` as GitHub runs it: its steps, in order, in bash, with GitHub's environment files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import site
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from toolbox.github_runner import ACTION, MAIN, ROOT, Caches, Job, evaluate, outputs_in
from toolbox.projects import RIGHT

from onnx_ci.github import action

HOSTILE = """'; touch owned; echo "$(touch owned)" `touch owned`\n::error::owned\r::error::owned\n##[add-mask]owned 🦊"""


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


@pytest.fixture(scope="module")
def passing(tmp_path_factory):
    """The action, used once on a project whose exports are right."""
    return use(tmp_path_factory, "passing")


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    """The action, used once on a project of whose two exports one is wrong."""
    return use(tmp_path_factory, "failing")


def use(tmp_path_factory, name):
    job = Job(tmp_path_factory.mktemp(name))
    sample(job, name)
    return job, job.use(args="--select '*'")  # which the second run, of the failed cells, leaves out


def sample(job, name, folder="."):
    shutil.copytree(ROOT / "tests" / "e2e" / "github" / "projects" / name, job.checkout / folder, dirs_exist_ok=True)


@pytest.mark.slow
def test_a_passing_project(passing):
    job, ran = passing
    assert ran.code == 0, ran.log
    assert (ran.outputs["verdict"], ran.outputs["failed"]) == ("passed", "0")
    assert json.loads(Path(ran.outputs["report"]).read_text())["summary"]["verdict"] == "passed"
    assert "scale" in Path(ran.outputs["html"]).read_text()
    assert ran.summary.startswith("## ONNX export: ✅ passed")
    assert "| scale cpu |" in ran.summary
    assert ran.annotations == []
    assert ran.uploads == {}
    assert not list(job.temporary.rglob("*.onnx"))


def test_what_a_recipe_prints_is_in_the_log_and_is_no_command(passing):
    _, ran = passing
    assert "\n: :error title=owned::owned\n## [add-mask]owned\n" in ran.log
    assert {each.name for each in ran.commands} == {"group", "endgroup"}


def test_the_grid_stands_outside_the_folded_output(passing):
    _, ran = passing
    after = ran.log.rpartition("::endgroup::")[2]
    assert "scale cpu" in after
    assert "2 cells: 2 passed" in after


@pytest.mark.slow
def test_a_failing_project_ends_with_the_gates_own_code_and_still_reports(failing):
    _, ran = failing
    assert ran.code == 1, ran.log
    assert (ran.outputs["verdict"], ran.outputs["failed"]) == ("failed", "2")
    assert json.loads(Path(ran.outputs["report"]).read_text())["summary"]["verdict"] == "failed"
    assert ran.summary.startswith("## ONNX export: ❌ failed")
    assert "baked-value" in ran.summary
    assert "onnx-ci run " in ran.summary


def test_an_annotation_stands_at_the_faulty_line_and_begins_with_it(failing):
    job, ran = failing
    source = (job.checkout / "onnx_recipes.py").read_text().splitlines()
    (told,) = ran.annotations
    assert (told.name, told.properties["title"]) == ("error", "total: baked-value")
    assert told.properties["file"] == "onnx_recipes.py"
    assert source[int(told.properties["line"]) - 1].strip().startswith("for i in range(x.shape[0]):")
    first, where, remedy = told.message.split("\n")
    assert first.startswith("onnx_recipes.py:") and ": output 'total' at " in first
    assert where == "at opsets 13,17 on cpu"
    assert remedy.startswith("remedy: ")


def test_the_files_of_failed_cells_are_uploaded_with_the_reports_and_no_others(failing):
    _, ran = failing
    files = {"onnx/total/opset13-cpu.onnx", "onnx/total/opset17-cpu.onnx"}
    assert ran.uploads == {"onnx-ci-export-0": {"report.json", "report.html", *files}}
    report = json.loads(Path(ran.outputs["report"]).read_text())
    assert {each["artifact"] for each in report["cells"]} == {None, *files}


@pytest.mark.slow
def test_external_data_is_uploaded_with_its_file(project, job):
    project.recipes(
        """
        class Wide(torch.nn.Module):
            def __init__(self, wrong):
                super().__init__()
                self.wrong = wrong
                self.weight = torch.nn.Parameter(torch.randn(64, 64))

            def forward(self, x):
                return x @ self.weight + (torch.randn(64) if self.wrong else 0)

        @onnx_ci.recipe(exporter="dynamo")
        def right():
            return Wide(wrong=False), (torch.randn(3, 64),)

        @onnx_ci.recipe(exporter="dynamo")
        def wrong():
            return Wide(wrong=True), (torch.randn(3, 64),)
        """,
        name="checkout/a,b/onnx_recipes.py",  # a comma divides what --select names
    )
    ran = job.use(opsets="18")
    assert ran.outputs["failed"] == "1", ran.log
    files = {"onnx/wrong/opset18-cpu.onnx", "onnx/wrong/opset18-cpu.onnx.data"}
    assert ran.uploads["onnx-ci-export-0"] == {"report.json", "report.html", *files}


@pytest.mark.slow
def test_the_callers_own_reports_are_of_the_run_that_is_judged(project, job):
    """The failed cells run again for their files; here they pass the second time."""
    project.recipes(
        RIGHT,
        """
        import pathlib

        class Shifted(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.is_wrong = not pathlib.Path("onnx.xml").exists()

            def forward(self, x):
                return x + (torch.randn(4) if self.is_wrong else 0)

        @onnx_ci.recipe
        def shifted():
            return Shifted(), (torch.randn(3, 4),)
        """,
        name="checkout/onnx_recipes.py",
    )
    (job.checkout / "pyproject.toml").write_text('[tool.onnx-ci]\ncode-quality = "quality.json"\n')
    ran = job.use(opsets="13", args="--junit=onnx.xml")
    assert "onnx/shifted/opset13-cpu.onnx" in ran.uploads["onnx-ci-export-0"], ran.log
    suite = ElementTree.parse(job.checkout / "onnx.xml").getroot().find(".//testsuite")
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert json.loads((job.checkout / "quality.json").read_text())


def test_an_empty_project_is_no_success(job):
    sample(job, "empty")
    ran = job.use()
    assert (ran.code, ran.outputs["verdict"], ran.outputs["failed"]) == (5, "nothing-ran", "0")
    assert ran.summary.startswith("## ONNX export: ⚠️ nothing ran")
    (told,) = ran.annotations
    assert told.message.startswith("nothing ran: no recipe was found")
    assert ran.uploads == {"onnx-ci-export-0": {"report.json", "report.html"}}


@pytest.mark.slow
def test_the_callers_folder_settings_and_names_are_taken(job):
    sample(job, "failing", "nets/deep")
    ran = job.use(
        working_directory="nets/deep", paths="onnx_recipes.py\n\n", opsets="13", select="total", args="--max-drift='16' -v",
        report="build/onnx reports", artifact_name="my nets",
    )  # fmt: skip
    assert ran.code == 1
    folder = job.checkout / "nets/deep/build/onnx reports"
    assert (ran.outputs["report"], ran.outputs["html"]) == (str(folder / "report.json"), str(folder / "report.html"))
    report = json.loads(Path(ran.outputs["report"]).read_text())
    assert [each["id"] for each in report["cells"]] == ["onnx_recipes.py::total::opset13-cpu"]
    assert ran.uploads == {"my nets": {"report.json", "report.html", "onnx/total/opset13-cpu.onnx"}}
    # GitHub counts from the root of the repository, ids from that of the project.
    assert {each.properties["file"] for each in ran.annotations} == {"nets/deep/onnx_recipes.py"}


def test_summary_annotations_and_upload_can_be_turned_off(job):
    sample(job, "empty")
    ran = job.use(summary="false", annotations="FALSE", upload="never")
    assert (ran.code, ran.summary, ran.annotations, ran.uploads) == (5, "", [], {})
    assert Path(ran.outputs["report"]).is_file()


@pytest.mark.slow
def test_nothing_changed_is_known_from_the_last_run_unless_that_is_turned_off(passing):
    job, first = passing
    again, off = (job.use(cache=cache) for cache in ("True", "false"))
    assert "of them cached" not in first.log
    assert "of them cached" in again.log
    assert "of them cached" not in off.log
    assert again.restored == first.saves
    assert [other for other, _ in first.uses] == ["actions/cache/restore", "actions/cache/save"]
    assert off.uses == []


@pytest.mark.slow
def test_each_use_of_the_action_has_its_own_cache_and_upload(job):
    sample(job, "empty")
    uses = []
    for job.job_index in ("0", "1"):
        uses += [job.use(), job.use()]
        shutil.rmtree(job.temporary)  # another job is another machine
    names = [name for ran in uses for name in ran.uploads]
    assert names == ["onnx-ci-export-0", "onnx-ci-export-0-2", "onnx-ci-export-1", "onnx-ci-export-1-2"]
    keys = [key for ran in uses for key in ran.saves]
    assert len({*keys}) == 4
    for name, key, ran in zip(names, keys, uses, strict=True):
        restored, saved = [given for other, given in ran.uses if other.startswith("actions/cache/")]
        assert restored["restore-keys"].split("\n") == [f"onnx-ci/Linux-X64/{name}/", "onnx-ci/Linux-X64/"]
        assert restored["key"] == key
        assert key.startswith(f"onnx-ci/Linux-X64/{name}/17-1-")
        assert restored["path"] == saved["path"]


PULL_REQUEST = ("pull_request", "refs/pull/7/merge")
TOPIC = ("push", "refs/heads/topic")


@pytest.mark.parametrize(
    ("cache", "event", "used"),
    [
        ("true", ("push", MAIN), ["restore", "save"]),
        ("true", PULL_REQUEST, ["restore"]),
        ("off", ("push", MAIN), []),
    ],
)
def test_all_restore_verdicts_and_only_the_default_branch_saves_them(job, cache, event, used):
    sample(job, "empty")
    job.starts_by(*event)
    ran = job.use(upload="never", cache=cache)
    assert [other.removeprefix("actions/cache/") for other, _ in ran.uses] == used


@pytest.fixture
def prepare(job, monkeypatch):
    """The outputs of the action's first step alone, in this process; takes its inputs and other variables."""
    monkeypatch.setattr(action, "install", lambda inputs: None)
    job.environment |= {"GITHUB_OUTPUT": str(job.folder / "output"), "DEFAULT_BRANCH": "main", "JOB_INDEX": "0"}

    def run(**variables):
        (job.folder / "output").write_text("")
        for name, text in {**job.environment, **variables}.items():
            monkeypatch.setenv(name, text)
        assert action.prepare() == 0
        return outputs_in((job.folder / "output").read_text())

    return run


@pytest.mark.parametrize(
    ("cache", "saving", "restoring"),
    [
        ("true", [("push", MAIN), ("workflow_dispatch", MAIN)], [PULL_REQUEST, TOPIC, ("push", "refs/tags/main"), ("push", "refs/heads/feature/main")]),
        ("", [("push", MAIN)], [PULL_REQUEST, TOPIC]),
        ("read-write", [("push", MAIN), PULL_REQUEST, TOPIC], []),
        ("READ", [], [("push", MAIN), PULL_REQUEST, ("schedule", MAIN)]),
        # Their ref is the default branch, but what they check out may be anyone's.
        ("true", [], [("pull_request_target", MAIN), ("workflow_run", MAIN), ("issue_comment", MAIN)]),
        ("read-write", [], [("pull_request_target", MAIN), ("workflow_run", MAIN), ("issue_comment", MAIN)]),
    ],
    ids=["default", "empty", "read-write", "read", "others' code", "others' code, read-write"],
)  # fmt: skip
def test_who_saves_verdicts_is_for_the_caller_to_choose(prepare, cache, saving, restoring):
    for event, ref in saving + restoring:
        outputs = prepare(INPUT_CACHE=cache, GITHUB_EVENT_NAME=event, GITHUB_REF=ref)
        assert outputs["cache"]
        assert outputs["cache-save"] == ("true" if (event, ref) in saving else ""), (event, ref)


def test_without_a_known_default_branch_nothing_is_saved(prepare):
    assert prepare(DEFAULT_BRANCH="", GITHUB_REF="refs/heads/")["cache-save"] == ""


@pytest.mark.parametrize("variables", [{"INPUT_CACHE": "off"}, {"INPUT_CACHE": "False"}, {"INPUT_MODE": "matrix"}])
def test_where_no_verdicts_are_kept_none_is_restored_or_saved(prepare, variables):
    assert not [name for name in prepare(**variables) if name.startswith("cache")]


@pytest.mark.parametrize("name", ["", "nets", "nets {run} of {sha}"])
def test_what_a_run_looks_for_is_the_same_at_each_commit_and_what_it_saves_is_not(job, prepare, name):
    found = []
    for run, attempt, sha in (("170001", "1", "a" * 40), ("170001", "2", "a" * 40), ("170002", "1", "b" * 40)):
        shutil.rmtree(job.temporary)  # another job is another machine
        given = {"GITHUB_RUN_ID": run, "GITHUB_RUN_ATTEMPT": attempt, "GITHUB_SHA": sha}
        found.append(prepare(INPUT_ARTIFACT_NAME=name.format(run=run, sha=sha), **given))
    keys = {outputs["cache-key"] for outputs in found}
    (prefixes,) = {outputs["cache-restore-keys"] for outputs in found}
    assert len(keys) == 3
    assert all(key.startswith(prefixes.split("\n")[0]) for key in keys)


def test_a_job_whose_name_begins_like_anothers_looks_for_its_own_first(prepare):
    found = {name: prepare(INPUT_ARTIFACT_NAME=name) for name in ("nets", "nets-cuda", "nets 1", "nets 10")}
    for name, outputs in found.items():
        own, anyones = outputs["cache-restore-keys"].split("\n")
        assert [other for other, its in found.items() if its["cache-key"].startswith(own)] == [name]
        assert all(its["cache-key"].startswith(anyones) for its in found.values())


def test_verdicts_are_saved_whatever_they_are_but_not_of_a_cancelled_run():
    (save,) = [step for step in ACTION["runs"]["steps"] if step.get("uses", "").startswith("actions/cache/save@")]
    assert "success()" not in save["if"]
    for is_cancelled in (False, True):
        contexts = {"steps": {"prepare": {"outputs": {"cache-save": "true"}}}, "cancelled()": is_cancelled}
        assert evaluate(save["if"], contexts) == (not is_cancelled)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["passing", "failing"])
def test_a_pull_request_takes_the_verdicts_of_main_and_main_takes_none_of_its(tmp_path, name):
    caches = Caches(tmp_path / "caches")
    events = {"main": ("push", MAIN), "pull": PULL_REQUEST, "own": PULL_REQUEST, "next": ("push", MAIN)}
    ran = {}
    for number, (machine, event) in enumerate(events.items()):
        job = Job(tmp_path / machine, caches)
        sample(job, name)
        job.environment["GITHUB_RUN_ID"] = str(number)
        job.starts_by(*event)
        ran[machine] = job.use(opsets="13", upload="never", cache="read-write" if machine == "own" else "true")
    assert "cached" not in ran["main"].log
    for machine in ("pull", "own", "next"):
        assert "cached" in ran[machine].log, ran[machine].log
        assert ran[machine].restored == ran["main"].saves
        assert ran[machine].outputs["failed"] == ran["main"].outputs["failed"]
    assert [ref for ref, _ in caches.saved] == [MAIN, PULL_REQUEST[1], MAIN]


QUICK = ("args", "artifact-name", "paths", "python")
"""Inputs of each kind; all others are slow."""


@pytest.mark.parametrize(
    "text", [pytest.param(HOSTILE, id="quotes"), pytest.param("🦊" * 25_000, id="100 kB", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in sorted(ACTION["inputs"])]
)
def test_a_hostile_input_is_text_and_nothing_else(job, name, text):
    sample(job, "passing")
    ran = job.use(**{name.replace("-", "_"): text})
    assert ran.code == {"select": 5, "python": 4}.get(name, 2)
    assert ran.outputs["verdict"] == ("nothing-ran" if name == "select" else "error")
    assert not list(job.folder.rglob("owned*"))
    (told,) = ran.annotations  # one, and it is ours
    assert told.properties["title"] == "onnx-ci"
    assert name in told.message or text.split("\n")[0] in told.message
    assert "owned" not in {each.message for each in ran.commands}
    assert "ONNX export: ⚠️" in ran.summary or name == "python"


def test_a_path_that_looks_like_a_flag_is_a_path(job):
    sample(job, "passing")
    ran = job.use(paths="--help")
    assert (ran.code, ran.outputs["verdict"]) == (2, "error")
    assert "there is no --help" in ran.summary


@pytest.mark.parametrize(
    ("args", "code"),
    [("--help", 5), ("--report=mine.json", 2), ("'", 2)],
)
def test_flags_that_would_leave_the_action_without_a_report_are_no_success(job, args, code):
    sample(job, "passing")
    ran = job.use(args=args)
    assert ran.code == code, ran.log
    assert ran.outputs["verdict"] == ("nothing-ran" if code == 5 else "error")


def test_a_folder_of_the_caller_cannot_stand_in_for_a_module(job):
    sample(job, "passing")
    for name in ("secrets", "shlex", "platform", "onnx_ci"):
        (job.checkout / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    assert job.use(mode="matrix").code == 0


@pytest.mark.parametrize("python", ["no-such-program", "true"])
def test_a_python_that_is_none_is_no_success(job, python):
    sample(job, "passing")
    # As on a machine where nobody has set up any Python.
    bin = job.folder / "bin"
    bin.mkdir()
    for tool in ("bash", "true"):
        (bin / tool).symlink_to(shutil.which(tool))
    job.environment["PATH"] = str(bin)
    ran = job.use(python=python)
    assert ran.code in (3, 4)
    assert ran.outputs["verdict"] == "error"
    assert python == "true" or "'python'" in ran.annotations[0].message


def test_an_old_python_is_told_so():
    script = f"import sys; sys.version_info = (3, 9, 1); exec(open({str(ROOT / 'action.py')!r}).read())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert done.stdout.startswith("::error title=onnx-ci::onnx-ci requires Python 3.11 or later, but this is 3.9;")


@pytest.fixture
def bare(job):
    """A Python with no package at all, not even pip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(job.folder / "bare")], check=True)
    job.environment["PYTHONPATH"] = ""
    return str(job.folder / "bare" / "bin" / "python")


def test_an_installation_that_fails_ends_the_run(job, bare):
    sample(job, "passing")
    ran = job.use(python=bare, install="true")
    assert (ran.code, ran.outputs["verdict"], ran.outputs["failed"]) == (4, "error", "0")
    assert "pip cannot install onnx-ci" in ran.annotations[0].message
    assert "pip cannot install onnx-ci" in ran.summary


def test_without_an_installation_there_must_be_one(job, bare):
    sample(job, "passing")
    ran = job.use(python=bare)
    assert (ran.code, ran.outputs["verdict"]) == (4, "error")
    assert "No module named 'onnx_ci'" in ran.annotations[0].message


@pytest.mark.slow
def test_the_gate_says_the_same_where_the_toolkit_cannot_be_imported(job):
    sample(job, "empty")
    usual = job.use()
    (job.folder / "broken").mkdir()
    job.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(job.folder / "broken"), os.environ.get("PYTHONPATH")]))
    for why in ("ImportError('Bad git executable.')", "RuntimeError('of another version')"):
        (job.folder / "broken" / "github_action_toolkit.py").write_text(f"raise {why}\n")
        ran = job.use()
        assert usual.code == ran.code == 5
        assert usual.commands == ran.commands
        assert ran.summary.startswith("## ONNX export: ⚠️ nothing ran")


def test_the_gate_speaks_through_the_toolkit_where_there_is_one(job):
    (job.folder / "fake").mkdir()
    (job.folder / "fake" / "github_action_toolkit.py").write_text(
        "def error(message, **places): print(f'::error title=by the toolkit::{message}')\n"
        "class JobSummary:\n"
        "    def add_raw(self, text): return self\n"
        "    def write(self): pass\n"
    )
    job.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(job.folder / "fake"), os.environ.get("PYTHONPATH")]))
    ran = job.use(mode="nonsense")
    assert [each.properties["title"] for each in ran.annotations] == ["by the toolkit"]


def test_a_matrix_is_an_output(job):
    sample(job, "passing")
    ran = job.use(mode="matrix", opsets="9-17", devices="cpu,cuda", args="--cuda-runner=my-gpu")
    assert (ran.code, ran.outputs["verdict"]) == (0, "planned"), ran.log
    jobs = json.loads(ran.outputs["matrix"])["include"]
    assert [(each["opset"], each["device"]) for each in jobs] == [(o, d) for d in ("cpu", "cuda") for o in range(9, 18)]
    assert (ran.summary, ran.annotations, ran.uses) == ("", [], [])


def test_the_plan_of_a_matrix_is_uploaded_where_that_is_asked_for(job):
    sample(job, "passing")
    ran = job.use(mode="matrix", upload="always", artifact_name="plan")
    assert ran.uploads == {"plan": {"report.json"}}
    (plan,) = job.folder.rglob("upload/report.json")
    merged = job.use(mode="report", paths=str(plan))
    assert (merged.code, merged.outputs["verdict"]) == (1, "failed")


def test_no_matrix_is_no_success(job):
    sample(job, "empty")
    ran = job.use(mode="matrix")
    assert (ran.code, ran.outputs["verdict"], ran.outputs["matrix"]) == (5, "nothing-ran", "")
    assert "no recipe was found" in ran.annotations[0].message


@pytest.mark.slow
def test_the_reports_of_several_jobs_are_merged_into_one(job, passing, failing):
    sample(job, "failing")
    reports = job.folder / "downloaded"
    for name, (_, ran) in {"passing": passing, "failing": failing}.items():
        shutil.copytree(Path(ran.outputs["report"]).parent, reports / name)
    merged = job.use(mode="report", paths=str(reports), upload="always", artifact_name="all of them")
    assert (merged.code, merged.outputs["verdict"], merged.outputs["failed"]) == (1, "failed", "2")
    assert len(json.loads(Path(merged.outputs["report"]).read_text())["cells"]) == 6
    assert {each.properties["file"] for each in merged.annotations} == {"onnx_recipes.py"}
    assert all("at opsets 13,17 on cpu" in each.message for each in merged.annotations)
    assert "scale cpu" in merged.summary
    assert "baked-value" in merged.summary
    assert merged.uploads == {"all of them": {"report.json", "report.html"}}


def test_no_report_to_merge_is_no_success(job):
    ran = job.use(mode="report", paths=str(job.folder / "downloaded"))
    assert (ran.code, ran.outputs["verdict"]) == (2, "error")
    assert "downloaded" in ran.annotations[0].message
    ran = job.use(mode="report")
    assert "'paths'" in ran.annotations[0].message


def test_an_input_that_the_mode_does_not_take_is_refused(job):
    ran = job.use(mode="matrix", shard="1/2")
    assert ran.code == 2
    assert "the input 'shard' cannot be used with mode 'matrix'" in ran.annotations[0].message


@pytest.mark.slow
def test_a_cancelled_job_tells_what_it_has_found_out(job, project):
    project.recipes(
        RIGHT,
        """
        import pathlib, time

        @onnx_ci.recipe
        def waiting():
            pathlib.Path("waits").touch()
            time.sleep(600)
        """,
        name="checkout/onnx_recipes.py",
    )
    (job.checkout / "pyproject.toml").write_text("")
    marker = job.checkout / "waits"

    def cancel(process):
        while not marker.exists() and process.poll() is None:
            time.sleep(0.05)
        job.is_cancelled = True
        process.send_signal(signal.SIGINT)

    ran = job.use(opsets="13", args="--jobs=1", meanwhile=cancel)
    assert (ran.code, ran.outputs["verdict"]) == (1, "failed"), ran.log
    assert "The run was stopped, or a job is missing: 1 of the cells did not run" in ran.annotations[0].message
    assert [each["recipe"] for each in json.loads(Path(ran.outputs["report"]).read_text())["cells"]] == ["right"]
    assert ran.uploads
    assert ran.saves == []


@pytest.mark.slow
@pytest.mark.network
def test_the_install_step_keeps_what_the_caller_has(job, monkeypatch):
    """A virtual environment that sees this one's packages: pip finds torch and ONNX Runtime and adds onnx-ci alone."""
    python = scratch_environment(job.folder / "venv")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    sample(job, "passing")
    ran = job.use(python=python, install="true", opsets="13")
    assert (ran.code, ran.outputs["verdict"]) == (0, "passed"), ran.log
    where = subprocess.run([python, "-c", "import onnx_ci, torch; print(onnx_ci.__file__, torch.__file__)"], cwd=job.folder, capture_output=True, text=True, check=True)  # fmt: skip
    ours, torchs = where.stdout.split()
    assert Path(ours).is_relative_to(job.folder / "venv")
    assert ran.annotations == []
    assert not Path(torchs).is_relative_to(job.folder / "venv")


@pytest.mark.slow
@pytest.mark.network
def test_a_project_that_installs_the_wheel_needs_no_other_setup(project, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    python = scratch_environment(project.root / "venv")
    subprocess.run([python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(project.root / "dist"), str(ROOT)], check=True)
    (wheel,) = (project.root / "dist").glob("*.whl")
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", str(wheel)], check=True)
    project.recipes(RIGHT, name="work/onnx_recipes.py")
    work = project.root / "work"
    done = subprocess.run([python, "-m", "pytest", "--onnx-export"], cwd=work, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 cells: 9 passed" in done.stdout
    listed = subprocess.run(
        [python, "-m", "onnx_ci", "list", "--packages=onnx_ci.recipes", "--opsets=9"], cwd=work, capture_output=True, text=True, check=True
    )  # fmt: skip
    names = {line.split("::")[1] for line in listed.stdout.splitlines()}
    assert {"right", "alexnet", "lstm", "resnet18", "resnet50"} < names


def scratch_environment(folder):
    """A virtual environment whose own packages come first and which sees those of the running one, but not onnx-ci."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    purelib = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True, check=True
    ).stdout.strip()  # fmt: skip
    Path(purelib, "outer.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return str(python)
