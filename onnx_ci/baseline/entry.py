"""The entry of one cell in a baseline: its facts, each with a path and a value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from onnx_ci.environment.versions import RECORDED, RUNTIME_DISTRIBUTIONS
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
"""For each kind of fact, in order: the length of its path and the type of its values. A dictionary gives types by the last part
of the path; the other values are numbers."""
_REQUIRED = ("opset", "ir-version", "inputs", "outputs", "initializers", "initializer-bytes", "file-bytes")
_SKETCH = tuple(field.name for field in dataclasses.fields(TensorSketch))
_PACKAGES = tuple(name for name in RECORDED if name not in (*RUNTIME_DISTRIBUTIONS[1:], "numpy", "pytest"))
"""Packages whose versions can affect the file or its outputs. All wheels of ONNX Runtime are recorded as ``onnxruntime``."""


def entry_of(result: CellEvidence, facts: ExportFacts, versions: Mapping[str, str]) -> Entry:
    """The entry of a cell."""
    entry: dict[Line, Any] = {
        ("opset",): AS_ASKED if facts.opset == result.cell.opset else facts.opset or 0,
        ("ir-version",): facts.ir_version,
        ("inputs",): [value.name for value in facts.inputs],
        ("outputs",): [value.name for value in facts.outputs],
        ("initializers",): facts.initializers,
        ("initializer-bytes",): facts.initializer_bytes,
        ("file-bytes",): facts.file_bytes,
    }
    if result.observability is not None:
        entry["observability",] = float(f"{result.observability:.2g}")
    entry |= {("domains", domain): version for domain, version in facts.domains.items()}
    entry |= {("input", value.name): value for value in facts.inputs}
    entry |= {("output", value.name): value for value in facts.outputs}
    entry |= {("operators", name): count for name, count in facts.operators.items()}
    for values in facts.values:
        numbers = {**dataclasses.asdict(values), "sample": list(values.sample)}
        name = numbers.pop("name")
        # The largest decisive drift on any input says more than that on the example. Only the first runtime counts.
        outputs = (output for output in result.outputs if output.name == name and output.runtime == result.outputs[0].runtime)
        drifts = [output.drift for output in outputs if output.is_decisive]
        if drifts:
            entry["values", name, "drift"] = float(f"{max(drifts):.2g}")
        entry |= {("values", name, key): number for key, number in numbers.items()}
    for kind, sketch in (("weights", facts.weights), ("arguments", facts.arguments)):
        numbers = {**dataclasses.asdict(sketch), "projections": list(sketch.projections)}
        entry |= {(kind, key): number for key, number in numbers.items()}
    return entry | {("versions", name): version for name, version in _versions_of(versions).items()}


_WEIGHT_DEPENDENT = ("values", "weights", "observability")
"""Kinds of facts that depend on the values of the weights."""


def without_values(entry: Entry, weights: Entry) -> Entry:
    """``entry`` without the facts that depend on the values of the weights, and with the weights of another entry."""
    independent = {line: value for line, value in entry.items() if line[0] not in _WEIGHT_DEPENDENT}
    return independent | {line: value for line, value in weights.items() if line[0] == "weights"}


def _versions_of(versions: Mapping[str, str]) -> dict[str, str]:
    """The versions of the packages that a cell depends on, without local suffixes such as ``+cu130``."""
    of_runtime = next((versions[wheel] for wheel in RUNTIME_DISTRIBUTIONS if wheel in versions), None)
    installed = {"onnxruntime": of_runtime, **versions}
    return {name: str(installed[name]).partition("+")[0] for name in _PACKAGES if installed.get(name)}


def problem_of(entry: Entry) -> str | None:
    """The fact that is missing from an entry, in words; ``None`` if it is complete."""
    required = [
        *((name,) for name in _REQUIRED),
        *((kind, key) for kind in ("weights", "arguments") for key in _SKETCH),
        *(("input", name) for name in entry.get(("inputs",), ())),
        *(("output", name) for name in entry.get(("outputs",), ())),
    ]
    missing = [line for line in required if line not in entry]
    return f"{'.'.join(missing[0])} is missing" if missing else None
