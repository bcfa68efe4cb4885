"""``onnx-ci bisect``: the commit that broke a cell, in repositories whose breaks are known."""

from __future__ import annotations

import re

import pytest
from toolbox.projects import Repository

from onnx_ci.cli.bisect_step import BAD, GOOD, SKIP, judge

PASSED, FAILED, USAGE = 0, 1, 2
RECIPE = """
    import onnx_ci, torch
    from model import Model

    @onnx_ci.recipe(input_names=["x"], output_names=["y"])
    def scale():
        return Model(), (torch.randn(3, 4),)
"""
MODEL = """
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4))

        def forward(self, x):
            return torch.relu(x * self.weight){}
"""
RIGHT = MODEL.format("")
BAKED = MODEL.format(" + float(x.sum())")
UNSUPPORTED = MODEL.format(" + torch.special.bessel_j0(x)")
NO_IMPORT = "import nothing_of_the_kind"


class Versions(Repository):
    """A scratch repository whose commits are versions of one model."""

    def __init__(self, project, home):
        super().__init__(project, home)
        project.write(".gitignore", "__pycache__\n.cache\n")
        project.write("onnx_recipes.py", RECIPE)

    def commit(self, subject, model):
        self.project.write("model.py", model, f"# {subject}")
        self.commit_all(subject)
        return self.git("rev-parse", "--short=12", "HEAD")

    def bisect(self, *words):
        cached = {"ONNX_CI_CACHE": ".cache"}
        return self.project.command("onnx_ci", "bisect", "--opsets=13", *words, **self.environment, **cached)

    def is_as_before(self):
        return (
            self.git("status", "--porcelain", "--branch") == "## trunk" and self.project.run("git", "bisect", "log").returncode
        )


@pytest.fixture
def repository(project, tmp_path_factory):
    return Versions(project, tmp_path_factory.mktemp("home"))


@pytest.mark.slow
def test_the_commit_is_found_between_one_that_cannot_be_imported_and_one_that_fails_otherwise(repository):
    good = repository.commit("First", RIGHT)
    repository.commit("Import what is not there", NO_IMPORT)
    repository.commit("Use what cannot be exported", UNSUPPORTED)
    repository.commit("Go back", RIGHT)
    broken = repository.commit("Bake a sum", BAKED)
    repository.commit("Touch", BAKED)
    repository.commit("Touch again", BAKED)
    done = repository.bisect(f"--good={good}", "scale")
    assert done.returncode == PASSED, done.stderr
    assert done.stdout.startswith(f"{broken} is the first commit at which scale::opset13-cpu fails\n")
    assert "Bake a sum\n" in done.stdout
    assert "model.py | " in done.stdout
    assert re.search(r"^ *baked-value: model\.py:\d+, `.+`, .+: output 'y'", done.stdout, re.MULTILINE)
    steps = done.stderr.splitlines()
    assert "Touch again (scale::opset13-cpu: baked-value" in steps[0]
    assert steps[1].startswith("passed ")
    assert repository.is_as_before()


@pytest.mark.slow
def test_commits_that_cannot_be_told_apart_are_all_named(repository):
    good = repository.commit("First", RIGHT)
    repository.commit("Import what is not there", NO_IMPORT)
    repository.commit("Use what cannot be exported", UNSUPPORTED)
    repository.commit("Bake a sum", BAKED)
    done = repository.bisect(f"--good={good}", "scale")
    assert done.returncode == FAILED, done.stderr
    first, *suspects = done.stdout.splitlines()
    assert first == "One of these 3 commits broke scale::opset13-cpu; those between could not be judged:"
    subjects = [line.split(maxsplit=1)[1] for line in suspects]
    assert subjects == ["Bake a sum", "Use what cannot be exported", "Import what is not there"]
    assert (
        "Import what is not there (cannot be imported: ModuleNotFoundError: No module named 'nothing_of_the_kind'"
        in done.stderr
    )
    assert "Use what cannot be exported (unsupported-operator)" in done.stderr
    assert repository.is_as_before()


@pytest.mark.slow
def test_two_ends_that_do_not_differ_are_refused_and_the_branch_is_checked_out_again(repository):
    good = repository.commit("First", RIGHT)
    still = repository.commit("Touch", RIGHT)
    baked = repository.commit("Bake a sum", BAKED)
    repository.commit("Touch again", BAKED)
    done = repository.bisect(f"--good={good}", f"--bad={still}", "scale")
    assert (done.returncode, "Touch; pass a commit where it does with --bad" in done.stderr) == (USAGE, True)
    done = repository.bisect(f"--good={baked}", "scale")
    assert (done.returncode, "Bake a sum (baked-value" in done.stderr) == (USAGE, True)
    assert "a package upgrade broke it, not a commit" in done.stderr
    done = repository.bisect(f"--good={good}", "scales")
    assert (done.returncode, "did you mean 'scale'?" in done.stderr) == (USAGE, True)
    assert repository.is_as_before()


def test_a_working_tree_with_changes_is_left_alone(repository):
    good = repository.commit("First", RIGHT)
    repository.project.write("model.py", "mine")
    done = repository.bisect(f"--good={good}", "scale")
    assert done.returncode == USAGE
    assert (
        done.stderr
        == "onnx-ci: model.py has uncommitted changes, but bisecting checks out other commits; commit or stash them first\n"
    )
    assert (repository.project.root / "model.py").read_text() == "mine"


def test_a_bisection_of_the_users_own_goes_on(repository):
    good = repository.commit("First", RIGHT)
    repository.git("bisect", "start")
    done = repository.bisect(f"--good={good}", "scale")
    assert (done.returncode, "a bisection is already in progress; end it with git bisect reset" in done.stderr) == (USAGE, True)
    assert repository.git("bisect", "log")


@pytest.mark.slow
def test_a_commit_without_the_folder_cannot_tell(repository):
    empty = repository.commit("Begin", RIGHT)
    repository.project.write("sub/onnx_recipes.py", RECIPE)
    repository.project.write("sub/model.py", BAKED)
    repository.commit("Move", RIGHT)
    top, repository.project.root = repository.project.root, repository.project.root / "sub"
    done = repository.bisect(f"--good={empty}", "--cache=off", "scale")
    repository.project.root = top
    assert (done.returncode, "Begin: there is no folder" in done.stderr) == (USAGE, True), done.stderr
    assert repository.is_as_before()


def test_a_file_of_the_users_own_that_is_in_the_way_is_named(repository):
    good = repository.commit("First", RIGHT)
    repository.git("rm", "--quiet", "--cached", "onnx_recipes.py")
    repository.git("commit", "--quiet", "--message=Keep no recipe")
    done = repository.bisect(f"--good={good}", f"--bad={good}", "scale")
    assert done.returncode == USAGE
    assert "would be overwritten by checkout: onnx_recipes.py Please move or remove them" in done.stderr


def test_what_is_no_commit_and_what_is_no_repository_is_told(repository, tmp_path_factory):
    repository.commit("First", RIGHT)
    for revision in ("v9", "--help", "HEAD:model.py"):
        done = repository.bisect(f"--good={revision}", "scale")
        assert (done.returncode, f"there is no commit {revision!r} here" in done.stderr) == (USAGE, True)
    repository.project.root = tmp_path_factory.mktemp("none")
    done = repository.bisect("--good=HEAD", "scale", "x.py")
    assert (done.returncode, "not a git repository" in done.stderr) == (USAGE, True)
    assert repository.bisect("scale").returncode == USAGE


def failing(*rules, status="failed"):
    return {"status": status, "findings": [{"rule": rule, "severity": "error"} for rule in rules]}


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        ([{"status": "passed", "findings": [{"rule": "export-warning", "severity": "note"}]}], GOOD),
        ([{"status": "xfailed", "findings": [{"rule": "checker", "severity": "error"}]}], GOOD),
        ([failing("checker", "numeric-drift")], BAD),
        ([failing("unexpected-pass", "checker", status="xpassed")], BAD),
        ([failing("numeric-drift")], SKIP),
        ([{"status": "skipped", "findings": [], "reason": "no cuda"}], SKIP),
        ([], SKIP),
        ([failing("checker"), failing("checker")], SKIP),
    ],
)
def test_a_commit_is_bad_only_if_the_cell_fails_there_as_it_does_at_the_end(results, verdict):
    assert judge(results, "nothing ran", ["checker"])[0] == verdict
