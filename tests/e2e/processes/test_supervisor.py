"""Forked processes that are watched, and engines that live through whatever becomes of them."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("processes are forked and watched on Linux only", allow_module_level=True)

import torch
from toolbox.cells import evidence_of

import onnx_ci
from onnx_ci.collection.discovery import Found
from onnx_ci.config.settings import load_settings
from onnx_ci.engine.events import CellFinished
from onnx_ci.engine.scheduler import open_engine
from onnx_ci.matrix.plan import plan
from onnx_ci.processes.limits import Limits
from onnx_ci.processes.run_in_child import processes_of
from onnx_ci.processes.supervisor import LAST, Death, resident
from onnx_ci.results.verdict import decide


@pytest.fixture(params=["fork", "spawn"])
def isolation(request):
    return request.param


@pytest.fixture
def processes(tmp_path, isolation):
    made = processes_of(isolation, tmp_path)
    yield made
    made.close()
    assert list(tmp_path.iterdir()) == []


def events_of(processes, count=1):
    found = []
    end = time.monotonic() + 30
    while len(found) < count and time.monotonic() < end:
        found += processes.wait(1)
    return found


def test_messages_come_in_order_whatever_their_size(processes):
    def work(send):
        for size in (1, 2**20, 3):
            send({"text": "x" * size})
        send({LAST: "ß" * 100_000})

    processes.start("key", work, Limits())
    said = [event for _, event in events_of(processes, 4)]
    assert [len(each["text"]) for each in said[:3]] == [1, 2**20, 3]
    assert said[3] == {LAST: "ß" * 100_000}


def test_messages_come_with_the_key_of_their_process(processes):
    for key in ("a", "b", "c"):
        processes.start(key, lambda send, key=key: send({LAST: key}), Limits())
    assert sorted(events_of(processes, 3)) == [(key, {LAST: key}) for key in ("a", "b", "c")]


@pytest.mark.parametrize(
    ("work", "cause", "said"),
    [
        (lambda send: os.kill(os.getpid(), signal.SIGSEGV), "crash", "was killed by SIGSEGV"),
        (lambda send: os._exit(3), "crash", "ended by itself with exit code 3"),
        (lambda send: None, "crash", "ended by itself with exit code 0"),
        (lambda send: sys.exit("why"), "crash", "raised SystemExit"),
        (lambda send: time.sleep(60), "timeout", "did not end within 0.3 s"),
    ],
)
def test_how_a_process_ended(processes, work, cause, said):
    processes.start("key", work, Limits(seconds=0.3))
    ((_, death),) = events_of(processes)
    assert isinstance(death, Death)
    assert (death.cause, death.message) == (cause, said)


def test_what_it_prints_before_it_is_first_looked_at_is_kept(processes, monkeypatch):
    def as_on_a_busy_machine(pid):
        time.sleep(0.5)
        return resident(pid)

    def work(send):
        print("last words", flush=True)
        os._exit(7)

    monkeypatch.setattr("onnx_ci.processes.forked.resident", as_on_a_busy_machine)
    processes.start("key", work, Limits(seconds=30))
    ((_, death),) = events_of(processes)
    assert (death.message, death.log) == ("ended by itself with exit code 7", "last words\n")


def test_memory_of_the_parent_and_of_the_warm_up_does_not_count(processes):
    def warm_up():
        sys.held = bytearray(os.urandom(1)) * (300 * 2**20)

    def harmless(send):
        time.sleep(0.3)
        send({LAST: len(sys.held)})

    def eats(send):
        kept = [bytearray(os.urandom(1)) * (300 * 2**20)]
        time.sleep(30)
        send({LAST: len(kept)})

    limits = Limits(memory=200 * 2**20)
    try:
        processes.start("harmless", harmless, limits, warm_up=warm_up)
        assert events_of(processes) == [("harmless", {LAST: 300 * 2**20})]
        processes.start("eats", eats, limits, warm_up=warm_up)
        ((_, death),) = events_of(processes)
        assert death.cause == "out-of-memory"
    finally:
        vars(sys).pop("held", None)


def test_time_that_nobody_watched_does_not_count(processes):
    def work(send):
        time.sleep(1.5)
        send({LAST: "x" * 2**20})  # more than a pipe holds: it waits to be read

    processes.start("key", work, Limits(seconds=2))
    time.sleep(3)
    assert events_of(processes) == [("key", {LAST: "x" * 2**20})]


def test_many_open_files_are_no_hindrance(processes):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"this user may open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        processes.start("key", lambda send: send({LAST: 1}), Limits())
        assert events_of(processes) == [("key", {LAST: 1})]
    finally:
        for each in files:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- engines ---------------------------------------------------------------------------------------------------------


@onnx_ci.recipe(input_names=["x"], output_names=["y"])
def tiny():
    return torch.nn.Linear(3, 2), (torch.randn(2, 3),)


@onnx_ci.recipe(input_names=["x"], output_names=["y"])
def other():
    return torch.nn.Linear(4, 2), (torch.randn(2, 4),)


def engine_and_cells(tmp_path, isolation, recipes=(tiny,), **flags):
    flags = {"opsets": "12-14", "cache": "off", "jobs": 1, "isolation": isolation, **flags}
    settings = load_settings(tmp_path, flags=flags, environment={})
    return open_engine(settings), plan([Found(recipe, "here.py") for recipe in recipes], settings).cells


def one(engine, spec):
    """The evidence about a cell that was not announced."""
    return next(event.evidence for event in engine.events(spec) if isinstance(event, CellFinished))


def children():
    """The processes that this one has started and that are alive, by their command's state."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if int(parent) == os.getpid() and state != "Z":
                found.append(int(entry.name))
    return found


@pytest.mark.slow
def test_a_worker_that_dies_between_two_cells_costs_neither(isolation, tmp_path):
    engine, cells = engine_and_cells(tmp_path, isolation)
    before = set(children())
    with engine:
        first = one(engine, cells[0])
        (worker,) = set(children()) - before
        os.kill(worker, signal.SIGKILL)
        time.sleep(0.2)
        second = one(engine, cells[1])
    assert [decide(each).status for each in (first, second)] == ["passed", "passed"]
    assert set(children()) == before


@pytest.mark.slow
def test_cells_in_any_order_need_no_more_workers_than_places(isolation, tmp_path):
    engine, cells = engine_and_cells(tmp_path, isolation, (tiny, other), jobs=1)
    mixed = sorted(cells, key=lambda spec: spec.cell.opset)
    before = set(children())
    with engine:
        most = 0
        for result in evidence_of(engine, mixed):
            assert decide(result).status == "passed"
            most = max(most, len(set(children()) - before))
    assert most <= 2


def test_an_abandoned_run_leaves_no_process(isolation, tmp_path):
    engine, cells = engine_and_cells(tmp_path, isolation)
    before = set(children())
    with engine:
        assert decide(next(iter(evidence_of(engine, cells)))).status == "passed"
    engine.close()
    assert set(children()) == before


def test_it_is_reported_if_there_is_no_room_for_a_process(isolation, tmp_path, monkeypatch):
    engine, cells = engine_and_cells(tmp_path, isolation)

    def full(*_):
        raise OSError(28, "No space left on device")

    with engine:
        monkeypatch.setattr("os.mkdir", full)
        result = one(engine, cells[0])
    assert (decide(result).status, [each.rule for each in result.findings]) == ("error", ["disk-error"])


def test_without_processes_a_recipe_takes_back_only_its_own_changes(tmp_path, monkeypatch):
    """What other code of the process has set meanwhile stays."""
    monkeypatch.setenv("SET_BEFORE", "old")

    @onnx_ci.recipe
    def changes():
        os.environ["SET_BY_RECIPE"] = "1"
        os.environ["SET_BEFORE"] = "new"
        return torch.nn.Linear(3, 2), (torch.randn(2, 3),)

    engine, cells = engine_and_cells(tmp_path, "none", (changes,))
    with engine:
        assert decide(one(engine, cells[0])).status == "passed"
        monkeypatch.setenv("SET_BY_OTHERS", "kept")
        assert os.environ["SET_BY_RECIPE"] == "1"
    assert "SET_BY_RECIPE" not in os.environ
    assert os.environ["SET_BEFORE"] == "old"
    assert os.environ["SET_BY_OTHERS"] == "kept"


@pytest.mark.slow
def test_cells_of_a_device_that_is_not_here_are_skipped_one_after_the_other(isolation, tmp_path):
    """On a GPU each cell has a worker of its own, and the next begins when the last is gone."""
    if torch.cuda.device_count():  # unlike is_available(), this lets forks use CUDA
        pytest.skip("this machine has a GPU: its cells would run")
    engine, cells = engine_and_cells(tmp_path, isolation, devices="cuda", jobs=None)
    before = set(children())
    with engine:
        assert [decide(result).status for result in evidence_of(engine, cells)] == ["skipped"] * 3
    assert set(children()) == before
