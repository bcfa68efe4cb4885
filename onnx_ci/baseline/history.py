"""The history of the baselines: the commits that changed them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.baseline.changes import Limits
from onnx_ci.baseline.changes_by_opset import differences
from onnx_ci.baseline.entry import Entry, Line
from onnx_ci.baseline.file import Baseline, BaselineError, Place, as_text, read
from onnx_ci.baseline.folder import BaselineFolder
from onnx_ci.baseline.revisions import baselines_now, files_at, repository_of
from onnx_ci.environment.git import Git
from onnx_ci.results.records import Cell


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The baselines at one commit, or in the working tree."""

    commit: str
    """Its short hash; empty for the working tree."""
    date: str
    subject: str
    baselines: Mapping[str, Baseline]
    """By recipe, without those that cannot be read, which are in ``problems``."""
    problems: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """``a1b2c3d 2026-11-20 Use a larger model``."""
        return " ".join(filter(None, (self.commit, self.date, self.subject)))


def history(folder: BaselineFolder, *, last: int) -> list[Moment]:
    """The moments at which baselines changed, oldest first.

    Only first parents are followed: the changes of a merged branch count as the merge commit's.

    Args:
        folder: where baselines are stored now.
        last: the maximum number of commits; one more is included before them, if it exists, for comparison.

    Raises:
        ConfigurationError: there is no repository, or it has no commit.
        BaselineError: a baseline of the working tree cannot be read.
    """
    git, inside = repository_of(folder.path)
    log = git.ask("log", "-z", "--first-parent", f"--max-count={last + 1}", "--format=%H%n%h%n%as%n%s", "--", inside)
    blobs: dict[str, Baseline | str] = {}
    moments = []
    for each in reversed(log.split("\0")[:-1]):
        commit, short, date, subject = each.split("\n", 3)
        baselines, problems = {}, []
        for name, blob in files_at(git, commit, inside):
            if blob not in blobs:
                blobs[blob] = _read(git, blob, Path(f"{short}:{name}"))
            found = blobs[blob]
            if isinstance(found, str):
                problems.append(found)
            else:
                baselines[found.recipe] = found
        moments.append(Moment(commit=short, date=date, subject=subject, baselines=baselines, problems=tuple(problems)))
    now = baselines_now(folder)
    if not moments or _texts(now) != _texts(moments[-1].baselines):
        moments.append(Moment(commit="", date="", subject="not committed", baselines=now))
    return moments


def _texts(baselines: Mapping[str, Baseline]) -> dict[str, str]:
    """Baselines as text, for comparison: a sample may contain NaN, which never equals itself."""
    return {recipe: as_text(each) for recipe, each in baselines.items()}


def _read(git: Git, blob: str, path: Path) -> Baseline | str:
    """A baseline, or why it cannot be read, because a committed file cannot be fixed any more."""
    try:
        return read(git.ask("cat-file", "blob", blob), path)
    except BaselineError as error:
        return str(error)


def steps(moments: Sequence[Moment], limits: Limits) -> Iterator[tuple[Moment, list[str]]]:
    """Each moment except the first, with its changes in words, newest first."""
    for before, now in reversed(list(itertools.pairwise(moments))):
        yield (
            now,
            [
                f"{recipe} {line}"
                for recipe in sorted({*before.baselines, *now.baselines})
                for line in differences(before.baselines.get(recipe), now.baselines.get(recipe), limits)
            ],
        )


@dataclass(frozen=True, kw_only=True)
class Series:
    """One recipe with one exporter on one device, over the moments: the largest value of all its opsets; or one cell."""

    title: str
    drift: tuple[float | None, ...]
    """``None`` where nothing comparable is recorded."""
    file_bytes: tuple[float | None, ...]
    operators: tuple[float | None, ...]


def series_of(cell: Cell, moments: Sequence[Moment]) -> Series:
    """What one cell was accepted with at each moment."""
    place = Place.of(cell)
    baselines = (moment.baselines.get(cell.recipe) for moment in moments)
    found = (None if each is None else each.cells.get(place) for each in baselines)
    return _series(cell.label, [[] if entry is None else [entry] for entry in found])


def series(moments: Sequence[Moment]) -> list[Series]:
    """One series for each recipe, exporter and device that occurs in the moments, in order."""
    rows = [
        {
            (recipe, exporter, device): list(entries.values())
            for recipe, each in moment.baselines.items()
            for (device, exporter), entries in each.sections().items()
        }
        for moment in moments
    ]
    keys = sorted({key for row in rows for key in row})
    return [_series(" ".join(key), [row.get(key, []) for row in rows]) for key in keys]


def _series(title: str, entries: Sequence[Sequence[Entry]]) -> Series:
    """The largest values of the entries at each moment."""
    return Series(
        title=title,
        drift=tuple(_largest(v for e in each for line, v in e.items() if _is_drift(line)) for each in entries),
        file_bytes=tuple(_largest(e["file-bytes",] for e in each) for each in entries),
        operators=tuple(_largest(sum(v for line, v in e.items() if line[0] == "operators") for e in each) for each in entries),
    )


def _is_drift(line: Line) -> bool:
    return line[0] == "values" and line[-1] == "drift"


def _largest(values: Iterator[float]) -> float | None:
    return max(values, default=None)
