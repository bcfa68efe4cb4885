"""The tables of rules and remedies, as code uses them."""

from __future__ import annotations

import re
from pathlib import Path

import onnx_ci
from onnx_ci.results.records import FrozenKind
from onnx_ci.results.rules import REMEDIES

SOURCES = [path.read_text(encoding="utf-8") for path in Path(onnx_ci.__file__).parent.rglob("*.py")]


def test_each_remedy_that_code_names_is_in_the_table():
    named = {name for source in SOURCES for name in re.findall(r'REMEDIES\["([^"]+)"\]', source)}
    assert len(named) > 15
    assert named <= REMEDIES.keys()


def test_each_remedy_in_the_table_is_named_by_code():
    quoted = {name for source in SOURCES for name in re.findall(r'"([a-z0-9-]+)(?:"|-\{)', source)}
    kinds = {f"frozen-{kind}" for kind in FrozenKind} - {"frozen-branch"}  # it has that of a condition
    unused = {name for name in REMEDIES if name.removesuffix("-torchscript").removesuffix("-dynamo") not in quoted | kinds}
    assert unused == set()
    assert kinds <= REMEDIES.keys()
