"""The environment variables that count: all but those in the table beside this file."""

from __future__ import annotations

import fnmatch
import itertools
import operator
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from onnx_ci.cache.contents import digest_of_text
from onnx_ci.cache.places import Places


def variables(environment: Mapping[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    """The variables that count.

    Args:
        environment: all variables.
        more: further names and patterns that do not count.
    """
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    of_this_ci = [patterns for mark, patterns in table["where-it-is-set"].items() if mark in environment]
    patterns = itertools.chain(*table["everywhere"].values(), *of_this_ci, more)
    volatile = re.compile("|".join(map(fnmatch.translate, patterns)))
    return {name: value for name, value in sorted(environment.items()) if not volatile.match(name)}


def digests(variables: Mapping[str, str], places: Places) -> dict[str, str]:
    """Two digests of each value by name: of the value itself, and of the value with paths as every clone and user has them."""
    return {name: f"{_digest(name, value)} {_digest(name, places.normalized(value))}" for name, value in variables.items()}


def are_same(before: str, after: str) -> bool:
    """Whether two values are equal, or are equal but for paths, given their digests."""
    return any(map(operator.eq, before.split(), after.split()))


def _digest(name: str, value: str) -> str:
    return digest_of_text(f"{name}={value}")[:16]
