"""What a model decides by numbers in its own type, replayed in float64.

An operator that makes booleans or integers of floating numbers, or steps such as those of ``floor``, decides something. Where
the numbers are equal but for rounding, float64 decides otherwise than the model: ``torch.arange(60) < 0.8 * 60`` is true 48
times in float32 and 49 times in float64. What follows differs by far more than rounding, and would be taken for noise. So the
decisions of a run in the model's own type are recorded, and replace others in float64, but only if half of the digits of the
numbers that they depend on are right: a decision by what a cancellation leaves is arbitrary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from onnx_ci.pipeline.model.operators import Intervention, OperatorCall
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
    results: Sequence[Any]
    """Its results, of which those that :func:`_is_decision` are replayed."""


class RecordedDecisions(Intervention):
    """Records what the model decides while the mode is active; ``eps`` is the machine epsilon of its own type."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self._precision = eps**0.5
        self._decisions: list[_Decision] = []
        self.are_replaced = False
        """Whether a run in float64 has decided something otherwise."""

    def run(self, call: OperatorCall) -> Any:
        """Run an operator, and record what it decides."""
        decided_by = _numbers(call)
        result = call.run()
        results = pytree.tree_leaves(result)
        if decided_by and any(_is_decision(call, each) for each in results):
            self._decisions.append(_Decision(call.operator, _copied(decided_by), _copied(results)))
        return result

    @contextlib.contextmanager
    def replayed(self) -> Iterator[None]:
        """A run in float64 within this context takes the recorded decisions; an :class:`OtherRunError` says that it cannot."""
        replay = _Replay(self._decisions, self._precision)
        with replay:
            yield
        for left in replay.decisions:
            raise OtherRunError(f"the recorded run also called {left.operator}")
        self.are_replaced = replay.has_replaced


class _Replay(Intervention):
    """Replaces decisions by recorded ones; numbers may be off by ``precision``, as a share of the largest."""

    def __init__(self, decisions: Sequence[_Decision], precision: float) -> None:
        super().__init__()
        self.decisions, self._precision = iter(decisions), precision
        """Those that the run has not come to."""
        self.has_replaced = False

    def run(self, call: OperatorCall) -> Any:
        decided_by = _numbers(call)
        result = call.run()
        results, tree = pytree.tree_flatten(result)
        if not decided_by or not any(_is_decision(call, each) for each in results):
            return result
        recorded = next(self.decisions, None)
        if recorded is None or recorded.operator is not call.operator:
            raise OtherRunError(f"the recorded run did not call {call.operator} here")
        pairs = [*zip(results, recorded.results, strict=True)]
        if not any(_is_other(call, *pair) for pair in pairs):
            return result
        for own, exact in zip(recorded.decided_by, decided_by, strict=True):
            largest = exact[torch.isfinite(exact)].abs().max() if bool(torch.isfinite(exact).any()) else 0.0
            if own.shape != exact.shape or bool((differences(own, exact) > self._precision * largest).any()):
                raise OtherRunError(f"{recorded.operator} decides by imprecise numbers")
        self.has_replaced = True
        replayed = [_replayed(call, *pair) if _is_other(call, *pair) else pair[0] for pair in pairs]
        return pytree.tree_unflatten(replayed, tree)


def _numbers(call: OperatorCall) -> Sequence[torch.Tensor]:
    """The floating tensors among the arguments of an operator, as they are before it runs."""
    numbers = [tensor.detach() for tensor in call.operands if has_noise(tensor)]
    return _copied(numbers) if call.writes else numbers


def _copied(leaves: Sequence[Any]) -> list[Any]:
    """Copies on the CPU, because the model may overwrite its own."""
    return [leaf.detach().to("cpu", copy=True) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _is_decision(call: OperatorCall, result: Any) -> bool:
    """Whether one of the results of an operator on floating numbers is a decision."""
    if not isinstance(result, torch.Tensor):
        return isinstance(result, bool)
    if not (result.is_floating_point() or result.is_complex()):
        return True
    name = call.name.rpartition("::")[2].removesuffix("_")
    return (name in _STEPS and not call.kwargs.get("decimals")) or (name == "div" and bool(call.kwargs.get("rounding_mode")))


def _is_other(call: OperatorCall, result: Any, recorded: Any) -> bool:
    """Whether a result is a decision other than the recorded one."""
    if not _is_decision(call, result) or not isinstance(result, torch.Tensor):
        return isinstance(result, bool) and result != recorded
    return result.shape != recorded.shape or not has_same_values(result.cpu(), recorded.to(result.dtype))


def _replayed(call: OperatorCall, result: Any, recorded: Any) -> Any:
    if not isinstance(result, torch.Tensor):
        return recorded
    return call.replace_result(result, recorded.to(result.device, result.dtype, copy=True))
