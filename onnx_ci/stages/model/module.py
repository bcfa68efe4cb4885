"""What onnx-ci asks of a model, and how a ``torch.nn.Module`` answers.

A kind of object that answers in another way gets a branch in these functions:

- which arguments it takes: :func:`signature_of`;
- its weights, which are its parameters and buffers: :func:`weights_of`, :func:`named_weights_of`;
- its own example, names and dynamic axes, if it has any: :func:`own_example`, :func:`own_keywords`;
- its mode, its device and its data type: :func:`set_training`, :func:`to_device`, :func:`to_float64`;
- whether a copy is independent of it, and which memory the copy shares with it: :func:`has_closures`, :func:`shared_memory`.

It is run by calling it (``live_model.run_tree``) and copied by :func:`copy.deepcopy` (``copies.copied_call``). Hooks on its
modules are needed by ``probe_weights``, ``prepare.observability`` and ``post_export.rounding``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
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


def is_exportable(model: object) -> bool:
    """Whether it is a ``torch.onnx.ExportableModule``, which has its own example, names and dynamic axes (from torch 2.12)."""
    return isinstance(model, getattr(torch.onnx, "ExportableModule", ()))


def own_example(model: Any) -> tuple[torch.nn.Module, Any, dict[str, Any]]:
    """Such a model, with the ``args`` and ``kwargs`` of its own example."""
    args, kwargs = model.example_arguments()
    return model, args, kwargs or {}


def own_keywords(model: Any) -> Mapping[str, Any]:
    """What such a model declares about itself, by the keyword of ``@recipe``."""
    names = {"input_names": model.input_names(), "output_names": model.output_names()}
    return {**{key: tuple(value) for key, value in names.items() if value}, "dynamic_shapes": model.dynamic_shapes()}


def weights_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """The parameters and buffers, each once."""
    return [*model.parameters(), *model.buffers()]


def named_weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers by name. Of several names of one tensor, the first counts."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def set_training(model: torch.nn.Module, is_training: bool) -> None:
    """Set the mode of all its modules: training or inference."""
    model.train(is_training)


def to_device(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """The model with its weights on a device; it may be the same object."""
    return model.to(device)


def to_cpu(model: torch.nn.Module) -> torch.nn.Module:
    """The model with its weights on the CPU; it may be the same object."""
    return model.cpu()


def to_float64(model: torch.nn.Module) -> torch.nn.Module:
    """The model with its floating weights in float64; it may be the same object."""
    return model.double()


def copy_modes(original: torch.nn.Module, copied: torch.nn.Module) -> None:
    """Give a copy the modes of its original: a module that is built anew when it is copied is in training mode."""
    for old, new in zip(original.modules(), copied.modules(), strict=True):
        if new.training != old.training:
            new.training = old.training


# --- copies -----------------------------------------------------------------------------------------------------------


def has_closures(model: torch.nn.Module) -> bool:
    """Whether an attribute or a hook is a closure. It is not copied, so a copy would use the model itself."""
    for module in model.modules():
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]  # torch lists them nowhere else
        if any(isinstance(value, FunctionType) and value.__closure__ for value in (*vars(module).values(), *hooks)):
            return True
    return False


def shared_memory(model: torch.nn.Module, inputs: Sequence[torch.Tensor], *, is_written: bool) -> dict[Any, Any]:
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
