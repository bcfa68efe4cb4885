"""The folder of a bug report, written by processes of its own, because the exporter and the runtime may crash.

If no program of torch's functions fails as the cell does, the fault is in the model's own Python code, and there is nothing to
report. Whether the exporter or ONNX Runtime is at fault decides who gets the report.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch

from onnx_ci.collection.post_export import EXPORT
from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.settings import Settings
from onnx_ci.engine.recipes import Recipes
from onnx_ci.environment.versions import versions
from onnx_ci.errors import ConfigurationError
from onnx_ci.matrix.plan import CellSpec, CellTask, with_recipe
from onnx_ci.opsets import OF_TORCH
from onnx_ci.pipeline.model.call import PrepareError
from onnx_ci.pipeline.model.tensors import as_array
from onnx_ci.pipeline.prepare.prepare import prepare
from onnx_ci.pipeline.run.onnx_reference import ReferenceRuntime
from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime
from onnx_ci.pipeline.run.runtime import Runtime
from onnx_ci.processes.clock import CLOCK
from onnx_ci.processes.limits import Limits
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.processes.supervisor import LAST, Death, Send
from onnx_ci.results.json_data import from_json, to_json
from onnx_ci.results.records import Finding, Severity, SourceLine
from onnx_ci.tools.bundle.issue import Report, Tracker, issue_text, main_expression, script, script_of_file, title
from onnx_ci.tools.bundle.program import Data, Program
from onnx_ci.tools.bundle.script import ExportCall
from onnx_ci.tools.bundle.search import called_programs, failing_part, parts_anywhere
from onnx_ci.tools.bundle.smaller import smallest
from onnx_ci.tools.bundle.trial import FAILURES, EagerRun, Failure, Outcome, attempt, fails_like, run_eagerly

SCRIPT, FILE, DATA, VERSIONS, ISSUE = "reproduce.py", "model.onnx", "test_data_set_0", "versions.json", "issue.md"

_SECONDS = 25.0
"""How long the search for the fault may take, and then making it smaller."""
_SECONDS_OF_SCRIPT = 60.0

_NAMESPACES = ("aten", "prim", "prims", "quantized")
"""The namespaces of torch's operators."""


class NoBundleError(Exception):
    """There is nothing to report, or no program fails by itself. The message says why."""


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """The smallest program that the search found, which fails as a cell does."""

    program: Program
    how: ExportCall
    outcome: Outcome
    eager: EagerRun


def write_bundle(spec: CellSpec, findings: Sequence[Finding], folder: Path, recipes: Recipes) -> str:
    """Write a folder with a script, a file, data and the text of an issue, and return in words where to report it.

    The folder is created if it does not exist. Files of other names are left alone, and an earlier bug report is replaced.

    Raises:
        NoBundleError: there is nothing to write; the folder is left as it is.
        ConfigurationError: a file in the folder would be replaced that is not of a bug report.
        OSError: the folder cannot be written.
    """
    is_earlier_report = all((folder / name).is_file() for name in (SCRIPT, VERSIONS, ISSUE))
    for path in () if is_earlier_report else (folder / name for name in (SCRIPT, FILE, DATA, VERSIONS, ISSUE)):
        if path.exists():
            raise ConfigurationError(f"{path} would be replaced, but onnx-ci did not write it; name another folder")
    _reportable(findings)
    with scratch_folder() as scratch:
        report = _reduce(spec, findings, scratch, recipes)
        printed = _run_script(scratch)
        _clean(scratch / FILE)
        script, has_file = (scratch / SCRIPT).read_text(), (scratch / FILE).is_file()
        issue = issue_text(report, script=script, has_file=has_file, printed=printed, versions=versions())
        (scratch / ISSUE).write_text(issue)
        (scratch / VERSIONS).write_text(json.dumps(versions(), indent=2) + "\n")
        for tensor in (folder / DATA).glob("*put_*.pb"):
            tensor.unlink()
        (folder / FILE).unlink(missing_ok=True)
        shutil.copytree(scratch, folder, dirs_exist_ok=True)
    return f"{report.expression} fails by itself: run {SCRIPT} in {folder}, and report {ISSUE} to {report.tracker}"


def _reduce(spec: CellSpec, findings: Sequence[Finding], folder: Path, recipes: Recipes) -> Report:
    """Write the script, the file and the data, in a process of its own."""
    write = functools.partial(_write, spec, findings, folder, recipes.settings)
    sent: dict[str, str] = {}
    for _, event in recipes.run_all({"bundle": (spec.cell.recipe, write)}, Limits.of(spec)):
        if isinstance(event, Death):
            raise NoBundleError(f"the process that makes the fault smaller {event.message}")
        sent = event[LAST]
    if "problem" in sent:
        raise NoBundleError(sent["problem"])
    report: Report = from_json(Report, sent)
    return report


def reduced(task: CellTask, findings: Sequence[Finding], path: Path) -> Reduced:
    """The smallest program that fails as a cell does, in this process. ``path`` is its file in the end, if it has one.

    Raises:
        NoBundleError: there is none.
    """
    first = _reportable(findings)
    if task.cell.exporter not in OF_TORCH:
        raise NoBundleError(f"the script would call torch.onnx.export, which is not the exporter {task.cell.exporter!r}")
    how = ExportCall(exporter=task.cell.exporter, opset=task.cell.opset)
    prepared = prepare(task)
    fails = fails_like(first, how, path)
    places = [first.source, *(culprit.source for each in findings for culprit in each.culprits)]
    lines = [each for each in places if each is not None]
    deadline = CLOCK.thread_time() + _SECONDS
    programs = [*called_programs(prepared.model, prepared.probes, first)]
    part = failing_part(_parts(programs, lines, FAILURES[first.rule]), fails, deadline)
    if part is None:
        raise NoBundleError(_NOT_FOUND if CLOCK.thread_time() > deadline else _NOT_REPRODUCED)
    program = smallest(part, fails, CLOCK.thread_time() + _SECONDS)
    outcome, eager = attempt(program, how, path), run_eagerly(program)
    if outcome is None or eager is None:
        raise NoBundleError("a part of the model fails by itself, but not each time")
    return Reduced(program=program, how=how, outcome=outcome, eager=eager)


def _parts(programs: Sequence[Program], lines: Sequence[SourceLine], failure: Failure) -> Iterator[Program]:
    """Parts of the programs: at and around the lines, with values of several kinds if the fault depends on them; then others.

    Each time, they are exported with the sizes that they run with; if none fails, with the sizes of the example.
    """
    depends_on_values = failure in (Failure.RUN, Failure.VALUES)
    draws = [*itertools.product(range(_SEEDS), Data)] if depends_on_values else [(0, Data.LIKE_RECORDED)]
    at_lines = [[number for number, call in enumerate(program.calls) if call.source in lines] for program in programs]
    for program, positions in zip(programs, at_lines, strict=True):
        around = [program.part(each) for each in dict.fromkeys(map(tuple, _around(positions, len(program.calls))))]
        for seed, data in draws:
            yield from (dataclasses.replace(part, data=data, seed=seed) for part in around)
    # Where wrong values come from is known, and elsewhere, other values could show another fault.
    if not (depends_on_values and any(at_lines)):
        yield from itertools.chain.from_iterable(map(parts_anywhere, programs))


def _around(at_lines: Sequence[int], count: int) -> Iterator[Iterable[int]]:
    """The positions of parts around the calls at some positions, the smallest first."""
    if not at_lines:
        return
    yield from ([each] for each in at_lines)
    yield at_lines
    first, last = at_lines[0], at_lines[-1] + 1
    for distance in range(1, _MOST_AROUND + 1):
        yield range(max(0, first - distance), last)
        yield range(max(0, first - distance), min(count, last + distance))


_MOST_AROUND = 3
"""How many calls before and after a line may belong to its fault."""
_SEEDS = 3
_NOT_FOUND = f"no part of the model that fails by itself was found in {_SECONDS:.0f} s"
_NOT_REPRODUCED = (
    "the functions of torch that the model calls are exported right by themselves, so what is wrong is the model's Python code "
    "between them, an operator of its own, or the values of its weights: nothing to report to an exporter"
)


def _reportable(findings: Sequence[Finding]) -> Finding:
    """The error that a script would meet first.

    Raises:
        NoBundleError: no error can be the fault of an exporter or a runtime.
    """
    errors = [each for each in findings if each.severity is Severity.ERROR]
    if not errors:
        raise NoBundleError("the cell does not fail")
    possible = [each for each in errors if each.rule in FAILURES]
    if not possible:
        rules = ", ".join(dict.fromkeys(each.rule for each in errors))
        raise NoBundleError(f"{rules} is not a fault of an exporter or a runtime")
    namespace, has_namespace, _ = (possible[0].operator or "").replace("::", ".").partition(".")
    if has_namespace and namespace not in _NAMESPACES:
        raise NoBundleError(f"{possible[0].operator} is not an operator of torch: its own project has to translate it")
    of_exporter = [each for each in possible if each.introduced_by in (None, EXPORT)]
    if not of_exporter:
        raise NoBundleError(f"the pass {possible[0].introduced_by} introduces the fault, and the exporter's own file is right")
    return min(of_exporter, key=lambda each: list(Failure).index(FAILURES[each.rule]))


def _run_script(folder: Path) -> str:
    """Run the script in an interpreter of its own and return what it prints, without the stack and the paths of this machine.

    Raises:
        NoBundleError: the script does not fail there.
    """
    try:
        process = subprocess.run(
            [sys.executable, "-W", "ignore", SCRIPT],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_SECONDS_OF_SCRIPT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoBundleError(f"{SCRIPT} takes more than {_SECONDS_OF_SCRIPT:.0f} s") from None
    if process.returncode == 0:
        raise NoBundleError(
            "the script passes in an interpreter of its own, so the fault needs something else that the project does, "
            "such as an operator that it registers"
        )
    shown = _FRAME.sub("", process.stderr)
    for place in (folder.resolve(), Path(torch.__file__).parents[1], Path(sys.prefix)):
        shown = shown.replace(f"{place}{os.sep}", "")
    return shown.strip()


_FRAME = re.compile(r"(?:Traceback \(most recent call last\):\n)?(?:^  .*\n)+", re.MULTILINE)


def _clean(path: Path) -> None:
    """Remove what exporters write into a file about the machine and the code that it comes from."""
    if path.is_file():
        model = onnx.load(path)
        for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
            node.ClearField("metadata_props")
            node.ClearField("doc_string")
        path.with_name(f"{path.name}.data").unlink(missing_ok=True)
        onnx.save(model, path)


def _write(spec: CellSpec, findings: Sequence[Finding], folder: Path, settings: Settings, recipe: Recipe, send: Send) -> None:
    """Write the script, the file and the data, in a process of its own."""
    try:
        fault = reduced(with_recipe(spec, recipe, settings), findings, folder / FILE)
    except (NoBundleError, PrepareError) as error:
        send({LAST: {"problem": str(error)}})
        return
    (folder / DATA).mkdir()
    for kind, tensors in (("input", fault.eager.inputs), ("output", fault.eager.expected)):  # as ONNX's own tests keep them
        for number, tensor in enumerate(tensors):
            onnx.save_tensor(onnx.numpy_helper.from_array(as_array(tensor)), str(folder / DATA / f"{kind}_{number}.pb"))
    tracker, reason = _at_fault(fault, folder / FILE)
    head = title(fault.program, fault.how, fault.outcome, tracker)
    if tracker is Tracker.EXPORTER:
        text = script(fault.program, fault.how, title=head, tolerance=fault.eager.tolerance)
    else:
        text = script_of_file(title=head, tolerance=fault.eager.tolerance)
    (folder / SCRIPT).write_text(text)
    report = Report(title=head, tracker=tracker, reason=reason, expression=main_expression(fault.program))
    send({LAST: to_json(report)})


def _at_fault(fault: Reduced, path: Path) -> tuple[Tracker, str]:
    """Who is at fault, and how that is known."""
    if fault.outcome.failure in (Failure.EXPORT, Failure.CHECK):
        return Tracker.EXPORTER, ""
    names = [each.name for each in onnx.load(path, load_external_data=False).graph.input]
    feeds = dict(zip(names, fault.eager.inputs, strict=True))
    if _is_right(OnnxRuntime(optimize=False), path, feeds, fault.eager):
        return Tracker.RUNTIME, "With all optimizations disabled, ONNX Runtime is right."
    if _is_right(ReferenceRuntime(), path, feeds, fault.eager):
        return Tracker.RUNTIME, "onnx's reference evaluator computes what PyTorch computes."
    return Tracker.EXPORTER, "onnx's reference evaluator does not compute what PyTorch computes either."


def _is_right(runtime: Runtime, path: Path, feeds: Mapping[str, torch.Tensor], eager: EagerRun) -> bool:
    try:
        return eager.is_right(runtime.load(path, "cpu").run(feeds))
    except Exception:  # each runtime raises its own classes
        return False
