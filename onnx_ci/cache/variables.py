"""The environment variables that count: all but those in the table beside this file, and of those the ones that code names."""

from __future__ import annotations

import fnmatch
import itertools
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path

from onnx_ci.cache.folder import digest_of_text
from onnx_ci.cache.places import Places

_NAMED = re.compile(r"[\"'{$:]([A-Za-z_][A-Za-z0-9_]*)")
"""What looks like the name of a variable: ``"RUN_ID"``, ``$RUN_ID``, ``${oc.env:RUN_ID}``."""


class Variables:
    """The environment variables, without those that are ignored. In their values, the folders of ``places`` do not count."""

    def __init__(self, environment: Mapping[str, str], ignored: Iterable[str], places: Places) -> None:
        self._environment, self._places = environment, places
        table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
        of_this_ci = [patterns for mark, patterns in table["where-it-is-set"].items() if mark in environment]
        self._ignored = _matcher(ignored)
        self._table = _matcher(itertools.chain(*table["everywhere"].values(), *of_this_ci))

    @cached_property
    def digests(self) -> dict[str, str]:
        """Two digests of each value that counts, by name."""
        counted = (name for name in sorted(self._environment) if not (self._table(name) or self._ignored(name)))
        return {name: self.digest(name) for name in counted}

    def digest(self, name: str) -> str:
        """A digest of the value, and one of it with paths as every clone and user has them; empty if it is not set."""
        if (value := self._environment.get(name)) is None:
            return ""
        return " ".join(digest_of_text(f"{name}={text}")[:16] for text in (value, self._places.normalized(value)))

    def named_in(self, text: str) -> set[str]:
        """The variables of the table that a text names."""
        return {name for name in _NAMED.findall(text) if self._table(name) and not self._ignored(name)}


def are_same(before: str, after: str) -> bool:
    """Whether two values are equal, or are equal but for paths, given their digests."""
    return before == after or any(one == other for one, other in zip(before.split(), after.split(), strict=False))


def _matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """A function that tells whether a name matches one of ``patterns``, which are in the syntax of :mod:`fnmatch`."""
    patterns = set(patterns)
    names = {each for each in patterns if not re.search(r"[*?\[]", each)}  # a large regular expression takes long to compile
    others = re.compile("|".join(sorted(map(fnmatch.translate, patterns - names))) or r"(?!)")
    return lambda name: name in names or others.match(name) is not None
