"""Writes into a part of a tensor, or into the same data under another name, which tracing loses."""

from __future__ import annotations

import torch
from faults.fault import X, fault, matrix


def through_a_view(x):
    y = x.clone()
    y.view(-1)[0] = 5
    return y


def through_a_transpose(x):
    y = x.clone()
    y.t()[0] = 1
    return y


def through_a_chunk(x):
    y = x.clone()
    y.chunk(2, dim=1)[0].mul_(2)
    return y


def through_detach(x):
    y = x.clone()
    y.detach().add_(1)
    return y


def through_data(x):
    y = x.clone()
    y.data.mul_(2)
    return y


def row_of_what_changes(x):
    y = x.clone()
    row = y[0]
    y += 1
    return row * 2


def flat_of_what_changes(x):
    y = x.clone()
    flat = y.view(-1)
    y.mul_(3)
    return flat + 1


FAULTS = [
    # A write through a view does not reach what was viewed.
    fault(
        "write_through_view",
        "numeric-drift",
        through_a_view,
        lambda x: torch.cat([torch.full((1,), 5.0), x.reshape(-1)[1:]]).reshape(x.shape),
        matrix,
        **X,
    ),
    # Nor does one through a transpose: it lands in a row in place of a column.
    fault(
        "write_through_transpose",
        "numeric-drift",
        through_a_transpose,
        lambda x: torch.cat([torch.ones(3, 1), x[:, 1:]], dim=1),
        matrix,
        **X,
    ),
    # Nor through a chunk.
    fault(
        "write_through_chunk",
        "numeric-drift",
        through_a_chunk,
        lambda x: torch.cat([x[:, :2] * 2, x[:, 2:]], dim=1),
        matrix,
        **X,
    ),
    # detach() shares its data in eager mode and is a copy in the file.
    fault("write_through_detach", "numeric-drift", through_detach, lambda x: x + 1, matrix, **X),
    # .data is hidden from tracing altogether.
    fault("write_through_data", "numeric-drift", through_data, lambda x: x * 2, matrix, **X),
    # A row that was taken before the change does not see it.
    fault("row_before_change", "numeric-drift", row_of_what_changes, lambda x: (x + 1)[0] * 2, matrix, **X),
    # Nor does a flat view of everything.
    fault("view_before_change", "numeric-drift", flat_of_what_changes, lambda x: (x * 3).view(-1) + 1, matrix, **X),
]
