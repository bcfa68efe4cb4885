"""From a prepared recipe to an ONNX file, through ``torch.onnx.export`` and nothing else."""

from __future__ import annotations

import re
import shutil
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from onnx_ci.capture import ESCAPES, captured
from onnx_ci.devices import exact_arithmetic, ran_out_of_memory
from onnx_ci.errors import disk_error
from onnx_ci.notices import judge_notices
from onnx_ci.prepare import Prepared
from onnx_ci.purity import changes
from onnx_ci.records import Cell, Finding
from onnx_ci.rules import finding

# What the exporters say when an operator cannot be written, and when an opset is unknown: data, because each release of
# torch says it in its own class or words. First match wins.
_UNSUPPORTED_OPERATOR_CLASSES = ("UnsupportedOperatorError", "DispatchError")
_MESSAGES = tuple(
    (rule, re.compile(pattern, re.IGNORECASE))
    for rule, pattern in (
        ("unsupported-opset", r"Unsupported (?:onnx_opset_version|ONNX opset version)|opset_version .* (?:is|must be)"),
        ("unsupported-opset", r"Target opset version \d+ is not supported"),
        ("unsupported-operator", r"No ONNX function found for|operator .* is not supported|not supported in opset"),
        ("unsupported-operator", r"is currently not supported"),
        ("unsupported-operator", r"support for this operator was added in version|Unsupported: ONNX export of"),
    )
)
_OPERATORS = tuple(
    re.compile(pattern)
    for pattern in (
        r"OpOverload\(op='(.+?)', overload='(.+?)'\)",
        r"the operator '(.+?)'",
        r"ONNX export of (?:operator )?(.+?)(?: in opset \d+| is not supported)?\.",
    )
)
"""How the same messages name the operator."""
_ADVICE = re.compile(r"\[Caused by the value|This is step \d/\d of exporting the model to ONNX")
"""Where, within a first line, what is for the exporters' own developers begins."""


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """The ONNX file that one cell produced, with its external data beside it."""

    path: Path

    def read_bytes(self) -> bytes:
        """The file's bytes, without external data."""
        return self.path.read_bytes()


@dataclass(frozen=True, kw_only=True)
class Export:
    """What came of one call of ``torch.onnx.export``."""

    artifact: Artifact | None
    findings: tuple[Finding, ...]
    log: str


def export(prepared: Prepared, cell: Cell, path: Path) -> Export:
    """Export a fresh copy of the model to ``path`` at the cell's opset, with the cell's exporter.

    Nothing that the exporter raises, prints or warns of escapes, but a GPU without room: it is in the returned value.
    """
    remove(path)
    recipe = prepared.recipe
    call = prepared.fresh()
    args = call.args
    if args and isinstance(args[-1], dict) and not call.kwargs:
        args = (*args, {})  # torch.onnx.export takes a last dict for the keyword arguments; an empty one shields it
    options: dict[str, Any] = dict(recipe.export_options)
    if cell.exporter == "torchscript":
        mode = torch.onnx.TrainingMode.TRAINING if recipe.training else torch.onnx.TrainingMode.EVAL
        options |= {"dynamo": False, "training": mode, "dynamic_axes": prepared.axes or None}
    else:
        # dynamo's own conversion of dynamic_axes fails on nested arguments (torch 2.13), so it gets dynamic_shapes.
        options |= {"dynamo": True, "dynamic_shapes": prepared.dynamic_shapes, "verbose": False}
    failure: BaseException | None = None
    with captured() as caught, exact_arithmetic(tf32=recipe.tf32 and prepared.device != "cpu"):
        # That TorchScript is deprecated was decided with the cell; the warning is about our call, not the user's code.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"onnx_ci\.|torch\.onnx")
        try:
            torch.onnx.export(
                call.model,
                args,
                str(path),  # TorchScript takes no other path for a model above 2 GB
                kwargs=call.kwargs or None,
                opset_version=cell.opset,
                input_names=list(recipe.input_names) or None,
                output_names=list(recipe.output_names) or None,
                **options,
            )
        except (Exception, SystemExit) as error:  # the exporter raises anything; each is a finding
            if ran_out_of_memory(error):
                raise
            failure = error
            traceback.print_exc()  # into the log: the message of the finding is one line
    if failure is None and not path.is_file():
        findings: tuple[Finding, ...] = (finding("export-error", "torch.onnx.export returned and wrote no file"),)
    else:
        findings = () if failure is None else (_classify(failure, cell),)
    if findings:
        remove(path)
        return Export(artifact=None, findings=findings, log=caught.text)
    warned = judge_notices(caught.notices, recipe.allow_warnings, training=recipe.training)
    changed = [each for each in changes(call, prepared.pristine) if each not in prepared.changed_by_running]
    if changed and not recipe.training:
        said = f"the export changed {', '.join(changed[:3])}{' and more' if len(changed) > 3 else ''}"
        warned.append(finding("impure-model", said))
    return Export(artifact=Artifact(path=path), findings=tuple(warned), log=caught.text)


def remove(path: Path) -> None:
    """Remove an ONNX file and the external data that the exporters put beside it."""
    for file in _files(path):
        file.unlink(missing_ok=True)


def move(path: Path, folder: Path) -> Path:
    """Move an ONNX file, with all that lies beside it, into ``folder``, in place of those of an earlier run; where it is now.

    TorchScript writes each weight of a model above 2 GB to a file that has the weight's name. Files of several cells would
    meet there, so such a model gets a folder of its own.
    """
    beside = [file for file in path.parent.iterdir() if file not in _files(path)]
    if beside:
        folder = folder / path.stem
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    remove(folder / path.name)
    for file in (*_files(path), *beside):
        if file.is_file():
            shutil.move(file, folder / file.name)
    return folder / path.name


def _files(path: Path) -> tuple[Path, Path]:
    return path, path.with_name(path.name + ".data")


def _classify(error: BaseException, cell: Cell) -> Finding:
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    said = f"the {cell.exporter} exporter raised {_told(error)}"
    if chain[-1] is not error:
        said += f", because of {_told(chain[-1])}"
    if full := disk_error(error):
        return finding("disk-error", f"{full.filename or 'a file'}: {full.strerror}; {said}")
    for link in chain:
        if rule := refusal(link):
            return finding(rule, said, **_operator(str(link)))
    return finding("export-error", said)


def refusal(error: BaseException) -> str | None:
    """The rule that an exporter's error stands for: ``unsupported-operator``, ``unsupported-opset``, or ``None`` for others."""
    if type(error).__name__ in _UNSUPPORTED_OPERATOR_CLASSES:
        return "unsupported-operator"
    return next((rule for rule, pattern in _MESSAGES if pattern.search(str(error))), None)


def _operator(message: str) -> dict[str, Any]:
    """The operator that a message names, for a finding's details."""
    for pattern in _OPERATORS:
        if match := pattern.search(message):
            return {"operator": ".".join(match.groups())}
    return {}


def _told(error: BaseException) -> str:
    """The first line of what an exporter raised; the rest is advice for its own developers, and stands in the log."""
    first = _ADVICE.split(ESCAPES.sub("", str(error)).strip().partition("\n")[0])[0].strip() or "no message"
    return f"{type(error).__qualname__}: {first}"
