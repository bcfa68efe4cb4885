"""Cells, results and reports to be written, read, merged and shown, made without running anything."""

from __future__ import annotations

import dataclasses

from onnx_ci import Cell, CellResult, OutputDrift, RunReport, Status
from onnx_ci.results.records import (
    DeclaredValue,
    ExportFacts,
    Origin,
    OutputValues,
    SettingSource,
    SettingValue,
    SkipCause,
    TensorSketch,
)
from onnx_ci.results.rules import finding


def cell(**changes):
    return Cell(**{"source": "a/b.py", "recipe": "net", "exporter": "torchscript", "opset": 9, "device": "cpu", **changes})


def drift(**changes):
    values = {
        "name": "y", "probe": "example", "dtype": "float32", "shape": (2, 3), "drift": 1.5, "limit": 32.0, "error": 1.5e-7,
        "noise": 1e-7, "max_abs": 1.0, "max_rel": 1e-6, "index": (1, 2), "reference": "float64",
    }  # fmt: skip
    return OutputDrift(**{**values, **changes})


def passed(value=1.5, **changes):
    """A cell that passed with a drift of ``value``; ``changes`` are those of its cell, as in the functions below."""
    return CellResult(cell=cell(**changes), status=Status.PASSED, outputs=(drift(drift=value),))


def warned(**changes):
    """A cell that passed with a warning."""
    edge = finding("edge-mismatch", "off by 2", output="y", probe="masks empty")
    return dataclasses.replace(passed(**changes), findings=(edge,))


def failed(**changes):
    return CellResult(cell=cell(**changes), status=Status.FAILED, findings=(finding("numeric-drift", "off by 3"),))


def skipped(**changes):
    return CellResult(
        cell=cell(**changes),
        status=Status.SKIPPED,
        reason="no cuda: no driver",
        skip_cause=SkipCause.MISSING_DEVICE,
    )


def with_facts(result, *, size=1000, operators=None, output="y"):
    """A result with what a baseline records about its file."""
    sketch = TensorSketch(tensors=1, values=6, layout="a", norm=1.0, projections=(0.5,))
    facts = ExportFacts(
        opset=result.cell.opset, ir_version=8, domains={}, inputs=(DeclaredValue(name="x", dtype="float", dims=("2", "3")),),
        outputs=(DeclaredValue(name=output, dtype="float", dims=("2", "3")),), operators=operators or {"Conv": 2, "Relu": 1},
        initializers=1, initializer_bytes=24, file_bytes=size, weights=sketch, arguments=sketch,
        values=(OutputValues(name=output, noise=1e-7, least=0.0, mean=0.5, largest=1.0, spread=0.1, sample=(0.5,)),),
    )  # fmt: skip
    return dataclasses.replace(result, facts=facts)


def facts(**changes):
    """What a baseline records of a small file."""
    sketch = TensorSketch(tensors=1, values=4, layout="00000000", norm=1.0, projections=(1.0, 2.0))
    values = {
        "opset": 9, "ir_version": 7, "domains": {}, "inputs": (), "outputs": (), "operators": {"Relu": 1}, "initializers": 1,
        "initializer_bytes": 16, "file_bytes": 1000, "weights": sketch, "arguments": sketch, "values": (),
    }  # fmt: skip
    return ExportFacts(**{**values, **changes})


def setting(value, given_as="default"):
    """The value of a setting: a default, or given by a flag of ``onnx-ci``, such as ``--opsets``."""
    source = SettingSource.DEFAULT if given_as == "default" else SettingSource.COMMAND_LINE
    return SettingValue(value=value, origin=Origin(source=source, given_as=given_as))


def report(*cells, **changes):
    """A report of a run about whose packages and settings nothing is known."""
    return RunReport(environment={}, settings={}, cells=cells, **changes)


def run_of(*results, torch="2.13.0", seconds=1.0, settings=None, **changes):
    """A report of a run with the given settings, as their flags gave them."""
    given = {name: setting(value, f"--{name}") for name, value in (settings or {"max-drift": "16"}).items()}
    return RunReport(environment={"torch": torch}, settings=given, cells=results, seconds=seconds, **changes)


def report_with(seconds, **changes):
    """The report of a run whose cells took so many seconds each, by their ids, as JSON data."""
    results = tuple(
        CellResult(cell=Cell.from_id(id), status=Status.PASSED, timings={} if took is None else {"prepare": took / 2, "run": took / 2})
        for id, took in seconds.items()
    )  # fmt: skip
    return {**RunReport(environment={}, settings={}, cells=results).as_json(), **changes}
