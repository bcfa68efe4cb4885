"""``onnx-ci history``: what each commit moved in the baselines, in words and as pictures."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from toolbox.baselines import entry
from toolbox.projects import Repository

from onnx_ci.baseline.file import Baseline, Place, as_text
from onnx_ci.tools.history.page import trend

PASSED, FAILED, USAGE = 0, 1, 2
FOLDER = "onnx-baselines"


class Baselines(Repository):
    """A scratch repository of baselines."""

    def record(self, recipe, **facts):
        cells = {Place("cpu", "torchscript", opset): entry(**facts) for opset in (13, 14)}
        self.project.write(f"{FOLDER}/{recipe}.toml", as_text(Baseline(recipe=recipe, cells=cells)))

    def commit(self, subject):
        self.commit_all(subject)
        return self.git("rev-parse", "--short", "HEAD")

    def history(self, *words):
        return self.project.in_process("history", *words, **self.environment)


@pytest.fixture
def repository(project, tmp_path_factory):
    return Baselines(project, tmp_path_factory.mktemp("home"))


def test_each_commit_shows_its_changes_the_newest_first(repository):
    repository.record("net")
    first = repository.commit("Begin")
    repository.commit("Touch nothing of it")
    repository.record("net", operators={"Mul": 1, "Relu": 1, "Cast": 2}, size=1400)
    second = repository.commit("Cast <twice>")
    repository.record("net", operators={"Mul": 1, "Relu": 1, "Cast": 2}, size=1400, drift=410.0)
    repository.record("other")
    done = repository.history()
    assert (done.returncode, done.stderr) == (PASSED, "")
    assert done.stdout.splitlines() == [
        "not committed",
        "    net torchscript cpu, opsets 13-14: drift of 'y' 1.9 → 410",
        "    other torchscript cpu, opsets 13-14: new",
        f"{second} 2026-01-02 Cast <twice>",
        "    net torchscript cpu, opsets 13-14: +2 Cast",
        "    net torchscript cpu, opsets 13-14: file +40 % (1000 bytes → 1.367 KiB)",
        f"{first} 2026-01-02 Begin",
        "    recorded: net",
    ]
    assert "other" not in repository.history("net").stdout
    # The window ends with the commit that its first one is held against.
    assert f"{first} 2026-01-02 Begin" in repository.history("--last=1").stdout


def test_the_page_draws_drift_size_and_operators(repository):
    repository.record("net")
    repository.commit("Begin")
    repository.record("net", drift=410.0, operators={"Mul": 3}, size=1400)
    commit = repository.commit("Use <b>another</b> model")
    assert repository.history("--html=page.html").returncode == PASSED
    page = (repository.project.root / "page.html").read_text()
    assert page.count('<svg class="trend"') == 3
    for words in ("1.9 → 410", "1000 bytes → 1.367 KiB", "2 → 3"):
        assert f"<span>{words}</span>" in page
    assert f"<title>{commit} 2026-01-02 Use &lt;b&gt;another&lt;/b&gt; model: 1.9 → 410</title>" in page
    assert "<b>another" not in page
    assert 'class="filter"' not in page


def test_a_commit_whose_baseline_cannot_be_read_is_a_gap_with_its_reason(repository):
    repository.record("net")
    repository.commit("Begin")
    repository.project.write(f"{FOLDER}/net.toml", "<<<<<<< ours\n")
    broken = repository.commit("Merge badly")
    repository.record("net", drift=4.5)
    repository.commit("Mend")
    done = repository.history("--html=page.html")
    assert done.returncode == PASSED, done.stderr
    assert f"{broken}:{FOLDER}/net.toml:1 contains a merge conflict" in done.stdout
    # The line is broken off at the gap and goes on behind it.
    assert '<path d="M6.0 18.0h0M214.0 18.0h0"/>' in (repository.project.root / "page.html").read_text()


def test_the_words_of_a_subject_and_the_users_colours_do_no_harm(repository):
    repository.git("config", "color.ui", "always")
    repository.record("net")
    commit = repository.commit("Begin\u2028here")
    done = repository.history()
    assert (done.returncode, done.stderr) == (PASSED, "")
    assert done.stdout.startswith(f"{commit} 2026-01-02 Begin")


def test_without_a_baseline_it_says_how_to_record_one(repository, tmp_path_factory):
    repository.commit("Empty")
    done = repository.history()
    assert (done.returncode, "record it with onnx-ci baseline update" in done.stderr) == (USAGE, True)
    repository.record("net")
    done = repository.history("nets")
    assert (done.returncode, "nothing is recorded for 'nets'; did you mean 'net'?" in done.stderr) == (USAGE, True)
    assert repository.history().stdout.splitlines()[0] == "not committed"
    repository.project.root = tmp_path_factory.mktemp("none")
    done = repository.history()
    assert (done.returncode, "not a git repository" in done.stderr) == (USAGE, True)


@pytest.mark.parametrize("values", [[1.0, float("inf"), 2.0], [0.0, 3.0], [5.0], [None, 1.0], [float("nan"), 1.0]])
def test_a_picture_has_room_for_every_number(values):
    source = trend(values, [f"c{place}" for place in range(len(values))], str, is_log=True)
    svg = ET.fromstring(f"<p>{source}</p>")[0]
    heights = [float(mark.attrib["cy"]) for mark in svg.iter("circle")]
    assert heights
    assert all(0 <= height <= 36 for height in heights)
    assert "nan" not in svg[0].attrib["d"]


def test_without_numbers_there_is_no_picture():
    assert trend([None, None], ["a", "b"], str) == ""
