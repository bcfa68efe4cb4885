"""Show that the failures in a report are real, without onnx-ci's judgement: with torch.onnx.export and ONNX Runtime alone.

    python evidence.py report.json --write=evidence.json

Of a recipe, only what it declares is used: the model, its example, the names and the dynamic axes. The file is exported by
torch.onnx.export, and run by ONNX Runtime on legal inputs: the example, others of its kind, other sizes of the dynamic axes,
and floats that are all equal, as an image of one color is. A failure is real if the export raises, if ONNX Runtime rejects the
file or an input that the model accepts, or if an output differs from the model's in float64 by more than a thousandth of its
largest value, and by more than 100 times as much as the model's own float32 does.

It prints one line for each failed cell, and ends with exit code 1 if one of them cannot be confirmed: then onnx-ci is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import inspect
import io
import itertools
import json
import re
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent
PACKAGES = (
    "onnx-ci",
    "torch",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "torchvision",
    "torchaudio",
    "timm",
    "transformers",
    "diffusers",
    "segmentation-models-pytorch",
    "conformer",
    "deepctr-torch",
    "e3nn",
    "encodec",
    "entmax",
    "kornia",
    "monai",
    "ncps",
    "open-clip-torch",
    "perceiver-pytorch",
    "pytorch-crf",
    "pytorch-tabnet",
    "pytorch-tcn",
    "rtdl-num-embeddings",
    "segment-anything",
    "snntorch",
    "speechbrain",
    "stable-baselines3",
    "torch-geometric",
    "torchdiffeq",
    "ultralytics",
    "vit-pytorch",
    "zuko",
)
"""The packages whose versions docs/data/corpus.json names."""
FAR = 100
"""How many times larger than the rounding of float32 a difference must be."""
LARGE = 1e-3
"""How large a difference must be, as a share of the largest value of the output."""
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""Signals that a process ends itself with."""
SECONDS = 600
"""The time limit of one cell."""
Inputs = tuple[Any, ...]


# --- one cell, in a process of its own --------------------------------------------------------------------------------


def evidence_of(source: str, name: str, exporter: str, opset: int) -> str | None:
    """Why the export of a recipe is wrong, in words that are the same on every machine; ``None`` if nothing shows it."""
    import torch

    torch.set_num_threads(1)
    recipe = load(source, name)
    torch.manual_seed(recipe.seed)
    model, args = recipe()[:2]
    model.eval()
    for weights, candidate in (("", model), (", with weights like trained ones", like_trained(model))):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            try:
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    export(recipe, copy.deepcopy(candidate), args, path, exporter == "dynamo", opset)
            except Exception as error:
                return f"`torch.onnx.export` raises {root_of(error)}"
            if found := wrong_on_legal_inputs(recipe, candidate, args, path):
                return found + weights
    return None


def load(source: str, name: str) -> Any:
    """The recipe ``name`` of a file, as a declaration."""
    from onnx_ci.collection.discovery import Catalogue
    from onnx_ci.config.settings import load_settings

    found, problems = Catalogue(load_settings(CORPUS)).add_file(CORPUS / source)
    if problems:
        raise SystemExit(problems[0].message)
    return next(each.recipe for each in found if each.recipe.name == name)


def export(recipe: Any, model: Any, args: Inputs, path: Path, dynamo: bool, opset: int) -> None:
    """What a user calls who does not know onnx-ci."""
    import torch

    axes = {name: dict(axes) for name, axes in recipe.dynamic_axes.items()}
    if dynamo:  # its own conversion of dynamic_axes fails for forward(*args)
        shapes = tuple(axes.get(name, {}) for name in recipe.input_names)
        takes_any = any(each.kind is each.VAR_POSITIONAL for each in inspect.signature(model.forward).parameters.values())
        dynamic = {"dynamic_shapes": (shapes,) if takes_any else shapes}
    else:
        dynamic = {"dynamic_axes": axes}
    torch.onnx.export(
        model,
        args,
        path,
        dynamo=dynamo,
        opset_version=opset,
        input_names=list(recipe.input_names),
        output_names=list(recipe.output_names) or None,
        **dynamic,
    )


def root_of(error: BaseException) -> str:
    """The class of the exception that an exporter reports, and the first line of what it says."""
    while error.__cause__ is not None:
        error = error.__cause__
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"`{type(error).__name__}`: {shortened(line)}"


def shortened(text: str) -> str:
    """The beginning of a message, without what differs from run to run: numbers of symbols, addresses, temporary files."""
    text = re.sub(r"\b([su])\d+\b", r"\1", text.partition("  [Caused by")[0])
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    return f"{text[:140]}…" if len(text) > 140 else text


def like_trained(model: Any) -> Any:
    """A copy of ``model`` in which layers matter: in a new model, norms and biases are neutral, and matrices often small."""
    import torch

    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)

    def random(value: Any) -> Any:
        return torch.randn(value.shape, generator=generator)

    with torch.no_grad():
        for value in other.parameters():
            if value.is_floating_point() and value.dim() < 2:
                value += 0.2 * random(value)
            elif value.is_floating_point() and not value.any():
                value += 0.1 * random(value)
            elif value.is_floating_point() and value.numel() > 1 and value.std() > 0:
                value *= max(1.0, value[0].numel() ** -0.5 / value.std().item())
        for name, value in other.named_buffers():
            if name.endswith("running_mean"):
                value += 0.2 * random(value)
            elif name.endswith("running_var"):
                value *= 1 + 0.5 * random(value).abs()
    return other


# --- legal inputs -----------------------------------------------------------------------------------------------------


def legal_inputs(recipe: Any, args: Inputs) -> Iterator[tuple[str, Inputs]]:
    """Inputs that a user of the model gives it, each with a name."""
    import torch

    generator = torch.Generator().manual_seed(0)
    example = sizes_of(recipe, args)
    yield "its example", args
    for _ in range(3):
        yield "an input like its example", drawn(recipe, args, example, generator)
    for sizes in other_sizes(recipe, example):
        named = ", ".join(f"{axis} {size}" for axis, size in sizes.items() if size != example[axis])
        yield named, drawn(recipe, args, sizes, generator)
    yield "an input of one value", tuple(torch.full_like(v, v.mean()) if v.is_floating_point() else v for v in args)


def sizes_of(recipe: Any, args: Inputs) -> dict[str, int]:
    """The sizes of the dynamic axes in ``args``."""
    axes = zip(recipe.input_names, args, strict=False)
    return {axis: value.shape[at] for name, value in axes for at, axis in recipe.dynamic_axes.get(name, {}).items()}


def other_sizes(recipe: Any, example: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Larger sizes of each axis and of all, those that the recipe names where it does, and a batch of one."""
    larger = {}
    for axis, size in example.items():
        usual, declared = (size + 1, 2 * size, 2 * size + 3), recipe.dynamic_sizes.get(axis)
        if number := getattr(declared, "number", None):  # multiples of it
            declared = range(number, 4 * size + number, number)
            usual = (size + number, 2 * size, 2 * size + number)
        larger[axis] = [each for each in usual if each in declared] if isinstance(declared, range) else declared or usual
        larger[axis] = sorted(larger[axis]) or [size]
    larger.pop("total", None)
    changes = [{axis: size} for axis, sizes in larger.items() for size in sizes]
    changes += [{axis: sizes[at % len(sizes)] for axis, sizes in larger.items()} for at in range(3)]
    changes += [{axis: 1} for axis in ("batch", "images", "texts", "new") if axis in example]
    for change in changes:
        sizes = {**example, **change}
        if {"past", "new", "total"} <= sizes.keys():
            sizes["total"] = sizes["past"] + sizes["new"]
        if sizes != example:
            yield sizes


def drawn(recipe: Any, args: Inputs, sizes: Mapping[str, int], generator: Any) -> Inputs:
    """Values like the example's: floats of its mean and spread, integers from its range, masks that hide some padding.

    If the recipe has a function for an input, these are its values.
    """
    import torch

    made, example = [], sizes_of(recipe, args)
    for name, value in itertools.zip_longest(recipe.input_names[: len(args)], args, fillvalue=""):
        axes = recipe.dynamic_axes.get(name, {})
        shape = tuple(sizes[axes[axis]] if axis in axes else size for axis, size in enumerate(value.shape))
        if draw := getattr(recipe.domains.get(name), "draw", None):
            made.append(draw(sizes, generator))
        elif value.is_floating_point():
            spread = value.std() if value.numel() > 1 else 1.0
            made.append(torch.randn(shape, generator=generator, dtype=value.dtype) * spread + value.mean())
        elif value.dim() == 2 and set(value.unique().tolist()) <= {0, 1}:
            mask = torch.ones(shape, dtype=value.dtype)
            hidden = min(3, shape[1] // 3)  # fewer than a window of attention sees
            mask[1::2, slice(0, hidden) if not value[:, 0].all() else slice(shape[1] - hidden, None)] = 0
            made.append(mask)
        elif following := [axis for axis, size in example.items() if "lengths" in name and value.max() == size]:
            made.append(torch.full(shape, sizes[following[0]], dtype=value.dtype))  # of the longest row, as of the others
        else:
            low, high = int(value.min()), int(value.max())
            made.append(torch.randint(low, high + 1, shape, generator=generator, dtype=value.dtype))
    return tuple(made)


# --- the file on these inputs -----------------------------------------------------------------------------------------


def wrong_on_legal_inputs(recipe: Any, model: Any, args: Inputs, path: Path) -> str | None:
    """The first legal input on which ONNX Runtime and the model disagree, and by how much."""
    import onnxruntime
    import torch

    onnxruntime.set_default_logger_severity(4)
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:
        return f"ONNX Runtime cannot load the file: {first_line(error)}"
    names = [each.name for each in session.get_inputs()]
    if len(names) > len(args):
        return f"the file has {len(names)} inputs, the model {len(args)}"
    for where, inputs in legal_inputs(recipe, args):
        with torch.no_grad():
            try:
                expected = leaves(copy.deepcopy(model)(*copy.deepcopy(inputs)))
            except Exception:
                continue  # the model does not accept this size
            try:
                double = leaves(copy.deepcopy(model).double()(*(v.double() if v.is_floating_point() else v for v in inputs)))
            except Exception:
                double = expected  # it does not run in float64
        given = {name: value.numpy() for name, value in zip(recipe.input_names, inputs, strict=True) if name in names}
        if len(given) < len(names):
            given = {name: value.numpy() for name, value in zip(names, inputs, strict=False)}
        try:
            made = session.run(None, given)
        except Exception as error:
            return f"ONNX Runtime raises on {where}: {first_line(error)}"
        if difference := worst_difference(expected, double, made) or wrong_declaration(session, inputs, made):
            return f"on {where}, {difference}"
    return None


def wrong_declaration(session: Any, inputs: Inputs, made: list[Any]) -> str | None:
    """What the file declares of an axis of an output, if the output has another size."""
    sizes: dict[str, int] = {}
    for each, value in zip(session.get_inputs(), inputs, strict=False):
        sizes |= {dim: size for dim, size in zip(each.shape, value.shape, strict=False) if isinstance(dim, str)}
    for each, value in zip(session.get_outputs(), made, strict=True):
        for axis, (dim, size) in enumerate(zip(each.shape, value.shape, strict=False)):
            declared = size_of(dim, sizes) if isinstance(dim, str) else dim
            if declared not in (None, size):
                return f"the file declares axis {axis} of an output as {shortened(repr(dim))}, and it has another size"
    return None


def size_of(dim: str, sizes: Mapping[str, int]) -> int | None:
    """The size that a name or an expression of a file stands for; ``None`` if it is not one of the inputs' sizes."""
    import sympy

    try:
        return int(sympy.sympify(dim, locals={name: sympy.Integer(size) for name, size in sizes.items()}))
    except (sympy.SympifyError, SyntaxError, TypeError, AttributeError):
        return None


def leaves(value: Any) -> list[Any]:
    """The tensors in what a model returns."""
    import torch
    from torch.utils import _pytree

    return [each for each in _pytree.tree_leaves(value) if isinstance(each, torch.Tensor)]


def worst_difference(expected: list[Any], double: list[Any], made: list[Any]) -> str | None:
    """How an output differs, if by far more than rounding: its shape, or the power of ten of its error."""
    import torch

    for model, reference, file in zip(expected, double, made, strict=False):
        other = torch.as_tensor(file)
        if model.shape != other.shape:
            return f"an output has the shape {tuple(other.shape)} and not {tuple(model.shape)}"
        if not model.is_floating_point():
            if not torch.equal(model, other) and torch.equal(model, reference):
                return "an output of integers differs"
            continue
        if not torch.isfinite(reference).all():
            continue
        if not torch.isfinite(other).all():
            return "an output is not finite, as the model's is"
        largest = reference.abs().max().item()
        rounding = max((model.double() - reference).abs().max().item(), largest * 2**-23)
        error = (other.double() - reference).abs().max().item()
        if error > max(FAR * rounding, LARGE * largest):
            off, explained = share(error / largest), share(rounding / largest)
            return f"an output is off by {off} of its largest value, of which rounding explains {explained}"
    return None


def share(part: float) -> str:
    """A share, by its order of magnitude."""
    bounds = ((1, "more than all"), (0.1, "more than a tenth"), (0.01, "more than 1 %"), (LARGE, "more than 0.1 %"))
    rest = next((f"less than 1e-{power}" for power in range(7, 3, -1) if part < 10**-power), "less than 1e-3")
    return next((words for bound, words in bounds if part > bound), rest)


def first_line(error: BaseException) -> str:
    """What an exception of ONNX Runtime says, without the place in its source."""
    text = str(error).replace("\n", " ")
    for mark in ("Status Message: ", " failed:", "[ONNXRuntimeError] : "):
        text = text.rpartition(mark)[2] if mark in text else text
    if text.startswith("/onnxruntime_src"):
        text = text.partition(") ")[2] or text
    return shortened(text)


# --- all failed cells of a report -------------------------------------------------------------------------------------


def main() -> None:
    """Look for evidence of each failure in a report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("report", type=Path, nargs="?", help="written by onnx-ci run --report")
    parser.add_argument("--write", type=Path, help="a JSON file: for table.py, or the evidence of one cell")
    parser.add_argument("--cell", nargs=4, metavar=("FILE", "RECIPE", "EXPORTER", "OPSET"), help="one cell, in this process")
    options = parser.parse_args()
    if options.cell:
        warnings.simplefilter("ignore")
        source, name, exporter, opset = options.cell
        evidence = evidence_of(source, name, exporter, int(opset))
        print(evidence)
        if options.write:
            options.write.write_text(json.dumps(evidence), encoding="utf-8")
        return
    if options.report is None:
        parser.error("give the report of a run, or --cell")
    found: dict[str, str | None] = {}
    for cell in json.loads(options.report.read_text(encoding="utf-8"))["cells"]:
        if cell["status"] in ("failed", "xfailed"):
            found[cell["id"]] = in_a_process(cell)
            print(f"{cell['id']}: {found[cell['id']] or 'NOT CONFIRMED'}", flush=True)
    if options.write:
        versions = {name: metadata.version(name).partition("+")[0] for name in PACKAGES}
        made = json.dumps({"versions": versions, "evidence": found}, indent=2)
        options.write.write_text(f"{made}\n", encoding="utf-8")
    unconfirmed = [id for id, evidence in found.items() if evidence is None]
    print(f"{len(found)} failures, {len(found) - len(unconfirmed)} confirmed")
    sys.exit(1 if unconfirmed else 0)


def in_a_process(cell: Mapping[str, Any]) -> str | None:
    """:func:`evidence_of` a cell, even if its export or its file ends the process."""
    where = [cell["source"], cell["recipe"], cell["exporter"], str(cell["opset"])]
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "evidence.json")  # what exporters print can come last
        command = [sys.executable, __file__, "--cell", *where, "--write", str(found)]
        try:
            done = subprocess.run(command, cwd=CORPUS, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return f"`torch.onnx.export` does not end within {SECONDS} s"
        if -done.returncode in CRASHES:
            return f"the process ends with {signal.Signals(-done.returncode).name}"
        if done.returncode:
            raise SystemExit(f"{' '.join(where)}: {done.stderr}")
        evidence: str | None = json.loads(found.read_text(encoding="utf-8"))
        return evidence


if __name__ == "__main__":
    main()
