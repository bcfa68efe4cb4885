"""What ``then=[...]`` accepts, and what ``onnx_ci.graph_pass`` refuses."""

from __future__ import annotations

import functools

import pytest

import onnx_ci
from onnx_ci.collection.post_export import BUILT_IN, graph_pass, passes_of


def fuse(model):
    return model


def declared(**keywords):
    return onnx_ci.recipe(name="net", **keywords)(lambda: ())


def test_passes_are_named_after_what_they_are():
    passes = declared(then=["onnxslim", fuse, graph_pass(fuse, name="again")]).then
    assert [each.name for each in passes] == ["onnxslim", "fuse", "again"]
    assert [each.lossy for each in passes] == [None] * 3


def test_a_single_pass_needs_no_list():
    assert [each.name for each in declared(then="onnxsim").then] == ["onnxsim"]
    assert [each.name for each in declared(then=fuse).then] == ["fuse"]
    assert declared().then == ()


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_pass_is_known_by_its_name(name):
    (found,) = passes_of([name])
    assert found.name == name
    assert found.lossy == ("int8" if name.startswith("int8") else "float16" if name == "float16" else None)


def test_a_pass_carries_its_options():
    found = graph_pass("float16", keep_io_types=True, op_block_list=["Add"], max_drift=8, domains="com.example")
    assert (found.keep_io_types, found.options, found.max_drift) == (True, {"op_block_list": ["Add"]}, 8)
    assert found.domains == ("com.example",)
    assert graph_pass("float16").keep_io_types is False
    assert graph_pass(fuse, lossy="int8", keep_io_types=False).lossy == "int8"
    assert "com.microsoft" in graph_pass("ort-optimized", domains=["com.example"]).domains


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: graph_pass("onnxslimm"), "there is no post-export pass 'onnxslimm'; did you mean 'onnxslim'?"),
        (lambda: graph_pass("onnxslim", name="slim"), "takes neither name nor lossy"),
        (lambda: graph_pass("onnxslim", keep_io_types=True), "takes no keep_io_types"),
        (lambda: graph_pass(fuse, level="basic"), "has no option 'level'"),
        (lambda: graph_pass(functools.partial(fuse)), "needs a name"),
        (lambda: graph_pass(lambda model: model), "needs a name"),
        (lambda: graph_pass(fuse, name="two words"), "needs a name"),
        (lambda: graph_pass(fuse, name="float16"), "is taken"),
        (lambda: graph_pass(fuse, name="export"), "is taken"),
        (lambda: graph_pass(fuse, lossy="int4"), "lossy must be"),
        (lambda: graph_pass(fuse, max_drift=0), "max_drift must be"),
        (lambda: graph_pass(fuse, opset=0), "opset must be a whole number above 0, not 0"),
        (lambda: graph_pass(fuse, opset="21"), "opset must be a whole number above 0, not '21'"),
        (lambda: graph_pass(3), "is the name of a built-in one or a function, not 3"),
        (lambda: declared(then=["onnxslim", "onnxslim"]), "two passes 'onnxslim'"),
        (lambda: declared(then=[None]), "or a function, not None"),
    ],
)
def test_what_is_wrong_with_a_pass_is_said(make, words):
    with pytest.raises(onnx_ci.RecipeError) as raised:
        make()
    assert words in str(raised.value)


GAP = onnx_ci.known_failure("load-error", "why")


PASSES_WITH_GAPS = {"then": ["onnxslim", "float16"], "expect": {"9-10 +float16": GAP, "dynamo +export": GAP, "+onnxslim": GAP}}


@pytest.mark.parametrize(
    ("declaration", "cell", "expected"),
    [
        (PASSES_WITH_GAPS, ("torchscript", 9, "float16"), (GAP,)),
        (PASSES_WITH_GAPS, ("torchscript", 11, "float16"), ()),
        (PASSES_WITH_GAPS, ("torchscript", 9), ()),
        (PASSES_WITH_GAPS, ("dynamo", 18), (GAP,)),
        (PASSES_WITH_GAPS, ("dynamo", 18, "float16"), ()),
        (PASSES_WITH_GAPS, ("dynamo", 18, "onnxslim"), (GAP,)),
        ({"then": "onnxslim", "expect": {"9": GAP}}, ("torchscript", 9), (GAP,)),
        ({"then": "onnxslim", "expect": {"9": GAP}}, ("torchscript", 9, "onnxslim"), (GAP,)),
    ],
)
def test_a_known_failure_is_about_one_pass_or_else_about_every_file(declaration, cell, expected):
    assert declared(**declaration).expectations(*cell) == expected


def test_a_known_failure_of_a_pass_that_is_not_there_is_refused():
    with pytest.raises(onnx_ci.RecipeError, match="names the pass 'onnxslin', which then does not have; did you mean"):
        declared(then="onnxslim", expect={"9 +onnxslin": GAP})
