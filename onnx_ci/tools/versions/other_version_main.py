"""The process of a session of another version of ONNX Runtime: loads a file, and runs it on what arrives at standard input.

Neither torch nor onnx is imported: they may not work beside the numpy that this version needs. What travels are pickled texts,
numbers and bytes, because one version of numpy cannot unpickle the arrays of each other one.
"""

from __future__ import annotations

import ctypes
import math
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from onnx_ci.pipeline.run.onnxruntime import WITHOUT_NUMPY, OnnxRuntime


def main() -> None:
    """Answer with a pair, first for loading the file, then for each run of it: an error or ``None``, and the outputs."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed must not come between the answers

    def answer(error: Exception | None, outputs: list[Any] | None = None) -> None:
        pickle.dump((None if error is None else str(error) or type(error).__name__, outputs), answers)
        answers.flush()

    path, threads = sys.argv[1:]
    try:
        # Which sums of int8 products overflow depends on the processor. The verdict must not.
        session = OnnxRuntime(exact_int8=True, threads=int(threads)).load(Path(path), "cpu")
    except Exception as error:
        answer(error)
        return
    answer(None)
    while True:
        try:
            inputs, seed = pickle.load(sys.stdin.buffer)  # noqa: S301 (from onnx-ci)
        except EOFError:
            return
        try:
            values = session.run_values({name: _value(*value) for name, value in inputs.items()}, seed=seed)
            answer(None, [_parts(value) for value in values])
        except Exception as error:
            answer(error)


def _value(of_numpy: str, element_type: int, shape: tuple[int, ...], contents: bytes) -> Any:
    """A value, of the type of numpy that its contents are given in, ONNX's number of its type, its shape and its contents."""
    import numpy
    import onnxruntime

    array = numpy.frombuffer(bytearray(contents), dtype=of_numpy).reshape(shape)
    value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
    if value.element_type() == element_type:
        return value
    if not hasattr(onnxruntime.OrtValue, "ortvalue_from_numpy_with_onnx_type"):
        raise RuntimeError("this version takes no inputs of types that numpy does not have")
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, element_type)


def _parts(value: Any) -> tuple[int, tuple[int, ...], bytes]:
    """ONNX's number of the type of a value, its shape and its contents."""
    shape, kind = tuple(value.shape()), value.data_type()
    if not kind.startswith(WITHOUT_NUMPY):
        return value.element_type(), shape, value.numpy().tobytes()
    size = math.prod(shape) * (1 if "float8" in kind else 2)
    return value.element_type(), shape, ctypes.string_at(value.data_ptr(), size) if size else b""


if __name__ == "__main__":
    main()
