"""Everything on which verdicts depend at one moment, and the changes between two moments, in words."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from onnx_ci.cache.variables import are_same
from onnx_ci.results.json_data import to_json


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of everything that counts."""

    files: Mapping[str, str]
    """The states of the project's files, and of files elsewhere that it mentions, by name."""
    packages: Mapping[str, str]
    """Versions and digests of distributions, and digests of other installed files, by name."""
    machine: Mapping[str, str]
    variables: Mapping[str, str]
    """Digests of the values, which may be secrets, by name."""

    @functools.cached_property
    def digest(self) -> str:
        """A short digest of everything."""
        return hashlib.sha256(json.dumps(to_json(self), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change."""

    name: str
    """The file, the distribution, the variable or the fact of the machine."""
    text: str
    """The change in words: ``model.py changed``, ``new variable FOO``."""
    is_python: bool = False
    """Whether it is a Python file of the project."""
    is_new_or_gone: bool = False


def differences(then: Snapshot, now: Snapshot) -> tuple[Change, ...]:
    """The changes of files, packages, the machine and variables, in that order."""
    return (
        *_changes(then.files, now.files, _of_file),
        *_changes(then.packages, now.packages, _of_package),
        *_changes(then.machine, now.machine, _of_fact),
        *_changes(then.variables, now.variables, _of_variable),
    )


def _changes(
    then: Mapping[str, str], now: Mapping[str, str], change_of: Callable[[str, str | None, str | None], Change | None]
) -> Iterator[Change]:
    for name in sorted(then.keys() | now.keys()):
        before, after = then.get(name), now.get(name)
        if before != after and (change := change_of(name, before, after)) is not None:
            yield change


def _of_file(name: str, before: str | None, after: str | None) -> Change:
    is_linked = "→" in f"{before}{after}"
    return Change(
        name=name,
        text=file_in_words(name, before, after),
        is_python=name.endswith(".py") and not name.startswith(("..", "/", "~")) and not is_linked,
        is_new_or_gone=before is None or after is None,
    )


def file_in_words(name: str, before: str | None, after: str | None) -> str:
    """``model.py changed``, given the states of a file before and after; ``None`` if it does not exist."""
    if before is None:
        return f"{name} is new"
    if after is None:
        return f"{name} is gone"
    if name.endswith("/"):
        return f"the files in {'the project' if name == './' else name[:-1]} changed"
    return f"{name} changed"


def _of_package(name: str, before: str | None, after: str | None) -> Change:
    old, new = ((text or "").partition(" ") for text in (before, after))
    if not (old[1] or new[1]):  # a file
        text = file_in_words(name, before, after)
    elif before is None:
        text = f"{name} {new[0]} is newly installed"
    elif after is None:
        text = f"{name} {old[0]} is no longer installed"
    else:
        text = f"{name} {old[0]} → {new[0]}" if old[0] != new[0] else f"the files of {name} changed"
    return Change(name=name, text=text)


def _of_fact(name: str, before: str | None, after: str | None) -> Change:
    if len(f"{before}{after}") > 120:
        return Change(name=name, text=f"{name} changed")
    colon = ":" if name.startswith(("the ", "sys")) else ""
    return Change(name=name, text=f"{name}{colon} {before or 'none'} → {after or 'none'}")


def _of_variable(name: str, before: str | None, after: str | None) -> Change | None:
    if before is None or after is None:
        return Change(name=name, text=f"new variable {name}" if before is None else f"variable {name} is gone")
    return None if are_same(before, after) else Change(name=name, text=f"{name} changed")
