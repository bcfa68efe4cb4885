"""What is recorded of a cell in a baseline, made without running it."""

from __future__ import annotations

import dataclasses

from onnx_ci.baseline.check import Baselines
from onnx_ci.config.settings import load_settings
from onnx_ci.results.records import (
    Cell,
    CellResult,
    DeclaredValue,
    ExportFacts,
    OutputDrift,
    OutputValues,
    Status,
    TensorSketch,
)

VERSIONS = {"onnxruntime": "1.31.1", "torch": "2.13.0+cpu", "python": "3.11", "platform": "somewhere"}


def values(name, mean=0.5, **other):
    return OutputValues(
        name=name, noise=1e-7, least=-1.0, mean=mean, largest=1.0, spread=0.7, sample=(0.25, -1.0, mean), **other
    )


WEIGHTS = TensorSketch(tensors=2, values=20, layout="0a1b2c3d", norm=3.0, projections=(0.1, -0.2, 0.3, 0.4))
FACTS = ExportFacts(
    opset=13,
    ir_version=7,
    domains={},
    inputs=(DeclaredValue(name="x", dtype="float", dims=("batch", "4")),),
    outputs=(
        DeclaredValue(name="y", dtype="float", dims=("batch", "4")),
        DeclaredValue(name="z", dtype="float", dims=("batch", "4")),
    ),
    operators={"Gemm": 2, "Relu": 1},
    initializers=4,
    initializer_bytes=1000,
    file_bytes=2000,
    weights=WEIGHTS,
    arguments=dataclasses.replace(WEIGHTS, layout="ffff0000", tensors=1),
    values=(values("y"), values("z", mean=0.1)),
)


def drift_of(name, drift):
    return OutputDrift(
        name=name, probe="example", dtype="float32", shape=(3, 4), drift=drift, limit=16.0, error=drift * 1e-7, noise=1e-7,
        max_abs=2.0, max_rel=1e-7, index=(0, 0), reference="float64",
    )  # fmt: skip


def result_of(facts=FACTS, *, opset=13, status=Status.PASSED, drift=1.9, observability=1.0, recipe="net", device="cpu"):
    cell = Cell(source="onnx_recipes.py", recipe=recipe, exporter="torchscript", opset=opset, device=device)
    return CellResult(
        cell=cell,
        status=status,
        facts=facts and dataclasses.replace(facts, opset=opset),
        outputs=(drift_of("y", drift), drift_of("z", 1.0)),
        observability=observability,
    )


def changed(**fields):
    return dataclasses.replace(FACTS, **fields)


def settings(project, mode, **flags):
    return load_settings(project.root, flags={"baseline": mode, **flags}, environment={})


def keeper(project, mode, packages=VERSIONS, **flags):
    return Baselines(settings(project, mode, **flags), packages)
