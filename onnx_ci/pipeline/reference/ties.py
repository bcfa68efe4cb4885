"""Other orders of equal values: PyTorch leaves their order undefined in ``topk``, and in a ``sort`` that is not stable."""

from __future__ import annotations

from typing import Any

import torch

from onnx_ci.pipeline.model.live_model import OperatorMode, named_arguments

aten = torch.ops.aten


class OtherTies(OperatorMode):
    """Gives equal values one of two orders, which differ at every position where values are equal.

    ``argmax`` and ``max`` stay as they are: both PyTorch and ONNX define that they return the first index.

    Args:
        is_rotated: whether the lowest of the indices comes last instead of first.
    """

    supports_higher_order_operators = True

    def __init__(self, *, is_rotated: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._is_rotated = is_rotated

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func not in _ORDERING:
            return result
        values, indices = result
        arguments = named_arguments(func, args, kwargs)
        if arguments.get("stable") or not arguments.get("sorted", True) or not values.dim():
            return result
        dim, is_descending = arguments["dim"], bool(arguments.get("largest", arguments.get("descending")))
        order = self._order(arguments["self"], dim, is_descending=is_descending)
        return type(result)((values, order.narrow(dim, 0, indices.shape[dim])))

    def _order(self, tensor: torch.Tensor, dim: int, *, is_descending: bool) -> torch.Tensor:
        """The indices that sort ``tensor`` along an axis."""
        values, indices = (each.movedim(dim, -1) for each in tensor.sort(stable=True, dim=dim, descending=is_descending))
        if self._is_rotated and values.shape[-1]:
            places = torch.arange(values.shape[-1], device=values.device).expand_as(values)
            begins = torch.ones_like(values, dtype=torch.bool)
            begins[..., 1:] = values[..., 1:] != values[..., :-1]
            first = torch.where(begins, places, 0).cummax(-1).values
            is_last = begins.roll(-1, -1)  # the first value begins, so the last one is followed by another
            indices = indices.gather(-1, torch.where(is_last, first, places + 1))
        return indices.movedim(-1, dim)


_ORDERING = frozenset((aten.topk.default, aten.sort.default, aten.sort.stable))
