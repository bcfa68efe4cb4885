"""Where a file is right and ONNX Runtime's optimizer makes it wrong, the passes that do it are named."""

from __future__ import annotations

import onnxruntime
import pytest
import torch
from toolbox.cells import run_one

import onnx_ci
from onnx_ci.pipeline.run.onnxruntime import passes_that_change
from onnx_ci.report.findings import describe_finding

# ONNX Runtime 1.31 fuses a cast and a transpose into a product with a vector, and forgets the transpose.
WRONG = "MatmulTransposeFusion"


class Product(torch.nn.Module):
    """Computed wrong by one pass, and changed by others that are right."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Conv1d(3, 3, 1), torch.nn.BatchNorm1d(3), torch.nn.ReLU())

    def forward(self, x, vector):
        product = x.float().T @ vector
        return self.layers(product[None, :, None]) + 0


def product():
    torch.manual_seed(0)
    return Product(), (torch.randint(0, 9, (3, 3)), torch.randn(3))


@pytest.fixture(scope="module")
def recipe():
    return onnx_ci.recipe(product, name="product", input_names=["x", "vector"], output_names=["y"])


def test_the_one_pass_of_many_that_is_wrong_is_named_and_switching_it_off_repairs_it(recipe, tmp_path):
    (found,) = (each for each in run_one(recipe).findings if each.severity is onnx_ci.Severity.ERROR)
    assert (found.rule, found.optimizer_passes) == ("runtime-disagreement", (WRONG,))
    assert f"the fault of its optimizer's {WRONG}" in describe_finding(found)
    assert f"disabled_optimizers=['{WRONG}']" in found.remedy
    path = onnx_ci.export(recipe, opset=13, path=tmp_path / "product.onnx").path
    applied = passes_that_change(path)
    assert len(applied) > 1 and WRONG in applied
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"], disabled_optimizers=[WRONG])
    model, (x, vector) = product()
    model.eval()
    given = {"x": x.numpy(), "vector": vector.numpy()}
    assert torch.allclose(torch.from_numpy(session.run(None, given)[0]), model(x, vector), rtol=1e-5, atol=1e-5)
