"""The whole recipe library: what its files say of themselves, the page that leads to them, and a run of it."""

from __future__ import annotations

import functools
import json
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support_table import outcome_of
from tables import by_opset

from onnx_ci.collection.discovery import Catalogue, all_recipe_files
from onnx_ci.config.settings import load_settings
from onnx_ci.results.records import CellResult, Status

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "from-torch-docs.md"
SUPPORT = json.loads((ROOT / "docs" / "data" / "support.json").read_text(encoding="utf-8"))
LIBRARY = ROOT / "recipes"
GROUPS = sorted(path.parent.name for path in LIBRARY.glob("*/__init__.py"))
NO_RECIPES = {"__init__.py", "torchvision_models.py"}
OPERATORS = "operators"
"""The group of single operators is data, with a page and tests of its own."""

FILES = sorted(path for path in LIBRARY.glob("*/*.py") if path.name not in NO_RECIPES and path.parent.name != OPERATORS)


def name_of(file):
    return file.relative_to(LIBRARY).as_posix()


@functools.cache
def recipes_of(file):
    catalogue = Catalogue(load_settings(ROOT, flags={"isolation": "none"}))
    found, problems = catalogue.add_file(file)
    assert not problems
    return {each.recipe.name: each.recipe for each in found}


def everywhere():
    """The recipes that run at every opset with both exporters without being asked for."""
    recipes = (each for file in FILES for each in recipes_of(file).values())
    return {each.name for each in recipes if not each.manual and each.opsets is None and each.exporters is None}


def links():
    """Each recipe file that the page links to, with the recipes that it names after it."""
    for cell in re.split(r"\||\n", PAGE.read_text(encoding="utf-8")):
        for file, names in re.findall(r"\]\(\.\./recipes/([\w./]+)\)((?:,? `\w+`)*)", cell):
            yield file, re.findall(r"`(\w+)`", names)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_recipe_file_says_what_it_shows_is_short_enough_to_be_copied_and_gives_the_reasons_of_its_gaps(file):
    text = file.read_text(encoding="utf-8")
    opening = re.match(r'"""(.+?)(?:"""|\n\n)', text, re.DOTALL)
    assert opening is not None
    assert "opset" in opening[1].lower()
    assert len(text.splitlines()) < 120
    assert recipes_of(file)
    for recipe in recipes_of(file).values():
        for expected in recipe.expect:
            assert all(each.reason and re.fullmatch(r"(\w+ [\d.]+(, )?)+", each.seen) for each in expected.failures)


def test_every_file_is_in_a_group_and_every_group_is_installed():
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    assert [path.name for path in LIBRARY.glob("*.py")] == ["__init__.py"]
    assert [name for name in packages if name.startswith("onnx_ci.recipes.")] == [f"onnx_ci.recipes.{name}" for name in GROUPS]


@pytest.mark.parametrize("flags", [{"packages": "onnx_ci.recipes"}, {}], ids=["as-a-package", "as-recipe-files"])
def test_all_groups_are_found(flags, tmp_path):
    found = {path.parts[-2:] for path in all_recipe_files(load_settings(tmp_path if flags else ROOT, flags=flags))}
    assert found == {path.parts[-2:] for path in LIBRARY.glob("*/*.py") if path.name != "__init__.py"}


def test_the_index_is_up_to_date():
    index = runpy.run_path(str(ROOT / "docs" / "recipe_index.py"))["index"]
    assert (ROOT / "recipes" / "README.md").read_text(encoding="utf-8") == index(), "run tox run -e index"


def test_the_page_names_recipes_that_are_there():
    named = list(links())
    assert len(named) > 40
    for file, names in named:
        assert set(names) <= set(recipes_of(LIBRARY / file)), file


def test_every_recipe_file_is_on_the_page():
    assert {file for file, _ in links()} == {name_of(path) for path in FILES}


def test_the_other_links_of_the_page_lead_somewhere():
    targets = set(re.findall(r"\]\(([^)#]+)[^)]*\)", PAGE.read_text(encoding="utf-8")))
    assert targets
    assert [target for target in targets if not (PAGE.parent / target).exists()] == []


def test_the_table_has_every_recipe_that_runs_without_being_asked_for():
    named = {row["recipe"] for row in SUPPORT["rows"]}
    assert named >= everywhere()
    assert named <= {name for file in FILES for name in recipes_of(file)}


def test_the_table_quotes_the_reasons_that_recipes_declare():
    recipes = {name: recipe for file in FILES for name, recipe in recipes_of(file).items()}
    for row in SUPPORT["rows"]:
        for opset, result in by_opset(row).items():
            if "why" in result:
                declared = "; ".join(dict.fromkeys(map(str, recipes[row["recipe"]].expectations(row["exporter"], opset))))
                assert result["why"] == declared, f"{row['recipe']} with {row['exporter']} at opset {opset}"


def test_the_table_has_the_order_of_the_library():
    order = [name for file in FILES for name in recipes_of(file)]
    shown = list(dict.fromkeys(row["recipe"] for row in SUPPORT["rows"]))
    assert shown == [name for name in order if name in shown]


def test_the_table_is_that_of_the_versions_that_are_tested_together():
    constraints = dict(re.findall(r"^(\w+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
    for name in ("torch", "torchvision", "onnx", "onnxscript", "onnxruntime"):
        assert SUPPORT["versions"][name] == constraints[name], f"{name}: run tox run -e library"


@pytest.mark.slow
@pytest.mark.parametrize(("exporter", "opsets"), [("torchscript", {9, 17}), ("dynamo", {18})])
def test_every_recipe_passes_or_fails_as_it_is_known_to(tmp_path, exporter, opsets):
    report = tmp_path / "r.json"
    done = subprocess.run(
        # The script, not "python -m onnx_ci": that would put the checkout's onnx_ci before the installed one.
        [str(Path(sys.executable).with_name("onnx-ci")), "run", "recipes", f"--exporters={exporter}",
         f"--opsets={','.join(map(str, opsets))}", "--no-cache", f"--report={report}"],
        cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    cells = json.loads(report.read_text())["cells"]
    assert {cell["status"] for cell in cells} <= {"passed", "xfailed", "skipped"}
    assert {cell["recipe"] for cell in cells if cell["status"] == "skipped"} <= {"bert"}  # where there is no transformers
    assert len(everywhere()) >= 40
    table = {(row["recipe"], row["exporter"]): by_opset(row) for row in SUPPORT["rows"]}
    for result in map(CellResult.from_json, cells):
        if result.status is not Status.SKIPPED and result.cell.graph_pass is None:  # the table is about the exporters
            in_table = table[result.cell.recipe, exporter][result.cell.opset]["outcome"]
            assert in_table == outcome_of(result), f"{result.cell.id}: docs/data/support.json says {in_table}"
    assert {(cell["recipe"], cell["exporter"], cell["opset"]) for cell in cells} >= {
        (name, exporter, opset) for name in everywhere() for opset in opsets
    }
