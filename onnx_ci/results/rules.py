"""The catalogue of rules, which ``rules.toml`` contains. A finding can have a more specific remedy: ``remedies.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

from onnx_ci.results.records import Finding, Severity, SourceLine


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One thing that can be wrong with a cell."""

    id: str
    phase: str
    """The phase that reports it, one of :data:`~onnx_ci.results.stages.PHASES`."""
    meaning: str
    remedy: str
    severity: Severity = Severity.ERROR
    leaves_unjudged: bool = False
    """Whether a cell that breaks the rule cannot be judged. The rule can be neither expected nor allowed."""
    leaves_no_file: bool = False
    """Whether a cell that breaks the rule has no file to compare. The rule can be expected, but not allowed."""
    is_about_expectations: bool = False
    """Whether the rule is about a recipe's expectations. The verdict itself reports it."""
    is_detail: bool = False
    """Whether its notes on cells that pass are shown only with -v: they ask for no action."""

    @property
    def can_be_expected(self) -> bool:
        """Whether a recipe can declare the rule as a known failure."""
        return not self.leaves_unjudged and not self.is_about_expectations

    @property
    def can_be_allowed(self) -> bool:
        """Whether a recipe can turn findings against the rule into notes."""
        return self.can_be_expected and not self.leaves_no_file

    @property
    def why_it_fails(self) -> str:
        """Why a rule that cannot be allowed fails a cell. The text ends the sentence "the cell …"."""
        if self.is_about_expectations:
            return "does not fail as its recipe expects"
        return "has no file to compare" if self.leaves_no_file else "was not judged"


REMEDIES: Mapping[str, str] = tomllib.loads(Path(__file__).with_name("remedies.toml").read_text(encoding="utf-8"))
"""What to do about wrong values whose cause is known, by the name of the cause."""
_TABLE = tomllib.loads(Path(__file__).with_name("rules.toml").read_text(encoding="utf-8"))
RULES = {id: Rule(id=id, **{**fields, "severity": Severity(fields.get("severity", "error"))}) for id, fields in _TABLE.items()}
"""Every rule by its id, in the order of the table."""
BASELINE_CHANGES: Mapping[str, Severity] = {
    **dict.fromkeys(
        ("missing", "signature", "format", "operators", "size", "output-drift", "values", "weights", "inputs"), Severity.ERROR
    ),
    **dict.fromkeys(("observability", "versions"), Severity.NOTE),
}
"""The kinds of change since a baseline, each with its severity. The project can give another one to ``baseline-KIND``."""
DEATHS = frozenset({"crash", "timeout", "out-of-memory"})
"""The rules of cells whose process died, which depend on the state of the machine as much as on the export."""


class FindingFields(TypedDict, total=False):
    """The fields of a :class:`Finding` that only some rules set."""

    output: str | None
    probe: str | None
    operator: str | None
    opset: int | None
    drift: float | None
    introduced_by: str | None
    baseline_change: str | None
    source: SourceLine | None
    details: Mapping[str, Any]


def finding(
    rule: str, message: str, *, remedy: str | None = None, severity: Severity | None = None, **fields: Unpack[FindingFields]
) -> Finding:
    """A finding against a rule. By default, its severity and its remedy are the rule's."""
    broken = RULES[rule]
    return Finding(rule=rule, severity=severity or broken.severity, message=message, remedy=remedy or broken.remedy, **fields)
