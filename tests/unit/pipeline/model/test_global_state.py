"""Which changes of global state are a recipe's, and which those of what it imports."""

from __future__ import annotations

import os
import sys
import unittest
from pathlib import Path

import pytest
import torch
from toolbox.cells import task

import onnx_ci
from onnx_ci.pipeline.model.global_state import watched
from onnx_ci.pipeline.prepare.prepare import prepare


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A module that sets a variable and the number of threads when it is imported."""
    threads = torch.get_num_threads()
    (tmp_path / "sets_on_import.py").write_text(
        "import os, torch\nos.environ['SET_BY_IMPORT'] = '1'\ntorch.set_num_threads(torch.get_num_threads() + 1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("SET_BY_IMPORT", raising=False)
    monkeypatch.delenv("SET_BY_RECIPE", raising=False)
    yield threads
    sys.modules.pop("sets_on_import", None)
    os.environ.pop("SET_BY_IMPORT", None)
    os.environ.pop("SET_BY_RECIPE", None)
    torch.set_num_threads(threads)


def notes_on(build):
    findings = prepare(task(onnx_ci.recipe(name="net")(build))).findings
    return [each.message for each in findings if each.rule == "global-state"]


def test_what_an_import_changes_is_no_note_and_stays_changed(library):
    def net():
        import sets_on_import  # noqa: F401

        return torch.nn.ReLU(), (torch.randn(3),)

    assert notes_on(net) == []
    assert os.environ["SET_BY_IMPORT"] == "1"
    assert torch.get_num_threads() == library + 1


def test_what_the_recipe_changes_beside_an_import_is_a_note(library):
    def net():
        import sets_on_import  # noqa: F401

        os.environ["SET_BY_RECIPE"] = "1"
        return torch.nn.ReLU(), (torch.randn(3),)

    assert notes_on(net) == ["building the model changes the environment (SET_BY_RECIPE) and does not restore it"]


def test_a_default_device_without_values_does_not_come_back_when_a_recipe_that_imports_is_built_again(library):
    def net():
        import sets_on_import  # noqa: F401

        model, args = torch.nn.Linear(4, 2), (torch.randn(3, 4),)
        torch.set_default_device("meta")
        return model, args

    try:
        assert notes_on(net) == ["building the model changes torch's default device (from cpu to meta) and does not restore it"]
        assert torch.get_default_device().type == "cpu"
    finally:
        torch.set_default_device(None)


def test_a_recipe_that_imports_nothing_is_built_once(library):
    built = []

    def net():
        built.append(None)
        os.environ["SET_BY_RECIPE"] = str(len(built))
        return torch.nn.ReLU(), (torch.randn(3),)

    assert len(notes_on(net)) == 1
    assert len(built) == 1


def test_a_removed_working_directory_is_named_and_the_rest_is_restored(tmp_path, monkeypatch):
    gone, dtype = tmp_path / "gone", torch.get_default_dtype()
    gone.mkdir()
    monkeypatch.chdir(tmp_path)
    with watched() as state:
        os.chdir(gone)
        gone.rmdir()
        torch.set_default_dtype(torch.float64)
    assert state.descriptions == (
        "the working directory",
        "torch's default dtype (from torch.float32 to torch.float64)",
    )
    state.undo()
    assert (torch.get_default_dtype(), Path.cwd()) == (dtype, tmp_path)


@pytest.mark.parametrize("error", [RuntimeError, unittest.SkipTest])
def test_a_recipe_that_can_be_built_only_once_is_prepared(library, error):
    builds = []

    def once():
        import sets_on_import  # noqa: F401

        builds.append(None)
        if len(builds) > 1:
            raise error("once")
        return torch.nn.Linear(2, 2), (torch.randn(3, 2),)

    prepared = prepare(task(onnx_ci.recipe(name="net")(once)))
    assert [each.rule for each in prepared.findings if "SET_BY_IMPORT" in each.message] == ["global-state"]
