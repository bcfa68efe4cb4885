"""Runs one project again and again; each time the run is killed one message of its processes later than the time before.

Usage: ``python end_parent.py PROJECT``. Prints a line of JSON for each run, until one comes to its end. Runs are forks of this
process, in which everything is imported.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import onnxruntime  # noqa: F401
import torch  # noqa: F401

from onnx_ci.cli.main import main
from onnx_ci.engine.file_processes import FileProcesses
from onnx_ci.engine.session import Session
from onnx_ci.errors import ConfigurationError
from onnx_ci.results.files import read_json


def run(last: int) -> None:
    """The command, killed after it has handled so many messages; how many results it had reached is in the file ``reached``."""
    keep, wait = Session._keep, FileProcesses.wait
    count = 0

    def wait_and_die(processes, seconds=None):
        nonlocal count
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)
        if not processes.unread:
            processes.unread = wait(processes, seconds)
        news, processes.unread = processes.unread[:1], processes.unread[1:]
        count += len(news)
        return news

    def keep_and_note(session, finished, **options):
        keep(session, finished, **options)
        with Path("reached").open("a") as file:
            file.write(f"{finished.evidence.cell.id}\n")

    FileProcesses.unread, FileProcesses.wait, Session._keep = [], wait_and_die, keep_and_note
    with contextlib.redirect_stdout(Path(os.devnull).open("w")):
        main(["run", "--report=r.json", "--no-cache"])


def study(last: int) -> dict[str, object]:
    """What a run leaves."""
    for name in ("r.json", "r.json.journal", "reached"):
        Path(name).unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            run(last)
        except SystemExit as error:
            os._exit(int(error.code or 0))
        finally:
            os._exit(99)
    _, status = os.waitpid(child, 0)
    time.sleep(0.2)
    reached = Path("reached").read_text().split("\n")[:-1] if Path("reached").exists() else []
    with contextlib.suppress(ConfigurationError):
        found = read_json(Path("r.json"))
        kept = {each.cell.id: each.status.value for each in found.cells}
        return {"code": os.waitstatus_to_exitcode(status), "reached": reached, "kept": kept, "verdict": found.verdict.value}
    return {"code": os.waitstatus_to_exitcode(status), "reached": reached, "kept": {}, "verdict": None}


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    number = 0
    while True:
        number += 1
        line = study(number)
        print(json.dumps(line), flush=True)
        if line["code"] >= 0:
            break
