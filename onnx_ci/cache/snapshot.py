"""Everything on which verdicts depend at one moment, and how two moments differ, in words."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from onnx_ci.cache.variables import are_same
from onnx_ci.results.json_data import from_json, to_json


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of everything that counts."""

    files: Mapping[str, str]
    """What is in the project's files, and in those that it mentions elsewhere, by name."""
    packages: Mapping[str, str]
    """Distributions with version and digest, and digests of other files of the installation."""
    machine: Mapping[str, str]
    variables: Mapping[str, str]
    """Digests of values, which may be secrets."""

    @functools.cached_property
    def digest(self) -> str:
        """A short digest of it all."""
        text = json.dumps(self.as_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def as_json(self) -> dict[str, Any]:
        """The snapshot as plain data."""
        data: dict[str, Any] = to_json(self)
        return data

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The snapshot that :meth:`as_json` returned.

        Raises:
            ValueError: ``data`` is none.
        """
        snapshot: Self = from_json(cls, data)
        return snapshot


@dataclass(frozen=True, kw_only=True)
class Change:
    """One difference."""

    name: str
    """The file, the distribution, the variable or the fact of the machine."""
    text: str
    """The difference in words: ``model.py changed``, ``new variable FOO``."""
    is_python: bool = False
    """Whether it is a Python file of the project."""
    is_gone: bool = False
    is_new: bool = False


def differences(then: Snapshot, now: Snapshot) -> list[Change]:
    """What changed: files first, then packages, the machine and variables."""
    return [
        *_changed(then.files, now.files, _file_in_words),
        *_changed(then.packages, now.packages, _package_in_words),
        *_changed(then.machine, now.machine, _fact_in_words),
        *_changed(then.variables, now.variables, _variable_in_words),
    ]


def _changed(then: Mapping[str, str], now: Mapping[str, str], in_words: Any) -> list[Change]:
    changes = []
    for name in sorted(then.keys() | now.keys()):
        before, after = then.get(name), now.get(name)
        is_same = are_same(before, after) if in_words is _variable_in_words else before == after
        if not is_same:
            is_python = in_words is _file_in_words and name.endswith(".py") and not name.startswith(("..", "/", "~"))
            changes.append(
                Change(
                    name=name,
                    text=in_words(name, before, after),
                    is_python=is_python and "→" not in f"{before}{after}",
                    is_new=before is None,
                    is_gone=after is None,
                )
            )
    return changes


def _file_in_words(name: str, before: str | None, after: str | None) -> str:
    return f"{name} is new" if before is None else f"{name} is gone" if after is None else f"{name} changed"


def _package_in_words(name: str, before: str | None, after: str | None) -> str:
    old, new = ((text or "").partition(" ") for text in (before, after))
    if not (old[1] or new[1]):  # a file
        return _file_in_words(name, before, after)
    if before is None:
        return f"{name} {new[0]} is newly installed"
    if after is None:
        return f"{name} {old[0]} is no longer installed"
    return f"{name} {old[0]} → {new[0]}" if old[0] != new[0] else f"the files of {name} changed"


def _fact_in_words(name: str, before: str | None, after: str | None) -> str:
    if len(f"{before}{after}") > 120:
        return f"{name} changed"
    return (
        f"{name}: {before or 'none'} → {after or 'none'}" if name.startswith(("the ", "sys")) else f"{name} {before} → {after}"
    )


def _variable_in_words(name: str, before: str | None, after: str | None) -> str:
    return f"new variable {name}" if before is None else f"variable {name} is gone" if after is None else f"{name} changed"
