"""The protocol of runtimes: one loads a file, and the session that it returns runs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime
from onnx_ci.plugins import RUNTIMES

if TYPE_CHECKING:
    import torch


class Session(Protocol):
    """A loaded file, ready to run. Inputs and outputs are torch tensors on the CPU."""

    def run(self, inputs: Mapping[str, torch.Tensor], *, seed: int | None = None) -> list[torch.Tensor]:
        """The graph's outputs, in the graph's order, for ``inputs`` by name. Raises what the runtime raises.

        Args:
            seed: the seed for random operators, as far as the runtime can be seeded.
        """

    @property
    def provider(self) -> str:
        """The device that the session runs on, such as ``cpu`` or ``cuda``."""

    @property
    def nodes_on_cpu(self) -> tuple[str, ...] | None:
        """Descriptions of the nodes that ran on the CPU in a session on a GPU; ``None`` if the runtime does not report them."""


class Runtime(Protocol):
    """An ONNX runtime. An entry point of the group ``onnx_ci.runtimes`` names its class.

    A class can also have the attributes of :class:`~onnx_ci.tools.engines.plugin.PluginRuntime`, each of which has a default.
    """

    name: str
    """Its name in messages: that of its entry point."""
    is_deployed: bool
    """Whether models are deployed with it, so that its errors fail the cell; otherwise it is a reference runtime."""

    def missing_device(self, device: str) -> str | None:
        """Why this runtime cannot use ``device``, or ``None`` if it can."""

    def load(self, path: Path, device: str) -> Session:
        """Load the file at ``path`` for ``device``. Raises what the runtime raises."""


class ArraySession:
    """A session on the CPU that cannot be seeded. It runs the file on numpy arrays by name, and has the outputs in order."""

    provider = "cpu"
    nodes_on_cpu = None

    def __init__(self, run_arrays: Callable[[dict[str, Any]], Iterable[Any]]) -> None:
        self._run_arrays = run_arrays

    def run(self, inputs: Mapping[str, torch.Tensor], *, seed: int | None = None) -> list[torch.Tensor]:
        """See :meth:`Session.run`."""
        from onnx_ci.pipeline.model.tensors import as_array, as_tensor

        return [as_tensor(output) for output in self._run_arrays({name: as_array(each) for name, each in inputs.items()})]


class BrokenRuntimeError(Exception):
    """What a runtime itself does wrong, so that its other runs prove nothing: its process died, or it broke a promise.

    Args:
        rule: the rule that is broken.
        message: what it does, as it follows its name: ``returned None``.
    """

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def make_runtime(name: str, *, tf32: bool = False, seconds: float = math.inf) -> Runtime:
    """A runtime by its name, one of :data:`onnx_ci.plugins.RUNTIMES`. Raises ``EnvironmentLacksError`` if it is not usable.

    Args:
        tf32: whether ONNX Runtime uses TensorFloat-32 on CUDA.
        seconds: the time limit of one that is not part of the gate, for loading a file and for each run. With a limit, each of
            its sessions is a process of its own.
    """
    if name == "onnxruntime":
        return OnnxRuntime(tf32=tf32)
    runtime: Runtime = RUNTIMES.load(name) if name in RUNTIMES.ours else RUNTIMES.guarded(name, seconds)
    return runtime
