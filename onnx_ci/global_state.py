"""What a recipe may change for everybody in its process: looked at before and after, and put back where it matters."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class _State:
    """One thing that every piece of code in a process shares."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


def _set_environment(variables: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


_STATES = (
    _State("the working directory", Path.cwd, os.chdir),
    _State("the environment", lambda: dict(os.environ), _set_environment),
    _State("torch's default data type", torch.get_default_dtype, torch.set_default_dtype),
    _State("torch's default device", torch.get_default_device, torch.set_default_device),
    _State("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    _State("whether torch records gradients", torch.is_grad_enabled, torch.set_grad_enabled),
    _State(
        "torch's choice of deterministic algorithms",
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    _State("torch's precision of matrix products", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
)


@dataclass
class Watched:
    """What a block has changed; complete once the block has ended."""

    changed: tuple[str, ...] = ()


@contextlib.contextmanager
def watched() -> Iterator[Watched]:
    """Note which global state the block changes. Seeds are left out: recipes run under their own."""
    before = [state.read() for state in _STATES]
    result = Watched()
    try:
        yield result
    finally:
        result.changed = tuple(state.name for state, value in zip(_STATES, before, strict=True) if _read(state) != value)


def _read(state: _State) -> Any:
    try:
        return state.read()
    except OSError:  # the working directory is gone
        return None


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Put back afterwards what the block changes."""
    before = [state.read() for state in _STATES]
    try:
        yield
    finally:
        for state, value in zip(_STATES, before, strict=True):
            if _read(state) != value:
                state.write(value)
