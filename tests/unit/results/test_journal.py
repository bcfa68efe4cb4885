"""What a run writes as it goes on is whole, wherever it is ended and whatever cannot be written."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

import pytest
from toolbox.records import cell, failed, passed, report, setting, skipped, warned

from onnx_ci import Problem
from onnx_ci.errors import ConfigurationError
from onnx_ci.results.files import as_text, read_json, read_reports, write_json, write_text
from onnx_ci.results.journal import Journal, journal_of, read_journal
from onnx_ci.results.records import Exclusion, Revision

RESULTS = [passed(opset=9), warned(opset=10), failed(opset=11), skipped(opset=12)]
EXPECTED = [*(each.cell.id for each in RESULTS), cell(opset=13).id]
PROBLEM = Problem(source="a/c.py", message="it cannot be imported: \N{BLACK STAR}", file="a/c.py", line=3)
REVISION = Revision(commit="a1b2c3d4" * 5, branch="main", is_modified=False)
EXCLUSION = Exclusion(recipe="net", reason="too old")


def written(path, results=RESULTS):
    """A journal beside the report ``path``, its results in another order than expected."""
    environment, settings = {"torch": "2.13.0"}, {"opsets": setting("9-13")}
    journal = Journal(path, revision=REVISION, environment=environment, settings=settings)
    journal.expect(EXPECTED)
    journal.add(PROBLEM, 0.5)
    journal.add(EXCLUSION, 0.5)
    for seconds, result in enumerate(reversed(results), start=1):
        journal.add(result, float(seconds))
    journal.close()
    return journal


def test_a_journal_holds_what_the_report_would(tmp_path):
    path = tmp_path / "r.json"
    written(path)
    found = read_json(path)
    assert found.cells == tuple(RESULTS)
    assert found.not_run == (EXPECTED[-1],)
    assert (found.problems[0], found.exclusions) == (PROBLEM, (EXCLUSION,))
    assert (found.environment, found.settings) == ({"torch": "2.13.0"}, {"opsets": setting("9-13")})
    assert found.revision == REVISION
    assert found.seconds == len(RESULTS)
    assert found.problems[1].source == str(journal_of(path))


def test_a_journal_is_never_a_success(tmp_path):
    path = tmp_path / "r.json"
    journal = Journal(path, revision=None, environment={}, settings={})
    journal.expect([RESULTS[0].cell.id])
    journal.add(RESULTS[0], 1.0)
    journal.close()
    assert (read_json(path).verdict, read_json(path).exit_code) == ("failed", 2)


def test_the_journal_comes_before_an_older_report_and_goes_with_a_new_one(tmp_path):
    path = tmp_path / "r.json"
    write_json(report(failed()), path)
    written(path)
    assert read_json(path).cells == tuple(RESULTS)
    assert [name for name, _ in read_reports([tmp_path])] == [str(path)]
    assert read_json(path, with_journal=False) == report(failed())
    write_json(report(passed()), path)
    assert read_json(path) == report(passed())
    assert not journal_of(path).exists()


def test_a_report_that_is_put_beside_an_older_journal_is_read(tmp_path):
    path = tmp_path / "r.json"
    written(path)
    os.utime(journal_of(path), (0, 0))
    write_text(as_text(report(passed())), path)
    assert read_json(path) == report(passed())


def test_a_journal_without_a_report_is_found_in_a_folder(tmp_path):
    written(tmp_path / "r.json")
    assert [found.cells for _, found in read_reports([tmp_path])] == [tuple(RESULTS)]
    assert read_json(journal_of(tmp_path / "r.json")).cells == tuple(RESULTS)


def test_a_device_has_no_journal(tmp_path):
    target = tmp_path / "null"
    target.symlink_to("/dev/null")
    written(target)
    assert list(tmp_path.iterdir()) == [target]


def test_wherever_a_journal_ends_its_whole_lines_are_read(tmp_path):
    """Every byte count at which a run can be killed."""
    path = tmp_path / "r.json"
    written(path)
    content = journal_of(path).read_bytes()
    known = {each.cell.id: each for each in RESULTS}
    reached = []
    for size in range(len(content) + 1):
        try:
            found = read_journal(content[:size], path)
        except ValueError as error:
            assert str(error) == "it is empty", size
            assert b"\n" not in content[:size]
            continue
        assert all(known[each.cell.id] == each for each in found.cells), size
        assert found.verdict == "failed"
        reached.append(len(found.cells))
    assert reached == sorted(reached)
    assert {*reached} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\n", "line 1 is not a text file"),
        (b"[]\n", "line 1 is not an object"),
        (b"{}\n", "it has no 'schema_version'"),
        (b'{"schema_version": 1, "revision": null, "environment": {}, "settings": {}}\n{"expected": 3}\n', "expected is 3"),
        (b'{"schema_version": 1, "revision": null, "environment": {}, "settings": {}}\n{"cell": 3}\n', "cell has no 'id'"),
        (
            b'{"schema_version": 1, "revision": null, "environment": {}, "settings": {}}\n{"cell": {"id": []}}\n',
            "cell.id is []",
        ),
        (
            b'{"schema_version": 1, "revision": null, "environment": {}, "settings": {}}\n{"seconds": 1e999}\n',
            "it took inf s, which is not possible",
        ),
        (
            b'{"schema_version": 1, "revision": null, "environment": {}, "settings": {}}\n\n{}\n',
            "line 2 is truncated or not JSON",
        ),
    ],
)
def test_what_is_not_a_journal_is_refused(content, message, tmp_path):
    journal_of(tmp_path / "r.json").write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        read_json(tmp_path / "r.json")
    assert "r.json.journal is not a report that this onnx-ci can read: " in str(caught.value)
    assert message in str(caught.value)


@contextlib.contextmanager
def files_end_at(size):
    """A disk that is full once a file has ``size`` bytes."""
    resource = pytest.importorskip("resource", reason="a limit on the size of files needs Unix")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a limit on the size of files needs Unix")
def test_wherever_the_disk_is_full_the_results_before_are_kept_and_the_run_goes_on(tmp_path):
    path = tmp_path / "r.json"
    written(path)
    content = journal_of(path).read_bytes()
    for size in range(len(content)):
        with files_end_at(size):
            written(path)  # raises nothing
        head = content.index(b"\n") + 1
        assert journal_of(path).exists() == (size >= head)
        if size >= head:
            assert journal_of(path).read_bytes() == content[:size]


@pytest.mark.skipif(sys.platform == "win32", reason="a limit on the size of files needs Unix")
def test_wherever_the_disk_is_full_the_report_before_is_kept(tmp_path):
    path = tmp_path / "r.json"
    write_json(report(passed()), path)
    for size in range(path.stat().st_size):
        with files_end_at(size), pytest.raises(ConfigurationError, match="cannot be written: File too large"):
            write_json(report(passed()), path)
        assert [each.name for each in tmp_path.iterdir()] == ["r.json"]
        assert read_json(path) == report(passed())
