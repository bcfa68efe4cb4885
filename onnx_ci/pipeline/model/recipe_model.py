"""The model of a recipe, with the weights that a cell exports, and the signature of its call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from onnx_ci.collection.recipe import Recipe
from onnx_ci.pipeline.model.call import Call
from onnx_ci.pipeline.model.containers import Container
from onnx_ci.pipeline.model.module import weights_of
from onnx_ci.pipeline.model.tensor_sketch import sketch
from onnx_ci.results.records import TensorSketch


@dataclass(frozen=True, kw_only=True)
class CallSignature:
    """The inputs and outputs of a call, as the recipe declares them and the model returns them."""

    input_names: tuple[str | None, ...]
    """The name of each tensor argument: the declared one, that in the model if only its axes are declared, or ``None``."""
    axes: Mapping[str, Mapping[int, str]]
    """The declared dynamic axes by input or output name, from ``dynamic_axes`` or ``dynamic_shapes``."""
    dynamic_shapes: tuple[Any, ...] | None
    """The inputs' dynamic axes as ``dynamic_shapes`` of ``torch.export``, in the order of forward's parameters."""
    outputs: tuple[Container, ...]
    """The outputs of other classes than tuple, list and dict."""
    own_output_names: tuple[str, ...]
    """What the model calls its outputs, such as ``past_key_values.0.key``; empty if what it returns has no names."""

    def axes_of_one(self, inputs: Sequence[torch.Tensor]) -> list[str]:
        """The names of the dynamic axes along which the inputs have size 1."""
        axes = [self.axes.get(name or "", {}) for name in self.input_names]
        sizes = ((name, tensor.shape[axis]) for each, tensor in zip(axes, inputs, strict=True) for axis, name in each.items())
        return [*dict.fromkeys(name for name, size in sizes if size == 1)]


@dataclass(frozen=True, kw_only=True)
class RecipeModel:
    """The model of a recipe, to run and to export."""

    recipe: Recipe
    """The recipe, with what its function declares."""
    signature: CallSignature
    pristine: Call
    """The model and its arguments, which are never run or changed."""
    fresh: Callable[..., Call]
    """Returns a copy of ``pristine``, one for each run or export: :meth:`Copies.fresh`."""
    has_probe_weights: bool
    """Whether the model has probe weights instead of its own."""
    exports_own_parameters: bool
    """Whether an export gets the parameters of ``pristine`` instead of copies, for which there may not be enough memory."""
    changed_by_running: tuple[str, ...]
    """The state that a run of the model changes, so that it is not attributed to the export."""
    is_watchable: bool
    """Whether the model computes the same, bit for bit, under an intervention that changes nothing."""
    weights_sketch: TensorSketch
    """A sketch of the exported parameters and buffers."""

    @functools.cached_property
    def weights(self) -> Mapping[str, torch.Tensor]:
        """The weights by name, if ``export_params=False`` makes them inputs of the file; otherwise empty."""
        if self.recipe.export_options.get("export_params", True):
            return {}
        return {name: tensor.detach().cpu() for name, tensor in self.pristine.model.state_dict().items()}

    def weights_are_unchanged(self) -> bool:
        """Whether the parameters and buffers still are what :attr:`weights_sketch` describes."""
        return sketch(weights_of(self.pristine.model)) == self.weights_sketch
