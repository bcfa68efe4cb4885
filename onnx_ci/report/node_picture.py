"""The nodes around a fault as an SVG picture that shows how the drift grows from node to node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnx_ci.report.templates import fill
from onnx_ci.results.records import NodeStep

_WIDTH, _LEFT, _BAR, _LONGEST_BAR = 860, 46, 620, 120
_HEIGHT, _GAP, _TOP = 44, 18, 8
_SMALLEST, _LARGEST = -1.0, 9.0
"""The powers of ten of the drifts at the two ends of a bar's scale."""


@dataclass(frozen=True, kw_only=True)
class _Box:
    """A node in the picture."""

    step: NodeStep
    top: int
    inputs: tuple[int, ...]
    """The tops of the boxes that it takes values from."""
    bar: float
    """The length of its bar, on a logarithmic scale."""
    kind: str
    """``culprit``, ``wrong`` behind one, or ``right``."""
    name: str
    """The node, as far as there is room."""
    detail: str
    numbers: str

    @property
    def title(self) -> str:
        words = {"culprit": "at fault", "wrong": "wrong behind the fault", "right": "right"}
        return f"{self.step.node}, {words[self.kind]}: {self.numbers}"


def node_picture(steps: Sequence[NodeStep]) -> str:
    """The picture, or nothing if there are no steps."""
    if not steps:
        return ""
    tops = [_TOP + number * (_HEIGHT + _GAP) for number in range(len(steps))]
    boxes = [_box(steps, number, tops) for number in range(len(steps))]
    faulty = " and ".join(step.node for step in steps if step.is_culprit)
    return fill(
        "node_picture.svg.jinja",
        boxes=boxes,
        height=tops[-1] + _HEIGHT + _TOP,
        width=_WIDTH,
        left=_LEFT,
        box_height=_HEIGHT,
        box_width=_BAR - _LEFT - 20,
        bar=_BAR,
        words=f"{len(steps)} nodes around the fault at {faulty}",
    )


_MOST = 72
"""About how many characters have room in a box."""


def _ending(text: str, most: int) -> str:
    """The end of a text that is too long, because names and paths begin with what many have in common."""
    return text if len(text) <= most else f"…{text[1 - most :]}"


def _box(steps: Sequence[NodeStep], number: int, tops: Sequence[int]) -> _Box:
    step = steps[number]
    drift = step.drift
    is_behind = any(each.is_culprit for each in steps[:number])
    kind = "culprit" if step.is_culprit else "wrong" if is_behind and (drift is None or drift > 1) else "right"
    if not step.can_run:
        numbers = "does not run"
    elif drift is None or step.file_value is None or step.model_value is None:
        numbers = "not compared"
    else:
        numbers = f"drift {drift:.3g}: {step.file_value:.5g} for {step.model_value:.5g}"
    exponent = math.log10(drift) if drift else _SMALLEST
    share = (min(max(exponent, _SMALLEST), _LARGEST) - _SMALLEST) / (_LARGEST - _SMALLEST)
    shape = f"{list(step.shape)}" if step.can_run else ""
    return _Box(
        step=step,
        top=tops[number],
        inputs=tuple(tops[each] for each in step.inputs if 0 <= each < number),
        bar=0.0 if drift is None else round(max(share, 0.02) * _LONGEST_BAR, 1),
        kind=kind,
        name=_ending(step.node, _MOST),
        detail=", ".join(filter(None, [_ending(str(step.source or ""), _MOST - 24), step.operator, shape])),
        numbers=numbers,
    )
