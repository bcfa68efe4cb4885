"""The oldest version of ONNX Runtime that computes the file of a cell right, and what older ones do with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version

from onnx_ci.plugins import version_in_name
from onnx_ci.results.records import CellResult, Finding, Severity, Status
from onnx_ci.tools.versions import pip


def releases(since: Version, before: Version) -> list[str]:
    """The first release of each minor version of ONNX Runtime that this Python can use, in ascending order.

    Raises:
        ConfigurationError: the package index cannot be asked.
    """
    firsts: dict[tuple[int, int], Version] = {}
    for version in pip.available("onnxruntime"):
        if since <= version < before:
            firsts.setdefault((version.major, version.minor), version)
    return [str(version) for version in firsts.values()]


@dataclass(frozen=True, kw_only=True)
class Support:
    """Which versions compute the file of a cell right."""

    oldest: str
    """The oldest version from which on all do; empty if the installed one does not, or the cell was not judged."""
    is_wrong: bool
    """Whether the installed one does not, and the recipe does not expect that."""
    wrong: Mapping[str, Finding]
    """What goes wrong in other ones, by version."""


def support_of(result: CellResult, versions: Sequence[str], installed: str) -> Support:
    """Which versions compute the file of a cell right.

    Args:
        result: of a run with each of ``versions`` and with what is installed.
        versions: in ascending order, all older than the installed one.
        installed: the installed one.
    """
    wrong: dict[str, Finding] = {}
    own: list[Finding] = []
    for error in result.findings:
        if error.severity is Severity.ERROR:
            if version := version_in_name(str(error.details.get("runtime", ""))):
                wrong.setdefault(version, error)
            else:
                own.append(error)
    if own or result.status in (Status.SKIPPED, Status.ERROR):
        is_wrong = result.status is Status.ERROR or not all(each.is_expected for each in own)
        return Support(oldest="", is_wrong=is_wrong, wrong={})
    right = installed
    for version in reversed(versions):
        if version in wrong:
            break
        right = version
    return Support(oldest=right, is_wrong=False, wrong=wrong)
