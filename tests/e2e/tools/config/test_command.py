"""``onnx-ci config``: the settings as a table, as JSON and as a schema; the syntax of recipe files, without running them."""

from __future__ import annotations

import json
import tomllib
from importlib.metadata import EntryPoint

import jsonschema
import pytest
from toolbox.option_values import values_of
from toolbox.projects import ROOT
from validate_pyproject import api, plugins
from validate_pyproject.errors import ValidationError

from onnx_ci.collection.discovery import package_folders
from onnx_ci.config.options import OPTIONS
from onnx_ci.config.settings import load_settings, tool_schema
from onnx_ci.results.json_data import to_json

PASSED, USAGE, NOTHING_RAN = 0, 2, 5
HEAVY = {"torch", "onnx", "onnxruntime", "numpy", "onnxscript"}


@pytest.fixture
def config(project):
    return lambda *arguments, **environment: project.in_process("config", *arguments, **environment)


# --- what holds


def test_every_setting_has_its_value_and_its_origin(project, config):
    project.write("pyproject.toml", '[tool.onnx-ci]\nopsets = "11-17"\nmax-drift = 8\n')
    done = config("--devices=cpu,cuda", ONNX_CI_MAX_DRIFT="4")
    assert (done.returncode, done.stderr) == (PASSED, "")
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in done.stdout.splitlines()}
    assert list(rows) == ["(root)", *(option.name for option in OPTIONS)]
    assert rows["(root)"] == [str(project.root), "the nearest folder, upwards, with a pyproject.toml"]
    assert rows["opsets"] == ["11-17", "[tool.onnx-ci] opsets"]
    assert rows["max-drift"] == ["4", "ONNX_CI_MAX_DRIFT"]
    assert rows["devices"] == ["cpu,cuda", "--devices"]
    assert rows["report"] == ["-", "default"]


def test_the_same_as_json_is_what_reports_hold(project, config):
    done = config("--json", "--sample=3")
    settings = load_settings(project.root, flags={"sample": "3"})
    assert json.loads(done.stdout) == to_json(settings.shown())
    assert json.loads(done.stdout)["sample"] == {
        "value": "3",
        "origin": {"source": "command-line", "given_as": "--sample"},
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--json", "--schema"], "exclude each other"),
        (["onnx_recipes.py"], "only --check takes PATHS"),
        (["--opsets=17-9"], "--opsets: the range 17-9 runs backwards"),
        (["--check", "nowhere.py"], ""),
    ],
)
def test_a_mistake_is_exit_2(config, arguments, said):
    done = config(*arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (USAGE, False)
    assert said in done.stderr


# --- the schema


def verdicts(option, value):
    """Whether the settings and the schema take a value."""
    try:
        option.kind.parse(value)
        parsed = True
    except ValueError:
        parsed = False
    table = {option.name: value}
    return parsed, jsonschema.Draft7Validator(tool_schema()).is_valid(table)


def test_the_schema_takes_what_the_settings_take():
    """Where the schema cannot tell (a range that runs backwards, what is installed), it takes more; never less."""
    for option in OPTIONS:
        for value in values_of(option):
            parsed, valid = verdicts(option, value)
            assert parsed == valid, (option.name, value)
    options = {option.name: option for option in OPTIONS}
    assert verdicts(options["opsets"], "17-9") == (False, True)
    assert verdicts(options["exporters"], "dynamos") == (False, True)


def test_the_command_prints_the_schema_and_it_is_one(config):
    schema = json.loads(config("--schema").stdout)
    assert schema == tool_schema()
    jsonschema.Draft7Validator.check_schema(schema)


def validated(document):
    """What the real validate-pyproject says with the entry point that this project declares."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    ((name, value),) = declared["validate_pyproject.tool_schema"].items()
    plugin = plugins.load_from_entry_point(EntryPoint(name, value, "validate_pyproject.tool_schema"))
    return api.Validator(plugins=[plugin])(document)


def test_validate_pyproject_takes_a_good_table_and_refuses_a_bad_one():
    good = {
        "tool": {"onnx-ci": {"opsets": "9-17", "max-drift": 8, "recipe-files": ["exports/*.py"], "weights": {"a": "DEFAULT"}}}
    }
    assert validated(good) == good
    for wrong, said in (
        ({"opset": "9"}, "opset"),
        ({"max-drift": "high"}, "max-drift"),
        ({"isolation": "docker"}, "isolation"),
    ):
        with pytest.raises(ValidationError, match=said):
            validated({"tool": {"onnx-ci": wrong}})
    validated(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8")))


# --- recipe files


def test_well_formed_files_are_counted_and_nothing_heavy_is_imported(project):
    project.write(
        "a/onnx_recipes.py", "import torch\nimport onnx_ci\nraise SystemExit('it was run')\n@onnx_ci.recipe\ndef net(): ...\n"
    )
    project.write("conftest.py", "import onnx_ci as o\n@o.recipe(opsets='9-17')\ndef other(): ...\n")
    done = project.command("onnx_ci", "config", "--check", PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert (done.returncode, done.stdout) == (
        PASSED,
        "settings and 2 recipe files are well-formed; onnx-ci list checks the recipes\n",
    )
    assert "onnx_ci" in imported
    assert not imported & HEAVY


def test_no_recipe_file_is_no_success(config):
    done = config("--check")
    assert (done.returncode, done.stdout) == (NOTHING_RAN, "")
    assert "no recipe file was found; recipe files are onnx_recipes.py, conftest.py" in done.stderr


def test_problems_of_settings_and_files_are_told_together_each_with_its_line(project, config):
    project.write("pyproject.toml", "[tool.onnx-ci]\nopset = '9'\n")
    project.write("onnx_recipes.py", "import onnx_ci\n\nreturn 1\n")
    project.write("b/onnx_recipes.py", "def broken(:\n")
    done = config("--check", ONNX_CI_MAX_DRIFT="none")
    assert done.returncode == USAGE
    assert done.stdout.splitlines() == [
        "pyproject.toml:2: [tool.onnx-ci] has no setting 'opset'; did you mean 'opsets'?",
        "settings: ONNX_CI_MAX_DRIFT: must be a number above 0, not 'none'",
        "onnx_recipes.py:3: SyntaxError: 'return' outside function",
        "b/onnx_recipes.py:1: SyntaxError: invalid syntax",
    ]


@pytest.mark.parametrize("content", ["import onnx_ci\n@onnx_ci.recipe(opset=9)\ndef net(): ...\n", "x = '\\d'"])
def test_what_an_import_or_another_tool_shows_is_left_to_it(project, config, content):
    project.write("onnx_recipes.py", content)
    done = config("--check")
    assert (done.returncode, done.stderr) == (PASSED, ""), done.stdout


@pytest.mark.parametrize("content", [b"x = '\x00'", b"# coding: nonsense\n", b"x = '\xff'\n", b"return 1", b"(" * 5000])
def test_a_file_that_is_no_python_is_one_problem(project, config, content):
    (project.root / "onnx_recipes.py").write_bytes(content + b" # onnx_ci")
    done = config("--check")
    assert (done.returncode, len(done.stdout.splitlines()), done.stderr) == (USAGE, 1, "")
    assert done.stdout.startswith("onnx_recipes.py:1: ")


def test_a_package_is_found_without_importing_what_is_around_it(project, monkeypatch):
    project.write("outer/__init__.py", "raise SystemExit('it was run')")
    project.write("outer/space/inner/nets.py", "")
    monkeypatch.syspath_prepend(str(project.root))
    for name in ("outer.space", "outer.space.inner"):
        settings = load_settings(project.root, flags={"packages": name}, environment={})
        assert package_folders(settings) == [project.root.joinpath(*name.split(".")).resolve()]
