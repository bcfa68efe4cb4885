"""What the gate costs: whole runs against ``torch.onnx.export`` alone and against a plain script, and again with a cache.

The plain script does what the torch.onnx documentation shows, for every recipe and opset: export, load, check, run,
compare with a fixed tolerance; the seconds inside ``torch.onnx.export`` are counted separately. onnx-ci runs the same cells
with an empty cache (cold), and again with nothing changed (warm). The sides run alternately, each in its own process,
``--repeat`` times; the numbers are medians. A second table times whole commands on ten recipes in ten files, one of
which is edited; a run without an edit recalls the one before it.
Usage: ``python benchmarks/gate.py [--repeat 3] [--opsets 9-17] [--recipes alexnet,lstm,resnet50]``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from measuring import in_turns, median, seconds


def recipes():
    from onnx_ci.recipes.models.alexnet import alexnet
    from onnx_ci.recipes.models.lstm import lstm
    from onnx_ci.recipes.models.resnet import resnet18, resnet50

    return {recipe.name: recipe for recipe in (alexnet, lstm, resnet18, resnet50)}


def plain(names: Sequence[str], opsets: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """The plain script: seconds by recipe, in total and inside ``torch.onnx.export``."""
    import numpy
    import onnx
    import onnxruntime
    import torch
    from torch.utils import _pytree as pytree

    warnings.simplefilter("ignore")
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.onnx")
        known = recipes()
        for name in names:
            recipe = known[name]
            start, exporting = time.perf_counter(), 0.0
            torch.manual_seed(0)
            model, args = recipe()
            model.eval()
            with torch.no_grad():
                expected = pytree.tree_leaves(model(*args))
            for opset in opsets:
                before = time.perf_counter()
                torch.onnx.export(
                    model, args, file, dynamo=False, opset_version=opset, input_names=list(recipe.input_names),
                    output_names=list(recipe.output_names), dynamic_axes=recipe.dynamic_axes,
                )  # fmt: skip
                exporting += time.perf_counter() - before
                loaded = onnx.load(file)
                onnx.checker.check_model(loaded)
                session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
                feeds = dict(zip(recipe.input_names, (t.numpy() for t in pytree.tree_leaves(args)), strict=True))
                for got, want in zip(session.run(None, feeds), expected, strict=True):
                    numpy.testing.assert_allclose(got, want.numpy(), rtol=1e-3, atol=1e-5)
            figures[name] = {"all": time.perf_counter() - start, "export": exporting}
    return figures


def gate(names: Sequence[str], opsets: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """onnx-ci, one recipe at a time."""
    known = recipes()
    return {name: _cold_and_warm([known[name]], opsets) for name in names}


def together(names: Sequence[str], opsets: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """onnx-ci, all recipes in one run, as it is normally used."""
    known = recipes()
    return {"in one run": _cold_and_warm([known[name] for name in names], opsets)}


def _cold_and_warm(chosen: Sequence[object], opsets: tuple[int, ...]) -> dict[str, float]:
    import onnx_ci

    figures = {}
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold", "warm"):
            start = time.perf_counter()
            report = onnx_ci.run(chosen, opsets=opsets, cache=cache)
            figures[name] = time.perf_counter() - start
            assert report.verdict == "passed", report.counts
            assert all(cell.cached is (name == "warm") for cell in report.cells)
    return figures


SIDES = {"plain": plain, "gate": gate, "together": together}


def measure(side: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """One side, in its own process."""
    command = [sys.executable, __file__, "--side", side, "--opsets", options.opsets, "--recipes", options.recipes]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{side} failed:\n{done.stdout}{done.stderr}")
    figures: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return figures


def whole_runs(options: argparse.Namespace) -> None:
    """The first table."""
    names = options.recipes.split(",")
    runs = [{side: measure(side, options) for side in SIDES} for _ in range(options.repeat)]
    print(
        f"seconds for opsets {options.opsets}, median of {options.repeat}; export: inside torch.onnx.export of the plain script"
    )
    titles = ("export", "plain", "cold", "warm")
    print(f"{'recipe':12}" + "".join(f"{title:>9}" for title in (*titles, "cold/exp.", "cold/pl.", "warm/cold")))
    for name in (*names, "sum", "in one run"):

        def figures(run: dict[str, dict[str, dict[str, float]]], name: str = name) -> list[float]:
            rows = names if name in ("sum", "in one run") else (name,)
            export, script = (sum(run["plain"][each][figure] for each in rows) for figure in ("export", "all"))
            own = [run["together"][name]] if name == "in one run" else [run["gate"][each] for each in rows]
            cold, warm = (sum(each[figure] for each in own) for figure in ("cold", "warm"))
            return [export, script, cold, warm, cold / export, cold / script, warm / cold]

        columns = [median(column) for column in zip(*map(figures, runs), strict=True)]
        print(f"{name:12}" + "".join(f"{column:9.2f}" for column in columns))


SMALL = """
import onnx_ci
import torch

SCALE = {scale}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [3, 32, 64, 128, 128]
        self.body = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Conv2d(a, b, 3, 2, 1), torch.nn.BatchNorm2d(b), torch.nn.ReLU())
              for a, b in zip(sizes, sizes[1:])))
        self.head = torch.nn.Linear(128, 100)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3))) * SCALE


@onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={{"x": {{0: "batch"}}, "y": {{0: "batch"}}}})
def net_{number}():
    return Net(), (torch.randn(2, 3, 64, 64),)
"""


def ten_recipes(options: argparse.Namespace) -> None:
    """The second table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pyproject.toml").write_text(
            f'[tool.onnx-ci]\nrecipe-files = ["net_*.py"]\nopsets = "{options.opsets}"\n', encoding="utf-8"
        )
        count = 0

        def write(number: int) -> None:
            nonlocal count
            count += 1  # a different text each time, so that every edit is a change
            (folder / f"net_{number}.py").write_text(SMALL.format(number=number, scale=1 + count / 1024), encoding="utf-8")

        def pytest(*flags: str) -> float:
            return seconds(["pytest", "-q", "-p", "no:cacheprovider", "--onnx-export", *flags], folder)

        def cached(*paths: str) -> float:
            return pytest(f"--onnx-cache={folder / 'verdicts'}", *paths)

        def run(*paths: str) -> float:
            return seconds(["onnx_ci", "run", "-q", f"--cache={folder / 'verdicts'}", *paths], folder)

        def after_editing(numbers: Sequence[int], command: Callable[[], float]) -> Callable[[], float]:
            def edit_and_run() -> float:
                for number in numbers:
                    write(number)
                return command()

            return edit_and_run

        sides = {
            "without a cache": lambda: pytest("--no-onnx-cache"),
            "every recipe edited": after_editing(range(10), cached),
            "nothing edited": lambda: [cached(), cached()][-1],
            "pytest without onnx-ci": lambda: seconds(
                ["pytest", "-q", "-p", "no:cacheprovider", "-p", "no:onnx-ci", "one.py"], folder
            ),
            "nothing edited, onnx-ci run": lambda: [run(), run()][-1],
            "one of ten edited": after_editing([4], cached),
            "that one alone": after_editing([4], lambda: cached("net_4.py")),
            "one of ten edited, onnx-ci run": after_editing([4], run),
            "that one alone, onnx-ci run": after_editing([4], lambda: run("net_4.py")),
        }
        for number in range(10):
            write(number)
        (folder / "one.py").write_text("def test_nothing():\n    pass\n", encoding="utf-8")
        figures = in_turns(sides, options.repeat)
    first = median(figures["without a cache"])
    print(f"\nseconds for whole commands on ten recipes at opsets {options.opsets}, median of {options.repeat}")
    for title, values in figures.items():
        print(f"{title:32}{median(values):9.2f}{median(values) / first:9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--opsets", default="9-17")
    parser.add_argument("--recipes", default="alexnet,lstm,resnet50", help="of alexnet, lstm, resnet18, resnet50")
    parser.add_argument("--side", choices=tuple(SIDES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        from onnx_ci.opsets import parse_opsets

        print(json.dumps(SIDES[options.side](options.recipes.split(","), parse_opsets(options.opsets))))
        return
    whole_runs(options)
    ten_recipes(options)


if __name__ == "__main__":
    main()
