"""What recipes declare about their cells is enough to choose these as a run does."""

from __future__ import annotations

import itertools
import json

import pytest

import onnx_ci
from onnx_ci.collection.discovery import Found
from onnx_ci.config.settings import load_settings
from onnx_ci.environment import packages
from onnx_ci.matrix.plan import plan
from onnx_ci.matrix.scope import RecipeScope, choose_cells, scope_of, unmatched, unselected_cells
from onnx_ci.results.json_data import from_json, to_json

DECLARED = (
    {},
    {"opsets": "11-13", "tags": ["small", "fast"]},
    {"opsets": "17-", "exporter": ["torchscript", "dynamo"], "then": ["onnxslim", "onnxsim"]},
    {"devices": "cpu", "runtimes": ["onnxruntime", "reference"]},
    {"manual": "needs 8 GiB", "tags": ["big"]},
)
FLAGS = (
    {},
    {"opsets": "12-18"},
    {"opsets": "18-"},
    {"opsets": "9-20", "sample": "3"},
    {"exporters": "dynamo"},
    {"devices": "cpu,cuda"},
    {"runtimes": "reference"},
    {"runtimes": "openvino"},
    {"tags": "small,big"},
    {"select": "net2*,*::opset13-cpu"},
    {"select": "net4"},
    {"select": "*+onnxslim", "opsets": "17"},
)


@pytest.fixture(autouse=True)
def packages_that_know_opset_23(monkeypatch):
    """What the packages say is their newest opset; they would be asked in processes."""
    told = {"onnx": packages.Package(version="1", facts={"opset": 23})}
    monkeypatch.setattr(packages, "inspect_packages", lambda names: told)
    packages.newest_opset.cache_clear()
    yield
    packages.newest_opset.cache_clear()


def found(is_named=False):
    recipes = (onnx_ci.recipe(name=f"net{number}", **declared)(lambda: None) for number, declared in enumerate(DECLARED))
    return [Found(recipe, f"models/part{number}.py", is_named) for number, recipe in enumerate(recipes)]


def scopes_of(recipes, settings):
    return tuple(scope_of(each, settings) for each in recipes)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_the_cells_are_those_of_a_run_after_a_trip_through_json(tmp_path, flags):
    settings = load_settings(tmp_path, flags=flags)
    for is_named in (False, True):
        recipes = found(is_named)
        whole = plan(recipes, settings)
        scopes = from_json(tuple[RecipeScope, ...], json.loads(json.dumps(to_json(scopes_of(recipes, settings)))))
        chosen = choose_cells(scopes, settings)
        assert chosen.cells == tuple(spec.cell for spec in whole.cells)
        assert chosen.exclusions == whole.exclusions
    assert whole.cells or whole.exclusions


def test_a_range_without_an_end_goes_on_to_the_newest_opset(tmp_path):
    settings = load_settings(tmp_path, flags={"opsets": "21-"})
    cells = choose_cells(scopes_of(found()[:1], settings), settings).cells
    assert [cell.opset for cell in cells] == [21, 22, 23]
    selected = load_settings(tmp_path, flags={"opsets": "21-", "select": "*::opset22-*"})
    assert [cell.opset for cell in choose_cells(scopes_of(found()[:1], settings), selected).cells] == [22]
    assert unselected_cells(scopes_of(found()[:1], settings), selected) == cells


def test_what_is_not_a_range_without_an_end_asks_for_no_opset(tmp_path, monkeypatch):
    scopes = [scope for scope in scopes_of(found(), load_settings(tmp_path)) if scope.name != "net2"]
    monkeypatch.setattr(packages, "inspect_packages", None)
    for flags in itertools.chain(FLAGS[:2], FLAGS[3:]):
        choose_cells(scopes, load_settings(tmp_path, flags=flags))


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"select": "net0,net1*"}, []),
        ({"select": "net0,nte1"}, ["--select: no cell matches 'nte1'; did you mean 'net1'?; onnx-ci list shows the ids"]),
        ({"select": "net0,typo*,*-cpu,other"}, ["--select: no cell matches 'typo*'", "--select: no cell matches 'other'"]),
        # Cells that other settings would have: such a glob is given to each job of a matrix.
        ({"select": "net0,net1::opset11-*", "opsets": "13"}, []),
        ({"select": "net0,net0::opset20-cuda", "opsets": "13"}, []),
        ({"select": "net0,net0::opset13-cpu-dynamo", "opsets": "13"}, []),
        ({"select": "net0,net2::opset18-cpu+onnxsim", "opsets": "13"}, []),
        ({"select": "net0,net4"}, []),
        ({"select": "net0,net1::opset17-*"}, ["--select: no cell matches 'net1::opset17-*'; did you mean"]),
        ({"select": "net0,net3::opset13-cuda"}, ["--select: no cell matches 'net3::opset13-cuda'; did you mean"]),
        ({"tags": "small,big"}, []),
        ({"tags": "small,bgi"}, ["--tags: no recipe has the tag 'bgi'; did you mean 'big'?"]),
        # Nothing runs, which is told in other words.
        ({"select": "nte1"}, []),
        ({"tags": "bgi"}, []),
    ],
)
def test_a_glob_or_tag_that_names_nothing_beside_others_is_told_with_the_nearest_word(tmp_path, flags, told):
    settings = load_settings(tmp_path, flags=flags)
    problems = unmatched(scopes_of(found(), settings), settings, is_whole=True)
    assert len(problems) == len(told)
    for problem, start in zip(problems, told, strict=True):
        assert f"{problem.source}: {problem.message}".startswith(start)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"weights": "trained=x.pt"}, []),
        ({"weights": "x.pt"}, []),
        ({"weights": "net1=x.pt"}, ["--weights: the recipe 'net1' takes no weights: give its function the parameter"]),
        ({"weights": "trianed=x.pt"}, ["--weights: there is no recipe 'trianed'; did you mean 'trained'?"]),
        ({"weights": "net1=x.pt,trained=y.pt,z=z.pt"}, ["--weights: the recipe 'net1'", "--weights: there is no recipe 'z'"]),
        ({"rules": "net*:vacuous=note,absolute-path=ignore"}, []),
        ({"rules": "nte*:vacuous=note,nte*:crash=error"}, ["--rules: 'nte*' matches the name of no recipe"]),
        ({"rules": "tained:vacuous=note"}, ["--rules: 'tained' matches the name of no recipe; did you mean 'trained'?"]),
    ],
)
def test_a_setting_for_no_recipe_is_told(tmp_path, flags, told):
    recipes = [*found(), Found(onnx_ci.recipe(name="trained")(lambda weights=None: None), "trained.py", False)]
    settings = load_settings(tmp_path, flags=flags)
    problems = unmatched(scopes_of(recipes, settings), settings, is_whole=True)
    assert len(problems) == len(told)
    for problem, start in zip(problems, told, strict=True):
        assert f"{problem.source}: {problem.message}".startswith(start)


def test_weights_for_every_recipe_need_one_that_takes_them(tmp_path):
    settings = load_settings(tmp_path, flags={"weights": "DEFAULT"})
    (problem,) = unmatched(scopes_of(found(), settings), settings, is_whole=True)
    assert problem.message.startswith("no recipe takes weights: ")


def test_a_project_may_have_settings_for_recipes_of_other_files_but_no_weights_for_one_that_takes_none(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.onnx-ci]\nweights = { elsewhere = "x.pt", net1 = "x.pt" }\nrules = { elsewhere = { vacuous = "note" } }\n'
    )
    settings = load_settings(tmp_path, flags={})
    assert len(unmatched(scopes_of(found(), settings), settings, is_whole=True)) == 3
    (problem,) = unmatched(scopes_of(found(), settings), settings, is_whole=False)
    assert "'net1' takes no weights" in problem.message


def test_the_selection_of_a_project_is_of_all_its_recipes(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.onnx-ci]\ntags = ["small", "slow"]\n')
    settings = load_settings(tmp_path, flags={})
    assert len(unmatched(scopes_of(found(), settings), settings, is_whole=True)) == 1
    assert unmatched(scopes_of(found(), settings), settings, is_whole=False) == []


@pytest.mark.parametrize(
    ("opsets", "newest"),  # what is named as the newest: onnx's, or for a range without an end that of all packages
    [("9-17", None), ("24", None), ("9-99", 28), ("40", 28), ("18-", None), ("9,40-", None), ("40-", 23)],
)
def test_a_requested_opset_that_onnx_does_not_know_is_an_error_with_the_newest(opsets, newest, tmp_path, monkeypatch):
    monkeypatch.setattr("onnx_ci.matrix.scope.newest_opset_of_onnx", lambda: 28)
    scope = scope_of(Found(onnx_ci.recipe(name="net")(lambda: None), "a.py"), load_settings(tmp_path))
    settings = load_settings(tmp_path, flags={"opsets": opsets})
    if newest is None:
        assert choose_cells([scope], settings).cells
    else:
        with pytest.raises(
            onnx_ci.ConfigurationError, match=rf"--opsets: opset .. is unknown here, where {newest} is the newest"
        ):
            choose_cells([scope], settings)


def test_a_recipe_for_opsets_that_do_not_exist_yet_has_no_cells_and_says_so(tmp_path):
    settings = load_settings(tmp_path)
    scope = scope_of(Found(onnx_ci.recipe(name="net", opsets="40-")(lambda: None), "a.py"), settings)
    choice = choose_cells([scope], settings)
    assert choice.cells == ()
    (told,) = choice.exclusions
    assert told.reason == "every opset: the recipe declares 40-, and the newest here is 23"


@pytest.mark.parametrize(
    ("devices", "asked", "chosen"),
    [
        ("cpu,cuda", "cuda:1", ["cuda:1"]),
        (("cuda",), "cpu,cuda", ["cuda"]),
        (("cuda:1",), "cuda", []),
        (("cpu",), "cuda:1", []),
    ],
)
def test_cuda_in_a_recipe_is_any_gpu(devices, asked, chosen, tmp_path):
    settings = load_settings(tmp_path, flags={"devices": asked})
    scope = scope_of(Found(onnx_ci.recipe(name="net", opsets=9, devices=devices)(lambda: None), "a.py"), settings)
    assert [cell.device for cell in choose_cells([scope], settings).cells] == chosen
