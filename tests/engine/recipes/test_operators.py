"""The operators of the documentation's list: what is known to fail, and the data of the table in docs/operators.md.

Running every cell takes too long for each push, so two things are shown here that together mean that the data is right: it
is, cell by cell, what the gaps declare, and a run finds what the gaps declare, of TorchScript at all of the default
opsets and of dynamo in a sample. The workflow tables.yml runs them all.
"""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path

import pytest
import yaml
from support_table import support_data

import onnx_ci
from onnx_ci import Status
from onnx_ci.opsets import FIRST_DYNAMO_OPSET, OF_TORCH, parse_opsets
from onnx_ci.recipes.operators import operators
from onnx_ci.recipes.operators.operator_cases import CASES
from onnx_ci.recipes.operators.operator_gaps import CONVERTED_DOWN_TO, GAPS, all_gaps
from onnx_ci.results.records import Cell, CellResult
from onnx_ci.results.rules import finding
from onnx_ci.results.run_report import RunReport

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/operators.md").read_text(encoding="utf-8")
DATA = json.loads((ROOT / "docs/data/operators.json").read_text(encoding="utf-8"))
RECIPES = {value.name: value for value in vars(operators).values() if isinstance(value, onnx_ci.Recipe)}
OPSETS = parse_opsets("9-23")


def test_every_operator_is_a_recipe_of_its_own_that_runs_on_request_only():
    assert list(RECIPES) == [case.name for case in CASES]
    assert len(RECIPES) == 160 + 7
    assert all(recipe.manual and recipe.tags == ("operator",) for recipe in RECIPES.values())


def test_a_restriction_belongs_to_an_operator_and_the_page_tells_it():
    restricted = [case.name for case in CASES if case.restriction]
    assert restricted == [case.name for case in CASES if "." in case.name]
    assert {name.partition(".")[0] for name in restricted} <= set(RECIPES)
    told = re.findall(r"^- `.*`: .*$", PAGE, re.MULTILINE)
    assert sorted(re.findall("`([^`]+[.][^`]+)`", "\n".join(told))) == sorted(restricted)


def test_a_gap_is_one_of_an_operator_and_none_is_declared_twice():
    gaps = list(all_gaps())
    assert {gap.operator for gap in gaps} <= set(RECIPES)
    for operator, recipe in RECIPES.items():
        assert len({gap.where for gap in gaps if gap.operator == operator}) == len(recipe.expect)
        assert all(each.seen for expected in recipe.expect for each in expected.failures), operator
        for exporter in OF_TORCH:
            for opset in OPSETS:
                rules = [each.rule for each in recipe.expectations(exporter, opset)]
                assert len(set(rules)) == len(rules), (operator, exporter, opset)


def declared_results():
    """What the gaps say of every cell; nothing is run."""
    for name, recipe in RECIPES.items():
        for opset in OPSETS:
            for exporter in OF_TORCH:
                gaps = recipe.expectations(exporter, opset)
                found = sorted((gap.rule for gap in gaps), key=lambda rule: rule != "opset-mismatch")  # it is found first
                yield CellResult(
                    cell=Cell(
                        source="recipes/operators/operators.py", recipe=name, exporter=exporter, opset=opset, device="cpu"
                    ),
                    status=Status.XFAILED if gaps else Status.PASSED,
                    reason="; ".join(map(str, gaps)),
                    findings=tuple(finding(rule, "declared", opset=FIRST_DYNAMO_OPSET) for rule in found),
                )


def without_operators(data):
    """The rows; the exporters' own names of what is unsupported only a run can tell."""
    for row in data["rows"]:
        for result in row["results"]:
            if result["outcome"] == "unsupported":
                result = {**result, "what": []}
            yield row["recipe"], row["exporter"], result


def test_the_data_is_what_the_gaps_declare():
    declared = support_data(RunReport(environment={}, settings={}, cells=tuple(declared_results())))
    assert list(without_operators(DATA)) == list(without_operators(declared))


def test_the_data_is_that_of_the_versions_that_are_tested_together():
    constraints = dict(re.findall(r"^(\w+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
    for name in ("torch", "onnx", "onnxscript", "onnxruntime"):
        assert DATA["versions"][name] == constraints[name], f"{name}: run tox run -e operators"


def expected(results):
    """What a run must find, and what it has found, by cell."""
    for result in results:
        gaps = RECIPES[result.cell.recipe].expectations(result.cell.exporter, result.cell.opset)
        yield result.cell.id, Status.XFAILED if gaps else Status.PASSED, result.status


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_with_torchscript_every_operator_is_as_declared_at_each_default_opset(part):
    recipes = list(RECIPES.values())[part::4]
    run = onnx_ci.run(recipes, exporters="torchscript", opsets="9-17", isolation="none")
    assert len(run.cells) == 9 * len(recipes)
    assert [each for each in expected(run.cells) if each[1] is not each[2]] == []


FIRST_OF_EACH_LINE = {operators.split()[0] for operators in CONVERTED_DOWN_TO.values()}
SAMPLE = [
    gap for gap in all_gaps() if not gap.where.startswith("torchscript") and (gap in GAPS or gap.operator in FIRST_OF_EACH_LINE)
]


@pytest.mark.slow
@pytest.mark.parametrize("gap", SAMPLE, ids=lambda gap: f"{gap.operator}-{gap.where.replace(' ', '-')}")
def test_with_dynamo_a_gap_begins_and_ends_where_it_is_declared(gap):
    recipe = RECIPES[gap.operator]
    opsets = [opset for opset in OPSETS if gap.reason in {each.reason for each in recipe.expectations("dynamo", opset)}]
    around = {opsets[0] - 1, opsets[0], opsets[-1], opsets[-1] + 1} & set(OPSETS)
    run = onnx_ci.run([recipe], exporters="dynamo", opsets=",".join(map(str, sorted(around))), isolation="none")
    assert len(run.cells) == len(around)
    assert [each for each in expected(run.cells) if each[1] is not each[2]] == []


def test_the_workflow_makes_the_tables_anew_where_what_they_are_made_of_changes():
    workflow = yaml.safe_load((ROOT / ".github/workflows/tables.yml").read_text(encoding="utf-8"))
    triggers = workflow[True]  # YAML 1.1 takes the key "on" for a boolean
    assert triggers["schedule"]
    for event in ("push", "pull_request"):
        for pattern in triggers[event]["paths"]:
            assert list(ROOT.glob(pattern)), pattern
    (job,) = workflow["jobs"].values()
    files = {each["env"]: each["file"] for each in job["strategy"]["matrix"]["include"]}
    assert job["steps"][-1]["run"] == 'tox run -e "$TOX_ENV" -- --check="$FILE"'
    assert files == {"operators": "docs/data/operators.json", "library": "docs/data/support.json", "catches": "README.md"}
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(ROOT / "tox.ini")
    for env, file in files.items():
        assert settings[f"testenv:{env}"]["commands"].splitlines()[-1].endswith(f" {{posargs:--write={file}}}")
