"""Fingerprints: digests of everything that the verdicts of a recipe's cells depend on."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from onnx_ci.cache import installed
from onnx_ci.cache.import_closure import NotCacheableError, closure, file_digest, loaded_project_modules
from onnx_ci.cache.module_globals import module_values
from onnx_ci.cache.object_digest import Digester
from onnx_ci.cache.operator_trace import program_digest
from onnx_ci.environment.libraries import is_installed, is_library
from onnx_ci.matrix.plan import PlannedCell
from onnx_ci.onnx_model.saved_inputs import find_inputs
from onnx_ci.results.records import Cell
from onnx_ci.stages.prepare import devices
from onnx_ci.stages.prepare.copies import copied_call
from onnx_ci.stages.prepare.global_state import custom_symbolics
from onnx_ci.stages.prepare.live_model import Call, PrepareError, SkippedByRecipeError, build_on

__all__ = ["Fingerprint", "NotCacheableError", "fingerprint"]

_NOT_IN_KEY = frozenset(
    {"cell", "recipe", "inputs", "allow", "severities", "require_device", "timeout", "memory_limit", "line"}
)
"""Fields of a planned cell that are keyed elsewhere or do not affect the verdict. All other fields are part of the key,
including any that are added later."""

_REGISTERS = re.compile(rb"torch\.library|custom_op|onnx_symbolic|load_library|cpp_extension")
"""Matches files that register operators with torch or the exporter, which affects every recipe in the process."""
_UNORDERED = ("dynamic_axes", "dynamic_sizes", "feedback", "max_drift", "rtol", "atol")


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What the verdicts of a recipe on a device depend on."""

    parts: Mapping[str, str]
    """Hexadecimal digests by name; a few parts are short readable texts."""

    def for_cell(self, cell: Cell) -> Mapping[str, str]:
        """The parts for one of the recipe's cells."""
        return {
            **self.parts,
            "exporter": cell.exporter,
            "opset": str(cell.opset),
            "device": cell.device,
            "stage": cell.stage or "",
        }


def fingerprint(planned: PlannedCell, call: Call) -> Fingerprint:
    """Digest everything that can affect the verdicts of a recipe's cells on a device.

    Args:
        planned: one of the cells.
        call: what :func:`onnx_ci.stages.prepare.live_model.build_on` returned for it, before it gets probe weights. It is
            neither run nor modified.

    Raises:
        NotCacheableError: a verdict depends on something whose changes cannot be detected; the message names it.
    """
    try:
        parts = _parts(planned, call)
    except RecursionError:
        raise NotCacheableError("the model or the declaration is nested too deeply") from None
    return Fingerprint(parts=MappingProxyType(parts))


def _parts(planned: PlannedCell, call: Call) -> dict[str, str]:
    recipe, device = planned.recipe, planned.cell.device
    weights, model, arguments, declaration = Digester(), Digester(), Digester(), Digester()
    weights.add_weights(call.model)
    model.add(call.model, "the model")
    arguments.add((call.args, call.kwargs), "the arguments")
    for field in dataclasses.fields(recipe):
        if field.name != "function":
            declaration.put(field.name)
            value = getattr(recipe, field.name)
            declaration.add(_sorted(value) if field.name in _UNORDERED else value, field.name)

    # Run the model before digesting its code: it may import modules while it runs.
    program = program_digest(_own_copy(planned, call), recipe.seed)

    code = Digester()
    code.add(recipe.function, "the recipe's function")
    modules, files = set(code.modules), set(code.files)
    for each in (weights, model, arguments, declaration):
        modules |= each.modules
        files |= each.files
    sources = closure(modules, files)
    values = module_values(sources, files)
    while (wider := closure(modules | values.modules, files | values.files)) != sources:  # values can refer to more code
        modules, files, sources = modules | values.modules, files | values.files, wider
        values = module_values(sources, files)
    code.add(dict(sorted(sources.items())), "the code")

    return {
        "arguments": arguments.hexdigest(),
        "code": code.hexdigest(),
        "declaration": declaration.hexdigest(),
        "flags": _digest(_flags()),
        "globals": values.hexdigest(),
        "loaded with": ", ".join(call.loaded_with),
        "inputs": _inputs(planned),
        "model": model.hexdigest(),
        "onnx-ci": _digest(installed.own_files()),
        "operators": _operators(),
        "program": program,
        "settings": _settings(planned),
        "versions": _digest({**installed.versions(), **_torch_build(device)}),
        "weights": weights.hexdigest(),
    }


def _own_copy(planned: PlannedCell, call: Call) -> Call:
    """A copy of the call that may be run."""
    copied = copied_call(call)
    if copied is not None:
        return copied
    try:
        rebuilt = build_on(planned.recipe, planned.cell.device, planned.weights)
    except (PrepareError, SkippedByRecipeError):
        raise NotCacheableError("the recipe cannot build its model a second time") from None
    if rebuilt.model is call.model:
        raise NotCacheableError("the recipe returns the same model every time, and it cannot be copied")
    return rebuilt


def _digest(texts: Mapping[str, str]) -> str:
    hashed = hashlib.sha256()
    for name, text in sorted(texts.items()):
        hashed.update(f"{len(name)} {len(text)} {name} {text}\n".encode("utf-8", "surrogateescape"))
    return hashed.hexdigest()


def _sorted(value: Any) -> Any:
    """A mapping sorted by key, for declarations whose order has no meaning."""
    if not isinstance(value, Mapping):
        return value
    return {key: _sorted(value[key]) for key in sorted(value, key=repr)}


def _settings(planned: PlannedCell) -> str:
    digester = Digester()
    for field in dataclasses.fields(planned):
        if field.name not in _NOT_IN_KEY:
            value = getattr(planned, field.name)
            digester.put(field.name)
            digester.add(sorted(value) if field.name == "skip_stages" else value, field.name)
    digester.add("untaken-branch" in planned.allow, "allow")  # then no inputs for the other sides are sought
    return digester.hexdigest()


def _inputs(planned: PlannedCell) -> str:
    """A digest of the contents of the files with inputs, and of their names, which name the probes."""
    contents: dict[str, str] = {}
    for place, each in enumerate(planned.inputs):
        for name, path in find_inputs(each.folder, each.patterns).items():
            for file in path.iterdir() if path.is_dir() else [path]:
                if file.is_file():
                    contents[f"{place} {name} {file.name}"] = hashlib.sha256(file.read_bytes()).hexdigest()
    return _digest(contents)


def _operators() -> str:
    """A digest of the operators registered with torch or the exporter in this process, with all the code behind them."""
    digester = Digester()
    for name, function in custom_symbolics().items():
        digester.put("symbolic", name)
        digester.add(function, f"the symbolic function of {name}")
    for name, definition in _custom_operators():
        digester.put("operator", name)
        digester.add(definition, f"the operator {name}")
    for library in sorted(torch.ops.loaded_libraries):
        if not is_installed(library):
            digester.put("library", file_digest(library))
    registering = [name for name in loaded_project_modules() if _registers_operators(str(sys.modules[name].__file__))]
    digester.add(dict(sorted(closure(digester.modules.union(registering), digester.files).items())), "the operators' code")
    return digester.hexdigest()


def _registers_operators(file: str) -> bool:
    try:
        return file.endswith(".py") and _REGISTERS.search(Path(file).read_bytes()) is not None
    except OSError:
        return False  # a generated file that was removed; its operators are found without it


def _custom_operators() -> Iterator[tuple[str, Any]]:
    """Functions passed to ``torch.library.custom_op``, except those of installed packages."""
    found = sys.modules.get("torch._library.custom_ops")
    for name, definition in sorted(getattr(found, "OPDEFS", {}).items()):
        functions = [
            definition._init_fn,
            definition._abstract_fn,
            *(each for _, each in sorted(definition._backend_fns.items())),
        ]
        own = [each for each in functions if isinstance(each, types.FunctionType) and not is_library(str(each.__module__))]
        if own:
            yield name, own


def _torch_build(device: str) -> Mapping[str, str]:
    build = {
        "torch git": str(torch.version.git_version),
        "torch cuda": str(torch.version.cuda),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
    }
    return build if device == "cpu" else {**build, **devices.gpus.describe(device)}


def _flags() -> Mapping[str, str]:
    """Global flags of torch, and the environment variables that torch and the runtimes read."""
    with devices.exact_arithmetic():  # as in every cell
        switches = {
            "optimised": sys.flags.optimize,  # -O removes assertions
            "default dtype": torch.get_default_dtype(),
            "default device": torch.get_default_device(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "deterministic, warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
            "float32 matmul": torch.get_float32_matmul_precision(),
            "grad": torch.is_grad_enabled(),
            "inference": torch.is_inference_mode_enabled(),
            "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
            "flush denormal": torch.tensor(1e-320, dtype=torch.float64).mul(1).item() == 0.0,
            "mkldnn": torch.backends.mkldnn.enabled,
            "cudnn": (torch.backends.cudnn.enabled, torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
            "attention": (
                torch.backends.cuda.flash_sdp_enabled(),  # type: ignore[no-untyped-call]
                torch.backends.cuda.mem_efficient_sdp_enabled(),  # type: ignore[no-untyped-call]
                torch.backends.cuda.math_sdp_enabled(),  # type: ignore[no-untyped-call]
                torch.backends.cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
            ),
        }
    return {**{name: str(value) for name, value in switches.items()}, **installed.variables()}
