"""What onnx-ci asks of a model, and how a ``torch.nn.Module`` answers.

A new kind of object, or a module that answers in another way, gets its branch in these functions:

- which arguments it takes: :func:`signature_of`;
- its weights, which are its parameters and buffers: :func:`weights_of`, :func:`named_weights_of`;
- whether a copy would be independent of it, and the copy: :func:`refers_to_itself`, :func:`copy_modules`;
- which memory a copy can share with it: :func:`shared_weights`.

The rest is asked with the methods of ``torch.nn.Module``, each in one place: ``train`` and a call in ``live_model`` (``build``
and ``run_tree``), ``to`` a device in ``live_model.move``, ``double`` in ``copies``, forward hooks in ``probe_weights``.
"""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import torch


def signature_of(model: torch.nn.Module) -> inspect.Signature | None:
    """The signature of ``forward``, or ``None`` for a scripted model that has none."""
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):
        return None
    if isinstance(model, torch.jit.ScriptModule):  # a method compiled by script_method still has self
        signature = signature.replace(parameters=[each for each in signature.parameters.values() if each.name != "self"])
    return signature


def weights_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """The parameters and buffers, each once."""
    return [*model.parameters(), *model.buffers()]


def named_weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers by name. Of several names of one tensor, the first counts."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


# --- copies -----------------------------------------------------------------------------------------------------------


def refers_to_itself(model: torch.nn.Module) -> bool:
    """Whether a copy would use the model itself: one of its attributes or hooks is a closure, which is not copied."""
    for module in model.modules():
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]  # torch lists them nowhere else
        if any(isinstance(value, FunctionType) and value.__closure__ for value in (*vars(module).values(), *hooks)):
            return True
    return False


def copy_modules(model: torch.nn.Module, memo: dict[Any, Any]) -> None:
    """Copy the modules of a model as :func:`copy.deepcopy` does, into its memo, except for those with a way of their own.

    Most attributes of a module are empty dictionaries of hooks, or numbers, with which :func:`copy.deepcopy` spends most of its
    time.
    """
    usual = [module for module in model.modules() if _is_copied_as_usual(type(module))]
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


def shared_weights(model: torch.nn.Module, inputs: Sequence[torch.Tensor], *, is_written: bool) -> dict[Any, Any]:
    """The memo for :func:`copy.deepcopy` with which a copy shares the memory of weights and inputs until it writes to them.

    Most copies are only read, so this saves time, and the memory of a large model.

    Args:
        inputs: the tensors among the arguments of a call.
        is_written: whether parameters, too, may be written to. Reading their memory counts as writing.
    """
    lazy = getattr(torch, "_lazy_clone", None)  # has no public name
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
    for parameter in model.parameters():
        if type(parameter) is torch.nn.Parameter and can_share(parameter):
            data = lazy(parameter.detach()) if is_written else parameter.detach()
            shared[id(parameter)] = torch.nn.Parameter(data, parameter.requires_grad)
    # What several tensors share is copied as a whole. Here torch looks for the copies of storages.
    shared["torch"] = {
        tensor.untyped_storage()._cdata: lazy(tensor.detach()).untyped_storage()
        for tensor in (*model.buffers(), *inputs)
        if type(tensor) is torch.Tensor and can_share(tensor)
    }
    return shared
