"""What an export with dynamo takes through onnx-ci's exporter, compared with ``torch.onnx.export`` called by itself.

The sides export the same small models alternately, each in its own process that has imported everything. Only the call itself
is timed, in which onnx-ci also copies the model and judges the warnings. The files must have the same bytes. ``first`` is the
first export of a process. ``first, read ahead`` is that of a process that has read torchlib before, as a process has that is
forked from another one; the last row is what reading it takes. A second table has the processor time of whole runs, all
processes together. The numbers are medians.
Usage: ``python benchmarks/dynamo.py [--repeat 5] [--opset 18] [--only exports,runs]``.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import io
import json
import logging
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from measuring import environment, in_turns, median

TINY = """
import onnx_ci
import torch


@onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={{"x": {{0: "rows"}}, "y": {{0: "rows"}}}})
def net_{number}():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), (torch.randn(3, 4),)
"""


def planned_cells(opset: int):
    """A cell of each small model."""
    import torch
    from torch import nn

    import onnx_ci
    from onnx_ci.config.settings import load_settings
    from onnx_ci.matrix.plan import task_of
    from onnx_ci.results.records import Cell

    models = {
        "linear": (nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (3, 4)),
        "norm": (nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Softmax(-1)), (3, 4)),
        "conv": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.AdaptiveAvgPool2d(1)), (2, 3, 8, 8)),
        "encoder": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
    }
    settings = load_settings(Path(tempfile.gettempdir()), flags={"isolation": "none"}, environment={})
    for name, (model, sizes) in models.items():
        recipe = onnx_ci.recipe(name=name, input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "rows"}})
        cell = Cell(source="models.py", recipe=name, exporter="dynamo", opset=opset, device="cpu")
        yield task_of(cell, recipe(lambda model=model, sizes=sizes: (model, (torch.randn(*sizes),))), settings)


def exports(side: str, opset: int) -> dict[str, list]:
    """The seconds of each export of one side, and the files' digests."""
    import torch

    from onnx_ci.pipeline.export.export import export
    from onnx_ci.pipeline.export.handling import preload
    from onnx_ci.pipeline.export.repeated_work import read_torchlib
    from onnx_ci.pipeline.prepare.prepare import prepare

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    preload("dynamo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    prepared = [(task.cell, prepare(task)) for task in planned_cells(opset)]
    gc.freeze()  # as in a fork; otherwise, it is chance which export pays for a search among all that is imported
    seconds: list[tuple[float, float]] = []
    digests = []

    @contextlib.contextmanager
    def timed() -> Iterator[None]:
        start = time.process_time(), time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            yield
        seconds.append((time.process_time() - start[0], time.perf_counter() - start[1]))

    if side == "ahead":
        with timed():
            read_torchlib()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        for cell, each in prepared:
            call = each.model.fresh()
            with timed():
                if side == "plain":
                    torch.onnx.export(
                        call.model, call.args, str(path), dynamo=True, opset_version=opset, verbose=False,
                        input_names=["x"], output_names=["y"], dynamic_shapes=each.model.signature.dynamic_shapes,
                    )  # fmt: skip
                else:
                    assert export(each.model, each.untaken_branches, cell, path).artifact is not None
            digests.append(hashlib.sha256(path.read_bytes()).hexdigest())
    return {"seconds": seconds, "digests": digests}


def measure(side: str, opset: int) -> dict[str, list]:
    """One side, in its own process."""
    command = [sys.executable, __file__, "--side", side, "--opset", str(opset)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{side} failed:\n{done.stdout}{done.stderr}")
    figures: dict[str, list] = json.loads(done.stdout.splitlines()[-1])
    return figures


def table_of_exports(repeat: int, opset: int) -> None:
    """The first table."""
    runs = [{side: measure(side, opset) for side in ("plain", "onnx-ci", "ahead")} for _ in range(repeat)]
    same = all(figures["digests"] == runs[0]["plain"]["digests"] for run in runs for figures in run.values())
    print(f"milliseconds for an export with dynamo at opset {opset}, median of {repeat} processes")
    print("the files have the same bytes" if same else "the files differ")
    print(f"{'':28}{'processor time':>34}{'wall time':>34}")
    print(f"{'':28}" + f"{'plain':>10}{'onnx-ci':>12}{'ratio':>12}" * 2)
    firsts = {
        side: [run[side]["seconds"][side == "ahead"] for run in runs] for side in runs[0]
    }  # the first of "ahead" is reading
    later = {side: [each for run in runs for each in run[side]["seconds"][1:]] for side in ("plain", "onnx-ci")}
    rows = {
        "first": (firsts["plain"], firsts["onnx-ci"]),
        "first, read ahead": (firsts["plain"], firsts["ahead"]),
        "later": (later["plain"], later["onnx-ci"]),
    }
    for title, sides in rows.items():
        line = f"{title:28}"
        for clock in (0, 1):
            plain, own = (1000 * median([each[clock] for each in seconds]) for seconds in sides)
            line += f"{plain:10.0f}{own:12.0f}{own / plain:12.2f}"
        print(line)
    ahead = [1000 * median([run["ahead"]["seconds"][0][clock] for run in runs]) for clock in (0, 1)]
    print(f"{'reading ahead':28}{'':10}{ahead[0]:12.0f}{'':12}{'':10}{ahead[1]:12.0f}")
    if not same:
        sys.exit(1)


def table_of_runs(repeat: int, opset: int) -> None:
    """The second table."""
    import resource  # not on Windows

    def processor_time(isolation: str, recipes: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(recipes):
                Path(folder, f"onnx_{number}.py").write_text(TINY.format(number=number), encoding="utf-8")
            Path(folder, "pyproject.toml").write_text('[tool.onnx-ci]\nrecipe-files = ["onnx_*.py"]\n', encoding="utf-8")
            words = ["run", "--no-cache", "--exporters=dynamo", f"--opsets={opset}", f"--isolation={isolation}"]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(
                [sys.executable, "-m", "onnx_ci", *words],
                cwd=folder, env=environment(), capture_output=True, text=True, check=False,
            )  # fmt: skip
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            sys.exit(done.stdout[-3000:] + done.stderr[-3000:])
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    print(f"seconds of processor time for a run of tiny recipes with dynamo at opset {opset}, median of {repeat}")
    print(f"{'isolation':12}{'one recipe':>14}{'five recipes':>14}{'each more':>14}")
    for isolation in ("fork", "spawn", "none"):
        sides = {str(count): lambda i=isolation, c=count: processor_time(i, c) for count in (1, 5)}
        one, five = (median(values) for values in in_turns(sides, repeat).values())
        print(f"{isolation:12}{one:14.1f}{five:14.1f}{(five - one) / 4:14.2f}")


TABLES = {"exports": table_of_exports, "runs": table_of_runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--opset", type=int, default=18)
    parser.add_argument("--only", default=",".join(TABLES), help="which tables: " + ", ".join(TABLES))
    parser.add_argument("--side", choices=("plain", "onnx-ci", "ahead"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(exports(options.side, options.opset)))
        return
    for count, name in enumerate(options.only.split(",")):
        if count:
            print()
        TABLES[name](options.repeat, options.opset)


if __name__ == "__main__":
    main()
