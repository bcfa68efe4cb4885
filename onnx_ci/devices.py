"""The seam between onnx-ci and GPUs: what is there, where tensors go, how exactly they compute, and what memory they keep.

Whatever is asked of a machine about its GPUs goes through :data:`gpus`, so that a test can put another machine in its place.
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

from onnx_ci.errors import first_line

TF32_EPS = 2.0**-10
"""The relative spacing of TensorFloat-32: float32 with the mantissa of float16."""


class Gpus:
    """The GPUs of this machine, as torch knows them."""

    def __init__(self) -> None:
        self._count: int | None = None

    def trouble(self) -> str | None:
        """Why torch cannot use any, or ``None`` if it can. Uses CUDA for good: whoever forks afterwards forks without it."""
        if torch.version.cuda is None:
            return f"this torch ({torch.__version__}) is built without CUDA"
        if self.lost():
            return (
                "CUDA was in use in the process that this one was forked from: a recipe file uses it as it is imported, or a "
                "test beside it; use it inside the recipe only, or run with isolation=none"
            )
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        except Exception as error:  # torch's own, one for each reason: no driver, an old driver, no GPU
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            of = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
            return f"torch cannot use CUDA: {first_line(error)}{of}"
        return None

    def lost(self) -> bool:
        """Whether the process that this one was forked from has used them, so that this one cannot."""
        return torch.cuda._is_in_bad_fork()

    def hide(self) -> None:
        """From now on, let torch say that this process has none.

        torch's compiler saves the GPU's random numbers for a model on the CPU, too: in a fork that fails, or starts CUDA.
        """
        torch.cuda.is_available = lambda: False

    def count(self) -> int:
        """How many there are, of those that CUDA_VISIBLE_DEVICES lets be seen."""
        if self._count is None:
            self._count = torch.cuda.device_count()  # asks the driver each time, but uses no CUDA
        return self._count

    def in_use(self) -> bool:
        """Whether this process uses them already."""
        return torch.cuda.is_initialized()  # type: ignore[no-untyped-call, no-any-return]

    def place(self, device: str) -> torch.device:
        """Where tensors for ``device`` go."""
        return torch.device(device)

    def describe(self, device: str) -> Mapping[str, str]:
        """What tells a GPU from another on which kernels may round otherwise."""
        properties = torch.cuda.get_device_properties(device)
        return {
            "gpu": f"{properties.name} {properties.major}.{properties.minor} {properties.total_memory}",
            "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
            "driver": str(torch._C._cuda_getDriverVersion()),  # type: ignore[attr-defined]
        }

    def free(self) -> None:
        """Give back the memory that nothing in this process uses any more."""
        gc.collect()  # what failed may be held in a circle of frames
        if self.in_use():
            with contextlib.suppress(RuntimeError):  # after some errors a process can use its GPU no more
                torch.cuda.empty_cache()


gpus = Gpus()
"""Those of this machine."""


def missing_device(device: str) -> str | None:
    """Why torch cannot use ``device``, or ``None`` if it can."""
    if device == "cpu":
        return None
    if (trouble := gpus.trouble()) is not None:
        return trouble
    count, index = gpus.count(), int(device.partition(":")[2] or 0)
    return f"torch finds {count} CUDA device{'s' * (count != 1)}, counted from cuda:0" if index >= count else None


# --- exactness ------------------------------------------------------------------------------------------------------

_CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@contextlib.contextmanager
def exact_arithmetic(*, tf32: bool = False, deterministic: bool = False) -> Iterator[None]:
    """Where there is a GPU, let it compute as exactly as it can, and put back afterwards what was set.

    TensorFloat-32, which cuDNN uses by default, would pass for rounding and hide a wrong export. What cuDNN finds fastest
    differs from run to run.

    Args:
        tf32: use TensorFloat-32, as production does.
        deterministic: use no algorithm that adds in another order each time, and others in its place. Not for an export:
            torch writes those others down.
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
        if deterministic:
            _set_deterministic(restore)
        yield


def _set_tf32(on: bool, restore: contextlib.ExitStack) -> None:
    """Set both of torch's kinds of switches.

    torch.export reads the older ones, and raises where only the newer ones were set; where somebody has set the newer ones,
    the older ones alone leave some of them on (torch 2.13).
    """
    backends: Any = torch.backends
    newer = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul]
    for each in newer:
        restore.callback(setattr, each, "fp32_precision", each.fp32_precision)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.9 warns of the older ones, and needs them
        with contextlib.suppress(RuntimeError):  # the newer ones are set, each to something else
            restore.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        with contextlib.suppress(RuntimeError):
            restore.callback(setattr, backends.cudnn, "allow_tf32", backends.cudnn.allow_tf32)
        wanted = "tf32" if on else "ieee"
        for each in newer[:3]:
            each.fp32_precision = wanted
        torch.set_float32_matmul_precision("high" if on else "highest")
        backends.cudnn.allow_tf32 = on
        for each in newer[1:3]:  # off, the older one hands them back to the switch above them all
            each.fp32_precision = wanted


def _set_deterministic(restore: contextlib.ExitStack) -> None:
    restore.enter_context(warnings.catch_warnings())
    warnings.filterwarnings("ignore", message=r"(?s).*determinis")  # an operator without another algorithm runs all the same
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    before = torch.are_deterministic_algorithms_enabled()
    restore.callback(torch.use_deterministic_algorithms, before, warn_only=warn_only)
    filler: Any = torch.utils.deterministic
    restore.callback(setattr, filler, "fill_uninitialized_memory", filler.fill_uninitialized_memory)
    torch.use_deterministic_algorithms(True, warn_only=True)
    filler.fill_uninitialized_memory = False
    if _CUBLAS_WORKSPACE not in os.environ:
        restore.callback(os.environ.pop, _CUBLAS_WORKSPACE, None)
        os.environ[_CUBLAS_WORKSPACE] = ":4096:8"  # cuBLAS adds in one order only in a workspace of its own


# --- memory ---------------------------------------------------------------------------------------------------------

_OUT_OF_MEMORY = re.compile(
    r"CUDA(?: error:)? out of memory|CUDA failure 2\b|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    r"|(?:CUBLAS|CUDNN|CUSPARSE|CUFFT)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED|Failed to allocate memory for requested buffer"
)
"""The words of torch, of CUDA's libraries and of ONNX Runtime, which has no class of its own for it."""


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Whether a GPU without room is behind ``error``."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if isinstance(error, torch.OutOfMemoryError) or _OUT_OF_MEMORY.search(str(error)):
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False
