"""What a run of a model decides in Python by the sizes and the values of its tensors.

The exporters freeze such decisions: the file contains the side that the example takes. They are observed in eager mode, on any
input and without an exporter: sizes and single values are replaced by numbers that record what they are compared with, and a
mode for torch's functions records when a tensor is used as a boolean.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import math
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from onnx_ci.stages.model.live_model import (
    Call,
    OperatorMode,
    PrepareError,
    force_eager,
    in_small_operators,
    run_tree,
    tensor_leaves,
)


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
    """A number that changes with what was compared or tested: the sum of all gaps, or of the tensors that were tested."""
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


class Observer:
    """Observes runs of a model."""

    def __init__(self) -> None:
        self._converting: dict[int, dict[str, Any]] = {}
        """The namespaces of functions that convert sizes or tensors by ``int``, ``float`` or ``len``."""

    def observe(self, make: Callable[[], Call], *, is_counted: bool = False) -> Observation:
        """Run a model; whatever it raises means that it rejects its inputs.

        Args:
            make: makes the call, which the run uses up. It is made twice if the run shows where the model converts numbers.
            is_counted: whether the elements that the run computes are counted.
        """
        known = len(self._converting)
        observation = self._observe(make(), is_counted)
        return self._observe(make(), is_counted) if len(self._converting) > known else observation

    def _observe(self, call: Call, is_counted: bool) -> Observation:
        names = {id(module): name for name, module in call.model.named_modules()}
        recorder = _Recorder(names, self._converting)
        work = _Work()  # type: ignore[no-untyped-call]
        with contextlib.ExitStack() as stack:
            stack.enter_context(force_eager())
            if is_counted:
                stack.enter_context(in_small_operators())
                stack.enter_context(work)
            stack.enter_context(_tracked_conversions(self._converting.values()))
            stack.enter_context(_recording(recorder))
            try:
                run_tree(call)
                is_accepted = True
            except PrepareError:
                is_accepted = False
        return Observation(decisions=recorder.decisions, is_accepted=is_accepted, elements=work.elements)


class _Work(OperatorMode):  # type: ignore[no-untyped-call]
    """Counts the elements that operators compute."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = result if isinstance(result, (tuple, list)) else (result,)
        self.elements += sum(each.numel() for each in made if isinstance(each, torch.Tensor))
        return result


# --- numbers ----------------------------------------------------------------------------------------------------------


class _Tracked:
    """A number that depends on sizes or values, and records what it is compared with. What is computed from it does, too."""

    by_sizes = True
    plain: Any
    """The number itself."""

    def __bool__(self) -> bool:
        return _record(bool(self.plain), float(self.plain), self)

    def __int__(self) -> int:
        _note_conversion()
        return int(self.plain)

    def __float__(self) -> float:
        _note_conversion()
        return float(self.plain)


class TrackedInt(_Tracked, int):
    """An integer."""

    plain = property(int.__pos__)
    __hash__ = int.__hash__


class TrackedFloat(_Tracked, float):
    """A floating-point number."""

    plain = property(float.__pos__)
    __hash__ = float.__hash__


def tracked(value: Any, *, by_sizes: bool) -> Any:
    """``value``, tracked if it is an int or a float; a bool is not."""
    if type(value) is int:
        made: _Tracked = TrackedInt(value)
    elif type(value) is float:
        made = TrackedFloat(value)
    else:
        return value
    made.by_sizes = by_sizes
    return made


def _number(value: Any) -> Any:
    """A Python number without its tracking; ``None`` for anything else, which has operators of its own for numbers."""
    if isinstance(value, _Tracked):
        return value.plain
    return value if type(value) in (int, float, bool) else None


def _comparison(compare: Callable[[Any, Any], bool]) -> Callable[[_Tracked, Any], Any]:
    def method(self: _Tracked, other: Any) -> Any:
        number = _number(other)
        if number is None:
            return NotImplemented
        return _record(compare(self.plain, number), self.plain - number, self, other)

    return method


def _arithmetic(compute: Callable[..., Any], *, is_reflected: bool = False) -> Callable[..., Any]:
    def method(self: _Tracked, *others: Any) -> Any:
        numbers = [_number(other) for other in others]
        if None in numbers:
            return NotImplemented
        by_sizes = all(each.by_sizes for each in (self, *others) if isinstance(each, _Tracked))
        operands = (*numbers, self.plain) if is_reflected else (self.plain, *numbers)
        return pytree.tree_map(lambda value: tracked(value, by_sizes=by_sizes), compute(*operands))

    return method


for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    for _class in (TrackedInt, TrackedFloat):  # whose bases define comparisons, and are asked before their common base
        setattr(_class, f"__{_name}__", _comparison(getattr(operator, _name)))
for _name, _operation in {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow")},
    "divmod": divmod,
}.items():
    setattr(_Tracked, f"__{_name}__", _arithmetic(_operation))
    setattr(_Tracked, f"__r{_name}__", _arithmetic(_operation, is_reflected=True))
for _name, _operation in {
    **{name: getattr(operator, name) for name in ("neg", "pos", "abs")},
    **{name: getattr(math, name) for name in ("floor", "ceil", "trunc")},
    "round": round,
}.items():
    setattr(_Tracked, f"__{_name}__", _arithmetic(_operation))


# ``int``, ``float`` and ``len`` return plain numbers whatever their arguments return. So, where a model converts numbers, these
# stand in their place.


class _Like(type):
    """The class of a class that looks like another one in ``isinstance``."""

    original: type

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.original)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.original)


def _converting_class(original: type) -> type:
    def convert(_class: type, *args: Any, **keywords: Any) -> Any:
        value, source = original(*args, **keywords), args[0] if args else None
        if isinstance(source, _Tracked):
            return tracked(value, by_sizes=source.by_sizes)
        return tracked(value, by_sizes=False) if isinstance(source, torch.Tensor) else value

    return _Like(original.__name__, (), {"__new__": convert, "original": original})


def _tracked_len(value: Any) -> int:
    return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else len(value)


_CONVERSIONS = {"int": _converting_class(int), "float": _converting_class(float), "len": _tracked_len}


@contextlib.contextmanager
def _tracked_conversions(namespaces: Collection[dict[str, Any]]) -> Iterator[None]:
    """Let ``int``, ``float`` and ``len`` in these namespaces return tracked numbers for tracked numbers and tensors."""
    added = [
        (names, name, replacement) for names in namespaces for name, replacement in _CONVERSIONS.items() if name not in names
    ]
    for names, name, replacement in added:
        names[name] = replacement
    try:
        yield
    finally:
        for names, name, _ in added:
            del names[name]


# --- recording --------------------------------------------------------------------------------------------------------

_TORCH = Path(torch.__file__).parent
_WRAPPERS = frozenset({str(_TORCH / "_tensor.py"), str(_TORCH / "overrides.py"), __file__})
"""The files whose frames are between a function of torch that the model calls and the mode."""

_COMPARISONS = frozenset({"gt", "ge", "lt", "le", "eq", "ne"})
"""The operators, too: as functions of torch, some of them are called ``__eq__`` and the like."""
_TESTS = frozenset({"__bool__", "item", "is_nonzero", "equal", "allclose", "__contains__"})
_SIZES = frozenset({"size", "numel", "nelement"})
_VALUES = frozenset({"item", "tolist"})
_CONVERTERS = frozenset({"__int__", "__float__", "__len__"})

_MAX_GAPS = 8
"""How many gaps of a boolean tensor are kept, which may be computed from many others."""


@dataclass(frozen=True)
class _Origin:
    """How a boolean tensor was computed; see :class:`Decision`."""

    gaps: tuple[float, ...]
    total: float


class _Recorder(TorchFunctionMode):
    """Records decisions, and hands out sizes and values as numbers that record them.

    Args:
        modules: the names of the model's modules by their ids.
        converting: the namespaces of functions that convert numbers are added to it, by their ids.
    """

    def __init__(self, modules: dict[int, str], converting: dict[int, dict[str, Any]]) -> None:
        super().__init__()
        self._modules, self._converting = modules, converting
        self.decisions: dict[Site, list[Decision]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if isinstance(result, torch.Tensor):
            if result.dtype is torch.bool:
                result._onnx_ci_origin = _origin(name, [*args, *(kwargs or {}).values()])  # type: ignore[attr-defined]
            return result
        if isinstance(result, torch.Size):
            return torch.Size([tracked(size, by_sizes=True) for size in result])
        if type(result) is bool and name in _TESTS:
            self.record(result, _origin_of_test(args), by_sizes=False)
        elif name in _CONVERTERS:
            self.note_conversion()
        elif name in _SIZES | _VALUES:
            return pytree.tree_map(lambda value: tracked(value, by_sizes=name in _SIZES), result)
        return result

    def record(self, outcome: bool, origin: _Origin, *, by_sizes: bool) -> None:
        """Record a decision that the model's code has just made. Torch's own are left to the exporters."""
        frame = _frame_of_model()
        if frame is not None:
            module = self._modules.get(id(frame.f_locals.get("self")), "")
            site = Site(code=frame.f_code, offset=_offset(frame), module=module)
            made = Decision(outcome=outcome, gaps=origin.gaps, total=origin.total, by_sizes=by_sizes)
            self.decisions.setdefault(site, []).append(made)

    def note_conversion(self) -> None:
        """Note that the model's code has just converted a number."""
        frame = _frame_of_model()
        if frame is not None:
            self._converting[id(frame.f_globals)] = frame.f_globals


_PRECALL = dis.opmap.get("PRECALL")
_PRECALL_SIZE = 4
"""In bytes, with its cache."""


def _offset(frame: FrameType) -> int:
    """The offset of the instruction that runs in ``frame``, the same in each run.

    Python 3.11 has two instructions for a call, and runs them as one when it has run them a few times.
    """
    offset, code = frame.f_lasti, frame.f_code.co_code
    is_second = _PRECALL is not None and offset >= _PRECALL_SIZE and code[offset - _PRECALL_SIZE] == _PRECALL
    return offset - _PRECALL_SIZE if is_second else offset


_recorder: _Recorder | None = None
"""The recorder of the current run. Numbers can outlive the run that made them, and then record nothing."""


@contextlib.contextmanager
def _recording(recorder: _Recorder) -> Iterator[None]:
    global _recorder
    _recorder = recorder
    try:
        with recorder:
            yield
    finally:
        _recorder = None


def _record(outcome: bool, gap: float, *operands: Any) -> bool:
    if _recorder is not None:
        by_sizes = all(each.by_sizes for each in operands if isinstance(each, _Tracked))
        _recorder.record(outcome, _Origin((_finite(gap),), _finite(gap)), by_sizes=by_sizes)
    return outcome


def _note_conversion() -> None:
    if _recorder is not None:
        _recorder.note_conversion()


def _frame_of_model() -> FrameType | None:
    """The frame that has just called a function of torch or used a number; ``None`` if torch itself has."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in _WRAPPERS:
        frame = frame.f_back
    return None if frame is None or _is_of_torch(frame.f_code.co_filename) else frame


@functools.cache
def _is_of_torch(file: str) -> bool:
    return Path(file).is_relative_to(_TORCH)


def _origin(name: str, args: Sequence[Any]) -> _Origin:
    """How the function ``name`` computed a boolean tensor from ``args``."""
    tensors = tensor_leaves(args)
    before = [each._onnx_ci_origin for each in tensors if hasattr(each, "_onnx_ci_origin")]
    if before:
        gaps = dict.fromkeys(gap for origin in before for gap in origin.gaps)
        return _Origin(tuple(gaps)[:_MAX_GAPS], sum(origin.total for origin in before))
    if name.strip("_") in _COMPARISONS:
        left, right = (torch.as_tensor(each) for each in args[:2])
        if not left.is_complex() and not right.is_complex():
            gap = left.double() - right.double()
            ends = (gap.min(), gap.max()) if gap.numel() else ()
            return _Origin(tuple(dict.fromkeys(map(_finite, ends))), _total(gap))
    return _Origin((), sum(map(_total, tensors)))


def _origin_of_test(args: Sequence[Any]) -> _Origin:
    """What the outcome of a test of tensors depends on: for one number, whether it is zero."""
    if len(args) == 1 and isinstance(args[0], torch.Tensor):
        known: _Origin | None = getattr(args[0], "_onnx_ci_origin", None)
        total = _total(args[0])
        return known or _Origin(() if args[0].dtype is torch.bool else (total,), total)
    return _origin("", args)


def _total(tensor: torch.Tensor) -> float:
    """A number that changes with the values of a tensor: the value itself if it has only one."""
    values = tensor.detach().abs() if tensor.is_complex() else tensor.detach()
    return float(values.double().nan_to_num().sum())


def _finite(value: Any) -> float:
    """A number as it is if it is finite, and zero otherwise, because NaN is not equal to itself."""
    return float(value) if math.isfinite(value) else 0.0
