"""In the process that decides: which remedies are tried with a failing cell, and what came of each."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.config.settings import Settings
from onnx_ci.engine.deaths import LastSeen, evidence_of_death
from onnx_ci.engine.recipes import Recipes
from onnx_ci.environment.packages import newest_opset
from onnx_ci.matrix.plan import CellSpec
from onnx_ci.owners import Owner, owner_of
from onnx_ci.processes.limits import Limits, default_jobs
from onnx_ci.processes.supervisor import LAST, Death
from onnx_ci.results.records import AXES_OF_ONE, WRITTEN_SIZES, Cell, CellEvidence, CellResult, Severity, SourceLine, Status
from onnx_ci.results.rules import RULES
from onnx_ci.tools.fix.remedies import Remedy, decided, other_exports, same_export, text_of, try_remedy
from onnx_ci.tools.fix.rewrites import rewrites, without_unused

_LINES = 3
"""How many lines that a failure names are rewritten."""
_ROUNDS = 4
"""How many lines are changed one after another, if each change shows the next line that is wrong."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A remedy, and what came of it."""

    remedy: Remedy
    result: CellResult

    @property
    def passes(self) -> bool:
        """Whether the changed cell passes the whole gate."""
        return self.result.status is Status.PASSED


class Search:
    """Tries remedies with a failing cell, several at once, each in a process of its own."""

    def __init__(self, spec: CellSpec, recipes: Recipes, settings: Settings) -> None:
        self._spec, self._recipes, self._settings = spec, recipes, settings
        self._jobs = settings.jobs or default_jobs()

    def of_the_same_export(self, failed: CellResult) -> Iterator[Attempt]:
        """Remedies that leave the model and its declaration as they are, until one passes.

        These are rewrites of the lines that the failure names, a larger example, and options of the exporter. Where a rewrite
        shows the next line that is wrong, it is kept, and that line is changed, too.
        """
        axes = dict.fromkeys(axis for each in failed.findings for axis in each.details.get(AXES_OF_ONE, ()))
        others = same_export(self._spec, [*axes])
        kept = Remedy(words="")
        tried: list[Mapping[str, str]] = []
        for _ in range(_ROUNDS):
            rewriting = [each for each in _rewriting_remedies(failed, kept) if each.texts not in tried]
            tried += [each.texts for each in rewriting]
            attempts = []
            for attempt in self._try_all(sorted([*others, *rewriting], key=lambda each: bool(each.options))):
                attempts.append(attempt)
                yield attempt
                if attempt.passes:
                    yield from self._without_unused(attempt.remedy)
                    return
            better = next((each for each in attempts if each.remedy.texts and _shows_other_line(each.result, failed)), None)
            if better is None:
                return
            failed, kept, others = better.result, better.remedy, []

    def _without_unused(self, change: Remedy) -> Iterator[Attempt]:
        """A change of code without what nothing uses after it, if there is such code."""
        texts = {file: without_unused(text_of(Path(file)), text) for file, text in change.texts.items()}
        if texts != change.texts:
            words = f"{change.words}, and without the code that is unused then"
            yield from self._try_all([dataclasses.replace(change, words=words, texts=texts)])

    def of_another_export(self) -> Iterator[Attempt]:
        """Remedies that change what is shipped: other opsets, and the other exporter.

        Of several higher opsets with which the cell passes, the lowest is searched for.
        """
        attempts = []
        for attempt in self._try_all(other_exports(self._spec, newest_opset())):
            attempts.append(attempt)
            yield attempt
        opsets = {each.remedy.opset: each.passes for each in attempts if each.remedy.opset and each.remedy.exporter is None}
        higher = {opset: passes for opset, passes in opsets.items() if opset > self._spec.cell.opset}
        passing = min((opset for opset, passes in higher.items() if passes), default=None)
        while passing is not None:
            failing = max((opset for opset, passes in higher.items() if not passes and opset < passing), default=passing - 1)
            if passing - failing < 2:
                return
            middle = (failing + passing) // 2
            (attempt,) = self._try_all([Remedy(words=f"opset {middle}", opset=middle)])
            higher[middle] = attempt.passes
            passing = middle if attempt.passes else passing
            yield attempt

    def broken_by(self, change: Remedy) -> Iterator[CellResult]:
        """The failures that a change of code brings about with the other exporters of the recipe's cells."""
        own, cells = self._spec.cell, dict[str, Cell]()
        for spec in self._recipes.plan().cells:
            if spec.cell.recipe == own.recipe and spec.cell.exporter != own.exporter:
                cells.setdefault(spec.cell.exporter, spec.cell)
        for cell in cells.values():
            now = Remedy(words=cell.id, exporter=cell.exporter, opset=cell.opset)
            before, after = self._try_all([now, dataclasses.replace(now, texts=change.texts)])
            if before.passes and not after.passes:
                yield after.result

    def _try_all(self, remedies: Sequence[Remedy]) -> Iterator[Attempt]:
        """The attempts, in the order of the remedies, each as soon as it and those before it are known."""
        settings = self._settings
        # What is wrong with a file after other settings is not asked, so its lines are not searched for.
        quick = dataclasses.replace(settings, locate=False)
        # After a change of code, the model is prepared with and without it, and the file is judged against both.
        limits = Limits.of(self._spec).times(2)
        tries = [functools.partial(try_remedy, each, self._spec, settings if each.texts else quick) for each in remedies]
        works = {place: (self._spec.cell.recipe, each) for place, each in enumerate(tries)}
        results: dict[int, CellResult] = {}
        shown = 0
        for place, event in self._recipes.run_all(works, limits, jobs=self._jobs):
            cell = remedies[place].cell(self._spec)
            if isinstance(event, Death):
                results[place] = decided(cell, evidence_of_death(cell, event, LastSeen()), settings)
            elif LAST in event:
                results[place] = decided(cell, CellEvidence.from_json(event[LAST]), settings)
            while shown in results:
                yield Attempt(remedy=remedies[shown], result=results[shown])
                shown += 1


def _rewriting_remedies(failed: CellResult, kept: Remedy) -> Iterator[Remedy]:
    """Every rewrite of the lines that a failure names, after a change that is kept."""
    for line in _lines(failed)[:_LINES]:
        file = str(Path.cwd() / line.file)
        if owner_of(file) is not Owner.PROJECT:
            continue
        try:
            text = kept.texts.get(file) or text_of(Path(file))
        except (OSError, UnicodeDecodeError):  # generated code, or another encoding
            continue
        at_line = [each for each in failed.findings if line in each.lines]
        sizes = {number: size for each in at_line for number, size in each.details.get(WRITTEN_SIZES, {}).items()}
        for rewrite in rewrites(text, line.line, sizes, [each.remedy for each in at_line]):
            words = "; ".join(filter(None, (kept.words, f"{line} {rewrite.words}")))
            yield Remedy(words=words, texts={**kept.texts, file: rewrite.text}, corrects_model=rewrite.corrects_model)


def _lines(result: CellResult) -> list[SourceLine]:
    """The lines that errors name, the likeliest first."""
    errors = (each for each in result.findings if each.severity is Severity.ERROR)
    return list(dict.fromkeys(line for finding in errors for line in finding.lines))


def _shows_other_line(result: CellResult, failed: CellResult) -> bool:
    """Whether a changed cell still has a file, which is wrong because of another line."""
    errors = [each.rule for each in result.findings if each.severity is Severity.ERROR]
    has_file = not any(RULES[rule].leaves_no_file for rule in errors if rule in RULES)
    first, first_before = (next(iter(_lines(each)), None) for each in (result, failed))
    return has_file and first is not None and first_before is not None and first.line != first_before.line
