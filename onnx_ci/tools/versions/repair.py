"""Which version of a package repairs a failing cell."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable

from packaging.utils import canonicalize_name
from packaging.version import Version

from onnx_ci.report.text import describe_outcome
from onnx_ci.results.records import Cell
from onnx_ci.tools.versions import pip
from onnx_ci.tools.versions.overlay import in_words, installed, kept_requirements
from onnx_ci.tools.versions.pip import ImpossibleError
from onnx_ci.tools.versions.runs import Trials, is_right
from onnx_ci.tools.versions.search import Repair, newer_repair, older_repair


def repair(
    cell: Cell,
    broken: Collection[str],
    packages: Iterable[str],
    trials: Trials,
    tell: Callable[[str], None],
    *,
    pre: bool = False,
) -> Repair | None:
    """A version with which a cell passes: of one package at a time, newer ones first; ``None`` if none was found.

    Args:
        cell: a cell that fails with what is installed.
        broken: the rules that it breaks.
        packages: those that are tried, in this order.
        trials: runs of this cell.
        tell: is told what came of each trial.
        pre: whether pre-releases count.

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
        if (wheels := trials.wheels(f"{package}=={version}")) is None:
            return None
        results = trials.results(wheels)
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
            if found := search(package, today, versions_of(package), functools.partial(passes, package)):
                return found
    return None
