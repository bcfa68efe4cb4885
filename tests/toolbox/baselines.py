"""Baselines written by hand."""

from __future__ import annotations

import math
from pathlib import Path

from onnx_ci.baseline.file import Baseline, Place, as_text, read
from onnx_ci.tools.history.history import Moment

SKETCH = {"tensors": 1, "values": 4, "layout": "00000000", "norm": 1.0, "projections": [1.0, 2.0]}


def entry(*, drift=1.9, size=1000, output="y", operators=None):
    values = {
        "drift": drift,
        "noise": 1e-7,
        "least": 0.0,
        "mean": 1.0,
        "largest": 2.0,
        "spread": 1.0,
        "sample": [1.0, math.nan],
    }
    return {
        ("opset",): "as asked",
        ("ir-version",): 7,
        ("inputs",): ["x"],
        ("outputs",): [output],
        ("initializers",): 1,
        ("initializer-bytes",): 16,
        ("file-bytes",): size,
        ("input", "x"): "float[batch, 4]",
        ("output", output): "float[batch, 4]",
        **{("operators", name): count for name, count in (operators or {"Mul": 1, "Relu": 1}).items()},
        **{("values", output, key): value for key, value in values.items()},
        **{(kind, key): value for kind in ("weights", "arguments") for key, value in SKETCH.items()},
    }


def moment(number: int, *, recipe="net", opsets=(9, 10), **facts) -> Moment:
    """A commit at which a recipe was accepted with the given facts."""
    cells = {Place("cpu", "torchscript", opset): entry(**facts) for opset in opsets}
    baseline = read(as_text(Baseline(recipe=recipe, cells=cells)), Path(f"{recipe}.toml"))
    return Moment(commit=f"{number:07x}", date=f"2026-01-{number:02}", subject=f"Change {number}", baselines={recipe: baseline})
