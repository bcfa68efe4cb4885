"""What a recipe's first TorchScript cell, and a later one, costs beside its export, by stage, on architectures of the corpus.

As in a run with one job, each architecture has a process of its own, forked from one that has imported what exports need. In
it, the same cell runs twice: the first time it prepares the recipe, the second time it finds that done. Everything runs on one
core, and all seconds are of processor time, on which other programs have little influence. The numbers are medians of
``--repeat`` runs, and ratios are to the seconds inside ``torch.onnx.export``.

``--file small_models.py`` measures the recipes of a file of this folder instead: small models, where fixed costs weigh most.

With ``--wall``: how long a run with one job takes on all cores until the cell is judged, beside its export alone.
This needs a machine that has nothing else to do. With ``--busy``, another process keeps one core busy meanwhile; with
``GOMP_SPINCOUNT=300000`` in the environment, torch's threads wait as by default.
Usage: ``python benchmarks/corpus_cost.py [--wall [--busy]] [--file small_models.py] [--recipes 'timm-*'] [--repeat 3]``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import gc
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from measuring import median

HERE = Path(__file__).parent
CORPUS = HERE.parent / "corpus"
SAMPLE = (
    "timm-resnet",
    "timm-mobilenetv3",
    "timm-efficientnet",
    "timm-densenet",
    "timm-convnext",
    "timm-sequencer",
    "timm_fixed-vit",
    "timm_fixed-swin",
    "encoder-bert",
    "decoder-gpt2",
)
"""One architecture of each kind: convolutions of several sorts, an LSTM, attention over patches, in windows and over text."""
LONG = 0.5
"""Seconds. Compared with exports that take at least this long, starting processes, building and loading cost little."""
EXPORT, AROUND, REST = "export", "around the export", "rest"
"""The seconds inside ``torch.onnx.export``, those around it in the stage of the export, and what no stage accounts for."""
Figures = dict[str, float]
"""Seconds by stage."""


def settings_of(opset: int, file: str | None) -> Any:
    """The settings of a run with one job, on a recipe file or the corpus."""
    from onnx_ci.config.settings import load_settings

    flags = {"opsets": str(opset), "exporters": "torchscript", "cache": "off", "jobs": "1"}
    if file is not None:
        flags["recipe_files"] = file
    return load_settings(Path.cwd(), flags=flags, environment={})


def plans(settings: Any) -> dict[str, Any]:
    """The TorchScript cell of each recipe, by the recipe's name."""
    from onnx_ci.engine.recipes import find_recipes

    return {task.cell.recipe: task for task in find_recipes(dataclasses.replace(settings, isolation="none")).plan().cells}


def two_cells(task: Any) -> dict[str, Any]:
    """The figures of a recipe's first cell and of a later one, and which rules they break."""
    import torch

    from onnx_ci.engine.one_process import Engine
    from onnx_ci.processes import capture
    from onnx_ci.results.verdict import broken_rules

    export, inside = torch.onnx.export, 0.0

    def timed_export(*args: Any, **keywords: Any) -> Any:
        nonlocal inside
        start = time.process_time()
        try:
            return export(*args, **keywords)
        finally:
            inside += time.process_time() - start

    clock = dataclasses.replace(capture.CLOCK, perf_counter=time.process_time)
    with mock.patch.object(capture, "CLOCK", clock), mock.patch.object(torch.onnx, "export", timed_export), Engine() as engine:
        figures = []
        for _ in ("first", "later"):
            start, inside = time.process_time(), 0.0
            evidence = engine.run_cell(task)
            taken = time.process_time() - start
            stages = {**evidence.timings, EXPORT: inside, AROUND: evidence.timings.get(EXPORT, 0.0) - inside}
            figures.append({**stages, REST: taken - sum(stages.values())})
    messages = [each.message for each in evidence.findings if each.severity == "error"]
    return {
        "cells": figures,
        "broken": sorted(broken_rules(evidence.findings)),
        "why_not": None if evidence.facts is not None else next(iter(messages), evidence.reason or "for no known reason"),
    }


def export_alone(task: Any) -> dict[str, Any]:
    """The wall seconds of a cell's export, while nothing else runs; ``None`` if it breaks off."""
    from onnx_ci.engine.one_process import Engine

    with Engine() as engine:
        evidence = engine.run_cell(task)
    return {EXPORT: None if evidence.facts is None else evidence.timings[EXPORT]}


def in_a_run(task: Any, settings: Any) -> float:
    """The wall seconds of a run of one cell, in a process that has imported what exports need."""
    from onnx_ci.engine.scheduler import open_engine

    start = time.perf_counter()
    with open_engine(settings) as engine:
        for _ in engine.events(task):
            pass
        return time.perf_counter() - start


def wall(known: dict[str, Any], names: Sequence[str], settings: Any, repeat: int) -> None:
    """The table of ``--wall``."""
    print(f"wall seconds, median of {repeat}, on {len(os.sched_getaffinity(0))} cores with one job")
    print(f"{'recipe':24}" + "".join(f"{title:>9}" for title in ("export", "run", "ratio")))
    ratios, of_long = {}, []
    for name in names:
        runs = [
            (in_a_fork(lambda task=known[name]: export_alone(task))[EXPORT], in_a_run(known[name], settings))
            for _ in range(repeat)
        ]
        if not all(export for export, _ in runs):
            print(f"{name:24} is not exported")
            continue
        export, run = (median(column) for column in zip(*runs, strict=True))
        ratios[name] = run / export
        if export >= LONG:
            of_long.append(ratios[name])
        print(f"{name:24}{export:9.2f}{run:9.2f}{ratios[name]:9.2f}", flush=True)
    worst = max(ratios, key=ratios.__getitem__)
    print(f"{median([*ratios.values()]):.2f} x their export in the median, {ratios[worst]:.2f} at worst ({worst})")
    if of_long:
        print(f"{median(of_long):.2f} in the median of the {len(of_long)} that take {LONG} s or more to export")


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    """Within the block, another process computes without a pause."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def in_a_fork(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``work`` returns in a process forked from this one."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            gc.freeze()  # as hosts do
            os.write(write, json.dumps(work()).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as answer:
        text = answer.read()
    if os.waitpid(pid, 0)[1]:
        sys.exit("the process of an architecture failed")
    made: dict[str, Any] = json.loads(text)
    return made


def middle(runs: Sequence[Figures]) -> Figures:
    """The median of each stage."""
    stages = dict.fromkeys(stage for run in runs for stage in run)
    return {stage: median([run.get(stage, 0.0) for run in runs]) for stage in stages}


def show(title: str, figures: Figures) -> None:
    """A line of the table of sums, in seconds and in units of the export."""
    print(f"\n{title}")
    for stage, seconds in sorted(figures.items(), key=lambda pair: -pair[1]):
        print(f"{stage:20}{seconds:9.2f}{seconds / figures[EXPORT]:9.2f}")
    print(f"{'sum':20}{sum(figures.values()):9.2f}{sum(figures.values()) / figures[EXPORT]:9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", help="a file of recipes in the folder of this one; by default, the corpus")
    parser.add_argument("--recipes", help="names of recipes, or patterns such as timm-*")
    parser.add_argument("--opset", type=int, default=17)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--wall", action="store_true", help="measure wall time of runs with one job, on all cores")
    parser.add_argument("--busy", action="store_true", help="with --wall: beside a process that keeps one core busy")
    options = parser.parse_args()
    if options.busy and not options.wall:
        parser.error("--busy needs --wall")
    if not options.wall:
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # before libraries count the cores
    os.chdir(HERE if options.file else CORPUS)
    from onnx_ci.environment.this_process import set_torch_variables

    set_torch_variables()  # as commands do
    from onnx_ci.pipeline.export.handling import preload

    settings = settings_of(options.opset, options.file)
    known = plans(settings)
    preload("torchscript")
    patterns = (options.recipes or ("*" if options.file else ",".join(SAMPLE))).split(",")
    names = [name for pattern in patterns for name in fnmatch.filter(known, pattern)]
    if not names:
        parser.error(f"no recipe is called {options.recipes}")
    if options.wall:
        with busy_core() if options.busy else contextlib.nullcontext():
            wall(known, names, settings, options.repeat)
        return
    print(f"processor seconds at opset {options.opset}, median of {options.repeat}; ratios are to the export of the same cell")
    titles = "".join(f"{title:>9}" for title in ("export", "first", "later", "ratio", "later"))
    print(f"{'recipe':24}{titles}", flush=True)  # what is buffered would be printed by each fork, too
    first, later, ratios, not_exported = {}, {}, {}, []
    for name in names:
        runs = [in_a_fork(lambda task=known[name]: two_cells(task)) for _ in range(options.repeat)]  # type: ignore[misc]
        if why := next((run["why_not"] for run in runs if run["why_not"]), None):
            print(f"{name:24} is not exported: {why}", flush=True)
            not_exported.append(name)
            continue
        first[name], later[name] = (middle([run["cells"][at] for run in runs]) for at in (0, 1))
        one, other = sum(first[name].values()), sum(later[name].values())
        ratios[name] = one / first[name][EXPORT], other / later[name][EXPORT]
        numbers = "".join(f"{each:9.2f}" for each in (first[name][EXPORT], one, other, *ratios[name]))
        print(f"{name:24}{numbers}  {', '.join(runs[0]['broken'])}", flush=True)
    if not ratios:
        sys.exit("nothing was exported; what the corpus needs is installed by pip install --group corpus")
    for title, cells, at in (("first", first, 0), ("later", later, 1)):
        worst = max(ratios, key=lambda name: ratios[name][at])
        middle_ratio = median([each[at] for each in ratios.values()])
        summary = f"{title} cells: {middle_ratio:.2f} x their export in the median, {ratios[worst][at]:.2f} at worst ({worst})"
        sums = {stage: sum(cell.get(stage, 0.0) for cell in cells.values()) for cell in cells.values() for stage in cell}
        show(f"{summary}; seconds of all by stage, and as a ratio", sums)
    if not_exported and options.recipes is None:
        sys.exit(f"\nnot exported: {', '.join(not_exported)}")


if __name__ == "__main__":
    main()
