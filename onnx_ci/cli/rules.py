"""``onnx-ci rules``: the list of rules, and the page of each."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator

import click

from onnx_ci.cli.common import with_exit_code
from onnx_ci.errors import ConfigurationError, did_you_mean
from onnx_ci.results.rules import RULES
from onnx_ci.results.stages import PHASES


@click.command()
@click.argument("rule", required=False)
@with_exit_code
def rules(rule: str | None) -> None:
    r"""List the rules that a cell can break, or show the page of one.

    The rules are listed by the phase that reports them. An error fails the cell, a warning marks it, and a note is only
    reported. A project can change that in its pyproject.toml: ignore, note and error in [tool.onnx-ci.rules] are lists of
    rules. The page of a rule explains it, with an example that breaks it, and says how to fix that.

    \b
    Examples:
      onnx-ci rules
      onnx-ci rules baked-value
    """
    if rule is None:
        for line in _listed():
            click.echo(line)
        return
    if rule not in RULES:
        raise ConfigurationError(f"there is no rule {rule!r}{did_you_mean(rule, RULES)}; onnx-ci rules lists them")
    page = importlib.resources.files("onnx_ci.rule_pages").joinpath(f"{rule}.md")
    click.echo(page.read_text(encoding="utf-8"), nl=False)


def _listed() -> Iterator[str]:
    """Every rule with its severity, under the phase that reports it."""
    width = max(map(len, RULES))
    for phase in PHASES:
        yield f"{phase}:"
        for rule in RULES.values():
            if rule.phase == phase:
                yield f"  {rule.id.ljust(width)}  {rule.severity.value.ljust(len('warning'))}  {rule.meaning}"
