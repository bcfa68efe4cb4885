"""What a model's own rounding is, and which of its values can be compared."""

from __future__ import annotations

import pytest
import torch
from toolbox.cells import Function

from onnx_ci.pipeline.inputs.probes import EXAMPLE, ModelProber, Probe
from onnx_ci.pipeline.model.call import Call
from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.running import flatten_outputs
from onnx_ci.pipeline.reference import perturbation, reference


@pytest.mark.parametrize(("shape", "at_once"), [((7,), 1), ((7, 3), 4), ((1, 7), 6), ((2, 3, 5), 20)])
def test_a_large_tensor_is_perturbed_in_parts_as_it_is_at_once(shape, at_once, monkeypatch):
    tensor = torch.randn(shape)
    whole = perturbation.perturbed(tensor, torch.Generator().manual_seed(0))
    monkeypatch.setattr(perturbation, "AT_ONCE", at_once)
    assert torch.equal(perturbation.perturbed(tensor, torch.Generator().manual_seed(0)), whole)


def test_an_expanded_tensor_is_perturbed_in_parts(monkeypatch):
    tensor = torch.randn(1, 3).expand(4, 3)
    whole = perturbation.perturbed(tensor, torch.Generator().manual_seed(0))
    monkeypatch.setattr(perturbation, "AT_ONCE", 3)
    assert torch.equal(perturbation.perturbed(tensor, torch.Generator().manual_seed(0)), whole)


def test_integers_on_further_inputs_take_no_more_runs_until_a_file_differs():
    runs = []

    def thirds(x):
        runs.append(x)
        return (x / 3 * 3).floor().long()

    x = torch.tensor([0.5, 1.5, 2.5])

    def build():
        return Call(model=Function(thirds), args=(x,), kwargs={})

    copies = Copies(build(), build)
    own = flatten_outputs(copies.first_run())
    example = Probe(name=EXAMPLE, inputs=(x,), reference=reference.make_reference(copies, own))
    assert example.reference.stable[0].all()
    runs.clear()
    probe = ModelProber(copies, example).probe("near the steps", [torch.tensor([1.0, 2.5, 3.0])], quick=True)
    assert len(runs) == 1
    assert probe.reference.stable[0].tolist() == [True, True, True]
    assert probe.refinements[0]().stable[0].tolist() == [False, True, False]
    assert torch.equal(probe.reference.exact[0], probe.reference.own[0])
