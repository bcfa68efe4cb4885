"""However and whenever a run is ended, its report or its journal is whole, and nothing of it is left.

``CHAOS_MOMENTS=100`` tries a hundred random moments of each end; by default there are few, so that the tests stay quick.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import pytest
from e2e.chaos.faults import healthy
from e2e.chaos.running import Running

from onnx_ci.results.files import read_json
from onnx_ci.results.journal import journal_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="cells have processes of their own on Linux only"),
]

MOMENTS = int(os.environ.get("CHAOS_MOMENTS", "2"))
RECIPES = ("first", "second", "third")


def interrupt(running):
    running.process.send_signal(signal.SIGINT)


def terminate(running):
    running.process.terminate()


def hang_up(running):
    running.process.send_signal(signal.SIGHUP)


def kill(running):
    running.process.kill()


def fill_the_disk(running):
    """From now on, neither it nor a process that it starts can write to a file."""
    import resource

    resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (0, 0))


def close_its_output(running):
    running.reader.close()


ENDS = {end.__name__: end for end in (interrupt, terminate, hang_up, kill, fill_the_disk, close_its_output)}


def project(root):
    (root / "pyproject.toml").write_text('[tool.onnx-ci]\nrecipe-files = ["recipe_*.py"]\n')
    for at, name in enumerate(RECIPES):
        (root / f"recipe_{at}.py").write_text(healthy(name))


@pytest.fixture(scope="module")
def seconds(tmp_path_factory):
    """How long a whole run takes."""
    root = tmp_path_factory.mktemp("whole")
    project(root)
    started = time.monotonic()
    running = Running("command", root)
    assert running.wait(120) == 0
    return time.monotonic() - started


@pytest.mark.parametrize("number", range(MOMENTS))
@pytest.mark.parametrize("name", ENDS)
def test_at_any_moment_the_results_are_kept_and_nothing_is_left(name, number, seconds, tmp_path):
    project(tmp_path)
    running = Running("command", tmp_path, has_reader=ENDS[name] is close_its_output)
    moment = random.Random(f"{name} {number}").uniform(0, 1.1 * seconds)
    time.sleep(moment)
    had_ended = running.process.poll() is not None
    if not had_ended:
        ENDS[name](running)
    code = running.wait(60)
    # Nothing can tell a process that imports torch that its parent was killed: it ends when it is done with that.
    made = running.ended(patience=60 if ENDS[name] is kill else 3)
    assert code is not None, moment
    assert made["processes"] == [], moment
    report = tmp_path / "r.json"
    if ENDS[name] in (kill, fill_the_disk):  # the next run removes them
        assert len([each for each in made["files"] if not each.endswith(".lock")]) <= 1, moment
    else:
        assert made["files"] == [], (moment, made["files"])
    if ENDS[name] is close_its_output:
        assert code == 0, (moment, made["stderr"])
    elif not had_ended and code == 0:  # it was too late
        assert not journal_of(report).exists()
    if not report.exists() and not journal_of(report).exists():
        assert code != 0
        return  # it had found nothing yet
    found = read_json(report)
    assert {each.status for each in found.cells} <= {"passed"}, moment
    if code == 0:
        assert (len(found.cells), found.verdict) == (6, "passed")
    else:
        assert found.verdict == "failed" or len(found.cells) == 6, moment
    assert found.not_run or "did not run" not in made["stdout"], moment
