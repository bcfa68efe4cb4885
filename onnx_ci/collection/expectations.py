"""What recipes expect to go wrong, and in which cells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnx_ci.collection.post_export import EXPORT
from onnx_ci.errors import RecipeError, did_you_mean
from onnx_ci.results.rules import RULES
from onnx_ci.results.verdict import Expectation


def unsupported(reason: str, *, seen: str = "") -> Expectation:
    """Expect ``unsupported-operator``: the exporter cannot convert the model at these opsets.

    The expectation is strict: once the exporter supports the operator, the cell fails, so that the expectation is removed.

    Args:
        reason: which operator, and what to do about it.
        seen: the versions with which the failure was seen, such as ``"torch 2.13.0"``.
    """
    return known_failure("unsupported-operator", reason, seen=seen)


def known_failure(rule: str, reason: str, *, seen: str = "") -> Expectation:
    """Expect a cell to break ``rule``. The expectation is strict: once the cell does not break it, the cell fails.

    Args:
        rule: the id of a rule, as ``onnx-ci why`` lists it.
        reason: why, and what to do about it.
        seen: the versions with which the failure was seen, such as ``"torch 2.13.0"``.

    Raises:
        RecipeError: the rule does not exist, or cannot be expected because a cell that breaks it is not judged.
    """
    if rule not in RULES:
        raise RecipeError(f"there is no rule {rule!r}{did_you_mean(rule, RULES)}")
    if not RULES[rule].can_be_expected:
        raise RecipeError(f"{rule!r} cannot be expected: it reports a cell that was not judged properly; fix the cause")
    return Expectation(rule, reason, seen)


@dataclass(frozen=True)
class ExpectedFailures:
    """What a recipe expects to go wrong in some of its cells, and in which."""

    failures: tuple[Expectation, ...]
    exporter: str | None = None
    """``None`` for both."""
    device: str | None = None
    """``cpu``, or ``cuda`` for any GPU; ``None`` for both."""
    opsets: tuple[int, ...] | None = None
    """``None`` for all."""
    graph_pass: str | None = None
    """A post-export pass, ``export`` for the exporter's own file, ``None`` for every file."""


def expectations_of(
    declared: Iterable[ExpectedFailures], exporter: str, opset: int, graph_pass: str | None, device: str
) -> tuple[Expectation, ...]:
    """Those of the ``declared`` expectations that apply to a cell: to the exporter's own file, or to that of a pass."""
    return tuple(
        failure
        for expected in declared
        if expected.exporter in (None, exporter)
        and expected.device in (None, device.partition(":")[0])
        and (expected.opsets is None or opset in expected.opsets)
        and expected.graph_pass in (None, graph_pass or EXPORT)
        for failure in expected.failures
    )
