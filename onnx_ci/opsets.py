"""Opset numbers: how they are written, and which exporter is the default for each.

An opset specification is an integer, a string such as ``"9-17"``, ``"9,11,13-15"`` or ``"18-"``, or a sequence of these. A
range without an end extends to the newest opset. That depends on the installed packages, so such a range is parsed as a range
to :data:`OPEN_END`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

OF_TORCH = ("torchscript", "dynamo")
"""The two exporters behind ``torch.onnx.export``: ``dynamo=False`` and ``dynamo=True``."""
UNOPTIMIZED: Mapping[str, Mapping[str, bool]] = {"torchscript": {"do_constant_folding": False}, "dynamo": {"optimize": False}}
"""The option that makes each of them write the graph as it was captured."""
CUSTOM = "custom"
"""The exporter that is a recipe's own function, ``@recipe(export=...)``. A recipe without one has no such cells."""
DEFAULT_OPSETS = tuple(range(9, 18))
"""The opsets at which a recipe is exported if neither the recipe nor the settings specify any."""
FIRST_DYNAMO_OPSET = 18
"""The dynamo exporter targets opset 18 and only *tries* to convert to lower ones, so TorchScript is the default there."""
HIGHEST_PLAUSIBLE_OPSET = 99
"""Far above any published opset. A larger number is a typo, such as ``9-170``."""
OPEN_END = HIGHEST_PLAUSIBLE_OPSET + 1
"""The last number of a range without an end. It is not an opset."""
WRITTEN_BY = {"torchscript": range(7, 24), "dynamo": range(FIRST_DYNAMO_OPSET, OPEN_END + 1)}
"""The opsets that the exporters of torch 2.9 to 2.13 write."""
_PART = re.compile(r"(\d+)(?:\s*(-)\s*(\d+)?)?")


def default_exporter(opset: int) -> str:
    """The exporter for ``opset`` if neither the recipe nor the settings specify one."""
    return "dynamo" if opset >= FIRST_DYNAMO_OPSET else "torchscript"


def exporter_order(name: str) -> tuple[int, str]:
    """The key to sort exporters by: TorchScript, dynamo, and then all others by name."""
    return OF_TORCH.index(name) if name in OF_TORCH else len(OF_TORCH), name


def parse_opsets(spec: object) -> tuple[int, ...]:
    """The opsets of a specification, ascending, each once. Raises ``ValueError``, which says what is wrong."""
    if isinstance(spec, bool):
        raise ValueError(f"opsets must be numbers such as 9 or 9-17, not {spec!r}")
    if isinstance(spec, int):
        opsets = {_existing(spec)}
    elif isinstance(spec, str):
        opsets = {opset for part in spec.split(",") for opset in _parse_part(part.strip(), spec)}
    elif isinstance(spec, Iterable):
        opsets = {opset for part in spec for opset in parse_opsets(part)}
    else:
        raise ValueError(f"opsets must be numbers such as 9 or 9-17, not {spec!r}")
    if not opsets:
        raise ValueError("opsets is empty; name at least one, such as 9-17")
    return tuple(sorted(opsets))


def _existing(opset: int) -> int:
    if not 1 <= opset <= HIGHEST_PLAUSIBLE_OPSET:
        raise ValueError(f"opset {opset} does not exist; ONNX opsets are small numbers such as 9-17")
    return opset


def _parse_part(part: str, spec: str) -> range:
    match = _PART.fullmatch(part)
    if match is None:
        where = "" if part == spec else f" in {spec!r}"
        raise ValueError(f"{part!r}{where} is not an opset; write numbers and ranges such as 9,11,13-17 or 18-")
    first = _existing(int(match[1]))
    last = _existing(int(match[3])) if match[3] else OPEN_END if match[2] else first
    if last < first:
        raise ValueError(f"the range {part} runs backwards; write {last}-{first}")
    return range(first, last + 1)


def sample_opsets(opsets: Sequence[int], count: int) -> tuple[int, ...]:
    """``count`` of ``opsets``: the lowest, the highest and evenly spaced ones between; only the highest if ``count`` is 1."""
    ordered = sorted(opsets)
    if count >= len(ordered):
        return tuple(ordered)
    if count == 1:
        return (ordered[-1],)
    return tuple(ordered[round(number * (len(ordered) - 1) / (count - 1))] for number in range(count))


def format_opsets(opsets: Iterable[int]) -> str:
    """The shortest specification of ``opsets``: the inverse of :func:`parse_opsets`."""
    runs: list[list[int]] = []
    for opset in sorted(set(opsets)):
        if runs and opset == runs[-1][1] + 1:
            runs[-1][1] = opset
        else:
            runs.append([opset, opset])
    ends = {opset: "" if opset == OPEN_END else str(opset) for _, opset in runs}
    return ",".join(str(first) if first == last else f"{first}-{ends[last]}" for first, last in runs)
