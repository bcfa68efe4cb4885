"""The comparison of two files, from their paths to the result: interfaces first, then numbers, in a process of its own."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from onnx_ci.config.settings import Settings, check_writable
from onnx_ci.errors import (
    ConfigurationError,
    EnvironmentLacksError,
    ExitCode,
    OnnxCiError,
    did_you_mean,
    existing_file,
    first_line,
)
from onnx_ci.onnx_model.precision import PRECISIONS, has_int8_tensors, lowest_precision
from onnx_ci.onnx_model.saved_inputs import ExpectedInput, find_inputs, read_inputs
from onnx_ci.onnx_model.signature import Signature, Value, axis_variables, check, read_model, read_signature
from onnx_ci.processes.apart import run_apart
from onnx_ci.processes.limits import process_limits
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.processes.supervisor import LAST, Death, Send
from onnx_ci.results.json_data import from_json, to_json
from onnx_ci.results.records import Finding, Severity
from onnx_ci.results.rules import finding
from onnx_ci.two_files.file_comparison import FileComparison
from onnx_ci.two_files.interfaces import Interfaces, Pairs, compare_interfaces, type_name

if TYPE_CHECKING:
    import torch

    from onnx_ci.two_files.runs import Sizes


def compare_files(one: Path, other: Path, settings: Settings, *, sizes: Sizes) -> FileComparison:
    """Compare two files, with isolation in a process of its own, so that a crash of a runtime becomes a finding.

    Args:
        one: the first file.
        other: the second file.
        settings: limits of drift, allowed rules, isolation, files with inputs, where failing inputs are written.
        sizes: sizes of dynamic axes by name: the first is that of the example, the others are tried, too.

    Raises:
        OnnxCiError: a file does not exist or cannot be written, or the inputs or sizes do not fit the files.
    """
    existing_file(one)
    existing_file(other)
    check_writable(dataclasses.replace(settings, report=None, artifacts=None))
    compare = functools.partial(_compare, one, other, settings, sizes)
    if settings.isolation == "none":
        return compare(lambda step: None).allowing(settings.allow)
    result, step = FileComparison(reference=str(one), tested=str(other), findings=()), "starting"
    try:
        limits = process_limits(settings.timeout, settings.memory_limit)
        for _, event in run_apart({"compare": functools.partial(_send, compare)}, limits, settings.isolation):
            if isinstance(event, Death):
                found = finding(event.cause, f"the process {event.message} while {step}", remedy=_REMEDIES[event.cause])
                result = dataclasses.replace(result, findings=(found,), log=event.log)
            elif LAST not in event:
                step = event["step"]
            elif "error" in event[LAST]:
                raise _KINDS[event[LAST]["code"]](event[LAST]["error"])
            else:
                result = from_json(FileComparison, event[LAST])
    except OSError as error:
        raise EnvironmentLacksError(f"no process could be started: {error}; use --isolation=none") from None
    return result.allowing(settings.allow)


_REMEDIES = {
    "crash": "A runtime crashes on one of the files: onnx-ci check says which of them it can load.",
    "timeout": "Allow more time (--timeout=SECONDS), or choose smaller sizes: --size.",
    "out-of-memory": "Allow more memory (--memory-limit), or choose smaller sizes: --size.",
}
_KINDS = {int(ExitCode.USAGE): ConfigurationError, int(ExitCode.ENVIRONMENT): EnvironmentLacksError}


def _send(compare: Callable[[Callable[[str], None]], FileComparison], send: Send) -> None:
    try:
        result = compare(lambda step: send({"step": step}))
    except OnnxCiError as error:
        send({LAST: {"error": str(error), "code": int(error.exit_code)}})
    else:
        send({LAST: to_json(result)})


def _compare(one: Path, other: Path, settings: Settings, sizes: Sizes, announce: Callable[[str], None]) -> FileComparison:
    """Compare two files. Announces each step, in case it kills the process."""
    announce("reading the files")
    paths = [one, other]
    models = [read_model(path) for path in paths]
    signatures = [read_signature(path) for path in paths]
    unusable = [_about(each, path) for each, path in zip(signatures, paths, strict=True) if isinstance(each, Finding)]
    if unusable:
        return FileComparison(reference=str(one), tested=str(other), findings=tuple(unusable))
    # The more precise file is the reference: its rounding is the smaller unit.
    if _coarseness(models[0]) > _coarseness(models[1]):
        paths.reverse()
        signatures.reverse()
    announce("checking the files")
    reference, tested = (each for each in signatures if isinstance(each, Signature))
    names = str(paths[0]), str(paths[1])
    interfaces = compare_interfaces(reference, tested, names)
    findings = [*interfaces.findings]
    for path, signature in zip(paths, (reference, tested), strict=True):
        for each in check(path, signature):
            # What the checker finds wrong with one file is no difference from the other, if a runtime loads it.
            severity = Severity.NOTE if each.rule == "checker" else each.severity
            findings.append(dataclasses.replace(_about(each, path), severity=severity))
    result = FileComparison(reference=names[0], tested=names[1], findings=tuple(findings))
    if interfaces.inputs is None or not interfaces.outputs or any(each.rule == "external-data" for each in findings):
        return result
    return _with_numbers(result, (reference, tested), interfaces, settings, sizes, announce)


def _with_numbers(
    result: FileComparison,
    signatures: tuple[Signature, Signature],
    interfaces: Interfaces,
    settings: Settings,
    sizes: Sizes,
    announce: Callable[[str], None],
) -> FileComparison:
    """``result`` with what the files compute."""
    from onnx_ci.matrix.plan import DriftLimit
    from onnx_ci.stages.compare.attribution import int8_overflow
    from onnx_ci.stages.run.onnxruntime import OnnxRuntime
    from onnx_ci.two_files.runs import LoadedFile, compare_runs

    reference, names = signatures[0], (result.reference, result.tested)
    _check_sizes(sizes, reference)
    given = dict(_given_inputs(reference.inputs, settings))
    if not given:
        _check_drawable(reference.inputs, result.reference)
    pairs: Pairs = interfaces.inputs or ()
    places = dict(zip((its for _, its in pairs), (ours for ours, _ in pairs), strict=True))
    positions = range(len(pairs)), [places[place] for place in range(len(pairs))]
    outputs = [place for place, _ in interfaces.outputs], [place for _, place in interfaces.outputs]
    limit = DriftLimit(default=settings.max_drift, rtol=settings.rtol, atol=settings.atol)

    def compared(runtime: OnnxRuntime) -> FileComparison:
        files, errors = [], []
        for number, name in enumerate(names):
            announce(f"loading {name}")
            try:
                file = LoadedFile(runtime, name, Path(name), signatures[number], positions[number], outputs[number])
                files.append(file)
            except Exception as error:  # ONNX Runtime raises its own classes
                errors.append(finding("load-error", f"onnxruntime cannot load {name}: {first_line(error)}"))
        if errors:
            return dataclasses.replace(result, findings=(*result.findings, *errors))
        announce("running the files")
        with scratch_folder() as scratch:
            made = compare_runs(files[0], files[1], given, sizes, limit, scratch, settings.save_inputs)
        findings = (*result.findings, *made.findings)
        return dataclasses.replace(result, findings=findings, outputs=made.outputs, left_out=made.left_out)

    def errors_in(compared: FileComparison) -> list[Finding]:
        return [each for each in compared.findings[len(result.findings) :] if each.severity is Severity.ERROR]

    usual = compared(OnnxRuntime())
    wrong = errors_in(usual)
    if not wrong or not any(has_int8_tensors(onnx.load(path, load_external_data=False)) for path in names):
        return usual
    exact = compared(OnnxRuntime(exact_int8=True))
    return usual if errors_in(exact) else dataclasses.replace(exact, findings=(*exact.findings, int8_overflow(wrong[0])))


def _given_inputs(values: Sequence[Value], settings: Settings) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """The inputs in the files that the settings name.

    Raises:
        ConfigurationError: one cannot be read, or does not fit the values.
    """
    from onnx_ci.stages.model.arrays import as_tensor

    if not settings.inputs:
        return
    expected = []
    for value in values:
        dims = None if value.dims is None else tuple(dim if isinstance(dim, int) else None for dim in value.dims)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.element_type)
        expected.append(ExpectedInput(name=value.name, dtype=dtype, dims=dims))
    for name, path in find_inputs(Path.cwd(), settings.inputs).items():
        yield name, [as_tensor(array) for array in read_inputs(path, expected)]


def _about(found: Finding, path: Path) -> Finding:
    return dataclasses.replace(found, message=f"{path}: {found.message}")


def _coarseness(model: object) -> int:
    precision = lowest_precision(model) if isinstance(model, onnx.ModelProto) else None
    return 0 if precision is None else 1 + list(PRECISIONS).index(precision.name)


def _check_sizes(sizes: Sizes, signature: Signature) -> None:
    """Check that the axes for which sizes are given exist.

    Raises:
        ConfigurationError: one does not.
    """
    known = axis_variables(signature.inputs).positions
    for label in sizes:
        if label not in known:
            listed = f"the dynamic axes are {', '.join(known)}" if known else "no axis is dynamic"
            raise ConfigurationError(f"no input has a dynamic axis {label!r}{did_you_mean(label, known)}; {listed}")


def _check_drawable(values: Sequence[Value], name: str) -> None:
    """Check that inputs can be made from a signature.

    Raises:
        ConfigurationError: they cannot; the message names the input.
    """
    for value in values:
        if value.dims is None or type_name(value) in ("string", "complex64", "complex128"):
            kind = "no declared rank" if value.element_type else "a type that is not a tensor"
            what = f"the type {type_name(value)}" if value.dims is not None else kind
            raise ConfigurationError(f"input {value.name!r} of {name} has {what}, so none can be made; give inputs: --inputs")
