"""The weights of a large model in float64, each only while an operator reads it.

A whole copy in float64 takes twice the model's memory. Here, the copy has placeholders instead of its large weights: float64
tensors of the same shapes that take no memory. A mode gives every operator the weight in float64 for the placeholder, and its
numbers are freed after the operator. The results are those of a whole copy, to the last bit. A whole copy must serve where an
operator writes to a weight, which raises an exception, or code reads its memory without one (``tolist``), which finds NaN.

Hooks on modules would not do: a parent may compute with weights of its children (``a.weight * b.weight``), in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from onnx_ci.pipeline.model.operators import Intervention, OperatorCall, tensor_leaves

LEAST = 2**16
"""From how many bytes on a weight gets a placeholder. Smaller ones are many and take little memory."""

_CONVERTED = (torch.float32, torch.float16, torch.bfloat16)

aten = torch.ops.aten

_PICKING = frozenset((aten.embedding.default, aten.index_select.default, aten.index.Tensor, aten.gather.default))
"""Operators that return some numbers of their first argument. Only these are converted, not the whole table."""


class WritesToWeightError(Exception):
    """An operator writes to a weight, and what it writes would be lost."""


class Float64OnUse(Intervention):
    """Gives operators the weights in float64 in place of their placeholders."""

    def __init__(self) -> None:
        super().__init__()
        self._weights: dict[torch.UntypedStorage, torch.Tensor] = {}
        """The weights by the memory of their placeholders."""
        self._views: MutableMapping[torch.Tensor, bool] = WeakIdKeyDictionary()
        """The views of weights that operators have returned."""

    def placeholders(self, weights: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Placeholders of large, plain weights, by the ids of these. Nothing may write to those while they are used."""
        placeholders: dict[int, torch.Tensor] = {}
        for weight in weights:
            is_parameter = type(weight) is torch.nn.Parameter
            is_plain = is_parameter or type(weight) is torch.Tensor
            is_plain = is_plain and weight.layout is torch.strided and weight.device.type == "cpu" and weight.is_contiguous()
            if is_plain and weight.dtype in _CONVERTED and weight.dim() > 1 and weight.nbytes >= LEAST:
                placeholder = torch.full((), torch.nan, dtype=torch.float64).as_strided(weight.shape, (0,) * weight.dim())
                self._weights[placeholder.untyped_storage()] = weight.detach()
                if is_parameter:
                    placeholder = torch.nn.Parameter(placeholder, weight.requires_grad)
                placeholders[id(weight)] = placeholder
        return placeholders

    def run(self, call: OperatorCall) -> Any:
        """Run an operator with weights in place of placeholders."""
        if any(map(self._shows_weight, call.written)):
            raise WritesToWeightError(f"{call.operator} writes to a weight")
        if call.operator in _PICKING and (table := self._weight_of(call.args[0])) is not None:
            return replace(call, args=(table, *call.args[1:])).run().double()
        result = call.with_changed(torch.Tensor, self._converted).run()
        if call.is_view and any(map(self._shows_weight, call.operands)):
            self._views.update(dict.fromkeys(tensor_leaves(result), True))
        return result

    def _shows_weight(self, tensor: torch.Tensor) -> bool:
        return tensor in self._views or self._weight_of(tensor) is not None

    def _weight_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The weight of a placeholder, also if the model has the placeholder from an attribute such as ``data``."""
        is_strided = tensor.dtype is torch.float64 and tensor.layout is torch.strided
        return self._weights.get(tensor.untyped_storage()) if is_strided else None

    def _converted(self, tensor: torch.Tensor) -> torch.Tensor:
        weight = self._weight_of(tensor)
        if weight is None:
            return tensor
        with torch.inference_mode(False):  # an operator on a placeholder cannot take a tensor that was made in inference mode
            return weight.double()
