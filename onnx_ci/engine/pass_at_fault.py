"""Which post-export pass is to blame for a fault of the file that the last one made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onnx_ci.collection.post_export import EXPORT
from onnx_ci.engine.shared import Shared
from onnx_ci.matrix.plan import CellTask
from onnx_ci.onnx_model.weightless import skeleton
from onnx_ci.pipeline.export.export import Artifact
from onnx_ci.pipeline.judge import JudgedFile, Judgement, judge
from onnx_ci.pipeline.prepare.prepare import Prepared
from onnx_ci.pipeline.run.runtime import Runtime
from onnx_ci.results.records import Finding, Severity

_REFUSED = frozenset({"pass-error", "checker", "load-error"})
"""Rules about a file that a pass could not convert, or that cannot be loaded after it."""


def with_pass_at_fault(
    judgement: Judgement,
    files: Sequence[Artifact],
    task: CellTask,
    prepared: Prepared,
    shared: Shared,
    runtimes: Sequence[Runtime],
) -> Judgement:
    """A judgement on the last file of a cell, each error with the pass that introduced it; ``files`` are those before it."""
    names = [EXPORT, *(graph_pass.name for graph_pass in task.passes)]
    first: dict[tuple[str, str | None], str] = {}
    """The step after which each fault appears first: the rule that a file breaks, and the output that it is about."""
    is_wrong = any(each.severity is Severity.ERROR for each in judgement.findings)
    for count, file in enumerate(files if is_wrong else ()):
        before = task.before_passes(count)
        shipped = shared.shipped_reference(before, prepared, {})
        with skeleton(file.path) as readable:
            earlier = judge(JudgedFile(path=readable, complete=file.path), before, shipped, runtimes, {})
        for error in earlier.findings:
            if error.severity is Severity.ERROR:
                first.setdefault((error.rule, error.output), names[count])

    def introduced(finding: Finding) -> Finding:
        if finding.severity is Severity.ERROR:
            finding = replace(finding, introduced_by=first.get((finding.rule, finding.output), names[-1]))
        return with_chain(finding, task)

    contract, numbers = tuple(map(introduced, judgement.contract)), tuple(map(introduced, judgement.numbers))
    return replace(judgement, contract=contract, numbers=numbers)


def with_chain(finding: Finding, task: CellTask) -> Finding:
    """A finding about a pass that did not convert the file of another one; its remedy says that it got that file."""
    names = [graph_pass.name for graph_pass in task.passes]
    if finding.rule not in _REFUSED or finding.introduced_by not in names[1:]:
        return finding
    before = names[names.index(finding.introduced_by) - 1]
    chain = (
        f"The passes of then are a chain: {finding.introduced_by} got the file that {before} had made. If it should get the "
        "exporter's file, give it a recipe of its own (each={NAME: {'then': [PASS]}}), or put it first."
    )
    return replace(finding, remedy=f"{chain} {finding.remedy}")
