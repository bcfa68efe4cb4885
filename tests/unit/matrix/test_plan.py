from __future__ import annotations

import pytest

import onnx_ci
from onnx_ci.collection.discovery import Found
from onnx_ci.config.settings import load_settings
from onnx_ci.matrix.plan import Requirements, plan


def cells(tmp_path, recipe_options=None, is_named=False, **flags):
    recipe = onnx_ci.recipe(name="net", **(recipe_options or {}))(lambda: None)
    matrix = plan([Found(recipe, "r.py", is_named)], load_settings(tmp_path, flags=flags, environment={}))
    return [spec.cell.label for spec in matrix.cells], [each.reason for each in matrix.exclusions]


def test_a_recipe_that_declares_nothing_runs_at_the_default_opsets_on_the_cpu(tmp_path):
    assert cells(tmp_path) == ([f"opset{n}-cpu" for n in range(9, 18)], [])


def test_a_recipe_decides_where_the_settings_do_not(tmp_path):
    assert cells(tmp_path, {"opsets": "18-19"}) == (["opset18-cpu", "opset19-cpu"], [])


def test_what_the_recipe_rules_out_has_its_reason(tmp_path):
    assert cells(tmp_path, {"opsets": "11-17", "devices": "cpu"}, opsets="10-11", devices="cpu,cuda") == (
        ["opset11-cpu"],
        ["opset 10: the recipe declares opsets 11-17", "cuda: the recipe declares devices cpu"],
    )


def test_a_recipe_that_is_not_selected_is_not_told_of(tmp_path):
    declared = {"opsets": "11-17"}
    assert cells(tmp_path, declared, opsets="10-11", select="net::*") == (
        ["opset11-cpu"],
        ["opset 10: the recipe declares opsets 11-17"],
    )
    assert cells(tmp_path, declared, opsets="10-11", select="other::*") == ([], [])


def test_exporters_multiply_the_cells_and_only_the_unusual_one_is_named(tmp_path):
    assert cells(tmp_path, opsets="18,19", exporters="torchscript,dynamo")[0] == [
        "opset18-cpu-torchscript", "opset18-cpu", "opset19-cpu-torchscript", "opset19-cpu",
    ]  # fmt: skip


def test_beside_torchscript_dynamo_has_no_cells_at_opsets_that_it_does_not_write(tmp_path):
    names, left_out = cells(tmp_path, opsets="16-18", exporters="torchscript,dynamo")
    assert names == ["opset16-cpu", "opset17-cpu", "opset18-cpu-torchscript", "opset18-cpu"]
    assert "opset 16-17 with dynamo, which writes 18-; --exporters=dynamo alone tries it" in left_out
    assert cells(tmp_path, opsets="16-18", exporters="dynamo")[0] == ["opset16-cpu-dynamo", "opset17-cpu-dynamo", "opset18-cpu"]
    assert cells(tmp_path, {"exporter": "dynamo"}, opsets="17", exporters="torchscript") == (
        [],
        ["torchscript: the recipe declares exporter dynamo"],
    )


def test_beside_dynamo_torchscript_has_no_cells_at_opsets_that_it_does_not_write(tmp_path):
    names, left_out = cells(tmp_path, {"opsets": "23-24"}, exporters="torchscript,dynamo")
    assert names == ["opset23-cpu-torchscript", "opset23-cpu", "opset24-cpu"]
    assert "opset 24 with torchscript, which writes 7-23; --exporters=torchscript alone tries it" in left_out
    assert cells(tmp_path, {"opsets": 24}, exporters="torchscript")[0] == ["opset24-cpu-torchscript"]


def test_globs_select_by_recipe_by_cell_and_by_id(tmp_path):
    for glob in ("net::opset9-cpu", "r.py::net::opset9-*", "*::opset9-cpu"):
        assert cells(tmp_path, select=glob)[0] == ["opset9-cpu"]
    assert len(cells(tmp_path, select="net")[0]) == 9
    assert cells(tmp_path, select="other")[0] == []


def test_a_sample_is_taken_of_what_recipe_and_settings_both_allow(tmp_path):
    assert cells(tmp_path, sample="3")[0] == ["opset9-cpu", "opset13-cpu", "opset17-cpu"]
    assert cells(tmp_path, {"opsets": "11-20"}, opsets="9-16", sample="2")[0] == ["opset11-cpu", "opset16-cpu"]


def test_tags_choose_recipes(tmp_path):
    tagged = {"tags": ["vision", "big"]}
    assert cells(tmp_path, tagged, opsets="9", tags="text,vision") == (["opset9-cpu"], [])
    assert cells(tmp_path, tagged, opsets="9", tags="text") == ([], [])


BIG = {"tags": ["big"], "manual": "needs 8 GiB"}


def test_a_manual_recipe_is_left_out_with_its_reason(tmp_path):
    said = "every opset, unless requested by file, --select or --tags: needs 8 GiB"
    assert cells(tmp_path, BIG, opsets="9") == ([], [said])


@pytest.mark.parametrize(
    "asked", [{"is_named": True}, {"tags": "big"}, {"select": "net"}, {"select": "n*::opset?-cpu"}, {"select": "r.py::*"}]
)
def test_a_manual_recipe_runs_where_it_is_asked_for(tmp_path, asked):
    assert cells(tmp_path, BIG, opsets="9", **asked) == (["opset9-cpu"], [])


def test_a_glob_for_any_recipe_asks_for_none_on_request(tmp_path):
    assert cells(tmp_path, BIG, opsets="9", select="*::opset9-cpu") == ([], [])


def task(tmp_path, recipe_options, **flags):
    recipe = onnx_ci.recipe(name="net", opsets="13", **recipe_options)(lambda: None)
    return plan([Found(recipe, "r.py", False)], load_settings(tmp_path, flags=flags, environment={})).cells[0]


@pytest.mark.parametrize(
    ("declared", "defaults", "tolerance"),
    [
        ({}, "", (None, None)),
        ({}, "rtol = 0.1", (0.1, None)),
        ({"atol": 0.5}, "rtol = 0.1", (None, 0.5)),
        ({"rtol": {"y": 0.2, "float16": 0.3}}, "atol = 1", (0.2, None)),
    ],
)
def test_a_tolerance_of_the_recipe_replaces_that_of_the_defaults(project, declared, defaults, tolerance):
    project.write("pyproject.toml", f"[tool.onnx-ci.recipe-defaults]\n{defaults}\n")
    limit = task(project.root, declared).max_drift
    assert limit.tolerance_of("y", "float32") == tolerance
    assert limit.has_tolerance == (tolerance != (None, None))


def test_what_the_file_that_ships_must_be_can_be_declared_for_every_recipe(project):
    project.write("pyproject.toml", '[tool.onnx-ci.recipe-defaults]\noperators = ["Add"]\nmax_ir_version = 7\nstatic = true\n')
    assert task(project.root, {}).requirements == Requirements(operators=("Add",), max_ir_version=7, static=True)
    own = {"operators": ["Relu"], "max_ir_version": 10, "static": False}
    assert task(project.root, own).requirements == Requirements(operators=("Relu",), max_ir_version=10)


def test_the_cells_of_passes_follow_that_of_the_export(tmp_path):
    then = {"then": ["onnxslim", "float16"]}
    expected = [f"opset{n}-cpu{graph_pass}" for n in (9, 10) for graph_pass in ("", "+onnxslim", "+float16")]
    assert cells(tmp_path, then, opsets="9-10")[0] == expected
    assert cells(tmp_path, then, opsets="9-10", select="*+float16")[0] == ["opset9-cpu+float16", "opset10-cpu+float16"]
    assert cells(tmp_path, then, opsets="9-10", select="net::opset9-cpu")[0] == ["opset9-cpu"]


def test_a_lossy_pass_has_its_own_limit_from_there_on(tmp_path):
    def fuse(model):
        return model

    then = ["onnxslim", "float16", fuse, onnx_ci.graph_pass(fuse, name="strict", max_drift=2)]
    recipe = onnx_ci.recipe(name="net", max_drift={"y": 64}, then=then)(lambda: None)
    specs = plan([Found(recipe, "r.py", False)], load_settings(tmp_path, flags={"opsets": 9}, environment={})).cells
    assert [each.drift_limit.of("y", "float32") for each in specs] == [64, 64, 4, 4, 2]
    assert [each.is_lossy for each in specs] == [False, False, True, True, True]
    assert [len(each.passes) for each in specs] == [0, 1, 2, 3, 4]
    assert [specs[-1].before_passes(count).cell for count in range(5)] == [each.cell for each in specs]
