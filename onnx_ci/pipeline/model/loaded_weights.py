"""Whether a recipe loads weights: the functions that load them are watched while it builds its model.

Loading is observed, not declared, and not read from the source: a recipe may call a library that loads a checkpoint. If a
function loads something else, that costs one more export, because the model is then exported with its own weights first. If a
function is missed, the model has probe weights, as without a checkpoint.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch

OPENED_EVENT = "onnx_ci.opened"
"""The audit event with the path of a file that compiled code opens."""


@contextlib.contextmanager
def watch_loading() -> Iterator[set[str]]:
    """Collect the names of the functions with which the block, in any thread, loads weights.

    A model that takes over the weights of another model does not load any. A file that contains nothing but tensors is an
    example of inputs rather than weights.
    """
    loaders: set[str] = set()
    copied: list[object] = []
    """The weights of models in this process."""

    def state_dict(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        copied.append(result)
        return result

    def load_state_dict(
        original: Callable[..., Any], model: torch.nn.Module, state_dict: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not any(state_dict is each for each in copied):
            loaders.add("load_state_dict")
        return original(model, state_dict, *args, **kwargs)

    def load(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        content = original(*args, **kwargs)
        if not all(isinstance(each, torch.Tensor) for each in (content if isinstance(content, (list, tuple)) else [content])):
            loaders.add("torch.load")
        return content

    def always(loader: str | None) -> Callable[..., Any]:
        """Note the loader, unless it is ``None``, and raise an audit event for the file: compiled code opens it without one."""

        def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if loader is not None:
                loaders.add(loader)
            if args and isinstance(args[0], (str, os.PathLike)):
                sys.audit(OPENED_EVENT, os.fspath(args[0]))
            return original(*args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        for owner, name, watch in (
            (torch.nn.Module, "state_dict", state_dict),
            (torch.nn.Module, "load_state_dict", load_state_dict),
            (torch, "load", load),
            (torch.jit, "load", always("torch.jit.load")),
            (torch.export, "load", always("torch.export.load")),
            # safetensors maps its files into memory with it, whenever and however it is imported.
            (torch.UntypedStorage, "from_file", always("safetensors")),
            (torch, "from_file", always(None)),
        ):
            stack.enter_context(_replaced(owner, name, watch))
        yield loaders


def _replaced(owner: Any, name: str, watch: Callable[..., Any]) -> AbstractContextManager[object]:
    """Within the block, call ``watch`` with the function ``owner.name`` and its arguments instead of the function."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        return watch(original, *args, **kwargs)

    return patch.object(owner, name, watched)
