"""One of the two files, loaded into a runtime: its outputs, also in float64, perturbed and jittered."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import AttributeProto, TensorProto, TypeProto

from onnx_ci.errors import ConfigurationError, first_line
from onnx_ci.onnx_model.contents import Contents
from onnx_ci.onnx_model.precision import TYPE_ATTRIBUTES, Precision, declared_values, lowest_precision
from onnx_ci.pipeline.inputs.probes import is_float
from onnx_ci.pipeline.model.tensors import Outputs, as_array, as_tensor, in_declared_type, same_shapes
from onnx_ci.pipeline.reference.perturbation import PERTURBATIONS, perturbed
from onnx_ci.pipeline.run.quantized_file import QuantizedActivation, QuantizedFile, ScaleFit
from onnx_ci.pipeline.run.runtime import Runtime, Session
from onnx_ci.tools.two_files.interfaces import ComparedFile


class LoadedFile:
    """A file in a runtime.

    All inputs are in the order of the reference's inputs, and all outputs are the compared ones.

    Raises:
        Exception: the runtime cannot load it; each runtime raises its own classes.
    """

    def __init__(self, file: ComparedFile, runtime: Runtime, scratch: Path) -> None:
        self.file = file
        self.precision = lowest_precision(onnx.load(file.path, load_external_data=False))
        self._runtime, self._scratch = runtime, scratch
        self._session = runtime.load(file.path, "cpu")
        self._perturbed: dict[Precision | None, list[Session]] = {}

    def run(self, inputs: Sequence[torch.Tensor]) -> Outputs:
        """The outputs. Raises what the runtime raises."""
        return self._run(inputs, self._session)

    def _run(self, inputs: Sequence[torch.Tensor], session: Session) -> Outputs:
        outputs = session.run(self._feeds(inputs))
        return tuple(outputs[place] for place in self.file.output_places)

    def _feeds(self, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        pairs = zip(self.file.signature.inputs, self.file.input_places, strict=True)
        return {value.name: in_declared_type(inputs[place], value.element_type) for value, place in pairs}

    def _load(self, model: onnx.ModelProto, name: str) -> Session:
        """A changed copy in the runtime."""
        path = self._scratch / f"{name}.onnx"
        onnx.save_model(model, path, save_as_external_data=True, location=f"{path.name}.data")
        return self._runtime.load(path, "cpu")

    def _model(self) -> onnx.ModelProto:
        """The file with its data, to be changed."""
        try:
            return onnx.load(self.file.path)
        except Exception as error:  # onnx raises its own classes
            message = f"the weights of {self.file.name} cannot be read: {first_line(error).rstrip('.')}"
            raise ConfigurationError(f"{message}; put a copy of them next to it") from None

    def in_float64(self, inputs: Sequence[torch.Tensor]) -> Outputs | None:
        """The outputs in float64, or ``None`` if ONNX's reference evaluator cannot compute them.

        Perturbation, which is used then, can estimate twice the rounding. With it alone, a transformer would pass with a weight
        that is multiplied by 1.00001.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # numpy warns of overflow and division by zero, which files may contain
                widened = [tensor.double() if is_float(tensor) else tensor for tensor in inputs]
                pairs = zip(self.file.signature.inputs, self.file.input_places, strict=True)
                feeds = {value.name: as_array(widened[place]) for value, place in pairs}
                outputs: Any = self._evaluator.run(None, feeds)
                return tuple(as_tensor(outputs[place]) for place in self.file.output_places)
        except Exception:  # it lacks operators, or these in float64, and can raise anything
            return None

    @functools.cached_property
    def _evaluator(self) -> onnx.reference.ReferenceEvaluator:
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(in_float64(self._model()))

    def perturbed_runs(self, inputs: Sequence[torch.Tensor], like: Outputs, precision: Precision | None) -> list[Outputs]:
        """Outputs, each with weights and inputs moved by half a step of a precision or, if ``None``, its own.

        Those with other shapes than ``like``, the outputs without perturbation, are left out.
        """
        generator = torch.Generator().manual_seed(0)
        runs = []
        for session in self._perturbed_sessions(precision):
            with contextlib.suppress(Exception):  # a perturbed input can be invalid; the other runs decide
                runs.append(self._run([perturbed(tensor, generator, precision) for tensor in inputs], session))
        return [outputs for outputs in runs if same_shapes(outputs, like)]

    def _perturbed_sessions(self, precision: Precision | None) -> Sequence[Session]:
        if precision not in self._perturbed:
            generator = torch.Generator().manual_seed(1)
            sessions = []
            for number in range(PERTURBATIONS):
                model = self._model()
                for tensor in perturbable_tensors(model):
                    moved = perturbed(as_tensor(onnx.numpy_helper.to_array(tensor)), generator, precision)
                    tensor.CopyFrom(onnx.numpy_helper.from_array(as_array(moved), tensor.name))
                sessions.append(self._load(model, f"{precision.name if precision else 'own'}-{number}"))
            self._perturbed[precision] = sessions
        return self._perturbed[precision]

    @functools.cached_property
    def _quantized(self) -> QuantizedFile | None:
        if self.precision is None or not self.precision.is_uniform:
            return None
        return QuantizedFile(self.file.name, self._model(), self._runtime, self._scratch)

    @property
    def activations(self) -> tuple[QuantizedActivation, ...]:
        """The activations that the file quantizes with a fixed scale."""
        return self._quantized.activations if self._quantized else ()

    @property
    def ranges(self) -> dict[int, tuple[float, float]]:
        """The ranges that quantized inputs were calibrated for, by the position of the reference's input."""
        names = (value.name for value in self.file.signature.inputs)
        places = dict(zip(names, self.file.input_places, strict=True))
        return {places[each.source]: each.range for each in self.activations if each.source in places}

    def fits(self, inputs: Sequence[torch.Tensor]) -> Sequence[ScaleFit]:
        """How the scales of activations fit ``inputs``."""
        return self._quantized.fits(self._feeds(inputs)) if self._quantized else ()

    def jittered_runs(self, inputs: Sequence[torch.Tensor]) -> list[Outputs]:
        """The outputs of several runs, each with every quantized activation moved by up to one step."""
        runs = self._quantized.jittered_runs(self._feeds(inputs)) if self._quantized else []
        return [tuple(outputs[place] for place in self.file.output_places) for outputs in runs]


_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model``, which must contain all its data, with every floating type replaced by float64. It is modified.

    Quantization and casts to integers stay, because they are part of what the file computes.
    """
    contents = Contents.of(model)
    for tensor in contents.tensors:
        if tensor.data_type in _FLOATS:
            tensor.CopyFrom(_double(onnx.numpy_helper.to_array(tensor), tensor.name))
    for value in declared_values(model, contents):
        _widen(value.type)
    for node, attribute in contents.attributes:
        if attribute.name in TYPE_ATTRIBUTES and attribute.type == AttributeProto.INT and attribute.i in _FLOATS:
            attribute.i = TensorProto.DOUBLE
        elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats") and not attribute.ref_attr_name:
            value = _double(np.array(onnx.helper.get_attribute_value(attribute)), "")
            attribute.CopyFrom(onnx.helper.make_attribute("value", value))
    return model


def _double(array: np.ndarray, name: str) -> TensorProto:
    return onnx.numpy_helper.from_array(array.astype(np.float64), name)


def _widen(kind: TypeProto) -> None:
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(kind, which)
        if tensor.elem_type in _FLOATS:
            tensor.elem_type = TensorProto.DOUBLE
    elif which in ("sequence_type", "optional_type"):
        _widen(getattr(kind, which).elem_type)


def perturbable_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """The floating weights of a model, which must contain all its data; without scales of sizes, which determine shapes."""
    contents = Contents.of(model)
    scales = {name for node in contents.nodes if node.op_type in ("Resize", "Upsample") for name in node.input[1:]}
    for name, tensor in contents.constants:
        if name not in scales and tensor.data_type in (*_FLOATS, TensorProto.DOUBLE):
            yield tensor
