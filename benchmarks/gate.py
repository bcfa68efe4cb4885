"""What the gate costs: the 36 cells of the main job against a plain script, side by side in one run.

The plain script does what the torch.onnx documentation shows, for every recipe and opset: export, load, check, run,
compare with a fixed tolerance. Each side runs in a process of its own, in turn, as often as ``--repeat`` says; the
figures are medians. Usage: ``python benchmarks/gate.py [--repeat 3] [--opsets 9-17]``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

RECIPES = ("alexnet", "lstm", "resnet18", "resnet50")


def recipes():
    from onnx_ci.recipes.alexnet import alexnet
    from onnx_ci.recipes.lstm import lstm
    from onnx_ci.recipes.resnet import resnet18, resnet50

    return {recipe.name: recipe for recipe in (alexnet, lstm, resnet18, resnet50)}


def plain(opsets: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """The plain script; seconds by recipe, in all and inside ``torch.onnx.export``."""
    import numpy
    import onnx
    import onnxruntime
    import torch
    from torch.utils import _pytree as pytree

    warnings.simplefilter("ignore")
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.onnx")
        for name, recipe in recipes().items():
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


def gate(opsets: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """onnx-ci; the same figures."""
    import onnx_ci

    figures = {}
    for name, recipe in recipes().items():
        start = time.perf_counter()
        report = onnx_ci.run([recipe], opsets=opsets)
        assert report.verdict == "passed", report.counts
        figures[name] = {"all": time.perf_counter() - start, "export": sum(cell.timings["export"] for cell in report.cells)}
    return figures


def measure(side: str, opsets: str) -> dict[str, dict[str, float]]:
    done = subprocess.run(
        [sys.executable, __file__, "--side", side, "--opsets", opsets], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{side} failed:\n{done.stdout}{done.stderr}")
    figures: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    from onnx_ci.opsets import parse_opsets

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--opsets", default="9-17")
    parser.add_argument("--side", choices=("plain", "gate"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps({"plain": plain, "gate": gate}[options.side](parse_opsets(options.opsets))))
        return
    runs = [{side: measure(side, options.opsets) for side in ("plain", "gate")} for _ in range(options.repeat)]
    print(f"seconds for opsets {options.opsets}, median of {options.repeat}; export: inside torch.onnx.export")
    print(f"{'recipe':10} {'plain':>7} {'export':>7} {'gate':>7} {'export':>7} {'gate/plain':>11} {'gate/its export':>16}")
    for name in (*RECIPES, "all"):
        names = RECIPES if name == "all" else (name,)

        def total(run: dict[str, dict[str, dict[str, float]]], side: str, figure: str, names: tuple[str, ...] = names) -> float:
            return sum(run[side][each][figure] for each in names)

        columns = [
            statistics.median(total(run, side, figure) for run in runs)
            for side in ("plain", "gate")
            for figure in ("all", "export")
        ]
        ratio = statistics.median(total(run, "gate", "all") / total(run, "plain", "all") for run in runs)
        own = statistics.median(total(run, "gate", "all") / total(run, "gate", "export") for run in runs)
        print(f"{name:10} " + " ".join(f"{column:7.2f}" for column in columns) + f" {ratio:11.2f} {own:16.2f}")


if __name__ == "__main__":
    main()
