"""The skeleton: the same model as the file, without the weights, and no file left beside it."""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onnx_ci.onnx_model.weightless import INLINE_BYTES, skeleton

rng = np.random.default_rng(0)
LARGE = rng.standard_normal((400, 300)).astype(np.float32)


def write(path, *initializers, mend=lambda model: None):
    """A file that computes ``x @ first + second``."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 400])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 300])],
        initializer=list(initializers),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    mend(model)
    onnx.save(model, path)
    return path


@pytest.fixture
def file(tmp_path):
    small = numpy_helper.from_array(np.arange(300, dtype=np.float32), "b")
    return write(tmp_path / "model.onnx", numpy_helper.from_array(LARGE, "w"), small)


def answer(path, x):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def test_it_is_the_same_model_and_holds_no_large_weights(file):
    x = rng.standard_normal((3, 400)).astype(np.float32)
    with skeleton(file) as bones:
        assert bones != file
        assert bones.stat().st_size < INLINE_BYTES
        onnx.checker.check_model(bones, full_check=True)
        assert np.array_equal(answer(bones, x), answer(file, x))
        loaded = onnx.load(bones)
    original = onnx.load(file)
    for restored, stored in zip(loaded.graph.initializer, original.graph.initializer, strict=True):
        assert np.array_equal(numpy_helper.to_array(restored), numpy_helper.to_array(stored))
    for model in (loaded, original):
        del model.graph.initializer[:]
    assert loaded == original


def test_small_initializers_keep_their_values_in_it(file):
    with skeleton(file) as bones:
        initializers = {tensor.name: tensor for tensor in onnx.load(bones, load_external_data=False).graph.initializer}
    assert initializers["w"].data_location == TensorProto.EXTERNAL
    assert initializers["b"].HasField("raw_data")


def test_it_goes_with_the_block(file):
    with skeleton(file) as bones:
        assert bones.is_file()
    assert [path.name for path in file.parent.iterdir()] == ["model.onnx"]


def test_a_small_file_is_its_own(tmp_path):
    file = tmp_path / "small.onnx"
    onnx.save(helper.make_model(helper.make_graph([], "graph", [], [])), file)
    with skeleton(file) as bones:
        assert bones == file


def test_a_tensor_with_too_little_data_stays_for_the_checker_to_see(tmp_path):
    short = numpy_helper.from_array(LARGE, "w")
    short.raw_data = short.raw_data[:-4]
    file = write(tmp_path / "short.onnx", short, numpy_helper.from_array(np.zeros(300, np.float32), "b"))
    with skeleton(file) as bones:
        assert bones == file


def test_external_data_of_the_file_itself_stays_as_it_is(tmp_path):
    """As it is written by exporters for models above 2 GB."""
    tensors = numpy_helper.from_array(LARGE, "w"), numpy_helper.from_array(np.zeros(300, np.float32), "b")
    inline = write(tmp_path / "inline.onnx", *tensors)
    file = tmp_path / "external.onnx"
    onnx.save(onnx.load(inline), file, save_as_external_data=True, location="external.data", size_threshold=0)
    x = rng.standard_normal((2, 400)).astype(np.float32)
    with skeleton(file) as bones:
        assert np.array_equal(answer(bones, x), answer(inline, x))


@given(end=st.integers(INLINE_BYTES, LARGE.nbytes))
def test_a_file_that_is_cut_off_has_no_skeleton(file, tmp_path, end):
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(file.read_bytes()[:end])
    with skeleton(cut) as bones:
        assert bones == cut
