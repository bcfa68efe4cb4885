"""The part of a model that breaks a rule by itself, where no node of the file shows where a fault lies.

That is so for an exporter that fails in a module of torch, for a file that is not valid or does not load, for an output of
another type, and for an error smaller than the rounding by which values are paired. Each call of torch that the model makes,
then two to four in a row, are exported and judged as the model is, on the values that they get there. If none fails, a node
counts that a message names.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import torch
from torch.overrides import resolve_name

from onnx_ci.collection.keywords import fields_of
from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.options import MAX_DRIFT
from onnx_ci.engine.weights import OF_VALUES
from onnx_ci.matrix.drift_limit import DriftLimit
from onnx_ci.matrix.plan import CellTask
from onnx_ci.opsets import OF_TORCH
from onnx_ci.pipeline.compare.attribution import is_of_other_runtime
from onnx_ci.pipeline.export.error_lines import line_of_node
from onnx_ci.pipeline.export.export import export
from onnx_ci.pipeline.export.exporter_errors import remedy_of_wrong_operator
from onnx_ci.pipeline.inputs.probes import Probe
from onnx_ci.pipeline.judge import JudgedFile, judge
from onnx_ci.pipeline.locate.culprits import with_recipe
from onnx_ci.pipeline.model.call import PrepareError, with_inputs
from onnx_ci.pipeline.model.operators import tensor_leaves
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.model.running import force_eager, in_small_operators, run_tree
from onnx_ci.pipeline.post_export.shipped_reference import ShippedReference
from onnx_ci.pipeline.prepare.prepare import Prepared, prepare
from onnx_ci.pipeline.run.runtime import Runtime
from onnx_ci.pipeline.trace.recorder import Recorder
from onnx_ci.pipeline.trace.trace import FunctionCall, Ref, Role, Trace, Value, is_random, mapped, refs_in
from onnx_ci.processes.clock import CLOCK
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.results.records import Culprit, Finding, Severity
from onnx_ci.results.rules import REMEDIES
from onnx_ci.results.verdict import broken_rules
from onnx_ci.text import listed

_OF_EXPORT = frozenset({"export-error", "unsupported-operator"})
_OF_FILE = frozenset({"checker", "load-error"})
_OF_OUTPUTS = OF_VALUES | {"dtype-mismatch", "shape-mismatch", "baked-shape", "run-error", "runtime-disagreement"}
"""The rules that a part can break by itself. What breaks one of them in the model can break another of the same set there."""


def with_part_at_fault(
    findings: Sequence[Finding],
    task: CellTask,
    prepared: Prepared,
    file: Path | None,
    runtimes: Sequence[Runtime],
    deadline: float,
) -> list[Finding]:
    """The findings, the first error without a place with the calls of torch that fail in the same way by themselves."""
    # One output that is wrong on two inputs is wrong for one reason, as far as is known.
    located = {(_alike(each), each.output) for each in findings if each.culprits}
    first = next((each for each in findings if _has_no_place(each) and (_alike(each), each.output) not in located), None)
    if first is None or task.cell.exporter not in OF_TORCH:  # a part is exported with torch alone
        return [*findings]
    model, probes = prepared.model, prepared.probes
    # A file that fails on an input has been judged with the separate probes.
    tried = (probes if first.probe is None else probes.one_kind_per_probe).all
    probe = next((each for each in tried if each.name == first.probe), probes.example)
    fails = functools.partial(_fails, rules=_alike(first), task=task, runtimes=runtimes)
    calls: Sequence[FunctionCall] = ()
    if not fails(_Part([_RIGHT], _TRACE)):
        in_time = itertools.takewhile(lambda _: CLOCK.thread_time() < deadline, _parts(_recorded(model, probe)))
        calls = next((part.calls for part in in_time if fails(part)), ())
    found = [_culprit(each) for each in calls] or ([] if file is None else _named_nodes(first.message, file))
    culprits = tuple(with_recipe(each, model.recipe) for each in found)

    def remedy_of(finding: Finding) -> str:
        if finding.rule not in OF_VALUES or not calls:
            return finding.remedy
        names = listed([name for each in culprits for name in each.operators])
        return remedy_of_wrong_operator(culprits) or REMEDIES["in-part"].format(names)

    def follows(finding: Finding) -> bool:
        is_of_output = None in (first.output, finding.output) or finding.output == first.output
        return _has_no_place(finding) and is_of_output  # what is wrong later in the same output follows from it

    return [replace(each, culprits=culprits, remedy=remedy_of(each)) if follows(each) else each for each in findings]


def _alike(finding: Finding) -> frozenset[str]:
    return next((rules for rules in (_OF_EXPORT, _OF_FILE, _OF_OUTPUTS) if finding.rule in rules), frozenset())


def _has_no_place(finding: Finding) -> bool:
    is_of_tools = finding.severity is Severity.ERROR and bool(_alike(finding)) and not is_of_other_runtime(finding)
    return is_of_tools and finding.source is None and not finding.culprits


def _recorded(model: RecipeModel, probe: Probe) -> Trace:
    """What the model calls, with each tensor that a part can be given as it is when the model first has it."""
    free = 2**31  # bytes, which the values of a run may take

    def keep(tensor: torch.Tensor, role: Role) -> torch.Tensor | None:
        nonlocal free
        if tensor.dtype.is_complex or tensor.is_quantized or tensor.nbytes > free:
            return None
        if role is Role.WEIGHT:
            return tensor.detach()
        free -= tensor.nbytes
        return tensor.detach().clone()

    call = with_inputs(model.fresh(), probe.inputs)
    recorder = Recorder(call, keep, kinds=[FunctionCall])
    with force_eager(), in_small_operators(), recorder:
        run_tree(call, seed=model.recipe.seed)
    return recorder.trace


class _Part(torch.nn.Module):
    """Calls in a row. It takes what other calls compute, and returns what the last one does."""

    def __init__(self, calls: Sequence[FunctionCall], trace: Trace) -> None:
        super().__init__()
        self.calls, self.trace = calls, trace
        computed: set[int] = set()
        self.values: dict[int, torch.Tensor] = {}
        """What it takes, by its position in the trace."""
        for call in calls:
            for position in refs_in((call.args, call.kwargs)):
                if position not in computed:
                    self.values[position] = trace.values[position].kept
            computed.update(refs_in(call.result))
        self.taken = [each for each in self.values if trace.values[each].role is not Role.WEIGHT]

        changed = {trace.values[call.written.value].role for call in calls if call.written is not None}
        is_complete = bool(self.taken) and all(each is not None for each in self.values.values())
        self.is_repeatable = is_complete and Role.WEIGHT not in changed and not any(is_random(call.name) for call in calls)
        """Whether it can run alone, and computes the same each time."""

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = self.values | {position: each.clone() for position, each in zip(self.taken, tensors, strict=True)}
        result: Any = None
        for call in self.calls:
            arguments = mapped((call.args, call.kwargs), lambda leaf: values[leaf.value] if isinstance(leaf, Ref) else leaf)
            result = call.function(*arguments[0], **arguments[1])
            values.update(zip(refs_in(call.result), tensor_leaves(result), strict=True))
        return tuple(tensor_leaves(result))


_RIGHT = FunctionCall(torch.relu, (Ref(0),), {}, Ref(1))
"""A call that is right. If it fails, all do, for instance because a runtime does not know the opset."""
_TRACE = Trace(
    values=[Value(Role.INPUT, (2, 3), torch.float32, kept=torch.ones(2, 3)), Value(Role.RESULT, (2, 3), torch.float32)]
)


def _parts(trace: Trace) -> Iterator[_Part]:
    """Single calls, then more in a row, one part of each kind."""
    calls, kinds = [*trace.of_kind(FunctionCall)], set()

    def leaf(value: Any) -> object:
        if isinstance(value, Ref):
            return trace.values[value.value].dtype, len(trace.values[value.value].shape)
        return type(value) if type(value) in (int, float) else value

    for count in range(1, 5):  # a part of more calls says little about where the fault is
        for start in range(len(calls) - count + 1):
            part = _Part(calls[start : start + count], trace)
            kind = repr([(each.function, mapped((each.args, each.kwargs), leaf)) for each in part.calls])
            if part.is_repeatable and kind not in kinds:
                kinds.add(kind)
                yield part


def _fails(part: _Part, rules: frozenset[str], task: CellTask, runtimes: Sequence[Runtime]) -> bool:
    """Whether a part breaks one of the rules by itself."""
    calls, trace, tensors = part.calls, part.trace, tuple(part.values[each] for each in part.taken)
    fields = fields_of({"name": "part", "input_names": [f"x{number}" for number in range(len(tensors))]})
    recipe = Recipe(lambda: (_Part(calls, trace), tensors), **fields)
    limit = DriftLimit(default=max(MAX_DRIFT, task.max_drift.default))  # every call rounds as much as that
    alone = replace(task, recipe=recipe, is_quick=True, inputs=(), max_drift=limit)
    with scratch_folder() as scratch, contextlib.suppress(PrepareError):
        prepared, path = prepare(alone), scratch / "part.onnx"
        exported = export(prepared.model, (), task.cell, path)
        found = exported.findings
        if exported.artifact is not None:
            shipped = ShippedReference.of(prepared.model, prepared.probes, (), limit)
            found = judge(JudgedFile(path=path, complete=path), alone, shipped, runtimes, {}).findings
        return not rules.isdisjoint(broken_rules(found))
    return False


def _culprit(call: FunctionCall) -> Culprit:
    function = (resolve_name(call.function) or call.name).removesuffix(".__get__")
    return Culprit(nodes=(), operators=(function,), module=call.place.module, source=call.place.source)


_NODE = re.compile(r"node (?:name: |\()(\S+?)\)")
"""How onnx.checker and ONNX Runtime name a node in a file that they refuse."""


def _named_nodes(message: str, file: Path) -> list[Culprit]:
    """The nodes that a message names, with the lines that dynamo has written into them."""
    names = {match[1] for match in _NODE.finditer(message)}
    nodes = [node for node in onnx.load(file, load_external_data=False).graph.node if node.name in names] if names else []
    lines = [(f"{node.op_type} {node.name!r}", line_of_node(node)) for node in nodes]
    return [Culprit(nodes=(title,), operators=(), module="", source=line) for title, line in lines if line is not None]
