"""The action and the workflows as files: what linters say of them, and who may run where."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import yaml
from toolbox import fake_github
from toolbox.github_runner import ACTION, BASH, MAIN, PUSH, ROOT, Caches, Call, evaluate, expand, installed_tool
from toolbox.records import failed, report

from onnx_ci.plugins import COMMANDS
from onnx_ci.results.files import as_text

FOLDER = ROOT / ".github" / "workflows"
FILES = sorted(FOLDER.glob("*.yml"))
WORKFLOWS = {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in FILES}
EXPORT = WORKFLOWS["onnx-export"]
VERDICT = WORKFLOWS["verdict"]
PUBLISH = yaml.safe_load((ROOT / "publish" / "action.yml").read_text(encoding="utf-8"))
HOSTILE = """'; touch owned; echo "$(touch owned)" `touch owned`\n-r owned --help 🦊"""


def steps():
    """Every step of the action and of the workflows, with its name."""
    for name, action in (("action", ACTION), ("publish", PUBLISH)):
        for number, step in enumerate(action["runs"]["steps"]):
            yield pytest.param(step, id=f"{name}-{number}")
    for name, workflow in WORKFLOWS.items():
        for job, each in workflow["jobs"].items():
            for number, step in enumerate(each.get("steps", [])):
                yield pytest.param(step, id=f"{name}-{job}-{number}")


STEPS = list(steps())


def check(*command, text=None):
    done = subprocess.run(
        [installed_tool(command[0]), *command[1:]],
        cwd=ROOT,
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_zizmor_finds_nothing():
    done = check("zizmor", "--offline", "--strict-collection", "--format=json", ".")
    assert json.loads(done.stdout) == []


def test_zizmor_is_told_to_look_away_only_where_that_is_explained():
    """`$/` names an action of one's own repository, but none at its root: runners up to 2.336 refuse it."""
    files = [ROOT / "action.yml", ROOT / "publish" / "action.yml", *FILES]
    ignored = [line.strip(" -") for file in files for line in file.read_text().splitlines() if "zizmor:" in line]
    told = {tuple(part.strip() for part in line.split("#")) for line in ignored}
    assert {(code, comment.partition("]")[0]) for code, comment in told} == {
        ("uses: ./", "zizmor: ignore[self-repository"),
        ("uses: ./.onnx-ci-action", "zizmor: ignore[self-repository"),
        ("workflow_run:", "zizmor: ignore[dangerous-triggers"),
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("schema", ["vendor.github-workflows", "custom.github-workflows-require-timeout"])
def test_a_workflow_is_well_formed_and_has_timeouts(schema, file):
    check("check-jsonschema", "--builtin-schema", schema, str(file))


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("vendor.github-actions", "action.yml"),
        ("vendor.github-actions", "publish/action.yml"),
        ("vendor.dependabot", ".github/dependabot.yml"),
    ],
)
def test_the_action_is_well_formed(schema, file):
    check("check-jsonschema", "--builtin-schema", schema, file)


@pytest.mark.parametrize("step", [each for each in STEPS if "run" in each.values[0]])
def test_a_script_is_clean_and_holds_no_expression(step):
    assert "${{" not in step["run"]
    check("shellcheck", "--shell=bash", "--enable=all", "--exclude=SC2154,SC2250,SC2292,SC2312", "-", text=step["run"])


@pytest.mark.parametrize("step", [each for each in STEPS if "uses" in each.values[0]])
def test_an_action_is_pinned_and_this_one_gets_inputs_that_it_has(step):
    action = step["uses"]
    if action.startswith("./"):
        assert step.get("with", {}).keys() <= ACTION["inputs"].keys()
    elif action.startswith("$/"):
        assert action == "$/publish"
        assert step["with"].keys() <= PUBLISH["inputs"].keys()
    else:
        assert re.fullmatch(r"[\w-]+/[\w-]+(/[\w-]+)?@[0-9a-f]{40}", action)
    if action.startswith("actions/checkout@"):
        assert step["with"]["persist-credentials"] is False


def test_each_action_has_one_pin_with_its_version():
    pins = {}
    for file in [ROOT / "action.yml", *FILES]:
        for line in file.read_text().splitlines():
            if match := re.search(r"uses: ([\w-]+/[\w-]+)(?:/[\w-]+)?@([0-9a-f]{40})(?: # (v\d+\.\d+\.\d+))?$", line):
                pins.setdefault(match[1], set()).add((match[2], match[3]))
    assert len(pins) >= 7
    for action, found in pins.items():
        assert len(found) == 1, action
        assert next(iter(found))[1], action


WRITES = {
    ("release", "publish"): {"id-token": "write", "attestations": "write"},
    ("docs", "deploy"): {"id-token": "write", "pages": "write"},
    ("verdict", "pull-request"): {"actions": "read", "checks": "write", "pull-requests": "write"},
    ("verdict", "branch"): {"actions": "read", "contents": "write"},
    ("known-faults", "propose"): {"contents": "write", "pull-requests": "write"},
}


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_a_workflow_may_do_nothing_that_a_job_does_not_ask_for(name):
    assert WORKFLOWS[name]["permissions"] == {}
    for job, each in WORKFLOWS[name]["jobs"].items():
        assert each["permissions"].items() <= WRITES.get((name, job), {"contents": "read"}).items(), job


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_code_of_a_fork_never_runs_beside_a_token_that_can_write(name):
    triggers = set(WORKFLOWS[name][True])  # YAML reads the key `on` as true
    assert "pull_request_target" not in triggers
    for job in WORKFLOWS[name]["jobs"].values():
        if "write" in job["permissions"].values() or "workflow_run" in triggers:
            assert not triggers & {"pull_request", "workflow_call"}
        if "workflow_run" in triggers:
            assert [step["uses"] for step in job["steps"]] == ["$/publish"]  # no checkout, no script, no download


def test_what_publishes_is_one_program_and_gets_its_inputs_as_text():
    (step,) = PUBLISH["runs"]["steps"]
    assert step["run"] == 'exec python3 "$GITHUB_ACTION_PATH/../action.py" publish'
    inputs = {f"INPUT_{name.upper().replace('-', '_')}": f"${{{{ inputs.{name} }}}}" for name in PUBLISH["inputs"]}
    assert step["env"] == {**inputs, "GITHUB_TOKEN": "${{ github.token }}"}
    page = (ROOT / "docs" / "github-actions.md").read_text(encoding="utf-8")
    for name in PUBLISH["inputs"]:
        assert f"| `{name}` |" in page


def test_a_verdict_is_published_with_nothing_installed_and_nothing_of_the_folder(tmp_path):
    """The whole step, as the runner takes it, in a Python without packages."""
    (step,) = PUBLISH["runs"]["steps"]
    for name in ("json", "zipfile", "onnx_ci"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    (bin / "python3").chmod(0o755)
    defaults = {name: each["default"] for name, each in PUBLISH["inputs"].items()}
    contexts = {"inputs": {**defaults, **VERDICT["jobs"]["pull-request"]["steps"][0]["with"]}, "github": {"token": "secret"}}
    given = {name: str(expand(text, contexts)).replace("True", "true") for name, text in step["env"].items()}
    with fake_github.FakeGitHub() as github:
        github.pull(7, "b" * 40, of=fake_github.FORK)
        payload = github.run(
            "pull_request", "b" * 40, branch="topic", of=fake_github.FORK, artifact=fake_github.zipped(report_json=as_text(report(failed()))), name="self-test"
        )  # fmt: skip
        (tmp_path / "event.json").write_text(json.dumps(payload))
        done = subprocess.run(
            [BASH, "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]], cwd=tmp_path, capture_output=True, text=True,
            check=False, timeout=60,
            env={
                "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}", "GITHUB_ACTION_PATH": str(ROOT / "publish"),
                "GITHUB_API_URL": github.address, "GITHUB_EVENT_NAME": "workflow_run",
                "GITHUB_EVENT_PATH": str(tmp_path / "event.json"), "GITHUB_REPOSITORY": "me/nets", **given,
            },
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path for _, path in github.requests] == ["check-runs", "issues/7/comments"]


def test_the_workflow_in_the_documentation_may_do_what_the_own_one_may():
    page = (ROOT / "docs" / "github-actions.md").read_text(encoding="utf-8")
    (shown,) = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(name: onnx-verdict.*?)```", page, re.DOTALL)]
    assert shown["permissions"] == {}
    assert shown["concurrency"]["group"] == VERDICT["concurrency"]["group"]
    for documented, own in zip(shown["jobs"].values(), VERDICT["jobs"].values(), strict=True):
        (step,) = documented["steps"]
        assert step["uses"] == "OWNER/onnx-ci/publish@REF"
        assert step["with"].items() <= own["steps"][0]["with"].items()
        assert {key: documented[key] for key in ("if", "permissions")} == {key: own[key] for key in ("if", "permissions")}


def test_the_verdict_is_published_of_the_workflow_and_the_upload_that_there_are():
    assert VERDICT[True]["workflow_run"]["workflows"] == [WORKFLOWS["self-test"]["name"]]
    for job in VERDICT["jobs"].values():
        assert job["steps"][0]["with"]["artifact-name"] == WORKFLOWS["self-test"]["jobs"]["workflow"]["with"]["name"]


def pull_request_from(repository):
    return {"event": {"pull_request": {"head": {"repo": {"full_name": repository}}}}, "repository": "me/nets"}


OWN = pull_request_from("me/nets")
FORK = pull_request_from("stranger/nets")
GONE = {"event": {"pull_request": {"head": {"repo": None}}}, "repository": "me/nets"}


@pytest.mark.parametrize(
    ("event", "label", "devices"),
    [(PUSH, "gpu", "cpu,cuda"), (OWN, "gpu", "cpu,cuda"), (FORK, "gpu", "cpu"), (GONE, "gpu", "cpu"), (PUSH, "", "cpu")],
)
def test_a_pull_request_from_a_fork_gets_no_machine_with_cuda(event, label, devices):
    contexts = {"github": event, "inputs": {"runner": "ubuntu-latest", "cuda-runner": label}}
    (plan,) = [step for step in EXPORT["jobs"]["plan"]["steps"] if step.get("id") == "plan"]
    assert expand(plan["with"]["devices"], contexts) == devices
    # Whatever matrix a fork's code may have written: the label is not in it, and a device alone names no machine.
    for device in ("cpu", "cuda", "cuda:1", "gpu", "", None):
        runner = expand(EXPORT["jobs"]["cells"]["runs-on"], {**contexts, "matrix": {"device": device, "runner": "gpu"}})
        assert runner == (label if "cuda" in devices and device != "cpu" else "ubuntu-latest"), device


def test_a_machine_that_is_named_for_its_gpu_must_have_one():
    (gate,) = [step for step in EXPORT["jobs"]["cells"]["steps"] if "devices" in step.get("with", {})]
    for device, required in (("cpu", "false"), ("cuda", "true"), ("cuda:1", "true")):
        assert str(expand(gate["with"]["require-devices"], {"matrix": {"device": device}})).lower() == required


def test_only_the_jobs_of_the_matrix_can_have_a_machine_with_cuda():
    machines = {name: job["runs-on"] for name, job in EXPORT["jobs"].items()}
    assert "cuda-runner" in machines.pop("cells")
    assert set(machines.values()) == {"${{ inputs.runner }}"}


def test_the_last_job_runs_whatever_became_of_the_others_and_fails_where_one_is_missing():
    report = EXPORT["jobs"]["report"]
    assert report["if"] == "always()"
    last = report["steps"][-1]
    assert evaluate(last["if"], {"needs": {"cells": {"result": "failure"}}})
    assert not evaluate(last["if"], {"needs": {"cells": {"result": "success"}}})
    assert subprocess.run([BASH, "-c", last["run"]], capture_output=True, check=False).returncode == 1


def test_the_uploads_of_the_jobs_are_those_that_the_last_one_merges():
    (cell,) = [step for step in EXPORT["jobs"]["cells"]["steps"] if step["uses" if "uses" in step else "run"].startswith("./")]
    (download,) = [step for step in EXPORT["jobs"]["report"]["steps"] if "download-artifact" in step.get("uses", "")]
    contexts = {"inputs": {"name": "onnx-export"}, "matrix": {"id": "opset9-cpu"}}
    pattern = re.escape(expand(download["with"]["pattern"], contexts)).replace(r"\*", ".*")
    assert re.fullmatch(pattern, expand(cell["with"]["artifact-name"], contexts))
    assert re.fullmatch(pattern, expand(EXPORT["jobs"]["plan"]["steps"][-1]["with"]["artifact-name"], contexts))
    assert not re.fullmatch(pattern, "onnx-export")
    for other in ("onnx-export-of-another", "onnx-export.of-another"):
        assert not re.fullmatch(pattern, expand(cell["with"]["artifact-name"], {**contexts, "inputs": {"name": other}}))


@pytest.mark.parametrize("job", ["plan", "cells"])
def test_the_requirements_are_a_file_name_and_nothing_else(tmp_path, job):
    (step,) = [step for step in EXPORT["jobs"][job]["steps"] if "requirements" in step.get("name", "")]
    (tmp_path / "python").write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done\n')
    (tmp_path / "python").chmod(0o755)
    environment = {name: expand(text, {"inputs": {"requirements": HOSTILE}}) for name, text in step["env"].items()}
    done = subprocess.run(
        [BASH, "-eo", "pipefail", "-c", step["run"]], cwd=tmp_path, check=True, capture_output=True, text=True,
        env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", **environment},
    )  # fmt: skip
    assert done.stdout.split("\0")[:-1] == ["-m", "pip", "install", "--requirement", HOSTILE]
    assert not (tmp_path / "owned").exists()


def test_every_input_of_the_reusable_workflow_is_used_and_described():
    text = (FOLDER / "onnx-export.yml").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "github-actions.md").read_text(encoding="utf-8")
    inputs = EXPORT[True]["workflow_call"]["inputs"]  # YAML reads the key `on` as true
    for name in EXPORT[True]["workflow_call"]["secrets"]:
        assert f"secrets.{name}" in text
        assert f"secret `{name}`" in page
    for name in inputs:
        assert f"inputs.{name}" in text
        assert f"| `{name}` |" in page
    call = WORKFLOWS["self-test"]["jobs"]["workflow"]
    assert call["uses"] == "$/.github/workflows/onnx-export.yml"
    assert call["with"].keys() <= inputs.keys()


def test_what_is_released_is_what_was_built_and_tested():
    jobs = WORKFLOWS["release"]["jobs"]
    assert (jobs["test"]["needs"], jobs["publish"]["needs"]) == ("build", ["build", "test", "sbom"])
    assert [step.get("uses", "").partition("@")[0] for step in jobs["publish"]["steps"]] == [
        "actions/download-artifact",
        "actions/download-artifact",
        "",
        "actions/attest",
        "actions/attest",
        "pypa/gh-action-pypi-publish",
    ]
    assert not re.search(
        r"secrets\.|password", (FOLDER / "release.yml").read_text(encoding="utf-8").replace("stored password", "")
    )


def test_a_file_that_is_not_the_built_one_is_not_published(tmp_path):
    jobs = WORKFLOWS["release"]["jobs"]
    (note,) = [step for step in jobs["build"]["steps"] if step.get("id") == "note"]
    (compare,) = [step for step in jobs["publish"]["steps"] if "run" in step]
    assert compare["env"] == {"DIGESTS": "${{ needs.build.outputs.digests }}"}
    output, wheel = tmp_path / "output", tmp_path / "dist" / "net.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(b"built")

    def run(step, **environment):
        return subprocess.run(
            [BASH, "-e", "-c", step["run"]], cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, check=False
        ).returncode

    assert run(note, GITHUB_OUTPUT=str(output)) == 0
    begin, *digests, end = output.read_text().splitlines()
    assert (begin, end) == ("digests<<END", "END")
    assert run(compare, DIGESTS="\n".join(digests)) == 0
    wheel.write_bytes(b"swapped")
    assert run(compare, DIGESTS="\n".join(digests)) == 1
    assert run(compare, DIGESTS="") == 1


def test_a_tag_that_is_not_the_version_is_not_released(tmp_path):
    import onnx_ci

    (step,) = [
        step
        for step in WORKFLOWS["release"]["jobs"]["build"]["steps"]
        if step.get("name") == "Check that the tag is the version"
    ]
    for tag, code in ((f"v{onnx_ci.__version__}", 0), ("v999.0", 1), (HOSTILE, 1)):
        done = subprocess.run(
            [BASH, "-eo", "pipefail", "-c", step["run"]], cwd=ROOT, capture_output=True, env={**os.environ, "GITHUB_REF_NAME": tag}, check=False
        )  # fmt: skip
        assert done.returncode == code


@pytest.mark.slow
def test_the_reusable_workflow_gives_one_report_of_all_its_jobs(tmp_path):
    call = Call(
        tmp_path,
        ROOT / "tests" / "e2e" / "github" / "projects" / "failing",
        {"opsets": "13,17", "name": "nets", "args": "--max-drift=8"},
    )
    assert list(call.jobs) == ["plan", "opset13-cpu", "opset17-cpu", "report"]
    assert [ran.code for ran in call.jobs.values()] == [0, 1, 1, 1]
    assert call.outputs == {"verdict": "failed", "failed": "2"}
    # Each job keeps what it found out, and the last one tells of it, once.
    for opset in ("13", "17"):
        ran = call.jobs[f"opset{opset}-cpu"]
        assert (ran.summary, ran.annotations) == ("", [])
        assert ran.uploads == {f"nets.opset{opset}-cpu": {"report.json", "report.html", f"onnx/total/opset{opset}-cpu.onnx"}}
    report = call.jobs["report"]
    assert "double cpu" in report.summary
    assert {each.properties["title"] for each in report.annotations} == {"total: baked-value"}
    assert report.uploads == {"nets": {"report.json", "report.html"}}


@pytest.mark.slow
def test_each_job_of_the_reusable_workflow_has_its_own_cache_and_only_main_saves(tmp_path):
    project = ROOT / "tests" / "e2e" / "github" / "projects" / "passing"
    caches = Caches(tmp_path / "caches")
    first = Call(tmp_path / "main", project, {"opsets": "13,17"}, caches=caches)
    cells = [ran for title, ran in first.jobs.items() if title.startswith("opset")]
    assert caches.saved == [(MAIN, key) for ran in cells for key in ran.saves]
    assert len(caches.saved) == 2
    pull = Call(tmp_path / "pull", project, {"opsets": "13,17"}, github=OWN, caches=caches)
    for title in ("opset13-cpu", "opset17-cpu"):
        assert pull.jobs[title].restored == first.jobs[title].saves
        assert pull.jobs[title].saves == []
        assert "of them cached" in pull.jobs[title].log
    off = Call(tmp_path / "off", project, {"opsets": "13", "cache": "off"}, caches=caches)
    assert off.jobs["opset13-cpu"].restored == []


TAGGED = """
import onnx_ci
import torch


@onnx_ci.recipe(input_names=["x"], opsets="12", tags=["vision"])
def tagged():
    return torch.nn.ReLU(), (torch.randn(3, 4),)


@onnx_ci.recipe(input_names=["x"], opsets="13")
def other():
    return torch.nn.ReLU(), (torch.randn(3, 4),)
"""


@pytest.mark.slow
def test_the_jobs_are_planned_with_the_flags_that_they_run_with(tmp_path):
    """Otherwise, jobs that have nothing to run would fail."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "onnx_recipes.py").write_text(TAGGED)
    call = Call(tmp_path / "call", root, {"args": "--tags=vision --no-cache -v --max-drift=8"})
    assert [ran.code for ran in call.jobs.values()] == [0, 0, 0]
    assert list(call.jobs) == ["plan", "opset12-cpu", "report"]


def test_a_matrix_takes_every_flag_of_a_run():
    def flags(name):
        return {flag for parameter in COMMANDS.load(name).params for flag in parameter.opts}

    assert flags("run") <= flags("matrix")


def test_what_builds_a_release_has_its_version():
    def pins(file):
        return dict(re.findall(r"^([\w-]+)==(\S+)", file.read_text(encoding="utf-8"), flags=re.MULTILINE))

    tested, folder = pins(ROOT / "constraints.txt"), ROOT / ".github" / "requirements"
    hashed = {name: pin for file in folder.glob("*.txt") for name, pin in pins(file).items()}
    assert {name: hashed[name] for name in ("build", "setuptools", "tox")}.items() <= tested.items()
    assert {name: pin for name, pin in hashed.items() if tested.get(name, pin) != pin} == {}
    for workflow in WORKFLOWS:
        text = (FOLDER / f"{workflow}.yml").read_text(encoding="utf-8")
        for installed in re.findall(r"pip install ([^\n]*)", text):
            with_hashes = re.fullmatch(r"--require-hashes --requirement (\.github/requirements/\w+\.txt)", installed)
            assert with_hashes or installed.startswith("--requirement "), (workflow, installed)
            assert with_hashes is None or (ROOT / with_hashes[1]).is_file()


def test_a_plan_that_fails_fails_the_last_job_too(tmp_path):
    call = Call(tmp_path, ROOT / "tests" / "e2e" / "github" / "projects" / "empty", {})
    assert list(call.jobs) == ["plan", "report"]
    assert all(ran.code for ran in call.jobs.values())
    assert call.outputs["verdict"] == "error"


TEMPLATE_HEAD, _, _ = (ROOT / "onnx_ci" / "templates" / "onnx-export.yml").read_text(encoding="utf-8").partition("jobs:")
TEMPLATE = yaml.safe_load(TEMPLATE_HEAD)  # the rest has places to fill
CANCELLING = {name: each for name, each in {**WORKFLOWS, "template": TEMPLATE}.items() if "concurrency" in each}


@pytest.mark.parametrize("name", CANCELLING)
def test_a_later_push_does_not_cancel_the_proof_of_an_earlier_one(name):
    concurrency = CANCELLING[name]["concurrency"]

    def group(sha, **event):
        github = {"workflow": name, "sha": sha, "ref": "refs/heads/main", "event": event}
        return expand(concurrency["group"], {"github": github})

    assert not concurrency["cancel-in-progress"] or group("one") != group("two")
    if name in ("ci", "template"):  # of a pull request, only the last push matters
        pull_request = {"number": 7}
        assert group("one", pull_request=pull_request) == group("two", pull_request=pull_request)


def test_what_measures_releases_cannot_write_to_the_repository_and_what_proposes_runs_nothing_of_them():
    workflow = yaml.safe_load((FOLDER / "known-faults.yml").read_text(encoding="utf-8"))
    measure, propose = workflow["jobs"]["measure"], workflow["jobs"]["propose"]
    assert measure["permissions"] == {"contents": "read"}
    assert "tox run -e known-faults" in [step.get("run") for step in measure["steps"]]
    table = workflow["env"]["TABLE"]
    assert (ROOT / table).is_file()
    assert f"--renew={table}" in (ROOT / "tox.ini").read_text(encoding="utf-8")
    (run,) = (step["run"] for step in propose["steps"] if "run" in step)
    assert {line.split()[0] for line in run.splitlines() if line[0].isalpha()} <= {"if", "fi", "git", "gh"}
