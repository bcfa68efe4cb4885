"""The arithmetic of axes: what names and expressions stand for, and the sizes that an axis can have."""

from __future__ import annotations

import pytest

import onnx_ci
from onnx_ci.collection.axis_sizes import above, axes_of_file, axis_size, below, is_same_axis, permitted, solve


@pytest.mark.parametrize(
    ("text", "sizes", "size"),
    [
        ("past + 1", {"past": 5}, 6),
        ("past + new", {"past": 5, "new": 3}, 8),
        ("2*frames - 1", {"frames": 10}, 19),
        ("(height + 1) // 2", {"height": 7}, 4),
        ("-n + 10", {"n": 3}, 7),
        ("a * b", {"a": 3, "b": 4}, 12),
        ("8 // n", {"n": 0}, None),
    ],
)
def test_an_expression_has_the_size_that_follows(text, sizes, size):
    assert axis_size(text).at(sizes) == size
    assert axis_size(text).names == tuple(sizes)


@pytest.mark.parametrize(
    "label", ["batch", "batch size", "batch-size", "num-of-rows", "input.1", "x[0]", "Max(1, n)", "16", "past +", ""]
)
def test_what_is_not_arithmetic_is_a_name(label):
    assert axis_size(label).is_name
    assert axis_size(label).at({label: 7}) == 7


@pytest.mark.parametrize("label", ["past / 2", "past + 1.5", "2 ** n", "n % 2", "1 + 2", "f(n) + 1", "not n", "n + True"])
def test_an_expression_of_anything_else_is_refused(label):
    with pytest.raises(onnx_ci.RecipeError, match="can only have names of axes and integers, with"):
        axis_size(label)


def test_variables_follow_from_expressions_that_are_linear_in_them():
    axes = {"8*h": 24, "2*past + new": 13, "new": 3, "w // 2": 4, "batch": 2}
    assert solve((axis_size(text), size) for text, size in axes.items()) == {"h": 3, "past": 5, "new": 3, "batch": 2}


@pytest.mark.parametrize(("text", "size"), [("8*h", 20), ("h + 9", 5), ("h*h", 9), ("(h + 1) // 2", 6), ("0*h + 4", 4)])
def test_a_variable_that_does_not_follow_is_left_out(text, size):
    assert solve([(axis_size(text), size)]) == {}


def test_equal_expressions_are_the_same_axis():
    assert is_same_axis("past + 1", "1 + past")
    assert is_same_axis("2*(n + 1)", "2*n + 2")
    assert is_same_axis("(n + 1)//2", "(1 + n) // 2")
    assert not is_same_axis("(n + 1)//2", "n // 2")
    assert not is_same_axis("past + 1", "past + 2")
    assert not is_same_axis("past + new", "past")
    assert not is_same_axis("past", "new")


def test_a_files_names_are_expressions_only_if_their_variables_are_known():
    axes = axes_of_file(["past", "past + 1", "batch-size", "n // 2", "8*_h", "m / 2"])
    assert {text: axis.is_name for text, axis in axes.items()} == {
        "past": True, "past + 1": False, "batch-size": True, "n // 2": True, "8*_h": False, "m / 2": True,
    }  # fmt: skip


def test_sizes_above_and_below_stay_within_the_range():
    every = permitted(onnx_ci.multiple_of(8), 1, 100)
    assert (every[0], every[-1]) == (8, 96)
    assert (above(every, 32), above(every, 33), above(every, 16, 2), above(every, 90), above(every, 1000)) == (
        40,
        40,
        32,
        96,
        96,
    )
    assert (below(every, 32), below(every, 33), below(every, 32, 2), below(every, 8)) == (24, 32, 16, 8)
    assert permitted(range(32, 129, 32), 40) == range(64, 129, 32)


@pytest.mark.parametrize("number", [0, 1, -8, 8.0, "8", True])
def test_multiples_are_of_an_integer_above_1(number):
    with pytest.raises(onnx_ci.RecipeError, match="multiple_of takes an integer of at least 2"):
        onnx_ci.multiple_of(number)
