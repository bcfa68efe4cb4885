"""From a recipe and its freshly built model to everything that its verdicts depend on, one digest for each part."""

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

from onnx_ci import devices, installed
from onnx_ci.calls import Call, PrepareError, SkippedByRecipeError, build_on
from onnx_ci.config import Settings
from onnx_ci.content import Digester
from onnx_ci.copies import copied_call
from onnx_ci.global_state import custom_symbolics
from onnx_ci.module_values import module_values
from onnx_ci.program import program_digest
from onnx_ci.recipe import Recipe
from onnx_ci.records import Cell
from onnx_ci.sources import (
    NotCacheableError,
    closure,
    is_installed,
    is_library,
    loaded_project_modules,
    read_source,
)

__all__ = ["Fingerprint", "NotCacheableError", "fingerprint"]

NO_MATTER = frozenset(
    {
        "root",
        "opsets",
        "sample",
        "devices",
        "exporters",
        "select",
        "tags",
        "recipe_files",
        "packages",
        "weights",
        "report",
        "artifacts",
        "isolation",
        "jobs",
        "timeout",
        "memory_limit",
        "cache",
        "baseline",
        "baseline_folder",
        "baseline_policy",
        "baseline_limits",
        "shard",
        "durations",
        "require_devices",
        "origins",
    }
)
"""Settings that choose cells, say where files go, or are applied to verdicts. Every other setting is part of
the key, ones to come included."""

_REGISTERS = re.compile(rb"torch\.library|custom_op|onnx_symbolic|load_library|cpp_extension")
"""What stands in a file that teaches torch or the exporter operators, for every recipe of the process."""
_IN_ANY_ORDER = ("dynamic_axes", "probes", "drift", "rtol", "atol")


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What the verdicts of a recipe on a device depend on."""

    parts: Mapping[str, str]
    """By name, a digest in hexadecimal, or a short text that says itself what it is."""

    def for_cell(self, cell: Cell) -> Mapping[str, str]:
        """What the verdict of one of its cells depends on."""
        return {**self.parts, "exporter": cell.exporter, "opset": str(cell.opset), "device": cell.device}


def fingerprint(recipe: Recipe, call: Call, cell_device: str, settings: Settings) -> Fingerprint:
    """Look at everything that can change a verdict of ``recipe`` on ``cell_device``.

    Args:
        recipe: the recipe.
        call: what :func:`onnx_ci.calls.build_on` made of it, before it gets probe weights. It is neither run nor changed.
        cell_device: the device of the cells, such as ``cpu``.
        settings: those of the run.

    Raises:
        NotCacheableError: a verdict depends on something that cannot be told apart; its message says on what.
    """
    try:
        parts = _parts(recipe, call, cell_device, settings)
    except RecursionError:
        raise NotCacheableError("the model or the declaration is nested too deeply") from None
    return Fingerprint(parts=MappingProxyType(parts))


def _parts(recipe: Recipe, call: Call, device: str, settings: Settings) -> dict[str, str]:
    weights, model, arguments, declaration = Digester(), Digester(), Digester(), Digester()
    weights.add_weights(call.model)
    model.add(call.model, "the model")
    arguments.add((call.args, call.kwargs), "the arguments")
    for field in dataclasses.fields(recipe):
        if field.name != "function":
            declaration.put(field.name)
            value = getattr(recipe, field.name)
            declaration.add(_sorted(value) if field.name in _IN_ANY_ORDER else value, field.name)

    # Run before the code is looked at: what a model imports while it runs is known afterwards.
    program = program_digest(_of_ones_own(recipe, call, device, settings), recipe.seed)

    code = Digester()
    code.add(recipe.function, "the recipe's function")
    modules, files = set(code.modules), set(code.files)
    for each in (weights, model, arguments, declaration):
        modules |= each.modules
        files |= each.files
    sources = closure(modules, files)
    held = module_values(sources, files)
    while (wider := closure(modules | held.modules, files | held.files)) != sources:  # values bring code along
        modules, files, sources = modules | held.modules, files | held.files, wider
        held = module_values(sources, files)
    code.add(dict(sorted(sources.items())), "the code")

    return {
        "arguments": arguments.hexdigest(),
        "code": code.hexdigest(),
        "declaration": declaration.hexdigest(),
        "flags": _digest(_flags()),
        "globals": held.hexdigest(),
        "model": model.hexdigest(),
        "onnx-ci": _digest(installed.own_files()),
        "operators": _operators(),
        "program": program,
        "settings": _settings(recipe, settings),
        "versions": _digest({**installed.versions(), **_torch_build(device)}),
        "weights": weights.hexdigest(),
    }


def _of_ones_own(recipe: Recipe, call: Call, device: str, settings: Settings) -> Call:
    """A call like the given one, to run."""
    copied = copied_call(call)
    if copied is not None:
        return copied
    try:
        rebuilt = build_on(recipe, device, settings.weights_for(recipe.name))
    except (PrepareError, SkippedByRecipeError):
        raise NotCacheableError("the recipe does not build its model a second time") from None
    if rebuilt.model is call.model:
        raise NotCacheableError("the recipe returns one and the same model each time, which cannot be copied")
    return rebuilt


def _digest(texts: Mapping[str, str]) -> str:
    hashed = hashlib.sha256()
    for name, text in sorted(texts.items()):
        hashed.update(f"{len(name)} {len(text)} {name} {text}\n".encode("utf-8", "surrogateescape"))
    return hashed.hexdigest()


def _sorted(value: Any) -> Any:
    """Mappings in the order of their keys, which these declarations do not depend on."""
    if not isinstance(value, Mapping):
        return value
    return {key: _sorted(value[key]) for key in sorted(value, key=repr)}


def _settings(recipe: Recipe, settings: Settings) -> str:
    digester = Digester()
    for field in dataclasses.fields(settings):
        if field.name not in NO_MATTER:
            value = getattr(settings, field.name)
            digester.put(field.name)
            digester.add(sorted(value) if field.name == "without" else value, field.name)
    digester.add(settings.weights_for(recipe.name), "weights")
    return digester.hexdigest()


def _operators() -> str:
    """Operators that somebody taught torch or the exporter in this process, with all the code behind them."""
    digester = Digester()
    for name, function in custom_symbolics().items():
        digester.put("symbolic", name)
        digester.add(function, f"the symbolic function of {name}")
    for name, definition in _custom_operators():
        digester.put("operator", name)
        digester.add(definition, f"the operator {name}")
    for library in sorted(torch.ops.loaded_libraries):
        if not is_installed(library):
            digester.put("library", read_source(library).digest)
    teaching = [name for name in loaded_project_modules() if _teaches(str(sys.modules[name].__file__))]
    digester.add(dict(sorted(closure(digester.modules.union(teaching), digester.files).items())), "the operators' code")
    return digester.hexdigest()


def _teaches(file: str) -> bool:
    try:
        return file.endswith(".py") and _REGISTERS.search(Path(file).read_bytes()) is not None
    except OSError:
        return False  # generated, used and removed; what it registered is found without its file


def _custom_operators() -> Iterator[tuple[str, Any]]:
    """Functions given to ``torch.library.custom_op``, but for those of installed packages."""
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
    """Global switches of torch, and the environment variables that it and the runtimes listen to."""
    with devices.exact_arithmetic():  # as every cell runs
        switches = {
            "optimised": sys.flags.optimize,  # leaves out assertions
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
