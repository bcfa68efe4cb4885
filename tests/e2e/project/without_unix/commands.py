"""Runs commands of onnx-ci, each one argument, and prints each one's exit code."""

from __future__ import annotations

import shlex
import sys

from onnx_ci.cli.main import main

assert sys.platform == "win32"
for command in sys.argv[1:]:
    try:
        main(shlex.split(command))
    except SystemExit as error:
        print(f"exit code of {shlex.split(command)[0]}: {error.code}", flush=True)
