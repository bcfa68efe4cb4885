"""The corpus, of which nothing is run here: its files, without the libraries, and the data of its results."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from onnx_ci.collection.discovery import Catalogue, all_recipe_files
from onnx_ci.config.settings import load_settings

pytestmark = pytest.mark.filterwarnings("ignore")  # libraries that are installed may warn when they are imported

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "corpus"
SETTINGS = load_settings(CORPUS, flags={"isolation": "none"})
FILES = sorted(all_recipe_files(SETTINGS))
RESULTS = json.loads((ROOT / "docs" / "data" / "corpus.json").read_text(encoding="utf-8"))
CELLS = {(each["recipe"], each["exporter"]): each for each in RESULTS["cells"]}
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


def test_there_are_enough_architectures_and_each_has_the_tag_of_its_library():
    assert len(recipes()) >= 400
    assert all(set(each.tags) & set(LIBRARIES) for each in recipes().values())


@pytest.mark.slow
def test_the_files_can_be_read_where_none_of_the_libraries_is_installed():
    hide = "".join(f"sys.modules[{name!r}] = None; " for name in LIBRARIES)
    script = f"import sys; {hide}from onnx_ci.__main__ import main; sys.argv = ['onnx-ci', 'list']; main()"
    done = subprocess.run([sys.executable, "-c", script], cwd=CORPUS, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == len(CELLS) == len(RESULTS["cells"])


def test_the_results_are_those_of_exactly_the_recipes_of_each_file():
    for file, found in recipes_by_file().items():
        of_file = [each["recipe"] for each in RESULTS["cells"] if Path(each["source"]).name == file]
        assert list(dict.fromkeys(of_file)) == [each.name for each in found], "tox run -e corpus"


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_what_failed_is_what_the_recipes_expect_to_fail(exporter):
    declared = {name for name, each in recipes().items() if each.expectations(exporter, EXPORTERS[exporter])}
    outcomes = {name: each["outcome"] for (name, with_), each in CELLS.items() if with_ == exporter}
    assert declared == {name for name, outcome in outcomes.items() if outcome == "known"}
    assert set(outcomes.values()) <= {"passed", "warned", "known"}


def test_every_failure_has_its_reason_the_versions_it_was_seen_with_and_evidence():
    for (name, exporter), cell in CELLS.items():
        if cell["outcome"] == "known":
            expected = recipes()[name].expectations(exporter, EXPORTERS[exporter])
            assert {each.rule for each in expected} == set(cell["rules"])
            assert cell["why"] == "; ".join(dict.fromkeys(map(str, expected)))
            assert all(each.reason and re.fullmatch(r"(\w+ [\d.]+(, )?)+", each.seen) for each in expected)
            assert cell["evidence"] != "none", f"{name} with {exporter} is a false alarm, or evidence.py overlooks why"


def test_the_results_are_those_of_the_versions_that_are_tested_together():
    constraints = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
    versions = RESULTS["versions"]
    assert versions.keys() >= {"torch", "torchvision", "timm", "transformers", "diffusers", "torchaudio"}
    for name, version in versions.items():
        if name != "onnx-ci":
            assert version == constraints[name], f"{name}: run tox run -e corpus"
