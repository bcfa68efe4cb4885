"""Runs of a model in eager mode: seeded, in small operators, without torch.compile; and what it returns."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from numpy import random as numpy_random  # before processes are forked: numpy imports it when it is first used
from torch.nn.attention import SDPBackend, sdpa_kernel

from onnx_ci.errors import describe_exception
from onnx_ci.pipeline.model import devices
from onnx_ci.pipeline.model.call import Call, recipe_error
from onnx_ci.pipeline.model.containers import name_of, named_leaves
from onnx_ci.pipeline.model.module import unlike_others, weights_of
from onnx_ci.pipeline.model.tensors import Outputs
from onnx_ci.processes.signals import no_forks_leave
from onnx_ci.results.rules import REMEDIES


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch, random and numpy, and restore their states afterwards."""
    python_state, numpy_state = random.getstate(), numpy_random.get_state()
    gpus = devices.gpus
    with torch.random.fork_rng(devices=range(gpus.count()) if gpus.in_use() else []):
        if gpus.count():
            torch.manual_seed(seed)
        else:  # without a GPU, torch.manual_seed queues a CUDA call with a stack trace: milliseconds and memory each time
            torch.default_generator.manual_seed(seed)
        random.seed(seed)
        numpy_random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            numpy_random.set_state(numpy_state)


@contextlib.contextmanager
def in_small_operators() -> Iterator[None]:
    """Run attention and encoder layers as several operators, as an exported file does, not as one."""
    backend = torch.backends.mha
    before = backend.get_fastpath_enabled()
    backend.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        backend.set_fastpath_enabled(before)


@contextlib.contextmanager
def force_eager() -> Iterator[None]:
    """Disable torch.compile: compiled code bypasses dispatch modes, and torch.cond compiles even in eager mode."""
    if "torch._dynamo" not in sys.modules:  # torch.compile was not imported, and setting the stance would import it
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def flatten_outputs(result: Any) -> Outputs:
    """Copies of the tensors that a model returned, in the order of the graph's outputs, if all are plain."""
    tensors = [(path, leaf) for path, leaf in named_leaves(result) if isinstance(leaf, torch.Tensor)]
    for path, tensor in tensors:
        if reason := unlike_others(tensor):
            where = f"the output {name_of(path)}" if path else "what the model returns"
            plain = "Return a plain tensor, such as to_dense() or dequantize() of it."
            remedy = REMEDIES["on-meta"] if tensor.is_meta else plain
            raise recipe_error(f"{where} {reason}, so no output of a file can be compared with it", remedy)
    return tuple(tensor.detach().cpu().clone() for _, tensor in tensors)


def run_tree(call: Call, *, seed: int = 0) -> Any:
    """Run the model under ``seed``. What it raises becomes a :class:`PrepareError`, unless a GPU has run out of memory."""
    try:
        with no_forks_leave(), torch.no_grad(), seeded(seed):
            return call.model(*call.args, **call.kwargs)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # whatever the model raises is reported, SystemExit included
        if devices.ran_out_of_memory(error):
            raise
        has_meta = any(weight.is_meta for weight in weights_of(call.model))
        raise recipe_error(f"the model raised {describe_exception(error)}", REMEDIES["on-meta"] if has_meta else None) from None


def run(call: Call, *, seed: int = 0) -> Outputs:
    """The model's flattened outputs, on the CPU. Raises as :func:`run_tree` does."""
    return flatten_outputs(run_tree(call, seed=seed))
