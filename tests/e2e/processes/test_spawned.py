"""Spawned processes: what they share with the process that starts them, and when they are used again."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import pytest

from onnx_ci.processes.limits import Limits
from onnx_ci.processes.run_in_child import processes_of
from onnx_ci.processes.supervisor import LAST


@pytest.fixture
def processes(tmp_path):
    made = processes_of("spawn", tmp_path)
    yield made
    made.close()
    assert list(tmp_path.iterdir()) == []


def last_of(processes, work, **options):
    processes.start("key", work, Limits(seconds=30), **options)
    while not (events := processes.wait(30)):
        pass
    ((_, event),) = events
    return event[LAST]


def own_id(send):
    send({LAST: os.getpid()})


def test_a_process_does_one_thing(processes):
    first = last_of(processes, lambda send: send({LAST: os.getpid()}))
    assert last_of(processes, lambda send: send({LAST: os.getpid()})) != first


def test_what_others_send_by_value_stays_registered(processes):
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        assert last_of(processes, own_id)
        cloudpickle.unregister_pickle_by_value(module)  # raises if it is not registered
    finally:
        with contextlib.suppress(ValueError):
            cloudpickle.unregister_pickle_by_value(module)


def test_it_has_what_the_process_that_starts_it_has_now(processes, tmp_path_factory, monkeypatch):
    def work(send):
        import beside_the_program

        found = [beside_the_program.NUMBER, os.environ["SET_BEFORE"], str(Path.cwd()), sys.argv[1:]]
        send({LAST: found})

    for number in (1, 2):  # the second time, the process is there already
        folder = tmp_path_factory.mktemp("place")
        if number == 1:
            (folder / "beside_the_program.py").write_text("NUMBER = 7")
            monkeypatch.syspath_prepend(folder)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("SET_BEFORE", str(number))
        monkeypatch.setattr(sys, "argv", ["program", str(number)])
        assert last_of(processes, work) == [7, str(number), str(folder), [str(number)]]


def test_messages_reach_it_while_it_works(processes):
    def adds(send, inbox):
        total = 0
        for message in inbox:
            total += message["number"]
            send({"total": total})

    processes.start("key", adds, Limits(seconds=30), has_inbox=True)
    totals = []
    for number in (1, 2, 3):
        processes.post("key", {"number": number})
        while not (events := processes.wait(30)):
            pass
        totals += [event["total"] for _, event in events]
    assert totals == [1, 3, 6]


def test_what_cannot_be_sent_is_an_error_of_starting_it(processes):
    lock = threading.Lock()
    with pytest.raises(OSError, match=r"what it is to do cannot be sent to it: TypeError: cannot pickle '_thread.lock' object"):
        processes.start("key", lambda send: send({LAST: lock}), Limits())


def test_memory_counts_from_the_beginning_of_its_work_even_if_nobody_looks_then(processes):
    def eats(send):
        kept = bytearray(os.urandom(1)) * (300 * 2**20)
        time.sleep(30)
        send({LAST: len(kept)})

    processes.start("key", eats, Limits(memory=200 * 2**20))
    time.sleep(3)
    while not (events := processes.wait(30)):
        pass
    ((_, death),) = events
    assert death.cause == "out-of-memory"


def test_modules_in_the_current_folder_are_not_its_own(processes, tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("shadows")
    (folder / "queue.py").write_text("raise RuntimeError('not this one')")
    monkeypatch.chdir(folder)
    assert last_of(processes, own_id)


def test_it_outlives_the_thread_that_asked_for_it(processes):
    def works(send):
        time.sleep(1.5)
        send({LAST: "done"})

    thread = threading.Thread(target=processes.start, args=("key", works, Limits(seconds=30)))
    thread.start()
    thread.join()
    while not (events := processes.wait(30)):
        pass
    assert events == [("key", {LAST: "done"})]


SCRIPT = """
import os, sys, time
from pathlib import Path
from onnx_ci.processes.run_in_child import processes_of
from onnx_ci.processes.limits import Limits

def waits(send):
    send({"id": os.getpid()})
    time.sleep(600)

processes = processes_of("spawn", Path(sys.argv[1]))
processes.start("key", waits, Limits())
while not (events := processes.wait(30)):
    pass
print(events[0][1]["id"], flush=True)
time.sleep(600)
"""


def test_it_ends_with_the_process_that_has_started_it(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with parent, parent.stdout:
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    end = time.monotonic() + 10
    while is_alive(child) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_alive(child)


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
