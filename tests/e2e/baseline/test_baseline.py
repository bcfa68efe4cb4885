"""Committed baselines: processes that record at once or are killed, and those of other commits."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import textwrap

import pytest
from toolbox.projects import ROOT
from toolbox.recorded import FACTS, changed, drift_of, keeper, result_of, values

from onnx_ci.baseline.changes import differences
from onnx_ci.baseline.folder import BaselineFolder, baselines_at
from onnx_ci.config.values import BASELINE_LIMITS

# --- processes


RECORDER = """
    import os, signal, sys, time
    sys.path.insert(0, {project!r})
    from pathlib import Path
    from toolbox.recorded import VERSIONS, changed, result_of
    from onnx_ci.baseline.check import Baselines
    from onnx_ci.config.settings import load_settings

    settings = load_settings(Path({root!r}), flags={{"baseline": "update"}}, environment={{}})

    def record(version, opsets):
        Baselines(settings, VERSIONS).record([result_of(changed(ir_version=version), opset=opset) for opset in opsets])
"""
BOTH = """
    for version in range(1, 61):
        record(version, [{opset}])
"""
KILLED = """
    for kill in range(200):
        child = os.fork()
        if not child:
            for version in range(1000 * kill, 1000 * kill + 1000):
                record(version, range(9, 18))
        # The moments are spread over several writes by the golden section: no two are alike.
        time.sleep(0.1 * (kill * 0.6180339887 % 1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        recorded = BaselineFolder(Path({root!r}, "onnx-baselines")).load("net")
        if recorded is not None:
            (version,) = {{entry["ir-version",] for entry in recorded.cells.values()}}
            print(version)
"""


def python(project, *parts, **names):
    """A process that runs code in which a baseline can be recorded."""
    code = "".join(textwrap.dedent(part) for part in parts)
    code = code.format(project=str(ROOT / "tests"), root=str(project.root), **names)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no lock")
def test_two_processes_at_once_lose_nothing(project):
    both = [python(project, RECORDER, BOTH, opset=opset) for opset in (9, 10)]
    assert [each.communicate(timeout=200)[0] for each in both] == ["", ""]
    recorded = BaselineFolder(project.root / "onnx-baselines").load("net")
    assert {place.opset: entry["ir-version",] for place, entry in recorded.cells.items()} == {9: 60, 10: 60}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forks")
def test_a_kill_at_any_moment_leaves_old_or_new(project):
    process = python(project, RECORDER, "from onnx_ci.baseline.folder import BaselineFolder\n", KILLED)
    seen = [int(line) for line in process.communicate(timeout=300)[0].split()]
    assert process.returncode == 0, "each file was whole"
    assert len(seen) > 190 and seen == sorted(seen)
    assert sum(version % 1000 > 0 for version in seen) > 50, "the kills came between and in writes"
    folder = BaselineFolder(project.root / "onnx-baselines")
    with folder.locked():
        assert [each.name for each in folder.path.iterdir()] == ["net.toml"]


# --- other commits


def git(project, *words):
    done = project.run("git", "-c", "user.name=n", "-c", "user.email=e@example.com", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_baselines_of_another_commit(project):
    git(project, "init", "-q")
    keeper(project, "update").record([result_of(opset=opset) for opset in (9, 10)])
    git(project, "add", ".")
    git(project, "commit", "-qm", "one")
    keeper(project, "update").record([result_of(changed(operators={"Cast": 1}), opset=10), result_of(opset=11)])
    folder = project.root / "onnx-baselines"
    before, now = baselines_at("HEAD", folder)["net"], BaselineFolder(folder).load("net")
    assert differences(before, now, BASELINE_LIMITS) == [
        "torchscript cpu, opset 10: +1 Cast, −2 Gemm, −1 Relu",
        "torchscript cpu, opset 11: new",
    ]
    assert differences(now, before, BASELINE_LIMITS)[-1] == "torchscript cpu, opset 11: no longer recorded"
    shown = project.in_process("baseline", "diff", "HEAD")
    assert shown.stdout.splitlines()[0] == "net torchscript cpu, opset 10: +1 Cast, −2 Gemm, −1 Relu"
    git(project, "commit", "-aqm", "two")
    assert project.in_process("baseline", "diff", "HEAD").stdout == "nothing changed since HEAD\n"
    assert project.in_process("baseline", "diff", "HEAD~1", "nett").stderr == (
        "onnx-ci: nothing is recorded for 'nett'; did you mean 'net'?\n"
    )


def test_git_diff_of_a_renamed_output_touches_only_the_lines_of_its_name(project):
    git(project, "init", "-q")
    keeper(project, "update").record([result_of(opset=opset) for opset in range(9, 18)])
    git(project, "add", ".")
    renamed = changed(
        outputs=(FACTS.outputs[0], dataclasses.replace(FACTS.outputs[1], name="zz")),
        values=(values("y"), values("zz", mean=0.1)),
    )
    results = [result_of(renamed, opset=opset) for opset in range(9, 18)]
    results = [dataclasses.replace(each, outputs=(each.outputs[0], drift_of("zz", 1.0))) for each in results]
    keeper(project, "update").record(results)
    lines = [line for line in git(project, "diff", "-U0").splitlines() if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert lines == [
        '-outputs = ["y", "z"]',
        '+outputs = ["y", "zz"]',
        '-z = "float[batch, 4]"',
        '+zz = "float[batch, 4]"',
        "-[torchscript.cpu.values.z]",
        "+[torchscript.cpu.values.zz]",
    ]


@pytest.mark.parametrize(
    ("revision", "message"), [("nowhere", "there is no commit 'nowhere' here"), ("--all", "there is no commit '--all' here")]
)
def test_a_revision_that_does_not_exist(project, revision, message):
    git(project, "init", "-q")
    done = project.in_process("baseline", "diff", "--", revision)
    assert (done.returncode, done.stdout) == (2, "") and message in done.stderr


def test_no_repository(project):
    done = project.in_process("baseline", "diff", "HEAD", GIT_CEILING_DIRECTORIES=str(project.root.parent))
    assert (done.returncode, "not a git repository" in done.stderr) == (2, True), done.stderr
