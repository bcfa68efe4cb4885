"""Environment variables that torch, and what it brings, read."""

from __future__ import annotations

import os

NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
_SPIN_COUNT, _WAIT_POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
_SPINS = "1000"
"""How often a waiting thread looks before it sleeps. GNU's OpenMP looks 300,000 times, which takes milliseconds, unless it has
more threads than cores; it does not know of other programs."""


def set_torch_variables() -> None:
    """Set each that the user has not set.

    - ``torch.cuda.is_available()`` is to check without initializing CUDA, as far as torch supports that. Recipe files and
      torch's own modules call it on import, and a fork cannot use CUDA if its parent process has initialized it.
    - Threads that share an operation are to wait for each other asleep. They spin by default, and where another program needs a
      core, the one that is waited for does not get it: on two cores, one of them busy, a cell of RAFT took 24 s instead of 2.5.
      This has no effect once torch is imported.
    """
    os.environ.setdefault(NVML_CHECK, "1")
    if _WAIT_POLICY not in os.environ:
        os.environ.setdefault(_SPIN_COUNT, _SPINS)
