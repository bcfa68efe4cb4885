"""How torch calls operators: modes that intercept each one, its arguments by name, and what it writes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.utils import _pytree as pytree  # where classes are registered for torch.export; it has no public name
from torch.utils._python_dispatch import TorchDispatchMode  # has no public name


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The base of modes that intercept every operator in eager mode."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The inherited method imports all of torch.compile, which takes half a second.
        return False


def tensor_leaves(values: Any) -> list[torch.Tensor]:
    """The tensors in the arguments or results of an operator, or of a model whose classes PyTorch can flatten."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def named_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operator by name, defaults included."""
    parameters = func._schema.arguments  # torch names the parameters of an operator nowhere else
    defaults = {each.name: each.default_value for each in parameters if each.has_default_value()}
    return defaults | dict(zip((each.name for each in parameters), args, strict=False)) | dict(kwargs)


def written_to(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that an operator writes to."""
    if not func._schema.is_mutable:
        return []
    names = [each.name for each in func._schema.arguments if each.alias_info is not None and each.alias_info.is_write]
    arguments = named_arguments(func, args, kwargs)
    return tensor_leaves([arguments.get(name) for name in names])


def is_higher_order(func: Any) -> bool:
    """Whether an operator takes functions, as ``torch.cond`` does."""
    return isinstance(func, torch._ops.HigherOrderOperator)  # has no public name


class WrappingMode(OperatorMode):  # type: ignore[no-untyped-call]
    """The base of modes that also intercept the operators in the branches of ``torch.cond`` and similar operators.

    Derived classes define :meth:`call_operator`. One that changes the arguments of ``torch.cond``, too, replaces
    ``__torch_dispatch__``.
    """

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_higher_order(func):
            return func(*self.wrapped(args), **kwargs)
        return self.call_operator(func, args, kwargs)

    def call_operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What the operator ``func`` returns under this mode."""
        return func(*args, **kwargs)

    def wrapped(self, args: Any) -> Any:
        """The arguments of such an operator, with functions that run under this mode."""
        return pytree.tree_map_only(FunctionType, self._with_mode, args)

    def _with_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with self:
                return function(*args)

        return call
