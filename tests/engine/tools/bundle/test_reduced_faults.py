"""What an exporter or a runtime does wrong is cut down to a script; what the model does wrong is nothing to report."""

from __future__ import annotations

import onnx
import pytest
import torch
from faults import dtypes, frozen_shapes, frozen_values, in_place, operators, semantics
from faults.fault import Fault
from toolbox.cells import recipe_of, run_one, task

from onnx_ci.errors import ConfigurationError
from onnx_ci.pipeline.prepare.prepare import prepare
from onnx_ci.tools.bundle.bundle import NoBundleError, Reduced, reduced, write_bundle
from onnx_ci.tools.bundle.issue import script
from onnx_ci.tools.bundle.record import record
from onnx_ci.tools.bundle.script import ExportCall
from onnx_ci.tools.bundle.trial import attempt, run_eagerly

OF_THE_MODEL = {
    # A symbolic of the model's own, or an exporter that was told to let everything pass.
    *("symbol_too_new", "symbol_of_another", "symbol_of_ours", "fall_through"),
    # A branch on values, and one on whether it is exported.
    *("branch_in_dynamo", "decided_by_type", "decided_by_type_with_dynamo", "limit_of_type"),
}
"""Faults that no script of torch's functions alone has."""

OF_NAN = {"largest_beside_nan", "place_of_nan"}
"""Faults of exporters that only NaN shows, which no script draws."""

OF_EAGER_MODE = {each.name for each in semantics.FAULTS if "equal_keys" in each.name or "hidden_tokens" in each.name}
"""Faults of what only eager mode does: an order of equal values, and a fast path."""

OF_EXPORTERS = [
    *(
        each
        for module in (semantics, operators, in_place, dtypes)
        for each in module.FAULTS
        if each.name not in OF_THE_MODEL | OF_NAN | OF_EAGER_MODE
    ),
    *(each for each in frozen_shapes.FAULTS if each.name == "attention"),
]
FROZEN = [
    *(each for each in (*operators.FAULTS, *frozen_values.FAULTS) if each.name in OF_THE_MODEL or each in frozen_values.FAULTS),
    *(each for each in frozen_shapes.FAULTS if each.name != "attention"),
    *(each for each in semantics.FAULTS if each.name in OF_EAGER_MODE and each.opset < 18),  # dynamo is slow
]

MORE_NODES = {"negative_indices", "index_put_accumulate", "index_add", "attention"}
"""Faults of one function of torch that an exporter writes as more than five nodes."""


named = {"ids": lambda fault: fault.name}


def smallest(fault: Fault, path) -> Reduced:
    result = run_one(fault.wrong, opsets=str(fault.opset), isolation="none", cache="off")
    return reduced(task(fault.wrong, cell=result.cell), result.findings, path)


@pytest.mark.slow
@pytest.mark.parametrize("fault", OF_EXPORTERS, **named)
def test_a_fault_of_an_exporter_becomes_a_short_script(fault: Fault, tmp_path) -> None:
    path = tmp_path / "model.onnx"
    found = smallest(fault, path)
    nodes = [each for each in onnx.load(path).graph.node if each.op_type != "Constant"] if path.exists() else []
    assert (len(nodes) > 5) is (fault.name in MORE_NODES)
    text = script(found.program, found.how, title=fault.name, tolerance=found.eager.tolerance)
    assert text.count("\n") <= 25
    assert attempt(found.program, found.how, path) is not None


@pytest.mark.parametrize("fault", OF_EXPORTERS[::3], **named)  # neighbours are alike
def test_its_right_twin_written_in_the_same_way_passes(fault: Fault, tmp_path) -> None:
    cell = task(fault.right).cell
    prepared = prepare(task(fault.right))
    program = record(prepared.model, prepared.probes.example)
    exporter = "dynamo" if fault.opset >= 18 else cell.exporter
    assert program.calls
    assert attempt(program, ExportCall(exporter=exporter, opset=fault.opset), tmp_path / "model.onnx") is None


@pytest.mark.slow
@pytest.mark.parametrize("fault", FROZEN, **named)
def test_a_fault_of_the_model_is_not_reported_to_an_exporter(fault: Fault, tmp_path) -> None:
    with pytest.raises(NoBundleError, match=r"nothing to report to an exporter|is not a fault of an exporter"):
        smallest(fault, tmp_path / "model.onnx")


def test_the_order_of_equal_values_which_nothing_defines_is_no_fault(tmp_path) -> None:
    recipe = recipe_of(lambda x: x.sort(0).indices, torch.randint(0, 3, (32,)), input_names=["x"], output_names=["y"])
    prepared = prepare(task(recipe))
    program = record(prepared.model, prepared.probes.example)
    assert run_eagerly(program) is None
    assert attempt(program, ExportCall(exporter="torchscript", opset=13), tmp_path / "model.onnx") is None


@pytest.mark.parametrize(
    "drawn", [lambda: torch.normal(0.0, 1.0, (3,)), lambda: torch.poisson(torch.ones(3)), torch.ones(3).uniform_]
)
def test_what_is_random_is_an_input_of_the_program(drawn) -> None:
    recipe = recipe_of(lambda x: x + drawn(), torch.randn(3), input_names=["x"], nondeterministic=True)
    prepared = prepare(task(recipe))
    program = record(prepared.model, prepared.probes.example)
    assert [call.function for call in program.calls if call.uses] == ["torch.Tensor.add"]
    assert len(program.inputs) == 2


@pytest.mark.parametrize("name", ["model.onnx", "issue.md", "test_data_set_0/notes.txt"])
def test_files_of_others_are_not_replaced(name, tmp_path) -> None:
    mine = tmp_path / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    with pytest.raises(ConfigurationError, match=r"would be replaced, but onnx-ci did not write it; name another folder"):
        write_bundle(None, (), tmp_path, None)
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("names", [(), ("notes.txt",), ("reproduce.py", "versions.json", "issue.md", "model.onnx")])
def test_a_new_folder_other_names_and_an_earlier_report_can_be_written_to(names, tmp_path) -> None:
    for name in names:
        (tmp_path / name).write_text("")
    with pytest.raises(NoBundleError, match="the cell does not fail"):
        write_bundle(None, (), tmp_path, None)
