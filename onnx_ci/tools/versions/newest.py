"""Why the newest version of a package is not the one that is tried: a pin, another package, or this Python."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from packaging.version import Version

from onnx_ci.text import listed
from onnx_ci.tools.versions import pip
from onnx_ci.tools.versions.overlay import Request, resolved
from onnx_ci.tools.versions.pip import ImpossibleError


def describe_held_back(tried: Mapping[str, Iterable[str]], request: Request) -> Iterator[str]:
    """A sentence for each package that has a newer version than all that were tried: which one, and why it was not.

    Args:
        tried: the versions of each package, with that which is installed.
        request: what else holds for each version.

    Raises:
        ConfigurationError: pip cannot tell.
    """
    with ThreadPoolExecutor() as pool:  # each question to pip takes a second or more, mostly of waiting for the index
        yield from filter(None, pool.map(functools.partial(_held_back, request), tried, tried.values()))


def _held_back(request: Request, name: str, tried: Iterable[str]) -> str:
    most = max(Version(Version(version).public) for version in tried)
    newest = _newest(name, request)
    if newest is None:  # it is not from an index
        return ""
    if newest > most:
        return f"{name} {newest} was not tried: {_reason(f'{name}=={newest}', request)}"
    major, minor = sys.version_info[:2]
    elsewhere: dict[Version, list[str]] = {}
    for python in (f"{major}.{minor - 1}", f"{major}.{minor + 1}"):
        if (version := _newest(name, request, python)) is not None:
            elsewhere.setdefault(version, []).append(python)
    newest = max(elsewhere, default=most)
    if newest <= most:
        return ""
    return f"{name} {newest} was not tried: it has no wheel for Python {major}.{minor}, but for {listed(elsewhere[newest])}"


def _newest(name: str, request: Request, python: str = "") -> Version | None:
    """The newest version for this Python or another one, without the label of its build; ``None`` if the index has none."""
    with contextlib.suppress(ImpossibleError):
        return max(Version(each.public) for each in pip.available(name, pre=request.pre, python=python))
    return None


def _reason(pin: str, request: Request) -> str:
    try:
        resolved(replace(request, requirements=(pin,), upgrade=False))
    except ImpossibleError as error:
        return str(error)
    return "it fits by itself, but not with what else was asked for"
