"""The pytest plugin: a thin front-end over the engine. Without ``--onnx-export`` it only adds its options.

pytest loads every installed plugin on every run, so this module imports nothing heavy. torch is imported when the first cell
runs.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from onnx_ci.cache.verdicts import VerdictCache
from onnx_ci.collection.discovery import is_recipe_file, package_folders, recipe_files
from onnx_ci.config.options import FLAGS, Group, joined
from onnx_ci.config.reproduce import command_about, repeat_with_pytest
from onnx_ci.config.settings import Settings, find_root, has_settings, load_settings
from onnx_ci.config.values import OFF
from onnx_ci.engine.events import CellJudged, CellsCollected, Event, ProblemMet, event_of, message_of
from onnx_ci.engine.recipes import Recipes
from onnx_ci.engine.session import Session
from onnx_ci.environment.this_process import patches_of_coverage, set_torch_variables
from onnx_ci.environment.versions import versions
from onnx_ci.errors import ConfigurationError, OnnxCiError, UnwrittenError
from onnx_ci.matrix.plan import CellSpec
from onnx_ci.matrix.scope import RecipeScope
from onnx_ci.processes.signals import end_with_parent
from onnx_ci.pytest_plugin.output import discard_buffer, outlast_output
from onnx_ci.report.causes import shared_failures
from onnx_ci.report.nothing_ran import why_nothing_ran
from onnx_ci.report.text import (
    COLOURS,
    describe_first_cause,
    describe_missing_device,
    describe_outcome,
    describe_result,
    summary_lines,
)
from onnx_ci.report.written import written_files
from onnx_ci.results.records import Cell, CellResult, Problem, SettingSource, Status
from onnx_ci.results.run_report import RunReport
from onnx_ci.results.verdict import RunVerdict
from onnx_ci.text import count, one_line, without_commands

MARKER = "onnx_export"
_PLUGIN = "onnx-ci-run"
_PREFIX = "onnx-"
_EVENT = "onnx_ci_event"
"""Where an event is that pytest-xdist sends to the controller: an attribute of pytest's own report, or a key of what a worker
says at its end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--onnx-export`` and one flag for each setting, in groups as in the help of ``onnx-ci run``."""
    general = parser.getgroup("onnx-ci", "ONNX export (onnx-ci)")
    text = "Collect recipes, and verify that each exports to ONNX and computes the same."
    general.addoption("--onnx-export", action="store_true", help=text)
    general.addoption("--onnx-runtime", metavar="NAME", help="Test only a runtime, such as that of a plug-in, on small files.")
    groups = {
        group: parser.getgroup(f"onnx-ci-{group.name.lower()}", f"ONNX export (onnx-ci): {group.value.lower()}")
        for group in Group
    }
    for option in FLAGS:
        text = option.help.replace("%", "%%")
        value = {"action": "store_const", "const": "true"} if option.is_switch else {"metavar": option.metavar}
        value |= {"action": "append"} if option.is_list else {}
        groups[option.group].addoption(f"--{_PREFIX}{option.name}", dest=f"onnx_{option.field}", help=text, **value)
    groups[Group.MACHINE].addoption(
        "--no-onnx-cache", dest="onnx_cache", action="store_const", const=OFF, help="Run every cell; same as --onnx-cache=off."
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; with ``--onnx-export``, load the settings and start the run."""
    arguments = "recipe, opset, device, exporter, graph_pass"
    config.addinivalue_line("markers", f"{MARKER}({arguments}): a cell of the ONNX export matrix, added by onnx-ci.")
    if config.getoption("onnx_runtime"):
        config.args[:] = [str(Path(__file__).parents[1] / "tools/engines/conformance.py")]
    if not config.getoption("onnx_export") or config.getoption("help"):
        return
    flags = {option.field: config.getoption(f"onnx_{option.field}") for option in FLAGS}
    flags |= {option.field: joined(flags[option.field] or ()) for option in FLAGS if option.is_list}
    with _errors_as_usage():
        settings = load_settings(config.rootpath, flags=flags, given_by=SettingSource.PYTEST)
        root = find_root(config.invocation_params.dir)
        if root != settings.root and has_settings(root) and not has_settings(settings.root):
            raise ConfigurationError(f"pytest's rootdir is {settings.root}, but settings are in {root}; add --rootdir={root}")
        set_torch_variables()
        extra_files = _add_recipe_files(config, settings)
        workers: int = getattr(config, "workerinput", {"workercount": 1})["workercount"]
        if _is_worker(config):
            end_with_parent(signal.SIGTERM)  # otherwise, it finishes its test after the controller was killed
        is_reporting = not _is_worker(config) and not config.getoption("collectonly")
        files = written_files(settings) if is_reporting else {}
        cache = VerdictCache.open(settings)
        recipes = Recipes(settings, cache=cache)
        session = Session(settings, recipes, cache=cache, workers=workers, is_reporting=is_reporting, also_written=files)
        if settings.shard is not None:
            _ = session.durations  # read now: pytest would report an error during collection as its own

    def finish() -> None:
        session.finish()

    config.add_cleanup(finish)  # pytest does not end a session if a plugin has failed at its start
    config.pluginmanager.register(Run(config, settings, session, recipes, extra_files), _PLUGIN)


@contextlib.contextmanager
def _errors_as_usage() -> Iterator[None]:
    """Turn errors that the user can fix into usage errors of pytest."""
    try:
        yield
    except OnnxCiError as error:
        raise pytest.UsageError(f"onnx-ci: {error}") from None


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _add_recipe_files(config: pytest.Config, settings: Settings) -> frozenset[Path]:
    """If the command line names no paths, also collect the settings' packages, and recipe files outside of ``testpaths``.

    Returns the recipe files that are collected only because of this.
    """
    extra_files: frozenset[Path] = frozenset()
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        test_paths = [Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args]
        files = recipe_files(settings.root, settings)
        extra_files = frozenset(file for file in files if not any(file.is_relative_to(path) for path in test_paths))
        config.args.extend(map(str, sorted(extra_files)))
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args.extend(str(folder) for folder in package_folders(settings))
    return extra_files


class Run:
    """The hooks of one run with ``--onnx-export``. They pass the tests to the session and show its results."""

    def __init__(
        self, config: pytest.Config, settings: Settings, session: Session, recipes: Recipes, extra_files: frozenset[Path]
    ) -> None:
        self.config = config
        self.settings = settings
        self.session = session
        self.recipes = recipes
        self.extra_files = extra_files
        self._recipe_files: dict[Path, bool] = {}
        """The recipe files below what is collected, and whether the command line names each."""
        self._collected: set[Path] = set()
        """Those whose recipes are known."""
        self._other_files: set[Path] = set()
        """The files there that other plugins collect."""
        self._specs: dict[str, CellSpec] = {}
        """The cells of the collected recipe files, by id."""
        self._measured_patches: set[str] | None = None
        """What coverage.py patches; ``None`` if it does not measure this process."""
        self._unwritten = ""
        """Which file of the run cannot be written, and why; empty if all can."""
        self._why_no_cell = ""
        """Why no cell is left to run; empty if there is one."""
        self._hidden = 0
        """How many cells fail although pytest counts no failure."""
        self._report: RunReport | None = None
        self._output_errors: list[OSError] = []

    def pytest_sessionstart(self) -> None:
        """Go on with the run, and write its files, if pytest's output cannot be written."""
        if self.config.pluginmanager.has_plugin("terminalreporter"):
            self._output_errors = outlast_output(self.config.get_terminal_writer())

    # --- collection

    def pytest_collection(self) -> None:
        """Say which recipe files will probably be collected, so that their processes start now."""
        for place in self._places():
            with contextlib.suppress(OSError):  # pytest says what is wrong with the argument
                self.recipes.processes.announce(recipe_files(place, self.settings) if place.exists() else ())

    def _places(self) -> list[Path]:
        """The files and folders that pytest collects, as it names them: it does not follow links."""
        arguments = (argument.partition("::")[0] for argument in self.config.args)
        return [Path(os.path.abspath(self.config.invocation_params.dir / each)) for each in arguments]  # noqa: PTH100

    def collect(self, path: Path, *, is_named: bool) -> tuple[list[tuple[RecipeScope, list[CellSpec]]], list[Problem]]:
        """The recipes of a file with their cells, and the problems with the file."""
        scopes, problems = self.recipes.add([path], named=[path] if is_named else [])
        self._collected.add(path)
        matrix = self.recipes.plan(scope.name for scope in scopes)
        self.session.add_entries(matrix.exclusions)
        self._specs |= {spec.cell.id: spec for spec in matrix.cells}
        return [(scope, [spec for spec in matrix.cells if spec.cell.recipe == scope.name]) for scope in scopes], problems

    def judge(self, cell: Cell) -> CellResult:
        """The result of a cell."""
        return self.session.judge(self._specs[cell.id])

    def pytest_report_header(self) -> str:
        """Show the versions and settings of the run."""
        installed = versions()
        packages = ("onnx-ci", "torch", "onnx", "onnxruntime", "onnxruntime-gpu")
        names = [f"{name} {installed[name]}" for name in packages if name in installed]
        shard = f"; shard {self.settings.shard}" if self.settings.shard else ""
        return (
            f"onnx export: {', '.join(names)}; devices {', '.join(self.settings.devices)}; "
            f"max drift {self.settings.max_drift:g}{shard}"
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        """Collect recipe files: those of the settings, and Python files that the command line names.

        A file that is collected only because of the settings is not searched for tests.
        """
        collectors = yield
        if collectors:
            self._other_files.add(file_path)
        is_test = any(file_path.match(pattern) for pattern in (*self.config.getini("python_files"), "conftest.py"))
        is_named = self.is_named(file_path, parent) and file_path.suffix == ".py" and not is_test
        if not is_named and not is_recipe_file(file_path, self.settings):
            return collectors
        self._recipe_files[file_path] = is_named
        node: RecipeFile = RecipeFile.from_parent(parent, path=file_path, run=self)
        return [node] if file_path in self.extra_files else [node, *collectors]

    def is_named(self, path: Path, node: pytest.Collector) -> bool:
        """Whether the command line names a file."""
        return node.session.isinitpath(path) and path not in self.extra_files

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Add a test that fails for each path, pattern, glob and tag that names nothing, and keep only the cells of the shard.

        Shards divide all cells of the collected files, whatever ``-k`` and node ids select. So a cell is always in the same
        shard. The report names the selected cells of other shards.
        """
        if not any(isinstance(item, CellItem) for item in items):
            return
        for number, problem in enumerate(self._unused(), start=1):
            items.append(ProblemItem.from_parent(session, name=f"selection-{number}", problem=problem))
        if self.settings.shard is None:
            return
        shard = self.session.cells_of_shard(spec.cell for spec in self._specs.values())
        deselected = [item for item in items if isinstance(item, CellItem) and item.cell not in shard]
        self.session.leave_to_other_jobs(item.cell.id for item in deselected)
        if deselected:
            items[:] = [item for item in items if not isinstance(item, CellItem) or item.cell in shard]
            config.hook.pytest_deselected(items=deselected)

    def _unused(self) -> list[Problem]:
        """What was asked for and is not there."""
        if self.config.getoption("lf", default=False):  # it does not collect files that passed
            rest = [path for path in self._recipe_files if path not in self._collected]
            self.recipes.add(rest, named=[path for path in rest if self._recipe_files[path]])
        if self.config.args_source is pytest.Config.ArgsSource.ARGS:
            paths = [place for place in self._places() if place.is_dir()]
            return self.recipes.unused(paths, is_whole=False, others=self._other_files)
        is_whole = self.config.invocation_params.dir == self.settings.root
        ignored = {*recipe_files(self.settings.root, self.settings)} - self._recipe_files.keys() if is_whole else ()
        return self.recipes.unused((), is_whole=is_whole, others=ignored)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Receive from a worker what is left out, and why no cell is left to run: with pytest-xdist, only workers collect."""
        if (message := getattr(node, "workeroutput", {}).get(_EVENT)) is None:
            return
        match event_of(message):
            case CellsCollected() as collected:
                self._why_no_cell = collected.why_no_cell
                self.session.add_entries(collected.exclusions)
                self.session.leave_to_other_jobs(collected.in_other_jobs)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record which cells will run, once everything is selected. Errors in baselines are reported before any cell runs."""
        items = [item for item in session.items if isinstance(item, CellItem)]
        self._measured_patches = patches_of_coverage()  # asked now: at the end of a run with --cov, nothing is measured
        with _errors_as_usage():
            if self.config.getoption("collectonly"):
                return
            self.session.expect(self._specs[item.cell.id] for item in items)
            if not items:
                is_planned = bool(self.session.cells_of_shard(spec.cell for spec in self.recipes.plan().cells))
                scopes = tuple(self.recipes.scopes.values())
                paths = self.config.args if self.config.args_source is pytest.Config.ArgsSource.ARGS else ()
                self._why_no_cell = why_nothing_ran(scopes, self.settings, paths, is_planned=is_planned, is_deselected=True)
        if _is_worker(self.config):
            report = self.session.report
            collected = CellsCollected(
                why_no_cell=self._why_no_cell, exclusions=report.exclusions, in_other_jobs=report.in_other_jobs
            )
            self.config.workeroutput[_EVENT] = message_of(collected)  # type: ignore[attr-defined]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Iterable[str]) -> None:
        """Record the ids of the cells: with pytest-xdist, only workers collect."""
        with _errors_as_usage():
            self.session.expect_ids(cell for id in ids if (cell := Cell.from_id(id)) is not None)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Schedule whole recipes, unless the user chose how tests are distributed.

        Without isolation, a cell may crash its worker, and pytest-xdist would drop the rest of the recipe with it.
        """
        if config.getoption("dist") != "load" or self.settings.isolation == "none":
            return None
        from onnx_ci.pytest_plugin.scheduling import ByRecipe

        return ByRecipe(config, log)

    # --- results

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the cell's result to pytest's report, which pytest-xdist sends from workers to the controller."""
        report = yield
        if isinstance(item, CellItem) and item.result is not None and call.when == "call":
            setattr(report, _EVENT, message_of(CellJudged(result=item.result)))
            if item.result.status is Status.XFAILED:
                report.outcome = "skipped"
                report.wasxfail = item.result.reason
        elif isinstance(item, ProblemItem) and call.when == "call":
            setattr(report, _EVENT, message_of(ProblemMet(problem=item.problem)))
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the results. A cell that fails without a result died with its process.

        pytest keeps every report. This removes the results of cells that do not fail, after all other plugins have read them.
        """
        match _event_of(report):
            case CellJudged() as judged:
                self.session.add(judged.result)
                if not report.failed:
                    delattr(report, _EVENT)
            case ProblemMet() as met:
                self.session.add_entries([met.problem])
            case None if report.failed and (cell := Cell.from_id(report.nodeid)):
                died = report.when not in ("setup", "call", "teardown")  # how pytest-xdist reports a worker that died
                message = "the process died before the cell was judged" if died else "the cell ended without a result"
                self.session.add_failure(
                    cell, "crash" if died else "internal-error", f"{message}: {report.longreprtext.strip()}"
                )

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """With ``-v``, show the drift of a passed cell."""
        match _event_of(report):
            case CellJudged(result=result) if result.status is Status.PASSED and result.outputs:
                return "passed", ".", describe_outcome(result).replace("passed", "PASSED")
        return None

    # --- the end

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """End the processes of recipe files before pytest-cov combines what they have measured."""
        result = yield
        if self._measured_patches is not None:
            self.recipes.close()
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """Finish the run. One without a judged cell, or whose output is incomplete, never succeeds."""
        self._finish(session)
        result = yield
        if self._output_errors:
            try:
                sys.stderr.write(f"onnx-ci: the output is incomplete: {self._output_errors[0].strerror}\n")
            except OSError:
                discard_buffer(sys.stderr)
            session.exitstatus = session.exitstatus or pytest.ExitCode.INTERNAL_ERROR
        return result

    def _finish(self, session: pytest.Session) -> None:
        try:
            report = self.session.finish()
        except UnwrittenError as error:  # the results are complete
            self._unwritten = str(error)
            report = self.session.report
        is_whole = not _is_worker(self.config) and not self.config.getoption("collectonly")
        if is_whole:
            self._report = report
            if self.config.get_verbosity() <= 0:
                self._explain_causes_once(report)
        session.exitstatus = self._exit_status(session, report if is_whole else None)

    def _exit_status(self, session: pytest.Session, report: RunReport | None) -> int:
        """Pytest's own exit status, or that of the run, if there is a report, where pytest's says that nothing is wrong."""
        failures = len([result for result in report.cells if result.status.is_bad]) if report is not None else 0
        if session.exitstatus == pytest.ExitCode.TESTS_FAILED and report is not None and report.missing_device:
            return int(report.exit_code) if session.testsfailed == failures else session.exitstatus
        if session.exitstatus != pytest.ExitCode.OK:
            return session.exitstatus
        if self._unwritten:
            return pytest.ExitCode.USAGE_ERROR
        if report is not None and report.verdict is RunVerdict.FAILED:  # a cell failed, or did not run
            self._hidden = failures
            return pytest.ExitCode.TESTS_FAILED
        nothing_ran = report is not None and report.verdict is RunVerdict.NOTHING_RAN
        # With the flag in addopts, a run of other tests alone need not have cells.
        is_part = self.config.args_source is pytest.Config.ArgsSource.ARGS or self.config.option.keyword
        is_by_the_way = is_part and session.testscollected and "--onnx-export" not in self.config.invocation_params.args
        return pytest.ExitCode.NO_TESTS_COLLECTED if nothing_ran and not is_by_the_way else pytest.ExitCode.OK

    def _explain_causes_once(self, report: RunReport) -> None:
        """Let the terminal show each cause of failures once. All other plugins have read the reports already."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        reports = reporter.stats.get("failed", ()) if reporter is not None else ()
        events = ((each, _event_of(each)) for each in reports)
        failed = {event.result.cell.id: each for each, event in events if isinstance(event, CellJudged)}
        for failure in shared_failures(result for result in report.cells if result.cell.id in failed):
            first, *repetitions = (failed[result.cell.id] for result in failure.results)
            if repetitions:
                first.longrepr = f"{first.longrepr}\n(the same cause {failure.cells})"
            for repetition in repetitions:
                repetition.longrepr = f"{describe_first_cause(failure.first)}: same cause as {first.nodeid}"
                repetition.sections = []

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the grid, the counts and, if nothing ran, why."""
        if self._report is None:
            return
        terminalreporter.section("ONNX export")

        def style(text: str, status: Status | None) -> str:
            if status is None:
                return terminalreporter._tw.markup(text, bold=True)
            return terminalreporter._tw.markup(text, **{COLOURS.get(status, "red"): True})

        for line in [*summary_lines(self._report, style), *(f"baseline: {each}" for each in self.session.recorded)]:
            terminalreporter.write_line(without_commands(line))
        if self._unwritten:
            terminalreporter.write_line(without_commands(f"onnx-ci: {one_line(self._unwritten)}"), red=True)
        if self._hidden:
            hidden = f"{count(self._hidden, 'cell')} failed, although a conftest.py or a plugin hides that from pytest"
            terminalreporter.write_line(f"onnx-ci: {hidden}; declare known failures with expect=", red=True)
        if self._report.verdict is RunVerdict.NOTHING_RAN:
            why = self._why_no_cell or "every cell was skipped"
            terminalreporter.write_line(f"onnx-ci: nothing was verified: {why}", red=True)
        if self._measured_patches is not None:
            for line in _how_to_measure_cells(self._report, self.settings, self._measured_patches):
                terminalreporter.write_line(line)
        if self.config.get_verbosity() > 0:
            for reason, cells in Counter(result.why_run for result in self._report.cells if result.why_run).items():
                terminalreporter.write_line(without_commands(one_line(f"{count(cells, 'cell')} ran because: {reason}")))
        for line in self.session.notes_of_cache:
            terminalreporter.write_line(without_commands(one_line(f"cache: {line}")))
        if self._report.missing_device:
            terminalreporter.write_line(f"onnx-ci: {describe_missing_device(self._report)}", red=True)


def _event_of(report: pytest.TestReport) -> Event | None:
    """What the plugin has attached to pytest's report."""
    message = getattr(report, _EVENT, None)
    return None if message is None else event_of(message)


def _how_to_measure_cells(report: RunReport, settings: Settings, patches: set[str]) -> Iterator[str]:
    """How to include the cells in the coverage that is being measured, if something is missing for that."""
    if settings.isolation == "spawn":
        yield "coverage does not include the cells, which run in processes that are ended: add --onnx-isolation=none"
    if settings.isolation == "fork" and not {"subprocess", "fork", "_exit"} <= patches:
        patch = 'patch = ["subprocess", "fork", "_exit"] in [tool.coverage.run]'
        yield f"coverage does not include the cells, which run in processes of their own: set {patch}"
    if cached := sum(cell.cached for cell in report.cells):
        yield f"coverage does not include {count(cached, 'cell')} from the cache: add --no-onnx-cache"


class RecipeFile(pytest.File):
    """A file with recipes."""

    def __init__(self, *, run: Run, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run = run

    def collect(self) -> Iterator[RecipeNode | ProblemItem]:
        """The recipes of the file. Each problem with the file becomes a failing test, so that other files still run."""
        recipes, problems = self.run.collect(self.path, is_named=self.run.is_named(self.path, self))
        for number, problem in enumerate(problems, start=1):
            yield ProblemItem.from_parent(self, name="recipes" if number == 1 else f"recipes-{number}", problem=problem)
        for scope, cells in recipes:
            yield RecipeNode.from_parent(self, name=scope.name, scope=scope, cells=cells)


class RecipeNode(pytest.Collector):
    """A recipe and its cells."""

    def __init__(self, *, scope: RecipeScope, cells: Sequence[CellSpec], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scope, self.cells = scope, cells
        self.extra_keyword_matches.update(scope.tags)

    def collect(self) -> Iterator[CellItem]:
        """The recipe's cells, in order."""
        for spec in self.cells:
            yield CellItem.from_parent(self, name=spec.cell.label, cell=spec.cell, line=self.scope.line)


class CellFailedError(Exception):
    """A cell failed; its result says why."""


class CellItem(pytest.Item):
    """One cell: runs it and shows its result."""

    def __init__(self, *, cell: Cell, line: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cell = cell
        self.line = line
        """The line on which the recipe's definition starts."""
        self.result: CellResult | None = None
        self.add_marker(
            pytest.mark.onnx_export(
                recipe=cell.recipe, opset=cell.opset, device=cell.device, exporter=cell.exporter, graph_pass=cell.graph_pass
            )
        )
        if self.config.pluginmanager.hasplugin("timeout"):
            # pytest-timeout would count what a cell waits for: torch's import, and other cells. It has a limit of its own.
            self.add_marker(pytest.mark.timeout(0))

    @property
    def run(self) -> Run:
        """The run to which the test belongs."""
        return cast("Run", self.config.pluginmanager.get_plugin(_PLUGIN))

    def runtest(self) -> None:
        """Run the cell, and raise an error if it fails."""
        self.result = self.run.judge(self.cell)
        if self.result.log:
            self.add_report_section("call", "exporter", without_commands(self.result.log))
        if self.result.status is Status.SKIPPED:
            pytest.skip(self.result.reason)
        if self.result.status.is_bad or self.result.status is Status.XFAILED:
            raise CellFailedError

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The findings with numbers, remedies and the command that repeats the cell, instead of a traceback."""
        if isinstance(excinfo.value, CellFailedError) and self.result is not None:
            command = repeat_with_pytest(self.cell, self.run.settings.shown(), self.run.settings.root)
            about = functools.partial(command_about, settings=self.run.settings)
            text = describe_result(self.result, command, about=about, has_notes=False)
            return without_commands(text)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The location of the recipe, for reports that link to it."""
        return self.path, self.line - 1, f"{self.cell.recipe}::{self.name}"


class ProblemItem(pytest.Item):
    """A problem with a recipe file, as a test that fails with the reason."""

    def __init__(self, *, problem: Problem, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.problem = problem
        self.add_marker(MARKER)

    def iter_markers_with_node(self, name: str | None = None) -> Iterator[tuple[Any, pytest.Mark]]:
        """Its own mark alone: the marks of a conftest.py neither skip a problem nor expect it."""
        return (pair for pair in super().iter_markers_with_node(name) if pair[1].name == MARKER)

    def runtest(self) -> None:
        """Fail."""
        raise CellFailedError

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The reason."""
        return without_commands(f"{self.problem.source}: {self.problem.message}")

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The file."""
        return self.path, None, self.problem.source
