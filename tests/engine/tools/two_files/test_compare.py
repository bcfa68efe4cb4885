"""Two files that are compared in a process of its own."""

from __future__ import annotations

import os
import sys

import onnxruntime
import pytest
from toolbox.files import mlp, save

import onnx_ci
from onnx_ci import Severity, Status


@pytest.fixture
def compare(tmp_path):
    """Compare a model with itself, in a process of its own."""
    paths = [save(mlp(), tmp_path / name) for name in ("a.onnx", "b.onnx")]
    return lambda: onnx_ci.compare(*paths, isolation="fork")


@pytest.mark.skipif(sys.platform != "linux", reason="comparisons have processes of their own on Linux only")
def test_a_crash_of_the_runtime_is_a_finding(compare, monkeypatch):
    assert compare().status is Status.PASSED
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: os.abort())
    result = compare()
    assert [each.rule for each in result.findings if each.severity is Severity.ERROR] == ["crash"]
    assert "was killed by SIGABRT while loading " in result.findings[0].message
