"""Help that shows options under headings: what runs, how it is judged, where output goes."""

from __future__ import annotations

from typing import Any

import click

from onnx_ci.config.options import Group


class GroupedOption(click.Option):
    """An option that help shows under the heading of a group.

    Args:
        group: the group.
    """

    def __init__(self, *arguments: Any, group: Group, **values: Any) -> None:
        super().__init__(*arguments, **values)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose help shows its own options first, then those of each group, and ``--help`` last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        first, last = "Options", "Other"
        rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (first, *(group.value for group in Group), last)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                group = parameter.group.value if isinstance(parameter, GroupedOption) else None
                heading = group or (last if "--help" in parameter.opts else first)
                rows[heading].append(record)
        for heading, records in rows.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
