"""Controls when the C library returns free memory to the system. Elsewhere than with glibc, these functions do nothing."""

from __future__ import annotations

import contextlib
import ctypes
import functools

# Options of mallopt and values of some, from malloc.h of glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8
_LARGEST_MMAP_THRESHOLD = 32 * 2**20
_DEFAULT_MMAP_MAX = 65536


def keep_freed_memory() -> None:
    """Take large blocks from the heap, too, and reuse them instead of returning them to the system.

    An export copies the weights a dozen times. In a new process, each copy would need new pages, and the system takes longer to
    provide them than the exporter takes to fill them.
    """
    _set(_MMAP_MAX, 0)
    _set(_TRIM_THRESHOLD, 2**31 - 1)


def return_large_blocks() -> None:
    """From now on, return large blocks to the system when they are freed: copies of large weights leave large holes."""
    _set(_MMAP_MAX, _DEFAULT_MMAP_MAX)
    _set(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)


def return_free_memory() -> None:
    """Return free memory to the system, so that a fork gets new pages instead of copying old ones."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


@functools.cache
def share_one_heap() -> None:
    """From now on, let new threads use the main heap: a heap of their own would return large blocks to the system."""
    _set(_ARENA_MAX, 1)


def _set(option: int, value: int) -> None:
    with contextlib.suppress(AttributeError, OSError, TypeError):  # Windows has no library without a name
        ctypes.CDLL(None).mallopt(option, value)
