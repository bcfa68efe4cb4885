"""The text of an issue: a title, the script, what it prints, and the versions."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from onnx_ci.tools.bundle.program import Program
from onnx_ci.tools.bundle.script import ExportCall, body, export_arguments, setup
from onnx_ci.tools.bundle.trial import Failure, Outcome

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
    """The issue in Markdown, with what the script prints."""
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


# --- the scripts, which need torch, onnx, onnxruntime and numpy only, and exit 1 on the fault ----------------------------


def script(program: Program, how: ExportCall, *, title: str, tolerance: float) -> str:
    """The whole script, in which a difference from PyTorch up to the tolerance is right."""
    model_and_inputs = setup(program)
    functional = "import torch.nn.functional as F\n" if "F." in model_and_inputs else ""
    arguments = export_arguments(program, how)
    keywords = "".join(f", {name}={_quoted(value)}" for name, value in arguments.items())
    if len(program.outputs) == 1:
        outputs = "torch.as_tensor(session.run(None, feeds)[0])"
    else:
        outputs = "tuple(map(torch.as_tensor, session.run(None, feeds)))"
    return f'''"""{title}"""
import onnx
import onnxruntime
import torch
{functional}
{model_and_inputs}
expected = model(*inputs)
torch.onnx.export(model, {"example" if program.is_dynamic else "inputs"}, "model.onnx"{keywords})
onnx.checker.check_model("model.onnx", full_check=True)
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
feeds = dict(zip({_quoted(arguments["input_names"])}, (each.numpy() for each in inputs)))
torch.testing.assert_close({outputs}, expected, rtol=0, atol={tolerance:.1g}, equal_nan=True)
'''


def script_of_file(*, title: str, tolerance: float) -> str:
    """A script that runs ``model.onnx`` on the test data beside it, and fails where the outputs differ from those there."""
    return f'''"""{title}"""
from pathlib import Path

import numpy
import onnx
import onnxruntime


def tensors(kind):
    files = sorted(Path("test_data_set_0").glob(f"{{kind}}_*.pb"))
    return [onnx.numpy_helper.to_array(onnx.load_tensor(file)) for file in files]


onnx.checker.check_model("model.onnx", full_check=True)
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
feeds = dict(zip([each.name for each in session.get_inputs()], tensors("input")))
for output, expected in zip(session.run(None, feeds), tensors("output"), strict=True):
    numpy.testing.assert_allclose(output, expected, rtol=0, atol={tolerance:.1g}, equal_nan=True)
'''


def _quoted(value: object) -> str:
    """Names and sizes in Python, with the quotes that formatters prefer."""
    return repr(value).replace("'", '"')
