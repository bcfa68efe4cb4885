"""``onnx-ci rules`` and ``onnx-ci explain``: the catalogue of rules, and their pages."""

from __future__ import annotations

import importlib.resources

import click

from onnx_ci.commands.common import with_exit_code
from onnx_ci.errors import ConfigurationError, did_you_mean
from onnx_ci.rules import RULES


@click.command(name="rules")
@with_exit_code
def list_rules() -> None:
    r"""List the rules that a cell can break.

    \b
    Examples:
      onnx-ci rules
      onnx-ci rules | grep axis
    """
    width = max(map(len, RULES))
    for rule in RULES.values():
        click.echo(f"{rule.id.ljust(width)}  {rule.meaning}")


@click.command(name="explain")
@click.argument("rule")
@with_exit_code
def explain_rule(rule: str) -> None:
    r"""Show a rule's page.

    It says what the rule means, with an example that breaks it, and how to fix it.

    \b
    Examples:
      onnx-ci explain baked-value
    """
    if rule not in RULES:
        raise ConfigurationError(f"there is no rule {rule!r}{did_you_mean(rule, RULES)}; onnx-ci rules lists them")
    page = importlib.resources.files("onnx_ci.rule_pages").joinpath(f"{rule}.md")
    click.echo(page.read_text(encoding="utf-8"), nl=False)
