"""How onnx-ci behaves with 1,000 recipes at nine opsets.

Nothing is exported 9,000 times: one tiny recipe is judged at nine opsets, and made-up processes answer with its evidence, under
other names and with other numbers, as fast as they are asked. What is measured is what onnx-ci itself adds to a cell in the
process that supervises the others, including the making up. Workers run cells that only sleep, so that two cores are enough for
eight of them. What lists and plans cells are whole commands on recipe files that import torch.
Usage: ``python benchmarks/scale.py [--only cells,gpu,files,listing,shards,workers] [--recipes 1000] [--keep FOLDER]``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from measuring import MIB, environment, resident

OPSETS = range(9, 18)
TENTHS = 10

# --- made-up evidence ---------------------------------------------------------------------------------------------------


def real_evidence() -> dict[int, dict[str, Any]]:
    """What the cells of a tiny recipe find out, by opset, as JSON data."""
    import torch

    import onnx_ci

    @onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}})
    def tiny() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), (torch.randn(3, 4),)

    report = onnx_ci.run([tiny], opsets="9-17", isolation="none", cache="off")
    assert report.verdict == "passed", report.counts
    return {result.cell.opset: result.as_json() for result in report.cells}


def varied(value: Any, factor: float) -> Any:
    """JSON data with other numbers, so that it does not compress better than that of different models."""
    if isinstance(value, dict):
        return {key: varied(item, factor) for key, item in value.items()}
    if isinstance(value, list):
        return [varied(item, factor) for item in value]
    return value * factor if isinstance(value, float) else value


class AnsweringProcesses:
    """Stands for the processes of cells: a host is ready at once, and a cell that is sent to it has a result."""

    def __init__(self, evidence: Mapping[int, dict[str, Any]]) -> None:
        self._evidence = evidence
        self._events: deque[tuple[object, dict[str, Any]]] = deque()

    def start(self, key: object, *arguments: object, **options: object) -> None:
        """Start a host, which is ready at once."""
        from onnx_ci.engine.events import StageStarted, WorkerReady, message_of

        events = (StageStarted(stage="build"), StageStarted(stage="reference"), WorkerReady())
        self._events += [(key, message_of(event)) for event in events]

    def post(self, key: object, message: Mapping[str, Any]) -> None:
        """Make up the evidence about a cell."""
        from onnx_ci import Cell
        from onnx_ci.engine.events import CellFinished, message_of
        from onnx_ci.results.records import CellEvidence

        data = message["spec"]["cell"]
        cell = Cell(**data)
        factor = random.Random(cell.id).uniform(0.5, 1.0)
        evidence = CellEvidence.from_json({**varied(self._evidence[cell.opset], factor), **data, "id": cell.id})
        finished = json.dumps(message_of(CellFinished(evidence=evidence)))
        self._events.append((key, json.loads(finished)))  # strings of its own, as from a process

    def wait(self, seconds: float | None = None) -> list[tuple[object, dict[str, Any]]]:
        """Give the next message."""
        return [self._events.popleft()]

    def extend(self, key: object, seconds: float | None) -> None:
        """Nothing can take too long."""

    def stop(self, key: object) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing is left."""


def run_made_up(folder: Path, recipes: int, device: str) -> Iterator[int]:
    """Run nine cells of each recipe, and report in ``folder``; gives the number of cells before the first and after each."""
    import onnx_ci
    from onnx_ci.collection.discovery import Found
    from onnx_ci.config.settings import load_settings
    from onnx_ci.engine import file_processes
    from onnx_ci.engine.events import CellJudged
    from onnx_ci.engine.session import Session
    from onnx_ci.matrix.plan import plan

    evidence = real_evidence()
    file_processes.processes_of = lambda *_: AnsweringProcesses(evidence)  # type: ignore[assignment, return-value]
    flags = {"isolation": "fork", "jobs": "2", "cache": "off", "opsets": "9-17", "devices": device}
    settings = load_settings(folder, flags={**flags, "report": str(folder / "report.json")})
    found = [
        Found(recipe=onnx_ci.recipe(name=f"net_{number:04}")(lambda: None), source=f"models/{number % 20:02}/nets.py")
        for number in range(recipes)
    ]
    with Session(settings) as session:
        session.expect(plan(found, settings).cells)
        yield 9 * recipes
        for event in session.events():
            if isinstance(event, CellJudged):
                yield 9 * recipes


def peak() -> float:
    """The largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB


def cells(folder: Path, recipes: int, device: str = "cpu") -> None:
    """The time of a cell and the memory, over the cells of a run."""
    run = run_made_up(folder, recipes, device)
    number = next(run)
    print(f"{number:,} made-up cells on {device}: what onnx-ci adds to a cell, and the resident memory of its main process")
    print(f"{'cells':>16}{'ms a cell':>12}{'MiB':>8}")
    before, first = time.process_time(), 0.0
    print(f"{0:16,}{'':12}{resident(os.getpid()) / MIB:8.0f}")
    for done, _ in enumerate(run, start=1):
        if done % (number // TENTHS) == 0:
            now = time.process_time()
            taken = 1000 * (now - before) * TENTHS / number
            first = first or taken
            print(f"{done:16,}{taken:12.2f}{resident(os.getpid()) / MIB:8.0f}", flush=True)
            before, at_end = now, peak()
    print(f"a cell at the end ÷ one at the beginning: {taken / first:.2f}")
    if not (folder / "report.json.journal").exists():
        report = folder / "report.json"
        print(f"the report: {report.stat().st_size / MIB:.0f} MiB in {time.process_time() - before:.1f} s; ", end="")
        print(f"peak memory {at_end:.0f} MiB before and {peak():.0f} MiB after it")


def gpu(folder: Path, recipes: int) -> None:
    """The same for cells on one GPU, each with a process of its own, of which one at a time may run."""
    cells(folder, recipes, "cuda")


def files(folder: Path, recipes: int) -> None:
    """How long the files of a large run take, and how large they are."""
    from onnx_ci.cache.verdicts import VerdictCache
    from onnx_ci.cache.watch import ReadSet
    from onnx_ci.config.settings import load_settings
    from onnx_ci.report import html, junit, markdown
    from onnx_ci.results.files import read_json, write_json

    for _ in run_made_up(folder, recipes, "cpu"):
        pass
    report = folder / "report.json"
    start = time.process_time()
    found = read_json(report)
    took = time.process_time() - start
    print(f"a report of {len(found.cells):,} made-up cells")
    print(f"{'':16}{'seconds':>12}{'MiB':>8}")
    print(f"{'read the JSON':16}{took:12.1f}{report.stat().st_size / MIB:8.1f}")

    def repeat(cell: Any) -> str:
        return f"onnx-ci run --select='{cell.recipe}::{cell.label}' --no-cache"

    def opened() -> VerdictCache:
        cache = VerdictCache.open(load_settings(folder, flags={"cache": "verdicts"}))
        assert cache is not None
        cache.recipes("nets.py")  # takes the snapshot
        return cache

    cache, start = opened(), time.process_time()
    for each in found.cells:
        cache.keep(each, ReadSet(), "")
    cache.close()
    took = time.process_time() - start
    size = sum(file.stat().st_size for file in (folder / "verdicts").iterdir()) / MIB
    print(f"{'keep verdicts':16}{took:12.1f}{size:8.1f}")
    cache, start = opened(), time.process_time()
    assert not any(isinstance(cache.verdict(each.cell), str) for each in found.cells)
    print(f"{'find them':16}{time.process_time() - start:12.1f}{size:8.1f}")

    writers: dict[str, Callable[[Path], object]] = {
        "report.json": lambda path: write_json(found, path),
        "page.html": lambda path: path.write_text(html.render(found, repeat), encoding="utf-8"),
        "junit.xml": lambda path: path.write_text(junit.render(found, repeat), encoding="utf-8"),
        "summary.md": lambda path: path.write_text(markdown.render(found, repeat), encoding="utf-8"),
    }
    for name, write in writers.items():
        start = time.process_time()
        write(folder / name)
        print(f"{name:16}{time.process_time() - start:12.1f}{(folder / name).stat().st_size / MIB:8.1f}")


# --- listing ------------------------------------------------------------------------------------------------------------

FILES = 20
HEAD = "import onnx_ci\nimport torch\n"
NET = """

@onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={{"x": {{0: "batch"}}, "y": {{0: "batch"}}}})
def net_{number:04}():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), (torch.randn(3, 4),)
"""
COMMAND = """
import atexit, sys
atexit.register(lambda: print("torch" in sys.modules, file=sys.stderr))
from onnx_ci.cli.main import main
main(prog_name="onnx-ci")
"""


def listing(folder: Path, recipes: int) -> None:
    """How long it takes to list and to plan cells, first and again, and whether that imports torch."""
    (folder / "pyproject.toml").write_text('[tool.onnx-ci]\nrecipe-files = ["nets/*.py"]\n', encoding="utf-8")
    (folder / "nets").mkdir(exist_ok=True)
    for place in range(FILES):
        nets = (NET.format(number=number) for number in range(place, recipes, FILES))
        (folder / "nets" / f"part_{place:02}.py").write_text(HEAD + "".join(nets), encoding="utf-8")
    print(f"whole commands on {recipes:,} recipes at nine opsets in {FILES} files")
    print(f"{'onnx-ci':36}{'seconds':>9}{'of the processor':>18}{'torch imported':>16}")
    for words in (["list"], ["list"], ["list", "--why", "--select=*::opset17-cpu"], ["matrix", "--shards=8"]):
        command(folder, words)
    shutil.rmtree(folder / ".onnx-ci-cache")
    for words in (["matrix", "--shards=8"], ["matrix", "--shards=8"]):
        command(folder, words)


def command(folder: Path, words: list[str]) -> None:
    """Run a command in a process of its own, and print how long it took."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *words], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    took, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(done.stdout[-3000:] + done.stderr[-3000:])
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    imported = "yes" if done.stderr.splitlines()[-1] == "True" else "no"
    print(f"{' '.join(words):36}{took:9.2f}{processor:18.2f}{imported:>16}", flush=True)


# --- shards -------------------------------------------------------------------------------------------------------------


def shards(folder: Path, recipes: int, runs: int = 20) -> None:
    """How even the parts of recipes are that take very different times."""
    from onnx_ci import Cell
    from onnx_ci.matrix.shards import Durations, partition

    print(f"{recipes:,} recipes at nine opsets, log-normal times, one of 40 a hundred times longer; {runs} draws")
    print(f"{'shards':>8}{'longest ÷ even split: median':>32}{'worst':>8}{'work, with preparations: worst':>32}{'seconds':>9}")
    for count in (2, 4, 8, 16):
        ratios, works, took = [], [], []
        for seed in range(runs):
            rng = random.Random(seed)
            own: dict[Cell, float] = {}
            prepared: dict[str, float] = {}
            for number in range(recipes):
                usual = rng.lognormvariate(0, 1) * (100 if number % 40 == 0 else 1)
                prepared[f"n{number}"] = usual * rng.uniform(0.2, 0.8)
                for opset in OPSETS:
                    cell = Cell(source="r.py", recipe=f"n{number}", exporter="torchscript", opset=opset, device="cpu")
                    own[cell] = usual * rng.lognormvariate(-1, 0.3)
            shared = {cell.id: prepared[cell.recipe] if cell.opset == OPSETS[0] else 0.0 for cell in own}
            seconds = {cell.id: took + shared[cell.id] for cell, took in own.items()}
            start = time.process_time()
            parts = partition(own, count, Durations(seconds=seconds, preparation=shared))
            took.append(time.process_time() - start)
            loads = [sum(own[c] for c in part) + sum(prepared[name] for name in {c.recipe for c in part}) for part in parts]
            total = math.fsum(seconds.values())
            ratios.append(max(loads) * count / total)
            works.append(sum(loads) / total)
        print(f"{count:8}{statistics.median(ratios):32.3f}{max(ratios):8.3f}{max(works):32.3f}{statistics.median(took):9.2f}")


# --- workers ------------------------------------------------------------------------------------------------------------

SLEEPING = '''
import sys, time, types
from pathlib import Path
from onnx_ci.engine.events import CellFinished
from onnx_ci.results.records import CellEvidence, ExportFacts

PREPARATION, CELL = {preparation}, {cell}


class Sleeping:
    """Stands for the engine of a worker: it prepares each recipe once, and runs its cells one after another."""

    def __init__(self):
        self.prepared = None

    def expect(self, cells): ...

    def close(self): ...

    def events(self, spec, artifact=None):
        start = time.time()
        if self.prepared != spec.cell.recipe:
            self.prepared = spec.cell.recipe
            time.sleep(PREPARATION)
        time.sleep(CELL)
        with Path("times.txt").open("a") as times:
            times.write(f"{{start}} {{time.time()}}\\n")
        yield CellFinished(evidence=CellEvidence(cell=spec.cell))


module = types.ModuleType("onnx_ci.engine.scheduler")
module.open_engine = lambda *arguments, **options: Sleeping()
sys.modules["onnx_ci.engine.scheduler"] = module
'''
PREPARATION, CELL = 0.9, 0.3
RECIPES = """
import onnx_ci

globals().update({{f"n{{n}}": onnx_ci.recipe(name=f"net{{n}}")(lambda: None) for n in range({recipes})}})
"""


def workers(folder: Path, recipes: int) -> None:
    """How much faster cells that sleep are done by eight workers; the times of pytest's start and end are left out."""
    (folder / "pyproject.toml").write_text('[tool.onnx-ci]\nrecipe-files = ["nets.py"]\nopsets = "9-17"\n', encoding="utf-8")
    (folder / "conftest.py").write_text(SLEEPING.format(preparation=PREPARATION, cell=CELL), encoding="utf-8")
    print(f"pytest --onnx-export -n 8 on cells that sleep for {CELL} s, and {PREPARATION} s for each preparation")
    print(f"{'recipes':>8}{'cells':>8}{'one by one':>12}{'from the first cell to the last':>34}{'times as fast':>16}")
    for number in (5, 9, 12, 24, 50):
        (folder / "nets.py").write_text(RECIPES.format(recipes=number), encoding="utf-8")
        times = folder / "times.txt"
        times.unlink(missing_ok=True)
        words = ["pytest", "-q", "-p", "no:cacheprovider", "--onnx-export", "-n", "8", "--onnx-cache=off"]
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=folder, env=environment(), capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stdout[-3000:] + done.stderr[-3000:])
        spans = [tuple(map(float, line.split())) for line in times.read_text(encoding="utf-8").splitlines()]
        span = max(end for _, end in spans) - min(start for start, _ in spans)
        alone = number * (PREPARATION + len(OPSETS) * CELL)
        print(f"{number:8}{len(spans):8}{alone:12.1f}{span:34.1f}{alone / span:16.2f}", flush=True)


TABLES = {"cells": cells, "gpu": gpu, "files": files, "listing": listing, "shards": shards, "workers": workers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TABLES), help="which tables: " + ", ".join(TABLES))
    parser.add_argument("--recipes", type=int, default=1000, help="how many recipes, except for workers")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="an existing folder for the files, which stay there")
    options = parser.parse_args()
    if sys.platform != "linux":
        sys.exit("this benchmark reads /proc and needs Linux")
    names = options.only.split(",")
    if len(names) > 1:  # each in its own process, whose memory is only its own
        for name in names:
            own = ["--only", name, "--recipes", str(options.recipes), *(["--keep", str(options.keep)] if options.keep else [])]
            subprocess.run([sys.executable, __file__, *own], check=True)
            print(flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        TABLES[names[0]](Path(options.keep or folder).absolute(), options.recipes)


if __name__ == "__main__":
    main()
