"""What both exporters of torch share: the call of ``torch.onnx.export``, and how a private function of it is replaced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from onnx_ci.pipeline.export.protocol import ExportRequest


def call_torch(request: ExportRequest, path: Path, **options: Any) -> None:
    """Call ``torch.onnx.export``.

    Args:
        request: what is exported.
        path: where the file is written.
        **options: keywords of one exporter.
    """
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


@contextlib.contextmanager
def replaced(owner: Any, name: str, replacement_of: Callable[[Any], Callable[..., Any]]) -> Iterator[None]:
    """Within the block, a function of a module is replaced by what ``replacement_of`` makes of it."""
    original = getattr(owner, name)
    setattr(owner, name, replacement_of(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
