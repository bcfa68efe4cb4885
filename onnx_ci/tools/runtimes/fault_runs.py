"""Runs cases in the ONNX Runtime that is first on the path: the process of one release. It imports neither torch nor onnx."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

WRONG = 1e-2
"""The relative difference from which on an output is wrong: far above any rounding of float32."""


def distance(output: Any, right: Any) -> float:
    """The largest difference relative to the largest right value.

    It is infinite for another shape or type, and 1 if other values are finite.
    """
    import numpy as np

    output, right = np.asarray(output), np.asarray(right)
    if output.shape != right.shape or output.dtype != right.dtype:
        return float("inf")
    is_finite = np.isfinite(right)
    if not np.array_equal(is_finite, np.isfinite(output)):
        return 1.0
    differences = np.abs(output[is_finite].astype(np.float64) - right[is_finite].astype(np.float64))
    return float(differences.max() / (np.abs(right[is_finite]).max() + 1e-5)) if differences.size else 0.0


def main() -> None:
    """Run the cases of a folder from a number on. For each, write a line when it begins and one with what came of it."""
    import numpy as np
    import onnxruntime

    folder, start = Path(sys.argv[1]), int(sys.argv[2])
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    for path in sorted(folder.glob("*.onnx")):
        number = int(path.stem)
        if number < start:
            continue
        print(json.dumps([number, None]), flush=True)  # noqa: T201 (it may be the last line of this process)
        with np.load(path.with_suffix(".npz")) as arrays:
            feeds = {name.removeprefix("in:"): arrays[name] for name in arrays.files if name.startswith("in:")}
            right = [arrays[name] for name in arrays.files if name.startswith("out:")]
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            off = max(distance(*both) for both in zip(session.run(None, feeds), right, strict=True))
        except Exception:
            off = -1.0  # refused, which is not a fault
        print(json.dumps([number, off]), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
