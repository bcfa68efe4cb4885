"""How many failing cells ``onnx-ci fix`` repairs, of the faults of ``tests/faults``, and whether each repair is one.

*Failing* is how many of the wrong models fail. *Code* is how many of these pass with a changed line, *setting* how many, of
the others, with another setting of the export, and *repaired* how many with either. *Confirmed* is how many repairs hold
without onnx-ci: the changed model is exported by ``torch.onnx.export`` in a fresh process, and ONNX Runtime computes with the
file what the unchanged model computes, on other values and other sizes of the dynamic axes; *refuted* is how many do not,
and with one of these, the exit code is 1.
Usage: ``python benchmarks/fixes.py [--faults Grid,FrozenWindows] [--every 2] [--set lines|small]``.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))  # after PYTHONPATH, which names a changed copy

import torch
from faults.lines.test_lines import FAULTS as LINE_FAULTS
from faults.test_faults import FAULTS as SMALL_FAULTS

import onnx_ci
from onnx_ci.opsets import default_exporter

COLUMNS = ("failing", "setting", "code", "repaired", "confirmed", "refuted")
SETS = {
    "lines": [(fault.name, fault.wrong, exporter, opset) for fault in LINE_FAULTS for exporter, opset in fault.cells],
    "small": [
        (fault.name, fault.wrong, (fault.wrong.exporters or (default_exporter(fault.opset),))[0], fault.opset)
        for fault in SMALL_FAULTS
    ],
}
"""The name of each fault, its recipe, and a cell."""


@dataclass(frozen=True, kw_only=True)
class Repair:
    """A change with which a cell passes."""

    name: str
    words: str
    exporter: str
    opset: int
    options: Mapping[str, Any]
    texts: Mapping[str, str]


def repairs(name: str, recipe: onnx_ci.Recipe, exporter: str, opset: int) -> list[Repair] | None:
    """What passes, as ``onnx-ci fix`` shows it; ``None`` if the cell does not fail."""
    from onnx_ci.collection.discovery import Found
    from onnx_ci.config.settings import load_settings
    from onnx_ci.config.values import OFF
    from onnx_ci.engine.recipes import Recipes
    from onnx_ci.tools.fix.search import Search

    (failed,) = onnx_ci.run([recipe], exporters=exporter, opsets=str(opset), cache="off").cells
    if failed.status != "failed":
        return None
    settings = load_settings(
        ROOT, flags={"cache": OFF, "exporters": exporter, "opsets": str(opset), "isolation": "fork"}, environment={}
    )
    with Recipes(settings) as recipes:
        recipes.add_object(Found(recipe, "tests/faults"))
        (spec,) = recipes.plan().cells
        search = Search(spec, recipes, settings)
        passing = [each for each in search.of_the_same_export(failed) if each.passes][-1:]
        passing = passing or [each for each in search.of_another_export() if each.passes][:1]
    return [
        Repair(
            name=name,
            words=each.remedy.words,
            exporter=each.result.cell.exporter,
            opset=each.result.cell.opset,
            options=each.remedy.options,
            texts=each.remedy.texts,
        )
        for each in passing
    ]


# --- without onnx-ci --------------------------------------------------------------------------------------------------


def is_confirmed(repair: Repair, recipe: onnx_ci.Recipe) -> str:
    """``confirmed``, or what is wrong with a file of the changed model."""
    with tempfile.TemporaryDirectory() as folder:
        tests, path = Path(folder) / "tests", Path(folder) / "model.onnx"
        shutil.copytree(ROOT / "tests", tests, ignore=shutil.ignore_patterns("__pycache__", "e2e", "engine", "unit"))
        for file, text in repair.texts.items():
            (tests / Path(file).relative_to(ROOT / "tests")).write_text(text, encoding="utf-8")
        command = [sys.executable, __file__, "--export", repair.name, str(path), repair.exporter, str(repair.opset)]
        command.append(json.dumps(dict(repair.options)))
        environment = {**os.environ, "PYTHONPATH": str(tests)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        if done.returncode:
            return f"no file: {done.stderr.strip().splitlines()[-6:]}"
        return compared(recipe, path)


def export(name: str, path: Path, exporter: str, opset: int, options: Mapping[str, Any]) -> None:
    """Export a fault's model with nothing but ``torch.onnx.export``."""
    recipe = recipe_called(name)
    model, args, kwargs = called(recipe)
    names = {"input_names": list(recipe.input_names), "output_names": list(recipe.output_names)}
    axes = {each: dict(axes) for each, axes in recipe.dynamic_axes.items()} or None
    if exporter == "dynamo":
        shapes: tuple[Any, ...] = tuple((axes or {}).get(name) for name in recipe.input_names)
        if any(each.kind is each.VAR_POSITIONAL for each in inspect.signature(model.forward).parameters.values()):
            shapes = (shapes,)
        names["dynamic_shapes"] = shapes if axes else None
        torch.onnx.export(model, args, str(path), kwargs=kwargs, dynamo=True, opset_version=opset, **names, **options)
    else:
        torch.onnx.export(
            model, args, str(path), kwargs=kwargs, dynamo=False, opset_version=opset, dynamic_axes=axes, **names, **options
        )


def recipe_called(name: str) -> onnx_ci.Recipe:
    return next(recipe for each, recipe, *_ in itertools.chain(*SETS.values()) if each == name)


def called(recipe: onnx_ci.Recipe) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(recipe.seed)
    model, args, *kwargs = recipe()
    return model.eval(), args if isinstance(args, tuple) else (args,), dict(*kwargs)


def compared(recipe: onnx_ci.Recipe, path: Path) -> str:
    """``confirmed`` if a file computes what the unchanged model does, on other values and sizes."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    tried = 0
    for inputs in other_inputs(recipe):
        model, *_ = called(recipe)
        try:
            with torch.no_grad():
                expected = flat(model(*(each.clone() for each in inputs)))
        except Exception:
            continue  # the model rejects these inputs
        if not all(bool(each.isfinite().all()) for each in expected):
            continue
        feed = {name: each.numpy() for name, each in zip(recipe.input_names, inputs, strict=True) if name in names}
        try:
            outputs = session.run(None, feed)
        except Exception as error:
            return f"does not run at {[tuple(each.shape) for each in inputs]}: {str(error)[:100]}"
        tried += 1
        for output, right in zip(map(torch.from_numpy, outputs), expected, strict=True):
            if output.shape != right.shape:
                return f"shape {tuple(output.shape)} instead of {tuple(right.shape)}"
            scale = float(right.double().abs().max()) if right.numel() else 0.0
            if not torch.allclose(output.double(), right.double(), rtol=1e-3, atol=1e-4 * max(scale, 1e-3)):
                error = (output.double() - right.double()).abs().max()
                return f"wrong by {error:.3g} of {scale:.3g} at {[tuple(each.shape) for each in inputs]}"
    return "confirmed" if tried >= 3 else f"only {tried} inputs could be tried"


def flat(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    values = result.values() if isinstance(result, dict) else result
    return [leaf for each in values for leaf in flat(each)]


def other_inputs(recipe: onnx_ci.Recipe) -> Iterator[list[torch.Tensor]]:
    """The example, other values, and other sizes of each dynamic axis alone and of all together."""
    _, args, kwargs = called(recipe)
    example = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
    axes = [dict(recipe.dynamic_axes.get(name, {})) for name in recipe.input_names]
    sizes = {
        str(label): tensor.shape[axis] for tensor, each in zip(example, axes, strict=False) for axis, label in each.items()
    }
    generator = torch.Generator().manual_seed(1)
    yield example
    changes: list[dict[str, int]] = [{}, {}]
    for change in (lambda size: size + 1, lambda size: 2 * size, lambda size: max(1, size - 1), lambda size: size + 3):
        changes += [{name: change(size)} for name, size in sizes.items()]
        changes.append({name: change(size) for name, size in sizes.items()})
    for changed, factor in itertools.product(changes, (1.0, 0.2)):
        all_sizes = {**sizes, **changed}
        inputs = []
        for tensor, labels in itertools.zip_longest(example, axes[: len(example)], fillvalue={}):
            shape = [all_sizes[str(labels[axis])] if axis in labels else size for axis, size in enumerate(tensor.shape)]
            inputs.append(drawn(tensor, shape, factor, generator))
        yield inputs


def drawn(tensor: torch.Tensor, shape: Sequence[int], factor: float, generator: torch.Generator) -> torch.Tensor:
    """A tensor of this shape with floats as large as those of another one, or integers and booleans of its values."""
    if tensor.is_floating_point():
        scale = float(tensor.abs().max()) or 1.0
        new = torch.rand(shape, generator=generator) if (tensor >= 0).all() else torch.randn(shape, generator=generator) / 2
        return (new * scale * factor).to(tensor.dtype)
    if not tensor.numel():
        return tensor
    places = torch.randint(tensor.numel(), tuple(shape), generator=generator)
    return tensor.reshape(-1)[places]


# --- the table --------------------------------------------------------------------------------------------------------


def main() -> None:
    """Print the table, then each repair that is refuted, and what is not repaired."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", metavar="NAMES", help="only these, with commas between them")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only the first of every N cells")
    parser.add_argument("--set", choices=SETS, help="only this set")
    parser.add_argument("--export", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.export:
        name, path, exporter, opset, keywords = options.export
        export(name, Path(path), exporter, int(opset), json.loads(keywords))
        return
    refuted = 0
    print(f"{'set':8} {'cells':>6} " + " ".join(f"{column:>10}" for column in COLUMNS))
    for title, cells in SETS.items():
        if options.set in (None, title):
            chosen = [each for each in cells if options.faults is None or each[0] in options.faults.split(",")]
            chosen = chosen[:: options.every]
            counts, remarks = measured(chosen)
            refuted += counts["refuted"]
            print(f"{title:8} {len(chosen):6} " + " ".join(f"{counts[column]:10}" for column in COLUMNS))
            print("\n".join(f"  {each}" for each in remarks), flush=True)
    sys.exit(bool(refuted))


def measured(cells: Sequence[tuple[str, onnx_ci.Recipe, str, int]]) -> tuple[Counter[str], list[str]]:
    """The counts of the columns, and remarks."""
    counts: Counter[str] = Counter()
    remarks = []
    for name, recipe, exporter, opset in cells:
        found = repairs(name, recipe, exporter, opset)
        if found is None:
            continue
        counts["failing"] += 1
        counts["setting"] += any(not each.texts for each in found)
        counts["code"] += any(bool(each.texts) for each in found)
        counts["repaired"] += bool(found)
        if not found:
            remarks.append(f"not repaired: {name}-{exporter}{opset}")
        for repair in found:
            answer = is_confirmed(repair, recipe)
            counts["confirmed" if answer == "confirmed" else "refuted"] += 1
            if answer != "confirmed":
                remarks.append(f"refuted: {name}-{exporter}{opset}, {repair.words}: {answer}")
        print(f"{name}-{exporter}{opset}: {[each.words for each in found]}", file=sys.stderr, flush=True)
    return counts, remarks


if __name__ == "__main__":
    main()
