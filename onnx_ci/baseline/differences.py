"""Two baselines of a recipe, held against each other: what moved, and at which opsets."""

from __future__ import annotations

from onnx_ci.baseline.changes import Limits, changes, moved_versions
from onnx_ci.baseline.file import Baseline
from onnx_ci.opsets import format_opsets


def differences(old: Baseline | None, new: Baseline | None, limits: Limits) -> list[str]:
    """What moved from one baseline of a recipe to another: a line for each change, with the opsets that it is at."""
    before, now = ({} if each is None else each.cells for each in (old, new))
    told: dict[tuple[str, str, str], list[int]] = {}
    for place in sorted({*before, *now}):
        if place not in now:
            words = ["no longer recorded"]
        elif place not in before:
            words = ["new"]
        else:
            one, other = before[place], now[place]
            packages = moved_versions(one, other)
            words = [each.words for each in changes(one, other, limits)] + ([packages] if packages else [])
        for each in words:
            told.setdefault((place.exporter, place.device, each), []).append(place.opset)
    return [
        f"{exporter} {device}, opset{'s' * (len(opsets) > 1)} {format_opsets(opsets)}: {words}"
        for (exporter, device, words), opsets in told.items()
    ]
