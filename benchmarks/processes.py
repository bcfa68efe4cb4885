"""What one process per cell costs in time and memory.

One table per question; the sides of each are measured alternately in one run, and the numbers are medians. Linux only.
Usage: ``python benchmarks/processes.py [--only main,workers,cell,thousand,startup,memory] [--repeat 5]``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measuring import MIB, Peak, environment, in_turns, median, resident, seconds

HEAD = "import onnx_ci\nimport torch\n"
DECLARED = 'input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}}'

TINY = """

@onnx_ci.recipe(name="{name}", {declared})
def {name}():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), (torch.randn(3, 4),)
"""

DEEP = """

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.BatchNorm2d(16)

    def forward(self, x):
        return x + torch.relu(self.norm(self.conv(x)))


@onnx_ci.recipe(name="{name}", {declared})
def {name}():
    return torch.nn.Sequential(*(Block() for _ in range(50))), (torch.randn(2, 16, 16, 16),)
"""

LARGE = """

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8192, 8192, bias=False) for _ in range({layers}))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


@onnx_ci.recipe(name="{name}", {declared})
def {name}():
    return Net(), (torch.randn(2, 8192),)
"""

PLAIN = """
import sys

import onnx_recipes
import torch

model, args = onnx_recipes.large()
dynamic = {"dynamo": False, "dynamic_axes": onnx_recipes.large.dynamic_axes}
if sys.argv[1] == "dynamo":
    dynamic = {"dynamo": True, "dynamic_shapes": ({0: torch.export.Dim.DYNAMIC},), "verbose": False}
torch.onnx.export(model.eval(), args, "plain.onnx", opset_version=18, input_names=["x"], output_names=["y"], **dynamic)
"""

ROOT = Path(__file__).resolve().parent.parent
ISOLATIONS = ("fork", "spawn", "none")
NO_CACHE = ("pytest", "-q", "-p", "no:cacheprovider", "--onnx-export", "--no-onnx-cache")


def write(folder: Path, name: str, *parts: str) -> None:
    (folder / name).write_text("".join(parts), encoding="utf-8")


def recipe(template: str, name: str, **values: object) -> str:
    return template.format(name=name, declared=DECLARED, **values)


def project(folder: Path, template: str, count: int, opsets: str) -> None:
    """``count`` recipes of one kind, each in its own file."""
    write(folder, "pyproject.toml", f'[tool.onnx-ci]\nrecipe-files = ["net_*.py"]\nopsets = "{opsets}"\n')
    for number in range(count):
        write(folder, f"net_{number:03}.py", HEAD, recipe(template, f"net_{number:03}"))


def workers(folder: Path, repeat: int) -> None:
    """How much faster 12 recipes of similar size finish with workers, and with jobs."""
    project(folder, DEEP, 12, "9-17")
    sides = {
        "-n 0 --onnx-jobs=1": ("-n", "0", "--onnx-jobs=1"),
        "-n 0": ("-n", "0"),
        "-n 2": ("-n", "2"),
    }
    figures = in_turns(
        {name: lambda flags=flags: seconds([*NO_CACHE, *flags], folder) for name, flags in sides.items()}, repeat
    )
    first = median(figures["-n 0 --onnx-jobs=1"])
    print(f"seconds for pytest --onnx-export on 12 recipes, 108 cells, median of {repeat}; how many times as fast")
    for name, values in figures.items():
        print(f"{name:24}{median(values):9.2f}{first / median(values):9.2f}")


CELL = """
import json, sys, tempfile, time
import onnx_ci
import onnx_recipes

isolation, opsets = sys.argv[1:]
recipes = [each for each in vars(onnx_recipes).values() if isinstance(each, onnx_ci.Recipe)]
with tempfile.TemporaryDirectory() as cache:
    options = {"isolation": isolation, "jobs": 1}
    onnx_ci.run(recipes[:1], opsets=13, cache=f"{cache}/first", **options)  # for what is loaded only once
    start = time.perf_counter()
    report = onnx_ci.run(recipes, opsets=opsets, cache=f"{cache}/second", **options)
    seconds = time.perf_counter() - start
assert report.verdict == "passed", report.counts
print(json.dumps(1000 * seconds / len(report.cells)))
"""


def cell(folder: Path, repeat: int) -> None:
    """What a process adds to the time of a tiny model's cell."""
    write(folder, "onnx_recipes.py", HEAD, *(recipe(TINY, f"net_{number}") for number in range(20)))
    write(folder, "cell.py", CELL)

    def milliseconds(isolation: str, opsets: str) -> float:
        done = subprocess.run(
            [sys.executable, "cell.py", isolation, opsets],
            cwd=folder, env=environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(done.stdout[-3000:] + done.stderr[-3000:])
        return float(json.loads(done.stdout.splitlines()[-1]))

    print(f"milliseconds for the cell of a tiny model, jobs=1, median of {repeat}")
    print(f"{'':40}" + "".join(f"{each:>9}" for each in ISOLATIONS) + f"{'fork - none':>16}")
    for title, opsets in (("one cell per recipe", "13"), ("nine cells per recipe", "9-17")):
        sides = {isolation: lambda i=isolation, o=opsets: milliseconds(i, o) for isolation in ISOLATIONS}
        medians = [median(values) for values in in_turns(sides, repeat).values()]
        print(f"{title:40}" + "".join(f"{each:9.1f}" for each in medians) + f"{medians[0] - medians[-1]:16.1f}")


def thousand(folder: Path, repeat: int) -> None:
    """Whether memory grows with the number of cells: after 1,000 cells compared with after 100."""
    project(folder, TINY, 112, "9-17")
    rows: dict[str, list[list[float]]] = {}

    def run(isolation: str) -> list[float]:
        words = ["onnx_ci", "run", "--no-cache", f"--isolation={isolation}"]
        process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=folder, env=environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None
        peak = Peak(process.pid, interval=0.1)
        after: list[float] = []
        last = 0
        for line in process.stdout:
            if line.startswith("[") and "/1008]" in line:
                last = resident(process.pid) or last
                if line.startswith("[100/"):
                    after += [last / MIB, peak.bytes / MIB]
        whole = peak.stop()
        if process.wait() or len(after) != 2:
            sys.exit(f"{' '.join(words)} ended with {process.returncode}")
        return [after[0], last / MIB, after[1], whole / MIB]

    for _ in range(repeat):
        for isolation in ISOLATIONS:
            rows.setdefault(isolation, []).append(run(isolation))
    print(f"MiB in a run of 1,008 tiny cells, median of {repeat}")
    print(f"{'':12}{'resident memory of the main process':>44}{'peak of all processes together':>44}")
    print(f"{'isolation':12}" + f"{'after 100':>16}{'at the end':>16}{'growth':>12}" * 2)
    for isolation, values in rows.items():
        columns = [median(column) for column in zip(*values, strict=True)]
        print(f"{isolation:12}" + "".join(f"{a:16.0f}{b:16.0f}{b - a:12.0f}" for a, b in (columns[:2], columns[2:])))


def startup(folder: Path, repeat: int) -> None:
    """What the plugin costs if it is installed but not used."""
    write(folder, "test_nothing.py", "def test_nothing(): ...\n")
    print(f"milliseconds, median of {10 * repeat}")
    print(f"{'':28}{'with plugin':>12}{'-p no:onnx-ci':>16}{'difference':>12}")
    for words in (("pytest", "--version"), ("pytest", "-q", "-p", "no:cacheprovider")):
        sides = {
            "with": lambda words=words: 1000 * seconds(words, folder),
            "without": lambda words=words: 1000 * seconds([words[0], "-p", "no:onnx-ci", *words[1:]], folder),
        }
        one, other = (median(values) for values in in_turns(sides, 10 * repeat).values())
        title = "pytest --version" if "--version" in words else "pytest, one empty test"
        print(f"{title:28}{one:12.1f}{other:16.1f}{one - other:12.1f}")


def memory(folder: Path, repeat: int, layers: int = 9) -> None:
    """The peak memory of all processes together while one cell of a model above 2 GiB runs, and of its export alone."""
    write(folder, "onnx_recipes.py", HEAD, recipe(LARGE, "large", layers=layers))
    write(folder, "plain.py", PLAIN)
    size = layers * 8192 * 8192 * 4

    def peak_of(*words: str) -> float:
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *words], cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        peak = Peak(process.pid)
        code = process.wait()
        if peak.stop() and code:
            sys.exit(f"{' '.join(words)} ended with {code} after {time.perf_counter() - start:.0f} s")
        return peak.bytes

    sides: dict[str, Callable[[], float]] = {}
    for exporter in ("torchscript", "dynamo"):
        words = ("-m", "onnx_ci", "run", "--opsets=18", "--no-cache", f"--exporters={exporter}")
        sides[f"torch.onnx.export, {exporter}"] = lambda exporter=exporter: peak_of("plain.py", exporter)
        sides[f"onnx-ci, {exporter}"] = lambda words=words: peak_of(*words)
    print(f"peak memory of one cell of a model of {size / MIB:.0f} MiB, all processes together, median of {repeat}")
    print(f"{'':32}{'MiB':>9}{'÷ model':>9}")
    for name, values in in_turns(sides, repeat).items():
        print(f"{name:32}{median(values) / MIB:9.0f}{median(values) / size:9.2f}")


def main_job(folder: Path, repeat: int) -> None:
    """The main job of this repository, three models and an LSTM at nine opsets."""
    recipes = [str(ROOT / "recipes" / "models" / f"{name}.py") for name in ("alexnet", "lstm", "resnet")]

    def run(isolation: str) -> float:
        return seconds(["onnx_ci", "run", "--no-cache", "--opsets=9-17", f"--isolation={isolation}", *recipes], folder)

    figures = in_turns({isolation: lambda i=isolation: run(i) for isolation in ISOLATIONS}, repeat)
    first = median(figures["fork"])
    print(f"seconds for the main job, 36 cells, median of {repeat}; ratio to fork")
    for isolation, values in figures.items():
        print(f"{isolation:12}{median(values):9.1f}{median(values) / first:9.2f}")


TABLES = {"main": main_job, "workers": workers, "cell": cell, "thousand": thousand, "startup": startup, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TABLES), help="which tables: " + ", ".join(TABLES))
    parser.add_argument("--repeat", type=int, default=5, help="a table that takes minutes is measured less often")
    options = parser.parse_args()
    if sys.platform != "linux":
        sys.exit("this benchmark reads /proc and needs Linux")
    for count, name in enumerate(options.only.split(",")):
        if count:
            print()
        repeat = min(options.repeat, {"thousand": 1, "main": 3, "memory": 3, "workers": 3}.get(name, options.repeat))
        with tempfile.TemporaryDirectory() as folder:
            TABLES[name](Path(folder), repeat)


if __name__ == "__main__":
    main()
