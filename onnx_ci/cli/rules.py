"""``onnx-ci rules``: the list of rules, and their pages."""

from __future__ import annotations

import importlib.resources

import click

from onnx_ci.cli.common import with_exit_code
from onnx_ci.errors import ConfigurationError, did_you_mean
from onnx_ci.results.rules import RULES


@click.command()
@click.argument("rule", required=False)
@with_exit_code
def rules(rule: str | None) -> None:
    r"""List the rules that a cell can break, or show the page of one.

    A page explains the rule, with an example that breaks it and how to fix it.

    \b
    Examples:
      onnx-ci rules
      onnx-ci rules baked-value
    """
    if rule is None:
        width = max(map(len, RULES))
        for each in RULES.values():
            click.echo(f"{each.id.ljust(width)}  {each.meaning}")
        return
    if rule not in RULES:
        raise ConfigurationError(f"there is no rule {rule!r}{did_you_mean(rule, RULES)}; onnx-ci rules lists them")
    page = importlib.resources.files("onnx_ci.rule_pages").joinpath(f"{rule}.md")
    click.echo(page.read_text(encoding="utf-8"), nl=False)
