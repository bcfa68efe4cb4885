"""``onnx-ci bisect``: the commit that broke a cell, found by ``git bisect run``."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import click

from onnx_ci.cli import bisect_step
from onnx_ci.cli.bisect_step import BAD, GOOD
from onnx_ci.cli.common import options_of, settings_from, style, with_colour, with_exit_code
from onnx_ci.environment.git import Git
from onnx_ci.environment.versions import require_runtime
from onnx_ci.errors import ConfigurationError, ExitCode
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.report.text import finding_lines
from onnx_ci.results.records import Cell, CellResult
from onnx_ci.text import one_line

_ONLY_SKIPPED_LEFT = 2
"""The exit code of ``git bisect run`` if skipped commits leave several candidates."""


@click.command()
@click.argument("recipe")
@click.option("--good", required=True, metavar="REV", help="A commit at which the cell still passed.")
@click.option("--bad", default="HEAD", show_default=True, metavar="REV", help="A commit at which it fails.")
@options_of(
    "opsets",
    "devices",
    "exporters",
    "runtimes",
    "recipe-files",
    "packages",
    "weights",
    "max-drift",
    "timeout",
    "memory-limit",
    "cache",
)
@with_colour
@with_exit_code
def bisect(recipe: str, good: str, bad: str, paths: tuple[Path, ...], **flags: str | None) -> NoReturn:
    r"""Find the commit that broke a cell.

    RECIPE is the name of a recipe, or of one cell of it (lstm::opset13-cpu). If several cells fail at --bad, the first one is
    used. git bisect checks out the commits between the two in this working tree, and returns to where you were at the end.
    A commit is bad if the cell breaks one of the rules that it breaks at --bad. A commit is skipped if the recipe does not
    exist or cannot be imported there, or if the cell fails in another way.

    Every commit runs with the packages that are installed now. A cell that a package upgrade broke fails at --good, too.

    \b
    Examples:
      onnx-ci bisect --good=v1.2 lstm
      onnx-ci bisect --good=HEAD~20 lstm::opset13-cpu models/onnx_recipes.py
    """
    require_runtime(settings_from(flags).runtimes)
    git = Git(Path.cwd())
    commits = git.commit(good), git.commit(bad)
    if changed := git.ask("status", "--porcelain", "--untracked-files=no"):
        first = changed.splitlines()[0].split(maxsplit=1)[-1]
        raise ConfigurationError(
            f"{first} has uncommitted changes, but bisecting checks out other commits; commit or stash them first"
        )
    if not git.run("bisect", "log").returncode:
        raise ConfigurationError("a bisection is already in progress; end it with git bisect reset")
    given = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items() if value is not None]
    command = [sys.executable, "-m", "onnx_ci", "run", *given, *map(str, paths)]
    with scratch_folder() as scratch, _bisection(git):
        sys.exit(_Search(git, command, scratch).find(recipe, *commits))


@contextlib.contextmanager
def _bisection(git: Git) -> Iterator[None]:
    """A git bisection, after which the working tree is restored."""
    git.ask("bisect", "start")
    try:
        yield
    finally:
        if (done := git.run("bisect", "reset")).returncode:
            click.echo(f"{done.stderr.strip()}\nonnx-ci: run git bisect reset to return to where you were", err=True)


class _Search:
    """One search through the commits of a repository."""

    def __init__(self, git: Git, command: list[str], scratch: Path) -> None:
        self._git = git
        self._command = command
        self._scratch = scratch
        self._folder = Path.cwd()  # read now: it may not exist in a commit

    def find(self, recipe: str, good: str, bad: str) -> ExitCode:
        """Find the first bad commit and show it."""
        cell, rules = self._at_bad(recipe, bad)
        # The settings of an older commit may leave out the cell.
        matrix = (f"--opsets={cell.opset}", f"--devices={cell.device}", f"--exporters={cell.exporter}")
        name = f"{cell.recipe}::{cell.label}"
        step = [*self._command, *matrix, f"--select={name}"]
        self._at_good(step, name, good)
        self._git.ask("bisect", "bad", bad)
        self._git.ask("bisect", "good", good)
        order = self._scratch / "order.json"
        order.write_text(json.dumps({"command": step, "folder": str(self._folder), "rules": sorted(rules)}), encoding="utf-8")
        script = shutil.copy(bisect_step.__file__, self._scratch)
        # Each step prints a line to standard error; what git prints is replaced by the lines below.
        done = subprocess.run(
            ["git", "bisect", "run", sys.executable, script, str(order)], cwd=self._git.top, stdout=subprocess.PIPE, check=False
        )
        if done.returncode not in (0, _ONLY_SKIPPED_LEFT):
            raise ConfigurationError(f"git bisect run ended with exit code {done.returncode}")
        first = self._git.commit("refs/bisect/bad")
        if done.returncode == _ONLY_SKIPPED_LEFT:
            suspects = self._git.ask("rev-list", "refs/bisect/bad", "--not", "--glob=refs/bisect/good-*").split()
            click.echo(f"One of these {len(suspects)} commits broke {name}; those between could not be judged:")
            for suspect in suspects:
                click.echo(f"    {self._title(suspect)}")
            return ExitCode.FAILED
        click.echo(f"{style(first[:12], None)} is the first commit at which {name} fails")
        commit = self._git.ask("show", "--format=%an, %as: %s", "--stat=100", first).splitlines()
        for line in (*(f"    {line}" for line in commit), *finding_lines(self._result(first, cell).findings)):
            click.echo(one_line(line))
        return ExitCode.PASSED

    def _at_bad(self, recipe: str, commit: str) -> tuple[Cell, set[str]]:
        """The cell to follow, and the rules that it breaks."""
        results, message = self._run_at(commit, [*self._command, f"--select={recipe}"])
        failed = [result for result in results if bisect_step.broken_rules(result)]
        if not failed:
            if results:
                raise ConfigurationError(
                    f"{recipe} does not fail at {self._title(commit)}; pass a commit where it does with --bad"
                )
            raise ConfigurationError(f"{recipe} cannot be judged at {self._title(commit)}: {message}")
        first, *others = (CellResult.from_json(result).cell for result in failed)
        rules = bisect_step.broken_rules(failed[0])
        also = f"; {len(others)} more cells of {recipe} fail" if others else ""
        self._show(BAD, commit, f"{first.recipe}::{first.label}: {', '.join(sorted(rules))}{also}")
        return first, rules

    def _at_good(self, step: list[str], name: str, commit: str) -> None:
        """Check that the cell passes at ``--good``."""
        results, message = self._run_at(commit, step)
        verdict, why = bisect_step.judge(results, message, None)
        if verdict == BAD:
            raise ConfigurationError(
                f"{name} also fails at {self._title(commit)} ({why}); pass an older commit. "
                "If it used to pass there, a package upgrade broke it, not a commit"
            )
        if verdict != GOOD:
            raise ConfigurationError(f"{name} cannot be judged at {self._title(commit)}: {why}")
        self._show(GOOD, commit, "")

    def _run_at(self, commit: str, command: list[str]) -> tuple[list[dict[str, Any]], str]:
        self._git.ask("checkout", "--quiet", "--detach", commit)
        return bisect_step.run_cells(command, self._folder, self._scratch / f"{commit}.json")

    def _result(self, commit: str, cell: Cell) -> CellResult:
        """The result of a cell at a judged commit."""
        report = json.loads((self._scratch / f"{commit}.json").read_text(encoding="utf-8"))
        results = map(CellResult.from_json, report["cells"])
        return next(each for each in results if (each.cell.recipe, each.cell.label) == (cell.recipe, cell.label))

    def _title(self, commit: str) -> str:
        return one_line(self._git.ask("show", "--no-patch", "--format=%h %s", commit))

    def _show(self, verdict: int, commit: str, why: str) -> None:
        click.echo(f"{bisect_step.WORDS[verdict]:<8}{self._title(commit)}{f' ({why})' if why else ''}", err=True)
