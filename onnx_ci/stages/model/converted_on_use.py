"""Weights in float64 that take no memory: tensors that convert what they hold where an operator reads them.

A whole copy of a large model in float64 takes twice the model's memory, for a reference that reads one layer after another. A
:class:`ConvertedOnUse` holds a weight in the model's own type, which it shares with the model, and has the data type, shape and
strides of the copy. An operator gets real float64 numbers, with the strides of the copy and therefore the same result to the
last bit, and they are freed with its result. What it cannot do raises an exception; a whole copy must serve then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

aten = torch.ops.aten

LEAST = 2**16
"""From how many bytes on a weight is converted on use. Smaller ones are many and take little memory."""

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
"""Of operators that consist of others."""

_CONVERTED = frozenset((torch.float32, torch.float16, torch.bfloat16))


class CannotConvertOnUseError(Exception):
    """An operator needs a weight that is converted once: it writes to it, or reads its memory in another way."""


class ConvertedOnUse(torch.Tensor):
    """A float64 tensor that holds its numbers in a coarser type; made by :func:`converted_on_use`."""

    _held: torch.Tensor

    # Functions of torch must take the same ways as with a plain tensor, such as its fast paths.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> ConvertedOnUse:
        """Hold ``held``, a tensor without a gradient, which must not change afterwards."""
        with torch.inference_mode(False):  # torch cannot index such tensors that are made in inference mode
            made: ConvertedOnUse = torch.Tensor._make_wrapper_subclass(
                cls, held.shape, strides=held.stride(), dtype=torch.float64, device=held.device
            )
        made._held = held
        return made

    @property
    def data(self) -> torch.Tensor:
        """The tensor without its history."""
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if value is not self:  # as Module.double() assigns it
            raise CannotConvertOnUseError("a weight is replaced")

    def data_ptr(self) -> int:
        """Raise an exception: torch would return 0."""
        raise CannotConvertOnUseError("the memory of a weight is read")

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an exception: torch would return what leads to no memory."""
        raise CannotConvertOnUseError("the memory of a weight is read")

    def __repr__(self) -> str:  # type: ignore[override]
        return repr(self.converted())

    def converted(self) -> torch.Tensor:
        """The numbers in float64, at the places in memory that they have in a converted copy, relative to the first."""
        held = self._held
        if not held.numel():
            return held.double()
        length = 1 + sum((size - 1) * stride for size, stride in zip(held.shape, held.stride(), strict=True))
        return held.as_strided((length,), (1,)).double().as_strided(held.shape, held.stride())

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares it without func
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):
            raise CannotConvertOnUseError(f"{func} takes other tensors only")
        if any(isinstance(each, cls) for each in _written(func, args, kwargs)):
            raise CannotConvertOnUseError(f"{func} writes to a weight")
        # Some come in one piece from within a mode; what looks like a view may be a cast then, such as aten.to. They are taken
        # apart as elsewhere; func.decompose() would prefer the decompositions of torch.export, which round differently.
        if torch._C._dispatch_has_kernel_for_dispatch_key(func._name, _COMPOSITE):
            return func._op_dk(_COMPOSITE, *args, **kwargs)
        held = args[0]._held if args and isinstance(args[0], cls) else None
        if held is not None and func in _OF_MEMORY:
            raise CannotConvertOnUseError(f"{func} depends on how the numbers lie in memory")
        rest, kwargs = pytree.tree_map_only(cls, cls.converted, (args[1:], kwargs))
        if held is not None and func.is_view and func.namespace == "aten":
            return pytree.tree_map_only(torch.Tensor, _viewed, func(held, *rest, **kwargs))
        if held is not None and func in _PICKING:
            return func(held, *rest, **kwargs).double()
        if held is not None and func in _SUMMING_ROWS:
            return _summed_rows(func, held, *rest, **kwargs)
        return func(*pytree.tree_map_only(cls, cls.converted, args[:1]), *rest, **kwargs)


def converted_on_use(tensors: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """For weights that are worth it, by their ids, tensors in float64 that share their memory.

    Nothing may write to the weights as long as these are in use.
    """
    made: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        is_parameter = type(tensor) is torch.nn.Parameter
        if (is_parameter or type(tensor) is torch.Tensor) and _is_worth_it(tensor):
            held = ConvertedOnUse(tensor.detach())
            made[id(tensor)] = torch.nn.Parameter(held, tensor.requires_grad) if is_parameter else held
    return made


def _is_worth_it(tensor: torch.Tensor) -> bool:
    is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and tensor.is_contiguous()
    return is_plain and tensor.dtype in _CONVERTED and tensor.nbytes >= LEAST


def _written(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """What an operator writes to."""
    if not func._schema.is_mutable:
        return []
    written = [
        args[position] if position < len(args) else kwargs.get(argument.name)
        for position, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return pytree.tree_leaves(written)


def _viewed(held: torch.Tensor) -> torch.Tensor:
    if held.is_neg() or held.dtype not in _CONVERTED:
        raise CannotConvertOnUseError("a view of a weight changes its numbers")
    return ConvertedOnUse(held)


_OF_MEMORY = frozenset((aten.as_strided.default, aten.view.dtype))
"""Views that show other numbers if the memory is that of a coarser type."""

_PICKING = frozenset((aten.embedding.default, aten.index_select.default, aten.index.Tensor, aten.gather.default))
"""Operators that return some of the numbers of their first argument, which are converted after that."""

_SUMMING_ROWS = frozenset((aten._embedding_bag.default, aten._embedding_bag_forward_only.default))
"""The operators of an ``EmbeddingBag``."""

_MAX = 2


def _summed_rows(
    func: Any,
    table: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """Sum rows of a table in float64; only those that occur are converted."""
    if mode != _MAX:  # whose results contain indices
        rows, places = torch.unique(indices, return_inverse=True)
        table, indices = table.index_select(0, rows), places.to(indices.dtype)
        padding = (rows == padding_idx).nonzero()
        padding_idx = int(padding) if padding.numel() else -1
    rest = (scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx)
    return func(table.double(), indices, offsets, *rest)
