"""``onnx-ci completion``: what a shell needs to complete the command."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from onnx_ci.commands.common import with_exit_code

_NAME = "onnx-ci"
_VARIABLE = "_ONNX_CI_COMPLETE"
"""Where click looks for what a shell asks of a command of that name."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@with_exit_code
def completion(shell: str) -> None:
    r"""Print what a shell needs to complete commands.

    \b
    Examples:
      eval "$(onnx-ci completion bash)"    a line for ~/.bashrc
      eval "$(onnx-ci completion zsh)"     a line for ~/.zshrc, after compinit
      onnx-ci completion fish > ~/.config/fish/completions/onnx-ci.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"the installed click completes nothing in {shell}")
    click.echo(kind(click.get_current_context().find_root().command, {}, _NAME, _VARIABLE).source())
