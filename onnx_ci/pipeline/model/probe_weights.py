"""Probe weights: weights under which an error in any layer affects the outputs.

A newly initialized BatchNorm is almost the identity, a gate is one half everywhere, a head may be zero: whole layers could
be wrong without changing the output. Probe weights replace such constants by random values. They scale matrices and shift
biases so that activations are near one and their means near zero (layer-sequential unit variance: Mishkin and Matas, 2016;
data-dependent initialization: Salimans and Kingma, 2016). Other weights keep their random values. If a file with them is wrong,
the model is exported with its own, too. A file that is kept has the model's own weights and is judged with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from onnx_ci.pipeline.model.call import Call, PrepareError
from onnx_ci.pipeline.model.module import named_weights_of, replace_weight, unlike_others
from onnx_ci.pipeline.model.running import run
from onnx_ci.pipeline.model.tensors import is_finite

_SCALED = (nn.Linear, nn.modules.conv._ConvNd)  # the base of all convolutions has no public name

FARTHEST_MEAN = 2.0
"""How far from zero the outputs of a linear module may be on average. With a bias, half as far."""
TINY = 1 / 16
"""The share of their usual size, with which outputs are as large as inputs, below which random weights are scaled up."""


def with_probe_weights(call: Call) -> Call | None:
    """Give ``call``'s model probe weights, in place. Ties, signs, other buffers and non-floating types are kept.

    ``None`` if the model fails on its example with these weights; ``call`` must not be used then.
    """
    with torch.no_grad():
        _draw_weights(call.model)
        buffers = {name: each.clone() for name, each in call.model.named_buffers() if unlike_others(each) is None}
        hooks = [
            module.register_forward_hook(_normalize, with_kwargs=True)
            for module in call.model.modules()
            if isinstance(module, _SCALED) and "weight" in _parameters_of(module)
        ]
        try:
            outputs = run(call)
        except PrepareError:
            return None
        finally:
            for hook in hooks:
                hook.remove()
        for name, buffer in call.model.named_buffers():  # the run itself may have changed buffers
            if name in buffers:
                replace_weight(buffer, buffers[name])
    are_finite = all(bool(is_finite(tensor).all()) for tensor in outputs if tensor.is_floating_point())
    return call if are_finite else None


def assign_weights(call: Call, other: Call) -> None:
    """Give ``call``'s model the weights of another model of the same recipe, in place; ties are kept."""
    new = named_weights_of(other.model)
    for name, weight in named_weights_of(call.model).items():
        if name in new and unlike_others(weight) is None:
            replace_weight(weight, new[name].data)


def _parameters_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a module itself. A weight that is computed from others is not among them."""
    return dict(module.named_parameters(recurse=False))


def _draw_weights(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn: set[int] = set()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):  # the base of all of them has no public name
            if module.running_mean is not None:
                module.running_mean.copy_(_sample(torch.randn, module.running_mean, generator) * 0.3)
            if module.running_var is not None:
                module.running_var.copy_(_sample(torch.rand, module.running_var, generator) * 1.5 + 0.5)
        for parameter in module.parameters(recurse=False):
            if id(parameter) in drawn or unlike_others(parameter) is not None:
                continue
            if parameter.is_floating_point() and parameter.numel():
                drawn.add(id(parameter))
                _draw(parameter, generator)


def _draw(parameter: nn.Parameter, generator: torch.Generator) -> None:
    """Draw random values for a constant parameter, and scale a tiny one: their initial values hide the effect of the layer."""
    if parameter.numel() == 1:
        return
    value = parameter.flatten()[0]
    is_constant, constant = bool((parameter == value).all()), float(value)
    usual = 1 / math.sqrt(parameter[0].numel()) if parameter.dim() > 1 else 0.3
    if not is_constant:
        size = _size_of(parameter)
        if 0 < size < TINY * usual:
            parameter.mul_(_power_of_two(usual / size))
    elif constant == 0:
        parameter.copy_(_sample(torch.randn, parameter, generator) * usual)
    else:
        # A scale keeps its sign; one that starts near zero (LayerScale) would hide its branch.
        size = constant if abs(constant) >= 0.1 else math.copysign(1.0, constant)
        parameter.copy_((_sample(torch.rand, parameter, generator) + 0.5) * size)


def _size_of(tensor: torch.Tensor) -> float:
    """The root mean square."""
    return float(tensor.double().square().mean().sqrt())


def _power_of_two(factor: float) -> float:
    """The power of two that is nearest to a factor: it causes no rounding."""
    return 2.0 ** round(math.log2(factor))


def _sample(draw: Callable[..., torch.Tensor], like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return draw(like.shape, generator=generator).to(like.device, like.dtype)


def _normalize(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor) -> torch.Tensor:
    """Scale the weight of a linear module to unit variance of what its inputs contribute, and limit its bias and its mean.

    A bias that is larger than that hides the inputs, so it is scaled to the same size. Where inputs hardly differ, as after
    several ReLUs, outputs are far from zero and hardly differ, either. With unit variance they would saturate the next sigmoid,
    which hides all that is before it. So they are scaled to a limited mean, and the bias is shifted against the rest. Not
    against all of it: what is left of a mean after it is subtracted is mostly rounding.
    """
    if not output.numel():
        return output
    parameters = _parameters_of(module)
    bias, of_inputs = parameters.get("bias"), output
    if bias is not None:
        own_bias = bias.clone()
        bias.zero_()
        of_inputs = module.forward(*args, **kwargs)
        bias.copy_(own_bias)
    spread, mean = float(of_inputs.float().std(correction=0)), float(of_inputs.float().mean())
    size = max(spread, abs(mean) / FARTHEST_MEAN)
    if not math.isfinite(size) or spread == 0:
        return output
    scale = _power_of_two(1 / size)
    parameters["weight"].mul_(scale)
    if bias is None:
        return output * scale
    size_of_bias = _size_of(bias) * scale
    scale_of_bias = scale * (_power_of_two(1 / size_of_bias) if size_of_bias > 1 else 1.0)
    scaled = of_inputs * scale + (output - of_inputs) * scale_of_bias
    mean_of_scaled = float(scaled.float().mean())
    shift = mean_of_scaled - math.copysign(1.0, mean_of_scaled) if abs(mean_of_scaled) > 1 else 0.0
    bias.mul_(scale_of_bias).sub_(shift)
    return scaled - shift
