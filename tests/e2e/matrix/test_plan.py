from __future__ import annotations

import onnx_ci
from onnx_ci.collection.discovery import Found
from onnx_ci.config.settings import load_settings
from onnx_ci.matrix.plan import plan


def test_a_range_without_an_end_goes_on_to_the_newest_opset_that_the_packages_know(project):
    import onnx

    @onnx_ci.recipe(opsets="11-")
    def net(): ...

    settings = load_settings(project.root, flags={"opsets": "17-"}, environment={})
    opsets = [each.cell.opset for each in plan([Found(net, "r.py")], settings).cells]
    assert opsets == list(range(17, opsets[-1] + 1))
    assert 23 <= opsets[-1] <= onnx.defs.onnx_opset_version()
