"""Numbers over commits as small SVG pictures, one beside the other, so that what moved stands out in a long list."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from onnx_ci.report.markup import escape

_WIDTH, _HEIGHT, _MARGIN = 220, 36, 6


def trend(values: Sequence[float | None], moments: Sequence[str], show: Callable[[float], str], *, is_log: bool = False) -> str:
    """A line that steps from moment to moment, with a mark where it moves.

    Args:
        values: one for each moment; ``None`` where there is none.
        moments: what each is called, for who points at a mark.
        show: a value in words.
        is_log: whether the scale is logarithmic.
    """
    known = [value for value in values if value is not None]
    if not known:
        return ""
    scaled = [None if value is None else _scaled(value, is_log) for value in values]
    heights = [value for value in scaled if value is not None]
    low, high = min(heights), max(heights)

    def x(place: int) -> float:
        return _MARGIN + (_WIDTH - 2 * _MARGIN) * (place / (len(values) - 1) if len(values) > 1 else 0.5)

    def y(value: float) -> float:
        share = (value - low) / (high - low) if high > low else 0.5
        return _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * share

    data, marks, before = "", "", None
    for place, (value, height) in enumerate(zip(values, scaled, strict=True)):
        if value is None or height is None:
            before = None
            continue
        data += f"M{x(place):.1f} {y(height):.1f}h0" if before is None else f"H{x(place):.1f}V{y(height):.1f}"
        moved = before is not None and value != before
        if moved or place == len(values) - 1:
            kind = "worse" if moved and before is not None and value > before else "mark"
            said = f"{show(before)} → {show(value)}" if moved and before is not None else show(value)
            marks += (
                f'<circle class="{kind}" cx="{x(place):.1f}" cy="{y(height):.1f}" r="3">'
                f"<title>{escape(f'{moments[place]}: {said}')}</title></circle>"
            )
        before = value
    first, last = show(known[0]), show(known[-1])
    words = first if first == last else f"{first} → {last}"
    return (
        f'<svg class="trend" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(words)}">'
        f'<path d="{data}"/>{marks}</svg><span>{escape(words)}</span>'
    )


def _scaled(value: float, is_log: bool) -> float:
    if math.isnan(value) or value == math.inf:
        value = 1e30
    return math.log10(max(value, 1e-3)) if is_log else value
