"""The ``onnx-ci`` command: a thin front-end over the engine. Each of its commands is a module of :mod:`onnx_ci.commands`."""

from __future__ import annotations

import click

from onnx_ci import __version__
from onnx_ci.commands.baseline import baseline
from onnx_ci.commands.bisect import bisect
from onnx_ci.commands.cache import show_cache
from onnx_ci.commands.check import check
from onnx_ci.commands.common import with_colour, with_exit_code
from onnx_ci.commands.completion import completion
from onnx_ci.commands.config import config
from onnx_ci.commands.doctor import doctor
from onnx_ci.commands.history import show_history
from onnx_ci.commands.init import init
from onnx_ci.commands.list import list_cells
from onnx_ci.commands.matrix import print_matrix
from onnx_ci.commands.ops import ops
from onnx_ci.commands.report import show_report
from onnx_ci.commands.rules import explain_rule, list_rules
from onnx_ci.commands.run import run
from onnx_ci.commands.show import show_graph
from onnx_ci.commands.table import print_table
from onnx_ci.commands.verify import verify


class _InOrder(click.Group):
    """Lists its commands in the order in which they were added: what is used most comes first."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands."""
        return list(self.commands)


@click.group(cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="onnx-ci")
@with_colour
@with_exit_code
def main() -> None:
    r"""Prove that PyTorch models export to ONNX and compute the same numbers.

    Exit codes: 0 all passed, 1 a cell failed, 2 usage or configuration, 3 internal error, 4 the environment lacks what
    was asked for, 5 nothing ran.

    \b
    Examples:
      onnx-ci run              prove what the project's recipes promise
      onnx-ci list --why       what would run, what would not, and why
      onnx-ci run -h           all about one command
    """


for command in (
    run,
    list_cells,
    verify,
    check,
    ops,
    show_graph,
    bisect,
    baseline,
    show_history,
    show_report,
    print_table,
    print_matrix,
    list_rules,
    explain_rule,
    show_cache,
    config,
    init,
    doctor,
    completion,
):
    main.add_command(command)
