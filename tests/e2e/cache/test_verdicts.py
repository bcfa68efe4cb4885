"""The cache as a whole: what must run again after a change, what must not, and what each answer says."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from e2e.cache.conftest import cell
from toolbox.records import drift

from onnx_ci.baseline.file import HEAD
from onnx_ci.cache.folder import VERDICT, Folder, LastRun
from onnx_ci.cache.packages import Packages
from onnx_ci.cache.verdicts import NOT_RUN_BEFORE, VerdictCache
from onnx_ci.cache.watch import THERE, ReadSet, Search, entries_of
from onnx_ci.config.settings import load_settings
from onnx_ci.results.records import Cell, CellEvidence, Finding, Severity, SkipCause
from onnx_ci.results.rules import RULES, finding

pytestmark = pytest.mark.usefixtures("nothing_installed")


def test_a_verdict_comes_back_as_it_was_and_marked_as_cached(tiny):
    evidence = CellEvidence(cell=cell(), outputs=(drift(),), log="said", timings={"export": 0.5})
    cache = tiny.open()
    assert cache.verdict(cell()) == NOT_RUN_BEFORE
    cache.keep(evidence, tiny.seen(), "m")
    cache.close()
    again = tiny.open()
    assert again.verdict(cell()) == dataclasses.replace(evidence, cached=True)
    assert again.verdict(cell(14)) == again.verdict(cell(recipe="other")) == NOT_RUN_BEFORE


def test_what_a_recipe_file_declares_comes_back_until_it_can_be_other(tiny):
    cache = tiny.open()
    assert cache.recipes("onnx_recipes.py") is None
    cache.keep_recipes("onnx_recipes.py", {"names": ["net"], "depth": [[1]]}, tiny.seen())
    cache.close()
    tiny.write("unrelated.py", "X = 1\n")
    assert tiny.open().recipes("onnx_recipes.py") == {"names": ["net"], "depth": [[1]]}
    assert tiny.open().recipes("model.py") is None
    tiny.write("model.py", "SCALE = 2\n")
    assert tiny.open().recipes("onnx_recipes.py") is None


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("onnx_recipes.py", "from model import net\nX = 1\n", "onnx_recipes.py changed"),
        ("model.py", "SCALE = 2\n", "model.py changed"),
        ("lazy.py", "X = 1\n", "lazy.py changed"),
        ("conf/net.yaml", "scale: 2\n", "conf/net.yaml changed"),
        ("pyproject.toml", "[tool.other]\n", "pyproject.toml changed"),
        ("model/__init__.py", "", "model is new"),
        ("model.cpython-311-x86_64-linux-gnu.so", "", "model.cpython-311-x86_64-linux-gnu.so is new"),
        ("local_settings.py", "", "local_settings.py is new"),
    ],
)
def test_after_this_change_it_runs_again(tiny, name, text, reason):
    tiny.write(".gitignore", "*.so\nlocal_settings.py\n.onnx-ci-cache/\n")
    seen = functools.partial(tiny.seen, modules=["local_settings"])
    assert tiny.run(seen()) == [NOT_RUN_BEFORE]
    assert tiny.run(seen()) == [""]
    tiny.write(name, text)
    assert tiny.run(seen()) == [reason]
    assert tiny.run(seen()) == [""]


@pytest.mark.parametrize("name", ["conftest.py", "tests/conftest.py", "data/new.json"])
def test_a_tracked_file_that_counts_for_all_runs_all(tiny, name):
    tiny.run()
    tiny.write(name)
    assert tiny.asked() == ""  # it is not tracked, and nobody has looked at it
    tiny.git("add", "--all")
    assert tiny.asked() == f"{name} is new"


@pytest.mark.parametrize("name", ["model.py", "lazy.py", "conf/net.yaml", "onnx_recipes.py"])
def test_after_a_file_is_gone_it_runs_again(tiny, name):
    tiny.run()
    (tiny.root / name).unlink()
    assert f"{name} is gone" in tiny.asked()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("unrelated.py", "X = 1\n"),
        ("json.py", "nobody asked for it"),
        ("new_package/__init__.py", ""),
        ("README.md", "other"),
        ("docs/deep/page.html", ""),
        ("run.txt", "the output of this run"),
        ("notes.bin", "ignored by git"),
        ("__pycache__/model.cpython-311.pyc", ""),
        ("onnx-baselines/net.toml", "{}"),
    ],
)
def test_after_this_change_it_does_not_run_again(tiny, name, text):
    tiny.run(tiny.seen(listed={str(tiny.root / "conf"): ("net.yaml\0009",)}))
    tiny.write(name, text)
    assert tiny.asked() == ""


def test_baselines_do_not_count_and_their_neighbours_do(tiny):
    baseline = tiny.write("models/net.toml", f"{HEAD}\n")
    other = tiny.write("models/sizes.toml", "wide = 1\n")
    tiny.git("add", "--all")
    tiny.run(baseline_folder="models")
    baseline.write_text(f"{HEAD}\nschema = 1\n")
    assert tiny.asked(baseline_folder="models") == ""
    other.write_text("wide = 2\n")
    assert tiny.asked(baseline_folder="models") == "models/sizes.toml changed"


def test_a_commit_of_the_same_content_is_no_change(tiny):
    tiny.write("data.json", "{}")
    tiny.git("add", "--all")
    tiny.run()
    tiny.git("commit", "-qm", "b")
    tiny.git("gc", "-q")
    assert tiny.asked() == ""


def test_touched_files_are_no_change(tiny, settled):
    tiny.run()
    for path in [*tiny.root.rglob("*.py"), tiny.root / "conf/net.yaml"]:
        os.utime(path, (1, 1))
    assert tiny.asked() == ""


def test_a_file_of_the_same_size_and_time_is_a_change(tiny, settled):
    path = tiny.root / "conf/net.yaml"
    os.utime(path, (1, 1))
    tiny.run()
    path.write_text("scale: 3\n", encoding="utf-8")
    os.utime(path, (1, 1))
    assert tiny.asked() == "conf/net.yaml changed"


def test_another_clone_in_another_folder_hits(tiny, tmp_path, monkeypatch):
    tiny.run()
    clone = tiny.cloned(tmp_path / "deep" / "clone")
    monkeypatch.chdir(clone.root)
    assert clone.asked() == ""
    clone.write("model.py", "SCALE = 2\n")
    assert clone.asked() == "model.py changed"


def test_a_restored_archive_hits(tiny, tmp_path, monkeypatch):
    tiny.run()
    copy = tmp_path / "copy"
    shutil.copytree(tiny.root, copy, copy_function=shutil.copyfile)
    monkeypatch.chdir(copy)
    assert type(tiny)(copy).asked() == ""


@pytest.mark.parametrize("has_git", [True, False])
def test_without_a_repository_files_count_that_were_seen(tiny, monkeypatch, has_git):
    shutil.rmtree(tiny.root / ".git")
    if not has_git:
        monkeypatch.setenv("PATH", "")
    tiny.run()
    tiny.write("conf/net.yaml", "scale: 2\n")
    assert tiny.asked() == ""
    tiny.write("model.py", "SCALE = 2\n")
    assert tiny.asked() == "model.py changed"


def test_the_variables_of_a_session_do_not_count(tiny, monkeypatch):
    tiny.run()
    for name in ("HOME", "USER", "TERM", "COLUMNS", "CI_JOB_ID", "PYTEST_CURRENT_TEST", "GIT_INDEX_FILE", "BUILD_NUMBER"):
        monkeypatch.setenv(name, "7")
    assert tiny.asked() == ""


@pytest.mark.parametrize("name", ["RUN_ID", "AWS_SESSION_TOKEN", "KUBERNETES_PORT_443_TCP"])
def test_a_variable_of_a_job_counts_if_the_code_names_it(tiny, monkeypatch, name):
    tiny.run()
    monkeypatch.setenv(name, "7")
    assert tiny.asked() == ""
    tiny.write("model.py", f"import os\nNAME = os.environ.get({name!r})\n")
    tiny.run()
    assert tiny.asked() == ""
    monkeypatch.setenv(name, "8")
    assert tiny.asked() == f"{name} changed"
    monkeypatch.delenv(name)
    assert tiny.asked() == f"variable {name} is gone"


@pytest.mark.parametrize("name", ["FOO", "LC_ALL", "CI"])
def test_every_other_variable_counts_and_its_value_is_never_shown(tiny, monkeypatch, name):
    monkeypatch.delenv(name, raising=False)
    tiny.run()
    monkeypatch.setenv(name, "s3cret-1")
    assert tiny.run() == [f"new variable {name}"]
    monkeypatch.setenv(name, "s3cret-2")
    assert tiny.run() == [f"{name} changed"]
    assert not any(b"s3cret" in path.read_bytes() for path in (tiny.root / ".onnx-ci-cache").iterdir())
    monkeypatch.delenv(name)
    assert tiny.asked() == ""  # the verdict of the first run still holds


def test_a_setting_names_files_that_do_not_count(tiny):
    flags = {"cache_ignore": "conf/**,*.txt"}
    tiny.run(**flags)
    tiny.write("conf/net.yaml", "scale: 2\n")
    assert tiny.asked(**flags) == ""
    tiny.write("README.md", "counts now")
    assert tiny.asked(**flags) == "README.md changed"


def test_an_ignored_file_that_was_opened_counts_all_the_same(tiny):
    tiny.run(tiny.seen("README.md"))
    assert tiny.asked() == ""
    tiny.write("README.md", "other")
    assert tiny.asked() == "README.md changed"


def test_settings_count_where_the_evidence_depends_on_them(tiny):
    tiny.run()
    assert tiny.asked(max_drift="32") == "max-drift 16 → 32"
    assert tiny.asked(weights="net=DEFAULT") == "weights none → DEFAULT"
    for flags in (
        {"weights": "other=DEFAULT"},
        {"strict": "true"},
        {"allow": "numeric-drift"},
        {"timeout": "5"},
        {"jobs": "1"},
    ):
        assert tiny.asked(**flags) == "", flags


def test_a_setting_names_variables_that_do_not_count(tiny, monkeypatch):
    tiny.run(cache_ignore_variables="MY_*,OTHER")
    for name in ("MY_FOO", "OTHER"):
        monkeypatch.setenv(name, "1")
    assert tiny.asked(cache_ignore_variables="MY_*,OTHER") == ""
    assert tiny.asked(cache_ignore_variables="MY_*") == "new variable OTHER"


@pytest.mark.parametrize("flags", [{"cache": "off"}, {"artifacts": "out"}, {"save_inputs": "out"}, {"isolation": "none"}])
def test_without_a_cache_every_cell_runs(tiny, flags):
    settings = load_settings(tiny.root, flags={"cache": ".onnx-ci-cache", "isolation": "fork", **flags})
    assert VerdictCache.open(settings) is None


def test_what_onnx_ci_writes_does_not_count(tiny):
    flags = {"report": "out.json", "junit": "sub/junit.xml", "html": "a.html"}
    tiny.run(**flags)
    for name in ("out.json", "sub/junit.xml", "a.html"):
        tiny.write(name, "x")
    tiny.git("add", "--all")
    assert tiny.asked(**flags) == ""


def test_a_module_that_was_missing_and_appears_counts(tiny):
    package = tiny.write("extra/__init__.py").parent
    search = Search(folders=(str(package),), names=("__init__", "speedup"))
    tiny.run(dataclasses.replace(tiny.seen(), searches=(search,)))
    tiny.write("extra/other.py")
    assert tiny.asked() == ""
    tiny.write("extra/speedup.py")
    assert tiny.asked() == "extra/speedup.py is new"


def test_what_lies_outside_counts_as_content_absence_or_listing(tiny, tmp_path):
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    weights, absent = outside / "w.bin", outside / "later.bin"
    weights.write_bytes(b"1")
    seen = tiny.seen(weights, absent, listed={str(outside): ("w.bin\0001",)})
    tiny.run(seen)
    assert tiny.asked() == ""
    os.utime(weights, (1, 1))
    assert tiny.asked() == ""
    weights.write_bytes(b"2")
    assert tiny.asked() == "../elsewhere/w.bin changed"
    weights.write_bytes(b"1")
    (outside / "other.bin").touch()
    assert tiny.asked() == "the files in ../elsewhere changed"
    (outside / "other.bin").unlink()
    absent.touch()
    assert "../elsewhere/later.bin is new" in tiny.asked()
    absent.unlink()
    weights.unlink()
    assert "../elsewhere/w.bin is gone" in tiny.asked()


def test_what_was_looked_for_above_another_clone_counts_there(tiny, tmp_path, monkeypatch):
    folder = tmp_path.parent
    tiny.run(tiny.seen(folder / ".env", folder, "/"))
    clone = tiny.cloned(tmp_path / "clone")
    monkeypatch.chdir(clone.root)
    assert clone.asked() == ""
    (folder / ".env").touch()
    try:
        assert clone.asked() == "../../.env is new"
    finally:
        (folder / ".env").unlink()


def test_what_a_recipe_makes_because_it_is_missing_counts_as_missing(tiny, tmp_path):
    derived = tmp_path / "derived.bin"
    seen = tiny.seen(derived)
    derived.write_bytes(b"1")
    tiny.run(seen)
    assert tiny.run(tiny.seen(derived)) == ["../derived.bin is new"]
    assert tiny.asked() == ""


@pytest.mark.parametrize("flag", ["weights", "inputs"])
def test_files_that_settings_name_count(tiny, tmp_path, flag):
    file = tmp_path / "w.npz"
    file.write_bytes(b"1")
    flags = {flag: f"net={file}" if flag == "weights" else str(tmp_path / "*.npz")}
    tiny.run(**flags)
    assert tiny.asked(**flags) == ""
    file.write_bytes(b"2")
    assert tiny.asked(**flags) == "../w.npz changed"


def test_links_count_by_their_text_and_by_what_they_lead_to(tiny, tmp_path):
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "a.txt").write_text("1")
    (tiny.root / "file").symlink_to(outside / "a.txt")
    (tiny.root / "folder").symlink_to(outside)
    (tiny.root / "broken").symlink_to("nowhere")
    tiny.git("add", "--all")
    tiny.run(tiny.seen("folder"))
    assert tiny.asked() == ""
    (outside / "a.txt").write_text("2")
    assert tiny.asked() == "file changed"
    (outside / "a.txt").write_text("1")
    for name in ("broken", "folder"):
        (tiny.root / name).unlink()
        (tiny.root / name).symlink_to(tiny.root)
    assert tiny.asked() == "broken changed and folder changed"


def test_the_executable_bit_counts(tiny):
    script = tiny.write("run.sh", "")
    tiny.git("add", "--all")
    tiny.run()
    script.chmod(0o755)
    assert tiny.asked() == "run.sh changed"


def test_submodules_count(tiny, tmp_path):
    inner = type(tiny)(tmp_path / "inner")
    inner.write("a.yaml", "1")
    inner.git("init", "-q")
    inner.git("add", "--all")
    inner.git("commit", "-qm", "a")
    tiny.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner.root), "vendor")
    tiny.run()
    tiny.write("vendor/a.yaml", "2")
    assert tiny.asked() == "vendor/a.yaml changed"


def test_the_index_does_not_hide_an_edit(tiny):
    tiny.git("update-index", "--assume-unchanged", "conf/net.yaml")
    tiny.run()
    tiny.write("conf/net.yaml", "scale: 2\n")
    assert tiny.asked() == "conf/net.yaml changed"


def test_verdicts_of_branches_are_kept_side_by_side(tiny):
    tiny.run()
    tiny.write("model.py", "SCALE = 2\n")
    assert tiny.run() == ["model.py changed"]
    tiny.write("model.py", "SCALE = 3\n")
    assert tiny.run() == ["model.py changed"]
    for scale in (2, 3):
        tiny.write("model.py", f"SCALE = {scale}\n")
        assert tiny.run() == [""]


def test_another_python_and_another_folder_count(tiny, monkeypatch):
    tiny.run()
    monkeypatch.chdir(tiny.root / "conf")
    assert tiny.asked() == "the current directory: . → conf"
    monkeypatch.chdir(tiny.root)
    monkeypatch.setattr("platform.python_version", lambda: "3.99.0")
    assert tiny.asked().endswith("→ 3.99.0")


def test_versions_are_told(tiny, monkeypatch):
    tiny.run()
    monkeypatch.setattr(Packages, "digests", lambda _: {"torch": "2.15.0 abc"})
    assert tiny.asked() == "torch 2.13.0 → 2.15.0"
    monkeypatch.setattr(Packages, "digests", lambda _: {"torch": "2.13.0 abd"})
    assert tiny.asked() == "the files of torch changed"
    monkeypatch.setattr(Packages, "digests", lambda _: {})
    assert tiny.asked() == "torch 2.13.0 is no longer installed"


@pytest.mark.parametrize("fields", [{"skip_cause": SkipCause.RECIPE}, {"skip_cause": SkipCause.MISSING_DEVICE}])
def test_a_skipped_cell_is_not_kept(tiny, fields):
    keep(tiny, CellEvidence(cell=cell(), **fields))
    assert tiny.asked() == NOT_RUN_BEFORE


@pytest.mark.parametrize(
    "rule", ["crash", "timeout", "out-of-memory", *(rule.id for rule in RULES.values() if rule.leaves_unjudged)]
)
def test_what_may_be_the_machines_fault_is_not_kept(tiny, rule):
    keep(tiny, CellEvidence(cell=cell(), findings=(Finding(rule=rule, severity=Severity.ERROR, message="", remedy=""),)))
    assert tiny.asked() == NOT_RUN_BEFORE


def keep(tiny, evidence: CellEvidence, seen: ReadSet | None = None, model: str = "") -> list[str]:
    cache = tiny.open()
    cache.verdict(evidence.cell)
    cache.keep(evidence, seen or tiny.seen(), model)
    cache.close()
    return cache.notes


def test_what_comes_from_the_network_is_not_kept(tiny):
    notes = keep(tiny, CellEvidence(cell=cell()), tiny.seen(not_kept="it connects to huggingface.co"))
    assert notes == ["the verdicts of onnx_recipes.py are not kept: it connects to huggingface.co"]
    assert tiny.asked() == NOT_RUN_BEFORE


def test_a_recipe_that_is_another_one_in_each_process_is_not_kept(tiny):
    tiny.run(cells=[cell(), cell(recipe="other")], model="one")
    cache = tiny.open()
    assert not isinstance(cache.verdict(cell()), str)
    cache.keep(CellEvidence(cell=cell(14)), tiny.seen(), "two")
    cache.keep(CellEvidence(cell=cell(15)), tiny.seen(), "two")
    cache.close()
    assert cache.notes == [
        "the verdicts of onnx_recipes.py::net are not kept: its weights or arguments are others in each process"
    ]
    later = tiny.open()
    assert [isinstance(later.verdict(each), str) for each in (cell(), cell(14), cell(15), cell(recipe="other"))] == [
        True, True, True, False,
    ]  # fmt: skip


def test_an_edit_of_what_counts_for_all_during_the_run_keeps_nothing(tiny):
    cache = tiny.open()
    cache.verdict(cell())
    tiny.write("conf/net.yaml", "scale: 2\n")
    cache.keep(CellEvidence(cell=cell()), tiny.seen(), "")
    cache.close()
    assert cache.notes == ["verdicts are not kept: during the run, conf/net.yaml changed"]
    assert tiny.asked() == NOT_RUN_BEFORE


@pytest.mark.parametrize("name", ["model.py", "../w.bin"])
def test_a_file_that_changes_while_it_is_read_keeps_nothing(tiny, name):
    file = tiny.root / name
    file.write_bytes(b"1")
    seen = tiny.seen(file.resolve())
    file.write_bytes(b"22")
    assert keep(tiny, CellEvidence(cell=cell()), seen) == [
        f"verdicts of onnx_recipes.py are not kept: {name} changed during the run"
    ]
    assert tiny.asked() == NOT_RUN_BEFORE


def test_a_verdict_is_kept_at_once(tiny):
    """Whatever happens to the run afterwards, and whatever else changes meanwhile."""
    cache = tiny.open()
    cache.verdict(cell())
    cache.keep(CellEvidence(cell=cell()), tiny.seen(), "")
    tiny.write("run.txt", "what this run has said so far")
    assert tiny.asked() == ""


# --- whether kept verdicts are right


def judged_before(tiny, days: float) -> None:
    """Let all kept verdicts be older."""
    folder = Folder(tiny.root / ".onnx-ci-cache")
    for name in folder.files(VERDICT):
        entry = folder.read(name)
        folder.write(name, {**entry, "judged": entry["judged"] - days * 24 * 3600})


def answers(tiny, *cells: Cell, **flags: object) -> VerdictCache:
    cache = tiny.open(**flags)
    assert not any(isinstance(cache.verdict(each), str) for each in cells)
    return cache


FAILED = CellEvidence(cell=cell(), findings=(finding("numeric-drift", "far"),))


def test_the_verdict_that_was_judged_longest_ago_is_due_after_a_day(tiny):
    tiny.run()
    judged_before(tiny, 0.5)
    tiny.run(cells=[cell(14)])
    assert answers(tiny, cell(), cell(14)).due() == []
    judged_before(tiny, 1)
    assert answers(tiny, cell(14), cell()).due() == [cell().id]


def test_an_audit_is_of_all(tiny, monkeypatch):
    tiny.run(cells=[cell(), cell(14)])
    monkeypatch.setenv("ONNX_CI_CACHE", ".onnx-ci-cache")  # audit is no folder, but what is done with it
    assert answers(tiny, cell(), cell(14), cache="audit").due() == [cell().id, cell(14).id]


def test_a_kept_verdict_that_is_wrong_costs_all_the_belief_in_them(tiny):
    tiny.run(cells=[cell(), cell(14)])
    cache = answers(tiny, cell())
    (stale,) = [each for each in cache.check(FAILED).findings if each.rule == "stale-verdict"]
    assert re.fullmatch(
        r"nothing that the cache sees has changed since \d{4}-\d\d-\d\d, but then there was no error, and now there is numeric-drift",
        stale.message,
    )
    cache.close()
    assert tiny.asked() == NOT_RUN_BEFORE


@pytest.mark.parametrize(
    "evidence",
    [
        CellEvidence(cell=cell(), findings=(finding("loaded-weights", "a note, which is no verdict"),), log="other"),
        CellEvidence(cell=cell(), findings=(finding("timeout", "of the machine"),)),
        CellEvidence(cell=cell(15), findings=FAILED.findings),
    ],
)
def test_a_kept_verdict_is_right_if_the_errors_are_the_same(tiny, evidence):
    tiny.run()
    assert answers(tiny, cell()).check(evidence) is evidence
    assert tiny.asked() == ""


def test_an_old_verdict_is_found_out_again(tiny):
    tiny.run()
    judged_before(tiny, 31)
    assert tiny.asked() == "it was judged 31 days ago"
    assert tiny.asked(cache_days="40") == ""


def test_what_is_installed_during_the_run_keeps_nothing(tiny, monkeypatch):
    cache = tiny.open()
    cache.verdict(cell())
    cache.keep(CellEvidence(cell=cell()), tiny.seen(), "")
    with monkeypatch.context() as changed:
        changed.setattr(Packages, "digests", lambda _: {"torch": "2.15.0 abc"})
        cache.close()
    assert cache.notes == ["verdicts are not kept: during the run, torch 2.13.0 → 2.15.0"]
    assert tiny.asked() == NOT_RUN_BEFORE


def damages(content: bytes) -> dict[str, bytes]:
    checksum, _, body = content.partition(b"\n")
    return {
        "empty": b"",
        "truncated": content[: len(content) // 2],
        "no checksum": body,
        "another byte": content[:-3] + b"?" + content[-2:],
        "foreign": b"hello",
        "binary": bytes(range(256)),
        "deep": checksum + b"\n" + b"[" * 100_000,
    }


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        *(("cell", damage) for damage in damages(b"a\nb")),
        *((kind, "truncated") for kind in ("snapshot", "seen", "memory.json", "last-run.json")),
    ],
)
def test_a_damaged_file_is_the_same_as_none(tiny, settled, kind, damage):
    tiny.run()
    names = [path.name for path in (tiny.root / ".onnx-ci-cache").glob("*.json")]
    (name,) = (each for each in names if each.startswith(kind) or (kind == "cell" and each.count("-") == 4))
    path = tiny.root / ".onnx-ci-cache" / name
    path.write_bytes(damages(path.read_bytes())[damage])
    tiny.write("another.yaml", "the snapshot is another one than that of the entry")
    tiny.git("add", "--all")
    reason = "another.yaml is new"
    assert tiny.run()[0].startswith(reason if kind.endswith(".json") or kind == "seen" else NOT_RUN_BEFORE)
    assert tiny.run() == [""]


@pytest.mark.parametrize("change", ["about", "schema", "snapshot", "data", "seen"])
def test_an_entry_of_another_form_is_the_same_as_none(tiny, change):
    tiny.run()
    (path,) = (tiny.root / ".onnx-ci-cache").glob("*-*-*-*-*.json")
    entry = json.loads(path.read_bytes().partition(b"\n")[2])
    entry[change] = {"about": "x", "schema": 99, "snapshot": "0" * 16, "data": {"id": "x"}, "seen": "0" * 16}[change]
    cache = tiny.open()
    cache._folder.write(path.name, entry)
    assert tiny.asked() == NOT_RUN_BEFORE


def test_a_folder_that_cannot_be_written_still_answers(tiny, monkeypatch):
    tiny.run()
    monkeypatch.setattr("onnx_ci.cache.folder.write_whole", refuse)
    cache = tiny.open()
    assert not isinstance(cache.verdict(cell()), str)
    cache.keep(CellEvidence(cell=cell(14)), tiny.seen(), "")
    cache.close()
    (note,) = cache.notes
    assert note == f"verdicts are not kept: {tiny.root / '.onnx-ci-cache'} cannot be written: Read-only file system"


def refuse(*_: object) -> None:
    raise OSError(30, "Read-only file system")


def test_two_runs_share_the_folder(tiny):
    code = """
import sys
from pathlib import Path
from onnx_ci.cache.packages import Packages
from onnx_ci.cache.verdicts import VerdictCache
from onnx_ci.cache.watch import ReadSet, Search
from onnx_ci.config.settings import load_settings
from onnx_ci.results.records import Cell, CellEvidence
Packages.digests = lambda _: {}
cache = VerdictCache.open(load_settings(Path.cwd(), flags={"cache": ".onnx-ci-cache", "isolation": "fork"}))
for opset in range(int(sys.argv[1]), 100, 2):
    cell = Cell(source="onnx_recipes.py", recipe="net", exporter="torchscript", opset=opset, device="cpu")
    assert isinstance(cache.verdict(cell), str) or sys.argv[2]
    cache.keep(CellEvidence(cell=cell), ReadSet(), "")
cache.close()
assert not cache.notes, cache.notes
"""
    for again in ("", "again"):
        running = [
            subprocess.Popen([sys.executable, "-c", code, str(place), again]) for place in (0, 1, 0, 1)[: 2 + 2 * bool(again)]
        ]
        assert [each.wait() for each in running] == [0] * len(running)
    names = [path.name for path in (tiny.root / ".onnx-ci-cache").iterdir()]
    assert sum(name.count("-") == 4 for name in names) >= 50
    assert not any(name.endswith(".tmp") for name in names)


def test_the_last_run_says_why_it_missed(tiny):
    tiny.run(cells=[cell(), cell(14)])
    tiny.write("model.py", "SCALE = 2\n")
    tiny.run(cells=[cell()])
    folder = Folder(tiny.root / ".onnx-ci-cache")
    assert folder.last_run() == LastRun(cached=0, ran={"model.py changed": 1})
    tiny.run(cells=[cell()])
    assert folder.last_run() == LastRun(cached=1, ran={})


def test_beyond_the_limit_the_oldest_verdicts_are_removed(tiny, monkeypatch):
    tiny.run(cells=[cell(opset) for opset in range(13, 18)])
    path = tiny.root / ".onnx-ci-cache"
    verdicts = sorted(path.glob("*-*-*-*-*.json"))
    for number, verdict in enumerate(verdicts):
        os.utime(verdict, (number, number))
    unneeded = [path / f"snapshot-{'0' * 16}.json", path / ".memory.json.0123abcd.tmp"]
    for file in unneeded:
        file.touch()
        os.utime(file, (1, 1))
    (path / "foreign.txt").touch()
    total = sum(file.stat().st_size for file in path.glob("*.json*"))
    monkeypatch.setattr("onnx_ci.cache.folder.LIMIT_BYTES", total - 1)
    Folder(path).keep_limit()
    remaining = sorted(path.glob("*-*-*-*-*.json"))
    assert 0 < len(remaining) < 5
    assert remaining == verdicts[-len(remaining) :]
    assert len([*path.glob("snapshot-*")]) == len([*path.glob("seen-*")]) == 1
    assert not any(file.exists() for file in unneeded)
    assert (path / "foreign.txt").exists()


def test_above_a_link_is_where_it_leads(tiny, tmp_path):
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "w.bin").touch()
    (tiny.root / "link").symlink_to("../outside/deep")
    above = str(tiny.root / "link/..")
    searches = (Search(folders=(above,), names=("found",)),)
    seen = tiny.seen("link/../w.bin", "missing/../model.py", listed={above: entries_of(above)}, searches=searches)
    assert tiny.run(seen) == [NOT_RUN_BEFORE]
    assert tiny.asked() == ""
    (outside / "w.bin").write_text("1")
    (outside / "found.py").touch()
    (tiny.root / "missing").mkdir()
    changes = ("link/../w.bin changed", "missing/../model.py is new", "the files in link/.. changed", "link/../found.py is new")
    assert tiny.asked() == f"{', '.join(changes[:3])} and 1 more"
    (outside / "w.bin").write_text("")
    (tiny.root / "missing").rmdir()
    assert tiny.asked() == " and ".join(changes[2:])


def test_of_what_a_recipe_changes_it_counts_that_it_is_there(tiny):
    lock = tiny.write("logs/lock")
    seen = dataclasses.replace(tiny.seen(), files={**tiny.seen().files, str(lock): THERE})
    lock.write_text("changed by the recipe")
    tiny.run(seen)
    assert tiny.asked() == ""
    lock.write_text("changed again")
    assert tiny.asked() == ""
    lock.unlink()
    assert tiny.asked() == "logs/lock is gone"


def test_packages_in_a_folder_that_a_recipe_adds_to_the_path_count(tiny):
    vendor = tiny.write("vendor/one-1.0.dist-info/METADATA").parents[1]
    search = Search(folders=(str(vendor), *sys.path), names=("lazy",))
    tiny.run(tiny.seen(searches=(search,)))
    tiny.write("vendor/data.bin")
    assert tiny.asked() == ""
    tiny.write("vendor/two-1.0.dist-info/METADATA")
    assert tiny.asked() == "vendor/two-1.0.dist-info is new"
