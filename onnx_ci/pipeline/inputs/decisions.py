"""What a run of a model decides in Python by the sizes and the values of its tensors.

The exporters freeze such decisions: the file contains the side that the example takes. They are observed in eager mode, on any
input and without an exporter. Sizes and single values are replaced by numbers that report what they are compared with
(:mod:`~onnx_ci.pipeline.inputs.tracked_numbers`), and a mode for torch's functions records when a tensor is used as a boolean.

So both exporters get the same probes, static sizes and attributes of the model need no list of exceptions, and a model without
such branches costs one run.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from onnx_ci.pipeline.inputs import tracked_numbers
from onnx_ci.pipeline.inputs.tracked_numbers import NumbersMode, reporting_to, tracked_conversions
from onnx_ci.pipeline.inputs.uses import InputUse, UsesObserver
from onnx_ci.pipeline.model.call import Call, PrepareError, input_tensors
from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.operators import OperatorMode, tensor_leaves
from onnx_ci.pipeline.model.running import force_eager, in_small_operators, run_tree


@dataclass(frozen=True, kw_only=True)
class Site:
    """A place in the code where something is decided. Submodules that share the code have a site each."""

    code: CodeType
    offset: int
    """The offset of the instruction in ``code``."""
    module: str
    """The name of the submodule whose method it is; empty for the model itself and for functions."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One decision."""

    outcome: bool
    gaps: tuple[float, ...]
    """What decided. Of a comparison, the left minus the right side, which crosses zero where the outcome changes: the lowest
    and the highest, if tensors were compared. Empty for other tests, such as ``isnan``."""
    total: float
    """A number that changes with what was compared or tested: the sum of all gaps, or of the tensors that were tested. Of a
    remainder, the number that was divided counts, too."""
    by_sizes: bool
    """Whether it was decided by sizes alone, not by the values of tensors."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What one run decided."""

    decisions: dict[Site, list[Decision]] = field(default_factory=dict)
    """In the order of the run."""
    is_accepted: bool
    """Whether the model returned; otherwise it raised after these decisions."""
    elements: int
    """How many elements all operators of the run computed, if they were counted."""
    uses: tuple[InputUse, ...] = ()
    """How the model uses each input, if that was observed."""


class Observer:
    """Observes runs of a model."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._converting: dict[int, dict[str, Any]] = {}
        """The namespaces of functions that convert sizes or tensors by ``int``, ``float`` or ``len``, by their ids."""

    def observe(self, inputs: Sequence[torch.Tensor], *, is_counted: bool = False, with_uses: bool = False) -> Observation:
        """Run the model on ``inputs``; whatever it raises means that it rejects them.

        The model runs again if the run shows where it converts numbers.

        Args:
            is_counted: whether the elements that the run computes are counted.
            with_uses: whether it is observed how the model uses its inputs.
        """
        try:
            self._copies.try_on_cpu(inputs)
        except PrepareError:
            return Observation(is_accepted=False, elements=0)
        namespaces = len(self._converting)
        observation = self._observe(self._copies.running(inputs), is_counted, with_uses)
        if len(self._converting) == namespaces:
            return observation
        return self._observe(self._copies.running(inputs), is_counted, with_uses)

    def _observe(self, call: Call, is_counted: bool, with_uses: bool) -> Observation:
        names = {id(module): name for name, module in call.model.named_modules()}
        recorder = _Recorder(names, self._converting)
        work, uses = _Work(), UsesObserver(input_tensors(call) if with_uses else ())  # type: ignore[no-untyped-call]
        with contextlib.ExitStack() as stack:
            stack.enter_context(force_eager())
            if is_counted:
                stack.enter_context(in_small_operators())
                stack.enter_context(work)
            if with_uses:
                stack.enter_context(uses)
            stack.enter_context(tracked_conversions(self._converting.values()))
            stack.enter_context(reporting_to(recorder))
            stack.enter_context(recorder)
            try:
                run_tree(call)
                is_accepted = True
            except PrepareError:
                is_accepted = False
        return Observation(decisions=recorder.decisions, is_accepted=is_accepted, elements=work.elements, uses=uses.uses())


def uses_of_inputs(observer: Observer, observation: Observation, example: Sequence[torch.Tensor]) -> tuple[InputUse, ...]:
    """How a model uses its inputs.

    Args:
        observer: observes the model.
        observation: what it has observed on the example.
        example: the inputs of the recipe.
    """
    uses = list(observation.uses)
    for index, (tensor, use) in enumerate(zip(example, observation.uses, strict=False)):
        if use.rows is not None and use.vocabulary is None and int(tensor.max()) + 1 == use.rows:
            larger = tensor.flatten().clone()
            larger[-1] = use.rows
            grown = observer.observe([*example[:index], larger.view(tensor.shape), *example[index + 1 :]])
            uses[index] = replace(use, grows=grown.is_accepted)
    return tuple(uses)


class _Work(OperatorMode):  # type: ignore[no-untyped-call]
    """Counts the elements that operators compute."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        results = result if isinstance(result, (tuple, list)) else (result,)
        self.elements += sum(tensor.numel() for tensor in results if isinstance(tensor, torch.Tensor))
        return result


# --- recording --------------------------------------------------------------------------------------------------------

_COMPARISONS = frozenset({"gt", "ge", "lt", "le", "eq", "ne"})
"""The operators, too: as functions of torch, some of them are called ``__eq__`` and the like."""


class _Recorder(NumbersMode):
    """Records decisions, and hands out sizes and values as tracked numbers.

    Args:
        modules: the names of the model's modules by their ids.
        converting: gets the namespaces of functions that convert numbers, by their ids.
    """

    def __init__(self, modules: dict[int, str], converting: dict[int, dict[str, Any]]) -> None:
        super().__init__()
        self._modules, self._converting = modules, converting
        self.decisions: dict[Site, list[Decision]] = {}

    def call(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Call a function of torch, and keep how it computes a boolean tensor."""
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and result.dtype is torch.bool:
            result._onnx_ci_origin = _origin(name, [*args, *kwargs.values()])  # type: ignore[attr-defined]
        return result

    def tested(self, outcome: bool, args: Any) -> bool:
        """Record what a test of tensors has just decided."""
        origin = _origin("", args)
        if len(args) == 1 and isinstance(args[0], torch.Tensor) and not hasattr(args[0], "_onnx_ci_origin"):
            is_boolean = args[0].dtype is torch.bool
            origin = _Origin(() if is_boolean else (origin.total,), origin.total)  # of one number, whether it is zero
        self._record(outcome, origin, by_sizes=False)
        return outcome

    def compared(self, outcome: bool, gap: float, total: float, *, by_sizes: bool) -> bool:
        """Record what a tracked number has just decided."""
        self._record(outcome, _Origin((_finite(gap),), _finite(total)), by_sizes=by_sizes)
        return outcome

    def converted(self, value: Any, function: str) -> Any:
        """Note that the model's code has just converted a number."""
        frame = _frame_of_model()
        if frame is not None:
            self._converting[id(frame.f_globals)] = frame.f_globals
        return value

    def _record(self, outcome: bool, origin: _Origin, *, by_sizes: bool) -> None:
        """Record a decision that the model's code has just made. Torch's own are left to the exporters."""
        frame = _frame_of_model()
        if frame is not None:
            module = self._modules.get(id(frame.f_locals.get("self")), "")
            site = Site(code=frame.f_code, offset=_offset(frame), module=module)
            decision = Decision(outcome=outcome, gaps=origin.gaps, total=origin.total, by_sizes=by_sizes)
            self.decisions.setdefault(site, []).append(decision)


# --- where the code decides -------------------------------------------------------------------------------------------

_TORCH = Path(torch.__file__).parent
_WRAPPERS = frozenset({str(_TORCH / "_tensor.py"), str(_TORCH / "overrides.py"), __file__, tracked_numbers.__file__})
"""The files whose frames are between the model's code and the place that records what it decides."""

_PRECALL = dis.opmap.get("PRECALL")
_PRECALL_SIZE = 4
"""In bytes, with its cache."""


def _frame_of_model() -> FrameType | None:
    """The frame that has just called a function of torch or used a number; ``None`` if torch itself has."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in _WRAPPERS:
        frame = frame.f_back
    return None if frame is None or _is_of_torch(frame.f_code.co_filename) else frame


@functools.cache
def _is_of_torch(file: str) -> bool:
    return Path(file).is_relative_to(_TORCH)


def _offset(frame: FrameType) -> int:
    """The offset of the instruction that runs in ``frame``, the same in each run.

    Python 3.11 has two instructions for a call, and runs them as one when it has run them a few times.
    """
    offset, code = frame.f_lasti, frame.f_code.co_code
    is_second = _PRECALL is not None and offset >= _PRECALL_SIZE and code[offset - _PRECALL_SIZE] == _PRECALL
    return offset - _PRECALL_SIZE if is_second else offset


# --- what the code decides by -----------------------------------------------------------------------------------------

_MAX_GAPS = 8
"""How many gaps of a boolean tensor are kept, which may be computed from many others."""


@dataclass(frozen=True)
class _Origin:
    """How a boolean was computed; see :class:`Decision`."""

    gaps: tuple[float, ...]
    total: float


def _origin(name: str, args: Sequence[Any]) -> _Origin:
    """How the function ``name`` computed a boolean tensor from ``args``."""
    tensors = tensor_leaves(args)
    origins = [tensor._onnx_ci_origin for tensor in tensors if hasattr(tensor, "_onnx_ci_origin")]
    if origins:
        gaps = dict.fromkeys(gap for origin in origins for gap in origin.gaps)
        return _Origin(tuple(gaps)[:_MAX_GAPS], sum(origin.total for origin in origins))
    if name.strip("_") in _COMPARISONS:
        left, right = (torch.as_tensor(operand) for operand in args[:2])
        if not left.is_complex() and not right.is_complex():
            gap = left.double() - right.double()
            ends = (gap.min(), gap.max()) if gap.numel() else ()
            return _Origin(tuple(dict.fromkeys(map(_finite, ends))), _total(gap))
    return _Origin((), sum(map(_total, tensors)))


def _total(tensor: torch.Tensor) -> float:
    """A number that changes with the values of a tensor: the value itself if it has only one. NaN and infinity do not count.

    They are left out by a comparison: to observers, ``nan_to_num`` or ``isfinite`` would be the model's own test for them.
    """
    values = (tensor.detach().abs() if tensor.is_complex() else tensor.detach()).double()
    return float(values[values.abs() <= sys.float_info.max].sum())


def _finite(value: Any) -> float:
    """A number as it is if it is finite, and zero otherwise, because NaN is not equal to itself."""
    return float(value) if math.isfinite(value) else 0.0
