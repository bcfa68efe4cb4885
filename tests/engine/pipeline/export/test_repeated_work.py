"""What is done once for all exports with dynamo: the files stay the same, and whatever a recipe registers counts."""

from __future__ import annotations

import contextlib
import functools
import logging
import pkgutil
import sys

import onnxscript
import pytest
import torch
from onnxscript import opset18 as op
from onnxscript._internal import ast_utils
from onnxscript._internal.values import TracedOnnxFunction
from onnxscript.function_libs.torch_lib import registration
from toolbox.cells import recipe_of
from torch.onnx._internal.exporter import _registration

import onnx_ci
from onnx_ci.pipeline.export import repeated_work
from onnx_ci.pipeline.export.repeated_work import done_once, read_torchlib

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

X = torch.tensor([[1.0, 2.0, -0.5, 0.3], [0.1, -0.2, 0.3, 0.4]])


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.linear = torch.nn.Linear(4, 4)
        torch.nn.init.constant_(self.linear.weight, 0.5)
        torch.nn.init.constant_(self.linear.bias, 0.25)

    def forward(self, x):
        return self.function(self.linear(x))


def attention(x):
    return torch.nn.functional.scaled_dot_product_attention(*[x[None, None]] * 3)[0, 0]


@pytest.fixture
def export(tmp_path):
    """Exports a model that computes a function, and returns the file's bytes."""

    def export(function, opset=18, **options) -> bytes:
        path = tmp_path / "model.onnx"
        torch.onnx.export(
            Function(function).eval(), (X,), str(path), dynamo=True, opset_version=opset, verbose=False,
            dynamic_shapes=({0: "rows"},), external_data=False, **options,
        )  # fmt: skip
        return path.read_bytes()

    return export


# --- the same files


@pytest.mark.parametrize(("function", "opset"), [(torch.relu, 18), (attention, 23)])
def test_files_are_the_same_bytes(export, function, opset):
    plain = export(function, opset)
    with done_once():
        first, second = export(function, opset), export(function, opset)
    assert first == plain
    assert second == plain


def test_a_translation_table_counts_for_its_export_alone(export):
    def wrong_relu(x):
        return op.Neg(x)

    table = {"custom_translation_table": {torch.ops.aten.relu.default: wrong_relu}}
    plain, translated = export(torch.relu), export(torch.relu, **table)
    assert plain != translated
    with done_once():
        assert export(torch.relu) == plain
        assert export(torch.relu, **table) == translated
        assert export(torch.relu) == plain


def test_a_function_that_is_registered_with_torchlib_counts(export, monkeypatch):
    with done_once():
        before = export(torch.relu)
    replaced = registration.OverloadedFunction("aten::relu")
    replaced.overloads.append(TracedOnnxFunction(onnxscript.values.Opset("project", 1), negative))
    monkeypatch.setitem(registration.default_registry._registry, "aten::relu", replaced)
    plain = export(torch.relu)
    assert plain != before
    with done_once():
        assert export(torch.relu) == plain


def negative(self):
    return op.Neg(self)


def test_an_operator_that_is_registered_with_torch_counts(export):
    with done_once():
        export(torch.relu)
    with torch.library._scoped_library("repeated_work", "DEF") as library:
        library.define("shifted(Tensor x) -> Tensor")
        library.impl("shifted", lambda x: (x + 1).relu(), "CompositeImplicitAutograd")

        def function(x):
            return torch.ops.repeated_work.shifted(x)

        plain = export(function)
        with done_once():
            assert export(function) == plain


# --- what is replaced, and when

REPLACED = [
    ("onnxscript._internal.values:TracedOnnxFunction", "function_ir"),
    ("torch.onnx._internal.exporter._schemas", "op_signature_from_function"),
]
"""With the tested version of torch. If another one fails here, its exports are correct, and slower."""


def values():
    found = {}
    for owner, name in REPLACED:
        found[owner, name] = vars(pkgutil.resolve_name(owner))[name]
    return found


def test_torch_is_changed_within_the_block_only():
    before = values()
    with contextlib.suppress(KeyError), done_once():
        within = values()
        raise KeyError
    assert values() == before
    assert [key for key in before if within[key] is before[key]] == []


def test_what_somebody_else_has_replaced_is_left_alone(monkeypatch):
    with done_once():
        pass
    from torch.onnx._internal.exporter import _schemas

    read = _schemas.op_signature_from_function
    theirs = functools.partial(read)
    monkeypatch.setattr(_schemas, "op_signature_from_function", theirs)
    with done_once():
        assert _schemas.op_signature_from_function is theirs
    assert _schemas.op_signature_from_function is theirs


def test_what_is_replaced_during_an_export_stays(monkeypatch):
    from torch.onnx._internal.exporter import _schemas

    read = _schemas.op_signature_from_function
    monkeypatch.setattr(_schemas, "op_signature_from_function", read)  # to be restored after the test
    theirs = functools.partial(read)
    with done_once():
        _schemas.op_signature_from_function = theirs
    assert _schemas.op_signature_from_function is theirs


def test_a_version_without_these_names_exports_the_same(export, monkeypatch):
    plain = export(torch.relu)
    parsed = vars(TracedOnnxFunction)["function_ir"]
    cached = functools.cached_property(parsed.fget)
    cached.__set_name__(TracedOnnxFunction, "_function_ir_of_later")
    monkeypatch.setattr(TracedOnnxFunction, "function_ir", cached)
    # The names are looked up once in a process, so this needs a new copy of the module.
    monkeypatch.delitem(sys.modules, repeated_work.__name__)
    monkeypatch.delattr(repeated_work.__name__)
    from onnx_ci.pipeline.export import repeated_work as other

    assert other is not repeated_work
    with other.done_once():
        assert TracedOnnxFunction.function_ir is cached
        assert export(torch.relu) == plain


# --- what it saves


@pytest.fixture
def parsed(monkeypatch):
    """The functions whose source is parsed."""
    functions = []
    get = ast_utils.get_src_and_ast
    monkeypatch.setattr(ast_utils, "get_src_and_ast", lambda function: functions.append(function) or get(function))
    return functions


def test_the_source_of_torchlib_is_parsed_once(export, parsed):
    read_torchlib()
    parsed.clear()
    export(torch.relu)
    assert len(parsed) > 100  # torch's own way
    parsed.clear()
    with done_once():
        export(torch.relu)
    assert parsed == []


def test_functions_of_a_project_are_read_each_time(parsed):
    function = TracedOnnxFunction(onnxscript.values.Opset("project", 1), negative)
    with done_once():
        assert [function.function_ir.domain, function.function_ir.domain] == ["project", "project"]
    assert parsed == [negative, negative]


@pytest.mark.parametrize("in_export", [False, True])
def test_nothing_is_said_of_operators_that_a_missing_torchvision_would_have(caplog, monkeypatch, in_export):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with caplog.at_level(logging.WARNING):
        if in_export:
            with done_once():
                _registration.ONNXRegistry.from_torchlib()
        else:
            read_torchlib.__wrapped__()
    assert caplog.records == []


# --- in a run


def test_cells_in_one_process_pass_and_leave_torch_as_it_was():
    recipe = recipe_of(torch.relu, X, input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "n"}, "y": {0: "n"}})
    options = {"exporters": "dynamo", "opsets": "18,20", "isolation": "none"}
    before = values()
    for _ in range(2):
        assert [cell.status for cell in onnx_ci.run([recipe], **options).cells] == ["passed"] * 2
        assert values() == before
