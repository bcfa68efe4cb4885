"""NVIDIA's driver, asked without torch, which has no public function for it."""

from __future__ import annotations

import ctypes
import sys

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def newest_cuda() -> str | None:
    """The newest CUDA that the installed driver supports, such as ``13.0``; ``None`` without a driver."""
    found = ctypes.c_int()
    try:
        failed = ctypes.CDLL(_LIBRARY).cuDriverGetVersion(ctypes.byref(found))
    except (OSError, AttributeError):
        return None
    return None if failed else f"{found.value // 1000}.{found.value % 1000 // 10}"  # 13000 is 13.0
