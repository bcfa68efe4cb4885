"""The cases in which releases of a runtime are tried: small files with inputs and right outputs.

They are ONNX's own tests of single nodes, at the first and at the last opset of each version of their operator, and variations
of the operators in which faults are likely. What is right, two implementations say that share no code: ONNX Runtime as it is
installed and ONNX's reference evaluator. A case in which they differ is left out.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnx_ci.tools.runtimes.fault_runs import WRONG, distance

_AGREE = WRONG / 10
"""The relative difference up to which two implementations agree."""
_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout")
_LOWEST_OPSET = 7
_IR_VERSIONS = ((18, 8), (20, 9), (22, 10), (25, 11))
"""The IR version of files up to an opset, so that a release that knows the opset loads them."""

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A file with its inputs."""

    model: onnx.ModelProto
    feeds: Arrays


def write_cases(folder: Path) -> int:
    """Write each case as a file and an archive of its inputs and right outputs, and return their number."""
    number = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in itertools.chain(node_tests(), variations()):
            for model in at_opsets(case.model):
                right = right_outputs(model, case.feeds)
                if right is not None:
                    onnx.save(model, folder / f"{number:06}.onnx")
                    arrays = {f"in:{name}": array for name, array in case.feeds.items()}
                    arrays |= {f"out:{place}": array for place, array in enumerate(right)}
                    np.savez(folder / f"{number:06}.npz", **arrays)  # type: ignore[arg-type]
                    number += 1
    return number


def write_limit_cases(folder: Path) -> None:
    """Write a file of an ``Identity`` for each IR version and each opset; its number is 1000 times the one plus the other."""
    value = np.ones(2, np.float32)
    pairs = [*((ir, _LOWEST_OPSET) for ir in range(3, 20)), *((_IR_VERSIONS[0][1], opset) for opset in range(7, 40))]
    for ir_version, opset in pairs:
        model = case([("Identity", ["x"], {})], {"x": value}).model
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2]))
        model.opset_import[0].version, model.ir_version = opset, ir_version
        name = folder / f"{1000 * ir_version + opset:06}"
        onnx.save(model, name.with_suffix(".onnx"))
        np.savez(name.with_suffix(".npz"), **{"in:x": value, "out:0": value})  # type: ignore[arg-type]


def right_outputs(model: onnx.ModelProto, feeds: Arrays) -> list[np.ndarray] | None:
    """The outputs on which both implementations agree; ``None`` if they do not, or if one of them refuses the file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, dict(feeds))
        defined = [np.asarray(each) for each in ReferenceEvaluator(model).run(None, dict(feeds))]
    except Exception:  # each raises its own classes
        return None
    is_right = all(array.dtype.kind in "fiub" for array in defined)
    return defined if is_right and all(map(_agrees, outputs, defined)) else None


def _agrees(output: Any, defined: np.ndarray) -> bool:
    return distance(output, defined) <= (WRONG if defined.dtype == np.float16 else _AGREE)


def at_opsets(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """The file at the first and the last opset of each version of its first operator at which it is valid."""
    operator = model.graph.node[0].op_type
    for first, last in versions_of(operator):
        for opset in dict.fromkeys((first, last)):
            other = onnx.ModelProto()
            other.CopyFrom(model)
            del other.opset_import[:]
            other.opset_import.append(helper.make_opsetid("", opset))
            other.ir_version = next(version for most, version in _IR_VERSIONS if opset <= most)
            try:
                typed = onnx.shape_inference.infer_shapes(other, strict_mode=True)
                onnx.checker.check_model(typed, full_check=True)
            except Exception:  # noqa: S112 (it is not valid at this opset)
                continue
            if all(each.type.WhichOneof("value") for each in typed.graph.output):
                yield typed


@functools.cache
def versions_of(operator: str) -> list[tuple[int, int]]:
    """The first and the last opset of each version of an operator, up to what files of torch have."""
    newest = _IR_VERSIONS[-1][0]
    schemas = onnx.defs.get_all_schemas_with_history()
    starts = sorted({each.since_version for each in schemas if each.name == operator and each.domain == ""})
    ends = [min(each, newest) for each in (*(start - 1 for start in starts[1:]), newest)]
    return [
        (max(start, _LOWEST_OPSET), end)
        for start, end in zip(starts, ends, strict=True)
        if end >= _LOWEST_OPSET and start <= newest
    ]


def node_tests() -> Iterator[Case]:
    """ONNX's own tests of single nodes whose types numpy has."""
    from onnx.backend.test.loader import load_model_tests

    for test in load_model_tests(kind="node"):
        if test.model_dir is None:
            continue
        folder = Path(test.model_dir)
        model = onnx.load(folder / "model.onnx")
        nodes = model.graph.node
        if len(nodes) != 1 or nodes[0].domain or nodes[0].op_type in _RANDOM or len(model.opset_import) != 1:
            continue
        feeds = {}
        for place, value in enumerate(model.graph.input):
            file = folder / "test_data_set_0" / f"input_{place}.pb"
            if value.type.HasField("tensor_type"):
                tensor = numpy_helper.to_array(onnx.load_tensor(file))
                if tensor.dtype.isbuiltin == 1 and tensor.dtype.kind in "fiub" and np.isfinite(tensor).all():
                    feeds[value.name] = tensor
        if len(feeds) == len(model.graph.input):
            yield Case(model, feeds)


def variations() -> Iterator[Case]:
    """Windows that pools round up, reductions of nothing, and transposed operands of products."""
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype(np.float32)

    for rank, kernel, stride, pad, dilation, ceil, counts, size in itertools.product(
        (1, 2), (2, 3), (1, 2, 3), (0, 1), (1, 2), (0, 1), (0, 1), (7, 8, 9)
    ):
        window = {"kernel_shape": [kernel] * rank, "strides": [stride] * rank, "pads": [pad] * 2 * rank}
        window |= {"dilations": [dilation] * rank} if dilation > 1 else {}
        for operator in ("AveragePool", "MaxPool"):
            if operator == "AveragePool" or not counts:
                own = {"count_include_pad": counts} if counts else {}
                yield case([(operator, ["x"], {**window, "ceil_mode": ceil, **own})], {"x": normal(1, 2, *[size] * rank)})
    reductions = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    types = (np.float32, np.float64, np.float16, np.int32, np.int64)
    for name, dtype, keeps, noop in itertools.product(reductions, types, (0, 1), (0, 1)):
        x = (np.abs(normal(3, 4, 5)) * 3 + 1).astype(dtype)
        yield case([(f"Reduce{name}", ["x"], {"keepdims": keeps, "noop_with_empty_axes": noop})], {"x": x})
        yield case([(f"Reduce{name}", ["x"], {"keepdims": keeps})], {"x": x})
        yield case([(f"Reduce{name}", ["x"], {"keepdims": keeps, "axes": [1]})], {"x": x})
        yield case([(f"Reduce{name}", ["x", "axes"], {"keepdims": keeps})], {"x": x, "axes": np.array([0, -1])})
    for perm, place, bias, stored, is_fixed in itertools.product(
        ((0, 1), (1, 0)), (0, 1), ((4,), (4, 4)), ((), ("w", "b")), (True, False)
    ):
        square = {"x": normal(4, 4), "w": normal(4, 4), "b": normal(*bias)}
        names = ["t", "w"] if place == 0 else ["w", "t"]
        transpose = ("Transpose", ["x"], {"perm": list(perm)})
        chains = [
            [transpose, ("MatMul", names, {}), ("Add", ["m", "b"], {})],
            [transpose, ("MatMul", names, {})],
            [transpose, ("Gemm", [*names, "b"], {})],
            [transpose, ("Gemm", ["w", "w", "t"], {})],
        ]
        for nodes in chains:
            outputs = ["t", "m", "y"] if len(nodes) == 3 else ["t", "y"]
            yield case(nodes, square, outputs, stored if "b" in nodes[-1][1] else stored[:1], is_fixed=is_fixed)


def case(
    nodes: Sequence[tuple[str, list[str], dict[str, Any]]],
    feeds: Arrays,
    outputs: Sequence[str] = ("y",),
    constants: Sequence[str] = (),
    *,
    is_fixed: bool = True,
) -> Case:
    """A case of nodes, each with its operator, inputs and attributes, and the output of each.

    Some inputs are constants. Unless it ``is_fixed``, the first axis of ``x`` is declared dynamic.
    """
    used = {name for _, names, _ in nodes for name in names}
    protos = [helper.make_node(kind, names, [out], **own) for (kind, names, own), out in zip(nodes, outputs, strict=True)]
    inputs = {name: array for name, array in feeds.items() if name in used and name not in constants}
    declared = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            array.shape if is_fixed or name != "x" else ["n", *array.shape[1:]],
        )
        for name, array in inputs.items()
    ]
    stored = [numpy_helper.from_array(feeds[name], name) for name in constants]
    graph = helper.make_graph(protos, "case", declared, [onnx.ValueInfoProto(name=outputs[-1])], stored)
    return Case(helper.make_model(graph), inputs)
