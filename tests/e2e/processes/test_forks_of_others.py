"""Processes that are forked from another one, which this process has started and supervises like the others."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time

import psutil
import pytest

from onnx_ci.processes.forked import ForkedProcesses
from onnx_ci.processes.limits import Limits
from onnx_ci.processes.supervisor import LAST, Death

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
LIMITS = Limits(seconds=60)


def serves(send, server):
    sys.modules["made_by_the_parent"] = sys
    send({"ready": os.getpid()})
    server.serve()


def tells(send):
    send({LAST: ["made_by_the_parent" in sys.modules, os.getppid()]})


def answers(send, inbox):
    for request in inbox:
        send({LAST: request})
        return


def crashes(send):
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(send):
    send({"id": os.getpid()})
    time.sleep(600)


def events_of(processes, key):
    while True:
        for found, event in processes.wait(30):
            if found == key:
                return event


@pytest.fixture
def processes(tmp_path, warm_spawned_processes):
    made = ForkedProcesses(tmp_path)
    made.start_python("python", serves, LIMITS)
    assert "ready" in events_of(made, "python")
    yield made
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_a_fork_has_what_the_other_process_has_and_this_one_has_not(processes):
    processes.start_from("python", "fork", tells, LIMITS)
    has_it, parent = events_of(processes, "fork")[LAST]
    assert has_it
    assert parent != os.getpid()
    assert "made_by_the_parent" not in sys.modules


def test_a_fork_can_serve_forks_and_each_can_have_an_inbox(processes):
    processes.start_from("python", "child", serves, LIMITS, can_fork=True)
    assert "ready" in events_of(processes, "child")
    processes.start_from("child", "grandchild", answers, LIMITS, has_inbox=True)
    processes.post("grandchild", {"number": 7})
    assert events_of(processes, "grandchild") == {LAST: {"number": 7}}


def test_the_end_of_a_fork_is_known_as_that_of_any_other_process(processes):
    processes.start_from("python", "fork", crashes, LIMITS)
    death = events_of(processes, "fork")
    assert isinstance(death, Death)
    assert (death.cause, death.message) == ("crash", "was killed by SIGSEGV")
    assert "in crashes" in death.log
    processes.start_from("python", "fork", hangs, Limits(seconds=0.5))
    events_of(processes, "fork")
    assert events_of(processes, "fork").cause == "timeout"


def test_forks_end_with_the_process_that_forked_them(processes):
    processes.start_from("python", "child", serves, LIMITS, can_fork=True)
    events_of(processes, "child")
    processes.start_from("child", "grandchild", hangs, LIMITS)
    pid = events_of(processes, "grandchild")["id"]
    processes.stop("child")
    death = events_of(processes, "grandchild")
    assert isinstance(death, Death)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_what_cannot_be_forked_is_an_error_of_the_system(processes):
    with pytest.raises(OSError, match="cannot be sent"):
        processes.start_from("python", "fork", functools.partial(tells, threading.Lock()), LIMITS)
    processes.start_from("python", "child", serves, LIMITS, can_fork=True)
    os.kill(events_of(processes, "child")["ready"], signal.SIGKILL)
    time.sleep(0.3)
    with pytest.raises(OSError, match="has ended"):
        processes.start_from("child", "grandchild", tells, LIMITS)
