"""How torch calls operators: one call as a value, and the base of what changes or records calls while a model runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload  # the type of operators has no public name
from torch.utils import _pytree as pytree  # where classes are registered for torch.export; it has no public name
from torch.utils._python_dispatch import TorchDispatchMode  # has no public name


def tensor_leaves(values: Any) -> list[torch.Tensor]:
    """The tensors in the arguments or results of an operator, or of a model whose classes PyTorch can flatten."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


@dataclass(eq=False)  # not frozen, which would take half of the time that an intervention adds to an operator
class OperatorCall:
    """A call of an operator, such as ``torch.ops.aten.add.Tensor``, or of one that takes functions, such as ``torch.cond``."""

    operator: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def run(self) -> Any:
        """What the operator returns."""
        return self.operator(*self.args, **self.kwargs)

    def with_changed(self, kind: type[Any], change: Callable[[Any], Any]) -> OperatorCall:
        """The call with other arguments in place of those of a type, also within lists. What is not changed stays the same."""
        args, kwargs = pytree.tree_map_only(kind, change, (self.args, self.kwargs))
        return OperatorCall(self.operator, args, kwargs)

    def replace_result(self, result: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """``other`` in place of a result: in its memory if the operator writes to operands, because these are results, too."""
        return result.copy_(other) if self.writes else other

    @property
    def name(self) -> str:
        """The operator's name without its overload, such as ``aten::add``; ``aten::add_`` in place."""
        return str(self.operator.name()).partition(".")[0]

    @functools.cached_property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name, defaults included."""
        defaults = {each.name: each.default_value for each in self._parameters if each.has_default_value()}
        by_position = zip((each.name for each in self._parameters), self.args, strict=False)
        return defaults | dict(by_position) | dict(self.kwargs)

    @functools.cached_property
    def operands(self) -> list[torch.Tensor]:
        """The tensors among the arguments."""
        return tensor_leaves((self.args, self.kwargs))

    @property
    def written(self) -> list[torch.Tensor]:
        """The operands that the operator writes to."""
        if not self.writes:
            return []
        names = [each.name for each in self._parameters if each.alias_info is not None and each.alias_info.is_write]
        return tensor_leaves([self.arguments.get(name) for name in names])

    @property
    def writes(self) -> bool:
        """Whether the operator writes to operands: it works in place, or has an argument ``out``."""
        return not self.is_higher_order and bool(self.operator._schema.is_mutable)

    @property
    def is_view(self) -> bool:
        """Whether the result is a view of an operand."""
        return not self.is_higher_order and bool(self.operator.is_view)

    @property
    def is_random(self) -> bool:
        """Whether the operator draws random numbers."""
        return not self.is_higher_order and torch.Tag.nondeterministic_seeded in self.operator.tags

    @property
    def is_higher_order(self) -> bool:
        """Whether the operator takes functions, as ``torch.cond`` does."""
        return not isinstance(self.operator, OpOverload)

    @property
    def _parameters(self) -> Sequence[Any]:
        """What the operator declares of its parameters, which torch shows nowhere else."""
        return () if self.is_higher_order else self.operator._schema.arguments


class Intervention(TorchDispatchMode):
    """The base of what comes between a model and its operators while it is active, to change or to record calls.

    Derived classes define :meth:`run`: what an operator gets is changed before it runs, what it returns afterwards.
    The functions that an operator such as ``torch.cond`` takes run under the same intervention. Of several interventions, the
    one that was entered last comes first, and the operators that it calls itself pass through the others.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The inherited method imports all of torch.compile, which takes half a second.
        return False

    def run(self, call: OperatorCall) -> Any:
        """Run an operator, or something else in its place, and return what its caller gets."""
        return call.run()

    def run_higher_order(self, call: OperatorCall) -> Any:
        """The same for an operator that takes functions, which run under this intervention."""
        return call.run()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = OperatorCall(func, args, kwargs or {})
        if call.is_higher_order:
            return self.run_higher_order(call.with_changed(object, self._with_mode))
        # What is asked of a tensor that an export has left behind, such as its device, computes nothing.
        return call.run() if func.namespace == "prim" else self.run(call)

    def _with_mode(self, argument: Any) -> Any:
        """An argument of such an operator. A function, method or module becomes a function that runs under this mode."""

        def run(*args: Any) -> Any:
            with self:
                return argument(*args)

        return run if callable(argument) else argument
