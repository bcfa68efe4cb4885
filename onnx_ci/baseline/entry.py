"""The entry of one cell in a baseline: facts as lines, each a path and one value, which a text file can hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from onnx_ci.records import CellResult, Declared, Sketch

Line = tuple[str, ...]
"""The path of a fact: ``("operators", "Conv")``."""
Entry = Mapping[Line, Any]
"""All facts of a cell: numbers, texts, and lists of either."""

AS_ASKED = "as asked"
"""The opset of a file that is written at the opset of its cell."""

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
    "input": (2, str),
    "output": (2, str),
    "operators": (2, int),
    "values": (3, {"sample": [float]}),
    "weights": (2, {"tensors": int, "values": int, "layout": str, "projections": [float]}),
    "arguments": (2, {"tensors": int, "values": int, "layout": str, "projections": [float]}),
    "versions": (2, str),
}
"""For each kind of line, in order: how long its path is, and what its values are; where that hangs on the last word of the
path, those that are no numbers."""

_REQUIRED = ("opset", "ir-version", "inputs", "outputs", "initializers", "initializer-bytes", "file-bytes")
_SKETCH = tuple(field.name for field in dataclasses.fields(Sketch))

_PACKAGES = ("onnx-ci", "torch", "torchvision", "onnx", "onnxscript", "onnxruntime", "openvino")
"""Those whose versions can move what a file is or computes; a runtime's only where it has run the file."""


def entry_of(result: CellResult, versions: Mapping[str, str]) -> Entry:
    """What a baseline holds of a cell.

    Args:
        result: one that has facts.
        versions: of the packages that took part.
    """
    facts = result.facts
    if facts is None:
        raise ValueError(f"{result.cell.id} has no facts")
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
    entry |= {("input", each.name): _in_words(each) for each in facts.inputs}
    entry |= {("output", each.name): _in_words(each) for each in facts.outputs}
    entry |= {("operators", name): count for name, count in facts.operators.items()}
    for values in facts.values:
        numbers = dataclasses.asdict(values)
        name = numbers.pop("name")
        # How large drift gets over all inputs says more than the example alone; other runtimes than the first are witnesses.
        drifts = [each.drift for each in result.outputs if each.name == name and each.runtime == result.outputs[0].runtime]
        drift = {"drift": float(f"{max(drifts):.2g}")} if drifts else {}
        entry |= {("values", name, key): value for key, value in {**drift, **numbers, "sample": list(values.sample)}.items()}
    for kind, sketch in (("weights", facts.weights), ("arguments", facts.arguments)):
        numbers = {**dataclasses.asdict(sketch), "projections": list(sketch.projections)}
        entry |= {(kind, key): value for key, value in numbers.items()}
    return entry | {("versions", name): version for name, version in _recorded(versions, result).items()}


def _in_words(value: Declared) -> str:
    """``float[batch, 3]``."""
    return value.dtype if value.dims is None else f"{value.dtype}[{', '.join(value.dims)}]"


def _recorded(versions: Mapping[str, str], result: CellResult) -> dict[str, str]:
    """The versions of packages that matter, without what says which machine they are built for."""
    known = {"onnxruntime": versions.get("onnxruntime-gpu"), **versions}
    idle = {"openvino"} - {each.runtime for each in result.outputs}
    return {name: str(known[name]).partition("+")[0] for name in _PACKAGES if known.get(name) and name not in idle}


def problem_of(entry: Entry) -> str | None:
    """What an entry lacks, or ``None`` if it is whole."""
    needed = [
        *((name,) for name in _REQUIRED),
        *((kind, key) for kind in ("weights", "arguments") for key in _SKETCH),
        *(("input", name) for name in entry.get(("inputs",), ())),
        *(("output", name) for name in entry.get(("outputs",), ())),
    ]
    missing = [each for each in needed if each not in entry]
    return f"{'.'.join(missing[0])} is not there" if missing else None
