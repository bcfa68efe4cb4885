"""The entry of one cell in a baseline: facts, each a path and a value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from onnx_ci.results.records import CellEvidence, DeclaredValue, ExportFacts, TensorSketch

Line = tuple[str, ...]
"""The path of a fact: ``("operators", "Conv")``."""
Entry = Mapping[Line, Any]
"""All facts of a cell: numbers, strings, lists of either, and inputs and outputs as :class:`DeclaredValue`."""

AS_ASKED = "as asked"
"""The opset of a file whose opset is that of its cell."""

KINDS: Mapping[str, tuple[int, Any]] = {
    "opset": (1, (int, str)),
    "ir-version": (1, int),
    "inputs": (1, [str]),
    "outputs": (1, [str]),
    "initializers": (1, int),
    "initializer-bytes": (1, int),
    "file-bytes": (1, int),
    "observability": (1, float),
    "domains": (2, int),
    "input": (2, DeclaredValue),
    "output": (2, DeclaredValue),
    "operators": (2, int),
    "values": (3, {"sample": [float]}),
    "weights": (2, {"tensors": int, "values": int, "layout": str, "projections": [float]}),
    "arguments": (2, {"tensors": int, "values": int, "layout": str, "projections": [float]}),
    "versions": (2, str),
}
"""For each kind of fact, in order: the length of its path and the type of its values. A dictionary has the types that depend
on the last part of the path; others are numbers."""

_REQUIRED = ("opset", "ir-version", "inputs", "outputs", "initializers", "initializer-bytes", "file-bytes")
_SKETCH = tuple(field.name for field in dataclasses.fields(TensorSketch))

_PACKAGES = ("onnx-ci", "torch", "torchvision", "onnx", "onnxscript", "onnxruntime", "openvino")
"""Packages whose versions can affect the file or its outputs; a runtime only if it ran the file."""


def entry_of(result: CellEvidence, facts: ExportFacts, versions: Mapping[str, str]) -> Entry:
    """What a baseline records of a cell.

    Args:
        result: what was found out about the cell.
        facts: the facts about its file.
        versions: the versions of the packages involved.
    """
    entry: dict[Line, Any] = {
        ("opset",): AS_ASKED if facts.opset == result.cell.opset else facts.opset or 0,
        ("ir-version",): facts.ir_version,
        ("inputs",): [each.name for each in facts.inputs],
        ("outputs",): [each.name for each in facts.outputs],
        ("initializers",): facts.initializers,
        ("initializer-bytes",): facts.initializer_bytes,
        ("file-bytes",): facts.file_bytes,
    }
    if result.observability is not None:
        entry["observability",] = float(f"{result.observability:.2g}")
    entry |= {("domains", domain): version for domain, version in facts.domains.items()}
    entry |= {("input", each.name): each for each in facts.inputs}
    entry |= {("output", each.name): each for each in facts.outputs}
    entry |= {("operators", name): count for name, count in facts.operators.items()}
    for values in facts.values:
        numbers = dataclasses.asdict(values)
        name = numbers.pop("name")
        # The largest drift on any input that decides says more than the example alone; only the first runtime counts.
        of_first = (each for each in result.outputs if each.name == name and each.runtime == result.outputs[0].runtime)
        drifts = [each.drift for each in of_first if each.is_decisive]
        drift = {"drift": float(f"{max(drifts):.2g}")} if drifts else {}
        entry |= {("values", name, key): value for key, value in {**drift, **numbers, "sample": list(values.sample)}.items()}
    for kind, sketch in (("weights", facts.weights), ("arguments", facts.arguments)):
        numbers = {**dataclasses.asdict(sketch), "projections": list(sketch.projections)}
        entry |= {(kind, key): value for key, value in numbers.items()}
    return entry | {("versions", name): version for name, version in _recorded(versions, result).items()}


_WEIGHT_DEPENDENT = ("values", "weights", "observability")
"""Kinds of facts that depend on the values of the weights."""


def without_values(entry: Entry, weights: Entry) -> Entry:
    """``entry`` without the facts that depend on the values of the weights, and with the weights of another entry."""
    kept = {line: value for line, value in entry.items() if line[0] not in _WEIGHT_DEPENDENT}
    return kept | {line: value for line, value in weights.items() if line[0] == "weights"}


def _recorded(versions: Mapping[str, str], result: CellEvidence) -> dict[str, str]:
    """The versions of the packages that matter, without local suffixes such as ``+cu130``."""
    known = {"onnxruntime": versions.get("onnxruntime-gpu"), **versions}
    unused = {"openvino"} - {each.runtime for each in result.outputs}
    return {name: str(known[name]).partition("+")[0] for name in _PACKAGES if known.get(name) and name not in unused}


def problem_of(entry: Entry) -> str | None:
    """What is missing from an entry, or ``None`` if it is complete."""
    needed = [
        *((name,) for name in _REQUIRED),
        *((kind, key) for kind in ("weights", "arguments") for key in _SKETCH),
        *(("input", name) for name in entry.get(("inputs",), ())),
        *(("output", name) for name in entry.get(("outputs",), ())),
    ]
    missing = [each for each in needed if each not in entry]
    return f"{'.'.join(missing[0])} is missing" if missing else None
