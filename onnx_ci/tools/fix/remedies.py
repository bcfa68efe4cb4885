"""What can be tried with a failing cell, and the trial of one remedy in the process of a recipe.

A remedy is other settings of the export, or changed text of the project's files. It is tried with everything that a run would
do with the changed cell. After a change of code, the file must pass the gate of the changed model, and must compute what the
*unchanged* model computes. Otherwise a change of the model's results would pass for a repair of its export.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import gc
import itertools
import linecache
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.settings import Settings
from onnx_ci.engine.cell import CellContext, run_cell
from onnx_ci.engine.shared import Shared
from onnx_ci.matrix.plan import CellSpec, CellTask, with_recipe
from onnx_ci.opsets import FIRST_DYNAMO_OPSET, OF_TORCH, UNOPTIMIZED, WRITTEN_BY
from onnx_ci.pipeline.export.export import Artifact
from onnx_ci.pipeline.inputs.probes import Probe
from onnx_ci.pipeline.model.call import PrepareError, with_inputs
from onnx_ci.pipeline.model.places import project_file
from onnx_ci.pipeline.prepare.prepare import Prepared, Weights
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.processes.supervisor import LAST, Send
from onnx_ci.results.records import CellEvidence, CellResult, Finding, Severity, Status
from onnx_ci.results.rules import finding
from onnx_ci.results.verdict import decide
from onnx_ci.text import listed


def text_of(file: Path) -> str:
    """The source code in a file, with its ends of lines as they are.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is not in UTF-8.
    """
    return file.read_bytes().decode()


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One change of a cell, or of the code that its model runs."""

    words: str
    """What it is: ``opset 18``, ``exporter dynamo at opset 18``, ``optimize=False``; for a changed line, what is done to it."""
    exporter: str | None = None
    opset: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    has_larger_example: bool = False
    """Whether the example has another size where the recipe's has 1 along a dynamic axis."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """The text of each changed file, by its absolute path."""
    corrects_model: bool = False
    """Whether the model itself is wrong except on its example, so that only there the changed one must compute the same."""

    def cell(self, spec: CellSpec) -> CellSpec:
        """The changed cell, without the failures that the recipe expects of the other one."""
        cell = spec.cell
        exporter, opset = self.exporter or cell.exporter, self.opset or cell.opset
        return replace(spec, cell=replace(cell, exporter=exporter, opset=opset), expectations=())

    def recipe(self, recipe: Recipe) -> Recipe:
        """The recipe with the changed options."""
        return replace(recipe, export_options={**recipe.export_options, **self.options}) if self.options else recipe

    def difference(self, root: Path) -> str:
        """The changes of files as a unified diff, with paths relative to ``root`` where they are below it."""
        lines: list[str] = []
        for file, text in self.texts.items():
            path = Path(file)
            shown = path.relative_to(root).as_posix() if path.is_relative_to(root) else file
            before = text_of(path).splitlines(keepends=True)
            lines += difflib.unified_diff(before, text.splitlines(keepends=True), f"a/{shown}", f"b/{shown}", n=1)
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def same_export(spec: CellSpec, axes_of_one: Sequence[str] = ()) -> list[Remedy]:
    """What can be tried without a change of the model, the exporter and the opset: another example, an option.

    The example may be wrong along the dynamic axes ``axes_of_one``, where it has size 1.
    """
    words = f"an example larger than 1 along {listed(map(repr, axes_of_one))}"
    larger = [Remedy(words=words, has_larger_example=True)] if axes_of_one else []
    options = UNOPTIMIZED.get(spec.cell.exporter, {})
    return [*larger, *(Remedy(words=f"{name}={value}", options={name: value}) for name, value in options.items())]


def other_exports(spec: CellSpec, newest_opset: int) -> list[Remedy]:
    """Other opsets up to the newest that can be judged here, the nearest first, and the other exporter."""
    exporter, opset = spec.cell.exporter, spec.cell.opset
    written = WRITTEN_BY.get(exporter, range(1, newest_opset + 1))
    newest = min(newest_opset, written[-1])
    remedies = [
        Remedy(words=f"opset {other}", opset=other)
        for other in dict.fromkeys((opset + 1, opset - 1, FIRST_DYNAMO_OPSET, newest))
        if other != opset and other in written and other <= newest
    ]
    for other in OF_TORCH:
        if exporter in OF_TORCH and other != exporter:
            at = max(opset, FIRST_DYNAMO_OPSET) if other == "dynamo" else opset
            remedies.append(Remedy(words=f"exporter {other} at opset {at}", exporter=other, opset=at))
    return remedies


def try_remedy(remedy: Remedy, spec: CellSpec, settings: Settings, recipe: Recipe, send: Send) -> None:
    """The main function of the process of a recipe: send the evidence about the changed cell."""
    cell = with_recipe(remedy.cell(spec), remedy.recipe(recipe), settings)
    try:
        evidence = _evidence(remedy, cell, settings)
    except PrepareError as error:
        evidence = CellEvidence(cell=cell.cell, findings=(error.finding,))
    send({LAST: evidence.as_json()})


def _evidence(remedy: Remedy, cell: CellTask, settings: Settings) -> CellEvidence:
    """The evidence about a changed cell."""
    if remedy.has_larger_example:
        cell = replace(cell, recipe=with_larger_example(cell.recipe, Shared().prepared(cell, Weights.OWN, {})))
    if not remedy.texts:
        evidence = run_cell(cell, CellContext(shared=Shared()))
        if remedy.exporter == "torchscript":  # it freezes branches that dynamo refuses
            evidence = _with_errors(evidence, lambda each: each.rule == "untaken-branch")
        return evidence
    unchanged = CellContext(shared=Shared())
    untested = tuple(_untested(remedy, unchanged.shared.prepared(cell, Weights.OWN, {})))
    with scratch_folder() as folder:
        with contextlib.ExitStack() as changes:
            for file, text in remedy.texts.items():
                changes.enter_context(changed_functions(file, text))
            evidence = run_cell(cell, CellContext(shared=Shared(), artifacts=folder))
        # Not before the code is as it was: some of what a file is compared with is only computed if it is wrong.
        if decided(cell, evidence, settings).status is Status.PASSED:
            if evidence.artifact is None:
                raise RuntimeError("the file of the changed model is gone, so nothing shows what it computes")
            of_changed = {(each.rule, each.output, each.probe) for each in evidence.findings}
            if remedy.corrects_model:  # only on its example is the unchanged model right
                cell, unchanged = replace(cell, is_quick=True), CellContext(shared=Shared())
            evidence = run_cell(cell, unchanged, artifact=Artifact(path=Path(evidence.artifact)))
            # What a condition guards is often a division by zero: a warning elsewhere, but here the change brings it about.
            evidence = _with_errors(
                evidence, lambda each: each.rule == "edge-mismatch" and (each.rule, each.output, each.probe) not in of_changed
            )
    return replace(evidence, findings=(*evidence.findings, *untested))


def with_larger_example(recipe: Recipe, prepared: Prepared) -> Recipe:
    """The recipe with the inputs of a probe as its example, whose sizes are other than 1 where the example's are 1.

    Of several such probes, it is the one with the fewest other sizes; without one, the recipe is as it was.
    """
    signature, probes = prepared.model.signature, prepared.probes
    larger = [probe for probe in probes.all if probe.follows is None and not signature.axes_of_one(probe.inputs)]

    def changed_sizes(probe: Probe) -> int:
        sizes = (zip(a.shape, b.shape, strict=True) for a, b in zip(probe.inputs, probes.example.inputs, strict=True))
        return sum(size != other for size, other in itertools.chain.from_iterable(sizes))

    if not larger:
        return recipe
    call = with_inputs(prepared.model.fresh(), min(larger, key=changed_sizes).inputs)

    @functools.wraps(recipe.function)
    def function(*_: object, **__: object) -> tuple[object, ...]:
        return call.model, call.args, call.kwargs

    return replace(recipe, function=function)


def _with_errors(evidence: CellEvidence, is_error: Callable[[Finding], bool]) -> CellEvidence:
    """The evidence, whose findings are errors where ``is_error`` says so."""
    findings = (replace(each, severity=Severity.ERROR) if is_error(each) else each for each in evidence.findings)
    return replace(evidence, findings=tuple(findings))


def decided(spec: CellSpec, evidence: CellEvidence, settings: Settings) -> CellResult:
    """The verdict on a changed cell, of which nothing is expected to fail."""
    return decide(evidence, allow=spec.allow, strict=settings.strict, severities=spec.severities)


def _untested(remedy: Remedy, prepared: Prepared) -> Iterator[Finding]:
    """What a change does to branches of which no input takes the other side: nothing shows that they still do the same."""
    for branch in prepared.untaken_branches:
        condition = branch.condition
        line = linecache.getline(str(condition.path), condition.line).strip()
        if _changes(remedy, str(condition.path), line):
            message = f"the change may do something else where `{condition.text}` is {str(not branch.outcome).lower()}"
            yield finding("untaken-branch", f"{message}: no input was found for that", severity=Severity.ERROR)
    for each in prepared.findings:  # what decides by values that are read unseen
        if each.rule == "untaken-branch" and each.source and _changes(remedy, each.source.file, each.source.text):
            yield replace(each, severity=Severity.ERROR)


def _changes(remedy: Remedy, file: str, line: str) -> bool:
    """Whether a changed file no longer has a line."""
    text = next((text for changed, text in remedy.texts.items() if _is_same(changed, file)), None)
    return text is not None and line not in map(str.strip, text.splitlines())


@contextlib.contextmanager
def changed_functions(file: str, text: str) -> Iterator[None]:
    """Within the block, the functions of a file that this process has imported run changed code. The file is not written."""
    before, after = (_codes(compile(each, file, "exec", dont_inherit=True)) for each in (text_of(Path(file)), text))
    changed = {code: after[key] for key, code in before.items() if key in after}  # code that is equal has the same lines
    gc.unfreeze()  # otherwise what was there before a fork is not listed
    is_file = functools.cache(functools.partial(_is_same, file))
    unchanged: list[tuple[FunctionType, CodeType]] = []
    for function in [each for each in gc.get_objects() if isinstance(each, FunctionType)]:
        code = changed.get(function.__code__)
        if code is not None and code.co_freevars == function.__code__.co_freevars and is_file(function.__code__.co_filename):
            unchanged.append((function, function.__code__))
            function.__code__ = code.replace(co_filename=function.__code__.co_filename)
            # What reads the source of a function, as torch.jit does, reads what runs.
            linecache.cache[function.__code__.co_filename] = (len(text), None, text.splitlines(keepends=True), file)
    try:
        yield
    finally:
        for function, code in unchanged:
            linecache.cache.pop(code.co_filename, None)
            function.__code__ = code


def _is_same(file: str, other: str) -> bool:
    return os.path.realpath(file) == os.path.realpath(project_file(other))


def _codes(module: CodeType) -> dict[tuple[str, int], CodeType]:
    """The code of every function of a module, by its name and its place among those of the same name, such as lambdas."""
    codes: dict[tuple[str, int], CodeType] = {}
    counts: Counter[str] = Counter()
    waiting = [module]
    while waiting:
        for constant in waiting.pop().co_consts:
            if isinstance(constant, CodeType):
                codes[constant.co_qualname, counts[constant.co_qualname]] = constant
                counts[constant.co_qualname] += 1
                waiting.append(constant)
    return codes
