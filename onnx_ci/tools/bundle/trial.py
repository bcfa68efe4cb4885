"""Whether a program fails by itself: exported, checked, loaded, run, and compared with PyTorch."""

from __future__ import annotations

import contextlib
import copy
import enum
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch

from onnx_ci.pipeline.export.exporter_errors import describe_error
from onnx_ci.pipeline.model.running import flatten_outputs
from onnx_ci.pipeline.model.tensors import Outputs, differences, has_noise, has_same_values, largest_value
from onnx_ci.pipeline.reference.perturbation import OtherTies
from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime
from onnx_ci.processes.capture import captured
from onnx_ci.results.records import Finding
from onnx_ci.tools.bundle.program import Program
from onnx_ci.tools.bundle.script import ExportCall, export_arguments, setup

_LIMIT = 16.0
"""How many times the program's own rounding a difference may be."""


class Failure(enum.Enum):
    """The first thing that fails, in the order in which they are tried."""

    EXPORT = "export"
    CHECK = "check"
    LOAD = "load"
    RUN = "run"
    VALUES = "values"


FAILURES = {
    **dict.fromkeys(("export-error", "unsupported-operator"), Failure.EXPORT),
    "checker": Failure.CHECK,
    "load-error": Failure.LOAD,
    "run-error": Failure.RUN,
    **dict.fromkeys(("dtype-mismatch", "shape-mismatch", "nonfinite-mismatch", "numeric-drift"), Failure.VALUES),
    **dict.fromkeys(("baked-shape", "baked-value", "runtime-disagreement"), Failure.VALUES),
}
"""How each rule that an exporter or a runtime can break shows in a program."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a program or a cell fails."""

    failure: Failure
    message: str
    """What the exporter, the checker or the runtime says; empty for values."""

    @property
    def operator(self) -> str | None:
        """The first operator of torch or ONNX that the message names. What it says about others can follow from that."""
        match = _OPERATOR.search(self.message.replace("::", "."))
        return match and match.group()

    @property
    def cause(self) -> str | None:
        """The class of the error that caused it, if the exporter raised one."""
        classes = _CLASS.findall(self.message) if self.failure is Failure.EXPORT else []
        return classes[-1] if classes else None

    def is_like(self, other: Outcome) -> bool:
        """Whether both fail in the same way.

        A runtime may reject a wrong size or compute with it. What the checker overlooks, the runtime may find later.
        """
        failures = {self.failure, other.failure}
        if failures <= {Failure.RUN, Failure.VALUES}:
            return True
        if self.operator is None:
            return len(failures) == 1 and other.operator is None and self.cause == other.cause
        can_move = failures <= {Failure.CHECK, Failure.LOAD, Failure.RUN}
        return (len(failures) == 1 or can_move) and self.operator == other.operator


# No tool gives these in a typed form.
_OPERATOR = re.compile(
    r"aten\.\w+|(?<=op_type:)\w+|(?<=No Op registered for )\w+|(?<=find an implementation for )\w+|(?<=while running )\w+"
)
_CLASS = re.compile(r"\b\w+(?:Error|Exception)\b(?=:)")


@dataclass(frozen=True, kw_only=True)
class EagerRun:
    """A program that has run in PyTorch."""

    model: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    example: tuple[torch.Tensor, ...]
    """The inputs that it is exported with."""
    expected: Outputs
    tolerance: float
    """The largest difference from ``expected`` that rounding explains."""

    def is_right(self, outputs: Sequence[torch.Tensor]) -> bool:
        """Whether a file computes what the program computes.

        Twice the tolerance is still right, so that a fault that is found here shows in the script on any machine.
        """

        def is_close(output: torch.Tensor, expected: torch.Tensor) -> bool:
            if output.shape != expected.shape or output.dtype != expected.dtype:
                return False
            return not output.numel() or differences(output, expected).max().item() <= 2 * self.tolerance

        return len(outputs) == len(self.expected) and all(map(is_close, outputs, self.expected))


def run_eagerly(program: Program) -> EagerRun | None:
    """Run a program in PyTorch.

    ``None`` if that is not possible, since a smaller size need not be valid, or if PyTorch leaves open what it computes.
    """
    namespace: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    with captured(), warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        try:
            exec(setup(program), namespace)  # noqa: S102 - the script that the user gets, written by this room
            model, inputs = namespace["model"], namespace["inputs"]
            result = model(*_copies(inputs))
        except Exception:
            return None
        results = result if isinstance(result, tuple) else (result,)
        if not all(isinstance(each, torch.Tensor) for each in results):
            return None
        expected = flatten_outputs(result)
        for is_rotated in (False, True):
            with OtherTies(is_rotated=is_rotated):  # equal values are sorted in another order
                outputs = flatten_outputs(model(*_copies(inputs)))
            if not all(map(has_same_values, expected, outputs)):
                return None
        exact = None
        with contextlib.suppress(Exception):  # not every model can run in float64
            precise = (each.double() if each.is_floating_point() else each.clone() for each in inputs)
            exact = flatten_outputs(copy.deepcopy(model).double()(*precise))
        tolerance = _tolerance(expected, exact)
    return EagerRun(
        model=model, inputs=inputs, example=namespace.get("example", inputs), expected=expected, tolerance=tolerance
    )


def attempt(program: Program, how: ExportCall, path: Path) -> Outcome | None:
    """How a program fails, whose file is written to ``path``; ``None`` if it does not, or cannot run in PyTorch."""
    path.unlink(missing_ok=True)
    reference = run_eagerly(program)
    if reference is None:
        return None
    arguments = export_arguments(program, how)
    step = Failure.EXPORT
    with captured(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(copy.deepcopy(reference.model), _copies(reference.example), str(path), verbose=False, **arguments)
            step = Failure.CHECK
            onnx.checker.check_model(str(path), full_check=True)
            step = Failure.LOAD
            session = OnnxRuntime().load(path, "cpu")
            if [each.name for each in onnx.load(path, load_external_data=False).graph.input] != arguments["input_names"]:
                return None  # an input without effect is a fault of the program
            step = Failure.RUN
            outputs = session.run(dict(zip(arguments["input_names"], reference.inputs, strict=True)))
        except Exception as error:  # each tool raises its own classes
            is_of_exporter = step is Failure.EXPORT
            return Outcome(
                failure=step, message=describe_error(error, f"the {how.exporter} exporter") if is_of_exporter else str(error)
            )
    return None if reference.is_right(outputs) else Outcome(failure=Failure.VALUES, message="")


def fails_like(finding: Finding, how: ExportCall, path: Path) -> Callable[[Program], bool]:
    """A function that says whether a program fails as a finding says of a cell. Arguments are as for :func:`attempt`."""
    wanted = Outcome(failure=FAILURES[finding.rule], message=finding.message)

    def fails(program: Program) -> bool:
        outcome = attempt(program, how, path)
        return outcome is not None and outcome.is_like(wanted)

    return fails


def _copies(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(each.clone() for each in tensors)


def _tolerance(expected: Outputs, exact: Outputs | None) -> float:
    """The largest difference that rounding explains."""
    largest = 0.0
    for position, tensor in enumerate(expected):
        if not has_noise(tensor) or not tensor.numel():
            continue
        largest = max(largest, largest_value(tensor) * torch.finfo(tensor.dtype).eps)
        if exact is not None and exact[position].shape == tensor.shape:
            largest = max(largest, largest_value(differences(tensor, exact[position])))
    return _LIMIT * largest
