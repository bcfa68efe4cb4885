"""GPUs: which are available, how exactly they compute, and when their memory was too small.

All queries about GPUs go through one object, :data:`gpus`. Tests replace it by a machine that is made of the CPU.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from onnx_ci.environment.packages import newest_cuda
from onnx_ci.errors import first_line, message_of
from onnx_ci.text import count

TF32_EPS = 2.0**-10
"""The machine epsilon of TensorFloat-32: float32 with the mantissa of float16."""


class Gpus:
    """The GPUs of this machine, as torch knows them."""

    def __init__(self) -> None:
        self._count: int | None = None

    def unavailable_reason(self) -> str | None:
        """Why torch cannot use GPUs, or ``None`` if it can. Initializes CUDA, so forks of this process cannot use it."""
        if torch.version.cuda is None:
            return f"this torch ({torch.__version__}) is built without CUDA"
        if self.was_used_by_parent():
            return (
                "CUDA was in use in the process that this one was forked from: a recipe file uses it at import, or a test in "
                "the same session does; use it inside the recipe only, or run with isolation=none"
            )
        try:
            torch.cuda.init()
        except Exception as error:  # torch raises several classes: no driver, an old driver, no GPU
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            of = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
            return f"torch cannot use CUDA: {first_line(error)}{of}"
        return None

    def was_used_by_parent(self) -> bool:
        """Whether the parent process initialized CUDA before the fork, so that this process cannot use it."""
        return torch.cuda._is_in_bad_fork()  # has no public name

    def hide(self) -> None:
        """Make ``torch.cuda.is_available()`` return false in this process, a fork that must not use CUDA.

        torch's compiler saves the GPU's random state even for a model on the CPU. In a fork, that fails or initializes CUDA.
        """
        torch.cuda.is_available = lambda: False

    def count(self) -> int:
        """The number of GPUs that CUDA_VISIBLE_DEVICES allows."""
        if self._count is None:
            self._count = torch.cuda.device_count()  # queries the driver each time; does not initialize CUDA
        return self._count

    def in_use(self) -> bool:
        """Whether this process has initialized CUDA."""
        return torch.cuda.is_initialized()  # type: ignore[no-any-return]

    def place(self, device: str) -> torch.device:
        """The torch device for ``device``."""
        return torch.device(device)

    def describe(self, device: str) -> Mapping[str, str]:
        """What identifies a GPU and its libraries. On others, kernels may round differently."""
        properties = torch.cuda.get_device_properties(device)
        return {
            "gpu": f"{properties.name} {properties.major}.{properties.minor} {properties.total_memory}",
            "cudnn": str(torch.backends.cudnn.version()),
            "driver": str(newest_cuda()),
        }

    def free(self) -> None:
        """Release cached memory that this process no longer uses."""
        gc.collect()  # a failed call may be part of a reference cycle of frames
        if self.in_use():
            with contextlib.suppress(RuntimeError):  # after some errors a process can no longer use its GPU
                torch.cuda.empty_cache()


gpus = Gpus()
"""The GPUs of this machine."""


def missing_device(device: str) -> str | None:
    """Why torch cannot use ``device``, or ``None`` if it can."""
    if device == "cpu":
        return None
    if (reason := gpus.unavailable_reason()) is not None:
        return reason
    number, index = gpus.count(), int(device.partition(":")[2] or 0)
    return f"torch finds {count(number, 'CUDA device')}, counted from cuda:0" if index >= number else None


_CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@contextlib.contextmanager
def exact_arithmetic(*, tf32: bool = False, for_reference: bool = False) -> Iterator[None]:
    """Make GPUs compute as exactly as they can, and restore the settings afterwards.

    cuDNN uses TensorFloat-32 by default. Its error would look like rounding and hide a wrong export. cuDNN's benchmark mode
    chooses different algorithms from run to run. A reference takes only deterministic algorithms, and torch's own kernels in
    recurrent layers, which round less than cuDNN's; an export does not, because both change the traced operators.
    """
    if not gpus.count():
        yield
        return
    with contextlib.ExitStack() as restore:
        _set_tf32(tf32, restore)
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        for owner, name, value in (
            (matmul, "allow_fp16_reduced_precision_reduction", False),
            (matmul, "allow_bf16_reduced_precision_reduction", False),
            (cudnn, "benchmark", False),
            (cudnn, "deterministic", True),
        ):
            restore.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        if for_reference:
            _set_deterministic(restore)
        if for_reference and not tf32:
            _leave_out_cudnn_in_recurrent_layers(restore)
        yield


def _set_tf32(on: bool, restore: contextlib.ExitStack) -> None:
    """Set TF32 through both of torch's APIs (torch 2.13).

    torch.export reads the older one, and raises if only the newer one is set. If a model has set the newer one, the older one
    alone leaves TF32 partly enabled.
    """
    backends: Any = torch.backends
    on_gpu = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    for backend in (*on_gpu, backends.mkldnn.matmul):
        restore.callback(setattr, backend, "fp32_precision", backend.fp32_precision)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.9 warns about the older API, but needs it
        with contextlib.suppress(RuntimeError):  # the newer API has set different values
            restore.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        with contextlib.suppress(RuntimeError):
            restore.callback(setattr, backends.cudnn, "allow_tf32", backends.cudnn.allow_tf32)
        precision = "tf32" if on else "ieee"
        for backend in on_gpu:
            backend.fp32_precision = precision
        torch.set_float32_matmul_precision("high" if on else "highest")
        backends.cudnn.allow_tf32 = on
        for backend in on_gpu[1:]:  # the older API resets cuDNN's to the global setting
            backend.fp32_precision = precision


def _leave_out_cudnn_in_recurrent_layers(restore: contextlib.ExitStack) -> None:
    """Let recurrent layers use torch's own kernels.

    Even with TF32 disabled, cuDNN's kernels round 20 to 60 times as coarsely in layers of up to 128 units (torch 2.11, cuDNN
    9.19, an H200). ONNX Runtime calls cuDNN, too, and does not.
    """
    cudnn: Any = torch.backends.cudnn
    settings: list[bool] = []
    """What was set outside of each layer that runs."""

    def disable(module: torch.nn.Module, args: Any) -> None:
        if isinstance(module, torch.nn.RNNBase):
            settings.append(cudnn.enabled)
            cudnn.enabled = False

    def enable(module: torch.nn.Module, args: Any, output: Any) -> None:
        if isinstance(module, torch.nn.RNNBase):
            cudnn.enabled = settings.pop()

    hooks = torch.nn.modules.module
    restore.callback(hooks.register_module_forward_pre_hook(disable).remove)
    restore.callback(hooks.register_module_forward_hook(enable, always_call=True).remove)


def _set_deterministic(restore: contextlib.ExitStack) -> None:
    restore.enter_context(warnings.catch_warnings())
    warnings.filterwarnings("ignore", message=r"(?s).*determinis")  # operators without a deterministic algorithm still run
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    before = torch.are_deterministic_algorithms_enabled()
    restore.callback(torch.use_deterministic_algorithms, before, warn_only=warn_only)
    filler: Any = torch.utils.deterministic
    restore.callback(setattr, filler, "fill_uninitialized_memory", filler.fill_uninitialized_memory)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # torch.nn.functional asks this function whether to replace operators whose gradients are not deterministic. The
    # replacements round differently, and that of pad takes only sizes that are Python numbers (torch 2.13).
    restore.callback(setattr, torch, "are_deterministic_algorithms_enabled", torch.are_deterministic_algorithms_enabled)
    torch.are_deterministic_algorithms_enabled = lambda: False
    filler.fill_uninitialized_memory = False
    if _CUBLAS_WORKSPACE not in os.environ:
        restore.callback(os.environ.pop, _CUBLAS_WORKSPACE, None)
        os.environ[_CUBLAS_WORKSPACE] = ":4096:8"  # cuBLAS is deterministic only with this workspace


_OUT_OF_MEMORY = re.compile(
    r"CUDA(?: error:)? out of memory|CUDA failure 2\b|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    r"|(?:CUBLAS|CUDNN|CUSPARSE|CUFFT)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED|Failed to allocate memory for requested buffer"
)
"""The messages of torch, CUDA's libraries and ONNX Runtime, which has no exception class for it."""


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Whether ``error`` was caused by a GPU running out of memory."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return any(isinstance(link, torch.OutOfMemoryError) or _OUT_OF_MEMORY.search(message_of(link)) for link in chain)
