"""Where in the code of a model its calls are."""

from __future__ import annotations

import dis
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from onnx_ci.owners import Owner, owner_of
from onnx_ci.pipeline.model import operators
from onnx_ci.pipeline.model.places import calls_module
from onnx_ci.pipeline.model.running import run_tree
from onnx_ci.pipeline.trace.trace import NOWHERE, Frame, Place

_WRAPPERS = (torch.overrides.__file__, torch._tensor.__file__, operators.__file__)
_TRACE = str(Path(__file__).parent)
"""The files and the folder whose frames are between the model's code and the place that records what it does."""

_PRECALL = dis.opmap.get("PRECALL")
_PRECALL_SIZE = 4
"""In bytes, with its cache."""


class CallPlaces:
    """Where the code of a model is, while that runs."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._names: dict[int, str] = {id(module): name for name, module in reversed([*model.named_modules()])}
        self._places: dict[tuple[object, ...], Place] = {}
        """Each place once."""
        self.namespaces: dict[Place, dict[str, Any]] = {}
        """Of each place, that of the innermost function."""

    def now(self) -> Place:
        """The place that runs."""
        frame: FrameType | None = sys._getframe(1)
        key: list[object] = []
        frames: list[tuple[CodeType, int]] = []
        namespace: dict[str, Any] = {}
        module: str | None = None
        is_in_torch = False
        while frame is not None and (code := frame.f_code) is not run_tree.__code__:
            if owner_of(code.co_filename) is not Owner.TOOLCHAIN:
                namespace = namespace if frames else frame.f_globals
                frames.append((code, frame.f_lasti))
                key += (id(code), frame.f_lasti)
            elif module is None and calls_module(frame):
                module = self._names.get(id(frame.f_locals.get("self")))
            if not (frames or is_in_torch):
                is_in_torch = code.co_filename not in _WRAPPERS and not code.co_filename.startswith(_TRACE)
            frame = frame.f_back
        if frame is None:  # such as a copy of what the model has returned
            return NOWHERE
        identity = (module, is_in_torch, *key)
        if identity not in self._places:
            place = Place(tuple(map(_in_each_run, frames)), module or "", is_in_torch)
            self._places[identity], self.namespaces[place] = place, namespace
        return self._places[identity]


def _in_each_run(frame: tuple[CodeType, int]) -> Frame:
    """A frame with the offset that it has in each run.

    Python 3.11 has two instructions for a call, and runs them as one when it has run them a few times.
    """
    code, offset = frame
    is_second = _PRECALL is not None and offset >= _PRECALL_SIZE and code.co_code[offset - _PRECALL_SIZE] == _PRECALL
    return Frame(code, offset - _PRECALL_SIZE if is_second else offset)
