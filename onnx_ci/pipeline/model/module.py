"""What onnx-ci asks of a model, how the kinds of objects answer, and what is done where one has no answer.

:func:`as_model` makes a ``torch.nn.Module`` of what a recipe returns. All else is asked of that module, by these functions. A
kind of object that answers in another way gets a branch in them:

- that it is a module: a function becomes a :class:`FunctionModel`, a ``torch.export.ExportedProgram`` a :class:`ProgramModel`,
  and what ``torch.compile`` returns is undone. A model that cannot list its modules and weights is refused;
- its weights, which are its parameters and buffers. Only plain ones (:func:`unlike_others`) are replaced by others, and those
  without numbers (:func:`numbers_of`) are not compared;
- its mode. Where ``train`` fails, only the attribute ``training`` is set, and a note says so;
- whether a copy is independent of it. A model that cannot be copied is built again;
- whether it calls hooks on its modules. Without them, observability is not measured.

It is run by calling it (``running.run_tree``) and copied by :func:`copy.deepcopy` (``copies.copied_call``).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any, TypeVar

import torch
from torch.export.passes import move_to_device_pass
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree  # where classes are registered for torch.export; it has no public name

from onnx_ci.text import listed

# --- kinds of models --------------------------------------------------------------------------------------------------


def as_model(value: object) -> tuple[torch.nn.Module, list[str]] | None:
    """The module that stands for what a recipe returns as its model, and what its user should know about it.

    Compiled modules inside of it are replaced, in place, by those that were compiled. ``None`` for an object that is neither a
    module nor a program, and cannot be called.
    """
    original = uncompiled(value)
    compiled = [] if original is value else ["the model"]
    notes = []
    if isinstance(original, torch.nn.Module):
        model = original
    elif isinstance(original, torch.export.ExportedProgram):
        module = original.module()
        model = with_parameters(ProgramModel, _parameters_of(module.forward))(original, module)
    elif callable(original) and not isinstance(original, (type, torch.onnx.ONNXProgram)):
        function, args, keywords = _unbound(original)
        parameters = [each for each in _parameters_of(original) if each.name not in keywords]
        name = getattr(function, "__name__", "")
        model = with_parameters(FunctionModel, parameters, name if name.isidentifier() else "")(function, args, keywords)
        notes.append(f"the model is of the class {type(original).__name__}, and is exported as a module that calls it")
    else:
        return None
    compiled += [repr(name) if name else "the model" for name in _undo_compilation(model)]
    if compiled:
        are = "is" if len(compiled) == 1 else "are"
        notes.append(f"{listed(compiled)} {are} wrapped by torch.compile or torch.compiler.disable, and exported without that")
    return model, notes


def uncompiled(value: Any) -> Any:
    """What ``torch.compile`` was given, if ``value`` is what it returned; otherwise ``value`` itself.

    torch has no public way to get that. A function of ``torch.compiler.disable`` is left as it is. A module of it has the same
    class as a compiled one.
    """
    dynamo = sys.modules.get("torch._dynamo")  # torch.compile imports it
    if dynamo is not None and isinstance(value, dynamo.OptimizedModule):
        return uncompiled(value._orig_mod)
    if isinstance(value, FunctionType) and not hasattr(value, "_torchdynamo_disable"):
        original = getattr(value, "_torchdynamo_orig_callable", None)
        return value if original is None else uncompiled(original)
    return value


def _undo_compilation(model: torch.nn.Module) -> Iterator[str]:
    """Replace what is compiled in a model by what was compiled, and return the names of these modules."""
    try:
        modules = dict(model.named_modules())
    except Exception:  # a model that cannot list its modules is refused
        return
    for name, module in modules.items():
        if uncompiled(module) is not module:
            continue
        for key, child in [*module.named_children()]:
            if (original := uncompiled(child)) is not child:
                setattr(module, key, original)
                yield f"{name}.{key}".lstrip(".")
        forward = getattr(module, "forward", None)
        function = forward.__func__ if isinstance(forward, MethodType) else forward
        if (original := uncompiled(function)) is not function:
            module.forward = MethodType(original, module) if isinstance(forward, MethodType) else original
            yield name
        if getattr(module, "_compiled_call_impl", None) is not None:  # what Module.compile sets
            module._compiled_call_impl = None
            yield name


class Values(torch.nn.Module):
    """Values in containers. The tensors among them are buffers and the modules submodules, so that they are weights of a model.

    What is in objects that PyTorch cannot flatten stays there.
    """

    def __init__(self, values: Any) -> None:
        super().__init__()
        self._count = 0
        self._values = pytree.tree_map_only((torch.Tensor, torch.nn.Module), self._named, values)

    def _named(self, value: torch.Tensor | torch.nn.Module) -> _Name:
        name = _Name(f"value_{self._count}")
        self._count += 1
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            self.register_buffer(name, value.detach())
        else:
            setattr(self, name, value)
        return name

    def get(self) -> Any:
        """The values, with the tensors as they are now."""
        return pytree.tree_map_only(_Name, lambda name: getattr(self, name), self._values)


class _Name(str):
    """The name of a buffer or a submodule, in its place."""


class FunctionModel(torch.nn.Module):
    """A function as a module with its parameters.

    Its weights are the modules and tensors that it is bound to, and the modules in the variables around it.
    """

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        super().__init__()
        self.function = function
        self.bound = Values((args, keywords))
        around: list[Any] = []
        if isinstance(function, FunctionType):
            with contextlib.suppress(ValueError):  # a variable of an outer function has no value yet
                around = [*inspect.getclosurevars(function).nonlocals.values()]
        owned = [value for owner in args for value in getattr(owner, "__dict__", {}).values()]
        owners = (value.__self__ if isinstance(value, MethodType) else value for value in (*around, *owned))
        self.around = torch.nn.ModuleList(value for value in owners if isinstance(value, torch.nn.Module))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns."""
        bound, keywords = self.bound.get()
        return self.function(*bound, *args, **keywords, **kwargs)


class ProgramModel(torch.nn.Module):
    """An ``ExportedProgram`` as a module, which runs; exporters get the program. Both have the same weights, in copies, too."""

    def __init__(self, program: torch.export.ExportedProgram, module: torch.nn.Module) -> None:
        super().__init__()
        self.program = program
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the program computes."""
        return self.module(*args, **kwargs)

    def train(self, mode: bool = True) -> ProgramModel:
        """Do nothing: a program has the mode in which it was exported."""
        return self


def exportable(model: torch.nn.Module) -> torch.nn.Module | torch.export.ExportedProgram:
    """What an exporter gets for a model."""
    return model.program if isinstance(model, ProgramModel) else model


Kind = TypeVar("Kind", bound=torch.nn.Module)


def with_parameters(kind: type[Kind], parameters: Sequence[inspect.Parameter], name: str = "") -> type[Kind]:
    """A class whose forward has these parameters: its signature tells them to exporters, and to our checks of names."""

    def forward(self: Kind, *args: Any, **kwargs: Any) -> Any:
        return kind.forward(self, *args, **kwargs)

    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    forward.__signature__ = inspect.Signature([itself, *parameters])  # type: ignore[attr-defined]
    return type(name or kind.__name__, (kind,), {"forward": forward})


def _unbound(function: Any) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The function behind methods, partials and objects that can be called, and the arguments that it is bound to."""
    args: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    while True:
        function = uncompiled(function)
        if isinstance(function, functools.partial):
            args, keywords, function = (*function.args, *args), function.keywords | keywords, function.func
        elif isinstance(function, MethodType):
            args, function = (function.__self__, *args), function.__func__
        elif isinstance(call := inspect.getattr_static(type(function), "__call__", None), FunctionType):
            args, function = (function, *args), call
        else:
            return function, args, keywords


def _parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function; any number of them if it does not tell."""
    try:
        return [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]


# --- what it consists of ----------------------------------------------------------------------------------------------


def unlisted(model: torch.nn.Module) -> Exception | None:
    """Why a model cannot list its modules, parameters and buffers by name; ``None`` if it can."""
    try:
        _ = [*model.modules(), *model.parameters(), *model.buffers()]  # torch makes these of the named ones
    except Exception as error:  # a class can replace these methods, and modules can be nested more deeply than Python allows
        return error
    return None


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


def own_keywords(model: Any) -> Mapping[str, Any]:
    """What a model declares about itself, by the keyword of ``@recipe``; empty for most."""
    if isinstance(model, ProgramModel):
        return {"dynamic_shapes": _shapes_of(model.program)}
    if not is_exportable(model):
        return {}
    names = {"input_names": model.input_names(), "output_names": model.output_names()}
    return {**{key: tuple(value) for key, value in names.items() if value}, "dynamic_shapes": model.dynamic_shapes()}


def _shapes_of(program: torch.export.ExportedProgram) -> list[Any]:
    """The dynamic axes of a program's arguments, with the names of their sizes, as ``dynamic_shapes``."""
    tensors = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    shapes = [
        {axis: str(size) for axis, size in enumerate(tensor.shape) if isinstance(size, torch.SymInt)}
        if isinstance(tensor := tensors.get(str(name)), torch.Tensor)
        else None
        for name in program.graph_signature.user_inputs
    ]
    args, kwargs = pytree.tree_unflatten(shapes, program.call_spec.in_spec)
    return [*args, *kwargs.values()] if any(shapes) else []


def code_of(module: torch.nn.Module) -> FunctionType | None:
    """The function in which a module's own computation is written; ``None`` for PyTorch's modules and compiled code."""
    function = module.function if isinstance(module, FunctionModel) else inspect.getattr_static(module, "forward", None)
    # Code that is made while the program runs, such as that of a torch.fx.GraphModule, need not belong to a Python module.
    if not isinstance(function, FunctionType) or (function.__module__ or "").startswith("torch."):
        return None
    return function


def weights_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """The parameters and buffers, each once."""
    return [*model.parameters(), *model.buffers()]


def plain_weights_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """Those weights that operators take like any other tensor: see :func:`unlike_others`."""
    return [weight for weight in weights_of(model) if unlike_others(weight) is None]


def named_weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers by name. Of several names of one tensor, the first counts."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def unlike_others(tensor: torch.Tensor) -> str | None:
    """What keeps a tensor from being an array of numbers that all operators take; ``None`` if nothing does."""
    if is_lazy(tensor):
        return "is not initialized"
    if tensor.is_nested:
        return "is a nested tensor"
    if tensor.layout is not torch.strided:
        return f"is sparse ({tensor.layout})"
    if tensor.is_quantized:
        return f"is quantized ({tensor.dtype})"
    if tensor.is_meta:
        return "is on the device meta, where tensors have no values"
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return f"is of the class {type(tensor).__name__}, which replaces PyTorch's operators"
    if not _has_arithmetic(tensor.dtype):
        return f"has the data type {tensor.dtype}, with which PyTorch cannot compute"
    return None


@functools.cache
def _has_arithmetic(dtype: torch.dtype) -> bool:
    """Whether numbers of a type can be converted; some types are for storage only."""
    try:
        torch.empty(1, dtype=dtype, device="cpu").to(torch.complex128 if dtype.is_complex else torch.float64)
    except (NotImplementedError, RuntimeError):
        return False
    return True


def numbers_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The values of a tensor as an array of numbers; ``None`` if it has none, or none that can be read."""
    if unlike_others(tensor) is None:
        return tensor.detach()
    try:
        dense = tensor.detach().dequantize() if tensor.is_quantized else tensor.detach().to_dense()
        dense = dense.double()
    except Exception:  # a class of tensors can raise anything
        return None
    return dense if unlike_others(dense) is None else None


def replace_weight(weight: torch.Tensor, values: torch.Tensor) -> None:
    """Give a weight other values, in the memory of these: in place fails for tensors whose elements share memory."""
    weight.data = values


# --- how it runs ------------------------------------------------------------------------------------------------------


def set_training(model: torch.nn.Module, is_training: bool, name: str = "") -> list[str]:
    """Set the mode of all modules, and return the names of those that have a fixed one, such as scripts and programs."""
    try:
        model.train(is_training)
    except Exception:  # that of this module, or of one inside of it, which leaves others in the wrong mode
        children = [(f"{name}.{key}".lstrip("."), child) for key, child in model.named_children()]
        fixed = [each for key, child in children for each in set_training(child, is_training, key)]
        with contextlib.suppress(Exception):  # exporters ask for it
            model.training = is_training
        return fixed or [name]
    return []


def is_training(model: torch.nn.Module) -> bool:
    """Whether the model, or a part of it, is in training mode. A frozen script has no mode."""
    return any(getattr(module, "training", False) for module in model.modules())


def keep_modes(copied: torch.nn.Module, model: torch.nn.Module) -> None:
    """Set the modes of a copy to those of the model: a class can build a module again to copy it, in training mode."""
    for its_copy, module in zip(copied.modules(), model.modules(), strict=False):
        mode = getattr(module, "training", None)
        if mode is not None and getattr(its_copy, "training", mode) != mode:
            set_training(its_copy, mode)


def calls_hooks(model: torch.nn.Module) -> bool:
    """Whether hooks on its modules are called. Those of scripts are not, unless they are compiled, too."""
    return not any(isinstance(module, torch.jit.ScriptModule) for module in model.modules())


def to_device(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """The model, perhaps the same object, with its weights on a device, and a program with the devices that its graph names."""
    if isinstance(model, ProgramModel) and any(weight.device != device for weight in weights_of(model)):
        program = move_to_device_pass(model.program, device)
        return type(model)(program, program.module())
    return model.to(device)


def to_cpu(model: torch.nn.Module) -> torch.nn.Module:
    """The model with its weights on the CPU; it may be the same object."""
    return to_device(model, torch.device("cpu")) if isinstance(model, ProgramModel) else model.cpu()


# --- copies -----------------------------------------------------------------------------------------------------------


def has_closures(model: torch.nn.Module) -> bool:
    """Whether an attribute or a hook is a closure. It is not copied, so a copy would use the model itself."""
    for module in model.modules():
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]  # torch lists them nowhere else
        if any(isinstance(value, FunctionType) and value.__closure__ for value in (*vars(module).values(), *hooks)):
            return True
    return False


def shares_weights(model: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether two models have a weight in common, so that what changes one changes the other."""
    return not {*map(id, weights_of(model))}.isdisjoint(map(id, weights_of(other)))


def shared_memory(model: torch.nn.Module, inputs: Sequence[torch.Tensor], *, is_written: bool) -> dict[Any, Any]:
    """The memo for :func:`copy.deepcopy` with which a copy shares the memory of weights and inputs until it writes to them.

    Most copies are only read, so this saves time, and the memory of a large model. Unless ``is_written``, nothing writes to
    parameters; reading their memory counts as writing.
    """
    lazy = getattr(torch, "_lazy_clone", None)  # has no public name
    if lazy is None:
        return {}

    def can_share(tensor: torch.Tensor) -> bool:
        if unlike_others(tensor) is not None or tensor.device.type != "cpu" or not tensor.is_contiguous():
            return False
        if tensor.is_conj() or tensor.is_neg() or tensor.is_inference():
            return False  # the copy would lose that, or stay what only inference mode can change
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
