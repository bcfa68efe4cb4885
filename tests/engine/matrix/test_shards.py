"""Shards in Python."""

from __future__ import annotations

import onnx_ci


def test_the_shard_serves_from_python_too(project):
    import torch

    @onnx_ci.recipe
    def net():
        return torch.nn.Linear(2, 2), (torch.randn(3, 2),)

    parts = [onnx_ci.run([net], opsets="12-13", shard=f"{n}/2", isolation="none") for n in (1, 2)]
    assert [[result.cell.opset for result in report.cells] for report in parts] == [[12], [13]]
