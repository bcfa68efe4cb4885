"""Everything that onnx-ci reads and did not just write: a document that is right, and what is done with what it says."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click.testing
import numpy
import onnx
import torch
from toolbox.damage import damaged, damaged_model
from toolbox.fake_github import zipped
from toolbox.records import cell, failed, passed, report, setting, skipped, warned, with_facts

import onnx_ci
from onnx_ci.baseline.check import Baselines
from onnx_ci.cache.folder import VERDICT
from onnx_ci.cache.verdicts import VerdictCache
from onnx_ci.cache.watch import ReadSet
from onnx_ci.cli.main import main
from onnx_ci.collection.importing import add_pythonpath
from onnx_ci.config.settings import load_settings
from onnx_ci.engine.one_process import Engine
from onnx_ci.errors import OnnxCiError
from onnx_ci.github.artifact import report_of
from onnx_ci.matrix.plan import task_of
from onnx_ci.onnx_model.saved_inputs import ExpectedInput, read_inputs, write_inputs
from onnx_ci.report import html, markdown
from onnx_ci.report.comparison import compare_runs
from onnx_ci.report.merge import merge
from onnx_ci.report.pull_request import COMMENT_LIMIT, Links, comment
from onnx_ci.results.files import as_text, read_json
from onnx_ci.results.journal import Journal, journal_of
from onnx_ci.results.records import Cell, CellEvidence

_TIMES = int(os.environ.get("FUZZ_TIMES", "1"))


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A kind of document."""

    right: Callable[[], bytes]
    """One that is right."""
    use: Callable[[bytes, Path], object]
    """Reads a document in an empty folder, and uses it. It may raise an ``OnnxCiError``."""
    cases: int
    """How many damaged ones are read in every run of the tests."""
    damage: Callable[[bytes, str], bytes] = damaged
    """Damages the right one, in the same way for each seed."""

    def check(self, name: str, folder: Path, times: int = _TIMES) -> None:
        """Read a right document in a folder, and damaged ones.

        Args:
            name: of this reader; a case that fails says it, and its number.
            times: how often the usual number of damaged ones is read. With ``FUZZ_TIMES=100`` it is a hundred.
        """
        right = self.right()
        (folder / "right").mkdir()
        self.use(right, folder / "right")
        for number in range(self.cases * times):
            content = self.damage(right, f"{name} {number}")
            place = folder / str(number)
            place.mkdir()
            try:
                self.use(content, place)
            except OnnxCiError as error:
                assert str(error).strip()
            except (Exception, SystemExit) as error:
                raise AssertionError(f"case {number} of {name}: {content!r}") from error


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
        return engine.run_cell(task_of(CELL, net, load_settings(Path(folder))))


# --- reports and journals


def _shown(path: Path) -> object:
    found = merge([(path.name, read_json(path))])
    assert len(comment(compare_runs(found, REPORT), Links()).encode()) <= COMMENT_LIMIT
    return markdown.render(found, lambda _: "command"), html.render(found, lambda _: "command"), as_text(found).encode()


def _report(content: bytes, folder: Path) -> object:
    (folder / "r.json").write_bytes(content)
    return _shown(folder / "r.json")


def _right_artifact() -> bytes:
    return zipped(report_json=as_text(REPORT))


def _artifact(content: bytes, folder: Path) -> object:
    (folder / "a.zip").write_bytes(content)
    return report_of(folder / "a.zip", "onnx-export")


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
[tool.onnx-ci.rules]
baseline-size = "note"
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
        assert content != PYTEST or str(folder / "src") in sys.path
    finally:
        sys.path[:] = before
    return None


# --- the cache

SCOPES = {"scopes": ["net"]}
"""What is kept for a recipe file; any data will do."""


def _cache_in(folder: Path) -> VerdictCache:
    """The cache of a project that is the same in any folder."""
    (folder / "pyproject.toml").write_text("[tool.onnx-ci]\ncache = 'kept'\n")
    (folder / "recipes.py").write_text("import helper\n")
    (folder / "helper.py").write_text("")
    cache = VerdictCache.open(load_settings(folder, environment={}))
    assert cache is not None
    return cache


@functools.cache
def _kept() -> dict[str, tuple[str, bytes]]:
    """The files of a cache with one verdict, by kind: their names and contents."""
    with tempfile.TemporaryDirectory() as folder:
        cache = _cache_in(Path(folder))
        assert cache.recipes(CELL.source) is None
        assert isinstance(cache.verdict(CELL), str)
        cache.keep_recipes(CELL.source, SCOPES, ReadSet())
        cache.keep(_evidence(), ReadSet(), "")
        cache.close()
        assert cache.notes == []
        files = list(Path(folder, "kept").glob("*.json"))
        return {
            "verdict" if VERDICT.fullmatch(path.name) else path.stem.partition("-")[0]: (path.name, path.read_bytes())
            for path in files
        }


def _right_kept(kind: str) -> bytes:
    _kept.cache_clear()  # other tests may have changed what verdicts depend on
    return _kept()[kind][1]


def _right_body(kind: str) -> bytes:
    """The data in a file of the cache, without its checksum."""
    return _right_kept(kind).partition(b"\n")[2]


def _answers(kind: str, content: bytes, folder: Path) -> tuple[object, CellEvidence | str]:
    """What a cache says of which one file is damaged. It keeps new verdicts all the same."""
    cache = _cache_in(folder)
    (folder / "kept").mkdir()
    for each, (name, right) in _kept().items():
        (folder / "kept" / name).write_bytes(content if each == kind else right)
    answers = cache.recipes(CELL.source), cache.verdict(CELL)
    cache.keep(_evidence(), ReadSet(), "")
    cache.close()
    assert cache.notes == []
    name, right = _kept()["verdict"]
    assert _without_time((folder / "kept" / name).read_bytes()) == _without_time(right)
    return answers


def _without_time(content: bytes) -> dict[str, object]:
    """The data of a verdict without the moment when it was found out."""
    return {key: value for key, value in json.loads(content.partition(b"\n")[2]).items() if key != "judged"}


def _cached(kind: str, content: bytes, folder: Path) -> object:
    """Damage costs an answer at most."""
    recipes, verdict = _answers(kind, content, folder)
    assert recipes in (None, SCOPES)
    assert isinstance(verdict, str) or dataclasses.replace(verdict, cached=False) == _as_kept()
    if content == _kept()[kind][1]:
        assert not isinstance(verdict, str), verdict
        assert recipes == SCOPES
    return None


def _cached_by_a_hand(kind: str, body: bytes, folder: Path) -> object:
    """The file was changed by somebody who also corrected its checksum, so other answers are right as well."""
    checksum = hashlib.sha256(body).hexdigest().encode()
    recipes, verdict = _answers(kind, checksum + b"\n" + body, folder)
    if body == _kept()[kind][1].partition(b"\n")[2]:
        assert not isinstance(verdict, str), verdict
        assert recipes == SCOPES
    return None


@functools.cache
def _as_kept() -> CellEvidence:
    return CellEvidence.from_json(dataclasses.replace(_evidence(), artifact=None).as_json())


def _readers_of_cache() -> dict[str, Reader]:
    cases = {"verdict": 3, "recipes": 2, "snapshot": 2, "memory": 2}  # each case looks at what is installed
    damaged = {
        f"cache: {kind}": Reader(right=functools.partial(_right_kept, kind), use=functools.partial(_cached, kind), cases=number)
        for kind, number in cases.items()
    }
    by_hand = {
        f"cache: {kind} with its checksum": Reader(
            right=functools.partial(_right_body, kind), use=functools.partial(_cached_by_a_hand, kind), cases=number
        )
        for kind, number in cases.items()
    }
    return {**damaged, **by_hand}


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


_MODEL = """
<ir_version: 8, opset_import: ["": 17, "own": 1], producer_name: "by hand", metadata_props: ["key": "value"]>
g (float[batch, 3] x) => (float[batch, 3] y, float[2] z)
<float[4, 3] w = ["location": "w.data", "offset": "0", "length": "48"], float[4] b = {0, 0, 0, 0},
 float[4, 3] v = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, int64[1] axes = {1}, int64[1] shape = {2}, float[batch, 4] h>
{
    h = Gemm <transB = 1, alpha = 1.5> (x, w, b)
    d = own.twice (h)
    g = MatMul (d, v)
    two = Constant <value = float {2}> ()
    p = Pow (g, two)
    s = ReduceMean <axes = [0, 1], keepdims = 0> (p)
    zero = Constant <value_floats = [0.0]> ()
    c = Greater (s, zero)
    only = Squeeze (c)
    i = If (only) <
        then_branch = then () => (float[1] t) { t = Constant <value = float[1] {1}> () },
        else_branch = other () => (float[1] f) { f = Constant <value_floats = [2.0]> () }
    >
    y = Add (p, i)
    z = ConstantOfShape <value = float[1] {0}> (shape)
}
<domain: "own", opset_import: ["": 17]> twice (a) => (o) { o = Add (a, a) }
"""


def _right_model() -> bytes:
    """A file with every kind of message that files usually have."""
    return onnx.parser.parse_model(_MODEL).SerializeToString()


def _model_command(*arguments: str) -> Callable[[bytes, Path], object]:
    """A command on files like the right model, beside which are a right one and the data of both."""

    def use(content: bytes, folder: Path) -> object:
        numpy.linspace(-1, 1, 12, dtype=numpy.float32).tofile(folder / "w.data")
        (folder / "right.onnx").write_bytes(_right_model())
        return _command(*(each.format(right=folder / "right.onnx") for each in arguments))(content, folder)

    return use


def _command(*arguments: str) -> Callable[[bytes, Path], object]:
    def use(content: bytes, folder: Path) -> object:
        path = folder / "m.onnx"
        path.write_bytes(content)
        done = click.testing.CliRunner().invoke(main, [*arguments, str(path)], catch_exceptions=False)
        assert done.exit_code in ((0,) if content in (_right_file(), _right_model()) else (0, 1, 2)), done.output
        assert "Traceback" not in done.output, done.output
        assert "\x1b" not in done.output
        assert not any(line.startswith("::") for line in done.output.splitlines())
        return done.output

    return use


def _verified(content: bytes, folder: Path) -> object:
    path = folder / "m.onnx"
    path.write_bytes(content)
    result = onnx_ci.verify(path, net, opset=13)
    assert not {each.rule for each in result.findings} & {"internal-error", "crash"}, result
    assert content != _right_file() or result.status is onnx_ci.Status.PASSED, result
    return result.status


DOCUMENTS = {
    "report": Reader(right=lambda: as_text(REPORT).encode(), use=_report, cases=350),
    "artifact": Reader(right=_right_artifact, use=_artifact, cases=300),
    "journal": Reader(right=_right_journal, use=_journal, cases=350),
    "baseline": Reader(right=_right_baseline, use=_baseline, cases=400),
    "settings": Reader(right=lambda: SETTINGS, use=_settings, cases=300),
    "pytest's configuration": Reader(right=lambda: PYTEST, use=_pytest_configuration, cases=100),
    "npz": Reader(right=_right_npz, use=_npz, cases=100),
    "tensor": Reader(right=_right_tensor, use=_tensor, cases=100),
}
"""What is read without a process."""
READ_WITH_PROCESSES = {
    **_readers_of_cache(),
    "onnx-ci verify": Reader(right=_right_file, use=_command("verify"), cases=30),
    "onnx-ci show": Reader(right=_right_file, use=_command("show"), cases=30),
    **{
        f"onnx-ci {' '.join(arguments)} FILE": Reader(
            right=_right_model, use=_model_command(*arguments), cases=number, damage=damaged_model
        )
        for arguments, number in (
            (("verify",), 30),
            (("show",), 30),
            (("show", "{right}"), 20),
            (("ops",), 50),
            (("compare", "{right}"), 10),
        )
    },
    "onnx_ci.verify, by fields": Reader(right=_right_file, use=_verified, cases=12, damage=damaged_model),
    "onnx_ci.verify": Reader(right=_right_file, use=_verified, cases=12),
}
"""What is read by processes, or depends on what they say is installed."""
