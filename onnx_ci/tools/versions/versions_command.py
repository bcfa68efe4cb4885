"""``onnx-ci versions``: the version of a package with which a failing cell passes."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NoReturn

import click
from packaging.utils import canonicalize_name
from packaging.version import Version

from onnx_ci.cli.common import GroupedCommand, options_of, settings_from, with_colour, with_exit_code
from onnx_ci.config.reproduce import OF_ONE_CELL
from onnx_ci.matrix.scope import runtimes_of
from onnx_ci.report.text import describe_outcome
from onnx_ci.results.records import Cell
from onnx_ci.results.verdict import broken_rules, exit_code
from onnx_ci.text import listed, one_line
from onnx_ci.tools.versions import pip
from onnx_ci.tools.versions.newest import describe_held_back
from onnx_ci.tools.versions.overlay import TORCH, Request, in_words, installed, kept_requirements, packages_of
from onnx_ci.tools.versions.pip import ImpossibleError
from onnx_ci.tools.versions.runs import CachedRuns, flags_for, flags_of, is_right
from onnx_ci.tools.versions.search import Repair, newer_repair, older_repair
from onnx_ci.tools.why.command import judged_cell


@click.command(cls=GroupedCommand)
@click.argument("target", metavar="CELL")
@click.option("--with-torch", is_flag=True, help="Try other versions of torch, too, the last. Each is a large download.")
@click.option("--pre", is_flag=True, help="Try pre-releases, too.")
@options_of("recipe-files", "packages", *(option.name for option in OF_ONE_CELL))
@with_colour
@with_exit_code
def versions(target: str, with_torch: bool, pre: bool, paths: tuple[Path, ...], **flags: str | None) -> NoReturn:
    r"""Find a version of a package with which a failing cell passes.

    The packages of the exporter and of the runtime are tried, one at a time, newer versions first. A CELL is an id as shown by
    `onnx-ci list`, with or without the recipe file. The exit code is that of the cell.

    \b
    Examples:
      onnx-ci versions net::opset18-cpu
    """
    settings = settings_from(flags)
    subject, result = judged_cell(target, settings, paths)
    click.echo()
    broken = broken_rules(result.findings)
    if not broken:
        click.echo("no other version is tried: the cell does not fail")
        sys.exit(exit_code([result]))
    scope = subject.recipes.scopes[result.cell.recipe]
    cell = dataclasses.replace(result.cell, source=scope.source)  # the command line need not name the file
    packages = packages_of(cell.exporter, runtimes_of(scope, settings), scope.passes if cell.graph_pass else (), installed())
    tried = [name for name in packages if with_torch or name != TORCH]
    file = os.path.relpath(settings.root / cell.source)
    runs = CachedRuns([*flags_of({**flags, **flags_for([cell], settings)}), file], settings, Request(requirements=(), pre=pre))
    better = repair(cell, broken, tried, runs, lambda words: click.echo(f"  {one_line(words)}"), pre=pre)
    had = {name: [installed()[name].version, *runs.versions.get(name, ())] for name in tried}
    for line in describe_held_back(had, Request(requirements=(), pre=pre)):
        click.echo(f"  {one_line(line)}")
    if better is not None:
        click.echo(f"\n{better.words}")
    else:
        click.echo(f"\nno other version of {listed(tried) or 'a package'} that was tried repairs it")
        if not with_torch and TORCH in packages:
            click.echo("torch was not tried, because it is a large download: --with-torch tries it")
    sys.exit(exit_code([result]))


def repair(
    cell: Cell,
    broken: Collection[str],
    packages: Iterable[str],
    runs: CachedRuns,
    tell: Callable[[str], None],
    *,
    pre: bool = False,
) -> Repair | None:
    """A version with which a cell passes: of one package at a time, newer ones first; ``None`` if none was found.

    ``tell`` gets what came of each trial.

    Raises:
        ConfigurationError: other versions cannot be had at all: no network, no pip, no space.
    """
    distributions = installed()
    kept = kept_requirements(distributions)

    def versions_of(package: str) -> list[Version]:
        try:
            versions = pip.available(package, pre=pre)
        except ImpossibleError:  # it is not from an index
            return []
        needed = [requirement.specifier for _, requirement in kept if canonicalize_name(requirement.name) == package]
        return [each for each in versions if all(spec.contains(each, prereleases=True) for spec in needed)]

    def passes(package: str, version: Version) -> bool | None:
        if (wheels := runs.wheels(f"{package}=={version}")) is None:
            return None
        results = runs.results(wheels)
        words = in_words([package], {package: str(version)} | {name: wheel.version for name, wheel in wheels.items()})
        if isinstance(results, str):
            tell(f"{words}: {results}")
            return False
        result = results.get(cell)
        tell(f"{words}: {'there is no such cell' if result is None else describe_outcome(result)}")
        return is_right(result, broken)

    for search in (newer_repair, older_repair):
        for package in packages:
            today = Version(distributions[package].version)
            if better := search(package, today, versions_of(package), functools.partial(passes, package)):
                return better
    return None
