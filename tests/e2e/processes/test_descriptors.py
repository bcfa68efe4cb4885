"""Which of the open files of a process its forks may reach."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from onnx_ci.processes.descriptors import open_channels
from onnx_ci.processes.forked import ForkedProcesses
from onnx_ci.processes.limits import ProcessLimits
from onnx_ci.processes.supervisor import LAST, Death

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the open files of a process are listed on Linux only")


def ended(processes):
    while True:
        for _, event in processes.wait(30):
            return event


def test_a_fork_cannot_write_to_a_channel_that_was_open_before(tmp_path):
    read, write = os.pipe()
    try:
        channels = [each for each in open_channels() if each.number in (read, write)]
        assert len(channels) == 2
        processes = ForkedProcesses(tmp_path, channels)

        def work(send):
            os.write(write, b"stray")
            send({LAST: True})

        processes.start("one", work, ProcessLimits(seconds=30))
        assert ended(processes) == {LAST: True}
        processes.close()
        os.set_blocking(read, False)
        with pytest.raises(BlockingIOError):
            os.read(read, 1)
    finally:
        os.close(read)
        os.close(write)


def test_the_number_of_a_channel_that_is_closed_belongs_to_another_file(tmp_path):
    pairs = [socket.socketpair() for _ in range(4)]
    known = {each.fileno() for pair in pairs for each in pair}
    channels = [each for each in open_channels() if each.number in known]
    assert len(channels) == 8
    for pair in pairs:
        for each in pair:
            each.close()
    processes = ForkedProcesses(tmp_path, channels)
    processes.start("one", lambda send: send({LAST: True}), ProcessLimits(seconds=30))
    event = ended(processes)
    processes.close()
    assert not isinstance(event, Death)
    assert event == {LAST: True}
