"""Which cells pytest-xdist's workers run together."""

from __future__ import annotations

import pytest

from onnx_ci.pytest_plugin.scheduling import scopes


def sizes(recipes, workers, *, cells=9, device="cpu"):
    """How many cells are in each part of each recipe."""
    ids = [f"r.py::n{number}::opset{9 + place}-{device}" for number in range(recipes) for place in range(cells)]
    found: dict[str, dict[str, int]] = {}
    for id, scope in scopes(ids, workers).items():
        parts = found.setdefault(id.split("::")[1], {})
        parts[scope] = parts.get(scope, 0) + 1
    return [list(parts.values()) for parts in found.values()]


@pytest.mark.parametrize("recipes", [8, 16, 1000])
def test_recipes_stay_whole_if_all_workers_are_busy_to_the_end(recipes):
    assert sizes(recipes, 8) == [[9]] * recipes


@pytest.mark.parametrize("recipes", [7, 15, 30, 100, 1003])
def test_recipes_stay_whole_if_splitting_saves_little(recipes):
    assert sizes(recipes, 8) == [[9]] * recipes


@pytest.mark.parametrize(
    ("recipes", "workers", "last"),
    [(1, 8, [[1, 2, 2, 2, 2]]), (9, 8, [[1, 2, 2, 2, 2]]), (4, 8, [[5, 4]] * 4), (12, 8, [[5, 4]] * 4), (3, 2, [[5, 4]])],
)
def test_the_recipes_of_the_last_round_are_split_if_workers_would_be_idle(recipes, workers, last):
    found = sizes(recipes, workers)
    assert found[: recipes - len(last)] == [[9]] * (recipes - len(last))
    assert [sorted(each) for each in found[-len(last) :]] == [sorted(each) for each in last]


def test_a_recipe_of_one_cell_is_one_part():
    assert sizes(3, 8, cells=1) == [[1]] * 3


def test_the_cells_of_a_gpu_are_together_and_other_tests_are_not_scheduled_here():
    ids = ["r.py::a::opset9-cuda", "r.py::b::opset9-cuda:0", "r.py::b::opset9-cuda:1", "test_x.py::test_y"]
    assert scopes(ids, 8) == dict(zip(ids[:3], ["GPU cuda:0", "GPU cuda:0", "GPU cuda:1"], strict=True))
    assert scopes([], 2) == {}
