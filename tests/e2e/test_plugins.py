"""What packages add is found by its name, and a broken package is named with what to do about it."""

from __future__ import annotations

import itertools
import sys

import pytest
from toolbox.distributions import TINY_ONNX, TINY_ONNX_CODE, install

from onnx_ci.environment.packages import require_plugins
from onnx_ci.environment.versions import versions
from onnx_ci.errors import ConfigurationError, EnvironmentLacksError
from onnx_ci.plugins import EXPORTERS, PASSES, RUNTIMES

NUMBERS = itertools.count()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a distribution whose modules no test before has imported, and put it on the path."""
    monkeypatch.syspath_prepend(tmp_path)

    def installed(entry_points, code="", name="acme-onnx"):
        module = f"acme_{next(NUMBERS)}"
        named = {
            group: {entry: value.replace("MODULE", module) for entry, value in entries.items()}
            for group, entries in entry_points.items()
        }
        install(tmp_path, name, named, {f"{module}.py": code})
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / name)])  # what is installed was read for another path

    return installed


@pytest.fixture
def tiny_onnx(tmp_path, monkeypatch):
    install(tmp_path, "tiny-onnx", TINY_ONNX, {"tiny_onnx.py": TINY_ONNX_CODE})
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("tiny_onnx", None)


@pytest.mark.parametrize(("kind", "name"), [(EXPORTERS, "signed"), (RUNTIMES, "graph"), (PASSES, "tidy")])
def test_what_a_package_adds_is_known_by_its_name(kind, name, tiny_onnx):
    assert name in kind
    assert [*kind][: len(kind.ours)] == [*kind.ours]
    assert kind.added([name, *kind.ours]) == [name]
    assert all(hasattr(kind.load(name), member) for member in kind.members)
    assert versions()["tiny-onnx"] == "1.0"


@pytest.mark.parametrize("kind", [EXPORTERS, RUNTIMES, PASSES], ids=lambda kind: kind.noun)
def test_every_one_of_ours_can_be_loaded(kind):
    for name in kind.ours:
        loaded = kind.load(name)
        assert all(hasattr(loaded, member) for member in kind.members)
        assert kind is EXPORTERS or loaded.name == name


def test_an_unknown_name_is_told_with_the_nearest_one(tiny_onnx):
    with pytest.raises(ConfigurationError, match="there is no exporter 'singed'; did you mean 'signed'"):
        EXPORTERS.load("singed")


BROKEN = {
    "a module that is missing": ("MODULE_gone:Exporter", "", "cannot be loaded: ModuleNotFoundError: No module named"),
    "a class that is missing": ("MODULE:Exporter", "", "cannot be loaded: AttributeError: module"),
    "an import that fails": ("MODULE:Exporter", "raise OSError('no libacme.so')", "cannot be loaded: OSError: no libacme.so"),
    "an import that leaves": ("MODULE:Exporter", "raise SystemExit(3)", "cannot be loaded: SystemExit: 3"),
    "a class with parameters": (
        "MODULE:Exporter",
        "class Exporter:\n    def __init__(self, level): ...",
        "cannot be loaded: TypeError",
    ),
    "a class of something else": ("MODULE:Exporter", "class Exporter: ...", "has no export: its entry point must name a class"),
}


@pytest.mark.parametrize(("value", "code", "words"), BROKEN.values(), ids=BROKEN)
def test_a_broken_package_is_named(installed, value, code, words):
    installed({"onnx_ci.exporters": {"acme": value}}, code)
    for load in (lambda: EXPORTERS.load("acme"), lambda: require_plugins(["acme"], [])):
        with pytest.raises(EnvironmentLacksError) as raised:
            load()
        assert str(raised.value).startswith("the exporter 'acme' of acme-onnx 1.0 ")
        assert words in str(raised.value)
    assert "acme" in EXPORTERS  # looking for it does not import it


def test_a_package_that_ends_the_process_is_named(installed):
    installed({"onnx_ci.runtimes": {"acme": "MODULE:Runtime"}}, "import os\nos._exit(7)")
    with pytest.raises(EnvironmentLacksError, match=r"the runtime 'acme' of acme-onnx 1\.0 cannot be loaded: the process that"):
        require_plugins([], ["acme"])


@pytest.mark.parametrize(
    ("entry_points", "words"),
    [
        ({"onnx_ci.runtimes": {"onnxruntime": "MODULE:x"}}, "adds the runtime 'onnxruntime', but that name is onnx-ci's own"),
        ({"onnx_ci.passes": {"export": "MODULE:x"}}, "adds the post-export pass 'export', but that name is onnx-ci's own"),
        ({"onnx_ci.exporters": {"two.words": "MODULE:x"}}, "adds the exporter 'two.words', but a name begins with a letter"),
    ],
)
def test_a_name_that_cannot_be_used_is_told_before_anything_runs(installed, entry_points, words):
    installed(entry_points)
    with pytest.raises(EnvironmentLacksError) as raised:
        require_plugins([], ["onnxruntime"])
    assert str(raised.value).startswith(f"acme-onnx 1.0 {words}")
    assert str(raised.value).endswith("; update the package or uninstall it")


def test_two_packages_with_the_same_name_are_both_named(installed):
    installed({"onnx_ci.passes": {"fuse": "MODULE:FUSE"}})
    installed({"onnx_ci.passes": {"fuse": "MODULE:FUSE"}}, name="other-onnx")
    with pytest.raises(EnvironmentLacksError) as raised:
        PASSES.load("fuse")
    assert "acme-onnx 1.0" in str(raised.value)
    assert "other-onnx 1.0" in str(raised.value)
    assert str(raised.value).endswith("uninstall one of them")
