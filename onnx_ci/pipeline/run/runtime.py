"""The protocol of runtimes: one loads a file, and the session that it returns runs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

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
    """An ONNX runtime. An entry point of the group ``onnx_ci.runtimes`` names its class."""

    name: str
    """Its name in messages: that of its entry point."""
    is_deployed: bool
    """Whether models are deployed with it, so that its errors fail the cell; otherwise it is a reference runtime."""

    def missing_device(self, device: str) -> str | None:
        """Why this runtime cannot use ``device``, or ``None`` if it can."""

    def load(self, path: Path, device: str) -> Session:
        """Load the file at ``path`` for ``device``. Raises what the runtime raises."""
