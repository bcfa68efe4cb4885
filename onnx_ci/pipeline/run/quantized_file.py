"""A quantized file, which alone knows the steps and the calibrated ranges of its activations."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from onnx_ci.pipeline.reference.perturbation import PERTURBATIONS
from onnx_ci.pipeline.run.runtime import Runtime, Session
from onnx_ci.results.records import Finding
from onnx_ci.results.rules import finding

_ZERO_POINT_OF_OUTPUT = {
    "QuantizeLinear": 2,
    "QLinearConv": 7,
    "QLinearMatMul": 7,
    "QLinearAdd": 7,
    "QLinearMul": 7,
    "QGemm": 8,
    "QLinearGlobalAveragePool": 4,
    "QLinearAveragePool": 4,
    "QLinearReduceMean": 4,
    "QLinearSigmoid": 4,
    "QLinearSoftmax": 4,
    "QLinearLeakyRelu": 4,
}
"""The position of the output's zero point among the inputs of each operator that quantizes an activation: those of the standard
(https://onnx.ai/onnx/operators) and of ONNX Runtime's own domain."""


@dataclass(frozen=True, kw_only=True)
class QuantizedActivation:
    """An activation that a file quantizes with a fixed scale."""

    name: str
    """The tensor of integers."""
    source: str | None
    """The tensor of floating-point numbers that is quantized; ``None`` if an operator computes the integers directly."""
    node: onnx.NodeProto
    scale: float
    zero_point: int
    integers: np.iinfo
    """The range of the integers' type."""
    operator: str
    """What computes it."""

    @property
    def levels(self) -> int:
        """How many steps the range has."""
        return int(self.integers.max) - int(self.integers.min)

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and highest number that is not clipped."""
        low, high = ((limit - self.zero_point) * self.scale for limit in (int(self.integers.min), int(self.integers.max)))
        return low, high


def quantized_activations(model: onnx.ModelProto) -> Iterator[QuantizedActivation]:
    """The activations of the main graph that have one fixed scale. ``model`` must contain all its data."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    operators = {name: node.op_type for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        place = _ZERO_POINT_OF_OUTPUT.get(node.op_type)
        if place is None or node.input[0] in constants:  # a weight
            continue
        if place >= len(node.input) or not {node.input[place - 1], node.input[place]} <= set(constants):
            continue
        scale, zero_point = (onnx.numpy_helper.to_array(constants[node.input[each]]) for each in (place - 1, place))
        if zero_point.size == 1 and zero_point.dtype.kind in "iu":
            yield QuantizedActivation(
                name=node.output[0],
                source=node.input[0] if node.op_type == "QuantizeLinear" else None,
                node=node,
                scale=float(scale.item()),
                zero_point=int(zero_point.item()),
                integers=np.iinfo(zero_point.dtype),
                operator=operators.get(node.input[0], "") if node.op_type == "QuantizeLinear" else node.op_type,
            )


def quantized_tensors(model: onnx.ModelProto) -> Mapping[str, np.iinfo]:
    """The quantized activations of the main graph, whether their scales are fixed or not, and the range of their integers."""
    fixed = {each.name: each.integers for each in quantized_activations(model)}
    dynamic = (node for node in model.graph.node if node.op_type == "DynamicQuantizeLinear")
    return fixed | {node.output[0]: np.iinfo(np.uint8) for node in dynamic}


def with_jitter(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """A copy of ``model``, which must contain all its data, with noise on its quantized activations.

    Of every activation, a quarter of the elements is one step lower and a quarter one step higher. This is a standard deviation
    of 0.7 steps; that of rounding is 0.3.
    """
    jittered = onnx.ModelProto()
    jittered.CopyFrom(model)
    tensors = quantized_tensors(model)
    del jittered.graph.node[:]
    for number, node in enumerate(model.graph.node):
        copy = jittered.graph.node.add()
        copy.CopyFrom(node)
        for place, name in enumerate(node.output):
            if name in tensors:
                copy.output[place] = f"{name}.exact"
                jittered.graph.node.extend(_jitter(name, tensors[name], float(seed * 100_003 + number)))
    return jittered


def _jitter(name: str, integers: np.iinfo, seed: float) -> Iterator[onnx.NodeProto]:
    """Nodes that compute the tensor ``name`` from ``name.exact``, in operators that opset 10 has."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(integers.dtype)
    limits = {"lowest": float(integers.min), "highest": float(integers.max)}
    tensors = {part: f"{name}.{part}" for part in ("exact", "float", "noise", "sum", "floor", "above", "within", *limits)}

    def node(operator: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
        names = [tensors[part] for part in inputs.split()]
        return onnx.helper.make_node(operator, names, [tensors.get(output, output)], **attributes)

    for part, value in limits.items():
        yield node("Constant", "", part, value=onnx.numpy_helper.from_array(np.array(value, np.float32)))
    yield node("Cast", "exact", "float", to=onnx.TensorProto.FLOAT)
    yield node("RandomUniformLike", "float", "noise", low=-0.5, high=1.5, seed=seed)
    yield node("Add", "float noise", "sum")
    yield node("Floor", "sum", "floor")
    yield node("Max", "floor lowest", "above")
    yield node("Min", "above highest", "within")
    yield node("Cast", "within", name, to=kind)


_CLIPPED_SHARE = 0.001
"""A file that was calibrated for an input clips at most this share of each activation."""
_WITHIN_ONE = ("HardSigmoid", "Sigmoid", "Softmax", "Tanh")
"""Operators with a largest value of 1, for which a scale can be chosen without a calibration."""
_WIDER = 4.0
"""How many times as wide as the file's the steps are with which an operator shows how much of its integers is clipped."""


@dataclass(frozen=True, kw_only=True)
class ScaleFit:
    """How the scale of an activation fits its values on some input."""

    file: str
    activation: QuantizedActivation
    share: float
    """The share of its elements that is clipped."""
    steps: float
    """How many steps apart its values are; for an operator that cannot return more than 1, those up to there; 0 for zeros."""
    error: float
    """How far rounding and clipping move it, as a root mean square, in units of rounding with the best scale for this input."""
    is_of_input: bool
    """Whether the activation is an input of the file, so that its scale says which inputs the file is for."""

    @property
    def name(self) -> str:
        """The name of the activation: that of the floating-point numbers, if the file has them."""
        return self.activation.source or self.activation.name

    @property
    def times_too_large(self) -> float:
        """How many times larger the scale is than the values need for eight bits; 0 for zeros.

        A scale that is a power of two may have been rounded up, so half of it counts. A scheme without a zero point, or with
        seven bits, uses half of the integers, so 2 is usual.
        """
        rounding = 2 if math.frexp(self.activation.scale)[0] == 0.5 else 1
        return min(self.activation.levels, 255) / (self.steps * rounding) if self.steps else 0.0

    @property
    def is_significant(self) -> bool:
        """Whether it is more than the outliers that calibrations leave out."""
        return self.share > _CLIPPED_SHARE

    def __str__(self) -> str:
        low, high = self.activation.range
        return f"{self.file} clips {100 * self.share:.2g} % of {self.name!r} to its range from {low:.4g} to {high:.4g}"


def most_clipped(fits: Iterable[ScaleFit]) -> ScaleFit | None:
    """What a file clips most on an input, if it clips much: it was not calibrated for it, or a scale is wrong."""
    # What follows from a clipped input says nothing about the other scales.
    significant = (each for each in fits if each.is_significant)
    return max(significant, key=lambda each: (each.is_of_input, each.error), default=None)


def too_coarse(fits: Iterable[ScaleFit]) -> Iterator[Finding]:
    """An error if a scale is far too large for all inputs of a calibration, whose ``fits`` these are.

    One scale can stand for several activations, such as those that a Concat joins.
    """
    by_scale: dict[tuple[float, int], ScaleFit] = {}
    for each in fits:
        scale = each.activation.scale, each.activation.zero_point
        by_scale[scale] = max(by_scale.get(scale, each), each, key=lambda fit: fit.steps)
    worst = max(by_scale.values(), key=lambda fit: fit.times_too_large, default=None)
    if worst is not None and worst.times_too_large > MOST_ERROR:
        low, high = worst.activation.range
        message = (
            f"{worst.file} uses {worst.steps:.2g} of its {worst.activation.levels + 1} integers for {worst.name!r} on the "
            f"inputs that are given: its scale is for values from {low:.4g} to {high:.4g}"
        )
        yield finding("numeric-drift", message, remedy=WRONG_SCALE)


MOST_ERROR = 8.0
"""How far off an activation may be on given inputs, in units of the best scale for them. Ranges from the least to the largest
number, from entropy or from percentiles reach 4, a scale that is too small by half 9 to 40."""
WRONG_SCALE = "If the file was calibrated on inputs like these, calibrate it again; otherwise, give inputs like those."


class QuantizedFile:
    """Runs changed copies of a quantized file, which are in a scratch folder. Messages call the file by its name."""

    def __init__(self, name: str, model: onnx.ModelProto, runtime: Runtime, scratch: Path) -> None:
        self.name = name
        self._model, self._runtime, self._scratch = model, runtime, scratch

    @functools.cached_property
    def activations(self) -> tuple[QuantizedActivation, ...]:
        """The activations that the file quantizes with a fixed scale."""
        return tuple(quantized_activations(self._model))

    def run(self, feeds: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of the file. Raises what the runtime raises."""
        return self._unchanged.run(feeds)

    @functools.cached_property
    def _unchanged(self) -> Session:
        return self._load(self._model, "as-it-is")

    def fits(self, feeds: Mapping[str, torch.Tensor]) -> list[ScaleFit]:
        """How the scale of each activation fits its values."""
        names = {value.name for value in self._model.graph.input}
        outputs = self._with_activations.run(feeds) if self.activations else ()
        return [
            ScaleFit(file=self.name, activation=each, is_of_input=each.source in names, **_measured(values, each))
            for values, each in zip(outputs, self.activations, strict=True)
        ]

    @functools.cached_property
    def _with_activations(self) -> Session:
        """The file with what it quantizes as outputs; integers that an operator computes directly, with wider steps."""
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        model.graph.ClearField("output")
        for number, each in enumerate(self.activations):
            output = model.graph.output.add(name=f"onnx-ci.activation.{number}")
            if each.source is not None:  # an Identity, because an activation may be an input of the graph
                model.graph.node.add(op_type="Identity", input=[each.source], output=[output.name])
                continue
            scale = model.graph.initializer.add()
            scale.CopyFrom(onnx.numpy_helper.from_array(np.array(each.scale * _WIDER, np.float32), f"{output.name}.scale"))
            node = model.graph.node.add()
            node.CopyFrom(each.node)
            node.name = ""
            node.input[_ZERO_POINT_OF_OUTPUT[node.op_type] - 1], node.output[0] = scale.name, output.name
        return self._load(model, "activations")

    def jittered_runs(self, feeds: Mapping[str, torch.Tensor]) -> list[list[torch.Tensor]]:
        """The outputs of several runs, each with every quantized activation moved by up to one step."""
        return [session.run(feeds) for session in self._jittered]

    @functools.cached_property
    def _jittered(self) -> list[Session]:
        seeds = range(PERTURBATIONS if quantized_tensors(self._model) else 0)
        return [self._load(with_jitter(self._model, seed), f"jitter-{seed}") for seed in seeds]

    def _load(self, model: onnx.ModelProto, name: str) -> Session:
        path = self._scratch / f"{name}.onnx"
        onnx.save_model(model, path, save_as_external_data=True, location=f"{path.name}.data")
        return self._runtime.load(path, "cpu")


def _measured(values: torch.Tensor, activation: QuantizedActivation) -> dict[str, float]:
    """The ``share``, the ``steps`` and the ``error`` of a :class:`ScaleFit`, from the output of an activation."""
    (low, high), step = activation.range, activation.scale
    values = values.double().nan_to_num(0.0)
    if activation.source is None:
        step *= _WIDER
        values = (values - activation.zero_point) * step
    if activation.zero_point == int(activation.integers.min):  # the lowest integer stands for zero: a ReLU, too
        values = values.clamp(min=low)
    clipped = (values - values.clamp(low - step, high + step)).abs()
    if not clipped.numel():
        return {"share": 0.0, "steps": 0.0, "error": 0.0}
    extent = max(0.0, float(values.max())) - min(0.0, float(values.min()))
    best = max(extent / activation.levels, 1e-30)
    # Rounding has the standard deviation of a step divided by the root of twelve.
    error = float((clipped**2).mean() * 12 + activation.scale**2) ** 0.5 / best
    steps = max(extent, activation.operator.removeprefix("QLinear") in _WITHIN_ONE) / activation.scale if extent else 0.0
    return {"share": float((clipped > 0).double().mean()), "steps": steps, "error": error}
