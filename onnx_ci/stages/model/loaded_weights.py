"""Whether a recipe loads weights: the functions that load them are watched while it builds its model.

What matters is what a recipe does, not what its source looks like: it may call a library that loads a checkpoint. A function
that loads something else costs one more export, because the model is then exported with its own weights first; a function that
is missed leaves the model with probe weights, as without a checkpoint.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

OPENED_EVENT = "onnx_ci.opened"
"""The audit event with the path of a file that compiled code opens."""


@contextlib.contextmanager
def watch_loading() -> Iterator[set[str]]:
    """Collect the names of the functions with which the block, in any thread, loads weights.

    A model that takes over the weights of another one does not load any, and tensors that are all that a file contains are
    rather an example than weights.
    """
    used: set[str] = set()
    copied: list[object] = []

    def state_dict(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        copied.append(result)
        return result

    def load_state_dict(
        original: Callable[..., Any], model: torch.nn.Module, state_dict: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not any(state_dict is each for each in copied):
            used.add("load_state_dict")
        return original(model, state_dict, *args, **kwargs)

    def load(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not all(isinstance(each, torch.Tensor) for each in (result if isinstance(result, (list, tuple)) else [result])):
            used.add("torch.load")
        return result

    def always(loader: str | None) -> Callable[..., Any]:
        """Note the loader, unless it is ``None``, and tell which file it opens: compiled code does that without an event."""

        def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if loader is not None:
                used.add(loader)
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
            # safetensors maps its files into memory with it, whenever and however it is imported.
            (torch.UntypedStorage, "from_file", always("safetensors")),
            (torch, "from_file", always(None)),
        ):
            stack.enter_context(_replaced(owner, name, watch))
        yield used


@contextlib.contextmanager
def _replaced(owner: Any, name: str, watch: Callable[..., Any]) -> Iterator[None]:
    """Call ``watch`` with the function ``owner.name`` and its arguments, instead of the function."""
    original = getattr(owner, name)
    is_own = name in vars(owner)

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        return watch(original, *args, **kwargs)

    setattr(owner, name, watched)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
