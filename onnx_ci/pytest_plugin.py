"""The pytest plugin: a thin front-end over the engine. Without ``--onnx-export`` it adds its options and nothing else.

pytest loads every installed plugin on every run, so this module imports nothing heavy; the engine, and torch with it,
is imported when the first cell runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from onnx_ci.baseline.check import Baselines
from onnx_ci.config import OFF, OPTIONS, Settings, check_writable, load_settings
from onnx_ci.discovery import Catalogue, is_recipe_file, package_folders
from onnx_ci.environment import leave_cuda_to_forks, require_runtime, versions
from onnx_ci.errors import ExitCode, OnnxCiError
from onnx_ci.matrix import PlannedCell, in_shard, plan, seconds_for_shard, why_empty
from onnx_ci.recipe import Recipe
from onnx_ci.records import Cell, CellResult, Exclusion, Problem, RunReport, Status, from_json, to_json
from onnx_ci.report.json_file import write_json
from onnx_ci.report.repeat import repeat_with_pytest
from onnx_ci.report.text import COLOURS, explain, lacks_line, outcome, summary_lines
from onnx_ci.rules import finding

if TYPE_CHECKING:
    from onnx_ci.engine import Engine
    from onnx_ci.isolation import IsolatedEngine

MARKER = "onnx_export"
_PLUGIN = "onnx-ci-run"
_PREFIX = "onnx-"
# What travels from a worker to the process that reports, as attributes of pytest's own report: plain JSON data.
_RESULT, _PROBLEM = "onnx_ci_result", "onnx_ci_problem"
_NO_CELL, _LEFT_OUT = "onnx_ci_no_cell", "onnx_ci_left_out"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--onnx-export`` and one flag for every setting."""
    group = parser.getgroup("onnx-ci", "ONNX export (onnx-ci)")
    group.addoption(
        "--onnx-export", action="store_true", help="Collect recipes and prove that each exports to ONNX and computes the same."
    )
    for option in OPTIONS:
        text = option.help.replace("%", "%%")
        value = {"action": "store_const", "const": "true"} if option.is_switch else {"metavar": option.metavar}
        group.addoption(f"--{_PREFIX}{option.name}", dest=f"onnx_{option.field}", help=text, **value)

    group.addoption(
        "--no-onnx-cache", dest="onnx_cache", action="store_const", const=OFF, help="Run every cell; --onnx-cache=off."
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; with ``--onnx-export``, settle the settings and start the run."""
    arguments = "recipe, opset, device, exporter"
    config.addinivalue_line("markers", f"{MARKER}({arguments}): a cell of the ONNX export matrix, added by onnx-ci.")
    if not config.getoption("onnx_export") or config.getoption("help"):
        return
    flags = {option.field: config.getoption(f"onnx_{option.field}") for option in OPTIONS}
    try:
        settings = load_settings(config.rootpath, flags=flags, flag_prefix=_PREFIX)
        seconds = seconds_for_shard(settings)
        require_runtime(settings.runtimes)
        leave_cuda_to_forks()
        if not _is_worker(config) and not config.getoption("collectonly"):
            check_writable(settings)
        _add_packages(config, settings)
    except OnnxCiError as error:
        raise pytest.UsageError(f"onnx-ci: {error}") from None
    config.pluginmanager.register(Run(config, settings, seconds), _PLUGIN)


@contextlib.contextmanager
def _told_as_usage() -> Iterator[None]:
    """Hand on what a user can mend in pytest's own way."""
    try:
        yield
    except OnnxCiError as error:
        raise pytest.UsageError(f"onnx-ci: {error}") from None


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _add_packages(config: pytest.Config, settings: Settings) -> None:
    """Collect the settings' packages, too, where the user named no path."""
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args.extend(str(folder) for folder in package_folders(settings))


class Run:
    """One run with ``--onnx-export``: hooks and what they gather."""

    def __init__(self, config: pytest.Config, settings: Settings, seconds: Mapping[str, float]) -> None:
        self.config = config
        self.settings = settings
        self._seconds = seconds
        self._no_cell = ""
        """Why the shard has none of the cells that were collected."""
        self.catalogue = Catalogue(config.rootpath)
        self.exclusions: list[Exclusion] = []
        self._engine: Engine | IsolatedEngine | None = None
        self._cells: list[PlannedCell] = []
        self._started = time.perf_counter()
        self._expected: dict[str, None] = {}
        self._results: dict[str, CellResult] = {}
        self._problems: dict[Problem, None] = {}
        self.baselines = Baselines(settings)
        self._recorded: list[str] = []
        self._report: RunReport | None = None

    @property
    def engine(self) -> Engine | IsolatedEngine:
        """The engine, made when the first cell runs."""
        if self._engine is None:
            from onnx_ci.isolation import open_engine

            workers: int = getattr(self.config, "workerinput", {"workercount": 1})["workercount"]
            self._engine = open_engine(self.settings, share=workers)
            if workers == 1:  # beside other workers nobody knows which cells come here
                self._engine.expect(self._cells)
        return self._engine

    # --- collection

    def pytest_report_header(self) -> str:
        """Say that the plugin is on, and with what."""
        found = versions()
        names = [
            f"{name} {found[name]}" for name in ("onnx-ci", "torch", "onnx", "onnxruntime", "onnxruntime-gpu") if name in found
        ]
        shard = f"; shard {self.settings.shard}" if self.settings.shard else ""
        return (
            f"onnx export: {', '.join(names)}; devices {', '.join(self.settings.devices)}; "
            f"drift limit {self.settings.drift:g}{shard}"
        )

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> RecipeFile | None:
        """Collect recipe files: those that the settings name, and Python files that the user names."""
        named = parent.session.isinitpath(file_path) and file_path.suffix == ".py" and not _is_test_file(file_path, self.config)
        if named or is_recipe_file(file_path, self.settings):
            node: RecipeFile = RecipeFile.from_parent(parent, path=file_path, run=self)
            return node
        return None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the cells of the shard, if the settings name one.

        The parts are of all cells of the files that were collected, whatever ``-k`` or a node id narrows them to, so that
        a cell is in the same shard each time.
        """
        cells = [item for item in items if isinstance(item, CellItem)]
        if self.settings.shard is None or not cells:
            return
        whole = plan(self.catalogue.recipes.values(), self.settings)
        shard = in_shard(whole, self.settings.shard, self._seconds)
        chosen = {planned.cell for planned in shard.cells}
        outside = [item for item in cells if item.planned.cell not in chosen]
        if not outside:
            return
        if len(outside) == len(cells):
            elsewhere = f"the cells that were asked for are in other shards than {self.settings.shard}"
            self._no_cell = elsewhere if chosen else why_empty(whole, self.settings.shard)
            if _is_worker(config):
                config.workeroutput[_NO_CELL] = self._no_cell  # type: ignore[attr-defined]
        gone = set(outside)
        items[:] = [item for item in items if item not in gone]
        config.hook.pytest_deselected(items=outside)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Hear from a worker what is left out, and why the shard has no cell; under xdist nobody else knows."""
        told = getattr(node, "workeroutput", {})
        self._no_cell = told.get(_NO_CELL, self._no_cell)
        self.exclusions += (from_json(Exclusion, each) for each in told.get(_LEFT_OUT, ()))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note which cells are to run, after every selection."""
        items = [item for item in session.items if isinstance(item, CellItem)]
        self._expect(item.nodeid for item in items)
        self._cells = [item.planned for item in items]
        if _is_worker(self.config):
            self.config.workeroutput[_LEFT_OUT] = to_json(self.exclusions)  # type: ignore[attr-defined]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Iterable[str]) -> None:
        """Under xdist only the workers collect; they tell the ids."""
        self._expect(id for id in ids if Cell.from_id(id) is not None)

    def _expect(self, ids: Iterable[str]) -> None:
        """Note the cells that will run, and what is recorded of them; what is wrong with that is told before the work."""
        cells = {id: cell for id in ids if (cell := Cell.from_id(id)) is not None}
        self._expected.update(dict.fromkeys(cells))
        if _is_worker(self.config) or self.config.getoption("collectonly"):
            return
        with _told_as_usage():
            self.baselines.open(dict.fromkeys(cell.recipe for cell in cells.values()))

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Unless the user chose how tests are handed out, workers get whole recipes.

        Not without processes: a cell may take its worker along then, and xdist gives up the rest of what it held together.
        """
        if config.getoption("dist") != "load" or self.settings.isolation == "none":
            return None
        from onnx_ci.scheduling import ByRecipe

        return ByRecipe(config, log)

    # --- results

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put the cell's result into pytest's report, which travels from workers to the process that reports."""
        report = yield
        if isinstance(item, CellItem) and item.result is not None and call.when == "call":
            setattr(report, _RESULT, item.result.as_json())
            if item.result.status is Status.XFAILED:
                report.outcome = "skipped"
                report.wasxfail = item.result.reason
        elif isinstance(item, ProblemItem) and call.when == "call":
            setattr(report, _PROBLEM, {"source": item.problem.source, "message": item.problem.message})
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather results; a cell that fails without one lost its process."""
        if data := getattr(report, _RESULT, None):
            self._results[report.nodeid] = CellResult.from_json(data)
        elif data := getattr(report, _PROBLEM, None):
            self._problems[from_json(Problem, data)] = None
        elif report.failed and report.nodeid not in self._results and (cell := Cell.from_id(report.nodeid)):
            died = report.when not in ("setup", "call", "teardown")  # the words of pytest-xdist for a worker that is gone
            said = "the process died before the cell was judged" if died else "the cell ended without a result"
            broken = finding("crash" if died else "internal-error", f"{said}: {report.longreprtext.strip()}")
            self._results[report.nodeid] = CellResult(cell=cell, status=Status.ERROR, findings=(broken,))

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """With ``-v``, show the drift of a passed cell."""
        data = getattr(report, _RESULT, None)
        if data and data["status"] == Status.PASSED and data["outputs"]:
            return "passed", ".", outcome(CellResult.from_json(data)).replace("passed", "PASSED")
        return None

    # --- the end

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Free the engine, write the report, and never let a run without a judged cell be a success."""
        if self._engine is not None:
            self._engine.close()
        if _is_worker(self.config) or self.config.getoption("collectonly"):
            return
        places = {id: place for place, id in enumerate(self._expected)}

        def order(id: str) -> int:  # workers end in any order
            return places.get(id, len(places))

        self._report = RunReport(
            environment=versions(),
            settings=self.settings.as_json(),
            cells=tuple(self._results[id] for id in sorted(self._results, key=order)),
            problems=tuple(self._problems),
            exclusions=tuple(dict.fromkeys(self.exclusions)),
            not_run=tuple(id for id in self._expected if id not in self._results),
            seconds=time.perf_counter() - self._started,
        )
        if self.settings.report is not None:
            with _told_as_usage():
                write_json(self._report, self.settings.report)
        if self.baselines.is_recording:
            if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
                with _told_as_usage():
                    self._recorded = self.baselines.record(self._report.cells)
            else:
                self._recorded = ["nothing is recorded of a run that was interrupted"]
        if (
            self._report.lacks
            and session.exitstatus == pytest.ExitCode.TESTS_FAILED
            and session.testsfailed == len([result for result in self._report.cells if result.status.is_bad])
        ):
            session.exitstatus = int(ExitCode.ENVIRONMENT)
        if self._report.verdict == "nothing-ran" and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The grid, the counts, and why nothing ran if nothing did."""
        if self._report is None:
            return
        terminalreporter.section("ONNX export")

        def style(text: str, status: Status | None) -> str:
            if status is None:
                return terminalreporter._tw.markup(text, bold=True)
            return terminalreporter._tw.markup(text, **{COLOURS.get(status, "red"): True})

        for line in [*summary_lines(self._report, style), *(f"baseline: {each}" for each in self._recorded)]:
            terminalreporter.write_line(line)
        if self._report.verdict == "nothing-ran":
            terminalreporter.write_line(f"onnx-ci: nothing was proved: {self._why_nothing()}", red=True)
        if self._report.lacks:
            terminalreporter.write_line(f"onnx-ci: {lacks_line(self._report)}", red=True)

    def _why_nothing(self) -> str:
        if self._results:
            return "every cell was skipped"
        if self._no_cell:
            return self._no_cell
        if self.exclusions:
            return "the recipes rule out what was asked for"
        if self.catalogue.recipes:
            return "every cell was deselected"
        patterns = ", ".join(self.settings.recipe_files)
        return f"no recipe was found; recipe files are {patterns} (see recipe-files), or .py files given as arguments"


def _is_test_file(path: Path, config: pytest.Config) -> bool:
    return any(path.match(pattern) for pattern in (*config.getini("python_files"), "conftest.py"))


class RecipeFile(pytest.File):
    """A file with recipes."""

    def __init__(self, *, run: Run, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run = run

    def collect(self) -> Iterator[RecipeNode | ProblemItem]:
        """Its recipes; what keeps the file from being used becomes an item that fails, so that other files still run."""
        found, problems = self.run.catalogue.add_file(self.path, is_named=self.session.isinitpath(self.path))
        for count, problem in enumerate(problems, start=1):
            yield ProblemItem.from_parent(self, name="recipes" if count == 1 else f"recipes-{count}", problem=problem)
        for each in found:
            matrix = plan([each], self.run.settings)
            self.run.exclusions += matrix.exclusions
            yield RecipeNode.from_parent(self, name=each.recipe.name, recipe=each.recipe, cells=matrix.cells)


class RecipeNode(pytest.Collector):
    """A recipe and its cells."""

    def __init__(self, *, recipe: Recipe, cells: tuple[PlannedCell, ...], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.recipe = recipe
        self.cells = cells
        self.extra_keyword_matches.update(recipe.tags)

    def collect(self) -> Iterator[CellItem]:
        """The recipe's cells, in order."""
        for planned in self.cells:
            yield CellItem.from_parent(self, name=planned.cell.label, planned=planned)


class CellFailedError(Exception):
    """A cell failed; its result says how."""


class CellItem(pytest.Item):
    """One cell: runs it through the engine and shows what it found."""

    def __init__(self, *, planned: PlannedCell, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.planned = planned
        self.result: CellResult | None = None
        cell = planned.cell
        self.add_marker(
            pytest.mark.onnx_export(recipe=cell.recipe, opset=cell.opset, device=cell.device, exporter=cell.exporter)
        )

    @property
    def run(self) -> Run:
        """The run that the item belongs to."""
        return cast("Run", self.config.pluginmanager.get_plugin(_PLUGIN))

    def runtest(self) -> None:
        """Run the cell."""
        self.result = self.run.baselines.judge(self.run.engine.run_cell(self.planned), self.planned.recipe.allow)
        if self.result.log:
            self.add_report_section("call", "exporter", self.result.log)
        if self.result.status is Status.SKIPPED:
            pytest.skip(self.result.reason)
        if self.result.status.is_bad or self.result.status is Status.XFAILED:
            raise CellFailedError

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The findings, with numbers, remedies and the command that repeats the cell; no traceback of ours."""
        if isinstance(excinfo.value, CellFailedError) and self.result is not None:
            return explain(self.result, repeat_with_pytest(self.planned.cell, self.run.settings))
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The recipe's own place, for reports that link to it."""
        recipe = self.planned.recipe
        return self.path, recipe.line - 1, f"{recipe.name}::{self.name}"


class ProblemItem(pytest.Item):
    """A file that holds recipes which cannot be used: fails with the reason."""

    def __init__(self, *, problem: Problem, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.problem = problem
        self.add_marker(MARKER)

    def runtest(self) -> None:
        """Fail."""
        raise CellFailedError

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The reason."""
        return f"{self.problem.source}: {self.problem.message}"

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The file."""
        return self.path, None, self.problem.source
