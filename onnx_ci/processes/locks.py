"""Locks on open files and folders, which the system releases when the last process that inherited one ends.

This calls flock directly: filelock cannot lock a folder, and its locks end with the process that took them, even if forks of it
live on.
Where the platform or the file system has no locks, nothing is locked.
"""

from __future__ import annotations

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None


def lock(descriptor: int) -> bool:
    """Lock an open file or folder, once no other process holds its lock, and return whether it is locked."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


def try_to_lock(descriptor: int) -> bool:
    """Lock an open file or folder if no other process holds its lock, and return whether it is locked now."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
