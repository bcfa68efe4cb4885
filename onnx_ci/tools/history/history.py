"""The history of the baselines: what they were at the commits that changed them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.baseline.changes import Limits, differences
from onnx_ci.baseline.entry import Entry
from onnx_ci.baseline.file import Baseline, BaselineError, as_text, read
from onnx_ci.baseline.folder import BaselineFolder, files_at, git_of


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The baselines at one commit, or in the working tree."""

    commit: str
    """Its short hash; empty for the working tree."""
    date: str
    subject: str
    baselines: Mapping[str, Baseline]
    """By recipe."""
    problems: tuple[str, ...] = ()
    """Why other baselines cannot be read."""

    @property
    def title(self) -> str:
        """``a1b2c3d 2026-11-20 Use a larger model``."""
        return " ".join(filter(None, (self.commit, self.date, self.subject)))


def history(folder: BaselineFolder, *, last: int) -> list[Moment]:
    """The moments at which baselines changed, oldest first: the last commits, and the one before them for comparison.

    Only first parents are followed: the changes of a merged branch are those of the merge commit.

    Raises:
        ConfigurationError: there is no repository, or it has no commit.
        BaselineError: a baseline of the working tree cannot be read.
    """
    git, inside = git_of(folder.path)
    log = git.ask("log", "-z", "--first-parent", f"--max-count={last + 1}", "--format=%H%n%h%n%as%n%s", "--", inside)
    read_blobs: dict[str, Baseline | str] = {}
    moments = []
    for entry in reversed(log.split("\0")[:-1]):
        commit, short, date, subject = entry.split("\n", 3)
        baselines, problems = {}, []
        for name, blob in files_at(git, commit, inside):
            if blob not in read_blobs:
                try:
                    read_blobs[blob] = read(git.ask("cat-file", "blob", blob), Path(f"{short}:{name}"))
                except BaselineError as error:  # nobody can fix a committed file any more
                    read_blobs[blob] = str(error)
            baseline = read_blobs[blob]
            if isinstance(baseline, str):
                problems.append(baseline)
            else:
                baselines[baseline.recipe] = baseline
        moments.append(Moment(commit=short, date=date, subject=subject, baselines=baselines, problems=tuple(problems)))
    now = folder.load_all()
    if not moments or _texts(now) != _texts(moments[-1].baselines):
        moments.append(Moment(commit="", date="", subject="not committed", baselines=now))
    return moments


def _texts(baselines: Mapping[str, Baseline]) -> dict[str, str]:
    """Baselines as text, for comparison: a sample may contain NaN, which never equals itself."""
    return {recipe: as_text(baseline) for recipe, baseline in baselines.items()}


def steps(moments: Sequence[Moment], limits: Limits) -> Iterator[tuple[Moment, list[str]]]:
    """Each moment except the first, with its changes in words, newest first."""
    for before, now in reversed(list(itertools.pairwise(moments))):
        words = [
            f"{recipe} {line}"
            for recipe in sorted({*before.baselines, *now.baselines})
            for line in differences(before.baselines.get(recipe), now.baselines.get(recipe), limits)
        ]
        yield now, words


_NUMBERS: Mapping[str, Callable[[Entry], float | None]] = {
    "drift": lambda entry: max(
        (each for line, each in entry.items() if (line[0], line[-1]) == ("values", "drift")), default=None
    ),
    "file_bytes": lambda entry: entry["file-bytes",],
    "operators": lambda entry: sum(value for line, value in entry.items() if line[0] == "operators"),
}


def series(moments: Sequence[Moment]) -> Iterator[tuple[str, dict[str, list[float | None]]]]:
    """For each recipe, exporter and target that occurs in the moments, in order: a title, and its numbers by name.

    A number is the largest one of all opsets at a moment; ``None`` where nothing comparable is recorded.
    """
    rows = [
        {
            (recipe, exporter, target): list(entries.values())
            for recipe, baseline in moment.baselines.items()
            for (target, exporter), entries in baseline.sections().items()
        }
        for moment in moments
    ]
    for key in sorted({key for row in rows for key in row}):
        yield (
            " ".join(key),
            {name: [_largest(number, row.get(key, [])) for row in rows] for name, number in _NUMBERS.items()},
        )


def _largest(number: Callable[[Entry], float | None], entries: Iterable[Entry]) -> float | None:
    return max((each for each in map(number, entries) if each is not None), default=None)
