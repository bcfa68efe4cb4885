"""The setting ``rules``: which severity a project gives to rules and to changes since the baseline."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from onnx_ci.config.values import EVERY_RECIPE, Kind, Schema, list_schema, one_of, words_in
from onnx_ci.errors import did_you_mean
from onnx_ci.results.records import Severity
from onnx_ci.results.rules import BASELINE_CHANGES, RULES

SEVERITIES: Mapping[str, Severity | None] = MappingProxyType({"error": Severity.ERROR, "note": Severity.NOTE, "ignore": None})
"""The severities that a project can give to a rule, by the words for them; ``None`` ignores the rule."""
_CAN_BE_ALLOWED = MappingProxyType(
    {rule.id: rule.can_be_allowed for rule in RULES.values()} | {f"baseline-{change}": True for change in BASELINE_CHANGES}
)
"""Every id that can have a severity, and whether it can be less than an error."""
_SEVERITY = one_of(tuple(SEVERITIES))
_RECIPE_PATTERN = r"[\w.*?\[\]!-]+"


class RuleSeverity(NamedTuple):
    """The severity of a rule, or of a kind of change since the baseline, for some recipes."""

    recipes: str
    rule: str
    severity: str

    def __str__(self) -> str:
        return f"{'' if self.recipes == EVERY_RECIPE else f'{self.recipes}:'}{self.rule}={self.severity}"


def _parse(value: object) -> tuple[RuleSeverity, ...]:
    """``{"absolute-path": "ignore", "resnet*": {RULE: "note"}}``, or the same in words. Entries for every recipe come first."""
    entries: dict[tuple[str, str], str] = {}
    for entry in _in_table(value) if isinstance(value, Mapping) else map(_in_word, words_in(value)):
        _check(entry)
        first = entries.setdefault(entry[:2], entry.severity)
        if first != entry.severity:
            raise ValueError(f"{entry.rule} is declared twice, as {first} and as {entry.severity}; keep one of them")
    in_order = sorted(entries, key=lambda key: key[0] != EVERY_RECIPE)
    return tuple(RuleSeverity(*key, entries[key]) for key in in_order)


def _in_table(table: Mapping[str, object]) -> Iterator[RuleSeverity]:
    for key, inner in table.items():
        if isinstance(inner, Mapping):
            yield from (RuleSeverity(key, rule, severity) for rule, severity in inner.items())
        else:
            yield RuleSeverity(EVERY_RECIPE, key, inner)  # type: ignore[arg-type]


def _in_word(word: str) -> RuleSeverity:
    name, equals, severity = (part.strip() for part in word.rpartition("="))
    if not equals:
        raise ValueError(f"must be RULE=SEVERITY or RECIPES:RULE=SEVERITY, such as absolute-path=ignore, not {word!r}")
    recipes, colon, rule = (part.strip() for part in name.rpartition(":"))
    return RuleSeverity(recipes if colon else EVERY_RECIPE, rule, severity)


def _check(entry: RuleSeverity) -> None:
    if not re.fullmatch(_RECIPE_PATTERN, entry.recipes):
        raise ValueError(f"{entry.recipes!r} is not a pattern of recipes' names, such as resnet*")
    if entry.rule not in _CAN_BE_ALLOWED:
        nearest = did_you_mean(entry.rule, _CAN_BE_ALLOWED)
        raise ValueError(f"there is no rule {entry.rule!r}{nearest}; onnx-ci why lists them")
    try:
        _SEVERITY.parse(entry.severity)
    except ValueError as error:
        raise ValueError(f"{entry.rule} {error}") from None
    if entry.severity != "error" and not _CAN_BE_ALLOWED[entry.rule]:
        raise ValueError(
            f"{entry.rule} can be neither ignored nor made a note: a cell that breaks it {RULES[entry.rule].why_it_fails}"
        )


def _schema() -> Schema:
    every_id, allowable = "|".join(_CAN_BE_ALLOWED), "|".join(id for id, can_be in _CAN_BE_ALLOWED.items() if can_be)
    word = rf"(?:(?:{_RECIPE_PATTERN})\s*:\s*)?(?:(?:{every_id})\s*=\s*error|(?:{allowable})\s*=\s*(?:note|ignore))"
    by_id = {id: {"enum": [*SEVERITIES] if can_be else ["error"]} for id, can_be in _CAN_BE_ALLOWED.items()}
    return {
        **list_schema(word),
        "type": ["string", "array", "object"],
        "properties": by_id,
        "propertyNames": {"pattern": f"^{_RECIPE_PATTERN}$"},
        "additionalProperties": {"type": "object", "properties": by_id, "additionalProperties": False},
    }


RULE_SEVERITIES = Kind(
    parse=_parse, schema=_schema(), show=lambda entries: ",".join(map(str, entries)), metavar="RULE=SEVERITY"
)
