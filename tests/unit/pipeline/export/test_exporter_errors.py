from __future__ import annotations

import pytest

from onnx_ci.pipeline.export.exporter_errors import rule_of_error


class UnsupportedOperatorError(Exception):
    """Called like that of TorchScript."""


@pytest.mark.parametrize(
    ("error", "rule"),
    [
        (UnsupportedOperatorError("whatever it says"), "unsupported-operator"),
        (RuntimeError("No ONNX function found for <OpOverload(op='aten.foo', overload='default')>"), "unsupported-operator"),
        (RuntimeError("Unsupported: ONNX export of operator foo"), "unsupported-operator"),
        (RuntimeError("The keyword is currently not supported"), "unsupported-operator"),
        (ValueError("Unsupported ONNX opset version: 99"), "unsupported-opset"),
        (ValueError("Target opset version 99 is not supported"), "unsupported-opset"),
        (ValueError("a data-dependent expression"), None),
        (ValueError(""), None),
    ],
    ids=str,
)
def test_the_table_says_which_rule_an_error_breaks(error, rule):
    assert rule_of_error(error) == rule
