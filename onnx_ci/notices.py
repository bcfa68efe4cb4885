"""What the exporter warned of, judged by a table: which words mean a wrong file, and which only a hint."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.capture import Notice
from onnx_ci.records import Finding, Severity
from onnx_ci.rules import finding


@dataclass(frozen=True, kw_only=True)
class Known:
    """A warning that is known: what it looks like, what it means, and whether it alone proves the file wrong."""

    pattern: re.Pattern[str]
    meaning: str
    severity: Severity


def _known(pattern: str, meaning: str, severity: Severity = Severity.NOTE) -> Known:
    return Known(pattern=re.compile(pattern, re.DOTALL), meaning=meaning, severity=severity)


# First match wins. An error here fails the cell by itself, so only what cannot be right is one: tracing warns of every
# Python branch and number, also of those that never vary, and the probes decide which of them do.
KNOWN = (
    _known(r"Provided key .+ for dynamic axes is not a valid", "a dynamic axis is declared for no tensor", Severity.ERROR),
    _known(r"Trace had nondeterministic nodes", "two traces differ", Severity.ERROR),
    _known(r"Output nr \d+.* of the traced function does not match", "two traces differ", Severity.ERROR),
    _known(r"training mode", "the model is exported in training mode", Severity.ERROR),
    _known(r"The axis name: (.+) will not be used.+ another axis: (?!\1\b)", "two axes that are declared apart are one"),
    _known(r"Converting a tensor to a Python", "a value that may vary is frozen into the file"),
    _known(r"Iterating over a tensor", "a count that may vary is frozen into the file"),
    _known(r"Using len to get tensor shape", "a size that may vary is frozen into the file"),
    _known(r"torch\.tensor results are registered as constants", "a value that may vary is frozen into the file"),
    _known(r"live references to the data region being modified", "an in-place change may be lost in views of the same data"),
    _known(r"Setting ONNX exporter to use operator set version", "the exporter builds at another opset and converts"),
    _known(r"[Ff]ailed to convert the model to the target version", "the exporter could not convert to the opset"),
    _known(r"Upsample|Resize|[Ii]nterpol", "the opset computes interpolation differently"),
    _known(r"batch_size other than 1, with a variable length", "the recurrent layer's initial state fixes the batch size"),
    _known(r"[Cc]onstant folding", "a constant was not folded"),
    _known(r"index", "indexing is written with several operators that differ on unusual indices"),
)


def judge_notices(notices: Iterable[Notice], allowed: Sequence[str], *, training: bool) -> list[Finding]:
    """A finding for every warning of the exporter that the table knows, at the line of code that it speaks of.

    Args:
        allowed: regular expressions; a warning that one of them matches is dropped.
        training: the recipe asks for training mode, so that a warning of it says nothing.
    """
    findings: dict[tuple[str, str], Finding] = {}
    for notice in notices:
        known = next((known for known in KNOWN if known.pattern.search(notice.message)), None)
        if known is None or any(re.search(pattern, notice.message) for pattern in allowed):
            continue
        if training and known.meaning.endswith("training mode"):
            continue
        place = _place(notice)
        said = f"{known.meaning}{place}: {_first_sentence(notice.message)}"
        findings.setdefault((known.meaning, place), finding("export-warning", said, severity=known.severity))
    return list(findings.values())


def _place(notice: Notice) -> str:
    """Where the user's own code caused the warning; nothing for code of installed packages."""
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")} | {Path(__file__).parent}
    path = Path(notice.filename)
    if not notice.filename or any(path.is_relative_to(folder) for folder in installed):
        return ""
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f" at {shown}, line {notice.line}"


def _first_sentence(message: str) -> str:
    return re.split(r"(?<=[.!])\s", " ".join(message.split()), maxsplit=1)[0][:300]
