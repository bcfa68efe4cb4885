"""What the gate costs: whole runs against ``torch.onnx.export`` alone and against a plain script, and with a cache.

The plain script does what the torch.onnx documentation shows, for every recipe and opset: export, load, check, run,
compare with a fixed tolerance; the seconds inside ``torch.onnx.export`` are counted separately. The sides run alternately,
each in its own process, ``--repeat`` times; the numbers are medians. A line says how often each model runs for one cell. A
second table times whole commands on ten recipes in ten files: with one of them edited, and as CI runs them, in a fresh clone in
another folder with a restored cache. A third one times ten files that each import transformers, if that can be imported, and
one of them alone.
Usage: ``python benchmarks/gate.py [--repeat 3] [--opsets 9-17] [--recipes alexnet,lstm,resnet50]``.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from measuring import in_turns, median, seconds, timed


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
    return {name: _seconds_of_run([known[name]], opsets) for name in names}


def together(names: Sequence[str], opsets: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """onnx-ci, all recipes in one run, as it is normally used."""
    known = recipes()
    return {"in one run": _seconds_of_run([known[name] for name in names], opsets)}


def _seconds_of_run(chosen: Sequence[object], opsets: tuple[int, ...]) -> dict[str, float]:
    import onnx_ci

    start = time.perf_counter()
    report = onnx_ci.run(chosen, opsets=opsets)
    taken = time.perf_counter() - start
    assert report.verdict == "passed", report.counts
    return {"cold": taken}


def runs_of_the_model(names: Sequence[str], opsets: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """How often onnx-ci itself runs each model for one cell, in one process. The exporter runs it, too."""
    import onnx_ci
    from onnx_ci.pipeline.model.running import run_tree

    known, figures = recipes(), {}
    for name in names:
        runs = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal runs
            runs += event == "call" and frame.f_code is run_tree.__code__

        sys.setprofile(count)
        try:
            report = onnx_ci.run([known[name]], opsets=opsets[-1:], isolation="none", cache="off")
        finally:
            sys.setprofile(None)
        assert report.verdict == "passed", report.counts
        figures[name] = {"runs": runs}
    return figures


SIDES = {"plain": plain, "gate": gate, "together": together, "runs": runs_of_the_model}


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
    runs = [{side: measure(side, options) for side in ("plain", "gate", "together")} for _ in range(options.repeat)]
    print(
        f"seconds for opsets {options.opsets}, median of {options.repeat}; export: inside torch.onnx.export of the plain script"
    )
    print(f"{'recipe':12}" + "".join(f"{title:>9}" for title in ("export", "plain", "onnx-ci", "÷ export", "÷ plain")))
    for name in (*names, "sum", "in one run"):

        def figures(run: dict[str, dict[str, dict[str, float]]], name: str = name) -> list[float]:
            rows = names if name in ("sum", "in one run") else (name,)
            export, script = (sum(run["plain"][each][figure] for each in rows) for figure in ("export", "all"))
            own = [run["together"][name]] if name == "in one run" else [run["gate"][each] for each in rows]
            cold = sum(each["cold"] for each in own)
            return [export, script, cold, cold / export, cold / script]

        columns = [median(column) for column in zip(*map(figures, runs), strict=True)]
        print(f"{name:12}" + "".join(f"{column:9.2f}" for column in columns))
    counts = {name: round(figures["runs"]) for name, figures in measure("runs", options).items()}
    print(
        "\nruns of the model for one cell, beside the export: " + ", ".join(f"{name} {count}" for name, count in counts.items())
    )


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

        def git(*words: str) -> None:
            identity = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@example.invalid"]
            subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)

        def in_fresh_clone(*words: str) -> Callable[[], float]:
            """A command in a clone in another folder, to which CI has restored the cache."""

            def clone_and_run() -> float:
                git("add", "--all", "--", ".", ":!verdicts")
                git("commit", "--quiet", "--allow-empty", "--message=benchmark")
                run()  # after the commit, as CI does: a file counts by its content once git tracks it
                with tempfile.TemporaryDirectory() as other:
                    clone = Path(other, "clone")
                    git("clone", "--quiet", str(folder), str(clone))
                    shutil.copytree(folder / "verdicts", clone / "verdicts")
                    taken, printed = timed([sys.executable, "-m", *words, "--cache=verdicts"], clone)
                    assert "run" not in words or re.search(r"(\d+) passed, \1 of them cached", printed), printed
                    return taken

            return clone_and_run

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
            "fresh clone, onnx-ci run": in_fresh_clone("onnx_ci", "run", "-q"),
            "fresh clone, onnx-ci list": in_fresh_clone("onnx_ci", "list"),
            "import the command line": lambda: timed([sys.executable, "-c", "import onnx_ci.cli.main"], folder)[0],
            "one of ten edited": after_editing([4], cached),
            "that one alone": after_editing([4], lambda: cached("net_4.py")),
            "one of ten edited, onnx-ci run": after_editing([4], run),
            "that one alone, onnx-ci run": after_editing([4], lambda: run("net_4.py")),
        }
        for number in range(10):
            write(number)
        (folder / "one.py").write_text("def test_nothing():\n    pass\n", encoding="utf-8")
        git("init", "--quiet")
        figures = in_turns(sides, options.repeat)
    first = median(figures["without a cache"])
    print(f"\nseconds for whole commands on ten recipes at opsets {options.opsets}, median of {options.repeat}")
    for title, values in figures.items():
        print(f"{title:32}{median(values):9.2f}{median(values) / first:9.2f}")


TRANSFORMER = """
import onnx_ci
import torch
from transformers import BertConfig, BertModel


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        sizes = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50)
        self.bert = BertModel(BertConfig(**sizes))

    def forward(self, ids):
        return self.bert(ids).last_hidden_state


@onnx_ci.recipe(input_names=["ids"], output_names=["states"], dynamic_axes={{"ids": {{0: "batch"}}}}, opsets=17)
def bert_{number}():
    return Net(), (torch.randint(0, 50, (2, 8)),)
"""


def ten_transformers(options: argparse.Namespace) -> None:
    """The third table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pyproject.toml").write_text('[tool.onnx-ci]\nrecipe-files = ["bert_*.py"]\n', encoding="utf-8")
        for number in range(10):
            (folder / f"bert_{number}.py").write_text(TRANSFORMER.format(number=number), encoding="utf-8")
        sides = {
            "onnx-ci list, ten files": lambda: seconds(["onnx_ci", "list", "--no-cache"], folder),
            "onnx-ci list, one": lambda: seconds(["onnx_ci", "list", "--no-cache", "bert_0.py"], folder),
            "onnx-ci run, ten files": lambda: seconds(["onnx_ci", "run", "-q", "--no-cache"], folder),
            "onnx-ci run, one": lambda: seconds(["onnx_ci", "run", "-q", "--no-cache", "bert_0.py"], folder),
        }
        figures = in_turns(sides, options.repeat)
    print(f"\nseconds for whole commands on files that each import transformers, median of {options.repeat}")
    for title, values in figures.items():
        print(f"{title:32}{median(values):9.2f}")


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
    usable = [sys.executable, "-c", "from transformers import BertModel"]
    if subprocess.run(usable, capture_output=True, check=False).returncode == 0:
        ten_transformers(options)


if __name__ == "__main__":
    main()
