"""The changes from one baseline of a recipe to another, grouped by opset."""

from __future__ import annotations

from onnx_ci.baseline.changes import Limits, changed_versions, changes
from onnx_ci.baseline.entry import Entry
from onnx_ci.baseline.file import Baseline
from onnx_ci.opsets import format_opsets


def differences(old: Baseline | None, new: Baseline | None, limits: Limits) -> list[str]:
    """The changes from one baseline of a recipe to another: one line for each change, with its opsets."""
    before, now = ({} if baseline is None else baseline.cells for baseline in (old, new))
    opsets_of: dict[tuple[str, str, str], list[int]] = {}
    for place in sorted({*before, *now}):
        for words in _differences(before.get(place), now.get(place), limits):
            opsets_of.setdefault((place.exporter, place.target, words), []).append(place.opset)
    return [
        f"{exporter} {target}, opset{'s' * (len(opsets) > 1)} {format_opsets(opsets)}: {words}"
        for (exporter, target, words), opsets in opsets_of.items()
    ]


def _differences(old: Entry | None, new: Entry | None, limits: Limits) -> list[str]:
    """The changes of one cell."""
    if new is None:
        return ["no longer recorded"]
    if old is None:
        return ["new"]
    packages = changed_versions(old, new)
    return [change.words for change in changes(old, new, limits)] + ([packages] if packages else [])
