"""Which lines of a model's code run, and what each of them leaves in its variables.

Tensors do not show what Python draws, reads from a clock or keeps in plain objects, nor that an export goes another way. It is
slow to watch lines, so this only tells why a model is known to fail.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Self

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from onnx_ci.owners import Owner, owner_of
from onnx_ci.pipeline.model.call import Call, PrepareError
from onnx_ci.pipeline.model.places import calls_module, innermost, is_in_project
from onnx_ci.pipeline.model.running import force_eager, run_tree
from onnx_ci.results.records import SourceLine

_MOST_STEPS = 10**5
_MOST_ITEMS = 100
"""How many items of a container are looked at."""
_DEPTH = 3
"""How deep containers and objects are looked into."""
RETURN, _GLOBAL = "return", "global"


@dataclass(frozen=True, slots=True)
class Step:
    """A line that has run."""

    place: tuple[tuple[str, int], ...]
    """File and number of the line; of one in a library, those of its callers follow."""
    left: Mapping[str, str] = field(default_factory=dict)
    """What it has changed, with a text of the new value: variables, globals, attributes as ``self.calls``, what it returns."""
    calls: int = 0
    """How many of the steps before it are those of functions that it calls."""

    @property
    def source(self) -> SourceLine | None:
        """The line of the project; for a line in a library, that which leads there."""
        return innermost(self.place)


class LineRecorder:
    """Records the lines that run in this thread while it is entered; those of Python, of torch and the like are left out."""

    def __init__(self, *, numbers_only: bool = False) -> None:
        self.steps: list[Step] = []
        self._numbers_only = numbers_only  # so that tensors are not read
        self._sums: Any = WeakIdKeyDictionary()
        """Of each tensor, how often it had been written to, and a text of its numbers then."""

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        owner, caller = owner_of(frame.f_code.co_filename), frame.f_back
        is_of_model = caller is not None and (caller.f_trace is not None or calls_module(caller))  # exporters use others
        if owner is Owner.TOOLCHAIN or (owner is Owner.LIBRARY and not is_of_model):
            return None
        line: int | None = None  # the one that runs
        before, began = self._values(frame), 0

        def stepped(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal line, before, began
            if event in ("line", "return") and len(self.steps) < _MOST_STEPS:
                after = self._values(frame)
                left = {name: value for name, value in after.items() if before.get(name) != value}
                if event == "return" and self._is_recorded(arg):
                    left[RETURN] = self._text(arg)
                if line is not None:
                    self.steps.append(Step(_place(frame, line), left, len(self.steps) - began))
                line, before, began = frame.f_lineno, after, len(self.steps)
            return stepped

        return stepped

    def _values(self, frame: FrameType) -> dict[str, str]:
        """Texts of what the code of a frame can see: its variables, the globals that it names, and the attributes of both."""
        of_module = {f"{_GLOBAL} {name}": frame.f_globals[name] for name in frame.f_code.co_names if name in frame.f_globals}
        values: dict[str, str] = {}
        for name, value in {**of_module, **frame.f_locals}.items():
            with contextlib.suppress(Exception):  # what code of the project defines can raise
                seen = {name: value, **{f"{name}.{attribute}": each for attribute, each in _attributes(value).items()}}
                values |= {each: self._text(of) for each, of in seen.items() if self._is_recorded(of)}
        return values

    def _is_recorded(self, value: Any) -> bool:
        return not self._numbers_only or type(value) in (bool, int, float)  # no symbols, which torch.export has for sizes

    def _text(self, value: Any, depth: int = _DEPTH) -> str:
        """A text that tells a value from another one, as far as a line of Python can have changed it."""
        if isinstance(value, (int, float, complex, str, bytes, type(None))):  # NaN is equal to itself as a text
            return repr(value)
        if isinstance(value, torch.Tensor):
            return self._text_of_tensor(value)
        if isinstance(value, np.ndarray):
            return f"{value.shape} {hash(value.tobytes())}"
        if isinstance(value, dict):
            parts = [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            parts = [*value]
        elif isinstance(value, torch.nn.Module):
            parts = [sum(each._version for each in (*value.parameters(), *value.buffers()))]  # grows with each write
        else:
            parts = [] if isinstance(value, type) else [*_attributes(value).values()]
        texts = [self._text(each, depth - 1) for each in parts[:_MOST_ITEMS]] if depth else []
        return f"{type(value).__name__} {len(parts)} {texts}"

    def _text_of_tensor(self, tensor: torch.Tensor) -> str:
        with contextlib.suppress(Exception):  # one without numbers
            version = tensor._version
            if tensor not in self._sums or self._sums[tensor][0] != version:
                total = tensor.detach().to(torch.complex128).sum().item()
                self._sums[tensor] = (version, f"{tuple(tensor.shape)} {total}")
            text: str = self._sums[tensor][1]
            return text
        return type(tensor).__name__


def _place(frame: FrameType, line: int) -> tuple[tuple[str, int], ...]:
    """Where a frame is, with its callers up to the first one of the project."""
    places, caller = [(frame.f_code.co_filename, line)], frame.f_back
    while caller is not None and not is_in_project(places[-1][0]):
        places.append((caller.f_code.co_filename, caller.f_lineno))
        caller = caller.f_back
    return tuple(places)


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of a module, an object or a class, unless it is part of Python or of a tool."""
    of = value if isinstance(value, type) else type(value)
    file = getattr(sys.modules.get(of.__module__), "__file__", None) or ""
    is_watched = isinstance(value, torch.nn.Module) or owner_of(file) is not Owner.TOOLCHAIN
    return dict(getattr(value, "__dict__", {})) if is_watched else {}


def lines_of(call: Call, *, seed: int = 0, numbers_only: bool = False) -> Sequence[Step]:
    """The lines of a run in eager mode, up to the one that raises."""
    with contextlib.suppress(PrepareError), force_eager(), LineRecorder(numbers_only=numbers_only) as recorder:
        run_tree(call, seed=seed)
    return recorder.steps


def where_they_part(steps: Sequence[Step], others: Sequence[Step]) -> SourceLine | None:
    """The line after which two runs go different ways, as an exception or a condition has them do."""
    last: Step | None = None
    for step, other in itertools.zip_longest(steps, others):
        if step is None or other is None or step.place != other.place:
            return None if last is None else last.source
        last = step
    return None


def first_difference(steps: Sequence[Step], others: Sequence[Step]) -> SourceLine | None:
    """The first line that leaves something else in another run on the same inputs, or after which that goes another way."""
    in_step = itertools.takewhile(lambda both: both[0].place == both[1].place, zip(steps, others, strict=False))
    differing = (step.source for step, other in in_step if step.left != other.left)
    return next(differing, None) or where_they_part(steps, others)


def lines_that_keep(steps: Sequence[Step], later: Sequence[Step]) -> Iterator[SourceLine]:
    """The lines that change attributes or globals, unless they leave the same in a later run on the same inputs."""
    visited = {step.place for step in later}
    again = {(step.place, name): value for step in later for name, value in step.left.items()}
    for step in steps:
        kept = [change for change in step.left.items() if "." in change[0] or change[0].startswith(_GLOBAL)]
        others = (again.get((step.place, name), value if step.place in visited else None) != value for name, value in kept)
        if any(others) and (source := step.source) is not None:
            yield source
