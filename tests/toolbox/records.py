"""Cells, results and reports to be written, read, merged and shown, made without running anything."""

from __future__ import annotations

import dataclasses
import math
import random

from onnx_ci import Cell, CellResult, OutputDrift, Problem, RunReport, Status
from onnx_ci.results.records import (
    CpuVsGpu,
    DeclaredValue,
    Exclusion,
    ExportFacts,
    Origin,
    OutputValues,
    Revision,
    SettingSource,
    SettingValue,
    Severity,
    SkipCause,
    TensorSketch,
)
from onnx_ci.results.rules import RULES, finding
from onnx_ci.results.run_report import Part


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


def random_report(seed):
    """A report with some of everything that a report can hold."""
    rng = random.Random(seed)

    def text():
        return "".join(rng.choice('ab cé\n\t"\\😀:/<') for _ in range(rng.randint(0, 9)))

    def number():
        return rng.choice([0.0, 1.5, 3e-9, -2.0, math.inf, -math.inf, math.nan, rng.random()])

    def many(make):
        return tuple(make() for _ in range(rng.randint(0, 3)))

    def perhaps(make):
        return make() if rng.random() < 0.5 else None

    def one_finding():
        found = finding(
            rng.choice(list(RULES)), text(), severity=rng.choice(list(Severity)), output=perhaps(text), probe=perhaps(text),
            operator=perhaps(text), opset=perhaps(lambda: rng.randint(1, 30)), drift=perhaps(number),
            baseline_change=perhaps(text), details={"at": [number(), None, {"a": 1}]},
        )  # fmt: skip
        return dataclasses.replace(found, also_on=many(text), probe_weights=rng.random() < 0.5)

    def result(opset):
        return CellResult(
            cell=cell(opset=opset, device=rng.choice(["cpu", "cuda:1"]), exporter=rng.choice(["torchscript", "dynamo"])),
            status=rng.choice(list(Status)), skip_cause=rng.choice([None, *SkipCause]), reason=text(), log=text(),
            line=rng.choice([None, 3]), cached=rng.random() < 0.5, findings=many(one_finding),
            outputs=many(lambda: drift(name=text(), shape=tuple(rng.choices(range(9), k=2)), drift=number(), max_rel=number(), index=rng.choice([None, (), (1, 2)]), probe_weights=rng.random() < 0.5)),
            timings={text(): rng.random() for _ in range(2)}, artifact=rng.choice([None, text()]), observability=rng.choice([None, 0.5]),
            cpu_vs_gpu=many(lambda: CpuVsGpu(name=text(), errors={text(): number()}, apart=many(text))),
        )  # fmt: skip

    def settings():
        return {
            name: SettingValue(
                value=rng.choice([None, text()]), origin=Origin(source=rng.choice(list(SettingSource)), given_as=text())
            )
            for name in ("max-drift", "opsets")
        }

    def revision():
        commit = f"{rng.getrandbits(160):040x}"
        return Revision(commit=commit, branch=perhaps(text), is_modified=rng.random() < 0.5)

    def part():
        return Part(
            name=text(), revision=perhaps(revision), environment={"torch": text()}, settings=settings(), cells=many(text),
            seconds=rng.randint(0, 9) / 8,
        )  # fmt: skip

    def problem():
        return Problem(source=text(), message=text(), file=perhaps(text), line=rng.choice([None, 7]))

    return RunReport(
        environment={"torch": text(), text(): text()}, settings=settings(), cells=tuple(map(result, range(1, rng.randint(2, 6)))),
        problems=many(problem), exclusions=many(lambda: Exclusion(recipe=text(), reason=text())),
        not_run=many(text), revision=perhaps(revision), merged_from=many(part), seconds=rng.randint(0, 999) / 8,
    )  # fmt: skip
