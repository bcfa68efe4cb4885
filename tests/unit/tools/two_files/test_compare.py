"""Two files side by side: the same ones are the same, however they were made, and every wrong twin is different."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from toolbox.files import FLOAT, INT64, mlp, model_of, save, weights

import onnx_ci
from onnx_ci import ConfigurationError, FileComparison, Severity, Status


@pytest.fixture
def compare(tmp_path):
    """Compare two models, or files, in this process."""

    def run(one, other, **options) -> FileComparison:
        paths = [
            save(each, tmp_path / name) if isinstance(each, onnx.ModelProto) else each
            for name, each in (("a.onnx", one), ("b.onnx", other))
        ]
        return onnx_ci.compare(*paths, **{"isolation": "none", **options})

    return run


def rules(result, severity=Severity.ERROR):
    return [each.rule for each in result.findings if each.severity is severity]


def probes(result):
    return {each.probe for each in result.outputs}


# --- the same


def test_a_file_is_the_same_as_itself_on_many_inputs(compare):
    result = compare(mlp(), mlp())
    assert (result.status, result.findings, result.left_out) == (Status.PASSED, (), ())
    assert {"batch=2", "random values", "batch=1", "floats zero", "floats negated", "floats large"} <= probes(result)
    assert result.worst.drift <= 16
    assert {each.reference for each in result.outputs} <= {"float64", "proportion"}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = torch.nn.Linear(8, 16), torch.nn.LayerNorm(16)

    def forward(self, x):
        return torch.nn.functional.gelu(self.norm(self.layer(x))).softmax(-1)


def test_an_export_at_another_opset_is_the_same(compare, tmp_path):
    @onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}}, seed=3)
    def net():
        return Net(), (torch.randn(2, 8),)

    paths = [onnx_ci.export(net, opset=opset, path=tmp_path / f"{opset}.onnx").path for opset in (13, 17)]
    result = compare(*paths)
    assert (result.status, rules(result), rules(result, Severity.NOTE)) == (Status.PASSED, [], ["opset-mismatch"])
    assert "opset 13 and " in result.findings[0].message


def test_a_copy_by_the_optimizer_of_onnx_runtime_is_the_same_in_both_directions(compare, tmp_path):
    gelu = [
        ("Div", ["x", "root"], ["d"]), ("Erf", ["d"], ["e"]), ("Add", ["e", "one"], ["p"]),
        ("Mul", ["x", "p"], ["m"]), ("Mul", ["m", "half"], ["g"]), ("MatMul", ["g", "w"], ["y"]),
    ]  # fmt: skip
    constants = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5), "w": weights(8, 8)}
    plain = save(model_of(gelu, {"x": (FLOAT, ["n", 8])}, {"y": (FLOAT, ["n", 8])}, constants), tmp_path / "plain.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(plain, options, providers=["CPUExecutionProvider"])
    assert {node.domain for node in onnx.load(tmp_path / "optimized.onnx").graph.node} >= {"com.microsoft"}
    result = compare(plain, tmp_path / "optimized.onnx")
    assert (result.status, rules(result, Severity.NOTE)) == (Status.PASSED, ["foreign-domain"])
    # The reference evaluator lacks the operator of the other domain: the noise is estimated in another way.
    reverse = compare(tmp_path / "optimized.onnx", plain)
    assert (reverse.status, rules(reverse, Severity.NOTE)) == (Status.PASSED, ["foreign-domain", "no-float64"])


def test_external_data_and_fixed_sizes_are_no_difference(compare, tmp_path):
    inside = save(mlp(batch=3), tmp_path / "inside.onnx")
    (tmp_path / "sub").mkdir()
    outside = save(
        mlp(batch=3), tmp_path / "sub" / "outside.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    for paths in ((inside, outside), (outside, inside)):
        result = compare(*paths)
        assert (result.status, result.findings) == (Status.PASSED, ())
    (tmp_path / "sub" / "w.bin").unlink()
    gone = compare(inside, outside)
    assert (gone.status, rules(gone), gone.outputs) == (Status.FAILED, ["external-data"], ())


# --- different


@pytest.mark.parametrize(
    "wrong", [{"first": weights(8, 8).T}, {"epsilon": 1e-3}, {"second": weights(8, 4, seed=3) * np.float32(1.00001)}],
    ids=["transposed", "epsilon", "scaled by 1.00001"],
)  # fmt: skip
def test_other_numbers_are_a_difference(compare, wrong):
    result = compare(mlp(), mlp(**wrong))
    named = [] if "epsilon" in wrong else ["weight-mismatch"]
    assert (result.status, rules(result)) == (Status.FAILED, ["numeric-drift", *named])
    assert "times the rounding of " in result.findings[0].message
    assert "onnx-ci show" in result.findings[0].remedy


def test_integers_must_be_equal(compare):
    def index(nodes):
        return model_of(nodes, {"x": (FLOAT, ["n", 8])}, {"y": (INT64, ["n", 1])})

    most, least = (index([helper.make_node(f"Arg{which}", ["x"], ["y"], axis=1)]) for which in ("Max", "Min"))
    assert compare(most, most).status is Status.PASSED
    result = compare(most, least)
    assert rules(result) == ["numeric-drift"]
    assert "int64 values must be equal" in result.findings[0].message


def test_the_limit_of_drift_is_a_setting(compare):
    wrong = mlp(epsilon=1e-3)
    assert compare(mlp(), wrong).status is Status.FAILED
    assert compare(mlp(), wrong, max_drift=1e9).status is Status.PASSED


# --- lower precision


def test_a_right_file_in_float16_is_the_same_and_says_why(compare):
    result = compare(mlp(), mlp(dtype=np.float16))
    assert (result.status, rules(result, Severity.NOTE)) == (Status.PASSED, ["numeric-drift"])
    assert "times that of float16, in which " in result.findings[0].message


def test_the_more_precise_file_is_the_reference_in_either_order(compare):
    result = compare(mlp(dtype=np.float16), mlp())
    assert (result.status, result.reference[-6:], result.tested[-6:]) == (Status.PASSED, "b.onnx", "a.onnx")


def test_an_overflow_in_float16_is_a_difference(compare):
    large = weights(8, 8)
    large[0, 0] = 1e5
    assert compare(mlp(first=large), mlp(first=large)).status is Status.PASSED
    result = compare(mlp(first=large), mlp(first=large, dtype=np.float16))
    assert "nonfinite-mismatch" in rules(result)
    assert "overflow" in result.findings[0].remedy


def test_a_wrong_weight_in_float16_is_a_difference(compare):
    result = compare(mlp(), mlp(first=weights(8, 8).T, dtype=np.float16))
    assert rules(result) == ["numeric-drift"]
    assert "times the rounding of float16" in result.findings[0].message


@pytest.mark.parametrize(("activation", "bias"), [("Sigmoid", -12), ("Sigmoid", 6), ("Softmax", -6), ("Softmax", 12)])
def test_half_a_unit_of_float16_is_no_difference_where_outputs_hardly_move(compare, activation, bias):
    """Near 0 and 1, a perturbed input moves the output by far less than the output itself is rounded."""

    def saturated(dtype, factor=1.0):
        weight = weights(8, 2) * np.float32(0.05 * factor)
        constants = {"w": weight.astype(dtype), "b": np.array([bias, 0 if activation == "Softmax" else bias], dtype)}
        nodes = [("MatMul", ["x", "w"], ["a"]), ("Add", ["a", "b"], ["c"]), (activation, ["c"], ["y"])]
        kind = FLOAT if dtype is np.float32 else TensorProto.FLOAT16
        return model_of(nodes, {"x": (kind, ["n", 8])}, {"y": (kind, ["n", 2])}, constants)

    assert rules(compare(saturated(np.float32), saturated(np.float16), rules="dtype-mismatch=note")) == []
    wrong = saturated(np.float16, factor=-40)
    assert "numeric-drift" in rules(compare(saturated(np.float32), wrong, rules="dtype-mismatch=note"))


def test_numbers_are_compared_even_if_float16_is_in_the_interface(compare):
    right = mlp(dtype=np.float16, has_casts=False)
    result = compare(mlp(), right)
    assert set(rules(result)) == {"dtype-mismatch"}
    assert result.outputs
    assert compare(mlp(), right, rules="dtype-mismatch=note").status is Status.PASSED
    wrong = compare(mlp(), mlp(dtype=np.float16, has_casts=False, epsilon=0.5), rules="dtype-mismatch=note")
    assert rules(wrong) == ["numeric-drift"]


@pytest.fixture
def quantized(tmp_path, recwarn):
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(save(mlp(), tmp_path / "plain.onnx"), tmp_path / "int8.onnx", weight_type=QuantType.QInt8)
    return onnx.load(tmp_path / "int8.onnx")


def scaled(model, factor):
    """``model`` with the scale of its last layer times ``factor``."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    [scale] = [each for each in changed.graph.initializer if each.name == "v_scale"]
    scale.CopyFrom(numpy_helper.from_array(np.asarray(numpy_helper.to_array(scale) * np.float32(factor)), scale.name))
    return changed


class Calibration:
    """Random images below ``largest``, as ONNX Runtime's quantizer reads them."""

    def __init__(self, largest):
        generator = np.random.default_rng(0)
        images = (generator.uniform(0, largest, (4, 3, 8, 8)).astype(np.float32) for _ in range(4))
        self.get_next = iter([{"x": image} for image in images] + [None]).__next__


@pytest.fixture
def images(tmp_path):
    """A small convolutional network, as it was exported."""

    @onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}}, seed=1)
    def net():
        first, second = torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3)
        layers = first, torch.nn.ReLU(), second, torch.nn.Flatten(), torch.nn.Linear(128, 4)
        return torch.nn.Sequential(*layers), (torch.randn(2, 3, 8, 8),)

    return onnx_ci.export(net, opset=17, path=tmp_path / "images.onnx").path


@pytest.fixture(params=["QDQ", "QOperator"])
def calibrated(request, images, tmp_path, recwarn, caplog):
    """The network in int8 with scales that were calibrated on images below 255."""
    from onnxruntime.quantization import QuantFormat, quantize_static

    def make(largest=255):
        target = tmp_path / "static.onnx"
        quantize_static(images, target, Calibration(largest), quant_format=QuantFormat[request.param])
        return onnx.load(target)

    return make


ALLOWED = "foreign-domain=note"  # for Gemm, in one of the two formats


def test_a_calibrated_file_is_the_same_on_inputs_within_its_ranges(compare, images, calibrated):
    result = compare(images, calibrated(), rules=ALLOWED)
    assert (result.status, rules(result)) == (Status.PASSED, [])
    assert {"batch=2", "random values", "batch=1"} <= probes(result)
    (note,) = [each for each in result.findings if each.rule == "vacuous"]
    assert "floats large" in note.message
    assert "outside of the ranges that a quantized file was calibrated for" in note.message
    assert result.worst.drift <= result.worst.limit


def test_a_wrong_scale_of_a_calibrated_file_is_a_difference(compare, images, calibrated):
    model = calibrated()
    scale = next(each for each in model.graph.initializer if each.name.endswith("2.weight_scale"))
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(1.5), scale.name))
    assert "numeric-drift" in rules(compare(images, model, rules=ALLOWED))


@pytest.mark.parametrize("factor", [1, 0.25])
def test_the_scale_of_an_activation_is_judged_on_given_inputs_and_named(compare, images, calibrated, tmp_path, factor):
    model = calibrated()
    names = {"/1/Relu_output_0_scale", "/0/Conv_output_0_scale"}  # one format merges the Relu into the convolution
    scale = next(each for each in model.graph.initializer if each.name in names)
    scale.CopyFrom(numpy_helper.from_array(np.asarray(numpy_helper.to_array(scale) * np.float32(factor)), scale.name))
    drawn = compare(images, model, rules=ALLOWED)
    named = [each.message for each in drawn.findings if each.severity is Severity.WARNING]
    assert rules(drawn) == []
    assert len(named) == (factor != 1)
    assert all("or a scale is wrong" in each and " % of '/" in each for each in named)
    np.savez(tmp_path / "real.npz", x=Calibration(255).get_next()["x"])
    given = compare(images, model, rules=ALLOWED, inputs=tmp_path / "real.npz")
    assert set(rules(given)) == (set() if factor == 1 else {"numeric-drift"})
    assert not rules(given, Severity.WARNING)
    assert any("times the error of the best scale" in each.message for each in given.findings) is (factor != 1)


@pytest.mark.parametrize("factor", [2, 64])
def test_a_scale_that_leaves_most_integers_unused_on_given_inputs_is_named(compare, images, calibrated, tmp_path, factor):
    model = calibrated()
    names = {"/1/Relu_output_0_scale", "/0/Conv_output_0_scale"}
    scale = next(each for each in model.graph.initializer if each.name in names)
    scale.CopyFrom(numpy_helper.from_array(np.asarray(numpy_helper.to_array(scale) * np.float32(factor)), scale.name))
    for number, largest in enumerate((25, 255)):  # the largest values of all inputs count
        np.savez(tmp_path / f"{number}.npz", x=Calibration(largest).get_next()["x"])
    given = compare(images, model, rules=ALLOWED, inputs=f"{tmp_path}/*.npz")
    named = [each.message for each in given.findings if "of its 256 integers" in each.message]
    assert len(named) == (factor != 2)
    assert all("/0/Conv_output_0" in each or "/1/Relu_output_0" in each for each in named)
    assert ("numeric-drift" in rules(given)) is (factor != 2)


@pytest.mark.parametrize("scheme", [{"ActivationSymmetric": True}, {"ActivationSymmetric": True, "power of two": True}])
def test_scales_are_right_that_a_scheme_makes_large(compare, images, tmp_path, scheme, recwarn, caplog):
    from onnxruntime.quantization import QuantType, quantize_static

    power, target = scheme.pop("power of two", False), tmp_path / "static.onnx"
    quantize_static(
        images, target, Calibration(255), reduce_range=True, activation_type=QuantType.QInt8, extra_options=dict(scheme)
    )
    model = onnx.load(target)
    for scale in model.graph.initializer:
        if power and scale.name.endswith("_scale") and not scale.dims:
            value = np.float32(2.0 ** np.ceil(np.log2(numpy_helper.to_array(scale))))
            scale.CopyFrom(numpy_helper.from_array(np.asarray(value), scale.name))
    np.savez(tmp_path / "real.npz", x=Calibration(200).get_next()["x"])
    given = compare(images, model, rules=ALLOWED, inputs=tmp_path / "real.npz")
    assert not [each.message for each in given.findings if "of its 256 integers" in each.message]


def test_the_scale_of_a_softmax_covers_what_it_can_return(compare, tmp_path):
    def many(*more):
        nodes = [*more, ("Softmax", ["h" if more else "x"], ["p"])]
        if more:
            nodes += [("QuantizeLinear", ["p", "step", "zero"], ["q"]), ("DequantizeLinear", ["q", "step", "zero"], ["r"])]
        constants = {"step": np.float32(1 / 256), "zero": np.uint8(0), "unit": np.float32(0.01), "middle": np.uint8(128)}
        nodes += [("MatMul", ["r" if more else "p", "w"], ["y"])]
        io = {"x": (FLOAT, ["n", 200])}, {"y": (FLOAT, ["n", 4])}
        return model_of(nodes, *io, {**(constants if more else {}), "w": weights(200, 4)})

    np.savez(tmp_path / "real.npz", x=np.random.default_rng(0).uniform(-6, 6, (4, 200)).astype(np.float32) / 8)
    quantized = many(("QuantizeLinear", ["x", "unit", "middle"], ["i"]), ("DequantizeLinear", ["i", "unit", "middle"], ["h"]))
    given = compare(many(), quantized, inputs=tmp_path / "real.npz")
    assert not [each.message for each in given.findings if "of its 256 integers" in each.message]


def test_inputs_that_a_file_was_not_calibrated_for_prove_nothing_unless_they_are_given(compare, images, calibrated, tmp_path):
    model = calibrated(largest=1e-3)
    first = next(each for each in model.graph.initializer if each.name == "x_scale")
    first.CopyFrom(numpy_helper.from_array(np.float32(1), first.name))  # only the ranges of the first layer are larger
    result = compare(images, model, rules=ALLOWED)
    assert (rules(result), result.outputs) == (["vacuous"], ())
    assert "outside of the calibrated ranges" in result.findings[-1].message
    assert "--inputs" in result.findings[-1].remedy
    np.savez(tmp_path / "real.npz", x=np.full((2, 3, 8, 8), 100, np.float32))
    given = compare(images, model, rules=ALLOWED, inputs=tmp_path / "real.npz")
    assert "numeric-drift" in rules(given)


def test_a_right_file_in_int8_is_the_same_and_one_wrong_scale_is_not(compare, quantized):
    right = compare(mlp(), quantized)
    assert (right.status, rules(right)) == (Status.PASSED, [])
    assert any("times that of int8" in each.message for each in right.findings)
    wrong = compare(mlp(), scaled(quantized, 1.5))
    assert (wrong.status, set(rules(wrong))) == (Status.FAILED, {"numeric-drift"})
    assert "a wrong scale" in wrong.findings[0].remedy
    assert compare(quantized, quantized).findings == ()
    assert compare(quantized, scaled(quantized, 1.5)).status is Status.FAILED


# --- weights that no input shows


def hidden(wrong=0.0, *, dtype=np.float32, names=("w", "v"), axes=(1,), constant=False):
    """An embedding of a hundred rows, of which drawn integers name the first ten, and a unit behind it that is always off."""
    table, layer = weights(100, 4).astype(dtype), weights(4, 4, seed=1).astype(dtype)
    table[97, 2] += dtype(wrong)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        ("Gather", [names[0], "x"], ["e"]),
        ("MatMul", ["e", names[1]], ["h"]),
        ("Unsqueeze", ["h", "axes"], ["u"]),
        ("Squeeze", ["u", "axes"], ["y"]),
    ]
    arrays = {names[0]: table, names[1]: layer, "axes": np.array(axes, np.int64)}
    if constant:
        nodes.insert(0, helper.make_node("Constant", [], [names[0]], value=numpy_helper.from_array(arrays.pop(names[0]))))
    return model_of(nodes, {"x": (INT64, ["n"])}, {"y": (kind, ["n", 4])}, arrays)


def in_a_branch(bias):
    """A sum in the branch that no drawn input takes."""
    y = helper.make_tensor_value_info("z", FLOAT, None)
    tensors = [numpy_helper.from_array(np.full(4, bias, np.float32), "b")]
    taken = helper.make_graph([helper.make_node("Add", ["x", "b"], ["z"])], "then", [], [y], tensors)
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], "else", [], [y])
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        ("Greater", ["s", "limit"], ["c"]),
        helper.make_node("If", ["c"], ["y"], then_branch=taken, else_branch=other),
    ]
    return model_of(nodes, {"x": (FLOAT, [4])}, {"y": (FLOAT, [4])}, {"limit": np.float32(1e9)})


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (hidden(), hidden(0.05), "'w' at [97, 2] is "),
        (hidden(), hidden(1e-5), "'w' at [97, 2] is "),
        (hidden(), hidden(0.05, names=("a", "b")), "'w' at [97, 2] is "),
        (hidden(), hidden(0.05, constant=True), "'w' at [97, 2] is "),
        (hidden(dtype=np.float16), hidden(0.05, dtype=np.float16), "'w' at [97, 2] is "),
        (hidden(), hidden(np.inf), "and inf in "),
        (in_a_branch(0), in_a_branch(1), "'b' at [0] is 0 in "),
    ],
    ids=["row", "little", "names", "constant", "float16", "infinity", "branch"],
)
def test_a_weight_that_no_input_shows_is_a_difference(compare, one, other, said):
    result = compare(one, other)
    assert (result.status, rules(result)) == (Status.FAILED, ["weight-mismatch"])
    assert said in result.findings[0].message
    assert compare(one, other, rules="weight-mismatch=note").status is Status.PASSED


@pytest.mark.parametrize(
    "other",
    [
        hidden(1e-7),
        hidden(names=("a", "b")),
        hidden(constant=True),
        hidden(axes=(-2,)),
        hidden(0.05, dtype=np.float16),
    ],
    ids=["rounding", "names", "constant", "the same axis", "another type"],
)
def test_the_same_weights_are_no_difference(compare, other):
    assert "weight-mismatch" not in rules(compare(hidden(), other))


def test_of_many_weights_that_differ_the_one_that_differs_most_is_named_first(compare):
    (found,) = [each for each in compare(mlp(), mlp(first=weights(8, 8, seed=9))).findings if each.rule == "weight-mismatch"]
    assert found.details["weights"] == ["w"]
    assert "the weight 'w' at [" in found.message
    assert "64 of 64 values differ" in found.message


# --- interfaces


@pytest.mark.parametrize(
    ("other", "broken", "said"),
    [
        (mlp(x="input"), "name-mismatch", "the inputs are x in "),
        (mlp(y="out_"), "name-mismatch", "the outputs are y in "),
        (mlp(batch=2), "static-axis", "axis 0 of input 'x' is 'batch' in "),
        (mlp(batch="n"), None, ""),
    ],
    ids=["input", "output", "fixed", "name of an axis"],
)
def test_differences_of_the_interface(compare, other, broken, said):
    result = compare(mlp(), other)
    assert rules(result)[:1] == [broken] * (broken is not None)
    assert said in "".join(each.message for each in result.findings)


def test_files_with_different_numbers_of_inputs_are_not_run(compare):
    def summed(*names):
        return model_of([("Sum", [*names], ["y"])], {name: (FLOAT, [2]) for name in names}, {"y": (FLOAT, [2])})

    more = compare(summed("x"), summed("x", "z"))
    assert (rules(more), more.outputs) == (["input-extra"], ())
    assert rules(compare(summed("x", "z"), summed("x"))) == ["input-missing"]
    assert compare(summed("x", "z"), summed("z", "x")).status is Status.PASSED  # callers give inputs by name


def test_inputs_are_matched_by_name_not_by_position(compare):
    def difference(*order):
        return model_of([("Sub", ["a", "b"], ["y"])], {name: (FLOAT, [2]) for name in order}, {"y": (FLOAT, [2])})

    assert compare(difference("a", "b"), difference("b", "a")).status is Status.PASSED


def test_an_extra_output_is_a_difference_and_the_common_one_is_compared(compare):
    def doubled(factor, *more):
        nodes = [("Mul", ["x", "f"], ["y"]), *(("Neg", ["x"], [name]) for name in more)]
        return model_of(nodes, {"x": (FLOAT, [2])}, {name: (FLOAT, [2]) for name in ("y", *more)}, {"f": np.float32(factor)})

    assert rules(compare(doubled(2), doubled(2, "z"))) == ["output-mismatch"]
    assert rules(compare(doubled(2, "z"), doubled(3))) == ["output-mismatch", "numeric-drift"]


# --- which inputs


def grouped(groups):
    """A model that takes multiples of ``groups`` only."""
    shape = np.array([groups, -1])
    return model_of(
        [("Reshape", ["x", "shape"], ["y"])], {"x": (FLOAT, ["n"])}, {"y": (FLOAT, [groups, "m"])}, {"shape": shape}
    )


def test_what_both_files_reject_is_left_out(compare):
    result = compare(grouped(8), grouped(8))
    assert (result.status, rules(result)) == (Status.PASSED, [])
    assert result.left_out
    assert "n=16" in probes(result)
    assert not probes(result) & set(result.left_out)


def test_what_one_file_rejects_is_a_difference(compare):
    def fixed(length):
        shape = np.array([length])
        return model_of([("Reshape", ["x", "shape"], ["y"])], {"x": (FLOAT, ["n"])}, {"y": (FLOAT, ["m"])}, {"shape": shape})

    result = compare(fixed(-1), fixed(2))
    assert "run-error" in rules(result)
    [found] = [each for each in result.findings if each.rule == "run-error"]
    assert found.message.startswith("only ")
    assert "b.onnx rejects 'n=" in found.message


def test_integers_are_small_enough_to_be_indices(compare):
    def embedding(rows, seed=0):
        table = weights(rows, 4, seed=seed)
        return model_of([("Gather", ["table", "x"], ["y"])], {"x": (INT64, ["n"])}, {"y": (FLOAT, ["n", 4])}, {"table": table})

    assert compare(embedding(100), embedding(100)).status is Status.PASSED
    assert compare(embedding(3), embedding(3)).status is Status.PASSED
    assert compare(embedding(3), embedding(3, seed=1)).status is Status.FAILED


def test_sizes_are_those_that_are_named(compare):
    assert {each.shape[0] for each in compare(mlp(), mlp(), sizes={"batch": 6}).outputs} == {6}
    assert {each.shape[0] for each in compare(mlp(), mlp(), sizes={"batch": (6, 9)}).outputs} == {6, 9}


def test_files_that_reject_everything_prove_nothing(compare):
    nodes = [("MatMul", ["x", "w"], ["y"])]
    kinds = {"x": (FLOAT, ["n", "m"])}, {"y": (FLOAT, ["n", 2])}
    odd = model_of(nodes, *kinds, {"w": weights(23, 2)})
    result = compare(odd, odd)
    assert (result.status, rules(result)) == (Status.FAILED, ["vacuous"])
    assert "--size" in result.findings[0].remedy
    assert compare(odd, odd, sizes={"m": 23}).status is Status.PASSED


def test_what_cannot_be_used_is_a_message(compare, tmp_path):
    with pytest.raises(ConfigurationError, match=r"there is no file .*c\.onnx; did you mean 'b\.onnx'\?"):
        compare(mlp(), save(mlp(), tmp_path / "b.onnx").with_name("c.onnx"))
    with pytest.raises(ConfigurationError, match=r"no input has a dynamic axis 'bath'; did you mean 'batch'\?"):
        compare(mlp(), mlp(), sizes={"bath": 2})
    with pytest.raises(ConfigurationError, match=r"sizes\['batch'\] must be sizes of at least 1"):
        compare(mlp(), mlp(), sizes={"batch": 0})
    with pytest.raises(ConfigurationError, match="the setting 'weights' has no effect on a comparison of files"):
        compare(mlp(), mlp(), weights="DEFAULT")
    texts = model_of([("Identity", ["x"], ["y"])], {"x": (TensorProto.STRING, [2])}, {"y": (TensorProto.STRING, [2])})
    with pytest.raises(ConfigurationError, match=r"input 'x' of .* has the type string, so none can be made"):
        compare(texts, texts)
    (tmp_path / "text.onnx").write_text("no model")
    broken = compare(mlp(), tmp_path / "text.onnx")
    assert rules(broken) == ["checker"]
    assert "text.onnx: the file is not a readable ONNX model" in broken.findings[0].message


def test_a_file_that_the_runtime_cannot_load_is_a_difference(compare):
    unknown = model_of([helper.make_node("Nothing", ["x"], ["y"], domain="acme")], {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])},
                       domains=["acme"])  # fmt: skip
    result = compare(unknown, unknown)
    assert (result.status, rules(result)) == (Status.FAILED, ["load-error", "load-error"])
