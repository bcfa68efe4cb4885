"""Recipes of single functions, and what a cell of them finds."""

from __future__ import annotations

from pathlib import Path

import torch

import onnx_ci
from onnx_ci.config.settings import load_settings
from onnx_ci.engine.events import CellFinished
from onnx_ci.matrix.plan import CellTask, task_of
from onnx_ci.results.records import Cell

BATCH = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
ROWS = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "rows"}, "y": {0: "rows"}}}
"""What a recipe declares of a function of ``x``."""


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


class Total(torch.nn.Module):
    """The sum of the rows, which tracing freezes at the rows of the example."""

    def forward(self, x):
        total = torch.zeros(4)
        for i in range(x.shape[0]):
            total = total + x[i]
        return total


class Counts(torch.nn.Module):
    """A model that counts its calls, which no file can."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x + self.calls


def recipe_of(function, *args, name="net", **keywords):
    """A recipe whose model computes ``function``."""
    return onnx_ci.recipe(name=name, **keywords)(lambda: (Function(function), args))


def run_one(recipe, **options):
    """The result of a cell that runs in this process, unless ``options`` say otherwise."""
    (result,) = onnx_ci.run([recipe], **{"opsets": "13", "isolation": "none", **options}).cells
    return result


def evidence_of(engine, specs):
    """The evidence that an engine has about each cell, in order, each as soon as it is known."""
    engine.expect(specs)
    finished = {}
    for spec in specs:
        if spec.cell.id not in finished:
            events = [event for event in engine.events(spec) if isinstance(event, CellFinished)]
            finished |= {event.evidence.cell.id: event.evidence for event in events}
        yield finished.pop(spec.cell.id)


def errors(result):
    """The findings that fail the cell."""
    return [each for each in result.findings if each.severity is onnx_ci.Severity.ERROR]


def rules(result):
    """The rules that the cell broke; notes aside."""
    return [each.rule for each in errors(result)]


def task(recipe, *, cell: Cell | None = None, **options) -> CellTask:
    """A cell of the recipe, by default at opset 13 on the CPU, under the default settings but for ``options``."""
    cell = cell or Cell(source="onnx_recipes.py", recipe=recipe.name, exporter="torchscript", opset=13, device="cpu")
    return task_of(cell, recipe, load_settings(Path(__file__).parent, flags=options, environment={}))
