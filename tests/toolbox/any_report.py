"""Reports with whatever a report can hold, drawn by hypothesis from the types of the records' own fields."""

from __future__ import annotations

import dataclasses
import enum
import functools
import typing
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from toolbox.records import cell

from onnx_ci.results.records import CellResult, Finding, Revision, Status
from onnx_ci.results.rules import RULES
from onnx_ci.results.run_report import RunReport
from onnx_ci.results.verdict import broken_rules

TEXTS = st.text(st.sampled_from('ab cé\n\t"\\😀:/<'), max_size=9)
NUMBERS = st.sampled_from([0.0, 1.5, 3e-9, -2.0]) | st.floats()
SECONDS = st.floats(0, 1000)
JSON = st.recursive(TEXTS | st.none() | st.integers(-9, 9), lambda inner: st.lists(inner, max_size=2), max_leaves=3)


@functools.cache
def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type, as the annotation of a field names it."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin is tuple:
        return st.lists(values(inner[0]), max_size=1).map(tuple)
    if origin is Mapping:
        return st.dictionaries(TEXTS, values(inner[1]), max_size=2)
    if inner:  # X | None
        return st.none() | values(inner[0])
    if issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    fields = {name: values(hint) for name, hint in typing.get_type_hints(kind).items()}
    return st.builds(kind, **{**fields, **_FIELDS.get(kind, {})})


_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXTS,
    int: st.integers(-(2**62), 2**62),
    float: NUMBERS,
    bool: st.booleans(),
    Any: JSON,
}
# Values of fields that have a meaning of their own.
_FIELDS: dict[Any, dict[str, st.SearchStrategy[Any]]] = {
    Finding: {"rule": st.sampled_from(list(RULES))},
    Revision: {"commit": st.text("0123456789abcdef", min_size=40, max_size=40)},
    CellResult: {"timings": st.dictionaries(TEXTS, SECONDS, max_size=2), "cell": st.builds(cell)},
    RunReport: {"seconds": SECONDS, "cells": st.just(())},
}


@st.composite
def reports(draw: st.DrawFn) -> RunReport:
    """A report of a few cells with different ids."""
    opsets = draw(st.lists(st.integers(1, 30), max_size=3, unique=True))
    cells = [
        dataclasses.replace(
            draw(values(CellResult).filter(lambda each: each.status is not Status.PASSED or not broken_rules(each.findings))),
            cell=cell(
                opset=opset,
                device=draw(st.sampled_from(["cpu", "cuda:1"])),
                exporter=draw(st.sampled_from(["torchscript", "dynamo"])),
            ),
        )
        for opset in opsets
    ]
    return dataclasses.replace(draw(values(RunReport)), cells=tuple(cells))
