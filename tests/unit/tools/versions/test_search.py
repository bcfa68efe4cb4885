"""What is tried, and how often, until the version or the packages at fault are known."""

from __future__ import annotations

import math

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from onnx_ci.tools.versions.overlay import Installed, broken_by, in_words, kept_requirements
from onnx_ci.tools.versions.search import blame, first_that_holds, newer_repair, older_repair


class Trials:
    """Answers whether something holds, and notes each question."""

    def __init__(self, holds, missing=()):
        self.holds, self.missing, self.asked = holds, set(missing), []

    def __call__(self, version):
        if version in self.missing:
            return None
        assert version not in self.asked
        self.asked.append(version)
        return self.holds(version)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 100])
def test_the_first_version_is_found_in_few_trials_wherever_it_is(size):
    for first in range(size):
        trials = Trials(lambda number, first=first: number >= first)
        assert first_that_holds(range(size), trials) == (first, first - 1 if first else None)
        assert len(trials.asked) <= math.ceil(math.log2(size))


@pytest.mark.parametrize("missing", [{3}, {4}, {0, 1, 2, 3}, {1, 4, 6, 8}])
def test_versions_that_cannot_be_had_are_passed_over(missing):
    assert first_that_holds(range(10), Trials(lambda number: number >= 5, missing)) == (5, max({*range(5)} - missing))


def versions(*texts):
    return [Version(text) for text in texts]


RELEASES = versions("0.9", "1.0", "1.1", "1.2", "1.3", "1.4")


@pytest.mark.parametrize(
    ("search", "right", "words", "asked"),
    [
        (newer_repair, {"1.3", "1.4"}, "passes with net 1.3 and later (fails with 1.2)", ["1.4", "1.2", "1.3"]),
        (newer_repair, {"1.4"}, "passes with net 1.4 and later (fails with 1.3)", ["1.4", "1.2", "1.3"]),
        (newer_repair, {"1.2", "1.3", "1.4"}, "passes with net 1.2 and later (fails with 1.1)", ["1.4", "1.2"]),
        (newer_repair, {"1.0"}, None, ["1.4"]),
        (older_repair, {"1.0", "0.9"}, "passes with net 1.0 (fails with 1.1)", ["1.0"]),
        (older_repair, {"0.9"}, "passes with net 0.9 and earlier (fails with 1.0)", ["1.0", "0.9"]),
        (older_repair, {"1.4"}, None, ["1.0", "0.9"]),
    ],
)
def test_the_version_next_to_those_that_fail_repairs(search, right, words, asked):
    trials = Trials(lambda version: str(version) in right)
    repair = search("net", Version("1.1"), RELEASES, trials)
    assert (repair and repair.words) == words
    assert list(map(str, trials.asked)) == asked


def test_the_label_of_a_build_makes_no_newer_version():
    trials = Trials(lambda version: True)
    assert newer_repair("torch", Version("2.13.0+cpu"), versions("2.13.0", "2.13.0+cpu"), trials) is None
    assert older_repair("torch", Version("2.13.0+cpu"), versions("2.13.0", "2.13.0+cpu"), trials) is None
    assert newer_repair("torch", Version("2.13.0"), versions("2.13.0", "2.13.1+cpu"), trials).version == Version("2.13.1+cpu")


def test_the_newest_that_can_be_had_counts():
    trials = Trials(lambda version: version >= Version("1.2"), versions("1.4"))
    assert newer_repair("net", Version("1.1"), RELEASES, trials).version == Version("1.2")
    assert list(map(str, trials.asked)) == ["1.3", "1.2"]
    assert older_repair("net", Version("1.1"), RELEASES, Trials(lambda _: True, RELEASES)) is None


def test_single_packages_are_blamed_before_pairs_and_for_as_few_trials_as_possible():
    faults = {"a": {1}, "b": {2}, ("b", "c"): {3}}
    asked = []

    def breaks(names):
        asked.append(names)
        alone = set().union(*(faults.get(name, set()) for name in names))
        return alone | faults.get(names, set())

    assert blame(["a", "b", "c"], [1, 2, 3, 4], breaks) == {("a",): [1], ("b",): [2], ("b", "c"): [3]}
    assert asked == [("a",), ("b",), ("c",), ("a", "b"), ("a", "c"), ("b", "c")]
    asked.clear()
    assert blame(["a", "b", "c"], [1], breaks) == {("a",): [1]}
    assert asked == [("a",)]


def installed(version, *requires, is_kept=False):
    return Installed(version=version, requires=tuple(map(Requirement, requires)), is_kept=is_kept)


def test_a_package_breaks_if_it_has_what_it_requires_and_would_not_any_more():
    distributions = {
        "net": installed("1.0"),
        "exact": installed("1", "Net==1.0"),
        "loose": installed("1", "net>=1"),
        "crooked": installed("1", "net==3"),
        "extra": installed("1", "net==1.0; extra == 'old'"),
        "elsewhere": installed("1", "net==1.0; python_version < '3'"),
        "kept": installed("1", "net==1.0", is_kept=True),
        "changed": installed("1", "net==1.0"),
    }
    assert broken_by({"net": "2.0", "changed": "2"}, distributions) == ["exact"]
    assert broken_by({"net": "0.9rc1"}, distributions) == ["exact", "loose", "changed"]


def test_what_the_project_requires_is_kept_and_extras_if_they_are_met():
    distributions = {
        "net": installed("1.0", "deep<2"),
        "deep": installed("1.0"),
        "house": installed(
            "1", "net<2", "deep", "deep<9; extra == 'x'", "deep>4; extra == 'y'", "gone<1; extra == 'z'", is_kept=True
        ),
    }
    kept = [(name, str(requirement)) for name, requirement in kept_requirements(distributions)]
    assert kept == [("house", "net<2"), ("house", 'deep<9; extra == "x"')]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a"], "a 1 (with b 2 and c 3, which it needs)"),
        (["a", "b"], "a 1 and b 2 (with c 3, which they need)"),
        (["a", "b", "c"], "a 1, b 2 and c 3"),
    ],
)
def test_versions_in_words(names, words):
    assert in_words(names, {"a": "1", "b": "2", "c": "3"}) == words
