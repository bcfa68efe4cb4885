"""How often onnx-ci names the node in which a fault was planted, of the faults of mutation.py that fail a cell.

Each fault is planted in the cell's own export; with ``--pairs``, two at a time of those that fail the cell by themselves.
*First* means that the planted node is the first that is named; *named*, that it is one of those that are named; *all*, that
every planted node of a file is; *only*, that no other place is named. The times are those of the search, in units of a cell
that passes. From opset 18 on, *torch* is how often ``torch.onnx.verification.verify_onnx_program(compare_intermediates=True)``,
which needs dynamo's program, finds a planted node's value different first. Polygraphy compares runtimes, which all compute what
the file says, so it names nothing here.
Usage: ``python benchmarks/localisation.py [--models lstm,vit] [--faults 40] [--seed 0] [--opset 15] [--pairs]``.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import statistics
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import onnx
import onnx_ir
import torch
from models import mixed
from mutation import Fault, Liveness, NotPlantableError, Planter, arguments, faults_of
from torch.onnx.verification import verify_onnx_program

from onnx_ci.config.settings import find_root, load_settings
from onnx_ci.engine import cell as cell_module
from onnx_ci.engine.one_process import Engine
from onnx_ci.engine.weights import first_weights
from onnx_ci.matrix.plan import task_of
from onnx_ci.opsets import default_exporter
from onnx_ci.pipeline.prepare.prepare import prepare
from onnx_ci.results.records import Cell, CellEvidence, Culprit, Severity


def study(name: str, options: argparse.Namespace) -> None:
    """Plant the faults of one model; print a line of JSON for each that fails the cell."""
    warnings.simplefilter("ignore")
    logging.disable()
    recipe = mixed()[name]
    cell = Cell(source="benchmarks", recipe=name, exporter=default_exporter(options.opset), opset=options.opset, device="cpu")
    task = task_of(cell, recipe, load_settings(find_root(Path.cwd())))
    planter = Planter()
    with Engine() as engine, mock.patch.object(cell_module, "export", planter):
        whole = sum(engine.run_cell(task).timings.values())
        assert planter.clean is not None
        liveness = Liveness(planter.clean, prepare(task, first_weights(task)).probes)
        faults = faults_of(planter.clean, random.Random(f"{options.seed} {name}"))[: options.faults]

        def judged(planted: list[Fault]) -> dict[str, Any] | None:
            faulty = _with(planter.clean, planted)
            if faulty is None or liveness.of(faulty) != "alive":
                return None
            planter.faulty = faulty
            result = engine.run_cell(task)
            if not any(each.severity is Severity.ERROR and each.probe is not None for each in result.findings):
                return None
            line = _judged(planted, result, whole)
            if cell.exporter == "dynamo":
                line["torch"] = _named_by_torch(planter.model.fresh(), faulty, planted, options.opset)
            return line

        waiting: list[Fault] = []
        for number, fault in enumerate(faults[options.start :], options.start):
            print(json.dumps({"number": number}), flush=True)  # remains the last line if the process dies here
            line = judged([fault])
            if line is not None and options.pairs:  # of faults that fail the cell each by itself
                waiting.append(fault)
                line = judged(waiting[-2:]) if len(waiting) % 2 == 0 else None
            if line is not None:
                print(json.dumps(line), flush=True)


def _named_by_torch(call: Any, faulty: onnx.ModelProto, planted: list[Fault], opset: int) -> int:
    """How many planted nodes compute the first value that torch finds different; it can be one."""
    program = torch.onnx.export(
        call.model, call.args, kwargs=call.kwargs or None, dynamo=True, opset_version=opset, verbose=False
    )
    program.model = onnx_ir.serde.deserialize_model(faulty)
    makers = {name: node.name for node in faulty.graph.node for name in node.output}
    try:
        infos = verify_onnx_program(program, call.args, call.kwargs, compare_intermediates=True)
    except Exception:  # it runs parts of the file, which can fail
        return 0
    wrong = next((each for each in infos if not (each.max_abs_diff <= 1e-4 or each.max_rel_diff <= 1e-3)), None)
    return 0 if wrong is None else sum(fault.node == makers.get(wrong.name) for fault in planted)


def _with(model: onnx.ModelProto, faults: list[Fault]) -> onnx.ModelProto | None:
    """The model with all the faults; ``None`` if one prevents another, or if two are in one node."""
    if len({fault.node for fault in faults}) < len(faults):
        return None
    try:
        for fault in faults:
            model = fault.planted(model)
    except NotPlantableError:
        return None
    return model


def _judged(planted: list[Fault], result: CellEvidence, whole: float) -> dict[str, Any]:
    errors = [each for each in result.findings if each.severity is Severity.ERROR and each.probe is not None]
    of_output: dict[str | None, tuple[Culprit, ...]] = {}  # each is blamed on what it depends on
    for error in errors:
        if error.culprits:
            of_output.setdefault(error.output, error.culprits)
    culprits = dict.fromkeys(culprit.nodes for each in of_output.values() for culprit in each)
    named = [set(nodes) for nodes in culprits]
    first = [nodes[0] for nodes in culprits]
    return {
        "fault": "; ".join(f"{fault.node or 'the graph'}: {fault.description}" for fault in planted),
        "first": sum(any(_is(fault, node) for node in first) for fault in planted),
        "named": sum(any(_is(fault, node) for nodes in named for node in nodes) for fault in planted),
        "faults": len(planted),
        "only": len(culprits) <= len(planted),
        "nodes": [sorted(nodes) for nodes in named],
        "time": result.timings.get("locate", 0.0) / whole,
    }


def _is(fault: Fault, node: str) -> bool:
    """Whether a named node is where the fault is: its node, or one that was inserted; outputs are swapped in none."""
    return not fault.node or node.endswith(f" {fault.node!r}") or " 'planted_" in node


def measure(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Study one model in a separate process, and continue after a fault that kills the process."""
    lines: list[dict[str, Any]] = []
    start = 0
    while True:
        command = [sys.executable, __file__, "--one", name, "--start", str(start), "--faults", str(options.faults)]
        command += ["--seed", str(options.seed), "--opset", str(options.opset), *(["--pairs"] if options.pairs else [])]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=options.timeout)
        except subprocess.TimeoutExpired:
            print(f"{name:24} no result after {options.timeout:g} s")
            return lines
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        lines += [each for each in found if "fault" in each]
        if done.returncode == 0 or not found:
            if done.returncode:
                print(done.stderr[-500:])
            return lines
        start = max(each["number"] for each in found if "number" in each) + 1


def row(title: str, lines: list[dict[str, Any]]) -> str:
    """A line of the table."""
    faults = sum(line["faults"] for line in lines)
    if not faults:
        return f"{title:24} {0:7}"
    first, named = (sum(line[each] for line in lines) / faults for each in ("first", "named"))
    every = sum(line["named"] == line["faults"] for line in lines) / len(lines)
    only = sum(line["only"] for line in lines) / len(lines)
    time = statistics.median(line["time"] for line in lines)
    rival = [line["torch"] for line in lines if "torch" in line]
    torch_named = f" {sum(rival) / faults:8.1%}" if rival else ""
    return f"{title:24} {faults:7} {first:8.1%} {named:8.1%} {every:8.1%} {only:8.1%} {time:8.1f}{torch_named}"


def main() -> None:
    """Print the table, and the faults that are not named."""
    parser = arguments(__doc__)
    parser.add_argument("--pairs", action="store_true", help="plant two faults at a time")
    options = parser.parse_args()
    if options.one:
        study(options.one, options)
        return
    print(f"{'model':24} {'faults':>7} {'first':>8} {'named':>8} {'all':>8} {'only':>8} {'time':>8} {'torch':>8}")
    every: list[dict[str, Any]] = []
    for name in options.models.split(","):
        lines = measure(name, options)
        every += [dict(line, model=name) for line in lines]
        print(row(name, lines), flush=True)
    print(row("all", every))
    print("\nnot named:")
    for line in every:
        if line["named"] < line["faults"]:
            print(f"  {line['model']}, {line['fault']}: {line['nodes'] or 'nothing'}")


if __name__ == "__main__":
    main()
