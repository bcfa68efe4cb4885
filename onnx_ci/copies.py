"""Copies of a live model: one for each use, or one for all runs where running it changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_ci.calls import Call, recipe_error, run_tree, with_inputs


class Copies:
    """Gives out copies of a call that itself is never run or changed.

    Args:
        pristine: the call to copy.
        rebuild: builds the call anew, for a model that cannot be copied.
        eps: the relative spacing at which the device computes, where that is coarser than its types.
    """

    def __init__(self, pristine: Call, rebuild: Callable[[], Call], *, eps: float = 0.0) -> None:
        self.pristine = pristine
        self.eps = eps
        self._rebuild = rebuild
        self._shares = False
        self._used: Call | None = None
        self._on_cpu: Call | None = None
        self._in_float64: Call | None = None
        self.rehearses = False
        """Whether inputs that nobody has tried are tried on the CPU first: see :meth:`rehearse`."""

    def fresh(self) -> Call:
        """A copy of one's own, to run, change or export.

        Raises:
            PrepareError: the model can neither be copied nor built anew.
        """
        copied = copied_call(self.pristine)
        if copied is not None:
            return copied
        rebuilt = self._rebuild()
        if rebuilt.model is self.pristine.model:
            said = "the recipe returns one and the same model each time, which cannot be copied"
            raise recipe_error(said, "Build the model inside the recipe.")
        return rebuilt

    def first_run(self) -> Any:
        """What the model returns, as it returns it, when it is run; the copy that did is kept as :attr:`used`."""
        self._used = self.fresh()
        return run_tree(self._used)

    @property
    def used(self) -> Call:
        """The copy that had the first run."""
        return self._used or self.fresh()

    def share(self) -> None:
        """From now on, run one copy again and again, those that ran already included: running the model changes nothing."""
        self._shares = True

    def release(self) -> None:
        """Give up the copies that have run; their memory is that of three models."""
        self._shares, self._used, self._on_cpu, self._in_float64 = False, None, None, None

    def running(self, inputs: Sequence[torch.Tensor] | None = None) -> Call:
        """A copy to run once, with other ``inputs`` (flattened, as the graph's) if given."""
        return _with_own_inputs(self.used if self._shares else self.fresh(), inputs)

    def rehearse(self, inputs: Sequence[torch.Tensor]) -> None:
        """Let the model refuse inputs on the CPU. On a GPU one index out of range ends the process's use of CUDA for good.

        Raises:
            PrepareError: the model refuses them.
        """
        if self.rehearses:
            run_tree(self.on_cpu(inputs))

    def on_cpu(self, inputs: Sequence[torch.Tensor] | None = None) -> Call:
        """A copy on the CPU, to run once. Raises what moving a model's parts raises."""
        if self._on_cpu is None or not self._shares:
            fresh = self.fresh()
            self._on_cpu = Call(model=fresh.model.cpu(), args=fresh.args, kwargs=fresh.kwargs)
        call = _with_own_inputs(self._on_cpu, inputs)
        args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, (call.args, call.kwargs))
        return Call(model=call.model, args=args, kwargs=kwargs)

    def in_float64(self, inputs: Sequence[torch.Tensor] | None = None) -> Call:
        """The same on the CPU, weights and inputs in float64. Raises what moving a model's parts to another type raises."""
        if self._in_float64 is None or not self._shares:
            fresh = self.fresh()
            self._in_float64 = Call(model=fresh.model.cpu().double(), args=fresh.args, kwargs=fresh.kwargs)
        call = _with_own_inputs(self._in_float64, inputs)
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda t: t.cpu().double() if t.is_floating_point() else t.cpu(), (call.args, call.kwargs)
        )
        return Call(model=call.model, args=args, kwargs=kwargs)


def _with_own_inputs(call: Call, inputs: Sequence[torch.Tensor] | None) -> Call:
    """``call`` with arguments that nobody else holds, so that a model may change them."""
    if inputs is not None:
        return with_inputs(call, [tensor.clone() for tensor in inputs])
    args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, (call.args, call.kwargs))
    return Call(model=call.model, args=args, kwargs=kwargs)


def copied_call(call: Call) -> Call | None:
    """A copy of ``call``, or ``None`` where a copy would not stand on its own."""
    for module in call.model.modules():
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        if any(isinstance(value, FunctionType) and value.__closure__ for value in (*vars(module).values(), *hooks)):
            return None  # a closure is not copied: it would go on using the original's parameters
    try:
        return copy.deepcopy(call, _shared_until_written(call.model))
    except Exception:  # copy.deepcopy raises whatever a model's own parts raise
        return None


def _shared_until_written(model: torch.nn.Module) -> dict[Any, Any]:
    """What :func:`copy.deepcopy` need not copy: weights that copy and original share until one of them is written to.

    Most copies are only read, and a copy of a large model would cost as much memory as the model.
    """
    lazy = getattr(torch, "_lazy_clone", None)
    if lazy is None:
        return {}

    def can_share(tensor: torch.Tensor) -> bool:
        return tensor.layout is torch.strided and tensor.device.type == "cpu" and tensor.is_contiguous()

    shared: dict[Any, Any] = {}
    for parameter in model.parameters():
        if type(parameter) is torch.nn.Parameter and can_share(parameter):
            shared[id(parameter)] = torch.nn.Parameter(lazy(parameter.detach()), parameter.requires_grad)
    # Other tensors are copied by their storage, which several of them may share.
    storages = {
        buffer.untyped_storage()._cdata: lazy(buffer.detach()).untyped_storage()
        for buffer in model.buffers()
        if type(buffer) is torch.Tensor and can_share(buffer)
    }
    return {**shared, "torch": storages}
