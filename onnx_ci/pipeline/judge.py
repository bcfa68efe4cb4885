"""One file judged: contract → run → compare, and whether the file or a runtime is at fault.

``contract`` reads what the file declares. ``run`` computes its outputs with each runtime, and ``compare`` measures how far they
are from the model's. Where runtimes differ, ``compare.attribution`` says which of them is wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnx_ci.environment.versions import has_older_runtime
from onnx_ci.matrix.plan import CellTask
from onnx_ci.onnx_model import signature as onnx_signature
from onnx_ci.onnx_model.files import files_in
from onnx_ci.onnx_model.precision import has_int8_tensors
from onnx_ci.onnx_model.signature import Signature
from onnx_ci.pipeline.compare.attribution import attribute_faults, hidden_faults, without_overflow
from onnx_ci.pipeline.compare.cpu_vs_gpu import compute_cpu_vs_gpu, explain_drift_on_gpu
from onnx_ci.pipeline.compare.equal_axes import with_equal_axes
from onnx_ci.pipeline.compare.runtime_run import FileRun, RuntimeRun, too_noisy
from onnx_ci.pipeline.contract import contract
from onnx_ci.pipeline.contract.facts import facts_of
from onnx_ci.pipeline.contract.requirements import check_requirements
from onnx_ci.pipeline.contract.weights import compare_weights
from onnx_ci.pipeline.inputs.probes import Probe, Probes
from onnx_ci.pipeline.model.call import with_inputs
from onnx_ci.pipeline.model.recipe_model import RecipeModel
from onnx_ci.pipeline.post_export.passes import ort_optimized
from onnx_ci.pipeline.post_export.shipped_reference import ShippedReference
from onnx_ci.pipeline.prepare.side_effects import as_of_ties
from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime
from onnx_ci.pipeline.run.runtime import Runtime
from onnx_ci.plugins import tool, version_in_name
from onnx_ci.processes.capture import timed
from onnx_ci.results.records import CpuVsGpu, ExportFacts, Finding, OutputDrift, Severity

_UNMATCHED = frozenset({"input-missing", "input-extra", "output-mismatch", "probe-weights"})
"""Rules after which inputs and outputs cannot be matched, or their values not be compared, with those of the model."""
_WEIGHTS_UNREADABLE = frozenset({"checker", "external-data", "probe-weights"})
"""Rules after which the weights in the file cannot be compared with the model's."""


@dataclass(frozen=True, kw_only=True)
class JudgedFile:
    """An ONNX file to judge."""

    path: Path
    """The file that is read and run. It may be the complete file without its weights, which are external data in that."""
    complete: Path
    """The complete file; or a folder, if the recipe has several."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What is known about a file."""

    probes: Probes
    signature: Signature | None
    """``None`` if the file cannot be read."""
    contract: tuple[Finding, ...]
    """What is wrong with it that needs no inference."""
    numbers: tuple[Finding, ...] = ()
    """What is wrong with it, or with a runtime, when it runs."""
    outputs: tuple[OutputDrift, ...] = ()
    cpu_vs_gpu: tuple[CpuVsGpu, ...] = ()
    facts: ExportFacts | None = None
    """For a baseline; ``None`` for the file of a post-export pass."""
    log: str = ""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings."""
        return self.contract + self.numbers


def judge(
    file: JudgedFile, task: CellTask, shipped: ShippedReference, runtimes: Sequence[Runtime], timings: dict[str, float]
) -> Judgement:
    """Judge a file. A step runs even if an earlier one found something, as long as it can, so that one run reports everything.

    The seconds of each stage are added to ``timings``.
    """
    with timed("contract", timings):
        judgement = (_judge_contracts if file.complete.is_dir() else _judge_contract)(file, task, shipped)
    signature = judgement.signature
    if signature is None or _has_errors(each for each in judgement.contract if each.rule in _UNMATCHED):
        return judgement
    judgement = _judge_numbers(judgement, _Inference(file.path, signature, task, shipped.model, timings), runtimes)
    judgement = replace(judgement, numbers=tuple(_as_of_ties(judgement.numbers, judgement.probes, shipped.model)))
    numbers = with_equal_axes(judgement.numbers, signature, shipped.model.signature, judgement.probes.all)
    axes = {(each.output, each.details["axis"]) for each in numbers if each.rule == "static-axis"}
    declared = [
        each for each in judgement.contract if each.rule != "static-axis" or (each.output, each.details["axis"]) not in axes
    ]  # where both are about one axis, what a run shows says more
    declared += contract.limits_of_no_output(signature, task)
    return replace(judgement, contract=tuple(declared), numbers=numbers)


@dataclass(frozen=True)
class _Inference:
    """How the file of a cell is run."""

    path: Path
    signature: Signature
    task: CellTask
    model: RecipeModel
    timings: dict[str, float]

    def run(self, runtime: Runtime, probes: Sequence[Probe], device: str) -> RuntimeRun:
        """What a runtime computes on a device, compared with the model on each of ``probes``."""
        run = FileRun(
            runtime=runtime,
            signature=self.signature,
            model=self.model,
            probes=probes,
            device=device,
            max_drift=self.task.drift_limit,
            timings=self.timings,
        )
        return run.run(self.path)


def _judge_numbers(judgement: Judgement, inference: _Inference, runtimes: Sequence[Runtime]) -> Judgement:
    """``judgement``, with what the runtimes compute with the file."""
    probes, model, device = judgement.probes, inference.model, inference.task.cell.device
    runs = [inference.run(runtime, probes.all, place) for runtime, place in _with_devices(runtimes, device)]
    if any(each.fails_on_inputs for each in runs) and probes.one_kind_per_probe is not probes:
        return _judge_numbers(replace(judgement, probes=probes.one_kind_per_probe), inference, runtimes)
    runs, overflows = _without_overflows(runs, inference, probes.all)
    if not any(each.is_deployed for each in runs):  # if only reference runtimes are requested, they decide
        runs = [replace(each, is_deployed=True) for each in runs]
    of_onnxruntime = [each for each in runs if each.is_onnxruntime]
    plain = OnnxRuntime(optimize=False, tf32=model.recipe.tf32)
    is_faulty = any(each.faults for each in of_onnxruntime)
    numbers = attribute_faults(runs, [inference.run(plain, probes.all, device)] if is_faulty else [])
    if _has_errors(numbers) and (has_older_runtime() or any(version_in_name(each.runtime) for each in runs)):
        numbers = tool("known-remedies")(numbers, inference.path)
    # Where ONNX Runtime replaces several nodes by one, it overlooks the exponent and takes every Pow for a square.
    if of_onnxruntime and inference.signature.has_other_powers and not _has_errors(numbers):
        numbers += hidden_faults(inference.run(plain, [probes.example], device))  # its exponent matters on every input
    sides: tuple[CpuVsGpu, ...] = ()
    if inference.task.cell.gpu is not None and not inference.task.is_lossy and not inference.path.is_dir():
        on_gpu = next(iter(of_onnxruntime), None)
        with timed("run", inference.timings):
            limit = inference.task.max_drift
            path, signature = inference.path, inference.signature
            sides = compute_cpu_vs_gpu(on_gpu, path, signature, model, probes, device=device, max_drift=limit)
        numbers = explain_drift_on_gpu(sides, numbers, on_gpu, device, tf32=model.recipe.tf32)
    outputs = tuple(output for each in runs for output in each.outputs)
    return replace(judgement, numbers=(*overflows, *numbers, *too_noisy(outputs)), outputs=outputs, cpu_vs_gpu=sides)


def _as_of_ties(findings: Iterable[Finding], probes: Probes, model: RecipeModel) -> Iterator[Finding]:
    by_name = {probe.name: probe for probe in probes.all}
    for each in findings:
        probe = by_name.get(each.probe or "")
        if probe is None or each.rule not in ("numeric-drift", "baked-value") or each.severity is not Severity.ERROR:
            yield each
        else:
            yield as_of_ties(each, lambda: with_inputs(model.fresh(), probe.inputs))  # noqa: B023 - it is called at once


def _judge_contract(file: JudgedFile, task: CellTask, shipped: ShippedReference) -> Judgement:
    """What is wrong with a file that needs no inference."""
    model, probes = shipped.model, shipped.probes
    signature = onnx_signature.read_signature(file.path, model.weights)
    if isinstance(signature, Finding):
        return Judgement(probes=probes, signature=None, contract=(*shipped.findings, signature))
    of_signature = contract.compare_signature(signature, model, probes.example, task, domains=shipped.domains)
    broken = _broken(file, signature, of_signature, task, model)
    facts = facts_of(signature, file.complete, model, probes.example)
    return Judgement(probes=probes, signature=signature, contract=(*shipped.findings, *broken), facts=facts)


def _judge_contracts(folder: JudgedFile, task: CellTask, shipped: ShippedReference) -> Judgement:
    """What is wrong with several files that needs no inference; each message begins with the name of the file."""
    model, probes = shipped.model, shipped.probes
    signatures, broken = [], [*shipped.findings]
    files = files_in(folder.complete)
    for path in files:
        signature = onnx_signature.read_signature(path)
        if isinstance(signature, Finding):
            of_file = [signature]
        else:
            signatures.append(signature)
            of_content = contract.check_content(signature, task)
            of_file = _broken(JudgedFile(path=path, complete=path), signature, of_content, task, model)
        broken += [replace(each, message=f"{path.stem}: {each.message}") for each in of_file]
    if len(signatures) < len(files):
        return Judgement(probes=probes, signature=None, contract=tuple(broken))
    whole = contract.merged_signature(signatures, model, probes.example)
    facts = facts_of(whole, folder.complete, model, probes.example)
    return Judgement(probes=probes, signature=whole, contract=tuple(broken), facts=facts)


def _broken(
    file: JudgedFile, signature: Signature, of_signature: Iterable[Finding], task: CellTask, model: RecipeModel
) -> list[Finding]:
    """What is wrong with a file, its signature included, that needs no inference."""
    broken = [*onnx_signature.check(file.path, signature), *of_signature]
    fold = functools.partial(ort_optimized, level="basic")
    broken += check_requirements(file.path, file.complete, signature, task.requirements, fold)
    if not task.is_lossy and not any(finding.rule in _WEIGHTS_UNREADABLE for finding in broken):
        broken += compare_weights(file.path, model)
    return broken


def _with_devices(runtimes: Sequence[Runtime], device: str) -> Iterator[tuple[Runtime, str]]:
    """The runtimes that can run here, each with the device on which it runs."""
    for runtime in runtimes:
        # A reference runtime checks the file, so it may fall back to the CPU; a deployed one must use the device.
        for place in [device] if runtime.is_deployed else [device, "cpu"]:
            if runtime.missing_device(place) is None:
                yield runtime, place
                break


def _without_overflows(
    runs: Sequence[RuntimeRun], inference: _Inference, probes: Sequence[Probe]
) -> tuple[list[RuntimeRun], list[Finding]]:
    """The runs by which a file is judged, and warnings about sums of int8 products that overflow."""
    may_overflow = [each.is_onnxruntime and each.device == "cpu" and bool(each.faults) for each in runs]
    models = map(onnx_signature.read_model, files_in(inference.path) if any(may_overflow) else ())
    if not any(not isinstance(model, Finding) and has_int8_tensors(model) for model in models):
        return [*runs], []
    exact = inference.run(OnnxRuntime(exact_int8=True), probes, "cpu")
    pairs = [without_overflow(each, exact) if may else (each, []) for each, may in zip(runs, may_overflow, strict=True)]
    return [decisive for decisive, _ in pairs], [warning for _, warnings in pairs for warning in warnings]


def _has_errors(findings: Iterable[Finding]) -> bool:
    return any(finding.severity is Severity.ERROR for finding in findings)
