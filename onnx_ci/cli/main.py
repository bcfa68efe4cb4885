"""The ``onnx-ci`` command: a thin front-end over the engine. Each subcommand is a module of :mod:`onnx_ci.cli`."""

from __future__ import annotations

import sys

import click

from onnx_ci.cli.baseline import baseline
from onnx_ci.cli.cache import show_cache
from onnx_ci.cli.check import check
from onnx_ci.cli.common import with_colour, with_exit_code
from onnx_ci.cli.compare import compare
from onnx_ci.cli.config import config
from onnx_ci.cli.doctor import doctor
from onnx_ci.cli.fix import fix
from onnx_ci.cli.history import show_history
from onnx_ci.cli.init import init
from onnx_ci.cli.list import list_cells
from onnx_ci.cli.matrix import print_matrix
from onnx_ci.cli.ops import ops
from onnx_ci.cli.report import show_report
from onnx_ci.cli.rules import rules
from onnx_ci.cli.run import run
from onnx_ci.cli.runtimes import runtimes
from onnx_ci.cli.show import show_graph
from onnx_ci.cli.upgrade import upgrade
from onnx_ci.cli.verify import verify
from onnx_ci.cli.why import why
from onnx_ci.environment.torch_variables import set_torch_variables
from onnx_ci.errors import ExitCode
from onnx_ci.version import __version__


class _InOrder(click.Group):
    """Lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands."""
        return list(self.commands)


_FIRST_STEPS = """\
onnx-ci verifies that PyTorch models export to ONNX and compute the same numbers.

  onnx-ci init               write a first recipe and a workflow into this project
  onnx-ci run                export, check and compare every recipe
  onnx-ci why CELL           show where the failure of a cell begins
  onnx-ci fix CELL           try remedies for a failing cell
  onnx-ci baseline update    record what the exports are now, so that changes are reported

onnx-ci -h lists all commands; onnx-ci run -h lists the settings of a run."""


@click.group(cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
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


for command in (  # in the order of the help
    run,
    list_cells,
    why,
    fix,
    verify,
    compare,
    check,
    ops,
    show_graph,
    baseline,
    upgrade,
    runtimes,
    show_history,
    show_report,
    print_matrix,
    rules,
    show_cache,
    config,
    init,
    doctor,
):
    main.add_command(command)
