"""Takes the modules and names away that only Unix has, from every process that has this folder on its PYTHONPATH.

The libraries are imported before, on the real platform, and keep what they know other ways for elsewhere.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import types

import click  # noqa: F401
import onnx  # noqa: F401
import onnxruntime  # noqa: F401
import psutil
import torch

MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
NAMES = {
    os: (
        *("fork", "forkpty", "getegid", "geteuid", "getgid", "getpgid", "getsid", "getuid", "killpg", "mkfifo", "setsid"),
        *("O_NOFOLLOW", "O_NONBLOCK", "WNOHANG", "pread", "set_blocking", "sched_getaffinity", "sysconf", "uname"),
    ),
    signal: ("SIGALRM", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGXFSZ", "alarm", "setitimer"),
    select: ("epoll", "poll"),
}


def take_away() -> None:
    """Take the names away."""
    assert torch.onnx
    sysconfig.get_config_vars()  # read while the platform is the real one
    sysconfig.get_paths()
    for library in (psutil, subprocess):
        library.signal, library.os = (types.SimpleNamespace(**vars(module)) for module in (signal, os))
    shutil._use_fd_functions = False  # as where there are none; decided at import
    for name in MODULES:
        sys.modules[name] = None
    for module, names in NAMES.items():
        for name in names:
            delattr(module, name)
    sys.platform = "win32"


take_away()
