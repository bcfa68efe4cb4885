"""A model and the arguments of one call of it, and the same call with other inputs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree  # where classes are registered for torch.export; it has no public name

from onnx_ci.pipeline.model.containers import name_of, named_leaves, tensors_in
from onnx_ci.pipeline.model.global_state import Changes
from onnx_ci.pipeline.model.module import signature_of
from onnx_ci.results.records import Finding
from onnx_ci.results.rules import finding
from onnx_ci.text import count, listed


class SkippedByRecipeError(Exception):
    """A recipe skips itself with ``pytest.skip`` or ``unittest.SkipTest``; the message is the reason."""


class PrepareError(Exception):
    """A recipe cannot be prepared; ``finding`` says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


@dataclass(frozen=True, kw_only=True)
class Call:
    """A model and the arguments of one call of it; ``kwargs`` follow the order of forward's parameters, as the graph does."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    global_changes: Changes = field(default_factory=Changes)
    """What building it changed in the global state of the process."""
    loaded_with: tuple[str, ...] = ()
    """The functions that loaded weights while it was built, such as ``torch.load``."""
    remarks: tuple[str, ...] = ()
    """What is not as the recipe returned it, or could not be asked of its model."""


def recipe_error(message: str, remedy: str | None = None) -> PrepareError:
    """The exception that says that a recipe cannot be used."""
    return PrepareError(finding("recipe-error", message, remedy=remedy))


def names_in_model(call: Call) -> list[str | None]:
    """What the model calls its inputs: the parameters of forward, or keys and fields within them."""
    return [name_of(path) for path, leaf in named_leaves(bound_arguments(call)) if isinstance(leaf, torch.Tensor)]


def arguments_of(call: Call) -> list[Any]:
    """The arguments, in the order of forward's parameters."""
    return [*call.args, *call.kwargs.values()]


def bound_arguments(call: Call) -> dict[str, Any]:
    """The arguments by the names of forward's parameters. As in ``torch.export``, variadic arguments are one entry."""
    signature = signature_of(call.model)
    if signature is None:
        return {str(position): value for position, value in enumerate(arguments_of(call))}
    return dict(signature.bind(*call.args, **call.kwargs).arguments)


def default_values(call: Call) -> dict[str, float | torch.Tensor]:
    """The defaults that are numbers or tensors, of the parameters of forward for which the call has no argument."""
    signature = signature_of(call.model)
    arguments = bound_arguments(call)
    defaults = {} if signature is None else {name: each.default for name, each in signature.parameters.items()}
    kinds = (int, float, torch.Tensor)
    return {name: default for name, default in defaults.items() if name not in arguments and isinstance(default, kinds)}


def wrapper_without_constants(call: Call) -> str | None:
    """``onnx_ci.adapt(model, inputs=['x'], fixed={'k': 2})``, if some arguments of the call are not tensors."""
    arguments = bound_arguments(call)
    kinds = (bool, int, float, str, torch.dtype, torch.Size)  # those whose repr is their code
    leaves = {name: pytree.tree_leaves(value) for name, value in arguments.items()}
    fixed = {name: arguments[name] for name, each in leaves.items() if each and all(isinstance(leaf, kinds) for leaf in each)}
    return _wrapper([name for name in arguments if name not in fixed and arguments[name] is not None], fixed) if fixed else None


def wrapper_by_position(call: Call) -> str | None:
    """``onnx_ci.adapt(model, inputs=['x', 'scale'])``, if the call has arguments that forward takes by name only."""
    signature = signature_of(call.model)
    parameters = {} if signature is None else signature.parameters
    arguments = bound_arguments(call)
    kinds = {parameters[name].kind for name in arguments if name in parameters}
    if kinds.isdisjoint({inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}):
        return None
    variadic = [name for name in arguments if parameters[name].kind is inspect.Parameter.VAR_KEYWORD]
    named = {**arguments, **{key: value for name in variadic for key, value in arguments[name].items()}}
    return _wrapper([name for name in named if name not in variadic and named[name] is not None], {})


def _wrapper(inputs: Sequence[str], fixed: Mapping[str, Any]) -> str:
    constants = f", fixed={dict(fixed)!r}" if fixed else ""
    return f"onnx_ci.adapt(model, inputs={list(inputs)!r}{constants})"


def extra_names(call: Call, names: Sequence[str]) -> Finding | None:
    """A finding if there are more names than inputs: TorchScript assigns the rest to weights, which is rarely intended."""
    number = len(input_tensors(call))
    if len(names) <= number:
        return None
    message = f"input_names declares {len(names)} names, but args contain {count(number, 'tensor')}"
    leaves = ((name_of(path), leaf) for path, leaf in named_leaves(bound_arguments(call)))
    others = [f"{name!r} is {leaf!r}" for name, leaf in leaves if leaf is None or isinstance(leaf, (bool, int, float, str))]
    wrapper = wrapper_without_constants(call)
    if not others or wrapper is None:
        remedy = "Declare one name for every tensor in args, including nested ones, and none for other arguments."
    else:
        remedy = f"Pass a tensor in the place of a number, or fix its value and declare no name for it: {wrapper}."
    remedy += ' To name weights as well, add allow=["name-mismatch"].'
    return finding("name-mismatch", f"{message}{'; ' if others else ''}{listed(others)}", remedy=remedy)


def input_tensors(call: Call) -> list[torch.Tensor]:
    """The tensors among the arguments, in the order of the graph's inputs."""
    return tensors_in(arguments_of(call))


def with_inputs(call: Call, tensors: Sequence[torch.Tensor] | None = None) -> Call:
    """``call`` with copies of ``tensors``, on the devices of its own, or else of these: a model may overwrite its inputs."""
    own = input_tensors(call)
    pairs = zip(own if tensors is None else tensors, own, strict=True)
    return filled(call, [new.to(old.device, copy=True) for new, old in pairs])


def filled(call: Call, tensors: Sequence[torch.Tensor]) -> Call:
    """``call`` with ``tensors`` themselves in the place of its tensor arguments, in their order."""
    rest = iter(tensors)
    arguments = pytree.tree_map_only(torch.Tensor, lambda _: next(rest), arguments_of(call))
    count = len(call.args)
    return Call(model=call.model, args=tuple(arguments[:count]), kwargs=dict(zip(call.kwargs, arguments[count:], strict=True)))
