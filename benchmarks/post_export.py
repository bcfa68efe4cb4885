"""Post-export passes: how often the right file of a pass fails, and how many faults planted after a pass are found.

The first table has a column for each pass: the drift of a right file, or the rules that it breaks (a false alarm). The
second one counts faults. They are planted into the file of a pass, as ``mutation.py`` plants them, and besides into weights
and scales of low precision. After a pass that keeps the numbers, a fault counts if it is alive, as in ``mutation.py``. After a
lossy pass it counts if it changes an output by more than 4 times the pass's simulated rounding, on random inputs like the
example; after a static quantization, on the inputs that are within the calibrated ranges. A fault is named right if the
finding says that this pass introduced it.
Usage: ``python benchmarks/post_export.py [--models resnet18,lstm] [--passes float16] [--opset 17] [--faulty lstm]
[--faults 20] [--write docs/passes.md]``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy
import onnx
import torch
from models import architectures, mixed
from mutation import Fault, Liveness, NotPlantableError, _session, faults_of
from onnx import numpy_helper

import onnx_ci
from onnx_ci.collection.post_export import BUILT_IN, passes_of
from onnx_ci.config.settings import find_root, load_settings
from onnx_ci.engine import cell as cell_module
from onnx_ci.engine.one_process import Engine
from onnx_ci.engine.weights import first_weights
from onnx_ci.environment.versions import version_of
from onnx_ci.matrix.drift_limit import DriftLimit
from onnx_ci.matrix.plan import CellTask, task_of
from onnx_ci.opsets import default_exporter
from onnx_ci.pipeline.export.export import Artifact, Written
from onnx_ci.pipeline.inputs.random_values import random_like
from onnx_ci.pipeline.model.tensors import as_array
from onnx_ci.pipeline.post_export.shipped_reference import ShippedReference
from onnx_ci.pipeline.prepare.prepare import prepare
from onnx_ci.results.records import Cell, Status
from onnx_ci.results.verdict import decide

FAULTY = "mobilenet_v3_small,resnet18,lstm,encoder"
SLOW = frozenset({"alexnet", "vgg11"})
"""Architectures that only take large images, which are simulated slowly."""
SIZE = 4.0
"""A fault after a lossy pass counts if it is this many times larger than the pass's simulated rounding."""
KNOWN_WRONG = {
    ("encoder", "int8-dynamic"): "quantize_dynamic transposes one of two weights that an Identity shares",
}
"""Files that a pass writes without an error and that compute something else."""
BEGIN, END = "<!-- benchmarks/post_export.py: begin -->", "<!-- benchmarks/post_export.py: end -->"


def recipes() -> dict[str, onnx_ci.Recipe]:
    return {**architectures(), **mixed()}


# --- faults in low precision ------------------------------------------------------------------------------------------


def low_precision_faults(model: onnx.ModelProto, rng: random.Random) -> list[Fault]:
    """Faults in the weights and scales of float16 and 8-bit files, which ``mutation.py`` leaves alone."""
    found = []
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        is_scale = tensor.name.endswith("scale") and value.dtype == numpy.float32
        is_weight = value.dtype in (numpy.float16, numpy.int8, numpy.uint8) and value.ndim > 1
        if not (is_scale or is_weight):
            continue
        row, other = (rng.randrange(value.shape[0]) for _ in range(2)) if value.ndim else (0, 0)
        changes: dict[str, Any] = {"scale × 1.5": lambda value: value * numpy.float32(1.5)}
        if is_weight:
            changes = {"row zeroed": lambda value, row=row: _zeroed(value, row)}
            if row != other:
                changes["rows swapped"] = lambda value, row=row, other=other: _swapped(value, row, other)
        for kind, change in changes.items():

            def plant(graph: Any, _: Any, name: str = tensor.name, change: Any = change) -> None:
                tensor = next(each for each in graph.graph.initializer if each.name == name)
                changed = change(numpy_helper.to_array(tensor).copy())
                tensor.CopyFrom(numpy_helper.from_array(changed, name))

            found.append(Fault(kind=kind, node="", description=f"{kind} in {tensor.name}", plant=plant))
    rng.shuffle(found)
    return found


def _zeroed(value: numpy.ndarray, row: int) -> numpy.ndarray:
    value[row] = 0
    return value


def _swapped(value: numpy.ndarray, row: int, other: int) -> numpy.ndarray:
    value[[row, other]] = value[[other, row]]
    return value


# --- running ----------------------------------------------------------------------------------------------------------


class Cache:
    """Replaces the export and the passes of the engine by their first results, or the pass's file by one with a fault."""

    def __init__(self) -> None:
        self._export, self._apply = cell_module.export, cell_module.apply_pass
        self._exported: bytes | None = None
        self.made: onnx.ModelProto | None = None
        self.faulty: onnx.ModelProto | None = None

    def export(self, model: Any, untaken_branches: Any, cell: Cell, path: Path) -> Written:
        """Has the signature of ``onnx_ci.pipeline.export.export.export``."""
        if self._exported is None:
            exported = self._export(model, untaken_branches, cell, path)
            self._exported = path.read_bytes()
            return exported
        path.write_bytes(self._exported)
        return Written(artifact=Artifact(path=path), findings=(), log="")

    def apply(self, graph_pass: Any, before: Artifact, folder: Path, feeds: Any) -> Written:
        """Has the signature of ``onnx_ci.pipeline.post_export.apply.apply_pass``."""
        if self.faulty is None:
            applied = self._apply(graph_pass, before, folder, feeds)
            self.made = None if applied.artifact is None else _named(onnx.load(applied.artifact.path))
            return applied
        folder.mkdir()
        path = folder / before.path.name
        path.write_bytes(self.faulty.SerializeToString())
        return Written(artifact=Artifact(path=path), findings=(), log="")


def _named(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a name for every node: faults are located by names."""
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{number}"
    return model


class Size:
    """How large a fault is after a lossy pass, in units of the pass's simulated rounding."""

    def __init__(self, made: onnx.ModelProto, shipped: ShippedReference, *, is_static: bool) -> None:
        self._names = [value.name for value in made.graph.input]
        usual = [probe.reference.noise for probe in shipped.probes.all if not probe.special]
        self._noise = [max(noises) for noises in zip(*usual, strict=True)]
        shapes = {
            tuple(tuple(each.shape) for each in probe.inputs): probe.inputs for probe in shipped.probes.all if not probe.special
        }
        # What a file with calibrated ranges computes outside of them proves nothing, so it runs on the recipe's own inputs.
        ways = [lambda each: each] if is_static else [lambda each: random_like(each, 1), lambda each: random_like(each, 2)]
        self._inputs = [[as_array(way(each)) for each in inputs] for inputs in shapes.values() for way in ways]
        self._expected = self._run(made)

    def of(self, model: onnx.ModelProto) -> float:
        """The largest change of an output; infinite if the file is refused, or its outputs have other shapes."""
        try:
            found = self._run(model)
        except Exception:  # ONNX Runtime raises its own classes
            return float("inf")
        return max(_apart(one, other) / noise for pair in zip(found, self._expected, strict=True)
                   for one, other, noise in zip(*pair, self._noise, strict=True))  # fmt: skip

    def _run(self, model: onnx.ModelProto) -> list[list[numpy.ndarray]]:
        session = _session(model, optimized=False)
        return [session.run(None, dict(zip(self._names, values, strict=True))) for values in self._inputs]


def _apart(one: numpy.ndarray, other: numpy.ndarray) -> float:
    if one.shape != other.shape or not numpy.isfinite(one).all():
        return float("inf")
    return float(numpy.abs(one.astype(numpy.float64) - other).max()) if one.size else 0.0


def study(name: str, options: argparse.Namespace) -> None:
    """Judge one model after each pass, clean and with faults; print a line of JSON for each result."""
    warnings.simplefilter("ignore")
    logging.disable()
    recipe = recipes()[name]
    settings = load_settings(find_root(Path.cwd()))
    cell = Cell(source="benchmarks", recipe=name, exporter=default_exporter(options.opset), opset=options.opset, device="cpu")
    with Engine() as engine:
        cache = Cache()
        with (
            mock.patch.object(cell_module, "export", cache.export),
            mock.patch.object(cell_module, "apply_pass", cache.apply),
        ):
            for graph_pass in options.passes.split(","):
                with_pass = dataclasses.replace(recipe, then=passes_of([graph_pass]))
                task = task_of(dataclasses.replace(cell, graph_pass=graph_pass), with_pass, settings)
                begin = time.perf_counter()
                cache.made = cache.faulty = None
                clean = decide(engine.run_cell(task))
                worst = clean.worst
                errors = [each for each in clean.findings if each.severity == "error"]
                print(json.dumps({
                    "pass": graph_pass, "status": str(clean.status), "drift": worst and worst.drift,
                    "rules": sorted({each.rule for each in errors}), "messages": [each.message for each in errors],
                    "sqnr": min((each.similarity.sqnr for each in clean.outputs if each.similarity and each.probe == "example"
                                 and each.similarity.sqnr is not None), default=None),
                    "seconds": time.perf_counter() - begin,
                }), flush=True)  # fmt: skip
                if clean.status is Status.PASSED and cache.made is not None:
                    for line in faults_after(graph_pass, task, engine, cache, options):
                        print(json.dumps({"pass": graph_pass, **line}), flush=True)


def faults_after(
    graph_pass: str, task: CellTask, engine: Any, cache: Cache, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    made, rng = cache.made, random.Random(f"{options.seed} {task.recipe.name} {graph_pass}")
    prepared = prepare(task, first_weights(task))
    shipped = ShippedReference.of(prepared.model, prepared.probes, task.passes, DriftLimit(default=SIZE))
    size = Size(made, shipped, is_static=task.passes[-1].is_static) if task.is_lossy else None
    liveness = None if task.is_lossy else Liveness(made, prepared.probes)
    faults = _alternating(low_precision_faults(made, rng) if task.is_lossy else [], faults_of(made, rng))
    for fault in faults[: options.faults]:
        try:
            cache.faulty = fault.planted(made)
        except (NotPlantableError, ValueError):
            continue
        measured = size.of(cache.faulty) if size else 0.0
        counts = measured > SIZE if size else liveness.of(cache.faulty) != "dead"
        line = {"fault": f"{fault.node}: {fault.description}", "kind": fault.kind, "counts": counts, "size": measured}
        if counts:
            result = decide(engine.run_cell(task))
            errors = [each for each in result.findings if each.severity == "error"]
            line |= {"found": result.status is Status.FAILED, "drift": result.worst and result.worst.drift,
                     "named": bool(errors) and {each.introduced_by for each in errors} == {graph_pass}}  # fmt: skip
        yield line
    cache.faulty = None


def _alternating(one: Sequence[Fault], other: Sequence[Fault]) -> list[Fault]:
    mixed = [each for pair in zip(one, other, strict=False) for each in pair]
    return [*mixed, *one[len(other) :], *other[len(one) :]]


def measure(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Study one model in a separate process; a crash affects only this model."""
    faults = options.faults if name in options.faulty.split(",") else 0
    command = [sys.executable, __file__, "--one", name, "--passes", options.passes, "--opset", str(options.opset),
               "--faults", str(faults), "--seed", str(options.seed)]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=options.timeout)
        output, problem = done.stdout, done.stderr.strip()[-400:] if done.returncode else ""
    except subprocess.TimeoutExpired as error:
        output, problem = (error.stdout or b"").decode(), f"no result after {options.timeout:g} s"
    if problem:
        print(f"{name}: {problem}", file=sys.stderr)
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


# --- showing ----------------------------------------------------------------------------------------------------------


def tables(every: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> str:
    passes = options.passes.split(",")
    clean = {(name, line["pass"]): line for name, lines in every.items() for line in lines if "status" in line}
    refused = sum(_is_refused(line) for line in clean.values())
    wrong = sum(key in KNOWN_WRONG for key in clean)
    alarms = sum(line["status"] != "passed" and key not in KNOWN_WRONG for key, line in clean.items()) - refused
    right = len(clean) - refused - wrong
    summary = (
        f"False alarms: {alarms} of {right} right files. Known to be wrong: {wrong}. Not made, or refused by ONNX Runtime: "
        f"{refused}. A number is the largest drift of a file that passed."
    )
    lines = [f"{_versions()}; opset {options.opset}.", "",
             summary, "",
             "| model | " + " | ".join(f"`{graph_pass}`" for graph_pass in passes) + " |",
             "| --- |" + " ---: |" * len(passes)]  # fmt: skip
    lines += [
        f"| {name} | " + " | ".join(_word(name, clean.get((name, graph_pass))) for graph_pass in passes) + " |"
        for name in every
    ]
    faults = [line for lines in every.values() for line in lines if line.get("counts")]
    if faults:
        lines += ["", "| faults planted after | faults | found | pass named |", "| --- | ---: | ---: | ---: |"]
        for graph_pass in passes:
            own = [line for line in faults if line["pass"] == graph_pass]
            if own:
                lines.append(f"| `{graph_pass}` | {len(own)} | {_share(own, 'found')} | {_share(own, 'named')} |")
        for title, is_lossy in (("all that keep the numbers", False), ("all lossy", True)):
            own = [line for line in faults if bool(passes_of([line["pass"]])[0].lossy) is is_lossy]
            if own:
                lines.append(f"| {title} | {len(own)} | {_share(own, 'found')} | {_share(own, 'named')} |")
    return "\n".join(lines) + "\n"


def _versions() -> str:
    packages = ("torch", "onnxruntime", "onnxsim", "onnxslim", "onnxconverter-common")
    return ", ".join(f"{name} {version_of(name)}" for name in packages)


def _is_refused(line: dict[str, Any]) -> bool:
    """Whether a pass made no file, or one that does not load: not a false alarm."""
    return bool({"pass-error", "load-error"} & set(line["rules"]))


def _word(name: str, line: dict[str, Any] | None) -> str:
    if line is None:
        return "?"
    wrong = "wrong: " if (name, line["pass"]) in KNOWN_WRONG else ""
    return wrong + (f"{line['drift']:.2g}" if line["status"] == "passed" else ", ".join(line["rules"]))


def _share(lines: list[dict[str, Any]], what: str) -> str:
    return f"{sum(line[what] for line in lines) / len(lines):.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="names of models.py. Default: all but the slow ones")
    parser.add_argument("--faulty", default=FAULTY, help="the models among them that faults are planted into")
    parser.add_argument("--passes", default=",".join(BUILT_IN))
    parser.add_argument("--opset", type=int, default=17)
    parser.add_argument("--faults", type=int, default=20, help="how many to plant after each pass of each model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one model")
    parser.add_argument("--write", type=Path, help="a page in which the tables are replaced")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        study(options.one, options)
        return
    begin, every = time.perf_counter(), {}
    names = options.models.split(",") if options.models else sorted(set(recipes()) - SLOW)
    for name in names:
        start = time.perf_counter()
        every[name] = measure(name, options)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    text = tables(every, options)
    print(text)
    for name, lines in every.items():
        for line in lines:
            if line.get("status", "passed") != "passed":
                what = "refused" if _is_refused(line) else KNOWN_WRONG.get((name, line["pass"]), "false alarm")
                print(f"{what}: {name} after {line['pass']}: {'; '.join(line['messages'])[:400]}")
            if line.get("counts") and not (line["found"] and line["named"]):
                print(f"{'misnamed' if line['found'] else 'missed'}: {name} after {line['pass']}, size {line['size']:.3g}, "
                      f"drift {line['drift'] or 0:.3g}: {line['kind']}, {line['fault'][:120]}")  # fmt: skip
    print(f"{time.perf_counter() - begin:.0f} s")
    if options.write:
        page = options.write.read_text(encoding="utf-8")
        before, after = page.partition(BEGIN)[0], page.partition(END)[2]
        options.write.write_text(f"{before}{BEGIN}\n{text}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
