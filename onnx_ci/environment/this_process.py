"""What holds for this process: the variables that torch and its libraries read, and whether coverage.py measures it."""

from __future__ import annotations

import os
import sys

NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
_SPIN_COUNT, _WAIT_POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
_SPINS = "1000"
"""How often a waiting thread checks before it sleeps. GNU's OpenMP checks 300,000 times, which takes milliseconds, unless it
has more threads than cores. It does not count the threads of other programs."""


def set_torch_variables() -> None:
    """Set the variables that the user has not set.

    - ``torch.cuda.is_available()`` checks without initializing CUDA, as far as torch supports that. Recipe files and modules of
      torch call it on import, and a fork cannot use CUDA if its parent has initialized it.
    - Threads that share an operation sleep while they wait for each other. By default they spin, and if another program needs a
      core, the thread that others wait for does not get it: on two cores, one of them busy, a cell of RAFT took 24 s instead of
      2.5. This has no effect once torch is imported.
    """
    os.environ.setdefault(NVML_CHECK, "1")
    if _WAIT_POLICY not in os.environ:
        os.environ.setdefault(_SPIN_COUNT, _SPINS)


def patches_of_coverage() -> set[str] | None:
    """The setting ``run:patch`` of the running measurement of coverage.py; ``None`` if nothing is measured."""
    coverage = sys.modules.get("coverage")
    current = None if coverage is None else coverage.Coverage.current()
    return None if current is None else set(current.get_option("run:patch") or ())
