"""What the benchmarks share: timed runs in separate processes, and measurements of their memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20


def environment() -> dict[str, str]:
    """The environment without settings of onnx-ci."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("ONNX_CI_")}
    return {**own, "PYTHONUNBUFFERED": "1"}


def timed(command: Sequence[str], folder: Path, *, codes: Sequence[int] = (0,)) -> tuple[float, str]:
    """How long ``command`` takes in ``folder``, and what it prints; it must end with one of ``codes``."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    taken = time.perf_counter() - start
    if done.returncode not in codes:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return taken, done.stdout


def seconds(command: Sequence[str], folder: Path, *, codes: Sequence[int] = (0,)) -> float:
    """How long ``python -m command`` takes in ``folder``; it must end with one of ``codes``."""
    return timed([sys.executable, "-m", *command], folder, codes=codes)[0]


def in_turns(sides: dict[str, Callable[[], float]], repeat: int) -> dict[str, list[float]]:
    """The measurements of each side, ``repeat`` times. The sides alternate, so that a slow minute affects all of them."""
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeat):
        for name, side in sides.items():
            figures[name].append(side())
    return figures


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def resident(process: int) -> int:
    """The resident memory of a process in bytes; 0 once it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


def proportional(process: int) -> int:
    """The proportional set size of a process in bytes: a page that two processes share counts half for each."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def tree(root: int) -> Iterator[int]:
    """``root`` and all processes below it."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            parent = int((folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    waiting = [root]
    while waiting:
        process = waiting.pop()
        yield process
        waiting += children.get(process, [])


@dataclass
class Peak:
    """Samples the memory of a tree of processes until it is stopped; ``bytes`` is the largest sum of shares so far."""

    root: int
    interval: float = 0.02
    bytes: int = 0

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stop.wait(self.interval):
            self.bytes = max(self.bytes, sum(map(proportional, tree(self.root))))

    def stop(self) -> int:
        """Stop sampling and return the peak in bytes."""
        self._stop.set()
        self._thread.join()
        return self.bytes
