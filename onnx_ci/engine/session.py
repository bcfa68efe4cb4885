"""One run, whichever front-end starts it: planned cells in, events out, a report at the end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from onnx_ci.baseline.check import Baselines
from onnx_ci.cache.verdicts import CHECKED, VerdictCache
from onnx_ci.config.settings import Settings, check_writable
from onnx_ci.engine.events import CellFinished, CellJudged, Waiting
from onnx_ci.engine.recipes import Recipes
from onnx_ci.environment.git import revision_of
from onnx_ci.environment.packages import require_plugins
from onnx_ci.environment.versions import describe_bug, require_runtime, require_torch, versions
from onnx_ci.errors import ConfigurationError, UnwrittenError, describe_exception
from onnx_ci.matrix.plan import CellSpec, Matrix, cells_in_shard
from onnx_ci.matrix.shards import Durations, recorded_durations
from onnx_ci.processes.clock import CLOCK
from onnx_ci.processes.signals import endings_as_interrupts
from onnx_ci.results.files import write_json, write_text
from onnx_ci.results.journal import Journal
from onnx_ci.results.records import Cell, CellEvidence, CellResult, Exclusion, Problem, Status
from onnx_ci.results.rules import RULES, finding
from onnx_ci.results.run_report import RunReport
from onnx_ci.results.verdict import decide

if TYPE_CHECKING:
    from onnx_ci.engine.one_process import Engine
    from onnx_ci.engine.scheduler import IsolatedEngine
    from onnx_ci.pipeline.export.export import Artifact

_BASELINE_RULES = frozenset(rule.id for rule in RULES.values() if rule.phase == "baseline")


class Session(contextlib.AbstractContextManager["Session"]):
    """A run from its settings to its report; a context manager that writes the report even if the block raises.

    Args:
        recipes: the recipes of its cells, which are closed with it; ``None`` if each cell has its own.
        cache: the verdicts of earlier runs; ``None`` for none.
        workers: how many processes run cells of this run, each with its own session.
        is_reporting: whether this process writes the report and records baselines; a worker only judges cells.
        also_written: other files to write at the end, each with the function that makes its text from the report.

    Raises:
        OnnxCiError: a runtime is not installed, or a file cannot be written.

    Attributes:
        baselines: the baselines that results are compared with.
        recorded: what recording baselines changed, line by line, once the run is finished.
    """

    def __init__(
        self,
        settings: Settings,
        recipes: Recipes | None = None,
        *,
        cache: VerdictCache | None = None,
        workers: int = 1,
        is_reporting: bool = True,
        also_written: Mapping[Path, Callable[[RunReport], str]] = MappingProxyType({}),
    ) -> None:
        require_torch()
        require_runtime(settings.runtimes)
        self._of_runtimes = require_plugins(settings.exporters or (), settings.runtimes or ()) if is_reporting else {}
        if is_reporting:
            check_writable(settings, *also_written)
        self.settings = settings.with_absolute_files()
        self._shown = settings.shown()
        # At the beginning: by its end, the next commit may be checked out.
        self._revision = revision_of(settings.root) if is_reporting else None
        self.baselines = Baselines(settings)
        self.recorded: list[str] = []
        self._workers, self._is_reporting = workers, is_reporting
        self._also_written = also_written
        self._recipes, self._cache = recipes, cache
        self._started = CLOCK.perf_counter()
        self._engine: Engine | IsolatedEngine | None = None
        self._specs: dict[str, CellSpec] = {}
        self._is_planned = False
        self._expected: dict[str, None] = {}
        self._results: dict[str, CellResult] = {}
        self._ahead: dict[str, CellResult] = {}
        """The results of cells that were in the cache, or that ran ahead, and were not asked for yet."""
        self._whys: dict[str, str] = {}
        self._audits: list[CellSpec] = []
        """The cells that run only to check their kept verdicts. The others are believed if these are right."""
        self._journal: Journal | None = None
        self._entries: dict[Problem | Exclusion, None] = {}
        self._in_other_jobs: dict[str, None] = {}
        self._report: RunReport | None = None
        self._endings = contextlib.ExitStack()
        if is_reporting:
            self._endings.enter_context(endings_as_interrupts())

    def __exit__(self, *_: object) -> None:
        self.finish()

    # --- planning

    @functools.cached_property
    def durations(self) -> Durations:
        """How long cells took in an earlier run that the settings name; see :func:`recorded_durations`."""
        return recorded_durations(self.settings)

    def plan(self, recipes: Recipes) -> tuple[Matrix, Matrix]:
        """Plan every cell of the recipes, and expect those of the shard. Returns all cells, and those of the shard."""
        self._recipes = recipes
        whole = recipes.plan()
        cells = self.cells_of_shard(spec.cell for spec in whole.cells)
        matrix = dataclasses.replace(whole, cells=tuple(spec for spec in whole.cells if spec.cell in cells))
        self.add_entries((*recipes.problems, *matrix.exclusions))
        self.leave_to_other_jobs(spec.cell.id for spec in whole.cells if spec.cell not in cells)
        self.expect(matrix.cells)
        return whole, matrix

    def cells_of_shard(self, cells: Iterable[Cell]) -> frozenset[Cell]:
        """Those of ``cells``, which are all cells of the run, that belong to the settings' shard; all if they specify none."""
        shard = self.settings.shard
        return frozenset(cells) if shard is None else cells_in_shard(cells, shard, self.durations)

    def expect(self, specs: Iterable[CellSpec]) -> None:
        """Announce the cells that this process will judge, so that they can run ahead. Raises as :meth:`expect_ids`."""
        self._specs = {spec.cell.id: spec for spec in specs}
        self.expect_ids(spec.cell for spec in self._specs.values())
        if self._workers == 1:
            self._look_up(*self._specs.values())

    def _look_up(self, *specs: CellSpec) -> None:
        """Take over the verdicts on cells from the cache, or note why they run."""
        if self._cache is None:
            return
        kept = {}
        for spec in specs:
            answer = self._cache.verdict(spec.cell)
            if isinstance(answer, str):
                self._whys[spec.cell.id] = answer
            else:
                kept[spec.cell.id] = spec, answer
        for id in self._cache.due():
            if id in kept:
                self._audits.append(kept.pop(id)[0])
                self._whys[id] = CHECKED
        for spec, evidence in kept.values():
            self._add_ahead(self._decide(spec, evidence, is_given=False))

    def expect_ids(self, cells: Iterable[Cell]) -> None:
        """Announce the cells of the run, here or in a worker, and read their baselines, to raise errors in them early."""
        cells = tuple(cells)
        self._is_planned = True
        self._expected.update(dict.fromkeys(cell.id for cell in cells))
        if self._is_reporting:
            self.baselines.open(dict.fromkeys(cell.recipe for cell in cells))
        if self._is_reporting and self._journal is None and self.settings.report is not None:
            self._journal = Journal(
                self.settings.report, revision=self._revision, environment=self._environment, settings=self._shown
            )
            for entry in self._entries:
                self._journal.add(entry, self._seconds)
        if self._journal is not None:
            self._journal.expect([cell.id for cell in cells])

    def add_entries(self, entries: Iterable[Problem | Exclusion]) -> None:
        """Add problems that kept recipes from becoming cells, and exclusions of cells by recipes, each once."""
        for entry in entries:
            if entry not in self._entries:
                self._entries[entry] = None
                if self._journal is not None:
                    self._journal.add(entry, self._seconds)

    def leave_to_other_jobs(self, ids: Iterable[str]) -> None:
        """Note the cells of other shards, so that a merge of reports can tell whether all of them are there."""
        self._in_other_jobs.update(dict.fromkeys(sorted(ids)))

    @functools.cached_property
    def _environment(self) -> Mapping[str, str]:
        return {**versions(), **self._of_runtimes}

    @property
    def _seconds(self) -> float:
        return CLOCK.perf_counter() - self._started

    # --- running

    @property
    def engine(self) -> Engine | IsolatedEngine:
        """The engine, created when it is first used, because it imports torch."""
        if self._engine is None:
            from onnx_ci.engine.scheduler import open_engine

            self._engine = open_engine(self.settings, self._recipes, share=self._workers)
            if self._workers == 1:  # with several workers, it is not known in advance which cells run here
                self._engine.expect(spec for id, spec in self._specs.items() if id not in self._results)
        return self._engine

    def events(self) -> Iterator[Waiting | CellJudged]:
        """Run the expected cells. The results come in the order of the cells, each as soon as it is known."""
        for spec in self._specs.values():
            yield from self._events_of(spec)

    def judge(self, spec: CellSpec, artifact: Artifact | None = None) -> CellResult:
        """Run one cell, or judge an existing file, and decide its verdict. Errors in the cell are not raised."""
        *_, judged = (event for event in self._events_of(spec, artifact) if isinstance(event, CellJudged))
        return judged.result

    def _events_of(self, spec: CellSpec, artifact: Artifact | None = None) -> Iterator[Waiting | CellJudged]:
        """What happens until the verdict on a cell is known."""
        id = spec.cell.id
        if artifact is None and id not in self._ahead and id not in self._whys:
            self._look_up(spec)
        while self._audits and not self.settings.cache_audit:
            yield from self._run(self._audits.pop(), None)
        if id not in self._ahead:
            yield from self._run(spec, artifact)
        yield CellJudged(result=self._ahead.pop(id))

    def _run(self, spec: CellSpec, artifact: Artifact | None) -> Iterator[Waiting]:
        """Run a cell, and wait for its result."""
        complete = spec if self._recipes is None else self._recipes.completed(spec)
        engine = self.engine  # runs the expected cells ahead; this one may be another
        self._specs.setdefault(spec.cell.id, spec)
        for event in engine.events(complete, artifact):
            match event:
                case Waiting():
                    yield event
                case CellFinished():
                    self._keep(event, is_given=artifact is not None)

    def _keep(self, finished: CellFinished, *, is_given: bool) -> None:
        """Record a result as soon as it arrives, in any order: the run may be stopped before its turn."""
        evidence = finished.evidence
        if self._cache is not None and finished.read_set is not None:
            checked = self._cache.check(evidence)
            self._cache.keep(evidence, finished.read_set, _digest_of_model(evidence))
            if checked is not evidence:
                evidence = checked
                self._believe_no_kept_verdict()
        self._add_ahead(self._decide(self._specs[evidence.cell.id], evidence, is_given=is_given))

    def _believe_no_kept_verdict(self) -> None:
        """Let the cells run that were answered from the cache and not asked for yet."""
        for id in [id for id, result in self._ahead.items() if result.cached]:
            del self._ahead[id], self._results[id]
            self._whys[id] = "a kept verdict was wrong"

    def _add_ahead(self, result: CellResult) -> None:
        self._ahead[result.cell.id] = result
        self.add(result)

    def _decide(self, spec: CellSpec, evidence: CellEvidence, *, is_given: bool) -> CellResult:
        """The verdict on a cell, including the findings of its baseline."""
        evidence = dataclasses.replace(evidence, line=spec.line, why_run=self._whys.get(spec.cell.id, ""))
        expect = spec.expectations
        judge = functools.partial(
            decide, allow=spec.allow, expect=expect, strict=self.settings.strict, severities=spec.severities
        )
        so_far = judge(evidence).status
        if so_far in (Status.PASSED, Status.FAILED, Status.XPASSED):  # known failures are not compared with the baseline
            is_clean = so_far is Status.PASSED or (so_far is Status.XPASSED and {e.rule for e in expect} <= _BASELINE_RULES)
            has_other_weights = is_given and not spec.is_trained
            of_baseline = self.baselines.findings(evidence, is_clean=is_clean, ignores_weights=has_other_weights)
            evidence = dataclasses.replace(evidence, findings=(*evidence.findings, *of_baseline))
        unchecked = () if self.baselines.is_checking else _BASELINE_RULES
        return judge(evidence, unchecked=unchecked)

    def add(self, result: CellResult) -> None:
        """Add a result of this process or of a worker."""
        if self._results.get(result.cell.id) == result:  # pytest hands over what was judged here
            return
        self._results[result.cell.id] = result
        if self._journal is not None:
            self._journal.add(result, self._seconds)

    def add_failure(self, cell: Cell, rule: str, message: str) -> None:
        """Add a finding against a cell that failed before its result was handed over."""
        if cell.id not in self._results or cell.id in self._ahead:  # the latter ran ahead; its result was not handed over yet
            self._ahead.pop(cell.id, None)
            self.add(decide(CellEvidence(cell=cell, findings=(finding(rule, message),))))

    @property
    def results(self) -> tuple[CellResult, ...]:
        """The results so far, in the order of the expected cells; workers finish in any order."""
        places = {id: place for place, id in enumerate(self._expected)}
        return tuple(sorted(self._results.values(), key=lambda result: places.get(result.cell.id, len(places))))

    @property
    def notes_of_cache(self) -> list[str]:
        """What there is to tell about the cache."""
        return [] if self._cache is None else self._cache.notes

    # --- finishing

    @property
    def report(self) -> RunReport:
        """The report of the run; complete once it is finished."""
        if self._report is not None:
            return self._report
        return RunReport(
            revision=self._revision,
            environment=self._environment,
            settings=self._shown,
            cells=self.results,
            problems=tuple(each for each in self._entries if isinstance(each, Problem)),
            exclusions=tuple(each for each in self._entries if isinstance(each, Exclusion)),
            not_run=tuple(id for id in self._expected if id not in self._results),
            in_other_jobs=tuple(self._in_other_jobs),
            # Rounded here, not where it is written: a report that is read back is the one that was shown.
            seconds=round(self._seconds, 3),
        )

    def finish(self) -> RunReport:
        """End the run in any state, once: stop its processes, write the report, record baselines. Raises ``UnwrittenError``."""
        with self._endings:
            try:
                for part in (self._engine, self._recipes, self._cache):
                    if part is not None:
                        part.close()
            finally:  # a second Ctrl-C does not cost the report
                self._engine = None
                report = self._conclude()
        return report

    def _conclude(self) -> RunReport:
        if self._report is not None:
            return self._report
        report = self._report = self.report
        if self._is_reporting and self._is_planned:  # a mistake before that leaves an earlier report alone
            try:
                with contextlib.ExitStack() as last:  # each is written even if another one cannot be
                    if self.baselines.is_recording:
                        last.callback(self._record, report)
                    for path, render in self._also_written.items():
                        last.callback(_write_rendering, report, path, render)
                    if self._journal is not None:  # it stays where the report cannot be written
                        last.callback(self._journal.close)
                    if self.settings.report is not None:
                        write_json(report, self.settings.report)
            except ConfigurationError as error:
                raise UnwrittenError(str(error)) from error
        return report

    def _record(self, report: RunReport) -> None:
        why_not = ["nothing is recorded because the run was interrupted"]
        self.recorded = why_not if report.not_run else self.baselines.record(report.cells)


def _digest_of_model(evidence: CellEvidence) -> str:
    """A digest of the weights and the arguments of the model that a cell was run with; empty if they are not known.

    It has fewer digits than the numbers, whose last ones depend on how many threads add them up.
    """
    if evidence.facts is None:
        return ""
    sketches = (evidence.facts.weights, evidence.facts.arguments)
    numbers = [(each.tensors, each.layout, *(f"{value:.4g}" for value in (each.norm, *each.projections))) for each in sketches]
    return hashlib.sha256(repr(numbers).encode()).hexdigest()


def _write_rendering(report: RunReport, path: Path, render: Callable[[RunReport], str]) -> None:
    try:
        text = render(report)
    except Exception as error:  # a bug in one rendering costs no other file, and not the verdict
        raise ConfigurationError(f"{path} cannot be written: {describe_exception(error)}; {describe_bug()}") from error
    write_text(text, path)
