from __future__ import annotations

import pytest
from toolbox.projects import Repository

from onnx_ci.environment.git import revision_of

OF_JOBS = ("GITHUB_HEAD_REF", "GITHUB_REF_TYPE", "GITHUB_REF_NAME")


@pytest.fixture
def repository(project, tmp_path_factory, monkeypatch):
    for name in OF_JOBS:
        monkeypatch.delenv(name, raising=False)
    made = Repository(project, tmp_path_factory.mktemp("home"))
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def test_what_is_checked_out_is_known(repository):
    root = repository.project.root
    assert revision_of(root) is None, "there is no commit yet"
    file = repository.project.write("net.py", "1")
    repository.commit_all("Add a net")
    found = revision_of(root)
    assert (found.commit, found.branch, found.is_modified) == (repository.git("rev-parse", "HEAD"), "trunk", False)
    assert found.in_words == f"{found.commit[:7]} on trunk"
    repository.project.write("report.json", "{}")
    assert revision_of(root) == found, "reports and caches are not changes"
    file.write_text("2", encoding="utf-8")
    (root / "sub").mkdir()
    assert revision_of(root / "sub").is_modified
    assert revision_of(root).in_words == f"{found.commit[:7]} on trunk, with uncommitted changes"


@pytest.mark.parametrize(
    ("variables", "branch"),
    [
        ({}, None),
        ({"GITHUB_REF_TYPE": "branch", "GITHUB_REF_NAME": "main"}, "main"),
        ({"GITHUB_REF_TYPE": "branch", "GITHUB_REF_NAME": "12/merge", "GITHUB_HEAD_REF": "fix"}, "fix"),
        ({"GITHUB_REF_TYPE": "tag", "GITHUB_REF_NAME": "v1"}, None),
    ],
)
def test_a_job_on_github_knows_the_branch_of_its_commit(repository, monkeypatch, variables, branch):
    repository.commit_all("Add nothing")
    repository.git("checkout", "--quiet", "--detach")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert revision_of(repository.project.root).branch == branch


def test_without_a_repository_or_git_nothing_is_known(repository, monkeypatch, tmp_path_factory):
    assert revision_of(tmp_path_factory.mktemp("plain")) is None
    repository.commit_all("Add nothing")
    monkeypatch.setenv("PATH", "")
    assert revision_of(repository.project.root) is None
