"""NVIDIA's driver, asked without torch, which has no public function for it."""

from __future__ import annotations

import ctypes
import sys

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def newest_cuda() -> str | None:
    """The newest CUDA that the installed driver supports, such as ``13.0``; ``None`` without a driver."""
    version = ctypes.c_int()
    try:
        error = ctypes.CDLL(_LIBRARY).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if error else f"{version.value // 1000}.{version.value % 1000 // 10}"  # 13000 is 13.0
