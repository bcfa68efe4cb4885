"""The parts of the action that need no step of it: where failures are shown, and what GitHub takes."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re

import pytest
import yaml
from toolbox.fake_pip import inputs, replace_pip
from toolbox.github_runner import ACTION, ROOT, commands_in, outputs_in
from toolbox.records import cell, warned

from onnx_ci import CellResult, ConfigurationError, Problem, RunReport, Status
from onnx_ci.errors import EnvironmentLacksError
from onnx_ci.github import runner
from onnx_ci.github.action import annotations_of
from onnx_ci.github.inputs import read_inputs
from onnx_ci.github.install import install, installed
from onnx_ci.results.records import SkipCause
from onnx_ci.results.rules import finding


def report(*cells, **more):
    return RunReport(environment={}, settings={}, cells=cells, **more)


def failed(*rules, line=None, **changes):
    findings = tuple(finding(rule, f"{rule} at opset {changes.get('opset', 9)}") for rule in rules or ("baked-value",))
    return CellResult(cell=cell(source="onnx_recipes.py", **changes), status=Status.FAILED, findings=findings, line=line)


def test_a_rule_that_a_recipe_breaks_in_many_cells_is_one_annotation(project):
    project.write("onnx_recipes.py", "import onnx_ci\n\n\n@onnx_ci.recipe\ndef net():\n    ...\n")
    broken = [failed("baked-value", "vacuous", line=4, opset=opset) for opset in (9, 10, 11)]
    found = annotations_of(report(*broken, failed(line=4, device="cuda")), project.root, project.root)
    assert [(each.level, each.title, each.file, each.line) for each in found] == [
        ("error", "net: baked-value", "onnx_recipes.py", 4),
        ("error", "net: vacuous", "onnx_recipes.py", 4),
    ]
    first, where, remedy = found[0].message.split("\n")
    assert first == "baked-value at opset 9"
    assert where == "at opsets 9-11 on cpu, at opset 9 on cuda"
    assert remedy.startswith("remedy: ")


def test_a_warning_of_a_cell_that_passes_is_annotated_as_one(project):
    (found,) = annotations_of(report(warned(), warned(opset=10)), project.root, project.root)
    assert (found.level, found.title) == ("warning", "net: edge-mismatch")
    assert "at opsets 9-10 on cpu" in found.message


def test_an_annotation_names_the_pass_of_a_file(project):
    broken = [failed(graph_pass="int8-static"), failed(exporter="dynamo", graph_pass="float16")]
    (found,) = annotations_of(report(*broken), project.root, project.root)
    assert (
        found.message.split("\n")[1]
        == "at opset 9 on cpu with torchscript after int8-static, at opset 9 on cpu with dynamo after float16"
    )


def test_github_is_given_as_many_as_it_shows_and_told_of_the_rest(project):
    many = [failed(recipe=f"net{number}") for number in range(25)]
    found = annotations_of(report(*many), project.root, project.root)
    assert [each.title for each in found] == [*(f"net{number}: baked-value" for number in range(9)), "onnx-ci"]
    assert found[-1].message.startswith("… and 16 more")
    assert len(annotations_of(report(*many[:10]), project.root, project.root)) == 10


def test_a_file_that_cannot_be_used_is_shown_at_its_line(project):
    project.write("sub/onnx_recipes.py", "\nundefined\n")
    project.write("sub/helpers.py", "")
    told = [
        Problem(source="onnx_recipes.py", message="cannot be imported", file="onnx_recipes.py", line=2),
        Problem(source="onnx_recipes.py", message="cannot be imported", file="helpers.py", line=7),
        Problem(source="onnx_recipes.py", message="the recipe name 'net' is taken", file="onnx_recipes.py", line=12),
        Problem(source="onnx_recipes.py", message="it is empty"),
    ]
    project.write("sub/pyproject.toml", "")
    found = annotations_of(report(problems=tuple(told)), project.root / "sub", project.root)
    assert [(each.file, each.line) for each in found] == [
        ("sub/onnx_recipes.py", 2),
        ("sub/helpers.py", 7),
        ("sub/onnx_recipes.py", 12),
        ("sub/onnx_recipes.py", None),
    ]


def test_a_recipe_outside_the_repository_is_named_without_a_place(project):
    installed = CellResult(
        cell=cell(source="../site-packages/nets.py", recipe="net"), status=Status.FAILED, findings=(finding("vacuous", "no"),)
    )
    project.write("site-packages/nets.py", "@recipe\ndef net(): ...\n")
    project.write("work/pyproject.toml", "")
    (found,) = annotations_of(report(installed), project.root / "work", project.root / "work")
    assert (found.file, found.title) == (None, "net: vacuous")


def test_a_device_that_is_missing_is_a_warning_and_a_recipe_that_skips_itself_is_none(project):
    skipped = [
        CellResult(cell=cell(device="cuda", opset=opset), status=Status.SKIPPED,
                   reason="no cuda: torch sees none", skip_cause=SkipCause.MISSING_DEVICE)
        for opset in (9, 10)
    ]  # fmt: skip
    own = CellResult(cell=cell(), status=Status.SKIPPED, reason="not on Tuesdays", skip_cause=SkipCause.RECIPE)
    (found,) = annotations_of(report(*skipped, own), project.root, project.root)
    assert (found.level, found.message.split("\n")[0]) == ("warning", "no cuda: torch sees none")
    assert "2 cells" in found.message


HOSTILE = "first\r\n::error::second\n##[add-mask]third, 100 %: %0A ::"


@pytest.mark.parametrize("toolkit", [True, False])
def test_a_message_is_one_command_whatever_it_holds(monkeypatch, capsys, toolkit):
    if not toolkit:
        monkeypatch.setattr(runner, "_toolkit", lambda: None)
    runner.annotate("error", HOSTILE, title=HOSTILE, file="a,b:c.py", line=7)
    with runner.group(HOSTILE):
        print("inside")
    (error, group, end), listens = commands_in(capsys.readouterr().out)
    assert listens
    assert (error.name, error.message) == ("error", HOSTILE)
    assert error.properties == {"title": HOSTILE, "file": "a,b:c.py", "line": "7"}
    assert (group.name, group.message, end.name) == ("group", HOSTILE, "endgroup")


def test_a_long_message_is_cut_to_what_the_runner_takes(capsys):
    runner.annotate("warning", "%" * 10_000, title="t")
    ((command,), _) = commands_in(capsys.readouterr().out)
    assert len(command.message) == 4096


def test_what_is_printed_among_no_commands_is_text(capsys):
    with runner.no_commands():
        print("::error::not this", end="")
    runner.annotate("notice", "but this", title="t")
    (found, listens) = commands_in(capsys.readouterr().out)
    assert [each.message for each in found] == ["but this"]
    assert listens


def test_no_value_of_an_output_begins_another(monkeypatch, tmp_path):
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    values = {"one": "end\nend-0\ntwo<<x\n%0A 100 %", "two": "", "three": "=<<\n\n"}
    for name, value in values.items():
        runner.write_output(name, value)
    assert outputs_in((tmp_path / "output").read_text()) == values


def summary(failures, rows, *, first):
    grid = "| opset | 13 |\n| --- | ---: |\n" + "".join(f"| net{row} cpu | {'x' * 100} |\n" for row in range(rows))
    told = "".join(f"### net{number} opset13-cpu: failed\n\n```\n{'y' * 100}\n```\n\n" for number in range(failures))
    return "## ONNX export: ❌ failed\n\n" + (grid + "\n" + told if first == "grid" else told + grid)


@pytest.mark.parametrize("first", ["grid", "failures"])
def test_a_summary_beyond_githubs_limit_keeps_whole_failures_and_some_of_the_grid(first):
    limit = 20_000
    cut = runner.shortened(summary(400, 1000, first=first), limit)
    assert len(cut.encode()) < limit
    assert cut.startswith("## ONNX export: ❌ failed\n")
    shown = len(re.findall(r"^### net", cut, re.MULTILINE))
    assert cut.count("```") == 2 * shown
    assert 20 < shown < 400
    assert f"… and {400 - shown} more failures, in the report." in cut
    rows = cut.count("| net")
    assert 20 < rows < 1000
    assert f"… and {1000 - rows} more lines, in the report." in cut
    assert cut.index("### net0") < cut.index("| net0 cpu |")  # what failed comes first where not all can be shown


def test_a_summary_that_fits_is_left_alone():
    text = summary(3, 3, first="grid")
    assert runner.shortened(text, len(text.encode()) + 1) == text
    assert len(runner.shortened(text, len(text.encode())).encode()) < len(text.encode())


@pytest.mark.parametrize("toolkit", [True, False])
def test_a_step_has_one_summary_within_the_limit(monkeypatch, tmp_path, toolkit):
    if not toolkit:
        monkeypatch.setattr(runner, "_toolkit", lambda: None)
    file = tmp_path / "summary"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
    monkeypatch.setattr(runner, "SUMMARY_LIMIT", 10_000)
    file.write_text("what stood there\n")
    runner.add_summary(summary(400, 400, first="failures"))
    assert file.read_text().startswith("what stood there\n## ONNX export")
    assert 8_000 < file.stat().st_size < 10_000


def test_without_inputs_the_defaults_are_those_of_action_yml():
    environment = {"GITHUB_ACTION_PATH": str(ROOT), "GITHUB_WORKSPACE": str(ROOT)}
    defaults = {f"INPUT_{name.upper().replace('-', '_')}": each["default"] for name, each in ACTION["inputs"].items()}
    assert read_inputs(environment) == read_inputs(environment | defaults)


def test_every_input_is_documented_and_reaches_python():
    (prepare,) = [step for step in ACTION["runs"]["steps"] if step.get("id") == "prepare"]
    variables = {f"INPUT_{name.upper().replace('-', '_')}" for name in ACTION["inputs"]}
    assert variables == {name for name in prepare["env"] if name.startswith("INPUT_")}
    page = (ROOT / "docs" / "github-actions.md").read_text(encoding="utf-8")
    for name in [*ACTION["inputs"], *ACTION["outputs"]]:
        assert f"| `{name}` |" in page


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({"INSTALL": "cpu,visoin"}, "did you mean 'vision'?"),
        ({"UPLOAD": "alway"}, "did you mean 'always'?"),
        ({"CACHE": "yes"}, "the input 'cache' must be true, read-write, read, off or false, not 'yes'"),
        ({"WORKING_DIRECTORY": "nowhere"}, "'working-directory' does not name a folder"),
        ({"ARGS": "--max-drift='16"}, "'args' cannot be read: no closing quotation"),
        ({"ARTIFACT_NAME": "nets/deep"}, "'artifact-name' may contain"),
    ],
)
def test_an_input_that_cannot_be_used_is_named_with_what_could_be(inputs, told):
    environment = {f"INPUT_{name}": text for name, text in inputs.items()}
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        read_inputs({"GITHUB_ACTION_PATH": str(ROOT), "GITHUB_WORKSPACE": str(ROOT), **environment})


def test_what_is_installed_stays_as_it_is():
    pins = installed()
    assert f"torch=={importlib.metadata.version('torch')}" in pins
    assert not [pin for pin in pins if pin.lower().startswith("onnx-ci==")]
    assert len({pin.partition("==")[0].lower() for pin in pins}) == len(pins)


@pytest.fixture
def pip(monkeypatch):
    return replace_pip(monkeypatch)


def test_the_installation_keeps_all_that_is_there_and_adds_the_toolkit(pip):
    _, asked = pip
    install(inputs())
    (ours, kept), (toolkit, _) = asked
    assert ours == [f"onnx-ci @ {ROOT.as_uri()}"]  # ONNX Runtime is here
    assert {"torch", "onnxruntime", "numpy", "click"} <= kept
    assert toolkit == ["github-action-toolkit>=0.10"]


def test_where_packages_do_not_fit_all_but_torch_and_the_runtime_may_change(pip, capsys, monkeypatch):
    run, asked = pip
    run.failures = 1
    found = iter([["numpy==1", "torch==2"], ["numpy==3", "torch==2"], []])
    monkeypatch.setattr("onnx_ci.github.install.installed", lambda: next(found))
    install(inputs())
    assert [kept for _, kept in asked[:2]] == [{"numpy", "torch"}, {"torch"}]
    (warning,) = [each for each in commands_in(capsys.readouterr().out)[0] if each.name == "warning"]
    assert warning.message == "To install onnx-ci, pip replaced numpy==1"


def test_where_pip_finds_no_way_the_caller_is_told_one(pip):
    run, asked = pip
    run.failures = 2
    with pytest.raises(EnvironmentLacksError, match=r"^pip cannot install onnx-ci alongside the installed torch"):
        install(inputs())
    assert {"torch", "onnxruntime"} == asked[1][1]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, "onnx-ci[cpu]"),
        ({"devices": "cpu,cuda"}, "onnx-ci[cuda]"),
        ({"install": "vision", "devices": "cuda"}, "onnx-ci[vision]"),
        ({"mode": "report", "paths": "reports"}, "--no-deps"),
    ],
)
def test_the_runtime_that_is_missing_is_the_one_of_the_devices(pip, monkeypatch, given, wanted):
    _, asked = pip
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    install(inputs(**given))
    assert asked[0][0][0].partition(" @ ")[0] == wanted
    assert len(asked) == (1 if wanted == "--no-deps" else 2)


@pytest.mark.parametrize(
    ("given", "flags"), [("true", ["--require-devices"]), ("false", []), ("", []), ("True", ["--require-devices"])]
)
def test_a_switch_is_a_flag_without_a_value(given, flags):
    assert list(inputs(devices="cuda", require_devices=given).settings) == ["--devices=cuda", *flags]


def test_a_switch_takes_no_other_word():
    with pytest.raises(ConfigurationError, match="the input 'require-devices' must be false or true, not 'yes'"):
        inputs(require_devices="yes")
    with pytest.raises(ConfigurationError, match="'require-devices' cannot be used with mode 'matrix'"):
        inputs(mode="matrix", require_devices="true")


def test_what_judges_the_python_is_readable_for_an_old_one():
    """Up to the judgement, action.py holds nothing that Python 3.6 or 2.7 cannot read."""
    text = (ROOT / "action.py").read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 4))
    assert not re.search(r"\bf[\"']|:=|from __future__", text)


def test_the_samples_are_what_the_self_test_says():
    workflow = yaml.safe_load((ROOT / ".github/workflows/self-test.yml").read_text(encoding="utf-8"))
    projects = {each["project"] for each in workflow["jobs"]["action"]["strategy"]["matrix"]["include"]}
    assert projects == {folder.name for folder in (ROOT / "tests" / "e2e" / "github" / "projects").iterdir() if folder.is_dir()}
