"""A folder for temporary files goes with its process and the forks of that, however they end."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forks")

HOLDER = """
import os, time
from onnx_ci.processes.scratch import scratch_folder
with scratch_folder() as folder:
    fork = os.fork()
    os.write(1, b'%d\\n' % fork)  # in one piece: both processes write
    time.sleep(60)
"""
NEXT = """
from onnx_ci.processes.scratch import scratch_folder
with scratch_folder():
    pass
"""


def test_the_next_process_removes_it_once_its_process_and_its_forks_are_dead(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def left():
        subprocess.run([sys.executable, "-c", NEXT], env=environment, check=True)
        return len(list(tmp_path.iterdir()))

    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True, env=environment) as holder:
        forks = {int(holder.stdout.readline()), int(holder.stdout.readline())} - {0}
        assert left() == 2  # the folder and its lock
        holder.kill()
        holder.wait()
        assert left() == 2
        for fork in forks:
            os.kill(fork, 9)
    deadline = time.monotonic() + 60
    while left() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left() == 0


def test_a_lock_that_is_a_pipe_does_not_stop_anything(tmp_path):
    os.mkfifo(tmp_path / "onnx-ci-abcdefgh.lock")
    subprocess.run([sys.executable, "-c", NEXT], env={**os.environ, "TMPDIR": str(tmp_path)}, check=True, timeout=60)
    assert [path.name for path in tmp_path.iterdir()] == ["onnx-ci-abcdefgh.lock"]


@pytest.mark.parametrize("content", ["", "locked\n", "onnx-ci made the folder 1\n"])
def test_a_folder_of_somebody_else_is_left_alone(tmp_path, content):
    (tmp_path / "onnx-ci-abcdefgh").mkdir()
    (tmp_path / "onnx-ci-abcdefgh/work.txt").write_text("of a user")
    (tmp_path / "onnx-ci-abcdefgh.lock").write_text(content)
    subprocess.run([sys.executable, "-c", NEXT], env={**os.environ, "TMPDIR": str(tmp_path)}, check=True)
    assert (tmp_path / "onnx-ci-abcdefgh/work.txt").read_text() == "of a user"
