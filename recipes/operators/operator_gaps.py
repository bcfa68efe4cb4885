"""What torch's exporters get wrong or cannot export, of the operators in ``operator_cases.py``.

A gap that closes fails the run until its line is removed, so this list is complete and up to date.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ci

TORCH, RUNTIME = "torch 2.13.0", "onnxruntime 1.31.1"


@dataclass(frozen=True)
class Gap:
    """One thing that goes wrong with an operator."""

    operator: str
    where: str
    """The exporter and the opsets, as ``expect`` of a recipe takes them."""
    rules: str
    """The rules that the operator breaks, separated by commas."""
    reason: str
    seen: str = TORCH
    """The versions that it was seen with."""


_UNSUPPORTED, _NO_KERNEL = "unsupported-operator", "ONNX Runtime has no kernel for the operator's newest version"
_STILL = "not supported, as the documentation says"
_IMPRECISE = "exported as Log(Sigmoid(x)), and ONNX Runtime's Sigmoid is imprecise near 0"
_AXES = "converted down unchanged, although these opsets flatten all axes from dim on"
_INVALID = "the conversion leaves {} in the file, which this opset does not know"

GAPS = (
    Gap("FeatureDropout", "dynamo 9-17", "unsupported-opset", "the exporter raises instead of converting down"),
    Gap("FeatureDropout.training", "torchscript", _UNSUPPORTED, _STILL),
    Gap("FeatureDropout.training", "dynamo 22-23", "load-error", _NO_KERNEL, RUNTIME),
    Gap("adaptive_avg_pool3d", "dynamo", _UNSUPPORTED, "the exporter cannot convert it"),
    Gap("bitshift", "torchscript", "baked-value", "x >> n is exported as a division, which rounds negative numbers up"),
    Gap(
        "copy",
        "torchscript",
        _UNSUPPORTED,
        "copying into a whole tensor fails; into a slice, x[:].copy_(y), it works from opset 11",
    ),
    Gap("cumsum", "torchscript 9-10", _UNSUPPORTED, "ONNX has CumSum from opset 11"),
    Gap("det", "torchscript 9-10", _UNSUPPORTED, "ONNX has Det from opset 11"),
    Gap("dim_arange", "dynamo", "export-error", "torch.export turns the size into a constant"),
    Gap("floor_divide", "torchscript", "numeric-drift", "integer division rounds toward zero: -1 // 2 is 0 in the file"),
    Gap("im2col", "torchscript 9-10", _UNSUPPORTED, "the exporter supports it from opset 11"),
    Gap("index_put", "torchscript 9-10", _UNSUPPORTED, "ONNX has ScatterND from opset 11"),
    Gap(
        "interpolate",
        "torchscript 9-10",
        "numeric-drift",
        "at these opsets, Upsample and Resize place the pixels differently",
    ),
    Gap("log_sigmoid", "torchscript", "nonfinite-mismatch,baked-value", _IMPRECISE, f"{TORCH}, {RUNTIME}"),
    Gap("log_sigmoid", "dynamo", "nonfinite-mismatch,baked-value", _IMPRECISE, f"{TORCH}, {RUNTIME}"),
    Gap("log_softmax", "dynamo 9-12", "numeric-drift", _AXES),
    Gap("logdet", "torchscript 9-10", _UNSUPPORTED, "ONNX has Det from opset 11"),
    Gap("logsumexp", "dynamo 13-17", "checker,load-error", _INVALID.format("ReduceLogSumExp.noop_with_empty_axes")),
    Gap("multinomial", "22-23", "load-error", _NO_KERNEL, RUNTIME),
    Gap("prod", "dynamo 13-17", "checker,load-error", _INVALID.format("ReduceProd.noop_with_empty_axes")),
    Gap("rand", "22-23", "load-error", _NO_KERNEL, RUNTIME),
    Gap("randn", "22-23", "load-error", _NO_KERNEL, RUNTIME),
    Gap("randn_like", "22-23", "load-error", _NO_KERNEL, RUNTIME),
    Gap("round", "torchscript 9-10", _UNSUPPORTED, "ONNX has Round from opset 11"),
    Gap("rrelu", "dynamo", _UNSUPPORTED, "the exporter cannot convert it"),
    Gap("scatter_add", "torchscript 9-15", "numeric-drift", "if several values go to one element, only the last is added"),
    Gap("slice", "torchscript 9", _UNSUPPORTED, "ONNX's Slice has steps from opset 10"),
    Gap("softmax.dim", "dynamo 9-12", "numeric-drift", _AXES),
    Gap("sort", "torchscript 9", "numeric-drift", "exported as TopK, which sorts in descending order"),
    Gap("sort", "torchscript 10", _UNSUPPORTED, "the exporter supports ascending order from opset 11"),
    Gap("split", "dynamo 12", "checker,load-error", _INVALID.format("the sizes as an input of Split")),
    Gap("std", "dynamo 15-17", "checker,load-error", _INVALID.format("ReduceMean.noop_with_empty_axes")),
    Gap("sum", "dynamo 9-12", "checker,load-error", _INVALID.format("ReduceSum.noop_with_empty_axes")),
    Gap("threshold.value", "torchscript", _UNSUPPORTED, _STILL),
    Gap("unique", "torchscript 9-10", _UNSUPPORTED, "ONNX has Unique from opset 11"),
)

CONVERTED_DOWN_TO = {
    10: "MaxPool1d MaxPool2d MaxPool3d adaptive_avg_pool2d avg_pool1d avg_pool2d avg_pool3d",
    11: "adaptive_avg_pool1d det round squeeze",
    12: "ge le split threshold threshold.value topk",
    13: "Embedding Embedding.padding_idx abs addmm argmax argmin cat ceil concat eq erf exp expand floor gather gt "
    "interpolate isnan log log_sigmoid logdet logsumexp lt mm multinomial ne neg permute pixel_shuffle prod "
    "reciprocal repeat rsqrt scatter select sigmoid sign sqrt stack t tanh to transpose unbind upsample_nearest1d "
    "upsample_nearest2d upsample_nearest3d",
    14: "RNN adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d add baddbmm cumsum div expand_as floor_divide gelu "
    "index_select mul narrow prelu prelu.shared rand randn randn_like relu reshape_as rsub scalar_tensor slice sub true_divide "
    "view",
    15: "FeatureDropout.training Index add.alpha arange clamp clamp_max clamp_min elu empty empty_like flatten full full_like "
    "group_norm hardtanh index_copy index_fill index_put log1p log2 masked_fill nonzero ones ones_like pow reshape size "
    "softplus sort std sub.alpha type_as unfold unique zeros zeros_like",
    16: "BatchNorm Dropout copy dropout scatter_add",
    17: "layer_norm",
    18: "ConstantPadNd bitshift frobenius_norm glu im2col max mean min norm reflection_pad replication_pad weight_norm",
}
"""The lowest opset that dynamo can convert each operator to; those that are not listed reach opset 9.

dynamo builds models at opset 18 and converts them down. If that fails, it logs a message and writes opset 18.
"""


def all_gaps() -> Iterator[Gap]:
    """Every gap, including those of dynamo's conversion."""
    yield from GAPS
    for opset, operators in CONVERTED_DOWN_TO.items():
        where = f"dynamo 9-{opset - 1}"
        for operator in operators.split():
            yield Gap(operator, where, "opset-mismatch", f"{opset} is the lowest opset that it can be converted to")


_FOLLOWING = {
    "load-error": "so ONNX Runtime cannot load the file",
    "baked-value": "so large negative inputs give other numbers",
}
"""Why a further rule of a gap is broken, too."""


def expectations(operator: str) -> dict[str, list[onnx_ci.Expectation]]:
    """The gaps of an operator, as ``expect`` of its recipe takes them."""
    found: dict[str, list[onnx_ci.Expectation]] = {}
    for gap in all_gaps():
        if gap.operator == operator:
            first, *others = gap.rules.split(",")
            found.setdefault(gap.where, []).append(onnx_ci.known_failure(first, gap.reason, seen=gap.seen))
            found[gap.where] += (onnx_ci.known_failure(rule, _FOLLOWING[rule], seen=RUNTIME) for rule in others)
    return found
