"""What is read from a file without torch."""

from __future__ import annotations

import onnx
import pytest

from onnx_ci.onnx_model.signature import Signature, read_signature

POWERS = """
<ir_version: 8, opset_import: ["": 17, "own": 1]>
net (float[2] x) => (float[2] y) {{ h = own.first (x) y = own.second (h) }}
<domain: "own", opset_import: ["": 17]>
first (x) => (y) {{ e = Constant <value = float {first}> () y = Pow (x, e) }}
<domain: "own", opset_import: ["": 17]>
second (x) => (y) {{ e = Constant <value = float {second}> () y = Pow (x, e) }}
"""


@pytest.mark.parametrize(("first", "second", "has_others"), [("{2}", "{2}", False), ("{3}", "{2}", True), ("{2}", "{3}", True)])
def test_a_power_is_noticed_whatever_its_exponent_is_called_elsewhere(tmp_path, first, second, has_others):
    onnx.save_model(onnx.parser.parse_model(POWERS.format(first=first, second=second)), tmp_path / "net.onnx")
    signature = read_signature(tmp_path / "net.onnx")
    assert isinstance(signature, Signature)
    assert signature.has_other_powers is has_others
