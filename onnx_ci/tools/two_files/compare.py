"""Two files compared, from their paths to the result: interfaces first, then numbers, in a process of its own.

Numbers are compared as those of a recipe and its file are: the more precise file is the reference, and drift is the
difference in units of its rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import onnx

from onnx_ci.api import FileOptions, settings_of
from onnx_ci.config.settings import Settings, check_writable
from onnx_ci.config.values import EVERY_RECIPE
from onnx_ci.environment.versions import require_runtime
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
from onnx_ci.onnx_model.signature import Signature, Value, check, read_model, read_signature
from onnx_ci.processes.limits import Limits
from onnx_ci.processes.run_in_child import run_in_child
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.processes.supervisor import LAST, Death, Send
from onnx_ci.results.json_data import from_json, to_json
from onnx_ci.results.records import Finding, OutputDrift, Severity, Status, worst_of
from onnx_ci.results.rules import finding
from onnx_ci.results.verdict import broken_rules, with_severities
from onnx_ci.tools.two_files.interfaces import ComparedFile, Interfaces, Sizes, axis_variables, compare_interfaces, type_name
from onnx_ci.tools.two_files.weights import compare_weights

if TYPE_CHECKING:
    import torch

    from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime
    from onnx_ci.tools.two_files.runs import Request, Runs


Announce = Callable[[str], None]
"""Tells the process that supervises the comparison about each step, which is the one to blame if this process dies."""


@dataclass(frozen=True, kw_only=True)
class FileComparison:
    """How two ONNX files differ, in their interfaces and in what they compute."""

    reference: str
    """The file whose outputs are taken as right and whose rounding is the unit of drift: the first one, unless it computes in
    a lower precision than the second."""
    tested: str
    """The other file."""
    findings: tuple[Finding, ...]
    outputs: tuple[OutputDrift, ...] = ()
    """How far the outputs of the tested file deviate, on each input that both accept."""
    left_out: tuple[str, ...] = ()
    """The names of inputs that both files reject, so that nothing was compared on them."""
    log: str = ""
    """The last output of a process that died."""

    @property
    def status(self) -> Status:
        """``PASSED`` if the files are the same: no finding is an error."""
        return Status.FAILED if broken_rules(self.findings) else Status.PASSED

    @property
    def worst(self) -> OutputDrift | None:
        """The output with the largest drift relative to its limit; ``None`` if no numbers were compared."""
        return worst_of(self.outputs)


class CompareOptions(FileOptions, total=False):
    """The settings that affect a comparison of two files. Each takes the values that its flag or ``pyproject.toml`` takes."""

    save_inputs: str | Path


def compare(
    a: str | Path,
    b: str | Path,
    *,
    sizes: Mapping[str, int | Sequence[int]] | None = None,
    **options: Unpack[CompareOptions],
) -> FileComparison:
    """Compare any two ONNX files: their interfaces, and what ONNX Runtime computes with them on the same inputs.

    The inputs follow from the signature: several random ones, other sizes of dynamic axes, zeros, negated and larger numbers.
    One of the files is the reference. ONNX's reference evaluator runs it in float64 where it can, and the unit of the
    difference is the rounding of that file. If one file computes in a lower precision (float16, bfloat16, int8, int4), a
    difference that the rounding of that precision explains is a note.

    Args:
        a: the path of a file, with its external data in the same folder.
        b: the path of another file.
        sizes: sizes of dynamic axes by name: ``{"batch": 4}``, or several to try: ``{"batch": (4, 1)}``. An axis without a
            name is called ``input[axis]``. Default: onnx-ci chooses them.
        **options: settings, as for :func:`run`.

    Returns:
        The findings and the drift of each output. Files that differ are a result, not an exception.

    Raises:
        OnnxCiError: a file does not exist, a setting or size is invalid, or ONNX Runtime is not installed.
    """
    settings = settings_of(options, CompareOptions.__optional_keys__, "a comparison of files")
    require_runtime()
    sizes_by_axis = {axis: (size,) if isinstance(size, int) else tuple(size) for axis, size in (sizes or {}).items()}
    for axis, sizes_of_axis in sizes_by_axis.items():
        if not sizes_of_axis or not all(isinstance(size, int) and size >= 1 for size in sizes_of_axis):
            raise ConfigurationError(f"sizes[{axis!r}] must be sizes of at least 1, not {sizes_of_axis!r}")
    return compare_files(Path(a), Path(b), settings, sizes=sizes_by_axis)


def compare_files(first: Path, second: Path, settings: Settings, *, sizes: Sizes) -> FileComparison:
    """Compare two files, with isolation in a process of its own, so that a crash of a runtime becomes a finding.

    Raises:
        OnnxCiError: a file does not exist or cannot be written, or the inputs or sizes do not fit the files.
    """
    existing_file(first)
    existing_file(second)
    check_writable(replace(settings, report=None, artifacts=None))
    compare = functools.partial(_compare, first, second, settings, sizes)
    result, step = FileComparison(reference=str(first), tested=str(second), findings=()), "starting"
    limits = Limits.of(settings)
    for event in run_in_child(functools.partial(_send, compare), limits, settings.isolation):
        if isinstance(event, Death):
            death = finding(event.cause, f"the process {event.message} while {step}", remedy=_REMEDIES[event.cause])
            result = replace(result, findings=(death,), log=event.log)
        elif LAST not in event:
            step = event["step"]
        elif "error" in event[LAST]:
            raise _KINDS[event[LAST]["code"]](event[LAST]["error"])
        else:
            result = from_json(FileComparison, event[LAST])
    return replace(result, findings=tuple(with_severities(result.findings, settings.severities_for(EVERY_RECIPE))))


_REMEDIES = {
    "crash": "A runtime crashes on one of the files: onnx-ci verify says which of them it can load.",
    "timeout": "Allow more time (--timeout=SECONDS), or choose smaller sizes: --size.",
    "out-of-memory": "Allow more memory (--memory-limit), or choose smaller sizes: --size.",
}
_KINDS = {int(ExitCode.USAGE): ConfigurationError, int(ExitCode.ENVIRONMENT): EnvironmentLacksError}


def _send(compare: Callable[[Announce], FileComparison], send: Send) -> None:
    try:
        result = compare(lambda step: send({"step": step}))
    except OnnxCiError as error:
        send({LAST: {"error": str(error), "code": int(error.exit_code)}})
    else:
        send({LAST: to_json(result)})


def _compare(first: Path, second: Path, settings: Settings, sizes: Sizes, announce: Announce) -> FileComparison:
    """Compare two files, in this process."""
    announce("reading the files")
    # The more precise file is the reference: its rounding is the smaller unit.
    paths = sorted([first, second], key=lambda path: _coarseness(read_model(path)))
    signatures = [read_signature(path) for path in paths]
    unusable = [_about(each, path) for each, path in zip(signatures, paths, strict=True) if isinstance(each, Finding)]
    if unusable:
        return FileComparison(reference=str(first), tested=str(second), findings=tuple(unusable))
    announce("checking the files")
    reference, tested = (each for each in signatures if isinstance(each, Signature))
    interfaces = compare_interfaces(reference, tested, (str(paths[0]), str(paths[1])))
    findings = [*interfaces.findings]
    for path, signature in zip(paths, (reference, tested), strict=True):
        for fault in check(path, signature):
            # What the checker finds wrong with one file is no difference from the other, if a runtime loads it.
            severity = Severity.NOTE if fault.rule == "checker" else fault.severity
            findings.append(replace(_about(fault, path), severity=severity))
    result = FileComparison(reference=str(paths[0]), tested=str(paths[1]), findings=tuple(findings))
    if interfaces.inputs is None or not interfaces.outputs or any(each.rule == "external-data" for each in findings):
        return result
    numbers = _compare_numbers(_compared_files(paths, (reference, tested), interfaces), settings, sizes, announce)
    return replace(
        result,
        findings=(*findings, *numbers.findings, *compare_weights(paths[0], paths[1], settings.max_drift)),
        outputs=numbers.outputs,
        left_out=numbers.left_out,
    )


def _compared_files(
    paths: Sequence[Path], signatures: tuple[Signature, Signature], interfaces: Interfaces
) -> tuple[ComparedFile, ComparedFile]:
    """The files with the positions of their corresponding inputs and outputs, the reference first."""
    inputs = interfaces.inputs or ()
    of_tested = [reference for reference, _ in sorted(inputs, key=lambda pair: pair[1])]
    reference, tested = (
        ComparedFile(path=path, signature=signature, input_places=places, output_places=outputs)
        for path, signature, places, outputs in zip(
            paths, signatures, (range(len(inputs)), of_tested), zip(*interfaces.outputs, strict=True), strict=True
        )
    )
    return reference, tested


def _compare_numbers(files: tuple[ComparedFile, ComparedFile], settings: Settings, sizes: Sizes, announce: Announce) -> Runs:
    """What the files compute. If only exact sums of int8 products make them agree, that is a warning."""
    from onnx_ci.matrix.drift_limit import DriftLimit
    from onnx_ci.pipeline.compare.attribution import int8_overflow
    from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime
    from onnx_ci.tools.two_files.runs import Request

    reference = files[0]
    _check_sizes(sizes, reference.signature)
    inputs = dict(_given_inputs(reference.signature.inputs, settings))
    if not inputs:
        _check_drawable(reference.signature.inputs, reference.name)
    limit = DriftLimit(default=settings.max_drift)
    request = Request(inputs=inputs, sizes=sizes, limit=limit, save_inputs=settings.save_inputs)
    usual = _run(files, OnnxRuntime(), request, announce)
    wrong = [each for each in usual.findings if each.severity is Severity.ERROR]
    if not wrong or not any(has_int8_tensors(onnx.load(each.path, load_external_data=False)) for each in files):
        return usual
    exact = _run(files, OnnxRuntime(exact_int8=True), request, announce)
    if any(each.severity is Severity.ERROR for each in exact.findings):
        return usual
    return replace(exact, findings=(*exact.findings, int8_overflow(wrong[0])))


def _run(files: tuple[ComparedFile, ComparedFile], runtime: OnnxRuntime, request: Request, announce: Announce) -> Runs:
    """Load both files into a runtime and run them."""
    from onnx_ci.tools.two_files.loaded_file import LoadedFile
    from onnx_ci.tools.two_files.runs import Runs, compare_runs

    loaded, errors = [], []
    with scratch_folder() as scratch:
        for number, file in enumerate(files):
            announce(f"loading {file.name}")
            (scratch / str(number)).mkdir()
            try:
                loaded.append(LoadedFile(file, runtime, scratch / str(number)))
            except Exception as error:  # ONNX Runtime raises its own classes
                errors.append(finding("load-error", f"onnxruntime cannot load {file.name}: {first_line(error)}"))
        if errors:
            return Runs(findings=tuple(errors))
        announce("running the files")
        return compare_runs(loaded[0], loaded[1], request)


def _given_inputs(values: Sequence[Value], settings: Settings) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """The inputs in the files that the settings name."""
    from onnx_ci.pipeline.model.tensors import as_tensor

    if not settings.inputs:
        return
    expected = []
    for value in values:
        dims = None if value.dims is None else tuple(dim if isinstance(dim, int) else None for dim in value.dims)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.element_type)
        expected.append(ExpectedInput(name=value.name, dtype=dtype, dims=dims))
    for name, path in find_inputs(Path.cwd(), settings.inputs).items():
        yield name, [as_tensor(array) for array in read_inputs(path, expected)]


def _about(fault: Finding, path: Path) -> Finding:
    """The finding with the name of the file in its message."""
    return replace(fault, message=f"{path}: {fault.message}")


def _coarseness(model: onnx.ModelProto | Finding) -> int:
    """How coarse the lowest precision is in which a file computes; 0 for float32, and for a file that cannot be read."""
    precision = lowest_precision(model) if isinstance(model, onnx.ModelProto) else None
    return 0 if precision is None else 1 + list(PRECISIONS).index(precision.name)


def _check_sizes(sizes: Sizes, signature: Signature) -> None:
    """Check that the axes for which sizes are given exist."""
    axes = axis_variables(signature.inputs).positions
    for label in sizes:
        if label not in axes:
            names = f"the dynamic axes are {', '.join(axes)}" if axes else "no axis is dynamic"
            raise ConfigurationError(f"no input has a dynamic axis {label!r}{did_you_mean(label, axes)}; {names}")


def _check_drawable(values: Sequence[Value], name: str) -> None:
    """Check that inputs can be made from a signature."""
    for value in values:
        if value.dims is None or type_name(value) in ("string", "complex64", "complex128"):
            kind = "no declared rank" if value.element_type else "a type that is not a tensor"
            what = f"the type {type_name(value)}" if value.dims is not None else kind
            raise ConfigurationError(f"input {value.name!r} of {name} has {what}, so none can be made; give inputs: --inputs")
