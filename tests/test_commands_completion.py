"""``onnx-ci completion``: the scripts, and bash completing with one."""

from __future__ import annotations

import shutil

import pytest
from conftest import on_path


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_asks_the_command(project, shell):
    done = project.command("onnx_ci", "completion", shell)
    assert done.returncode == 0
    assert f"_ONNX_CI_COMPLETE={shell}_complete" in done.stdout.replace("env ", "")
    assert "onnx-ci" in done.stdout


def test_another_shell_is_exit_2(project):
    done = project.command("onnx_ci", "completion", "csh")
    assert (done.returncode, "'csh' is not one of 'bash', 'zsh', 'fish'" in done.stderr) == (2, True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(("typed", "offered"), [("conf", ["config"]), ("check --no", ["--no-load"])])
def test_bash_completes_commands_and_flags(project, typed, offered):
    words = " ".join(["onnx-ci", *typed.split()])
    script = f"""
    eval "$(onnx-ci completion bash)"
    COMP_WORDS=({words})
    COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
    _onnx_ci_completion onnx-ci
    echo "${{COMPREPLY[@]}}"
    """
    done = project.run("bash", "-c", script, **on_path(project.root / "bin"))
    assert (done.stdout.split(), done.stderr) == (offered, "")
