"""The store of verdicts: what comes back, what never does, and what becomes of damaged, foreign and surplus files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import multiprocessing
import os
import random
import sys
import time
from pathlib import Path

import pytest
from toolbox.projects import ROOT

from onnx_ci.cache.store import VerdictCache
from onnx_ci.results.records import Cell, CellEvidence, Finding, OutputDrift, Severity, SkipCause
from onnx_ci.results.rules import RULES

PARTS = {"code": "c0de", "weights": "1234", "opset": "13"}


def cell(opset: int = 13, recipe: str = "net") -> Cell:
    return Cell(source="onnx_recipes.py", recipe=recipe, exporter="torchscript", opset=opset, device="cpu")


def fault(rule: str = "numeric-drift", severity: Severity = Severity.ERROR) -> Finding:
    return Finding(rule=rule, severity=severity, message="far “off”", remedy="fix it", drift=40.5, details={"index": [1]})


def result(of: Cell | None = None, **fields: object) -> CellEvidence:
    drift = OutputDrift(
        name="y", probe="batch=5", dtype="float32", shape=(2, 3), drift=math.inf, limit=32.0, error=math.nan, noise=1e-7,
        max_abs=0.1, max_rel=1 / 3, index=(1, 2), reference="float64",
    )  # fmt: skip
    values = {
        "findings": (fault(),),
        "outputs": (drift,),
        "log": "said\nmuch",
        "timings": {"export": 0.25},
        "observability": 0.75,
    }
    return CellEvidence(cell=of or cell(), **{**values, **fields})


def known(made: CellEvidence | None) -> str:
    """A result as text, because NaN equals nothing."""
    return repr(made)


@pytest.fixture
def cache(tmp_path: Path) -> VerdictCache:
    return VerdictCache(tmp_path / "cache")


@pytest.fixture
def every_put_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every put looks through the folder, where otherwise chance decides which do."""
    monkeypatch.setattr("onnx_ci.cache.store.RECOUNT_EVERY", 1)


@pytest.mark.parametrize("severities", [(), (Severity.NOTE,), (Severity.ERROR,), (Severity.NOTE, Severity.ERROR)])
def test_a_finished_cell_comes_back_as_it_was_and_marked_as_cached(cache, severities):
    stored = result(
        findings=tuple(fault(severity=severity) for severity in severities), artifact="out/net.onnx", reason="for a reason"
    )
    assert cache.get(cell(), PARTS) is None
    assert cache.put(cell(), PARTS, stored) is None
    assert known(cache.get(cell(), PARTS)) == known(dataclasses.replace(stored, artifact=None, cached=True))


def test_it_comes_back_for_that_cell_and_those_parts_only(cache):
    cache.put(cell(), PARTS, result())
    assert cache.get(cell(14), PARTS) is None
    assert cache.get(cell(recipe="other"), PARTS) is None
    assert cache.get(cell(), {**PARTS, "code": "c0df"}) is None
    assert cache.get(cell(), {**PARTS, "more": ""}) is None
    assert cache.get(cell(), {"code": "c0de", "weights": "1234"}) is None
    assert cache.get(cell(), dict(reversed(PARTS.items()))) is not None


@pytest.mark.parametrize("change", ["edited", "removed", "another root", "created"])
def test_it_comes_back_as_long_as_opened_files_stay_the_same(tmp_path, change):
    root = tmp_path / "project"
    (root / "data").mkdir(parents=True)
    (root / "data" / "scale.json").write_text("2")
    digest = hashlib.sha256(b"2").hexdigest()
    cache = VerdictCache(tmp_path / "cache", root=root)
    cache.put(cell(), PARTS, result(), {"data/scale.json": digest, "data/optional.json": "absent"})
    assert cache.get(cell(), PARTS) is not None
    if change == "edited":
        (root / "data" / "scale.json").write_text("3")
    elif change == "removed":
        (root / "data" / "scale.json").unlink()
    elif change == "created":
        (root / "data" / "optional.json").touch()
    else:
        cache = VerdictCache(cache.folder, root=tmp_path)
    assert cache.get(cell(), PARTS) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"skip_cause": SkipCause.RECIPE},
        {"skip_cause": SkipCause.MISSING_DEVICE},
        *({"findings": (fault(rule.id),)} for rule in RULES.values() if rule.leaves_unjudged),
    ],
)
def test_an_unfinished_cell_is_not_stored(cache, fields):
    assert cache.put(cell(), PARTS, result(**fields)) is None
    assert cache.entries() == []


@pytest.mark.parametrize("rule", ["crash", "timeout", "out-of-memory", "internal-error"])
def test_what_happened_by_chance_is_not_stored(cache, rule):
    found = Finding(rule=rule, severity=Severity.ERROR, message="", remedy="")
    cache.put(cell(), PARTS, result(findings=(found,)))
    assert cache.entries() == []


def test_a_result_of_another_cell_is_not_stored(cache):
    cache.put(cell(14), PARTS, result())
    assert cache.entries() == []


def test_an_entry_is_readable_and_says_what_it_depends_on(cache):
    cache.put(cell(), PARTS, result())
    (entry,) = cache.entries()
    text = entry.path.read_text(encoding="utf-8")
    content = json.loads(text)
    assert list(content) == ["schema", "created", "cell", "parts", "opened", "result", "sha256"]
    assert content["cell"] == cell().id
    assert content["parts"] == PARTS
    assert [each["rule"] for each in content["result"]["findings"]] == ["numeric-drift"]
    assert '\n  "cell": ' in text
    assert cache.size() == entry.bytes == len(text.encode())


def test_the_folder_is_left_out_of_backups_and_commits(cache):
    cache.put(cell(), PARTS, result())
    assert (cache.folder / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    assert (cache.folder / ".gitignore").read_text() == "*\n"


def test_a_folder_that_somebody_uses_is_not_hidden_from_git_and_keeps_its_files(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    cache = VerdictCache(tmp_path)
    cache.put(cell(), PARTS, result())
    assert cache.get(cell(), PARTS) is not None
    assert cache.clear() == 1
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.slow
def test_ten_thousand_corruptions_give_no_crash_and_no_other_verdict(cache):
    cells = [cell(opset) for opset in (11, 12, 13)]
    kinds = [(), (fault(),), (fault(severity=Severity.NOTE),)]
    stored = {each: result(each, findings=findings) for each, findings in zip(cells, kinds, strict=True)}
    for each in cells:
        cache.put(each, PARTS, stored[each])
    right = {each: known(cache.get(each, PARTS)) for each in cells}
    files = {each: cache.path(each, PARTS) for each in cells}
    originals = {each: path.read_bytes() for each, path in files.items()}
    draw = random.Random(0)
    found = lost = 0
    for _ in range(10_000):
        victim, other = draw.sample(cells, 2)
        data = bytearray(originals[victim])
        for _ in range(draw.choice([1, 1, 1, 2, 8])):
            at = draw.randrange(len(data)) if data else 0
            kind = draw.randrange(8)
            if kind == 0 and data:
                data[at] ^= 1 << draw.randrange(8)
            elif kind == 1 and data:
                data[at] = draw.randrange(256)
            elif kind == 2:
                del data[at:]
            elif kind == 3:
                del data[at : at + draw.randrange(1, 64)]
            elif kind == 4:
                data[at:at] = draw.randbytes(draw.randrange(1, 64))
            elif kind == 5:
                data[at:at] = data[draw.randrange(len(data) + 1) :]
            elif kind == 6:
                data[:] = originals[other]
            elif data:
                data[at:at] = draw.choice([b"9", b"0", b" ", b"[" * 5000, b"{", b'"', b",", b"\x00", b"NaN", b"1" * 5000])
        files[victim].write_bytes(data)
        got = cache.get(victim, PARTS)
        assert got is None or known(got) == right[victim]
        found, lost = found + (got is not None), lost + (got is None)
        if got is None and draw.random() < 0.01:
            cache.put(victim, PARTS, stored[victim])
            assert known(cache.get(victim, PARTS)) == right[victim]
    assert lost > 9000  # a change among blanks alone leaves the content as it was
    assert found > 0


def test_an_entry_whose_checksum_holds_is_still_only_believed_for_what_it_names(cache):
    cache.put(cell(11), PARTS, result(cell(11), findings=()))
    cache.put(cell(12), PARTS, result(cell(12)))
    one, other = cache.path(cell(11), PARTS), cache.path(cell(12), PARTS)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    assert cache.get(cell(11), PARTS) is None
    assert cache.get(cell(12), PARTS) is None


@pytest.mark.parametrize("name", ["folder", "pipe", "link to itself", "pickle", "empty", "huge"])
def test_something_else_under_an_entrys_name_is_ignored(cache, name, monkeypatch):
    cache.put(cell(), PARTS, result())
    path = cache.path(cell(), PARTS)
    content = path.read_bytes()
    path.unlink()
    if name == "folder":
        path.mkdir()
    elif name == "pipe":
        os.mkfifo(path)
    elif name == "link to itself":
        path.symlink_to(path)
    elif name == "huge":
        monkeypatch.setattr("onnx_ci.cache.store.LARGEST_ENTRY", len(content) - 1)
        path.write_bytes(content)
    else:
        path.write_bytes(b"" if name == "empty" else b"cposix\nsystem\n(S'false'\ntR.")
    assert cache.get(cell(), PARTS) is None
    said = cache.put(cell(), PARTS, result())
    assert (said is not None) == (name == "folder")
    monkeypatch.undo()
    assert (cache.get(cell(), PARTS) is None) == (name == "folder")


def test_a_verdict_that_was_never_storable_is_not_believed(cache):
    """An entry with a fitting checksum that some other program wrote."""
    cache.put(cell(), PARTS, result())
    path = cache.path(cell(), PARTS)
    content = json.loads(path.read_text())
    del content["sha256"]
    from onnx_ci.cache.store import checksum

    for change in (
        {"skip_cause": "recipe"},
        {"skip_cause": "fine"},
        {"status": "passed"},
        {"findings": 3},
        {"surplus": 1},
        {"opset": 14},
    ):
        changed = {**content, "result": {**content["result"], **change}}
        path.write_text(json.dumps({**changed, "sha256": checksum(changed)}))
        assert cache.get(cell(), PARTS) is None
    changed = {**content, "schema": 0}
    path.write_text(json.dumps({**changed, "sha256": checksum(changed)}))
    assert cache.get(cell(), PARTS) is None


def test_the_oldest_go_first_when_the_folder_is_full(tmp_path, every_put_counts):
    cells = {number: cell(recipe=f"net{number}") for number in range(10, 21)}
    measure = VerdictCache(tmp_path / "measure")
    measure.put(cells[10], PARTS, result(cells[10]))
    each = measure.size()
    cache = VerdictCache(tmp_path / "cache", limit_bytes=10 * each)
    now = time.time()
    for number in range(10, 20):
        cache.put(cells[number], PARTS, result(cells[number]))
        os.utime(cache.path(cells[number], PARTS), (now, now - 1000 + number))
    assert len(cache.entries()) == 10
    assert cache.get(cells[10], PARTS) is not None  # used just now, so the second is the oldest
    cache.put(cells[20], PARTS, result(cells[20]))
    left = [number for number in cells if cache.get(cells[number], PARTS) is not None]
    assert left == [10, 13, 14, 15, 16, 17, 18, 19, 20]
    assert cache.size() == 9 * each


def test_what_another_run_wrote_counts_against_the_limit(tmp_path, every_put_counts):
    for opset in range(10, 30):
        VerdictCache(tmp_path / "cache").put(cell(opset), PARTS, result(cell(opset)))
    small = VerdictCache(tmp_path / "cache", limit_bytes=5000)
    small.put(cell(30), PARTS, result(cell(30)))
    assert small.size() <= 4500
    assert small.get(cell(30), PARTS) is not None


def test_of_many_processes_that_put_once_few_look_through_the_folder(tmp_path, monkeypatch):
    scans = []
    monkeypatch.setattr(VerdictCache, "_remove_abandoned", lambda self: scans.append(self))
    for _ in range(640):
        VerdictCache(tmp_path / "cache").put(cell(), PARTS, result())
    assert 0 < len(scans) < 40  # ten are expected; none or forty come once in twenty thousand times, or never


def test_one_that_puts_often_looks_each_time_the_count_is_full(tmp_path, monkeypatch):
    scans = []
    monkeypatch.setattr(VerdictCache, "_remove_abandoned", lambda self: scans.append(self))
    cache = VerdictCache(tmp_path / "cache")
    for _ in range(128):
        cache.put(cell(), PARTS, result())
    assert len(scans) == 2


def test_temporary_files_of_runs_that_died_are_removed_and_fresh_ones_are_not(tmp_path, every_put_counts):
    folder = tmp_path / "cache"
    folder.mkdir()
    for name, age in ((".onnx-ci-00aa.tmp", 7200), (".onnx-ci-00bb.tmp", 10), ("other.tmp", 7200)):
        (folder / name).write_bytes(b"x")
        os.utime(folder / name, (time.time() - age,) * 2)
    VerdictCache(folder).put(cell(), PARTS, result())
    assert {path.name for path in folder.iterdir() if path.suffix == ".tmp"} == {".onnx-ci-00bb.tmp", "other.tmp"}


def test_a_place_that_cannot_be_written_is_told_once_and_harms_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    cache = VerdictCache(tmp_path / "file" / "cache")
    said = cache.put(cell(), PARTS, result())
    assert said is not None
    assert str(cache.folder) in said
    assert cache.put(cell(), PARTS, result()) is None
    assert cache.get(cell(), PARTS) is None
    assert (cache.entries(), cache.size(), cache.clear()) == ([], 0, 0)


def test_a_disk_that_fills_up_leaves_nothing_half_written(cache, monkeypatch):
    cache.put(cell(), PARTS, result(findings=()))

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert "No space left on device" in (cache.put(cell(), PARTS, result()) or "")
    monkeypatch.undo()
    got = cache.get(cell(), PARTS)
    assert got is not None
    assert got.findings == ()
    assert not [path for path in cache.folder.iterdir() if path.suffix == ".tmp"]


def test_a_result_that_json_cannot_hold_is_not_stored(cache):
    found = Finding(rule="numeric-drift", severity=Severity.ERROR, message="", remedy="", details={"value": object()})
    assert "JSON" in (cache.put(cell(), PARTS, result(findings=(found,))) or "")
    assert cache.entries() == []


def _work(folder: Path, seed: int, failures: multiprocessing.Queue[str]) -> None:
    draw = random.Random(seed)
    cache = VerdictCache(folder, limit_bytes=12_000)
    for _ in range(150):
        each = cell(draw.randrange(9, 15))
        if draw.random() < 0.4:
            said = cache.put(each, PARTS, result(each))
            if said is not None:
                failures.put(said)
        else:
            got = cache.get(each, PARTS)
            if got is not None and known(got) != known(result(each, cached=True)):
                failures.put(known(got))
        if draw.random() < 0.02:
            cache.clear()


def test_eight_processes_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])  # a new process finds this module there, and the package before
    context = multiprocessing.get_context("spawn")
    failures: multiprocessing.Queue[str] = context.Queue()
    workers = [context.Process(target=_work, args=(tmp_path / "cache", seed, failures)) for seed in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 8
    assert failures.empty()
    cache = VerdictCache(tmp_path / "cache")
    assert not [path for path in cache.folder.iterdir() if path.suffix == ".tmp"]
    for entry in cache.entries():
        assert json.loads(entry.path.read_text())["schema"] == 1
