"""Copies of a live model: one for each use, or one for all runs if running the model has no side effects."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from onnx_ci.stages.model.converted_on_use import ConvertedOnUse, converted_on_use
from onnx_ci.stages.model.live_model import Call, input_tensors, recipe_error, run_tree, with_inputs, with_own_inputs

LARGE = 2**29
"""From how many bytes of weights on memory counts more than time."""


def is_large(model: torch.nn.Module) -> bool:
    """Whether the weights of a model take so much memory that copies of them are avoided."""
    weights = (*model.parameters(), *model.buffers())
    return sum(each.numel() * each.element_size() for each in weights if not is_lazy(each)) >= LARGE


class Copies:
    """Provides copies of a call; the call itself is never run or changed.

    Args:
        pristine: the call to copy.
        rebuild: builds the call again, for a model that cannot be copied.
        eps: the machine epsilon of the device's arithmetic, if it is coarser than the data types'.
    """

    def __init__(self, pristine: Call, rebuild: Callable[[], Call], *, eps: float = 0.0) -> None:
        self.pristine = pristine
        self.eps = eps
        self._rebuild = rebuild
        self._shares = False
        self._used: Call | None = None
        self._on_cpu: Call | None = None
        self._in_float64: Call | None = None
        self._converts_on_use = is_large(pristine.model)
        self.try_on_cpu_first = False
        """Whether new inputs are tried on the CPU first: see :meth:`try_on_cpu`."""

    def fresh(self, *, has_same_parameters: bool = False) -> Call:
        """A new copy, which the caller may run, change or export.

        Args:
            has_same_parameters: whether it has the parameters themselves, which the caller must not change.

        Raises:
            PrepareError: the model can be neither copied nor rebuilt.
        """
        copied = copied_call(self.pristine, has_same_parameters=has_same_parameters)
        if copied is not None:
            return copied
        rebuilt = self._rebuild()
        if rebuilt.model is self.pristine.model:
            message = "the recipe returns the same model every time, and it cannot be copied"
            raise recipe_error(message, "Build the model inside the recipe.")
        return rebuilt

    def first_run(self) -> Any:
        """Run a copy, which is kept as :attr:`used`, and return its result unchanged."""
        self._used = self.fresh()
        return run_tree(with_own_inputs(self._used))

    @property
    def used(self) -> Call:
        """The copy that :meth:`first_run` ran, with inputs that no run has seen."""
        return self._used or self.fresh()

    def share(self) -> None:
        """From now on, reuse one copy for all runs, because running the model has no side effects."""
        self._shares = True

    def release(self) -> Call | None:
        """Release the copies that have run; they take the memory of three models.

        Returns:
            The one that all runs shared, if they did. It may be used up.
        """
        shared = with_own_inputs(self._used) if self._shares and self._used is not None else None
        self._shares, self._used, self._on_cpu, self._in_float64 = False, None, None, None
        return shared

    def running(self, inputs: Sequence[torch.Tensor] | None = None) -> Call:
        """A copy to run once, with other ``inputs`` (flattened, in the order of the graph's) if given."""
        return _with_copied_inputs(self.used if self._shares else self.fresh(), inputs)

    def try_on_cpu(self, inputs: Sequence[torch.Tensor]) -> None:
        """Run the model on the CPU first, if :attr:`try_on_cpu_first`: on a GPU, an index out of range makes CUDA unusable.

        Raises:
            PrepareError: the model rejects the inputs.
        """
        if self.try_on_cpu_first:
            run_tree(self.on_cpu(inputs))

    def on_cpu(self, inputs: Sequence[torch.Tensor] | None = None) -> Call:
        """A copy on the CPU, to run once. Raises what moving the model raises."""
        if self._on_cpu is None or not self._shares:
            fresh = self.fresh()
            self._on_cpu = Call(model=fresh.model.cpu(), args=fresh.args, kwargs=fresh.kwargs)
        call = _with_copied_inputs(self._on_cpu, inputs)
        args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, (call.args, call.kwargs))
        return Call(model=call.model, args=args, kwargs=kwargs)

    def in_float64(self, inputs: Sequence[torch.Tensor] | None = None) -> Call:
        """A copy on the CPU with weights and inputs in float64. Raises what converting the model raises.

        A large model has weights that are converted on use: see :meth:`convert_at_once`.
        """
        if self._in_float64 is None or not self._shares:
            on_use = copied_call(self.pristine, converts_on_use=True) if self._converts_on_use else None
            self._converts_on_use = on_use is not None and _has_any_on_use(on_use.model)
            fresh = on_use or self.fresh()
            self._in_float64 = Call(model=fresh.model.cpu().double(), args=fresh.args, kwargs=fresh.kwargs)
        call = _with_copied_inputs(self._in_float64, inputs)
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda t: t.cpu().double() if t.is_floating_point() else t.cpu(), (call.args, call.kwargs)
        )
        return Call(model=call.model, args=args, kwargs=kwargs)

    def convert_at_once(self) -> bool:
        """From now on, convert all weights in :meth:`in_float64`, for a model that cannot run otherwise.

        Returns:
            Whether the last call had any that are converted on use.
        """
        had_any, self._converts_on_use, self._in_float64 = self._converts_on_use, False, None
        return had_any


def _with_copied_inputs(call: Call, inputs: Sequence[torch.Tensor] | None) -> Call:
    """``call`` with copies of ``inputs``, or of its own."""
    return with_own_inputs(call) if inputs is None else with_inputs(call, inputs)


def _has_any_on_use(model: torch.nn.Module) -> bool:
    return any(isinstance(each, ConvertedOnUse) for each in (*model.parameters(), *model.buffers()))


def copied_call(call: Call, *, has_same_parameters: bool = False, converts_on_use: bool = False) -> Call | None:
    """A copy of ``call``, or ``None`` if a copy would not be independent.

    Args:
        has_same_parameters: whether the copy has the parameters themselves.
        converts_on_use: whether its large weights are those of ``call`` in float64, converted on use.
    """
    modules = [*call.model.modules()]
    for module in modules:
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        if any(isinstance(value, FunctionType) and value.__closure__ for value in (*vars(module).values(), *hooks)):
            return None  # a closure is not copied and would use the original's parameters
    try:
        memo = _shared_until_written(call, is_written=not has_same_parameters)
        if converts_on_use:
            memo |= converted_on_use((*call.model.parameters(), *call.model.buffers()))
        _copy_modules(modules, memo)
        return copy.deepcopy(call, memo)
    except Exception:  # copying a model can raise anything
        return None


def _copy_modules(modules: Iterable[torch.nn.Module], memo: dict[Any, Any]) -> None:
    """Copy modules as :func:`copy.deepcopy` does, and note them in its memo, except for those with a way of their own.

    Most attributes of a module are empty dictionaries of hooks, or numbers, with which :func:`copy.deepcopy` spends most of its
    time.
    """
    usual = [module for module in modules if _is_copied_as_usual(type(module))]
    memo |= {id(module): type(module).__new__(type(module)) for module in usual}  # they may refer to each other
    for module in usual:
        state = {
            name: value if type(value) in _IMMUTABLE
            else type(value)() if type(value) in _EMPTY and not value
            else copy.deepcopy(value, memo)
            for name, value in module.__getstate__().items()  # type: ignore[no-untyped-call]
        }  # fmt: skip
        memo[id(module)].__setstate__(state)


_EMPTY = (dict, OrderedDict, set)
_IMMUTABLE = (bool, int, float, str, type(None))


def _is_copied_as_usual(module: type[torch.nn.Module]) -> bool:
    names = ("__new__", "__reduce__", "__reduce_ex__", "__getstate__")
    is_usual = all(getattr(module, name) is getattr(torch.nn.Module, name) for name in names)
    return is_usual and not hasattr(module, "__deepcopy__") and not hasattr(module, "__slots__")


def _shared_until_written(call: Call, *, is_written: bool) -> dict[Any, Any]:
    """The memo for :func:`copy.deepcopy` that makes weights and arguments copy-on-write.

    Most copies are only read, so this saves time, and the memory of a large model.

    Args:
        is_written: whether parameters, too, may be written to. Reading their memory counts as writing.
    """
    lazy = getattr(torch, "_lazy_clone", None)
    if lazy is None:
        return {}

    def can_share(tensor: torch.Tensor) -> bool:
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or not tensor.is_contiguous():
            return False
        if tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            return False  # the copy would lose that
        # What is read from a file has no allocator, and torch crashes when a copy of it is written to.
        return tensor.untyped_storage().resizable()

    shared: dict[Any, Any] = {}
    for parameter in call.model.parameters():
        if type(parameter) is torch.nn.Parameter and can_share(parameter):
            data = lazy(parameter.detach()) if is_written else parameter.detach()
            shared[id(parameter)] = torch.nn.Parameter(data, parameter.requires_grad)
    storages = {}
    for tensor in (*call.model.buffers(), *input_tensors(call)):
        if type(tensor) is torch.Tensor and can_share(tensor):
            if _is_alone(tensor):
                shared[id(tensor)] = lazy(tensor)
            else:  # what several share is copied as a whole
                storages[tensor.untyped_storage()._cdata] = lazy(tensor.detach()).untyped_storage()
    return {**shared, "torch": storages}


def _is_alone(tensor: torch.Tensor) -> bool:
    """Whether a copy of a tensor's values is a copy of all that it is: no other tensor shares its memory."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    if count is None or tensor.requires_grad or not tensor.is_leaf or vars(tensor):
        return False
    storage = tensor.untyped_storage()
    return storage.nbytes() == tensor.nbytes and bool(count(storage._cdata) <= _OWN_USERS)


_OWN_USERS = 2
"""What uses the memory of a tensor: itself, and the object that stands for the memory."""
