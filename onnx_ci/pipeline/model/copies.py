"""Copies of a live model: one for each use, or one for all runs if running the model has no side effects."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import torch

from onnx_ci.pipeline.model.call import Call, filled, input_tensors, recipe_error, with_inputs
from onnx_ci.pipeline.model.float64_on_use import Float64OnUse
from onnx_ci.pipeline.model.module import (
    has_closures,
    keep_modes,
    plain_weights_of,
    shared_memory,
    shares_weights,
    to_cpu,
    weights_of,
)
from onnx_ci.pipeline.model.running import run_tree

LARGE = 2**29
"""From how many bytes of weights on memory counts more than time."""


def is_large(model: torch.nn.Module) -> bool:
    """Whether the weights of a model take so much memory that copies of them are avoided."""
    return sum(weight.numel() * weight.element_size() for weight in plain_weights_of(model)) >= LARGE


class Copies:
    """Provides copies of a call; the call itself is never run or changed.

    ``eps`` is the machine epsilon of the device's arithmetic, if it is coarser than the data types'.
    """

    def __init__(self, pristine: Call, rebuild: Callable[[], Call], *, eps: float = 0.0) -> None:
        self.pristine = pristine
        self.eps = eps
        self._rebuild = rebuild
        self._shares = False
        self._used: Call | None = None
        self._on_cpu: Call | None = None
        self._in_float64: tuple[Call, AbstractContextManager[object]] | None = None
        """A copy in float64 and the context in which it runs."""
        self._converts_on_use = is_large(pristine.model)
        self.try_on_cpu_first = False
        """Whether new inputs are tried on the CPU first: see :meth:`try_on_cpu`."""
        self.is_watchable = True
        """Whether the model computes the same, bit for bit, under an :class:`Intervention` that changes nothing."""

    def fresh(self, *, has_same_parameters: bool = False) -> Call:
        """A new copy, which the caller may run, change or export; with the parameters themselves, only run or export.

        A :class:`PrepareError` says that the model can be neither copied nor rebuilt.
        """
        copied = copied_call(self.pristine, has_same_parameters=has_same_parameters)
        if copied is not None:
            return copied
        rebuilt = self._rebuild()
        if rebuilt.model is self.pristine.model or shares_weights(rebuilt.model, self.pristine.model):
            message = "the recipe returns the same model every time, and it cannot be copied"
            raise recipe_error(message, "Build the model inside the recipe.")
        return rebuilt

    def first_run(self) -> Any:
        """Run a copy, which is kept as :attr:`used`, and return its result unchanged."""
        self._used = self.fresh()
        return run_tree(with_inputs(self._used))

    @property
    def used(self) -> Call:
        """The copy that :meth:`first_run` ran, with inputs that no run has seen."""
        return self._used or self.fresh()

    def share(self) -> None:
        """From now on, use one copy for all runs, because running the model has no side effects."""
        self._shares = True

    def release(self) -> Call | None:
        """Release the copies that have run, which take the memory of three models, and return the one that runs shared."""
        shared = with_inputs(self._used) if self._shares and self._used is not None else None
        self._shares, self._used, self._on_cpu, self._in_float64 = False, None, None, None
        return shared

    def running(self, inputs: Sequence[torch.Tensor] | None = None) -> Call:
        """A copy to run once, with other ``inputs`` (flattened, in the order of the graph's) if given."""
        return with_inputs(self.used if self._shares else self.fresh(), inputs)

    def try_on_cpu(self, inputs: Sequence[torch.Tensor]) -> None:
        """Run the model on the CPU first, if :attr:`try_on_cpu_first`: on a GPU, an index out of range makes CUDA unusable."""
        if self.try_on_cpu_first:
            run_tree(self.on_cpu(inputs))

    def on_cpu(self, inputs: Sequence[torch.Tensor] | None = None) -> Call:
        """A copy on the CPU, to run once. Raises what moving the model raises."""
        if self._on_cpu is None or not self._shares:
            fresh = self.fresh()
            self._on_cpu = Call(model=to_cpu(fresh.model), args=fresh.args, kwargs=fresh.kwargs)
        tensors = input_tensors(self._on_cpu) if inputs is None else inputs
        return filled(self._on_cpu, [tensor.to("cpu", copy=True) for tensor in tensors])

    @contextlib.contextmanager
    def in_float64(self, inputs: Sequence[torch.Tensor] | None = None) -> Iterator[Call]:
        """A copy on the CPU with weights and inputs in float64, to run once within the context.

        The large weights of a large model are converted on use, unless :meth:`convert_at_once` was called.
        """
        if self._in_float64 is None or not self._shares:
            on_use = Float64OnUse()
            placeholders = on_use.placeholders(weights_of(self.pristine.model)) if self._converts_on_use else {}
            copied = copied_call(self.pristine, placeholders=placeholders) if placeholders else None
            self._converts_on_use = copied is not None
            fresh = copied or self.fresh()
            converted = Call(model=to_cpu(fresh.model).double(), args=fresh.args, kwargs=fresh.kwargs)
            self._in_float64 = converted, contextlib.nullcontext() if copied is None else on_use
        call, conversion = self._in_float64
        tensors = input_tensors(call) if inputs is None else inputs
        types = [torch.float64 if tensor.is_floating_point() else tensor.dtype for tensor in tensors]
        with conversion:
            yield filled(call, [tensor.to("cpu", dtype, copy=True) for tensor, dtype in zip(tensors, types, strict=True)])

    def convert_at_once(self) -> bool:
        """From now on, convert all weights in :meth:`in_float64`. Whether those of the last call were converted on use."""
        converted_on_use, self._converts_on_use, self._in_float64 = self._converts_on_use, False, None
        return converted_on_use


def copied_call(
    call: Call, *, has_same_parameters: bool = False, placeholders: Mapping[int, torch.Tensor] = MappingProxyType({})
) -> Call | None:
    """A copy of ``call``, with ``placeholders`` for weights by their ids; ``None`` if it would not be independent."""
    if has_closures(call.model):
        return None
    try:
        memo = shared_memory(call.model, input_tensors(call), is_written=not has_same_parameters)
        copied = copy.deepcopy(call, memo | dict(placeholders))
    except Exception:  # copying a model can raise anything
        return None
    if shares_weights(copied.model, call.model):
        return None
    keep_modes(copied.model, call.model)
    return copied
