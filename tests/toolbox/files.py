"""Small ONNX files made node by node, right and wrong, without torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model_of(nodes, inputs, outputs, initializers=None, *, opset=17, domains=()) -> ModelProto:
    """A model.

    Args:
        nodes: nodes, or tuples of ``helper.make_node``'s first arguments.
        inputs: the type and dimensions of each input by name.
        outputs: the same of each output.
        initializers: arrays by name.
    """
    made = [helper.make_node(*each) if isinstance(each, tuple) else each for each in nodes]
    values = [[helper.make_tensor_value_info(name, *kind) for name, kind in each.items()] for each in (inputs, outputs)]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (initializers or {}).items()]
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(helper.make_graph(nodes=made, name="g", inputs=values[0], outputs=values[1], initializer=tensors),
                             opset_imports=imports, ir_version=8)  # fmt: skip


def mlp(*, first=None, second=None, epsilon=1e-5, dtype=np.float32, has_casts=True, batch="batch", **names) -> ModelProto:
    """Two layers with a normalization between them: ``x[batch, 8]`` to ``y[batch, 4]``.

    Args:
        first: the first layer's weight, square, so that its transpose fits, too.
        dtype: the type in which it computes.
        has_casts: whether ``x`` and ``y`` stay float32 if ``dtype`` is not.
    """
    x, y = names.get("x", "x"), names.get("y", "y")
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    is_cast = kind != FLOAT and has_casts
    layers = [
        ("MatMul", ["in", "w"], ["h"]),
        helper.make_node("LayerNormalization", ["h", "scale", "shift"], ["n"], axis=-1, epsilon=epsilon),
        ("Relu", ["n"], ["r"]),
        ("MatMul", ["r", "v"], ["out"]),
    ]
    to, back = ("Cast", {"to": kind}), ("Cast", {"to": FLOAT})
    before, after = (to, back) if is_cast else (("Identity", {}), ("Identity", {}))
    nodes = [
        helper.make_node(before[0], [x], ["in"], **before[1]),
        *layers,
        helper.make_node(after[0], ["out"], [y], **after[1]),
    ]
    arrays = {
        "w": weights(8, 8) if first is None else first,
        "scale": 1 + 0.1 * weights(8, seed=1),
        "shift": 0.1 * weights(8, seed=2),
        "v": weights(8, 4, seed=3) if second is None else second,
    }
    declared = FLOAT if has_casts else kind
    with np.errstate(over="ignore"):
        tensors = {name: array.astype(dtype) for name, array in arrays.items()}
    return model_of(nodes, {x: (declared, [batch, 8])}, {y: (declared, [batch, 4])}, tensors)


def save(model: ModelProto, path: Path, **how) -> Path:
    onnx.save_model(model, path, **how)
    return path
