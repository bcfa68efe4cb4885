"""What onnx-ci knows about an exporter besides how to call it, and what the two exporters of torch share."""

from __future__ import annotations

import contextlib
import functools
import importlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from onnx_ci.environment.versions import version_of
from onnx_ci.pipeline.export.exporter import ExportRequest
from onnx_ci.pipeline.inputs.branches import UntakenBranch
from onnx_ci.pipeline.model.containers import Container
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.plugins import EXPORTERS
from onnx_ci.processes.capture import Notice
from onnx_ci.results.records import Finding


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

    def remarks(self, model: RecipeModel) -> Iterator[Finding]:
        """Findings about how its call differs from the one that the recipe declares."""
        yield from ()

    def takes_model(self, model: torch.nn.Module | torch.export.ExportedProgram) -> bool:
        """Whether it exports models of this class."""
        return True

    def takes_argument(self, argument: Container) -> bool:
        """Whether the model may have an argument of this class."""
        return True

    def takes_output(self, output: Container) -> bool:
        """Whether the model may return a value of this class."""
        return True


def handling_of(name: str) -> Handling:
    """What is known about the exporter of a name."""
    exporter = EXPORTERS.load(name)
    return exporter if isinstance(exporter, Handling) else Handling()


@functools.cache
def preload(exporter: str) -> None:
    """Import and compute what cells need before the first fork: in each process it would take most of the time."""
    # ONNX Runtime for CUDA may query GPUs when it is imported (1.31), and a fork cannot use the CUDA of its parent.
    skipped = "onnxruntime" if version_of("onnxruntime-gpu") else ""
    with contextlib.suppress(Exception):  # raised again where the exporter is needed
        handling = handling_of(exporter)
        import_quietly(name for name in handling.modules if name != skipped)
        handling.warm_up()


def import_quietly(names: Iterable[str]) -> None:
    """Import modules ahead of time; errors are left to the code that needs them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of these packages about each other
        for name in names:
            with contextlib.suppress(Exception):  # raised again where the module is needed
                importlib.import_module(name)


def call_torch(request: ExportRequest, path: Path, **options: Any) -> None:
    """Call ``torch.onnx.export``."""
    args = request.args
    if args and isinstance(args[-1], dict) and not request.kwargs:
        args = (*args, {})  # torch.onnx.export takes a final dict as the keyword arguments
    torch.onnx.export(
        request.model,
        args,
        str(path),  # TorchScript needs a path for a model above 2 GB
        kwargs=dict(request.kwargs) or None,
        opset_version=request.opset_version,
        input_names=list(request.input_names) or None,
        output_names=list(request.output_names) or None,
        **request.options,
        **options,
    )
