"""ONNX's reference evaluator, which has the standard's definition of each operator in Python."""

from __future__ import annotations

import functools
from pathlib import Path

from onnx_ci.pipeline.run.runtime import ArraySession


class ReferenceRuntime:
    """The evaluator, imported when it is first needed. It is slow and lacks operators, so it is not for production."""

    name = "reference"
    is_deployed = False

    def missing_device(self, device: str) -> str | None:
        """Why the evaluator cannot use ``device``, or ``None`` if it can."""
        return None if device == "cpu" else "ONNX's reference evaluator runs on the CPU only"

    def load(self, path: Path, device: str) -> ArraySession:
        """Load the file and the operators that it needs. Raises the evaluator's own exceptions."""
        from onnx.reference import ReferenceEvaluator

        return ArraySession(functools.partial(ReferenceEvaluator(str(path)).run, None))
