"""tract, an engine in Rust, on the CPU."""

from __future__ import annotations

from pathlib import Path

from onnx_ci.pipeline.run.runtime import ArraySession
from onnx_ci.tools.engines.engine import Engine, session_of


class TractRuntime(Engine):
    """tract, imported when it is first needed."""

    name = distribution = "tract"

    def load(self, path: Path, device: str) -> ArraySession:
        """Load and optimize the file. Raises tract's own exceptions."""
        import tract

        model = tract.onnx().load(path)
        names = [model.input_name(number) for number in range(model.input_count())]  # it takes inputs by their positions
        runnable = model.into_model().into_runnable()
        return session_of(names, lambda feeds: (each.to_numpy() for each in runnable.run([feeds[name] for name in names])))
