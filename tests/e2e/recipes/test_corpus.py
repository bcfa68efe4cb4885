"""The corpus, of which nothing is run here: its files, without the libraries, and the page that shows its results."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support_table import BEGIN, END

from onnx_ci.collection.discovery import Catalogue, all_recipe_files
from onnx_ci.collection.static_check import lint
from onnx_ci.config.settings import load_settings
from onnx_ci.report.markdown import escape

pytestmark = pytest.mark.filterwarnings("ignore")  # libraries that are installed may warn when they are imported

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "corpus"
SETTINGS = load_settings(CORPUS, flags={"isolation": "none"})
FILES = sorted(all_recipe_files(SETTINGS))
PAGE = (ROOT / "docs" / "corpus.md").read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
EXPORTERS = {"torchscript": 17, "dynamo": 18, "transformers": 18}
LIBRARIES = (
    "conformer",
    "deepctr_torch",
    "diffusers",
    "e3nn",
    "encodec",
    "entmax",
    "kornia",
    "monai",
    "ncps",
    "open_clip",
    "perceiver_pytorch",
    "pytorch_tabnet",
    "pytorch_tcn",
    "rtdl_num_embeddings",
    "segment_anything",
    "segmentation_models_pytorch",
    "snntorch",
    "speechbrain",
    "stable_baselines3",
    "timm",
    "torch_geometric",
    "torchaudio",
    "torchcrf",
    "torchdiffeq",
    "torchvision",
    "transformers",
    "ultralytics",
    "vit_pytorch",
    "zuko",
)


@functools.cache
def recipes_by_file():
    catalogue = Catalogue(SETTINGS)
    recipes = {}
    for file in FILES:
        found, problems = catalogue.add_file(file)
        assert not problems
        recipes[file.name] = [each.recipe for each in found]
    return recipes


def recipes():
    return {each.name: each for found in recipes_by_file().values() for each in found}


def table(heading):
    """The titles and the rows of the table below a heading of the page, each as a list of cells."""
    text = PAGE.partition(f"### {heading}")[2].partition("\n### ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    titles, _, *cells = ([word.strip() for word in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines)
    return titles, cells


def rows(heading):
    return table(heading)[1]


def marks():
    """What the page says of each recipe with each exporter."""
    found = {}
    for file in recipes_by_file():
        (_, *titles), lines = table(f"[{file}]")
        exporters = [title.partition(",")[0].lower() for title in titles]
        for name, *cells in lines:
            found |= {(name.strip("`"), exporter): cell for exporter, cell in zip(exporters, cells, strict=True)}
    return found


def failures():
    """The rows of the table of known failures, by recipe and exporter."""
    return {(name.strip("`"), exporter): rest for name, exporter, *rest in rows("Known failures")}


def test_the_files_are_well_formed():
    _, problems = lint(FILES, ROOT)
    assert problems == []


def test_there_are_enough_architectures_and_each_has_the_tag_of_its_library():
    assert len(recipes()) >= 400
    assert all(set(each.tags) & set(LIBRARIES) for each in recipes().values())


def test_the_files_can_be_read_where_none_of_the_libraries_is_installed():
    hide = "".join(f"sys.modules[{name!r}] = None; " for name in LIBRARIES)
    script = f"import sys; {hide}from onnx_ci.__main__ import main; sys.argv = ['onnx-ci', 'list']; main()"
    done = subprocess.run([sys.executable, "-c", script], cwd=CORPUS, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == len(marks())


def test_the_page_lists_exactly_the_recipes_of_each_file():
    for file, found in recipes_by_file().items():
        assert [name.strip("`") for name, *_ in rows(f"[{file}]")] == [each.name for each in found], "tox run -e corpus"


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_what_fails_on_the_page_is_what_the_recipes_expect_to_fail(exporter):
    declared = {name for name, each in recipes().items() if each.expectations(exporter, EXPORTERS[exporter])}
    assert declared == {name for (name, with_), mark in marks().items() if with_ == exporter and mark == "❌"}
    assert declared == {name for name, with_ in failures() if with_ == exporter}
    assert {mark for (_, with_), mark in marks().items() if with_ == exporter} <= {"✅", "⚠️", "❌"}


def test_every_failure_has_its_reason_the_versions_it_was_seen_with_and_evidence():
    for (name, exporter), (rules, why, evidence) in failures().items():
        expected = recipes()[name].expectations(exporter, EXPORTERS[exporter])
        assert {f"`{each.rule}`" for each in expected} == set(rules.split(", "))
        assert why == escape("; ".join(dict.fromkeys(map(str, expected))))
        assert all(each.reason and re.fullmatch(r"(\w+ [\d.]+(, )?)+", each.seen) for each in expected)
        assert evidence != "none", f"{name} with {exporter} is a false alarm of onnx-ci, or evidence.py overlooks why"


def test_the_page_was_made_with_the_versions_that_are_tested_together():
    constraints = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
    made = dict(re.findall(r"([\w-]+) (\d[\w.]*)[,.](?= |$)", PAGE.strip().splitlines()[0]))
    assert made.keys() >= {"torch", "torchvision", "timm", "transformers", "diffusers", "torchaudio"}
    for name, version in made.items():
        if name != "onnx-ci":
            assert version == constraints[name], f"{name}: run tox run -e corpus"
