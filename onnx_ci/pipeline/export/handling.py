"""What onnx-ci knows about an exporter besides how to call it: what it freezes, lacks and imports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

import torch

from onnx_ci.environment.plugins import EXPORTERS
from onnx_ci.pipeline.inputs.branches import UntakenBranch
from onnx_ci.pipeline.model.containers import Container
from onnx_ci.processes.capture import Notice


class Handling:
    """What holds for an exporter of another package. Ours derive from this class and know more."""

    modules: Sequence[str] = ()
    """What it imports when it is first used. Names that do not exist are ignored."""

    def warm_up(self) -> None:
        """Compute once, before processes are forked, what every export would compute again."""

    def frozen_branches(self, branches: Iterable[UntakenBranch], notices: Sequence[Notice]) -> list[UntakenBranch]:
        """Those of the untaken branches of which an export contains one side only.

        What an exporter of another package does is not known, so every branch may be frozen.
        """
        return list(branches)

    def remedy_of_operator(self, operator: str, opset: int) -> str | None:
        """How to give the exporter an operator that it lacks, if that is known."""
        return None

    def takes_model(self, model: torch.nn.Module | torch.export.ExportedProgram) -> bool:
        """Whether it exports models of this class."""
        return True

    def takes_argument(self, argument: Container) -> bool:
        """Whether the model may have an argument of this class."""
        return True

    def takes_output(self, output: Container) -> bool:
        """Whether the model may return a value of this class."""
        return True

    def recording(self, unsupported: dict[str, str]) -> AbstractContextManager[None]:
        """Within the block, an export adds each operator that it cannot convert, with its message, to ``unsupported``.

        Here nothing is added: the export stops at the first one.
        """
        return contextlib.nullcontext()


def handling_of(name: str) -> Handling:
    """What is known about the exporter of a name."""
    exporter = EXPORTERS.load(name)
    return exporter if isinstance(exporter, Handling) else Handling()
