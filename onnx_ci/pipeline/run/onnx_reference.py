"""ONNX's reference evaluator, which has the standard's definition of each operator in Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_ci.pipeline.model.arrays import as_array, as_tensor

if TYPE_CHECKING:
    import torch
    from onnx.reference import ReferenceEvaluator


class ReferenceRuntime:
    """The evaluator, imported when it is first needed. It is slow and lacks operators, so it is not for production."""

    name = "reference"
    is_deployed = False

    def missing_device(self, device: str) -> str | None:
        """Why the evaluator cannot use ``device``, or ``None`` if it can."""
        return None if device == "cpu" else "ONNX's reference evaluator runs on the CPU only"

    def load(self, path: Path, device: str) -> ReferenceSession:
        """Load the file and the operators that it needs. Raises the evaluator's own exceptions."""
        from onnx.reference import ReferenceEvaluator

        return ReferenceSession(ReferenceEvaluator(str(path)))


class ReferenceSession:
    """A file in the reference evaluator."""

    provider = "cpu"
    nodes_on_cpu = None

    def __init__(self, evaluator: ReferenceEvaluator) -> None:
        self._evaluator = evaluator

    def run(self, inputs: Mapping[str, torch.Tensor], *, seed: int | None = None) -> list[torch.Tensor]:
        """The graph's outputs, in the graph's order, for ``inputs`` by name. It cannot be seeded."""
        outputs = self._evaluator.run(None, {name: as_array(tensor) for name, tensor in inputs.items()})
        return [as_tensor(output) for output in outputs]
