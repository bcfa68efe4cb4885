"""Findings from an exporter's warnings, by a table: which of them mean a wrong file, and which may mean one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from onnx_ci.pipeline.model.places import innermost, is_of_toolchain
from onnx_ci.processes.capture import Notice
from onnx_ci.results.records import Finding, Severity, SourceLine
from onnx_ci.results.rules import finding


@dataclass(frozen=True, kw_only=True)
class KnownWarning:
    """A warning whose meaning is known, and whether it alone means that the file is wrong."""

    pattern: re.Pattern[str]
    meaning: str
    severity: Severity
    needs_line: bool = False
    """Whether it says nothing that a user can act on unless it is about a line of the user's code."""


def _known(pattern: str, meaning: str, severity: Severity = Severity.NOTE) -> KnownWarning:
    return KnownWarning(pattern=re.compile(pattern, re.DOTALL), meaning=meaning, severity=severity)


def _frozen(pattern: str, what: str) -> KnownWarning:
    return replace(_known(pattern, f"{what} that may vary is frozen into the file"), needs_line=True)


_WITHOUT_LINE = "If the warning is about something that you accept, name a part of its text in allow_warnings of the recipe."

# The first match wins. An error fails the cell by itself, so only warnings that mean a wrong file are errors. Tracing warns
# about every Python branch and number, even if it never varies; the probes decide which of them do.
KNOWN_WARNINGS = (
    _known(r"Provided key .+ for dynamic axes is not a valid", "a dynamic axis has an unknown tensor name", Severity.ERROR),
    _known(r"Trace had nondeterministic nodes", "two traces differ", Severity.ERROR),
    _known(r"Output nr \d+.* of the traced function does not match", "two traces differ", Severity.ERROR),
    _known(
        r"[Ee]xporting (a|the) model (while it is )?in training(-amenable)? mode",
        "the model is exported in training mode",
        Severity.ERROR,
    ),
    _known(r"The axis name: (.+) will not be used.+ another axis: (?!\1\b)", "two axes with different names must be equal"),
    _frozen(r"Converting a tensor to a Python", "a value"),
    _frozen(r"Iterating over a tensor", "a count"),
    _frozen(r"Using len to get tensor shape", "a size"),
    _frozen(r"torch\.tensor results are registered as constants", "a value"),
    _known(r"Removing mutation from node .+ changes graph semantics", "an in-place change may be missing in the file"),
    _known(r"live references to the data region being modified", "in-place changes may be missing in views of the same data"),
    _known(r"Setting ONNX exporter to use operator set version", "the exporter builds another opset and converts it"),
    _known(r"[Ff]ailed to convert the model to the target version", "the exporter could not convert to the opset"),
    _known(r"did not match Pytorch's Interpolation", "the opset computes interpolation differently"),
    _known(r"aten::index|duplicated values in 'index'", "the exported operators may treat unusual indices differently"),
)


def judge_warnings(notices: Iterable[Notice], allowed: Sequence[str], *, training: bool) -> list[Finding]:
    """A finding for each known warning, with the line of code that caused it.

    Args:
        allowed: regular expressions; warnings that match one are ignored.
        training: whether warnings about training mode are ignored, as where the recipe requests that mode.
    """
    findings: dict[tuple[str, SourceLine | None], Finding] = {}
    for notice in notices:
        warning = next((known for known in KNOWN_WARNINGS if known.pattern.search(notice.message)), None)
        if warning is None:
            continue
        message = f"{warning.meaning}: {_first_sentence(notice.message)}"
        if any(re.search(pattern, text) for pattern in allowed for text in (notice.message, message)):
            continue
        if training and warning.meaning.endswith("training mode"):
            continue
        if warning.needs_line and (not notice.filename or is_of_toolchain(notice.filename)):
            continue  # torch's own layers check their arguments so
        source = innermost(notice.stack or ([(notice.filename, notice.line)] if notice.filename else []))
        remedy = None if source is not None else _WITHOUT_LINE
        judged = finding("export-warning", message, severity=warning.severity, source=source, remedy=remedy)
        findings.setdefault((warning.meaning, source), judged)
    return list(findings.values())


def _first_sentence(message: str) -> str:
    return re.split(r"(?<=[.!])\s", " ".join(message.split()), maxsplit=1)[0][:300]
