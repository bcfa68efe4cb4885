"""What a model decides by numbers in its own type, replayed in float64.

An operator that makes booleans or integers of floating numbers, or steps such as those of ``floor``, decides something. Where
the numbers are equal but for rounding, float64 decides otherwise than the model: ``torch.arange(60) < 0.8 * 60`` is true 48
times in float32 and 49 times in float64. What follows differs by far more than rounding, and would be taken for noise.

So the model runs once more in its own type, and its decisions are recorded. Then it runs in float64, and each decision that is
another one there is replaced by the recorded one. A file is compared with what the model itself has decided.

A decision is replaced only if half of the digits of the numbers that it depends on are right. What a cancellation leaves is
mostly rounding, and a decision by it is arbitrary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from onnx_ci.pipeline.model.operators import WrappingMode, tensor_leaves, written_to
from onnx_ci.pipeline.model.tensors import differences, has_noise, has_same_values

_STEPS = frozenset({"floor", "ceil", "trunc", "fix", "round", "sign", "heaviside", "floor_divide"})
"""Operators, in place or not, that return whole numbers in a floating type."""


class OtherRunError(Exception):
    """Decisions cannot be replayed: the run computes something else than the recorded one, or from imprecise numbers."""


class _Decision(NamedTuple):
    """A call of an operator that decides something."""

    operator: Any
    decided_by: Sequence[torch.Tensor]
    """The floating tensors among its arguments."""
    leaves: Sequence[Any]
    """Its results, of which those that :func:`_is_decision` are replayed."""


class RecordedDecisions(WrappingMode):  # type: ignore[no-untyped-call]
    """Records what the model decides while the mode is active.

    Args:
        eps: the machine epsilon of the model's own type.
    """

    def __init__(self, eps: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._precision = eps**0.5
        self._decisions: list[_Decision] = []
        self.are_replaced = False
        """Whether a run in float64 has decided something otherwise."""

    def call_operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Record what the operator decides."""
        decided_by = _numbers(func, args, kwargs)
        result = func(*args, **kwargs)
        if decided_by and any(_is_decision(func, kwargs, leaf) for leaf in pytree.tree_leaves(result)):
            self._decisions.append(_Decision(func, _copied(decided_by), _copied(pytree.tree_leaves(result))))
        return result

    @contextlib.contextmanager
    def replayed(self) -> Iterator[None]:
        """A run in float64 within this context takes the recorded decisions.

        Raises:
            OtherRunError: it cannot.
        """
        mode = _Replay(self._decisions, self._precision)
        with mode:
            yield
        mode.check_complete()
        self.are_replaced = mode.has_replaced


class _Replay(WrappingMode):  # type: ignore[no-untyped-call]
    """Replaces decisions by recorded ones.

    Args:
        decisions: those of a run of the same model on the same inputs.
        precision: how far numbers may be from those of that run, as a share of the largest.
    """

    def __init__(self, decisions: Sequence[_Decision], precision: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._decisions, self._precision = decisions, precision
        self._count = 0
        """How many decisions the run has come to."""
        self.has_replaced = False

    def check_complete(self) -> None:
        """Check that the run has come to all recorded decisions."""
        if self._count < len(self._decisions):
            raise OtherRunError(f"the recorded run also called {self._decisions[self._count].operator}")

    def call_operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        decided_by = _numbers(func, args, kwargs)
        result = func(*args, **kwargs)
        leaves, tree = pytree.tree_flatten(result)
        decisions = [place for place, leaf in enumerate(leaves) if decided_by and _is_decision(func, kwargs, leaf)]
        if not decisions:
            return result
        recorded = next(iter(self._decisions[self._count : self._count + 1]), None)
        if recorded is None or recorded.operator is not func:
            raise OtherRunError(f"the recorded run did not call {func} here")
        self._count += 1
        others = [place for place in decisions if not _is_same(leaves[place], recorded.leaves[place])]
        if others:
            self._check_precision(recorded, decided_by)
            self.has_replaced = True
        for place in others:
            leaves[place] = _replayed(leaves[place], recorded.leaves[place], in_place=bool(written_to(func, args, kwargs)))
        return pytree.tree_unflatten(leaves, tree)

    def _check_precision(self, recorded: _Decision, decided_by: Sequence[torch.Tensor]) -> None:
        for own, exact in zip(recorded.decided_by, decided_by, strict=True):
            largest = exact[torch.isfinite(exact)].abs().max() if bool(torch.isfinite(exact).any()) else 0.0
            if own.shape != exact.shape or bool((differences(own, exact) > self._precision * largest).any()):
                raise OtherRunError(f"{recorded.operator} decides by imprecise numbers")


def _numbers(func: Any, args: Any, kwargs: Any) -> Sequence[torch.Tensor]:
    """The floating tensors among the arguments of an operator, as they are before it runs."""
    numbers = [tensor.detach() for tensor in tensor_leaves((args, kwargs)) if has_noise(tensor)]
    return _copied(numbers) if written_to(func, args, kwargs) else numbers


def _copied(leaves: Sequence[Any]) -> list[Any]:
    """Copies on the CPU, because the model may overwrite its own."""
    return [leaf.detach().to("cpu", copy=True) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _is_decision(func: Any, kwargs: Mapping[str, Any], result: Any) -> bool:
    """Whether one of the results of an operator on floating numbers is a decision."""
    if not isinstance(result, torch.Tensor):
        return isinstance(result, bool)
    return not (result.is_floating_point() or result.is_complex()) or _returns_steps(func, kwargs)


def _returns_steps(func: Any, kwargs: Mapping[str, Any]) -> bool:
    name = func.overloadpacket.__name__.removesuffix("_")
    return (name in _STEPS and not kwargs.get("decimals")) or (name == "div" and bool(kwargs.get("rounding_mode")))


def _is_same(result: Any, recorded: Any) -> bool:
    if not isinstance(result, torch.Tensor):
        return bool(result == recorded)
    return result.shape == recorded.shape and has_same_values(result.cpu(), recorded.to(result.dtype))


def _replayed(result: Any, recorded: Any, *, in_place: bool) -> Any:
    """The recorded result in the place of another one."""
    if not isinstance(result, torch.Tensor):
        return recorded
    own = recorded.to(result.device, result.dtype, copy=True)
    return result.copy_(own) if in_place else own
