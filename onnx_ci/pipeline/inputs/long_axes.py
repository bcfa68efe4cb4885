"""Inputs of which one axis is far longer than in the example.

Code that depends on a size without comparing it computes something else there: ``layers[: 1 + x.shape[1] // 100]`` has more
layers, ``np.searchsorted(bounds, x.shape[1])`` is another row of a table, and ``x.split(512)`` gives more than one part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from onnx_ci.pipeline.domains.axes import InputAxes
from onnx_ci.pipeline.inputs.directions import Directions
from onnx_ci.pipeline.inputs.probes import Probe, Prober

_SIZES = (1025, 1024, 513, 257, 129)
"""In the order of trying: just above the sizes at which code usually changes. 1024 is for models that need a multiple."""
_FAR = 4
"""How many times the example's size one of these is at least."""
MOST_WORK = 2**26
"""How many elements a run may compute: about a tenth of a second."""


def long_probes(prober: Prober, axes: InputAxes, directions: Directions, work: int) -> Iterator[Probe]:
    """For each axis, a probe of the longest size that the model accepts, if it computes ``work`` elements on the example.

    The work is taken to grow with the square of the size, as that of attention does. Where sizes are declared one by one, none
    is tried that is so far from them.
    """
    for name in (each for each in directions.free_sizes if not isinstance(axes.declared.get(each), tuple)):
        direction = directions.resizing([name])
        start = max(direction.start, 1)
        most = min(direction.limit, start * (MOST_WORK / max(work, 1)) ** 0.5)
        for size in (each for each in _SIZES if _FAR * start <= each <= most):
            if (inputs := direction.inputs(size)) is None:
                continue
            probe = prober.probe(f"{name}={axes.sizes_in(inputs)[name]}", inputs, quick=True)
            if probe is not None and probe.reference.is_comparable:
                yield replace(probe, is_long=True)
                break
