"""How many wrong files each method detects: single faults injected into exported graphs, judged by all methods in one run.

A fault is injected twice: into the file that onnx-ci itself judges (the cell's export, with probe weights), and into a plain
export of the same model with its seeded weights, which the other methods judge in their usual way: on the example. A fault
counts if it is alive, that is, if it changes an output of the first file on some random, shifted or resized input.
Prints the share of detected faults by kind of fault and by model, and the faults that onnx-ci misses. The exit code is 1 if it
misses one, or if there is a model that could not be studied.
Usage: ``python benchmarks/mutation.py [--models lstm,vit] [--faults 40] [--seed 0] [--opset 15]``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy
import onnx
import onnxruntime
import torch
from models import mixed
from onnx import TensorProto, helper, numpy_helper
from torch.utils import _pytree as pytree

import onnx_ci
from onnx_ci.config.settings import find_root, load_settings
from onnx_ci.engine import cell as cell_module
from onnx_ci.engine.one_process import Engine
from onnx_ci.engine.weights import first_weights
from onnx_ci.matrix.plan import task_of
from onnx_ci.opsets import default_exporter
from onnx_ci.pipeline.export.export import Artifact, Written
from onnx_ci.pipeline.inputs.probes import Probes
from onnx_ci.pipeline.prepare.prepare import prepare
from onnx_ci.results.records import Cell, Status
from onnx_ci.results.verdict import decide

# --- the rules ----------------------------------------------------------------------------------------------------------
# Each takes the file's and the model's value of one output, and returns whether it rejects the file.


def allclose(got: numpy.ndarray, want: numpy.ndarray) -> bool:
    """``numpy.allclose`` with ``atol=rtol=1e-5``."""
    return got.shape != want.shape or not numpy.allclose(got, want, rtol=1e-5, atol=1e-5)


def assert_close(got: numpy.ndarray, want: numpy.ndarray) -> bool:
    """``torch.testing.assert_close`` with its defaults (float32: ``rtol=1.3e-6``, ``atol=1e-5``)."""
    try:
        torch.testing.assert_close(torch.from_numpy(got), torch.from_numpy(want))
    except AssertionError:
        return True
    return False


def exporter_verify(got: numpy.ndarray, want: numpy.ndarray) -> bool:
    """The warning of ``torch.onnx.export(verify=True)``.

    torch 2.13, ``torch/onnx/_internal/exporter/_core.py``, step 6: ``max_abs_diff >= 5e-3`` or ``max_rel_diff >= 1e-1``,
    where ``_verification.py`` divides by ``abs(expected) + 1e-7``. It only warns; here that counts as detected. A NaN makes
    both comparisons false. Shapes that do not broadcast raise an error, which it reports.
    """
    try:
        difference = numpy.abs(want - got)
    except ValueError:
        return True
    relative = difference / (numpy.abs(want) + 1e-7)
    return bool(difference.max() >= 5e-3 or relative.max() >= 1e-1)


def polygraphy(got: numpy.ndarray, want: numpy.ndarray) -> bool:
    """``polygraphy run --onnxrt --load-outputs`` with its defaults.

    Polygraphy 0.53, ``SimpleCompareFunc``: ``check_error_stat="elemwise"``, ``rtol=atol=1e-5``, ``check_shapes``. An
    element fails if it exceeds both tolerances; NaN exceeds both. The relative difference is relative to the second result,
    with zeros replaced by 2.2e-16.
    """
    if got.shape != want.shape:
        return True
    difference = numpy.abs(got.astype(numpy.float64) - want)
    relative = difference / numpy.abs(numpy.where(want == 0, 2.220446049250313e-16, want.astype(numpy.float64)))
    return bool((~(difference <= 1e-5) & ~(relative <= 1e-5)).any())


RIVALS = {"allclose": allclose, "assert_close": assert_close, "verify=True": exporter_verify, "Polygraphy": polygraphy}
CHECKING = ("allclose", "assert_close", "verify=True")
"""The rivals that run ``onnx.checker``: the script in the torch.onnx documentation does, and so does ``verify=True``."""
METHODS = ("onnx-ci", *RIVALS)

# --- the faults ---------------------------------------------------------------------------------------------------------


class Graph:
    """A copy of a file's model, with lookups for the location of a fault. Nodes have the same names in both files."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.graph = self.model.graph
        self.nodes = {node.name: node for node in self.graph.node}
        self.makers = {output: node for node in self.graph.node for output in node.output}
        self.initializers = {tensor.name: tensor for tensor in self.graph.initializer}
        self._count = 0

    def constant(self, node: onnx.NodeProto, position: int) -> numpy.ndarray | None:
        """The value of an input that is an initializer or a constant; ``None`` otherwise."""
        name = node.input[position] if position < len(node.input) else ""
        while name in self.makers and self.makers[name].op_type == "Identity":
            name = self.makers[name].input[0]  # the exporter shares equal weights through an Identity
        if name in self.initializers:
            return numpy_helper.to_array(self.initializers[name])
        maker = self.makers.get(name)
        if maker is not None and maker.op_type == "Constant" and maker.attribute[0].name == "value":
            return numpy_helper.to_array(maker.attribute[0].t)
        return None

    def replace_constant(self, node: onnx.NodeProto, position: int, value: numpy.ndarray) -> None:
        """Replace the value of this input only; other nodes keep the old value."""
        name = self.new_name()
        self.graph.initializer.append(numpy_helper.from_array(numpy.ascontiguousarray(value), name))
        node.input[position] = name

    def insert_before(self, node: onnx.NodeProto, *made: onnx.NodeProto) -> None:
        """Insert new nodes before ``node``; the graph's order stays topological."""
        at = next(i for i, each in enumerate(self.graph.node) if each is node or each.name == node.name)
        for each in reversed(made):
            self.graph.node.insert(at, each)

    def new_name(self) -> str:
        """A name that the file does not use."""
        self._count += 1
        return f"planted_{self._count}"


class NotPlantableError(Exception):
    """The location of a fault does not exist in this file."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way to break a file, located by node names, so that it can be injected into two exports of the same model."""

    kind: str
    node: str
    description: str
    plant: Callable[[Graph, onnx.NodeProto], None]

    def planted(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """A copy of ``model`` with the fault in it."""
        graph = Graph(model)
        if self.node and self.node not in graph.nodes:
            raise NotPlantableError(self.node)
        self.plant(graph, graph.nodes[self.node] if self.node else graph.graph.node[0])
        return graph.model


SWAPS = {
    "Relu": ("LeakyRelu", "Sigmoid", "Elu"),
    "LeakyRelu": ("Relu", "Elu"),
    "Sigmoid": ("HardSigmoid", "Tanh"),
    "HardSigmoid": ("Sigmoid",),
    "Tanh": ("Sigmoid", "Erf"),
    "Erf": ("Tanh",),
    "Add": ("Sub", "Mul"),
    "Sub": ("Add",),
    "Mul": ("Add", "Div"),
    "Div": ("Mul",),
    "Sqrt": ("Abs",),
    "MaxPool": ("AveragePool",),
    "AveragePool": ("MaxPool",),
    "GlobalAveragePool": ("GlobalMaxPool",),
    "ReduceMean": ("ReduceMax", "ReduceL2"),
    "Softmax": ("LogSoftmax",),
    "LogSoftmax": ("Softmax",),
}
"""An operator, and others that accept the same inputs."""

DROPPED = ("Relu", "LeakyRelu", "Sigmoid", "HardSigmoid", "Tanh", "Erf", "Clip", "Sqrt", "Softmax", "LogSoftmax",
           "BatchNormalization", "LayerNormalization", "InstanceNormalization", "Add", "Mul", "Div", "Sub")  # fmt: skip
"""Operators that can be removed: their first input has the shape of their output."""

WEIGHTED = {"Conv": 1, "Gemm": 1, "MatMul": 1, "Add": 0, "Mul": 0, "BatchNormalization": 1, "LayerNormalization": 1,
            "LSTM": 1, "GRU": 1, "Gather": 0}  # fmt: skip
"""Operators with weights, and their first input that can be one."""

CONSTANTS = {"Slice": (1, 2, 3), "Reshape": (1,), "Gather": (1,), "Clip": (1, 2), "Pow": (1,), "Unsqueeze": (1,), "Div": (1,),
             "Split": (1,), "Mul": (1,), "Expand": (1,), "ConstantOfShape": (0,), "ReduceSum": (1,)}  # fmt: skip
"""Operators whose constant inputs are numbers or indices rather than weights."""


def faults_of(model: onnx.ModelProto, rng: random.Random) -> list[Fault]:
    """Faults of a model, in an order that alternates between the kinds."""
    inferred = onnx.shape_inference.infer_shapes(model)
    types = {
        value.name: (value.type.tensor_type.elem_type, _shape(value))
        for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output)
    }
    graph = Graph(model)
    found: dict[str, list[Fault]] = {}
    makers = (_operators, _dropped, _attributes, _weights, _rewired, _constants, _casts, _outputs)
    for make in makers:
        for fault in make(graph, types, rng):
            found.setdefault(fault.kind, []).append(fault)
    for each in found.values():
        rng.shuffle(each)
    ordered = []
    while any(found.values()):
        ordered += [each.pop() for each in found.values() if each]
    return ordered


Types = dict[str, tuple[int, tuple[Any, ...] | None]]


def _shape(value: onnx.ValueInfoProto) -> tuple[Any, ...] | None:
    tensor = value.type.tensor_type
    return tuple(d.dim_param or d.dim_value for d in tensor.shape.dim) if tensor.HasField("shape") else None


def _operators(graph: Graph, types: Types, rng: random.Random) -> Iterator[Fault]:
    opset = next(each.version for each in graph.model.opset_import if not each.domain)
    for node in graph.graph.node:
        if node.op_type not in SWAPS:
            continue
        other = rng.choice(SWAPS[node.op_type])
        legal = set(onnx.defs.get_schema(other, opset).attributes)

        def plant(_: Graph, node: onnx.NodeProto, other: str = other, legal: set[str] = legal) -> None:
            node.op_type = other
            kept = [each for each in node.attribute if each.name in legal]
            del node.attribute[:]
            node.attribute.extend(kept)

        yield Fault(kind="operator", node=node.name, description=f"{node.op_type} becomes {other}", plant=plant)


def _dropped(graph: Graph, types: Types, rng: random.Random) -> Iterator[Fault]:
    for node in graph.graph.node:
        if node.op_type not in DROPPED:
            continue
        data = [i for i in range(len(node.input)) if node.input[i] and graph.constant(node, i) is None]
        if node.op_type not in ("Add", "Mul", "Sub", "Div"):
            data = data[:1]
        if not data:
            continue
        position = rng.choice(data)

        def plant(_: Graph, node: onnx.NodeProto, position: int = position) -> None:
            kept = node.input[position]
            node.op_type = "Identity"
            del node.attribute[:], node.input[:]
            node.input.append(kept)
            del node.output[1:]

        yield Fault(
            kind="dropped", node=node.name, description=f"{node.op_type} removed, its input {position} kept", plant=plant
        )


def _attributes(graph: Graph, types: Types, rng: random.Random) -> Iterator[Fault]:
    for node in graph.graph.node:
        own = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        rank = len((types.get(node.input[0] if node.input else "", (0, None))[1]) or ())
        changes = list(_changed_attributes(node.op_type, own, rank, types.get(node.output[0], (0, None))[1]))
        rng.shuffle(changes)
        for changed in changes[:2]:

            def plant(_: Graph, node: onnx.NodeProto, changed: dict[str, Any] = changed) -> None:
                kept = [each for each in node.attribute if each.name not in changed]
                del node.attribute[:]
                node.attribute.extend([*kept, *(helper.make_attribute(name, value) for name, value in changed.items())])

            was = {name: own.get(name) for name in changed}
            yield Fault(kind="attribute", node=node.name, description=f"{node.op_type} {was} becomes {changed}", plant=plant)


def _changed_attributes(op: str, own: dict[str, Any], rank: int, shape: tuple[Any, ...] | None) -> Iterator[dict[str, Any]]:
    if any(pads := own.get("pads", [])):
        half = len(pads) // 2
        yield {"pads": [2 * p if i < half else 0 for i, p in enumerate(pads)]}  # the same size, moved
    if op in ("Conv", "MaxPool", "AveragePool"):
        strides = own.get("strides", [1, 1])
        yield {"strides": [1 if each > 1 else 2 for each in strides]}
        kernel = own.get("kernel_shape", [1])
        if op == "Conv" and pads and all(k == 3 for k in kernel):
            yield {"dilations": [2] * len(kernel), "pads": [p + 1 for p in pads]}
    if op in ("MaxPool", "AveragePool"):
        yield {"ceil_mode": 1 - own.get("ceil_mode", 0)}
    if op == "AveragePool":
        yield {"count_include_pad": 1 - own.get("count_include_pad", 0)}
    if op in ("Softmax", "LogSoftmax") and rank > 1:
        axis = own.get("axis", -1) % rank
        yield {"axis": (axis - 1) % rank}
    if op == "Flatten":
        yield {"axis": own.get("axis", 1) + 1}
    if op.startswith("Reduce") and "axes" in own and rank > 1:
        yield {"axes": [(axis - 1) % rank for axis in own["axes"]]}
        yield {"keepdims": 1 - own.get("keepdims", 1)}
    if "epsilon" in own:
        yield {"epsilon": own["epsilon"] * 10}
    for name in ("alpha", "beta"):
        if isinstance(own.get(name), float) and own[name]:
            yield {name: own[name] * (1.01 if op == "Gemm" else 1.1)}
    if op == "Transpose" and shape is not None:
        perm = list(own["perm"])
        for i in range(len(perm)):
            for j in range(i):
                if shape[i] == shape[j]:  # square: the shape stays the same
                    yield {"perm": [perm[j] if k == i else perm[i] if k == j else p for k, p in enumerate(perm)]}
    if op in ("LSTM", "GRU") and own.get("direction", b"forward") == b"forward":
        yield {"direction": "reverse"}
    if op == "GRU":
        yield {"linear_before_reset": 1 - own.get("linear_before_reset", 0)}


def _weights(graph: Graph, types: Types, rng: random.Random) -> Iterator[Fault]:
    for node in graph.graph.node:
        for position in range(WEIGHTED.get(node.op_type, len(node.input)), len(node.input)):
            value = graph.constant(node, position)
            if value is None or value.dtype != numpy.float32 or value.size < 2:
                continue
            bias = value.ndim == 1 or (node.op_type in ("LSTM", "GRU") and position == 3)
            index = tuple(rng.randrange(size) for size in value.shape)
            factor = 1 + rng.uniform(0.01, 0.1)
            axis = value.ndim - 1 if node.op_type == "MatMul" else value.ndim - 2 if node.op_type in ("LSTM", "GRU") else 0
            channel = (slice(None),) * axis + (index[axis],)
            other = (slice(None),) * axis + (rng.randrange(value.shape[axis]),)
            where = f"{node.op_type} input {position}"

            def scaled(value: numpy.ndarray, index: Any = index, factor: float = factor) -> None:
                value[index] *= numpy.float32(factor)

            def channel_scaled(value: numpy.ndarray, channel: Any = channel) -> None:
                value[channel] *= numpy.float32(1.01)

            def zeroed(value: numpy.ndarray, index: Any = index) -> None:
                value[index] = 0

            def swapped(value: numpy.ndarray, one: Any = channel, other: Any = other) -> None:
                value[one], value[other] = value[other].copy(), value[one].copy()

            kinds = [("weight element", f"{where} {list(index)} times {factor:.3f}", scaled)]
            if bias:
                kinds.append(("bias zeroed", f"{where} {list(index)} zeroed", zeroed))
            else:
                kinds.append(("channel scaled", f"{where} channel {index[axis]} times 1.01", channel_scaled))
            if channel != other:
                kinds.append(("rows swapped", f"{where} rows {channel[-1]} and {other[-1]} swapped", swapped))
            for kind, description, change in kinds:

                def plant(
                    graph: Graph, node: onnx.NodeProto, position: int = position, change: Callable[..., None] = change
                ) -> None:
                    value = graph.constant(node, position)
                    if value is None:
                        raise NotPlantableError(node.name)
                    changed = value.copy()
                    change(changed)
                    graph.replace_constant(node, position, changed)

                yield Fault(kind=kind, node=node.name, description=description, plant=plant)


def _rewired(graph: Graph, types: Types, rng: random.Random) -> Iterator[Fault]:
    earlier: dict[Any, list[tuple[str, int]]] = {}
    for value in graph.graph.input:
        earlier.setdefault(types.get(value.name), []).append((value.name, -1))
    for node in graph.graph.node:
        for position, name in enumerate(node.input):
            kind = types.get(name)
            if kind is None or kind[1] is None or graph.constant(node, position) is not None:
                continue
            others = [each for each, _ in earlier.get(kind, []) if each != name]
            if not others:
                continue
            other = rng.choice(others)
            maker = graph.makers[other].name if other in graph.makers else ""
            output = list(graph.makers[other].output).index(other) if maker else 0
            entry = [value.name for value in graph.graph.input].index(other) if not maker else 0

            def plant(
                graph: Graph, node: onnx.NodeProto, position: int = position, maker: str = maker, output: int = output,
                entry: int = entry,
            ) -> None:  # fmt: skip
                if maker and maker not in graph.nodes:
                    raise NotPlantableError(maker)
                node.input[position] = graph.nodes[maker].output[output] if maker else graph.graph.input[entry].name

            description = f"{node.op_type} input {position} from {maker or other} in place of {name}"
            yield Fault(kind="rewired", node=node.name, description=description, plant=plant)
        if node.op_type != "Constant":
            for name in node.output:
                earlier.setdefault(types.get(name), []).append((name, 0))


def _constants(graph: Graph, types: Types, rng: random.Random) -> Iterator[Fault]:
    for node in graph.graph.node:
        for position in CONSTANTS.get(node.op_type, ()):
            value = graph.constant(node, position)
            if value is None or value.size > 8 or (node.op_type == "Gather" and position == 0):
                continue
            if value.dtype == numpy.float32 and value.size == 1:
                changed = value * numpy.float32(1.1) if float(value.item()) else value + numpy.float32(0.1)
            elif value.dtype == numpy.int64 and value.size:
                changed = value.copy()
                flat = changed.reshape(-1)
                if node.op_type == "Reshape" and len(set(flat.tolist())) > 1:
                    one, other = rng.sample(range(flat.size), 2)
                    flat[one], flat[other] = int(flat[other]), int(flat[one])
                else:
                    flat[rng.randrange(flat.size)] += rng.choice((-1, 1))
            else:
                continue
            if numpy.array_equal(changed, value):
                continue

            def plant(graph: Graph, node: onnx.NodeProto, position: int = position, changed: numpy.ndarray = changed) -> None:
                graph.replace_constant(node, position, changed)

            description = f"{node.op_type} input {position}: {value.tolist()} becomes {changed.tolist()}"
            yield Fault(kind="constant", node=node.name, description=description, plant=plant)


def _casts(graph: Graph, types: Types, rng: random.Random) -> Iterator[Fault]:
    for node in graph.graph.node:
        name = node.input[0] if node.input else ""
        if types.get(name, (0, None))[0] != TensorProto.FLOAT or graph.constant(node, 0) is not None:
            continue

        def plant(graph: Graph, node: onnx.NodeProto) -> None:
            half, back = graph.new_name(), graph.new_name()
            graph.insert_before(
                node,
                helper.make_node("Cast", [node.input[0]], [half], to=TensorProto.FLOAT16, name=half),
                helper.make_node("Cast", [half], [back], to=TensorProto.FLOAT, name=back),
            )
            graph.nodes = {each.name: each for each in graph.graph.node}
            graph.nodes[node.name].input[0] = back

        yield Fault(kind="half precision", node=node.name, description=f"{node.op_type} input 0 through float16", plant=plant)


def _outputs(graph: Graph, types: Types, rng: random.Random) -> Iterator[Fault]:
    outputs = [value.name for value in graph.graph.output]
    for i in range(len(outputs)):
        for j in range(i):
            if types.get(outputs[i]) != types.get(outputs[j]):
                continue

            def plant(graph: Graph, _: onnx.NodeProto, i: int = i, j: int = j) -> None:
                one, other = graph.graph.output[i].name, graph.graph.output[j].name
                for node in graph.graph.node:
                    for names in (node.input, node.output):
                        for at, name in enumerate(names):
                            names[at] = {one: other, other: one}.get(name, name)

            yield Fault(kind="outputs swapped", node="", description=f"{outputs[i]} and {outputs[j]} swapped", plant=plant)
    for node in graph.graph.node:
        used = [at for at, name in enumerate(node.output) if name]
        for one, other in itertools.pairwise(used):

            def plant_node(_: Graph, node: onnx.NodeProto, one: int = one, other: int = other) -> None:
                node.output[one], node.output[other] = node.output[other], node.output[one]

            description = f"{node.op_type} outputs {one} and {other} swapped"
            yield Fault(kind="outputs swapped", node=node.name, description=description, plant=plant_node)


# --- running ------------------------------------------------------------------------------------------------------------


class Planter:
    """Replaces the export pass of the engine: returns the clean export once, then files with a fault."""

    def __init__(self) -> None:
        self._export = cell_module.export
        self.model: Any = None
        self.clean: onnx.ModelProto | None = None
        self.faulty: onnx.ModelProto | None = None

    def __call__(self, model: Any, untaken_branches: Any, cell: Cell, path: Path) -> Written:
        """Has the signature of ``onnx_ci.pipeline.export.export.export``."""
        if self.faulty is None:
            exported = self._export(model, untaken_branches, cell, path)
            self.model, self.clean = model, onnx.load(path)
            return exported
        path.write_bytes(self.faulty.SerializeToString())
        return Written(artifact=Artifact(path=path), findings=(), log="")


def _session(model: onnx.ModelProto, *, optimized: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class Liveness:
    """Whether a fault changes an output for some input. Optimizations are off: they could change the rounding elsewhere."""

    def __init__(self, clean: onnx.ModelProto, probes: Probes) -> None:
        self._names = [value.name for value in clean.graph.input]
        self._inputs = list(_inputs(probes))
        session = _session(clean, optimized=False)
        self._expected = [session.run(None, self._feeds(values)) for values in self._inputs]

    def of(self, model: onnx.ModelProto) -> str:
        """``dead``, ``alive``, or ``refused`` by ONNX Runtime."""
        try:
            session = _session(model, optimized=False)
        except Exception:  # ONNX Runtime raises its own classes
            return "refused"
        for values, expected in zip(self._inputs, self._expected, strict=True):
            try:
                got = session.run(None, self._feeds(values))
            except Exception:  # as above: it only runs for other inputs, or for none
                return "alive"
            if any(_differ(one, other) for one, other in zip(got, expected, strict=True)):
                return "alive"
        return "dead"

    def _feeds(self, values: Sequence[numpy.ndarray]) -> dict[str, numpy.ndarray]:
        return dict(zip(self._names, values, strict=True))


def _inputs(probes: Probes) -> Iterator[list[numpy.ndarray]]:
    """Random and shifted inputs at the example's sizes, and at every other size of the dynamic axes that the model accepts."""
    rng = numpy.random.default_rng(1)
    example = probes.example.inputs
    sizes = dict.fromkeys(tuple(tuple(tensor.shape) for tensor in probe.inputs) for probe in probes.all)
    ways = ((1, 0), (1, 1), (3, -2), (0.1, 0), (30, 0))
    for position, shapes in enumerate(sizes):
        for spread, shift in ways if position == 0 else ways[2:3]:
            yield [
                (rng.normal(shift, spread, shape)).astype(numpy.float32)
                if tensor.is_floating_point()
                else rng.integers(int(tensor.min()), int(tensor.max()) + 1, shape)
                for tensor, shape in zip(example, shapes, strict=True)
            ]


def _differ(one: numpy.ndarray, other: numpy.ndarray) -> bool:
    """Whether they differ by more than four units in the last place of the largest value."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return True
    if not numpy.array_equal(numpy.isfinite(one), numpy.isfinite(other)):
        return True
    finite = numpy.isfinite(one)
    if not finite.any():
        return False
    largest = numpy.abs(other[finite]).max()
    return bool(numpy.abs(one[finite] - other[finite]).max() > 4 * numpy.finfo(numpy.float32).eps * largest)


class Rivals:
    """The plain export with its seeded weights, and the verdicts of the other methods on the example."""

    def __init__(self, recipe: onnx_ci.Recipe, opset: int) -> None:
        torch.manual_seed(recipe.seed)
        model, args = recipe()
        model.eval()
        with torch.no_grad():
            self._expected = [tensor.numpy() for tensor in pytree.tree_leaves(model(*args))]
        self._feeds = dict(zip(recipe.input_names, (t.numpy() for t in pytree.tree_leaves(args)), strict=True))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "plain.onnx")
            torch.onnx.export(
                model, args, file, dynamo=False, opset_version=opset, input_names=list(recipe.input_names),
                output_names=list(recipe.output_names), dynamic_axes=recipe.dynamic_axes,
            )  # fmt: skip
            self.clean = onnx.load(file)

    def judge(self, model: onnx.ModelProto) -> dict[str, bool]:
        """For each method, whether it rejects the file."""
        try:
            got = _session(model, optimized=True).run(None, self._feeds)
        except Exception:  # the file does not load, or does not run on the example: every method detects that
            return dict.fromkeys(RIVALS, True)
        with numpy.errstate(all="ignore"):
            found = {
                name: any(rule(one, other) for one, other in zip(got, self._expected, strict=True))
                for name, rule in RIVALS.items()
            }
        try:
            onnx.checker.check_model(model)
        except Exception:  # onnx.checker raises its own classes
            found |= dict.fromkeys(CHECKING, True)
        return found


def study(name: str, options: argparse.Namespace) -> None:
    """Inject the faults of one model, from fault ``--start`` on; print a line of JSON before and after each."""
    warnings.simplefilter("ignore")
    logging.disable()
    recipe = mixed()[name]
    cell = Cell(source="benchmarks", recipe=name, exporter=default_exporter(options.opset), opset=options.opset, device="cpu")
    task = task_of(cell, recipe, load_settings(find_root(Path.cwd()), flags={"max_drift": options.max_drift, "locate": False}))
    planter = Planter()
    with Engine() as engine, mock.patch.object(cell_module, "export", planter):
        clean = decide(engine.run_cell(task))
        if clean.status is not Status.PASSED or planter.clean is None:
            print(json.dumps({"clean": [each.message for each in clean.findings]}))
            return
        rivals, liveness = Rivals(recipe, options.opset), Liveness(planter.clean, prepare(task, first_weights(task)).probes)
        rejected_by = [rule for rule, found in rivals.judge(rivals.clean).items() if found]
        print(json.dumps({"drift": _worst(clean), "rejected_by": rejected_by}))
        faults = faults_of(planter.clean, random.Random(f"{options.seed} {name}"))[: options.faults]
        for number, fault in enumerate(faults[options.start :], start=options.start):
            line = {
                "number": number,
                "kind": fault.kind,
                "fault": f"{fault.node}: {fault.description}" if fault.node else fault.description,
            }
            print(json.dumps(line | {"state": "crash"}), flush=True)  # remains the last line if the process dies here
            planter.faulty = fault.planted(planter.clean)
            line["state"] = liveness.of(planter.faulty)
            if line["state"] != "dead":
                try:
                    line |= rivals.judge(fault.planted(rivals.clean))
                except NotPlantableError:
                    line["state"] = "elsewhere"
                else:
                    result = decide(engine.run_cell(task))
                    line |= {"onnx-ci": result.status is Status.FAILED, "status": str(result.status), "drift": _worst(result)}
                    line["rules"] = sorted({each.rule for each in result.findings if each.severity == "error"})
            print(json.dumps(line), flush=True)


def _worst(result: Any) -> float:
    drifts = [each.drift for each in result.outputs]
    return max(drifts) if drifts else math.nan


def measure(name: str, options: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Study one model in a separate process, and continue after a fault that kills the process."""
    head: dict[str, Any] = {}
    lines: dict[int, dict[str, Any]] = {}
    start = 0
    while True:
        command = [sys.executable, __file__, "--one", name, "--start", str(start), "--faults", str(options.faults),
                   "--seed", str(options.seed), "--opset", str(options.opset),
                   "--max-drift", str(options.max_drift)]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=options.timeout)
        except subprocess.TimeoutExpired:
            return {"clean": [f"no result after {options.timeout:g} s"]}, []
        for line in done.stdout.splitlines():
            data = json.loads(line) if line.startswith("{") else {}
            if "number" in data:
                lines[data["number"]] = data
            elif data:
                head = data
        last = lines[max(lines)] if lines else {}
        if done.returncode == 0 or last.get("state") != "crash" or last["number"] < start:
            if done.returncode:
                head["clean"] = [done.stderr.strip()[-500:]]
            break
        start = last["number"] + 1
    for line in lines.values():
        if line["state"] == "crash":  # it crashed ONNX Runtime, so every method detects it
            line |= dict.fromkeys(METHODS, True)
    return head, list(lines.values())


# --- showing ------------------------------------------------------------------------------------------------------------


def table(title: str, rows: dict[str, list[dict[str, Any]]]) -> None:
    print(f"\n{title:24} {'alive':>6} {'dead':>5} " + " ".join(f"{name:>12}" for name in METHODS))
    for name, lines in rows.items():
        alive = [line for line in lines if line["state"] in ("alive", "refused", "crash")]
        dead = sum(line["state"] == "dead" for line in lines)
        shares = [f"{sum(line[each] for line in alive) / len(alive):12.1%}" if alive else f"{'-':>12}" for each in METHODS]
        print(f"{name:24} {len(alive):6} {dead:5} " + " ".join(shares))


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The arguments of a benchmark that injects faults: which ones, and into which models."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(mixed()))
    parser.add_argument("--faults", type=int, default=40, help="how many faults to inject into each model, including dead ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--opset", type=int, default=15, help="an opset at which every model exports, with LayerNorm decomposed"
    )
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one model")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--start", type=int, default=0, help=argparse.SUPPRESS)
    return parser


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--max-drift", type=float, default=16.0, help="the drift limit of onnx-ci")
    options = parser.parse_args()
    if options.one:
        study(options.one, options)
        return
    began = time.perf_counter()
    models: dict[str, list[dict[str, Any]]] = {}
    versions = f"torch {torch.__version__}, onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}"
    print(f"opset {options.opset}, drift limit {options.max_drift:g}, seed {options.seed}, {options.faults} faults per model")
    print(versions)
    for name in options.models.split(","):
        begin = time.perf_counter()
        head, lines = measure(name, options)
        models[name] = lines
        summary = f"{len(lines)} faults, {dict(Counter(line['state'] for line in lines))}, {time.perf_counter() - begin:.0f} s"
        if "drift" in head:
            summary = f"clean drift {head['drift']:.2g}, {summary}"
        if head.get("rejected_by"):
            summary += f"; the clean file is rejected by {', '.join(head['rejected_by'])}"
        if "clean" in head:
            summary += f"; NOT STUDIED: {head['clean']}"
        print(f"{name:24} {summary}", flush=True)
    every = [dict(line, model=name) for name, lines in models.items() for line in lines]
    kinds: dict[str, list[dict[str, Any]]] = {}
    for line in every:
        kinds.setdefault(line["kind"], []).append(line)
    loads = [line for line in every if line["state"] in ("alive", "dead")]
    table("kind of fault", {**kinds, "all": every, "all that load": loads})
    table("model", models)
    missed = [line for line in every if line["state"] in ("alive", "refused") and not line["onnx-ci"]]
    print(f"\nmissed by onnx-ci: {len(missed)}")
    for line in missed:
        others = [rule for rule in RIVALS if line[rule]]
        print(f"  {line['model']}, {line['kind']}, {line['fault']}: {line['status']}, drift {line['drift']:.3g}"
              + (f"; detected by {', '.join(others)}" if others else ""))  # fmt: skip
    print(f"\n{time.perf_counter() - began:.0f} s")
    sys.exit(bool(missed) or not all(models.values()))


if __name__ == "__main__":
    main()
