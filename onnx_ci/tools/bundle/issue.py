"""The text of an issue: a title, the script, what it prints, and the versions."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from onnx_ci.pipeline.reduce.program import Program
from onnx_ci.pipeline.reduce.script import ExportCall, body
from onnx_ci.pipeline.reduce.trial import Failure, Outcome

_MOST_SHOWN = 4
"""How many lines of Python a title has room for."""


class Tracker(enum.StrEnum):
    """Where a fault is reported."""

    EXPORTER = "https://github.com/pytorch/pytorch/issues"
    RUNTIME = "https://github.com/microsoft/onnxruntime/issues"


@dataclass(frozen=True, kw_only=True)
class Report:
    """What an issue says."""

    title: str
    tracker: Tracker
    reason: str
    """Why this project is at fault; empty if the script itself shows it."""
    expression: str
    """What fails, in Python."""


def main_expression(program: Program) -> str:
    """What a program computes, in one line of Python."""
    lines = [each.removeprefix("return ") for each in body(program)]
    return "; ".join(lines if len(lines) <= _MOST_SHOWN else [*lines[: _MOST_SHOWN - 1], "…"])


def title(program: Program, how: ExportCall, outcome: Outcome, tracker: Tracker) -> str:
    """What is wrong, in one line."""
    what = main_expression(program)
    exporter = f"torch.onnx.export(dynamo={how.exporter == 'dynamo'}, opset_version={how.opset})"
    if tracker is Tracker.RUNTIME:
        verb = {Failure.LOAD: "cannot load", Failure.RUN: "cannot run"}.get(outcome.failure, "computes wrong values for")
        return f"ONNX Runtime {verb} `{what}`, exported by {exporter}"
    verbs = {
        Failure.EXPORT: "cannot export",
        Failure.CHECK: "writes an invalid file for",
        Failure.LOAD: "writes a file that ONNX Runtime cannot load for",
        Failure.RUN: "writes a file that fails when it is run for",
        Failure.VALUES: "writes a file that does not compute",
    }
    return f"{exporter} {verbs[outcome.failure]} `{what}`"


def issue_text(report: Report, *, script: str, has_file: bool, printed: str, versions: Mapping[str, str]) -> str:
    """The issue in Markdown.

    Args:
        report: what it says.
        script: the script that fails.
        has_file: whether the folder has a file in ONNX.
        printed: what the script prints.
        versions: the versions of the packages involved.
    """
    listed = "\n".join(f"- {name} {version}" for name, version in versions.items() if name != "onnx-ci")
    file = "`model.onnx` is the exported file; " if has_file else ""
    data = f"{file}`test_data_set_0` holds the inputs and PyTorch's outputs.\n"
    return f"""# {report.title}

This script fails:

```python
{script.strip()}
```

It prints:

```text
{printed}
```

{report.reason}{" " if report.reason else ""}{data}
Versions:

{listed}
"""
