"""The hooks for pre-commit: each passes and fails on a scratch project, as pre-commit runs it."""

from __future__ import annotations

import os
import subprocess

import pytest
import yaml
from e2e.cli.test_file_check import model
from e2e.project.test_readme import block_with
from e2e.pytest_plugin.test_plugin import WRONG
from toolbox.projects import RIGHT, ROOT, on_path

from onnx_ci.tools.init.command import ADDRESS, REF

HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))}


@pytest.fixture
def outside(project, tmp_path_factory, monkeypatch):
    """A repository with the hooks; the project is a repository, too, and Git and pre-commit are nobody's own."""
    folder = tmp_path_factory.mktemp("hooks")
    for name in list(os.environ):
        if name.startswith("GIT_"):  # these tests may run in a hook of Git's
            monkeypatch.delenv(name)
    for name, value in {
        "GIT_CONFIG_GLOBAL": str(folder / "gitconfig"),
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_{what}": "tests@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        "PRE_COMMIT_HOME": str(folder / "home"),
        **on_path(folder / "bin"),
    }.items():
        monkeypatch.setenv(name, value)
    repository = folder / "repository"
    repository.mkdir()
    (repository / ".pre-commit-hooks.yaml").write_bytes((ROOT / ".pre-commit-hooks.yaml").read_bytes())
    for place in (repository, project.root):
        git(place, "init", "-q", "-b", "main")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "the hooks")
    return repository


def git(folder, *words):
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def try_hook(project, outside):
    """``pre-commit try-repo``, as its documentation shows it."""

    def run(hook, stage="manual", **environment):
        git(project.root, "add", "--all")
        return project.command(
            "pre_commit", "try-repo", str(outside), hook, "--all-files", "--verbose", "--color=never", "--hook-stage", stage, **environment
        )  # fmt: skip

    return run


def test_the_three_hooks_are_offered():
    assert list(HOOKS) == ["onnx-ci-config", "onnx-ci-check", "onnx-ci-export"]
    assert {hook["language"] for hook in HOOKS.values()} == {"system"}
    assert HOOKS["onnx-ci-export"]["stages"] == ["pre-push", "manual"]


def test_this_project_runs_them_itself():
    """From its checkout, hence by other commands and in other environments; all else is the same."""
    (own,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    own = {hook["id"]: hook for hook in own["hooks"]}
    differs = {"entry", "language", "additional_dependencies", "description", "minimum_pre_commit_version"}
    for name, hook in HOOKS.items():
        assert {key: value for key, value in own[name].items() if key not in differs} == {
            key: value for key, value in hook.items() if key not in differs
        }


def test_config_reads_settings_and_recipes(project, try_hook):
    project.recipes(RIGHT)
    done = try_hook("onnx-ci-config")
    assert (done.returncode, "settings and 1 recipe file are well-formed" in done.stdout) == (0, True), (
        done.stdout + done.stderr
    )
    project.write("pyproject.toml", "[tool.onnx-ci]\nopset = 9\n")
    done = try_hook("onnx-ci-config")
    assert (done.returncode, "pyproject.toml:2: [tool.onnx-ci] has no setting 'opset'" in done.stdout) == (1, True)


def test_check_judges_the_onnx_files_and_no_others(project, try_hook):
    project.write("notes.txt", "no model")
    assert "(no files to check)Skipped" in try_hook("onnx-ci-check").stdout
    (project.root / "right.onnx").write_bytes(model())
    done = try_hook("onnx-ci-check")
    assert (done.returncode, "right.onnx passed (opset 13" in done.stdout) == (0, True), done.stdout + done.stderr
    path = model(change=lambda made: setattr(made, "doc_string", "from /home/ann/nets/net.py"))
    (project.root / "wrong.onnx").write_bytes(path)
    done = try_hook("onnx-ci-check")
    assert (done.returncode, "absolute-path: the file contains paths below /home/ann/nets" in done.stdout) == (1, True)
    assert "2 files: 1 passed, 1 failed" in done.stdout


@pytest.mark.slow
def test_export_runs_what_changed_at_three_opsets(project, try_hook):
    cache = {"ONNX_CI_CACHE": "verdicts"}
    project.write("pyproject.toml", '[tool.onnx-ci]\nrecipe-files = ["nets/*.py"]\n')
    project.recipes(RIGHT, name="nets/right.py")
    project.recipes(RIGHT.replace("right", "other"), name="nets/other.py")
    first = try_hook("onnx-ci-export", "pre-push", **cache)
    assert (first.returncode, "6 cells: 6 passed in" in first.stdout) == (0, True), first.stdout + first.stderr
    assert "::right  opsets 9,13,17 on cpu  passed" in first.stdout
    project.recipes(WRONG, name="nets/other.py")
    done = try_hook("onnx-ci-export", **cache)
    assert (done.returncode, "6 cells: 3 passed, 3 failed, 3 of them cached" in done.stdout) == (1, True), done.stdout


@pytest.mark.slow
def test_what_the_readme_shows_guards_commits_and_pushes(project, outside, tmp_path_factory):
    """Installed with its own command, then a commit and a push that must not be, each with one that may."""
    shown = block_with("id: onnx-ci-config", "yaml")
    here = shown.replace(f"https://github.com/{ADDRESS}", outside.as_uri()).replace(
        f"rev: {REF}", f"rev: {git(outside, 'rev-parse', 'HEAD')}"
    )
    project.write(".pre-commit-config.yaml", here)
    install = block_with("pre-commit install", "sh").split()
    assert project.command("pre_commit", *install[1:]).returncode == 0
    remote = tmp_path_factory.mktemp("remote")
    git(remote, "init", "-q", "--bare")
    git(project.root, "remote", "add", "origin", str(remote))

    def commit():
        git(project.root, "add", "--all")
        return project.run("git", "commit", "-q", "-m", "a change")

    def push():
        return project.run("git", "push", "-q", "origin", "main")

    project.write(".gitignore", "__pycache__/\n")
    recipes = project.recipes(WRONG)
    (project.root / "m.onnx").write_bytes(b"no model")
    refused = commit()
    assert (refused.returncode, "the file is not a readable ONNX model" in refused.stderr + refused.stdout) == (1, True)
    (project.root / "m.onnx").write_bytes(model())
    assert commit().returncode == 0
    refused = push()
    assert (refused.returncode, "3 cells: 3 failed" in refused.stderr + refused.stdout) == (1, True), refused
    recipes.unlink()
    project.recipes(RIGHT)
    assert commit().returncode == 0
    pushed = push()
    assert pushed.returncode == 0, pushed.stdout + pushed.stderr
    assert git(remote, "rev-parse", "main") == git(project.root, "rev-parse", "HEAD")
