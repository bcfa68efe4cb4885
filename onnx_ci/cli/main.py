"""The ``onnx-ci`` command. The gate has a table of its commands; those of tools and other packages are entry points.

A command is imported when it is called or listed, so that ``onnx-ci run`` imports no tool.
"""

from __future__ import annotations

import sys

import click

from onnx_ci.cli.common import with_colour, with_exit_code
from onnx_ci.environment.this_process import set_torch_variables
from onnx_ci.errors import EnvironmentLacksError, ExitCode, did_you_mean
from onnx_ci.plugins import COMMANDS
from onnx_ci.text import one_line
from onnx_ci.version import __version__


class _Commands(click.Group):
    """The commands of the gate, in order, then those that distributions add, ours among them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, if there is one. One that cannot be loaded or used ends the process with the reason."""
        try:
            if cmd_name in COMMANDS:
                command: click.Command = COMMANDS.load(cmd_name)
                return command
            if cmd_name in COMMANDS.problems():
                raise EnvironmentLacksError(COMMANDS.problems()[cmd_name])
        except EnvironmentLacksError as error:
            click.echo(f"onnx-ci: {one_line(str(error))}", err=True)
            ctx.exit(error.exit_code)
        return None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is called. A name that is none is an error that suggests the nearest one."""
        if args and not args[0].startswith("-") and args[0] not in {*COMMANDS, *COMMANDS.problems()}:
            raise click.UsageError(f"there is no command {args[0]!r}{did_you_mean(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under headings: the gate, its tools, and those of other packages."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for name in COMMANDS:
            try:
                text = COMMANDS.load(name).get_short_help_str(formatter.width - 6 - max(map(len, COMMANDS)))
            except EnvironmentLacksError as error:  # the package must not cost the help of the others
                text = one_line(str(error))
            heading = "Commands" if name in COMMANDS.ours else f"From {COMMANDS.distribution(name)}"
            rows.setdefault("Tools" if heading == "From onnx-ci" else heading, []).append((name, text))
        if problems := COMMANDS.problems():
            rows["Commands that cannot be used"] = [(one_line(name), one_line(text)) for name, text in problems.items()]
        for heading, commands in rows.items():
            with formatter.section(heading):
                formatter.write_dl(commands)


_FIRST_STEPS = """\
onnx-ci verifies that PyTorch models export to ONNX and compute the same numbers.

  onnx-ci init               write a first recipe and workflows into this project
  onnx-ci run                export, check and compare every recipe
  onnx-ci why CELL           show where the failure of a cell begins
  onnx-ci fix CELL           try remedies for a failing cell
  onnx-ci baseline update    record what the exports are now, so that changes are reported

onnx-ci -h lists all commands; onnx-ci run -h lists the settings of a run."""


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.version_option(__version__, "-V", "--version", prog_name="onnx-ci")
@with_colour
@click.pass_context
@with_exit_code
def main(context: click.Context) -> None:
    r"""Verify that PyTorch models export to ONNX and compute the same numbers.

    Exit codes: 0 all passed, 1 a cell failed, 2 usage or configuration, 3 internal error, 4 the environment lacks a
    required package or device, 5 nothing ran.

    \b
    Examples:
      onnx-ci run              run the project's recipes
      onnx-ci list --why       what would run, what would not, and why
      onnx-ci run -h           help on one command
    """
    set_torch_variables()
    if context.invoked_subcommand is None:
        click.echo(_FIRST_STEPS)
        sys.exit(ExitCode.USAGE)  # a gate that was not told to run is not a success
