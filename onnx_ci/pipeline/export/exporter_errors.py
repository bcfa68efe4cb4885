"""The finding from an exporter's error: its rule, the line of the model that it is about, and a remedy that fits.

The table beside this file says what known errors mean.
"""

from __future__ import annotations

import linecache
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any

import torch

from onnx_ci.collection.recipe import Recipe
from onnx_ci.environment.versions import lacking
from onnx_ci.errors import disk_error, working_directory
from onnx_ci.onnx_model.files import NotAModelError
from onnx_ci.opsets import CUSTOM, OF_TORCH
from onnx_ci.pipeline.export import error_lines
from onnx_ci.pipeline.export.handling import handling_of
from onnx_ci.pipeline.model.call import Call, bound_arguments, wrapper_by_position, wrapper_without_constants
from onnx_ci.pipeline.model.containers import containers_in, name_of, named_leaves
from onnx_ci.pipeline.model.module import exportable
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.processes.capture import ESCAPES
from onnx_ci.results.records import Cell, Culprit, Finding, SourceLine
from onnx_ci.results.rules import REMEDIES, finding

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_ADVICE = re.compile(r"\[Caused by the value|This is step \d/\d of exporting the model to ONNX")
"""Where the part of the first line begins that is meant for the exporters' developers."""


def judge_error(error: BaseException, cell: Cell, model: RecipeModel) -> Finding:
    """What went wrong in an export."""
    chain = _chain(error)
    who = _describe_exporter(cell, model.recipe)
    if isinstance(error, NotAModelError):
        of_function = REMEDIES["return-file"] if model.recipe.run_files is None else REMEDIES["return-files"]
        return finding("export-error", f"{who} {error}", remedy=of_function if cell.exporter == CUSTOM else None)
    message = describe_error(error, who)
    if full := disk_error(error):
        return finding("disk-error", f"{full.filename or 'a file'}: {full.strerror}; {message}")
    of_import = any(isinstance(link, (ImportError, AttributeError)) for link in chain)
    if cell.exporter == "dynamo" and of_import and (lacks := lacking("onnxscript")):
        return finding("export-error", f"{message}; {lacks[0]}", remedy=f"Install what the exporter needs: {lacks[1]}.")
    source, said = error_lines.line_of_error(chain), "\n".join(map(_in_full, chain))
    names = (re.search(pattern, said) for pattern in _TABLE["operator-names"])
    operator = next((".".join(name.groups()) for name in names if name), None)
    if cell.exporter == "dynamo" and operator is not None:
        source = error_lines.line_of_call(model.fresh(), operator, is_only=True) or source
    if rule := next(filter(None, map(rule_of_error, chain)), None):
        remedy = _remedy_of_operator(rule, operator, cell, message)
        return finding(rule, message, operator=operator, remedy=remedy, source=source)
    if about_size := _fixed_size(message, model):
        return about_size
    following = linecache.getline(str(working_directory() / source.file), source.line + 1) if source else ""
    line = f"{source.text}\n{following}" if source else ""  # whether a condition only refuses something, the second line says
    entry = entry_for("raises", said, line)
    if source is None and "calls" in entry:
        source = error_lines.line_of_call(model.fresh(), *entry["calls"])
    known = _suggested_by_torch(chain) or entry.get("remedy")
    if remedy := known or _remedy_of_call(model.pristine, cell, has_line=source is not None):
        return finding("export-error", message, remedy=remedy, source=source)
    remedy = entry_for("unexplained", said, line).get("remedy")
    return _unsupported_class(model, cell, chain[-1]) or finding("export-error", message, remedy=remedy, source=source)


def _remedy_of_call(call: Call, cell: Cell, *, has_line: bool) -> str | None:
    """How to call the model, if the exporter does not take all kinds of arguments that the call has.

    An error at a line of the model has another cause, except that TorchScript never passes an argument by name.
    """
    is_torchscript = cell.exporter == "torchscript"
    if (is_torchscript or not has_line) and (wrapper := wrapper_by_position(call)):
        return REMEDIES["arguments-by-name"].format(wrapper)
    if not has_line and (wrapper := wrapper_without_constants(call)):
        return f"The exporter does not take all arguments that are not tensors. Fix their values: {wrapper}."
    return None


def _describe_exporter(cell: Cell, recipe: Recipe) -> str:
    """The exporter of a cell, as messages name it."""
    function = recipe.export
    if cell.exporter != CUSTOM or function is None:
        return f"the {cell.exporter} exporter"
    return f"the export function {getattr(function, '__name__', type(function).__name__)}"


def describe_error(error: BaseException, who: str) -> str:
    """What an exporter raised, and what caused it: the first paragraph of each."""
    message = f"{who} raised {_first_paragraph(error)}"
    cause = _chain(error)[-1]
    return message if cause is error else f"{message.rstrip('.')}, caused by {_first_paragraph(cause)}"


def _chain(error: BaseException) -> list[BaseException]:
    """An error and its causes, the first cause last."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or (link.__context__ if error_lines.was_unhandled(link.__context__) else None)
    return chain


def _remedy_of_operator(rule: str, operator: str | None, cell: Cell, message: str) -> str | None:
    """How to give the exporter what it lacks, if that is known."""
    if added := re.search(r"was added in version (\d+)", message):
        return f"Raise the opset: the exporter translates it from opset {added[1]} on."
    if rule != "unsupported-operator" or operator is None:
        return None
    own = entry_for("unsupported", operator).get("remedy")
    if own is None and cell.exporter in OF_TORCH and re.fullmatch(r"\w+(::|\.)\w+(\.\w+)?", operator):
        return REMEDIES[f"untranslated-{cell.exporter}"].format(operator, cell.opset)
    return own


def remedy_of_wrong_operator(culprits: Iterable[Culprit]) -> str | None:
    """What to write in place of an operator whose translation computes something else, if that is known."""
    places = ((each, "\n".join([getattr(each.source, "text", ""), *each.nodes])) for each in culprits)
    found = (entry_for("wrong", name, place) for each, place in places for name in each.operators)
    return next((entry["remedy"] for entry in found if entry), None)


def entry_for(found_by: str, what: str, line: str | None = None) -> Mapping[str, Any]:
    """The first remedy of the table that is found by this of an error, an operator or a line; empty if there is none."""
    found = (each for each in _TABLE["remedy"] if found_by in each and re.search(each[found_by], what))
    return next((each for each in found if line is None or re.search(each.get("line", ""), line)), {})


_FIXED = re.compile(
    r"(?:static shape|(?P<hint>hint)) of (?P<size>\d+) for dimension inputs"
    r"(?P<dimension>(?P<argument>\[\S+\])\.shape\[(?P<axis>\d+)\])"
)
"""What torch.export says of a size; of a hint, where it takes an axis for constant because its size in the example is 1."""

_MARKED = re.compile(
    r"You marked L(\[\S+\])\.size\(\)\[(\d+)\] as dynamic but your code specialized it to be a constant \((\d+)\)"
    r"(?:\. If you're using mark_dynamic.*?Dim\.AUTO)?"
)
"""The same in other words, with advice about functions that the recipe does not use."""
_POSITION = re.compile(r"(?<=dimension inputs)\[(\d+)\]")
"""An argument by its position, as torch 2.15 calls it; before, it gives the parameter's name."""


def _fixed_size(message: str, model: RecipeModel) -> Finding | None:
    """A finding about the axes that ``torch.export`` fixes, if the message names any, as ``inputs['x'].shape[0]``."""
    arguments = bound_arguments(model.pristine)
    names: dict[int, str | int] = dict(enumerate(arguments))
    message = _MARKED.sub(r"a static shape of \3 for dimension inputs\1.shape[\2]", message)
    message = _POSITION.sub(lambda match: f"[{names.get(int(match[1]), int(match[1]))!r}]", message)
    named = named_leaves(arguments)
    keys = ("".join(f"[{key!r}]" for key in path) for path, leaf in named if isinstance(leaf, torch.Tensor))
    inputs = dict(zip(keys, model.signature.input_names, strict=False))

    def label_of(fixed: re.Match[str]) -> str | None:
        return model.signature.axes.get(inputs.get(fixed["argument"]) or "", {}).get(int(fixed["axis"]))

    def axis_in(fixed: re.Match[str]) -> str:
        name, label = inputs.get(fixed["argument"]), label_of(fixed)
        return f"{f'the axis {label!r}' if label else 'axis ' + fixed['axis']} of {name or fixed['argument']!r}"

    first = _FIXED.search(message)
    if first is None:
        return None
    message = _FIXED.sub(lambda match: f"{match['hint'] or 'static size'} of {match['size']} for {axis_in(match)}", message)
    if first["hint"]:
        remedy = f"torch.export takes a size of 0 or 1 for a constant: let {axis_in(first)} be 2 or more in the example."
        return finding("export-error", message, remedy=remedy)
    source = error_lines.line_that_fixes(model.fresh(), model.signature.dynamic_shapes, first["dimension"])
    remedy = entry_for("fixes", source.text if source else "")["remedy"].format(axis_in(first), first["size"])
    return finding("export-error", message, remedy=remedy, source=source, details={"dynamic_axis": label_of(first)})


_SUGGESTED = re.compile(r"Suggested fixes:\s*\n((?:\s*\w+ = .+\n?)+)")
_RELATION = re.compile(r"(\w+) = \s*(.*\S)")


def _suggested_by_torch(chain: Sequence[BaseException]) -> str | None:
    """What torch.export suggests for sizes that it cannot keep dynamic, such as ``height = 8*_height``, as a remedy."""
    suggestion = next(filter(None, (_SUGGESTED.search(ESCAPES.sub("", str(link))) for link in chain)), None)
    if suggestion is None:
        return None
    return f"torch.export suggests: {'; '.join(starmap(_declaration, _RELATION.findall(suggestion[1])))}."


def _declaration(name: str, size: str) -> str:
    """How to declare what torch.export suggests for an axis."""
    if size.isdecimal():
        return f"do not declare {name!r} dynamic, because it is always {size}"
    if size.startswith("Dim("):
        return f"declare the sizes of {name!r} in dynamic_shapes, torch.export.{size}"
    return f"name the axis {name!r} by its size, {size!r}"


def _unsupported_class(model: RecipeModel, cell: Cell, error: BaseException) -> Finding | None:
    """An ``export-error`` about a class that the exporter does not support: of the model, an argument or an output."""
    exporter = handling_of(cell.exporter)
    module = exportable(model.pristine.model)
    if not exporter.takes_model(module):
        remedy = "Let the recipe declare exporter='dynamo' and opsets from 18, or return a torch.nn.Module"
        of_program = ", such as program.module()" if isinstance(module, torch.export.ExportedProgram) else ""
        return _not_supported(f"{type(module).__name__}, the class of the model", cell, error, f"{remedy}{of_program}.")
    for argument in containers_in(bound_arguments(model.pristine)):
        if not exporter.takes_argument(argument):
            kind, name = argument.kind.__name__, name_of(argument.path)
            what, remedy = f"{kind}, the class of the argument {name}", REMEDIES["takes-tensors"].format(name, kind)
            return _not_supported(what, cell, error, remedy)
    for output in model.signature.outputs:
        if not exporter.takes_output(output):
            where = f"the output {name_of(output.path)}" if output.path else "what the model returns"
            what = f"{output.kind.__name__}, the class of {where}"
            source = error_lines.line_of_return(model.pristine.model)
            return _not_supported(what, cell, error, REMEDIES["tensors-in-containers"], source)
    return None


def _not_supported(what: str, cell: Cell, error: BaseException, remedy: str, source: SourceLine | None = None) -> Finding:
    message = f"the {cell.exporter} exporter does not support {what}: {_first_paragraph(error)}"
    return finding("export-error", message, remedy=remedy, source=source)


def rule_of_error(error: BaseException) -> str | None:
    """The rule of an exporter's error: ``unsupported-operator``, ``unsupported-opset``, or ``None`` for other errors."""
    return next(
        (rule for rule, any_of in _TABLE["rules"].items() if re.search("(?i)" + "|".join(any_of), _in_full(error))), None
    )


def _in_full(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _first_paragraph(error: BaseException) -> str:
    """The class and the first paragraph of an exporter's error, with the second one if a colon announces it.

    The log has the rest, which is for the exporter's developers. Addresses of objects are left out: they differ in each run.
    """
    paragraph = re.split(r"(?<!:)\n\s*\n", ESCAPES.sub("", str(error)).strip(), maxsplit=1)[0]
    text = _ADVICE.split(_ADDRESS.sub("", paragraph))[0]
    return f"{type(error).__qualname__}: {' '.join(text.split())[:1000] or 'no message'}"


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
