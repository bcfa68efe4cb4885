"""Commands that repeat a cell, read by a shell."""

from __future__ import annotations

import subprocess

from toolbox.records import cell

from onnx_ci.config.reproduce import repeat_with_cli
from onnx_ci.config.settings import load_settings


def test_a_command_is_one_line_that_a_shell_reads_as_it_was_meant(project):
    value = "a\n::error::b\\'é"
    settings = load_settings(project.root, flags={"recipe_files": value}, environment={})
    command = repeat_with_cli(cell(), settings.shown(), settings.root)
    assert command.isprintable()
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}
    )
    assert f"--recipe-files={value}" in words.stdout.decode().split("\0")
