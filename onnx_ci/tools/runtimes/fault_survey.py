"""Which releases of ONNX Runtime compute which cases wrong, measured; and the rows of ``known_faults.toml`` that follow."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from packaging.version import Version

from onnx_ci.onnx_model.signature import opset_of_model
from onnx_ci.tools.runtimes.fault_cases import versions_of
from onnx_ci.tools.runtimes.fault_runs import WRONG
from onnx_ci.tools.runtimes.known_faults import attributes_of, inputs_of, type_name
from onnx_ci.tools.versions.other_version import OtherOnnxRuntime, wheels_of
from onnx_ci.tools.versions.overlay import environment_with, folder_of

_RUNS = "onnx_ci.tools.runtimes.fault_runs"
_ENDS = 50
"""How often the process of a release may end before its cases are given up."""


def outcomes_in(release: str, cases: Path) -> dict[int, float]:
    """How far each case is off in a release, by its number; those that it refuses, or that end its process, are left out.

    Raises:
        ConfigurationError: the release cannot be had.
    """
    OtherOnnxRuntime.install(release)
    environment = environment_with(folder_of(wheels_of(release)))
    outcomes: dict[int, float] = {}
    start = 0
    for _ in range(_ENDS):
        command = [sys.executable, "-P", "-m", _RUNS, str(cases), str(start)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        outcomes |= {number: off for number, off in lines if off is not None and off >= 0}
        if done.returncode == 0 or not lines:
            break
        start = lines[-1][0] + 1
    return outcomes


def limits_in(release: str, cases: Path) -> dict[str, Any]:
    """The newest IR version and opset that a release loads, from the files of :func:`write_limit_cases`."""
    loaded = outcomes_in(release, cases)
    return {
        "package": "onnxruntime",
        "version": release,
        "ir_version": max((number // 1000 for number in loaded), default=0),
        "opset": max((number % 1000 for number in loaded), default=0),
    }


@dataclass(frozen=True)
class _Kind:
    """What cases have in common that one row is about."""

    operators: tuple[str, ...]
    attributes: str
    """As JSON."""
    opsets: tuple[int, int]
    type: str
    rank: int
    inputs: int
    links: tuple[int, ...]
    others: tuple[tuple[int, ...], ...]
    remainder: int | None


def _kind_of(path: Path) -> _Kind:
    model = onnx.load(path)
    nodes, opset = model.graph.node, opset_of_model(model) or 0
    value = model.graph.input[0].type.tensor_type
    ranks = {each.name: len(each.type.tensor_type.shape.dim) for each in model.graph.input}
    ranks |= {each.name: len(each.dims) for each in model.graph.initializer}
    linked = [before.output[0] for before in nodes[:-1]]
    attributes = [attributes_of(node, opset) for node in nodes]
    stride = attributes[0].get("strides", 0) if len(value.shape.dim) > 2 else 0
    return _Kind(
        operators=tuple(node.op_type for node in nodes),
        attributes=json.dumps(attributes, sort_keys=True),
        opsets=next(span for span in versions_of(nodes[0].op_type) if span[0] <= opset <= span[1]),
        type=type_name(value.elem_type),
        rank=len(value.shape.dim),
        inputs=inputs_of(nodes[0]),
        links=tuple(list(node.input).index(name) for node, name in zip(nodes[1:], linked, strict=True)),
        others=tuple(
            tuple(ranks[each] for each in node.input if each != name) for node, name in zip(nodes[1:], linked, strict=True)
        ),
        remainder=value.shape.dim[2].dim_value % stride if isinstance(stride, int) and stride > 1 else None,
    )


def rows(cases: Path, outcomes: Mapping[str, Mapping[int, float]]) -> Iterator[dict[str, Any]]:
    """The rows of faults, from how far the cases are off in each release.

    A kind of cases makes a row if all that run are wrong in some releases that follow each other, and right in the next.
    """
    releases = sorted(outcomes, key=Version)
    numbers: dict[_Kind, list[int]] = {}
    for path in sorted(cases.glob("*.onnx")):
        if any(outcomes[release].get(int(path.stem), 0.0) >= WRONG for release in releases):
            numbers.setdefault(_kind_of(path), [])
    for path in sorted(cases.glob("*.onnx")) if numbers else ():
        kind = _kind_of(path)
        if kind in numbers:
            numbers[kind].append(int(path.stem))
    faults = []
    for kind, of_kind in numbers.items():
        offs = {release: [outcomes[release][each] for each in of_kind if each in outcomes[release]] for release in releases}
        ran = [release for release in releases if offs[release]]
        wrong = [release for release in ran if min(offs[release]) >= WRONG]
        right = [release for release in ran if max(offs[release]) < WRONG]
        if not wrong or len(wrong) + len(right) < len(ran) or ran.index(wrong[-1]) == len(ran) - 1:
            continue
        if ran.index(wrong[-1]) - ran.index(wrong[0]) == len(wrong) - 1:
            off = max(max(offs[release]) for release in wrong)
            versions = {"first": wrong[0], "last": wrong[-1], "right": ran[ran.index(wrong[-1]) + 1]}
            faults.append(_row(kind, versions, off, cases=len(of_kind), releases=len(wrong)))
    for merge in (_remainders, _links, _lists("ranks"), _lists("types"), _opsets):
        faults = merge(faults)
    yield from sorted(faults, key=lambda row: (row["operators"], row["opsets"], Version(row["last"]), str(row["attributes"])))


def _row(kind: _Kind, versions: Mapping[str, str], off: float, *, cases: int, releases: int) -> dict[str, Any]:
    return {
        "package": "onnxruntime",
        "operators": list(kind.operators),
        "attributes": json.loads(kind.attributes),
        "opsets": list(kind.opsets),
        "types": [kind.type],
        "ranks": [kind.rank],
        "inputs": kind.inputs,
        "links": [[each] for each in kind.links],
        "others": [list(each) for each in kind.others],
        "remainders": [] if kind.remainder is None else [kind.remainder],
        **versions,
        "off": "another shape" if off == float("inf") else f"off by up to {off:.1g} of the largest value",
        "cases": cases,
        "releases": releases,
    }


_Rows = list[dict[str, Any]]


def _merged(faults: Iterable[dict[str, Any]], name: str, join: Callable[[_Rows], Iterable[Any]]) -> _Rows:
    """The rows, of which those that differ in ``name`` alone are one; what they have in its place, ``join`` says."""
    groups: dict[str, _Rows] = {}
    for row in faults:
        same = {key: value for key, value in row.items() if key not in (name, "cases", "off")}
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(row)
    merged = []
    for group in groups.values():
        total, worst = sum(row["cases"] for row in group), max(row["off"] for row in group)
        merged += [{**group[0], name: value, "cases": total, "off": worst} for value in join(group)]
    return merged


def _lists(name: str) -> Callable[[_Rows], _Rows]:
    return lambda faults: _merged(faults, name, lambda group: [sorted({each for row in group for each in row[name]})])


def _remainders(faults: _Rows) -> _Rows:
    """Rows with all the remainders with which nodes are wrong; none if that are all that there are."""

    def join(group: _Rows) -> list[list[int]]:
        all_of_them = sorted({each for row in group for each in row["remainders"]})
        stride = group[0]["attributes"][0].get("strides")
        return [[] if all_of_them == list(range(stride or 0)) else all_of_them]

    return _merged(faults, "remainders", join)


def _links(faults: _Rows) -> _Rows:
    """Rows with all the inputs at which nodes may get what those before them compute."""

    def join(group: _Rows) -> list[list[list[int]]]:
        together = [
            sorted({each for link in links for each in link}) for links in zip(*(row["links"] for row in group), strict=True)
        ]
        is_every = math.prod(map(len, together)) == len(group)
        return [together] if is_every else [row["links"] for row in group]

    return _merged(faults, "links", join)


def _opsets(faults: _Rows) -> _Rows:
    """Rows with the opsets of versions of an operator that follow each other."""

    def join(group: _Rows) -> list[list[int]]:
        spans: list[list[int]] = []
        for first, last in sorted(row["opsets"] for row in group):
            if spans and spans[-1][1] + 1 == first:
                spans[-1][1] = last
            else:
                spans.append([first, last])
        return spans

    return _merged(faults, "opsets", join)


def as_toml(
    faults: Sequence[Mapping[str, Any]], limits: Iterable[Mapping[str, Any]], releases: Sequence[str], reference: str
) -> str:
    """The rows as the content of ``known_faults.toml``."""
    lines = [
        "# Nodes that releases of runtimes compute wrong. Written by: onnx-ci faults --renew",
        f"# Measured with {', '.join(releases)}; right is what {reference} computes.",
    ]
    for limit in limits:
        lines += ["", "[[limit]]", *(f"{key} = {_toml(value)}" for key, value in limit.items())]
    for row in faults:
        evidence = f"{row['cases']} cases, wrong in each of {row['releases']} releases"
        shown = {key: value for key, value in row.items() if key not in ("cases", "releases")} | {"evidence": evidence}
        lines += ["", "[[fault]]", *(f"{key} = {_toml(value)}" for key, value in shown.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)
