"""Runs commands of onnx-ci in a process without the modules and names that only Unix has; prints each one's exit code.

Usage: ``python without_unix.py COMMAND…``, each command one argument. The libraries are imported before, on the real platform.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import sys
import sysconfig

import click  # noqa: F401
import onnx  # noqa: F401
import onnxruntime  # noqa: F401
import psutil  # noqa: F401
import torch

MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
NAMES = {
    os: (
        *("fork", "forkpty", "getegid", "geteuid", "getgid", "getpgid", "getsid", "getuid", "killpg", "mkfifo", "setsid"),
        *("O_NOFOLLOW", "O_NONBLOCK", "WNOHANG", "sched_getaffinity", "sysconf", "uname"),
    ),
    signal: ("SIGALRM", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGXFSZ", "alarm", "setitimer"),
    select: ("epoll", "poll"),
}


def main() -> None:
    """Take the names away, then run the commands."""
    assert torch.onnx
    sysconfig.get_config_vars()  # read while the platform is the real one
    sysconfig.get_paths()
    for name in MODULES:
        sys.modules[name] = None
    for module, names in NAMES.items():
        for name in names:
            delattr(module, name)
    sys.platform = "win32"
    from onnx_ci.cli.main import main as run

    for command in sys.argv[1:]:
        try:
            run(shlex.split(command))
        except SystemExit as error:
            print(f"exit code of {shlex.split(command)[0]}: {error.code}", flush=True)


if __name__ == "__main__":
    main()
