"""What does not work here, why, and how to fix it: facts about the environment, and rules that turn them into troubles."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.config.settings import SettingError, Settings
from onnx_ci.environment.packages import Package, inspect_packages
from onnx_ci.environment.versions import missing_runtime
from onnx_ci.errors import EnvironmentLacksError
from onnx_ci.opsets import DEFAULT_OPSETS, FIRST_DYNAMO_OPSET, OPEN_END
from onnx_ci.processes.control_groups import usable_cores
from onnx_ci.processes.limits import Limits, gib, machine_memory
from onnx_ci.processes.run_in_child import run_in_child
from onnx_ci.processes.supervisor import LAST, Death, Send
from onnx_ci.version import __version__

SMALL_DISK = 2 * 2**30
"""Free bytes below which a typical model may not fit: an export needs a multiple of its weights."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Something that does not work."""

    subject: str
    """A package, ``cuda``, ``cache``, …"""
    message: str
    remedy: str
    stops: bool = False
    """Whether it prevents the run specified by the settings."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentFacts:
    """The facts about the environment."""

    settings: Settings
    wrong_settings: Sequence[SettingError]
    packages: Mapping[str, Package]
    runtime_is_missing: tuple[str, str] | None
    has_nvidia_gpu: bool
    """Whether the system lists an NVIDIA GPU, usable or not."""
    nvidia_driver: bool
    visible_gpus: str | None
    """The value of CUDA_VISIBLE_DEVICES; ``None`` if it is not set."""
    processors: int
    """How many processors the machine has."""
    usable_processors: int
    """How many of them this process may use at once."""
    memory: int | None
    """The machine's memory in bytes; ``None`` if unknown."""
    memory_limit: int | None
    """The part of it that this process may use, according to its control groups."""
    temporary: Path | None
    """The folder for temporary files; ``None`` if there is none."""
    free: Mapping[str, int]
    """Free bytes, by purpose: ``temporary``, ``cache``."""
    cache_error: str
    """Why verdicts cannot be cached; empty if they can."""
    process_error: str
    """Why cells cannot run in their own processes; empty if they can."""

    def package(self, name: str) -> Package | None:
        """The package called ``name``, if it is installed and can be imported."""
        package = self.packages.get(name)
        return None if package is None or package.error else package

    @property
    def runtime(self) -> Package | None:
        """ONNX Runtime from either of its wheels."""
        return self.package("onnxruntime") or self.package("onnxruntime-gpu")


def examine(settings: Settings, wrong_settings: Sequence[SettingError]) -> EnvironmentFacts:
    """Gather the facts."""
    try:
        temporary: Path | None = Path(tempfile.gettempdir())
    except OSError:
        temporary = None
    cache = settings.cache_folder and _existing(settings.cache_folder)
    folders = {"temporary": temporary, "cache": cache}
    return EnvironmentFacts(
        settings=settings,
        wrong_settings=wrong_settings,
        packages=inspect_packages(),
        runtime_is_missing=missing_runtime(),
        has_nvidia_gpu=_has_nvidia_gpu(Path("/sys/bus/pci/devices")),
        nvidia_driver=Path("/proc/driver/nvidia/version").exists(),
        visible_gpus=os.environ.get("CUDA_VISIBLE_DEVICES"),
        processors=os.cpu_count() or 1,
        usable_processors=usable_cores(),
        memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None,
        memory_limit=machine_memory() if hasattr(os, "sysconf") else None,
        temporary=temporary,
        free={name: shutil.disk_usage(folder).free for name, folder in folders.items() if folder is not None},
        cache_error=_cannot_write(cache) if cache else "",
        process_error=_cannot_start(settings.isolation) if settings.isolation != "none" and temporary else "",
    )


def describe(facts: EnvironmentFacts) -> dict[str, str]:
    """A description of the environment, by topic."""
    settings = facts.settings
    libc = " ".join(filter(None, platform.libc_ver()))
    memory = gib(facts.memory) if facts.memory else "unknown"
    if facts.memory and facts.memory_limit and facts.memory_limit < facts.memory:
        memory += f", of which this process may use {gib(facts.memory_limit)}"
    processors = str(facts.processors)
    if facts.usable_processors < facts.processors:
        processors += f", of which this process may use {facts.usable_processors}"
    free = [
        f"{gib(facts.free[name])} free for {what} in {place}"
        for name, what, place in (
            ("temporary", "temporary files", facts.temporary),
            ("cache", "verdicts", settings.cache),
        )
        if name in facts.free
    ]
    torch = facts.package("torch")
    return {
        "onnx-ci": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": ", ".join(filter(None, [platform.platform(), libc])),
        "processors": processors,
        "memory": memory,
        "disk": ", ".join(free),
        **{name: _describe_package(package) for name, package in facts.packages.items()},
        "devices": ", ".join(["cpu", *(torch.facts["gpus"] if torch else [])]),
        "isolation": settings.isolation,
    }


def _describe_package(package: Package) -> str:
    facts = package.facts
    phrases = {
        "torchscript_opsets": lambda ends: f"TorchScript for opsets {ends[0]}-{ends[1]}, default to {FIRST_DYNAMO_OPSET - 1}",
        "dynamo_opsets_from": lambda opset: f"dynamo from {opset}",
        "cuda": lambda version: f"built for CUDA {version}" if version else "built for the CPU",
        "driver_cuda": lambda version: f"driver for CUDA up to {version}",
        "cudnn": lambda version: f"cuDNN {version}" if version else "no cuDNN",
        "opset": lambda opset: f"opsets up to {opset}",
        "ir_version": lambda version: f"IR versions up to {version}",
        "providers": ", ".join,
    }
    return ", ".join([package.version, *(phrase(facts[key]) for key, phrase in phrases.items() if key in facts)])


# --- facts ----------------------------------------------------------------------------------------------------------


def _has_nvidia_gpu(devices: Path) -> bool:
    """Whether Linux lists a PCI display controller (class 3) of NVIDIA (vendor 10de)."""
    for device in devices.glob("*"):
        with contextlib.suppress(OSError):
            vendor, kind = (device.joinpath(name).read_text().strip() for name in ("vendor", "class"))
            if vendor == "0x10de" and kind.startswith("0x03"):
                return True
    return False


def _existing(folder: Path) -> Path:
    """``folder``, or its nearest existing parent."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def _cannot_write(folder: Path) -> str:
    """Why nothing can be written into ``folder``; empty if something can."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _cannot_start(isolation: str) -> str:
    """Why a process cannot be started and watched; empty if it can."""
    try:
        for event in run_in_child(_send_something, Limits(seconds=30), isolation):
            if isinstance(event, Death):
                return f"a process {event.message}"
    except EnvironmentLacksError as error:
        return str(getattr(error.__cause__, "strerror", None) or error.__cause__)
    return ""


def _send_something(send: Send) -> None:
    send({LAST: True})


# --- troubles -------------------------------------------------------------------------------------------------------


def diagnose(facts: EnvironmentFacts) -> list[Trouble]:
    """Everything that does not work; what prevents the run comes first."""
    troubles = [trouble for rule in _RULES for trouble in rule(facts)]
    return sorted(troubles, key=lambda trouble: not trouble.stops)


def _settings(facts: EnvironmentFacts) -> Iterator[Trouble]:
    for error in facts.wrong_settings:
        yield Trouble(subject="settings", message=str(error), remedy="onnx-ci config --check shows the line.", stops=True)


_OPTIONAL = ("torchvision", "onnxscript", "pytest", "github-action-toolkit")
"""Packages that the default run does not need."""
_WITHOUT = {
    "torchvision": "recipes that import it do not work",
    "onnxscript": "the dynamo exporter does not work",
    "pytest": "pytest --onnx-export does not work",
    "github-action-toolkit": "the action works without it",
}


_OTHER_BUILD = (
    "Install the torchvision that matches this torch, from the index that torch came from: PyPI's is built for CUDA. Recipes "
    "that only need its model definitions can use onnx_ci.recipes.models.torchvision_models."
)
_IMPORT_REMEDIES = tuple(
    (re.compile(pattern), remedy)
    for pattern, remedy in (
        (r"torchvision::nms does not exist|_C.*undefined symbol", _OTHER_BUILD),
        (r"No module named", "Install the missing package."),
        (r"GLIBC", "This build needs a newer system: use an older version, or a newer system."),
        (r"lib(?:cudart|cublas|cudnn|cufft|curand|nccl|nvrtc|cusparse)", "Install the CUDA libraries, or the CPU build."),
        (r"multiarray|_ARRAY_API|NumPy 1", "It is incompatible with the installed numpy: upgrade both."),
        (r"[Gg]it executable", "Install git."),
        (r"SIGILL", "This build needs a newer processor: use an older version."),
    )
)


def _imports(facts: EnvironmentFacts) -> Iterator[Trouble]:
    for name, package in facts.packages.items():
        if package.error:
            reinstall = f"Reinstall it: pip install --force-reinstall --no-deps {name}=={package.version}"
            without = f"; {_WITHOUT[name]}" if name in _WITHOUT else ""
            yield Trouble(
                subject=name,
                message=f"{name} {package.version} cannot be imported: {package.error}{without}",
                remedy=next((advice for pattern, advice in _IMPORT_REMEDIES if pattern.search(package.error)), reinstall),
                stops=name not in _OPTIONAL,
            )


def _runtime(facts: EnvironmentFacts) -> Iterator[Trouble]:
    if facts.runtime_is_missing is not None:
        message, remedy = facts.runtime_is_missing
        yield Trouble(subject="onnxruntime", message=message, remedy=remedy, stops=True)
    elif facts.runtime is not None and "CPUExecutionProvider" not in facts.runtime.facts["providers"]:
        message = (
            f"ONNX Runtime has no CPUExecutionProvider (available: {', '.join(facts.runtime.facts['providers']) or 'none'})"
        )
        yield Trouble(subject="onnxruntime", message=message, remedy="install onnx-ci[cpu]", stops=True)


def _cuda(facts: EnvironmentFacts) -> Iterator[Trouble]:
    """Why cells cannot run on CUDA, if that matters here."""
    torch = facts.package("torch")
    requested = [device.partition(":")[2] or "0" for device in facts.settings.devices if device != "cpu"]
    if torch is not None and (reason := next(_cuda_reasons(facts, torch, requested), None)) is not None:
        message, remedy = reason
        yield Trouble(subject="cuda", message=message, remedy=remedy, stops=bool(requested))


def _cuda_reasons(facts: EnvironmentFacts, torch: Package, requested: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Messages and remedies. The first one counts: what comes later may follow from it."""
    built, gpus = torch.facts["cuda"], torch.facts["gpus"]
    if not built:
        if facts.has_nvidia_gpu or requested:
            why = "there is an NVIDIA GPU here" if facts.has_nvidia_gpu else "the settings request cuda"
            yield (
                f"{why}, but torch {torch.version} is built for the CPU",
                "For cells on CUDA, install a CUDA build of torch, and onnx-ci[cuda] instead of onnx-ci[cpu].",
            )
    elif not gpus:
        yield from _unusable_gpu(facts, torch)
    else:
        if missing := next((index for index in requested if int(index) >= len(gpus)), ""):
            yield (
                f"the settings request cuda:{missing}, but torch sees only cuda:0 to cuda:{len(gpus) - 1}",
                "Choose an existing one; CUDA_VISIBLE_DEVICES determines which GPUs torch sees.",
            )
        if not torch.facts.get("cudnn", True):
            yield (
                f"torch can use {gpus[0]}, but finds no cuDNN, which convolutions need",
                "Reinstall torch from the index that it came from: its wheels include cuDNN.",
            )
        if facts.runtime is not None:
            yield from _runtime_on_cpu(facts.runtime, built, gpus[0])


def _unusable_gpu(facts: EnvironmentFacts, torch: Package) -> Iterator[tuple[str, str]]:
    """Why a torch that is built for CUDA sees no GPU."""
    built, newest = torch.facts["cuda"], torch.facts.get("driver_cuda", "")
    error = torch.facts.get("cuda_error", "it finds no GPU")
    if facts.visible_gpus is not None and facts.nvidia_driver:
        yield (
            f"torch cannot use a GPU, and CUDA_VISIBLE_DEVICES is {facts.visible_gpus!r}: {error}",
            "Set it to the number of a GPU that nvidia-smi lists, or unset it.",
        )
    if not facts.nvidia_driver and not facts.has_nvidia_gpu:
        yield (
            f"torch {torch.version} is built for CUDA {built}, but there is no NVIDIA GPU here",
            "Cells run on the CPU regardless; the CPU build of torch is gigabytes smaller.",
        )
    if not facts.nvidia_driver:
        yield (
            f"there is an NVIDIA GPU here, but its driver is not loaded; torch says: {error}",
            "Install NVIDIA's driver; a container needs --gpus all.",
        )
    cuda = f"CUDA {newest}" if newest else "the driver's CUDA"
    why = f"is built for CUDA {built}, but the driver supports CUDA up to {newest}" if newest else "cannot use the NVIDIA GPU"
    yield (
        f"torch {torch.version} {why}: {error}",
        f"Update NVIDIA's driver to one for CUDA {built}, or install a torch for {cuda}.",
    )


def _runtime_on_cpu(runtime: Package, built: str, gpu: str) -> Iterator[tuple[str, str]]:
    """Why ONNX Runtime does not use a GPU that torch, which is built for this version of CUDA, can use."""
    separate = f"pip install 'onnxruntime-gpu[cuda,cudnn]=={runtime.version}'"
    own, lacks = runtime.facts.get("cuda") or "", runtime.facts.get("cuda_lacks", "")
    if "CUDAExecutionProvider" not in runtime.facts.get("providers", ()):
        yield (
            f"torch can use {gpu}, but ONNX Runtime is built for the CPU, so cells on CUDA are skipped",
            "pip uninstall onnxruntime, then install onnx-ci[cuda]",
        )
    elif not runtime.facts.get("runs_on_cuda", True):
        if own and own.partition(".")[0] != built.partition(".")[0]:
            yield (
                f"ONNX Runtime falls back to the CPU: it is built for CUDA {own}, but torch and its libraries for {built}",
                f"Install a torch for CUDA {own}, or separate libraries for ONNX Runtime: {separate}",
            )
        detail = f": it does not find {lacks}" if lacks else ""
        yield (
            f"torch can use {gpu}, but ONNX Runtime falls back to the CPU{detail}",
            separate if lacks else f"Its CUDA provider does not find its libraries: {separate}",
        )


def _opsets(facts: EnvironmentFacts) -> Iterator[Trouble]:
    """Opsets that the settings request and the checker or the runtime does not support."""
    opsets = facts.settings.opsets or DEFAULT_OPSETS
    requested = min(opsets) if OPEN_END in opsets else max(opsets)  # a range without an end adapts to what is supported
    for name, package in (("onnx", facts.package("onnx")), ("onnxruntime", facts.runtime)):
        highest = package.facts["opset"] if package else None
        if package and highest and requested > highest:
            message = f"opset {requested} is requested, but {name} {package.version} supports opsets up to {highest}"
            yield Trouble(
                subject=name, message=message, remedy=f"pip install --upgrade {name}, or use lower opsets", stops=True
            )


def _folders(facts: EnvironmentFacts) -> Iterator[Trouble]:
    if facts.temporary is None:
        message = "there is no writable folder for temporary files"
        yield Trouble(subject="disk", message=message, remedy="Free some space, or choose a folder with TMPDIR.", stops=True)
    elif facts.free["temporary"] < SMALL_DISK:
        message = f"only {gib(facts.free['temporary'])} free for temporary files in {facts.temporary}: large models do not fit"
        yield Trouble(subject="disk", message=message, remedy="Free some space, or choose another folder with TMPDIR.")
    if facts.cache_error:
        message = f"verdicts cannot be cached in {facts.settings.cache}: {facts.cache_error}; every run runs every cell"
        yield Trouble(subject="cache", message=message, remedy="Choose another folder with --cache, or use --cache=off.")


def _isolation(facts: EnvironmentFacts) -> Iterator[Trouble]:
    if facts.process_error:
        message = f"cells cannot run in their own processes: {facts.process_error}"
        yield Trouble(subject="isolation", message=message, remedy="Use a single process: --isolation=none.", stops=True)


_RULES: tuple[Callable[[EnvironmentFacts], Iterator[Trouble]], ...] = (
    _settings,
    _imports,
    _runtime,
    _cuda,
    _opsets,
    _folders,
    _isolation,
)
