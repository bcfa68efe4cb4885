"""Which modules of a model affect its outputs measurably, determined by one backward pass.

An error in a module whose activation × gradient is within the tolerance of the comparison cannot be detected.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_ci.pipeline.model.call import Call, PrepareError
from onnx_ci.pipeline.model.containers import tensors_in
from onnx_ci.pipeline.model.module import calls_hooks, unlike_others
from onnx_ci.pipeline.model.running import force_eager, run, seeded
from onnx_ci.pipeline.model.tensors import Outputs, has_noise, same_shapes
from onnx_ci.pipeline.prepare.side_effects import differ

WHOLE = "the model"
"""What a model that has no modules is called among its modules."""


@dataclass(frozen=True, kw_only=True)
class Observability:
    """Which of the modules that ran affect the outputs measurably."""

    visible: tuple[str, ...]
    hidden: tuple[str, ...]
    without_gradient: tuple[str, ...] = ()
    """Those of :attr:`hidden` through which no gradient leads: nothing uses what they return, or only an argmax or the like."""
    flat: tuple[str, ...] = ()
    """Those of :attr:`hidden` without a gradient, or with zero everywhere: a step, such as a rounding, can follow them."""

    @property
    def share(self) -> float:
        """The share of visible modules, from 0 to 1."""
        return len(self.visible) / (len(self.visible) + len(self.hidden))

    @property
    def has_gradients(self) -> bool:
        """Whether one of the hidden modules has a gradient. What nothing uses has none."""
        return not set(self.hidden) <= set(self.without_gradient)

    def beside(self, other: Observability) -> Observability:
        """What is visible in this run or in the ``other`` one, which had other inputs."""
        with_gradient = {*other.hidden} - {*other.without_gradient}
        without_gradient = tuple(name for name in self.without_gradient if name not in with_gradient)
        return replace(self, without_gradient=without_gradient).with_visible(other.visible)

    def with_visible(self, names: Collection[str]) -> Observability:
        """The same, except that these modules are visible, too."""
        fields = ("hidden", "without_gradient", "flat")
        still = {field: tuple(name for name in getattr(self, field) if name not in names) for field in fields}
        return Observability(visible=(*self.visible, *(name for name in self.hidden if name in names)), **still)


class NoGradientsError(Exception):
    """torch cannot compute gradients here: on a machine with a GPU, a fork of a process that has computed some cannot."""


def observe(call: Call, noise: Sequence[float], limits: Sequence[float]) -> Observability | None:
    """Measure the observability of ``call``, which must not be used afterwards: effects below noise × limit are hidden.

    ``None`` without gradients: no floating output, or a model that cannot be differentiated. A :class:`NoGradientsError` says
    that this process cannot compute any.
    """
    taps: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def hook(name: str, _module: torch.nn.Module, _args: object, output: Any) -> Any:
        def tap(tensor: torch.Tensor) -> torch.Tensor:
            if unlike_others(tensor) is not None or not tensor.is_floating_point() or not tensor.numel():
                return tensor
            # The added zero receives the output's gradient, even if the output is changed in place later.
            zero = torch.zeros_like(tensor, requires_grad=True)
            taps.setdefault(name, []).append((zero, tensor.detach().clone()))
            return tensor + zero

        return pytree.tree_map_only(torch.Tensor, tap, output)

    names = {name: module for name, module in call.model.named_modules() if not any(True for _ in module.children())}
    if not calls_hooks(call.model):
        return None
    hooks = [module.register_forward_hook(functools.partial(hook, name or WHOLE)) for name, module in names.items()]
    try:
        with torch.enable_grad(), seeded(0), force_eager(), _gradients_of_recurrent_layers(call.model):
            outputs = tensors_in(call.model(*call.args, **call.kwargs))
            generator = torch.Generator().manual_seed(0)
            directions = [
                (output, (torch.randn(output.shape, generator=generator) / (unit * limit)).to(output.device, output.dtype))
                for output, unit, limit in zip(outputs, noise, limits, strict=True)
                if output.is_floating_point() and output.requires_grad
            ]
            tapped = {name: [*pairs] for name, pairs in taps.items()}  # a gradient may run modules again: checkpointing does
            zeros = [zero for pairs in tapped.values() for zero, _ in pairs]
            if not directions or not zeros:
                return None
            ends, directions_of_ends = zip(*directions, strict=True)
            gradients = iter(torch.autograd.grad(ends, zeros, directions_of_ends, allow_unused=True))
    except Exception as error:  # the model cannot be differentiated
        if "fork-based multiprocessing" in str(error):
            raise NoGradientsError(str(error)) from None
        return None
    finally:
        for handle in hooks:
            handle.remove()
    kinds: dict[str, list[str]] = {"visible": [], "hidden": [], "without_gradient": [], "flat": []}
    for name, pairs in tapped.items():
        effects = [
            activation * gradient for (_, activation), gradient in zip(pairs, gradients, strict=False) if gradient is not None
        ]
        if not effects:
            kinds["without_gradient"].append(name)
        if not any(effect.any() for effect in effects):
            kinds["flat"].append(name)
        sizes = (torch.linalg.vector_norm(effect.nan_to_num_(0.0, 0.0, 0.0), dtype=torch.float64) for effect in effects)
        kinds["visible" if any(size > 1 for size in sizes) else "hidden"].append(name)
    return Observability(**{kind: tuple(of_kind) for kind, of_kind in kinds.items()})


_MOVE, _MOVES = 1 / 8, 4
"""How far the outputs of a module are moved, in their standard deviations, and how often. Some of many values then cross a step
near them, and few leave what a clamp or a ReLU cuts off."""


def seen_in_steps(fresh: Callable[[], Call], names: Sequence[str], outputs: Outputs, allowed: Sequence[float]) -> Sequence[str]:
    """Those modules whose outputs, moved by a share of their spread, move an output of the model by more than allowed."""

    def are_seen(some: Sequence[str], seed: int) -> bool:
        call, generator = fresh(), torch.Generator().manual_seed(seed)

        def move(tensor: torch.Tensor) -> torch.Tensor:
            if not has_noise(tensor) or tensor.numel() < 2:
                return tensor
            noise = torch.randn(tensor.shape, generator=generator).to(tensor.device, tensor.dtype)
            return tensor + _MOVE * tensor.std() * noise

        _change_outputs(call.model, some, move)
        try:
            moved = run(call)
        except PrepareError:
            return False
        pairs = zip(moved, outputs, allowed, strict=False)
        return not same_shapes(moved, outputs) or any(
            bool(((new.double() - old.double()).abs() > (most if has_noise(old) else 0)).any()) for new, old, most in pairs
        )

    if not names or not any(are_seen(names, seed) for seed in range(_MOVES)):
        return []
    return [name for name in names if any(are_seen([name], seed) for seed in range(_MOVES))]


def affect_outputs(call: Call, names: Collection[str], outputs: Outputs) -> bool:
    """Whether the outputs of ``call``, not to be used afterwards, depend on what some modules return, or it cannot be told."""
    replaced: list[torch.Tensor] = []

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        replaced.append(tensor)
        return -3 * tensor - 1

    if not calls_hooks(call.model):
        return True
    _change_outputs(call.model, names, changed)
    try:
        return differ(run(call), outputs) or not replaced
    except PrepareError:
        return True


def _change_outputs(model: torch.nn.Module, names: Collection[str], change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for name, module in model.named_modules():
        if (name or WHOLE) in names:
            module.register_forward_hook(lambda _module, _args, output: pytree.tree_map_only(torch.Tensor, change, output))


@contextlib.contextmanager
def _gradients_of_recurrent_layers(model: torch.nn.Module) -> Iterator[None]:
    """Disable cuDNN for recurrent layers: it has no gradients for them in eval mode, unlike torch's own kernels."""
    cudnn, before = torch.backends.cudnn, torch.backends.cudnn.enabled
    if any(isinstance(module, torch.nn.RNNBase) for module in model.modules()):
        cudnn.enabled = False
    try:
        yield
    finally:
        cudnn.enabled = before
