"""The weights in an ONNX file, in PyTorch's layout: mapped from the file, not copied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto
from onnx_ir import serde

from onnx_ci.onnx_model.contents import Contents
from onnx_ci.onnx_model.precision import lowest_precision

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class StoredWeight:
    """A tensor of a file, or the part of it that is one weight of a recurrent layer."""

    name: str
    array: Array


_GATES = MappingProxyType({"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)})
"""The gates of recurrent operators: the position of each of PyTorch's gates in ONNX's order."""

_COMPARED = (TensorProto.FLOAT, TensorProto.DOUBLE)


def stored_weights(path: Path) -> Iterator[StoredWeight]:
    """The float32 and float64 tensors that nodes of a file use; nothing if the file computes in a lower precision.

    ONNX stacks the weights of recurrent layers: W, R and B hold a part for each direction, and B holds both biases. The gates
    are in another order than PyTorch's. These tensors are split into parts in PyTorch's order.
    """
    model = onnx.load(path, load_external_data=False)
    if lowest_precision(model) is not None:
        return
    users: dict[str, tuple[NodeProto, int]] = {}
    contents = Contents.of(model)
    for node in contents.nodes:
        users |= {name: (node, position) for position, name in enumerate(node.input)}
    for name, tensor in contents.constants:
        if name in users and tensor.data_type in _COMPARED:
            array = serde.deserialize_tensor(tensor, path.parent).numpy()
            for part in _parts(array, *users[name]):
                yield StoredWeight(name=name, array=part)


def _parts(array: Array, node: NodeProto, position: int) -> Iterator[Array]:
    order = _GATES.get(node.op_type)
    if order is None or not 1 <= position <= 3 or node.domain not in ("", "ai.onnx"):
        yield array
        return
    for direction in array:
        for part in np.split(direction, 2) if position == 3 else [direction]:
            yield np.concatenate([np.split(part, len(order))[gate] for gate in order])


# --- the same weight, changed -----------------------------------------------------------------------------------------

CLOSE = 2.0**-6
"""How far a changed element may be from the original, relative to it: twice the largest error of truncation to bfloat16."""

_TINY = 2.0**-24
"""The smallest number of float16: smaller ones may become zero."""

_CLOSE_IN_SPREAD = 2.0**-5
"""How far elements may be from the original on average, relative to its standard deviation. By chance they are farther."""


def is_close(values: Array, weight: Array, *, any_spread: bool = False) -> bool:
    """Whether an array is so similar to a weight, element by element, that it must be that weight.

    Args:
        any_spread: whether a weight of equal numbers counts, too. It shows little: many weights begin as zeros or ones.
    """
    difference = np.abs(values - weight)
    if not (difference <= np.abs(weight) * CLOSE + _TINY).all():
        return False
    spread = weight.std()
    return any_spread or bool(spread > 0 and np.sqrt(np.mean(np.square(difference))) <= spread * _CLOSE_IN_SPREAD)
