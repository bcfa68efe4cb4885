"""CONTRIBUTING.md names every file that a change needs, and those files are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from onnx_ci.plugins import OF_CELLS
from onnx_ci.results.rules import RULES

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PATH = re.compile(r"`((?:onnx_ci|tests|docs|recipes|corpus|benchmarks|\.github|\.ci)/[\w./-]+)`")


def of(thing):
    """What the page says about adding something."""
    return re.search(rf"^- \*\*{re.escape(thing)}\*\*.*?(?=^- \*\*|^## |\Z)", TEXT, re.MULTILINE | re.DOTALL).group()


@pytest.mark.parametrize("path", sorted(set(PATH.findall(TEXT))))
def test_a_file_that_it_names_is_there(path):
    assert (ROOT / path).exists()


def test_files_and_folders_are_named_at_all():
    assert len(PATH.findall(TEXT)) > 20


@pytest.mark.parametrize(
    ("thing", "file", "entry"),
    [
        ("A setting", "onnx_ci/config/options.py", "opsets: tuple[int, ...] | None = option("),
        ("A setting", "onnx_ci/api.py", "class RunOptions("),
        ("A keyword of `@recipe`", "onnx_ci/collection/keywords.py", "class RecipeFields"),
        ("A rule", "onnx_ci/results/rules.toml", "[vacuous]"),
        ("A known error of an exporter", "onnx_ci/pipeline/export/exporter_errors.toml", "[[remedy]]"),
        ("A known error of an exporter", "onnx_ci/pipeline/export/exporter_warnings.toml", "[[warning]]"),
        ("A variable that the cache should not look at", "onnx_ci/cache/variables.toml", "PYTEST_*"),
        ("A stage of a cell", "onnx_ci/results/stages.py", 'Stage("observability"'),
        ("A stage of a cell", "onnx_ci/pipeline/prepare/prepare.py", 'timed("observability"'),
        ("A stage of a cell", "onnx_ci/engine/cell.py", 'timed("export"'),
        ("A runtime", "pyproject.toml", '[project.entry-points."onnx_ci.runtimes"]'),
        ("A runtime", "onnx_ci/plugins.py", "RUNTIMES = PluginKind("),
        ("An exporter", "onnx_ci/plugins.py", "EXPORTERS = PluginKind("),
        ("A post-export pass", "onnx_ci/plugins.py", "PASSES = PluginKind("),
        ("An opset", "onnx_ci/opsets.py", "DEFAULT_OPSETS"),
    ],
)
def test_a_thing_is_added_where_it_says(thing, file, entry):
    assert file in of(thing)
    assert entry in (ROOT / file).read_text(encoding="utf-8")


def test_each_rule_has_its_page():
    assert {path.stem for path in (ROOT / "docs" / "rules").glob("*.md")} - {"index"} == set(RULES)


@pytest.mark.parametrize("kind", OF_CELLS.values(), ids=lambda kind: kind.noun)
def test_each_plugin_of_ours_has_its_module(kind):
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    targets = [*kind.ours.values(), *entry_points.get(kind.group, {}).values()]
    modules = [ROOT / f"{target.partition(':')[0].replace('.', '/')}.py" for target in targets]
    assert modules
    assert all(module.is_file() for module in modules)
    folders = {module.parent.relative_to(ROOT).as_posix() for module in modules}
    assert folders == {
        path
        for path in PATH.findall(of({"runtime": "A runtime", "exporter": "An exporter"}.get(kind.noun, "A post-export pass")))
        if (ROOT / path).is_dir() and path.startswith("onnx_ci")
    }
