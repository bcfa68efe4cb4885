"""The ``onnx-ci`` command: a thin front-end over the engine. Each of its commands is a module of :mod:`onnx_ci.commands`."""

from __future__ import annotations

import click

from onnx_ci import __version__
from onnx_ci.commands.cache import show_cache
from onnx_ci.commands.check import check
from onnx_ci.commands.completion import completion
from onnx_ci.commands.config import config
from onnx_ci.commands.doctor import doctor
from onnx_ci.commands.init import init
from onnx_ci.commands.list import list_cells
from onnx_ci.commands.matrix import print_matrix
from onnx_ci.commands.rules import explain_rule, list_rules
from onnx_ci.commands.run import run
from onnx_ci.commands.verify import verify


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="onnx-ci")
def main() -> None:
    """Prove that PyTorch models export to ONNX and compute the same numbers.

    Exit codes: 0 all passed, 1 a cell failed, 2 usage or configuration, 3 internal error, 4 the environment lacks what
    was asked for, 5 nothing ran.
    """


for command in (
    run,
    verify,
    check,
    list_cells,
    print_matrix,
    config,
    show_cache,
    list_rules,
    explain_rule,
    init,
    doctor,
    completion,
):
    main.add_command(command)
