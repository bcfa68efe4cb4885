"""Everything that onnx-ci reads and did not just write: a document that is right, and what is done with what it says."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click.testing
import numpy
import onnx
import torch
from toolbox.fake_github import zipped
from toolbox.records import cell, failed, passed, report, setting, skipped, warned, with_facts

import onnx_ci
from onnx_ci.baseline.check import Baselines
from onnx_ci.cache.store import VerdictCache, checksum
from onnx_ci.cli.main import main
from onnx_ci.collection.pythonpath import add_pythonpath
from onnx_ci.config.settings import load_settings
from onnx_ci.engine.engine import Engine
from onnx_ci.github.artifact import Artifact
from onnx_ci.matrix.plan import plan_cell
from onnx_ci.onnx_model.saved_inputs import ExpectedInput, read_inputs, write_inputs
from onnx_ci.report import html, markdown
from onnx_ci.report.comparison import compare
from onnx_ci.report.merge import merge
from onnx_ci.report.pull_request import COMMENT_LIMIT, Links, comment
from onnx_ci.results.files import as_text, read_json
from onnx_ci.results.journal import Journal, journal_of
from onnx_ci.results.records import Cell, CellEvidence


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A kind of document."""

    right: Callable[[], bytes]
    """One that is right."""
    use: Callable[[bytes, Path], object]
    """Reads a document in an empty folder, and uses it. It may raise an ``OnnxCiError``."""
    cases: int
    """How many damaged ones are read in every run of the tests."""


@onnx_ci.recipe(name="net", input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}})
def net():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)), (torch.randn(2, 3),)


CELL = Cell(source="recipes.py", recipe="net", exporter="torchscript", opset=13, device="cpu")
REPORT = dataclasses.replace(
    report(with_facts(passed()), warned(opset=10), failed(opset=11), skipped(opset=12)),
    settings={"opsets": setting("9-13")},
    not_run=(cell(opset=13).id,),
)


@functools.cache
def _evidence() -> CellEvidence:
    with tempfile.TemporaryDirectory() as folder, Engine() as engine:
        return engine.run_cell(plan_cell(CELL, net, load_settings(Path(folder))))


# --- reports and journals


def _shown(path: Path) -> object:
    found = merge([(path.name, read_json(path))])
    assert len(comment(compare(found, REPORT), Links()).encode()) <= COMMENT_LIMIT
    return markdown.render(found, lambda _: "command"), html.render(found, lambda _: "command"), as_text(found).encode()


def _report(content: bytes, folder: Path) -> object:
    (folder / "r.json").write_bytes(content)
    return _shown(folder / "r.json")


def _right_artifact() -> bytes:
    return zipped(report_json=as_text(REPORT))


def _artifact(content: bytes, folder: Path) -> object:
    (folder / "a.zip").write_bytes(content)
    return Artifact(file=folder / "a.zip", name="onnx-export").report()


def _right_journal() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(
            Path(folder, "r.json"), revision=REPORT.revision, environment={"torch": "2.13.0"}, settings=REPORT.settings
        )
        journal.expect([*(each.cell.id for each in REPORT.cells), *REPORT.not_run])
        for result in REPORT.cells:
            journal.add(result, 1.5)
        journal.close()
        return journal.path.read_bytes()


def _journal(content: bytes, folder: Path) -> object:
    journal_of(folder / "r.json").write_bytes(content)
    return _shown(folder / "r.json")


# --- baselines and settings


def _right_baseline() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        result = onnx_ci.CellResult(cell=CELL, status=onnx_ci.Status.PASSED)
        evidence = {field.name: getattr(_evidence(), field.name) for field in dataclasses.fields(CellEvidence)}
        known = {field.name for field in dataclasses.fields(result)}
        result = dataclasses.replace(result, **{name: value for name, value in evidence.items() if name in known})
        Baselines(load_settings(Path(folder), flags={"baseline": "update"})).record([result])
        (file,) = Path(folder, "onnx-baselines").iterdir()
        return file.read_bytes()


def _baseline(content: bytes, folder: Path) -> object:
    (folder / "onnx-baselines").mkdir()
    (folder / "onnx-baselines/net.toml").write_bytes(content)
    baselines = Baselines(load_settings(folder, flags={"baseline": "check"}))
    baselines.open(["net"])
    found = baselines.findings(_evidence())
    return [str(each).encode() for each in found]


SETTINGS = b"""[tool.onnx-ci]
recipe-files = ["recipes.py", "export_*.py"]
opsets = "9-17"
max-drift = 16.0
timeout = 600
memory-limit = "4GiB"
devices = ["cpu"]
[tool.onnx-ci.baseline-policy]
size = "note"
"""


def _settings(content: bytes, folder: Path) -> object:
    (folder / "pyproject.toml").write_bytes(content)
    return load_settings(folder, environment={})


PYTEST = b"""[pytest]
pythonpath = src "other folder"
testpaths = tests
"""


def _pytest_configuration(content: bytes, folder: Path) -> object:
    (folder / "pytest.ini").write_bytes(content)
    (folder / "pyproject.toml").write_bytes(content)
    before = list(sys.path)
    try:
        add_pythonpath(folder)
    finally:
        sys.path[:] = before
    return None


# --- the cache

PARTS = {"model": "1", "code": "2"}


def _entry() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        cache = VerdictCache(Path(folder))
        cache.put(CELL, PARTS, _evidence())
        return cache.path(CELL, PARTS).read_bytes()


def _right_content() -> bytes:
    content = json.loads(_entry())
    del content["sha256"]
    return json.dumps(content).encode()


def _cached(content: bytes, folder: Path) -> object:
    cache = VerdictCache(folder)
    cache.path(CELL, PARTS).write_bytes(content)
    return cache.get(CELL, PARTS)


def _cached_by_a_hand(content: bytes, folder: Path) -> object:
    """The entry was changed by somebody who also corrected its checksum."""
    try:
        document = json.loads(content)
        return _cached(json.dumps({**document, "sha256": checksum(document)}).encode(), folder)
    except (ValueError, TypeError, RecursionError):
        return _cached(content, folder)


# --- arrays and ONNX files

INPUTS = [ExpectedInput(name="x", dtype=numpy.dtype("float32"), dims=(None, 3))]


def _right_npz() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.npz")
        write_inputs(path, {"x": numpy.ones((2, 3), numpy.float32)})
        return path.read_bytes()


def _npz(content: bytes, folder: Path) -> object:
    (folder / "x.npz").write_bytes(content)
    return read_inputs(folder / "x.npz", INPUTS)


def _right_tensor() -> bytes:
    return onnx.numpy_helper.from_array(numpy.ones((2, 3), numpy.float32), "x").SerializeToString()


def _tensor(content: bytes, folder: Path) -> object:
    (folder / "input_0.pb").write_bytes(content)
    return read_inputs(folder, INPUTS)


@functools.cache
def _right_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return onnx_ci.export(net, opset=13, path=Path(folder, "net.onnx")).path.read_bytes()


def _command(*arguments: str) -> Callable[[bytes, Path], object]:
    def use(content: bytes, folder: Path) -> object:
        path = folder / "m.onnx"
        path.write_bytes(content)
        done = click.testing.CliRunner().invoke(main, [*arguments, str(path)], catch_exceptions=False)
        assert done.exit_code in (0, 1, 2), done.output
        assert "\x1b" not in done.output
        assert not any(line.startswith("::") for line in done.output.splitlines())
        return done.output

    return use


def _verified(content: bytes, folder: Path) -> object:
    path = folder / "m.onnx"
    path.write_bytes(content)
    result = onnx_ci.verify(path, net, opset=13)
    assert not {each.rule for each in result.findings} & {"internal-error", "crash"}, result
    return result.status


READERS = {
    "report": Reader(right=lambda: as_text(REPORT).encode(), use=_report, cases=350),
    "artifact": Reader(right=_right_artifact, use=_artifact, cases=300),
    "journal": Reader(right=_right_journal, use=_journal, cases=350),
    "baseline": Reader(right=_right_baseline, use=_baseline, cases=400),
    "settings": Reader(right=lambda: SETTINGS, use=_settings, cases=300),
    "pytest's configuration": Reader(right=lambda: PYTEST, use=_pytest_configuration, cases=100),
    "cache entry": Reader(right=_entry, use=_cached, cases=100),
    "cache entry with its checksum": Reader(right=_right_content, use=_cached_by_a_hand, cases=200),
    "npz": Reader(right=_right_npz, use=_npz, cases=100),
    "tensor": Reader(right=_right_tensor, use=_tensor, cases=100),
    "onnx-ci check": Reader(right=_right_file, use=_command("check"), cases=60),
    "onnx-ci show": Reader(right=_right_file, use=_command("show"), cases=60),
    "onnx_ci.verify": Reader(right=_right_file, use=_verified, cases=12),
}
