"""Runtimes: from an ONNX file and inputs to outputs, one module a runtime, behind this protocol.

Tensors go in and come out as CPU tensors of torch, so that no other module knows how a runtime wants its data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Session(Protocol):
    """A loaded file, ready to run."""

    def run(self, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The graph's outputs, in the graph's order, for ``inputs`` by name. Raises what the runtime raises."""

    @property
    def provider(self) -> str:
        """The device that the session really runs on, such as ``cpu`` or ``cuda``."""

    @property
    def left_to_the_cpu(self) -> tuple[str, ...] | None:
        """On a GPU, what of the first run was not done there, in words; ``None`` where nobody tells. Not asked on the CPU."""


class Runtime(Protocol):
    """An ONNX runtime."""

    name: str
    is_deployed: bool
    """Whether models are shipped to it, so that what it gets wrong is a fault; otherwise it is asked as a witness."""

    def missing_device(self, device: str) -> str | None:
        """Why this runtime cannot use ``device``, or ``None`` if it can."""

    def load(self, path: Path, device: str) -> Session:
        """Load the file at ``path`` for ``device``. Raises what the runtime raises."""
