"""The operators that the torch.onnx documentation lists as supported (editions 1.3 and 1.5), one minimal case each.

The names are the documentation's. A name with a dot stands for a restriction in the documentation: the case does what it says
is not supported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own abbreviation)
from torch import nn

Input = Callable[[], torch.Tensor]
"""Draws an input with the recipe's seed."""


@dataclass(frozen=True)
class Case:
    """One operator and the inputs that it is exported with."""

    name: str
    call: Callable[..., Any]
    """What is exported: a function of the inputs, or, with ``is_module``, a function that makes a module."""
    inputs: tuple[Input, ...]
    _: KW_ONLY
    is_module: bool = False
    restriction: str = ""
    """What the documentation says the operator does not support, if the case does exactly that."""
    dynamic_axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """For operators that compute with a size: if it were fixed, the exporter would fold the operator into a constant."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Other keywords of the recipe."""


def function(name: str, call: Callable[..., Any], *inputs: Input, **more: Any) -> Case:
    """A case for a function of tensors."""
    return Case(name, call, inputs, **more)


def module(name: str, make: Callable[[], nn.Module], *inputs: Input, **more: Any) -> Case:
    """A case for a module."""
    return Case(name, make, inputs, is_module=True, **more)


def floats(*shape: int) -> Input:
    """Normally distributed numbers."""
    return lambda: torch.randn(shape)


def between(low: float, high: float, *shape: int) -> Input:
    """Uniformly distributed numbers, for functions that are defined only in a range."""
    return lambda: low + (high - low) * torch.rand(shape)


def integers(low: int, high: int, *shape: int) -> Input:
    """Integers from ``low`` up to, but not including, ``high``."""
    return lambda: torch.randint(low, high, shape)


def booleans(*shape: int) -> Input:
    """True and false with equal probability."""
    return lambda: torch.rand(shape) < 0.5


def indices(*values: int) -> Input:
    """A tensor of these integers."""
    return lambda: torch.tensor(values)


def matrices(count: int, size: int) -> Input:
    """Well-conditioned square matrices with positive determinants."""
    return lambda: 4 * torch.eye(size) + torch.rand(count, size, size)


_ROWS = {"x": {0: "rows"}, "out": {0: "rows"}}
_COUNT = {"out": {0: "count"}}
_RANDOM = {"nondeterministic": True}

CASES = (
    module("BatchNorm", lambda: nn.BatchNorm2d(3), floats(2, 3, 4, 4)),
    function("ConstantPadNd", lambda x: F.pad(x, (1, 2), value=0.5), floats(2, 3)),
    module("Conv", lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), floats(2, 3, 8, 8)),
    module("Dropout", lambda: nn.Dropout(0.5), floats(2, 3)),
    module("Embedding", lambda: nn.Embedding(7, 4), integers(0, 7, 2, 3)),
    module(
        "Embedding.padding_idx",
        lambda: nn.Embedding(7, 4, padding_idx=0),
        integers(0, 7, 2, 3),
        restriction="optional arguments",
    ),
    module("FeatureDropout", lambda: nn.Dropout2d(0.5), floats(2, 3, 4, 4)),
    module(
        "FeatureDropout.training",
        lambda: nn.Dropout2d(0.5),
        between(1, 2, 16, 16, 2, 2),
        restriction="training mode",
        options={"nondeterministic": True, "training": True},
    ),
    function("Index", lambda x, index: x[index], floats(5, 3), indices(2, 0, 4)),
    module("MaxPool1d", lambda: nn.MaxPool1d(2), floats(1, 2, 6)),
    module("MaxPool2d", lambda: nn.MaxPool2d(2, padding=1), floats(1, 2, 6, 6)),
    module("MaxPool3d", lambda: nn.MaxPool3d(2), floats(1, 2, 4, 4, 4)),
    module("RNN", lambda: nn.RNN(4, 5), floats(3, 2, 4), floats(1, 2, 5)),
    function("abs", lambda x: torch.abs(x), floats(2, 3)),
    function("acos", lambda x: torch.acos(x), between(-0.9, 0.9, 2, 3)),
    function("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 2), floats(1, 2, 6)),
    function("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 2), floats(1, 2, 6, 6)),
    function("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, 2), floats(1, 2, 4, 4, 4)),
    function("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, 2), floats(1, 2, 6)),
    function("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, 2), floats(1, 2, 6, 6)),
    function("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, 2), floats(1, 2, 4, 4, 4)),
    function("add", lambda x, y: torch.add(x, y), floats(2, 3), floats(2, 3)),
    function("add.alpha", lambda x, y: torch.add(x, y, alpha=2), floats(2, 3), floats(2, 3), restriction="nonzero alpha"),
    function("addmm", lambda x, y, z: torch.addmm(x, y, z), floats(2, 4), floats(2, 3), floats(3, 4)),
    function("and", lambda x, y: torch.logical_and(x, y), booleans(3, 5), booleans(3, 5)),
    function("arange", lambda x: x * torch.arange(x.shape[0]), floats(3), dynamic_axes=_ROWS),
    function("argmax", lambda x: torch.argmax(x, 1), floats(3, 5)),
    function("argmin", lambda x: torch.argmin(x, 1), floats(3, 5)),
    function("asin", lambda x: torch.asin(x), between(-0.9, 0.9, 2, 3)),
    function("atan", lambda x: torch.atan(x), floats(2, 3)),
    module("avg_pool1d", lambda: nn.AvgPool1d(2), floats(1, 2, 6)),
    module("avg_pool2d", lambda: nn.AvgPool2d(2, padding=1), floats(1, 2, 6, 6)),
    module("avg_pool3d", lambda: nn.AvgPool3d(2), floats(1, 2, 4, 4, 4)),
    function("baddbmm", lambda x, y, z: torch.baddbmm(x, y, z), floats(2, 3, 5), floats(2, 3, 4), floats(2, 4, 5)),
    function("bitshift", lambda x: (x << 2, x >> 1), integers(0, 50, 2, 3)),
    function("cat", lambda x, y: torch.cat([x, y], 1), floats(2, 3), floats(2, 4)),
    function("ceil", lambda x: torch.ceil(x), floats(2, 3)),
    function("clamp", lambda x: torch.clamp(x, -0.5, 0.5), floats(2, 3)),
    function("clamp_max", lambda x: torch.clamp_max(x, 0.5), floats(2, 3)),
    function("clamp_min", lambda x: torch.clamp_min(x, -0.5), floats(2, 3)),
    function("concat", lambda x, y: torch.concat([x, y]), floats(2, 3), floats(4, 3)),
    function("copy", lambda x, y: x.clone().copy_(y) + x, floats(2, 3), floats(3)),
    function("cos", lambda x: torch.cos(x), floats(2, 3)),
    function("cumsum", lambda x: torch.cumsum(x, 1), floats(2, 5)),
    function("det", lambda x: torch.det(x), matrices(2, 3)),
    function("dim_arange", lambda x: x * torch._dim_arange(x, 0), floats(3), dynamic_axes=_ROWS),
    function("div", lambda x, y: torch.div(x, y), floats(2, 3), between(1, 2, 2, 3)),
    function("dropout", lambda x: F.dropout(x, 0.5, training=False), floats(2, 3)),
    function("elu", lambda x: F.elu(x, alpha=0.7), floats(2, 3)),
    function("empty", lambda x: torch.empty(x.shape[0]).zero_() + x, floats(3), dynamic_axes=_ROWS),
    function("empty_like", lambda x: torch.empty_like(x).zero_() + x, floats(3), dynamic_axes=_ROWS),
    function("eq", lambda x, y: torch.eq(x, y), integers(0, 3, 4, 5), integers(0, 3, 4, 5)),
    function("erf", lambda x: torch.erf(x), floats(2, 3)),
    function("exp", lambda x: torch.exp(x), floats(2, 3)),
    function("expand", lambda x: x.expand(2, -1, 3), floats(3, 1), dynamic_axes={"x": {0: "rows"}, "out": {1: "rows"}}),
    function("expand_as", lambda x, y: x.expand_as(y) + y, floats(3), floats(2, 3)),
    function("flatten", lambda x: torch.flatten(x, 1), floats(2, 3, 4), dynamic_axes=_ROWS),
    function("floor", lambda x: torch.floor(x), floats(2, 3)),
    function("floor_divide", lambda x, y: torch.floor_divide(x, y), integers(-9, 9, 3, 4), integers(1, 5, 3, 4)),
    function("frobenius_norm", lambda x: torch.frobenius_norm(x, [1], False), floats(2, 3)),
    function("full", lambda x: torch.full((x.shape[0],), 0.5) + x, floats(3), dynamic_axes=_ROWS),
    function("full_like", lambda x: torch.full_like(x, 0.5) + x, floats(3), dynamic_axes=_ROWS),
    function("gather", lambda x, index: torch.gather(x, 1, index), floats(3, 5), integers(0, 5, 3, 2)),
    function("ge", lambda x, y: torch.ge(x, y), integers(0, 3, 4, 5), integers(0, 3, 4, 5)),
    function("gelu", lambda x: F.gelu(x), floats(2, 3)),
    function("glu", lambda x: F.glu(x, 1), floats(2, 6)),
    module("group_norm", lambda: nn.GroupNorm(2, 4), floats(2, 4, 3)),
    function("gt", lambda x, y: torch.gt(x, y), integers(0, 3, 4, 5), integers(0, 3, 4, 5)),
    function("hardtanh", lambda x: F.hardtanh(x, -0.5, 0.7), floats(2, 3)),
    function("im2col", lambda x: F.unfold(x, (2, 3), padding=1, stride=2), floats(1, 2, 5, 6)),
    function("index_copy", lambda x, i, y: torch.index_copy(x, 0, i, y), floats(5, 3), indices(4, 1), floats(2, 3)),
    function("index_fill", lambda x, i: torch.index_fill(x, 0, i, 0.5), floats(5, 3), indices(4, 1)),
    function("index_put", lambda x, i, y: torch.index_put(x, (i,), y), floats(5, 3), indices(4, 1), floats(2, 3)),
    function("index_select", lambda x, i: torch.index_select(x, 1, i), floats(3, 5), indices(4, 1)),
    module("instance_norm", lambda: nn.InstanceNorm2d(3, affine=True), floats(2, 3, 4, 4)),
    function("interpolate", lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), floats(1, 2, 3, 4)),
    function("isnan", lambda x: torch.isnan(torch.log(x)), floats(3, 4)),
    module("layer_norm", lambda: nn.LayerNorm(8), floats(2, 8)),
    function("le", lambda x, y: torch.le(x, y), integers(0, 3, 4, 5), integers(0, 3, 4, 5)),
    function("leaky_relu", lambda x: F.leaky_relu(x, 0.2), floats(2, 3)),
    function("log", lambda x: torch.log(x), between(0.1, 3, 2, 3)),
    function("log1p", lambda x: torch.log1p(x), between(0.1, 3, 2, 3)),
    function("log2", lambda x: torch.log2(x), between(0.1, 3, 2, 3)),
    function("log_sigmoid", lambda x: F.logsigmoid(x), floats(2, 3)),
    function("log_softmax", lambda x: F.log_softmax(x, 1), floats(2, 3, 4)),
    function("logdet", lambda x: torch.logdet(x), matrices(2, 3)),
    function("logsumexp", lambda x: torch.logsumexp(x, 1), floats(2, 3)),
    function("lt", lambda x, y: torch.lt(x, y), integers(0, 3, 4, 5), integers(0, 3, 4, 5)),
    function("masked_fill", lambda x, mask: x.masked_fill(mask, 0.5), floats(3, 5), booleans(3, 5)),
    function("max", lambda x: torch.max(x, 1), floats(3, 5)),
    function("mean", lambda x: torch.mean(x, 1), floats(3, 5)),
    function("min", lambda x: torch.min(x, 1), floats(3, 5)),
    function("mm", lambda x, y: torch.mm(x, y), floats(2, 3), floats(3, 4)),
    function("mul", lambda x, y: torch.mul(x, y), floats(2, 3), floats(2, 3)),
    function("multinomial", lambda x: torch.multinomial(x, 200, replacement=True), between(0.1, 1, 4, 5), options=_RANDOM),
    function("narrow", lambda x: torch.narrow(x, 1, 1, 2), floats(2, 4)),
    function("ne", lambda x, y: torch.ne(x, y), integers(0, 3, 4, 5), integers(0, 3, 4, 5)),
    function("neg", lambda x: torch.neg(x), floats(2, 3)),
    function(
        "nonzero",
        lambda x: torch.nonzero(x),
        integers(0, 3, 4, 5),
        dynamic_axes=_COUNT,
    ),
    function("norm", lambda x: torch.norm(x, p=1, dim=1), floats(3, 5)),
    function("ones", lambda x: torch.ones(x.shape[0]) + x, floats(3), dynamic_axes=_ROWS),
    function("ones_like", lambda x: torch.ones_like(x) + x, floats(3), dynamic_axes=_ROWS),
    function("or", lambda x, y: torch.logical_or(x, y), booleans(3, 5), booleans(3, 5)),
    function("permute", lambda x: x.permute(2, 0, 1), floats(2, 3, 4)),
    function("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), floats(1, 8, 3, 3)),
    function("pow", lambda x, y: torch.pow(x, y), between(0.5, 2, 2, 3), floats(2, 3)),
    module("prelu", lambda: nn.PReLU(3), floats(2, 3, 4)),
    module("prelu.shared", lambda: nn.PReLU(), floats(2, 3, 4), restriction="single weight shared among input channels"),
    function("prod", lambda x: torch.prod(x, 1), floats(2, 3)),
    function("rand", lambda x: torch.rand(64, 64) + x, floats(1), options=_RANDOM),
    function("randn", lambda x: torch.randn(64, 64) + x, floats(1), options=_RANDOM),
    function("randn_like", lambda x: torch.randn_like(x) + x, floats(64, 64), options=_RANDOM),
    function("reciprocal", lambda x: torch.reciprocal(x), between(0.5, 2, 2, 3)),
    function("reflection_pad", lambda x: F.pad(x, (1, 2), mode="reflect"), floats(1, 2, 4)),
    function("relu", lambda x: torch.relu(x), floats(2, 3)),
    function("repeat", lambda x: x.repeat(2, 3), floats(2, 3)),
    function("replication_pad", lambda x: F.pad(x, (1, 2), mode="replicate"), floats(1, 2, 4)),
    function("reshape", lambda x: x.reshape(x.shape[0], -1), floats(2, 3, 4), dynamic_axes=_ROWS),
    function("reshape_as", lambda x, y: x.reshape_as(y) + y, floats(2, 6), floats(3, 4)),
    function("round", lambda x: torch.round(x), floats(2, 3)),
    function("rrelu", lambda x: F.rrelu(x), floats(2, 3)),
    function("rsqrt", lambda x: torch.rsqrt(x), between(0.5, 2, 2, 3)),
    function("rsub", lambda x: torch.rsub(x, 2.5), floats(2, 3)),
    function("scalar_tensor", lambda x: torch.scalar_tensor(2.5) + x, floats(2, 3)),
    function(
        "scatter",
        lambda x, index, y: torch.scatter(x, 1, index, y),
        floats(2, 5),
        lambda: torch.tensor([[0, 3], [4, 1]]),
        floats(2, 2),
    ),
    function(
        "scatter_add",
        lambda x, index, y: torch.scatter_add(x, 1, index, y),
        floats(2, 5),
        lambda: torch.tensor([[0, 3, 3], [4, 1, 4]]),
        floats(2, 3),
    ),
    function("select", lambda x: torch.select(x, 1, 2), floats(2, 4)),
    function("selu", lambda x: torch.selu(x), floats(2, 3)),
    function("sigmoid", lambda x: torch.sigmoid(x), floats(2, 3)),
    function("sign", lambda x: torch.sign(x), floats(2, 3)),
    function("sin", lambda x: torch.sin(x), floats(2, 3)),
    function("size", lambda x: x * x.size(0), floats(3), dynamic_axes=_ROWS),
    function("slice", lambda x: x[:, 1:4:2], floats(2, 5)),
    function("softmax", lambda x: F.softmax(x, -1), floats(2, 3, 4)),
    function("softmax.dim", lambda x: F.softmax(x, 1), floats(2, 3, 4), restriction="any other dim than -1"),
    function("softplus", lambda x: F.softplus(x), floats(2, 3)),
    function("sort", lambda x: torch.sort(x, 1), floats(3, 5)),
    function("split", lambda x: torch.split(x, 2, 1), floats(2, 5)),
    function("sqrt", lambda x: torch.sqrt(x), between(0.5, 2, 2, 3)),
    function("squeeze", lambda x: torch.squeeze(x, 1), floats(2, 1, 3)),
    function("stack", lambda x, y: torch.stack([x, y], 1), floats(2, 3), floats(2, 3)),
    function("std", lambda x: torch.std(x, 1), floats(2, 5)),
    function("sub", lambda x, y: torch.sub(x, y), floats(2, 3), floats(2, 3)),
    function("sub.alpha", lambda x, y: torch.sub(x, y, alpha=2), floats(2, 3), floats(2, 3), restriction="nonzero alpha"),
    function("sum", lambda x: torch.sum(x, 1), floats(2, 5)),
    function("t", lambda x: torch.t(x), floats(2, 3)),
    function("tan", lambda x: torch.tan(x), between(-1, 1, 2, 3)),
    function("tanh", lambda x: torch.tanh(x), floats(2, 3)),
    function("threshold", lambda x: F.threshold(x, 0.0, 0.0), floats(2, 3)),
    function(
        "threshold.value",
        lambda x: F.threshold(x, 0.5, -1.0),
        floats(2, 3),
        restriction="non-zero threshold and value",
    ),
    function("to", lambda x: x.to(torch.int32), floats(2, 3)),
    function("topk", lambda x: torch.topk(x, 3), floats(2, 5)),
    function("transpose", lambda x: torch.transpose(x, 0, 2), floats(2, 3, 4)),
    function("true_divide", lambda x, y: torch.true_divide(x, y), integers(-9, 9, 2, 3), integers(1, 5, 2, 3)),
    function("type_as", lambda x, y: x.type_as(y) + y, integers(0, 9, 2, 3), floats(2, 3)),
    function("unbind", lambda x: torch.unbind(x, 1), floats(2, 3)),
    function("unfold", lambda x: x.unfold(1, 3, 2), floats(2, 7)),
    function("unique", lambda x: torch.unique(x), integers(0, 5, 9), dynamic_axes=_COUNT),
    function("unsqueeze", lambda x: torch.unsqueeze(x, 1), floats(2, 3)),
    function("upsample_nearest1d", lambda x: F.interpolate(x, scale_factor=2.0), floats(1, 2, 3)),
    function("upsample_nearest2d", lambda x: F.interpolate(x, scale_factor=2.0), floats(1, 2, 3, 3)),
    function("upsample_nearest3d", lambda x: F.interpolate(x, scale_factor=2.0), floats(1, 2, 2, 2, 2)),
    function("view", lambda x: x.view(3, 4), floats(2, 6)),
    function("weight_norm", lambda v, g: torch._weight_norm(v, g, 0), floats(3, 5), floats(3, 1)),
    function("where", lambda mask, x, y: torch.where(mask, x, y), booleans(3, 5), floats(3, 5), floats(3, 5)),
    function("zeros", lambda x: torch.zeros(x.shape[0]) + x, floats(3), dynamic_axes=_ROWS),
    function("zeros_like", lambda x: torch.zeros_like(x) + x, floats(3), dynamic_axes=_ROWS),
)
