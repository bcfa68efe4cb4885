from __future__ import annotations

from pathlib import Path

import pytest
from toolbox.option_values import right_values_of

from onnx_ci import ConfigurationError
from onnx_ci.config.options import FLAGS
from onnx_ci.config.settings import check_writable, find_root, load_settings, read_settings
from onnx_ci.results.records import Origin, SettingSource

DEFAULT = Origin(source=SettingSource.DEFAULT, given_as="default")


def test_flags_win_over_environment_over_file_over_defaults(project):
    project.write("pyproject.toml", '[tool.onnx-ci]\nopsets = "9-11"\nmax-drift = 5\ndevices = ["cpu"]\n')
    settings = load_settings(
        project.root,
        flags={"opsets": "13"},
        given_by=SettingSource.PYTEST,
        environment={"ONNX_CI_MAX_DRIFT": "7", "ONNX_CI_OPSETS": "12"},
    )
    assert (settings.opsets, settings.max_drift, settings.devices, settings.select) == ((13,), 7.0, ("cpu",), None)
    assert {name: settings.origins[name] for name in ("opsets", "max_drift", "devices", "select")} == {
        "opsets": Origin(source=SettingSource.PYTEST, given_as="--onnx-opsets"),
        "max_drift": Origin(source=SettingSource.ENVIRONMENT, given_as="ONNX_CI_MAX_DRIFT"),
        "devices": Origin(source=SettingSource.PROJECT_FILE, given_as="[tool.onnx-ci] devices"),
        "select": DEFAULT,
    }


@pytest.mark.parametrize(
    ("given_by", "given_as"),
    [
        (SettingSource.COMMAND_LINE, "--max-drift"),
        (SettingSource.PYTEST, "--onnx-max-drift"),
        (SettingSource.PYTHON, "max_drift="),
    ],
)
def test_an_origin_says_how_the_front_end_writes_the_option(project, given_by, given_as):
    settings = load_settings(project.root, flags={"max_drift": "3"}, given_by=given_by, environment={})
    assert settings.origins["max_drift"] == Origin(source=given_by, given_as=given_as)


def test_settings_are_shown_as_flags_that_give_them_again(project):
    given = {option.field: option.kind.show(right_values_of(option)[0]) for option in FLAGS}
    settings = load_settings(project.root, flags=given, environment={})
    flags = {option.field: settings.shown()[option.name].value for option in FLAGS}
    assert flags == given
    assert load_settings(project.root, flags=flags, environment={}) == settings
    assert settings.shown()["opsets"].origin == Origin(source=SettingSource.COMMAND_LINE, given_as="--opsets")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('opset = "9"', "no setting 'opset'; did you mean 'opsets'?"),
        ('recipe_files = ["a.py"]', "did you mean 'recipe-files'?"),
        ('opsets = "17-9"', "[tool.onnx-ci] opsets: the range 17-9 runs backwards; write 9-17"),
        ('devices = "gpu"', "unknown device 'gpu'; use cpu, cuda or cuda:1"),
        ('devices = "cuad"', "did you mean 'cuda'?"),
        ('exporters = "torchscrip"', "did you mean 'torchscript'?"),
        ('isolation = "spaw"', "did you mean 'spawn'?"),
        ("jobs = 0", "must be an integer of at least 1"),
        ("jobs = 2.5", "must be an integer of at least 1, not 2.5"),
        ("max-drift = true", "must be a number above 0, not True"),
        ("timeout = -1", "must be a number above 0"),
        ('memory-limit = "12"', "must be a size such as 8GiB or 512MiB"),
        ("max-drift = 0", "must be a number above 0"),
        ('max-drift = "high"', "must be a number above 0, not 'high'"),
        ('effort = "quik"', "must be quick or full, not 'quik'; did you mean 'quick'?"),
        ("report = 5", "must be a path"),
        ("report = 'r.html'", "must be a path for JSON; the setting for .html is html"),
        ("select = []", "is empty"),
        ('shard = "0/5"', "[tool.onnx-ci] shard: there is no shard 0 of 5; shards are numbered 1/5 to 5/5"),
        ("shard = 2", "2 is not a shard; write 2/5 for the second of five"),
        ("packages = [1]", "must be a list of words"),
        ('baseline = "chek"', "must be off, check or update, not 'chek'; did you mean 'check'?"),
        ('baseline-limits = "sizes=1"', "unknown name 'sizes'; use counts, size,"),
        ('baseline-limits = "size"', "must be NAME=VALUE, not 'size'"),
        ("recipe-defaults = { max-ir-version = 8 }", "has no keyword 'max-ir-version'; did you mean 'max_ir_version'?"),
        ('recipe-defaults = "static"', "must be a table of keywords of recipes, not 'static'"),
        ("recipe-defaults = { static = 3 }", "must be true or false, not 3"),
        ("baseline-limits = { size = -1 }", "must be a number of at least 0, not -1"),
        ("baseline-limits = { size = true }", "must be a number of at least 0, not True"),
        (
            'rules.absolut-path = "ignore"',
            "[tool.onnx-ci] rules: there is no rule 'absolut-path'; did you mean 'absolute-path'?",
        ),
        ('rules.absolute-path = "ignroe"', "absolute-path must be error, note or ignore, not 'ignroe'; did you mean 'ignore'?"),
        ('rules."net*".absolute-path = "ignroe"', "did you mean 'ignore'?"),
        ('rules.baseline-sizes = "note"', "there is no rule 'baseline-sizes'; did you mean 'baseline-size'?"),
        ("rules.absolute-path = true", "absolute-path must be error, note or ignore, not True"),
        ('rules."resnet*" = "note"', "there is no rule 'resnet*'"),
        ('rules."a b".absolute-path = "ignore"', "'a b' is not a pattern of recipes' names, such as resnet*"),
        ('rules = "absolute-path"', "must be RULE=SEVERITY or RECIPES:RULE=SEVERITY, such as absolute-path=ignore"),
        ('rules = "checker=ignore,checker=note"', "checker is declared twice, as ignore and as note; keep one of them"),
        (
            'rules.timeout = "ignore"',
            "timeout can be neither ignored nor made a note: a cell that breaks it has no file to compare",
        ),
        (
            'rules.recipe-error = "note"',
            "recipe-error can be neither ignored nor made a note: a cell that breaks it was not judged",
        ),
        ('rules.unexpected-pass = "note"', "a cell that breaks it does not fail as its recipe expects"),
        ("opsets = [", "pyproject.toml cannot be read"),
    ],
)
def test_a_wrong_setting_names_its_place_and_the_nearest_right_one(project, text, said):
    project.write("pyproject.toml", f"[tool.onnx-ci]\n{text}\n")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(project.root, environment={})
    assert said in str(caught.value)


def test_every_mistake_is_known_with_its_line(project):
    project.write(
        "pyproject.toml",
        "[project]\nname = 'x'\n\n[tool.onnx-ci]\nopset = '9'\n'max-drift' = 0\nweights.a = 'b'\nexporters = 'x'\n",
    )
    settings, problems = read_settings(project.root, flags={"jobs": "none"}, environment={"ONNX_CI_DEVICE": "cpu"})
    assert [(each.line, str(each).split(":")[0]) for each in problems] == [
        (5, "[tool.onnx-ci] has no setting 'opset'; did you mean 'opsets'?"),
        (6, "[tool.onnx-ci] max-drift"),
        (8, "[tool.onnx-ci] exporters"),
        (None, "ONNX_CI_DEVICE in the environment is not a setting; did you mean 'ONNX_CI_DEVICES'?"),
        (None, "--jobs"),
    ]
    assert (settings.max_drift, dict(settings.weights), settings.origins["jobs"]) == (16, {"a": "b"}, DEFAULT)


@pytest.mark.parametrize("name", ["onnx_ci", "onnxci"])
def test_a_table_under_a_misspelt_name_is_not_overlooked(project, name):
    project.write("pyproject.toml", f"\n[tool.{name}]\nopsets = '9'\n")
    message = rf"has a table \[tool.{name}\], which is ignored; the table is \[tool.onnx-ci\]"
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_settings(project.root, environment={})
    assert caught.value.line == 2
    project.write("pyproject.toml", "tool = 3\n")
    assert load_settings(project.root, environment={}).origins["opsets"] == DEFAULT


def test_a_misspelt_variable_is_an_error(project):
    with pytest.raises(
        ConfigurationError, match="ONNX_CI_OPSET in the environment is not a setting; did you mean 'ONNX_CI_OPSETS'"
    ):
        load_settings(project.root, environment={"ONNX_CI_OPSET": "9"})


def test_a_table_that_is_no_table_is_an_error(project):
    project.write("pyproject.toml", "[tool]\nonnx-ci = 3\n")
    with pytest.raises(ConfigurationError, match="must be a table"):
        load_settings(project.root, environment={})


def test_weights_are_named_for_one_recipe_or_for_all(project):
    one = load_settings(project.root, flags={"weights": "alexnet=DEFAULT,lstm=a=b.pt"}, environment={})
    assert (one.weights_for("alexnet"), one.weights_for("resnet18")) == ("DEFAULT", None)
    assert one.weights_for("lstm") == "a=b.pt"
    every = load_settings(project.root, flags={"weights": "DEFAULT,lstm=lstm.pt"}, environment={})
    assert (every.weights_for("resnet18"), every.weights_for("lstm")) == ("DEFAULT", "lstm.pt")


RULES_OF_A_PROJECT = """
[tool.onnx-ci]
opsets = "13"

[tool.onnx-ci.rules]
absolute-path = "ignore"
export-warning = "error"
crash = "error"

[tool.onnx-ci.rules."resnet*"]
no-float64 = "ignore"
export-warning = "note"

[tool.onnx-ci.rules.resnet50]
no-float64 = "error"
"""


def test_rules_have_severities_for_every_recipe_or_for_those_that_a_pattern_matches(project):
    project.write("pyproject.toml", RULES_OF_A_PROJECT)
    settings = load_settings(project.root, environment={})
    every = {"absolute-path": None, "export-warning": "error", "crash": "error"}
    assert settings.severities_for("lstm") == every
    assert settings.severities_for("resnet18") == every | {"no-float64": None, "export-warning": "note"}
    assert settings.severities_for("resnet50") == every | {"no-float64": "error", "export-warning": "note"}
    shown = settings.shown()["rules"].value
    assert shown == (
        "absolute-path=ignore,export-warning=error,crash=error,"
        "resnet*:no-float64=ignore,resnet*:export-warning=note,resnet50:no-float64=error"
    )
    assert load_settings(project.root, flags={"rules": shown}, environment={}).rules == settings.rules


def test_defaults_of_recipes_are_shown_and_only_the_project_file_has_them(project):
    project.write(
        "pyproject.toml", '[tool.onnx-ci.recipe-defaults]\noperators = ["Conv", "Relu"]\nstatic = true\natol = 1e-3\n'
    )
    shown = load_settings(project.root, environment={}).shown()["recipe-defaults"]
    assert (shown.value, str(shown.origin)) == (
        "operators=Conv,Relu; static=true; atol=0.001",
        "[tool.onnx-ci] recipe-defaults",
    )
    with pytest.raises(ConfigurationError, match="ONNX_CI_RECIPE_DEFAULTS in the environment is not a setting"):
        load_settings(project.root, environment={"ONNX_CI_RECIPE_DEFAULTS": "static=true"})


def test_a_mistake_in_the_table_of_rules_has_its_line(project):
    project.write("pyproject.toml", RULES_OF_A_PROJECT.replace("crash", "crahs"))
    _, (problem,) = read_settings(project.root, environment={})
    assert (problem.line, str(problem)) == (
        5, "[tool.onnx-ci] rules: there is no rule 'crahs'; did you mean 'crash'?; onnx-ci why lists them",
    )  # fmt: skip


def test_the_root_is_where_the_project_file_is(project):
    project.write("pyproject.toml", "")
    deep = project.root / "a" / "b"
    deep.mkdir(parents=True)
    assert find_root(deep) == project.root.resolve()


@pytest.mark.parametrize("place", ["file/report.json", "folder"])
def test_a_report_that_cannot_be_written_is_told_before_the_work(project, place):
    project.write("file", "")
    (project.root / "folder").mkdir()
    settings = load_settings(project.root, flags={"report": Path(place)}, environment={})
    with pytest.raises(ConfigurationError, match="cannot be written"):
        check_writable(settings)
    assert sorted(path.name for path in project.root.iterdir()) == ["file", "folder"]


def test_the_folders_of_a_report_are_made(project):
    check_writable(load_settings(project.root, flags={"report": Path("a/b/report.json")}, environment={}))
    assert list(project.root.rglob("*")) == [project.root / "a", project.root / "a/b"]
