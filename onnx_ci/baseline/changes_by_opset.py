"""What changed from one baseline of a recipe to another, grouped by opset; :mod:`~onnx_ci.baseline.changes` words it."""

from __future__ import annotations

from onnx_ci.baseline.changes import Limits, changed_versions, changes
from onnx_ci.baseline.file import Baseline
from onnx_ci.opsets import format_opsets


def differences(old: Baseline | None, new: Baseline | None, limits: Limits) -> list[str]:
    """What changed from one baseline of a recipe to another: one line for each change, with its opsets."""
    before, now = ({} if each is None else each.cells for each in (old, new))
    found: dict[tuple[str, str, str], list[int]] = {}
    for place in sorted({*before, *now}):
        if place not in now:
            words = ["no longer recorded"]
        elif place not in before:
            words = ["new"]
        else:
            one, other = before[place], now[place]
            packages = changed_versions(one, other)
            words = [each.words for each in changes(one, other, limits)] + ([packages] if packages else [])
        for each in words:
            found.setdefault((place.exporter, place.device, each), []).append(place.opset)
    return [
        f"{exporter} {device}, opset{'s' * (len(opsets) > 1)} {format_opsets(opsets)}: {words}"
        for (exporter, device, words), opsets in found.items()
    ]
