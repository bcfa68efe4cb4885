"""What a comparison can see: which modules of a model reach its outputs at all, measured by one backward pass.

A module whose activation × gradient stays under what the comparison tolerates could be replaced by anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_ci.calls import Call, seeded


@dataclass(frozen=True, kw_only=True)
class Observability:
    """Which of the modules that ran can be seen in the outputs."""

    seen: tuple[str, ...]
    blind: tuple[str, ...]

    @property
    def share(self) -> float:
        """The share of modules that can be seen, from 0 to 1."""
        return len(self.seen) / (len(self.seen) + len(self.blind))


class NoGradientsError(Exception):
    """torch computes no gradients in this process: where there is a GPU, a fork of one that has computed some cannot."""


def observe(call: Call, noise: Sequence[float], limit: float) -> Observability | None:
    """Measure the observability of ``call``.

    Args:
        call: a call of a model that may be used up.
        noise: for each output, the noise of the comparison.
        limit: the drift that just passes: what stays below ``noise × limit`` is not seen.

    Returns:
        ``None`` where gradients cannot tell: no floating output, or an operation without a derivative in every path.

    Raises:
        NoGradientsError: this process can compute none.
    """
    taps: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def hook_of(name: str) -> Any:
        def hook(_module: torch.nn.Module, _args: object, output: Any) -> Any:
            def tap(tensor: torch.Tensor) -> torch.Tensor:
                if not tensor.is_floating_point() or not tensor.numel():
                    return tensor
                # Adding a zero that wants a gradient gives the output's gradient, whatever is done to it in place later.
                zero = torch.zeros_like(tensor, requires_grad=True)
                taps.setdefault(name, []).append((zero, tensor.detach().clone()))
                return tensor + zero

            return pytree.tree_map_only(torch.Tensor, tap, output)

        return hook

    names = {name: module for name, module in call.model.named_modules() if not any(True for _ in module.children())}
    if any(isinstance(module, torch.jit.ScriptModule) for module in call.model.modules()):
        return None
    hooks = [module.register_forward_hook(hook_of(name or "the model")) for name, module in names.items()]
    try:
        with torch.enable_grad(), seeded(0), _gradients_of_recurrent_layers(call.model):
            outputs = [t for t in pytree.tree_leaves(call.model(*call.args, **call.kwargs)) if isinstance(t, torch.Tensor)]
            generator = torch.Generator().manual_seed(0)
            terms = [
                (output.cpu().double() * torch.randn(output.shape, generator=generator, dtype=torch.float64)).sum()
                / (each * limit)
                for output, each in zip(outputs, noise, strict=True)
                if output.is_floating_point() and output.requires_grad
            ]
            zeros = [zero for pairs in taps.values() for zero, _ in pairs]
            if not terms or not zeros:
                return None
            gradients = iter(torch.autograd.grad(torch.stack(terms).sum(), zeros, allow_unused=True))
    except Exception as error:  # a model that cannot be differentiated tells nothing about what is seen
        if "fork-based multiprocessing" in str(error):
            raise NoGradientsError(str(error)) from None
        return None
    finally:
        for hook in hooks:
            hook.remove()
    seen: list[str] = []
    blind: list[str] = []
    for name, pairs in taps.items():
        effects = [
            activation * gradient for (_, activation), gradient in zip(pairs, gradients, strict=False) if gradient is not None
        ]
        visible = any(float(effect.double().nan_to_num(0.0, 0.0, 0.0).norm()) > 1 for effect in effects)
        (seen if visible else blind).append(name)
    return Observability(seen=tuple(seen), blind=tuple(blind))


@contextlib.contextmanager
def _gradients_of_recurrent_layers(model: torch.nn.Module) -> Iterator[None]:
    """Let recurrent layers have gradients out of training mode, too, which cuDNN refuses and torch's own kernels give."""
    cudnn, before = torch.backends.cudnn, torch.backends.cudnn.enabled
    if any(isinstance(module, torch.nn.RNNBase) for module in model.modules()):
        cudnn.enabled = False
    try:
        yield
    finally:
        cudnn.enabled = before
