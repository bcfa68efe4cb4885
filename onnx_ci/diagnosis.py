"""What cannot work here, why, and what to do about it: from facts to troubles, each by one small rule."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from onnx_ci import __version__
from onnx_ci.config import SettingError, Settings
from onnx_ci.environment import missing_runtime, version_of
from onnx_ci.opsets import DEFAULT_OPSETS, OPEN_END
from onnx_ci.packages import Package, look_at
from onnx_ci.processes import LAST, Death, Limits, Processes, gib, machine_memory

SMALL_DISK, SMALL_MEMORY = 2 * 2**30, 2 * 2**30
"""Bytes below which models of usual size may not fit: a large export takes a few times its weights."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Something that cannot work."""

    subject: str
    """What it is about: a package, ``cuda``, ``cache``."""
    message: str
    remedy: str
    stops: bool = False
    """Whether the run that the settings ask for cannot work because of it."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is here."""

    settings: Settings
    wrong_settings: Sequence[SettingError]
    packages: Mapping[str, Package]
    runtime_is_missing: tuple[str, str] | None
    has_nvidia_gpu: bool
    """Whether the system lists an NVIDIA GPU, usable or not."""
    nvidia_driver: bool
    visible_gpus: str | None
    """What CUDA_VISIBLE_DEVICES says, if it is set."""
    memory: int | None
    """Bytes that the machine has; ``None`` where the system does not tell."""
    memory_limit: int | None
    """Bytes that this process may have of it, by its control groups."""
    temporary: Path | None
    """Where temporary files go; ``None`` if there is no place for them."""
    free: Mapping[str, int]
    """Free bytes, by what they are free for: ``temporary``, ``cache``."""
    cache_error: str
    """Why no verdict can be kept, unless it can."""
    fork_error: str
    """Why cells cannot have processes of their own, unless they can."""

    def package(self, name: str) -> Package | None:
        """An installed package, if it can be imported."""
        found = self.packages.get(name)
        return None if found is None or found.error else found

    @property
    def runtime(self) -> Package | None:
        """ONNX Runtime, whichever wheel it came from."""
        return self.package("onnxruntime") or self.package("onnxruntime-gpu")


def examine(settings: Settings, wrong_settings: Sequence[SettingError]) -> Facts:
    """Look at everything."""
    try:
        temporary: Path | None = Path(tempfile.gettempdir())
    except OSError:
        temporary = None
    cache = settings.cache_folder and _existing(settings.cache_folder)
    places = {"temporary": temporary, "cache": cache}
    return Facts(
        settings=settings,
        wrong_settings=wrong_settings,
        packages=look_at(),
        runtime_is_missing=missing_runtime(),
        has_nvidia_gpu=_has_nvidia_gpu(Path("/sys/bus/pci/devices")),
        nvidia_driver=Path("/proc/driver/nvidia/version").exists(),
        visible_gpus=os.environ.get("CUDA_VISIBLE_DEVICES"),
        memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None,
        memory_limit=machine_memory() if hasattr(os, "sysconf") else None,
        temporary=temporary,
        free={name: shutil.disk_usage(place).free for name, place in places.items() if place is not None},
        cache_error=_cannot_write(cache) if cache else "",
        fork_error=_cannot_fork(temporary) if settings.isolation == "process" and temporary else "",
    )


def describe(facts: Facts) -> dict[str, str]:
    """What is here, in words, by name."""
    settings = facts.settings
    libc = " ".join(filter(None, platform.libc_ver()))
    memory = gib(facts.memory) if facts.memory else "unknown"
    if facts.memory and facts.memory_limit and facts.memory_limit < facts.memory:
        memory += f", of which this process may have {gib(facts.memory_limit)}"
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
        "processors": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "memory": memory,
        "disk": ", ".join(free),
        **{name: _told(package) for name, package in facts.packages.items()},
        "devices": ", ".join(["cpu", *(torch.facts["gpus"] if torch else [])]),
        "isolation": settings.isolation,
    }


def _told(package: Package) -> str:
    told = package.facts
    more = {
        "torchscript_opsets": lambda ends: f"TorchScript exporter for opsets {ends[0]}-{ends[1]}",
        "dynamo_opsets_from": lambda opset: f"dynamo from {opset}",
        "cuda": lambda version: f"built for CUDA {version}" if version else "built for the CPU",
        "driver_cuda": lambda version: f"driver for CUDA up to {version}",
        "cudnn": lambda version: f"cuDNN {version}" if version else "no cuDNN",
        "opset": lambda opset: f"opsets up to {opset}",
        "ir_version": lambda version: f"IR versions up to {version}",
        "providers": ", ".join,
    }
    return ", ".join([package.version, *(say(told[key]) for key, say in more.items() if key in told)])


# --- looking --------------------------------------------------------------------------------------------------------


def _has_nvidia_gpu(devices: Path) -> bool:
    """Whether the PCI bus has a display controller (class 3) of NVIDIA (vendor 10de), as Linux tells it."""
    for device in devices.glob("*"):
        with contextlib.suppress(OSError):
            vendor, kind = (device.joinpath(name).read_text().strip() for name in ("vendor", "class"))
            if vendor == "0x10de" and kind.startswith("0x03"):
                return True
    return False


def _existing(folder: Path) -> Path:
    """The folder, or what will be around it once it is made."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def _cannot_write(folder: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _cannot_fork(temporary: Path) -> str:
    """Why no process can be forked and watched, if so."""
    with tempfile.TemporaryDirectory(dir=temporary, ignore_cleanup_errors=True) as scratch:
        processes = Processes(Path(scratch))
        try:
            processes.start("trial", lambda send: send({LAST: True}), Limits(seconds=30))
            events = processes.wait(30)
        except OSError as error:
            return error.strerror or str(error)
        finally:
            processes.close()
    return next((f"a process {event.message}" for _, event in events if isinstance(event, Death)), "")


# --- judging --------------------------------------------------------------------------------------------------------


def diagnose(facts: Facts) -> list[Trouble]:
    """Everything that cannot work, what stops the run first."""
    troubles = [trouble for rule in _RULES for trouble in rule(facts)]
    return sorted(troubles, key=lambda trouble: not trouble.stops)


def _settings(facts: Facts) -> Iterator[Trouble]:
    for error in facts.wrong_settings:
        yield Trouble(subject="settings", message=str(error), remedy="onnx-ci config --check tells the line.", stops=True)


def _requirements(facts: Facts) -> Iterator[Trouble]:
    """Distributions that onnx-ci's own metadata asks for, and that are absent or of another version."""
    for text in _required():
        requirement = Requirement(text)
        version = version_of(requirement.name)
        wanted = f"{requirement.name}{requirement.specifier}"
        if version is None:
            if requirement.marker is None:
                yield _unmet(requirement.name, "is not installed", wanted)
        elif not requirement.specifier.contains(version, prereleases=True):
            yield _unmet(requirement.name, f"is installed in version {version}, and onnx-ci needs {wanted}", wanted)


def _required() -> list[str]:
    try:
        return importlib.metadata.requires("onnx-ci") or []
    except importlib.metadata.PackageNotFoundError:
        return []


_OPTIONAL = ("torchvision", "onnxscript", "pytest", "github-action-toolkit")
"""What the default run does without."""
_WITHOUT = {
    "torchvision": "recipes that import it cannot work",
    "onnxscript": "the dynamo exporter cannot work",
    "pytest": "pytest --onnx-export cannot work",
    "github-action-toolkit": "the action does without it",
}


def _unmet(name: str, said: str, wanted: str) -> Trouble:
    return Trouble(subject=name, message=f"{name} {said}", remedy=f"pip install '{wanted}'", stops=name not in _OPTIONAL)


_OTHER_BUILD = (
    "Install the torchvision that belongs to this torch, from the index that torch came from: the usual one is built for "
    "CUDA. Recipes that need its model definitions alone can use onnx_ci.recipes.torchvision_models."
)
_IMPORT_REMEDIES = tuple(
    (re.compile(pattern), remedy)
    for pattern, remedy in (
        (r"torchvision::nms does not exist|_C.*undefined symbol", _OTHER_BUILD),
        (r"No module named", "Install the package that it misses, too."),
        (r"GLIBC", "This build needs a newer system than this one: take an older version, or a newer system."),
        (r"lib(?:cudart|cublas|cudnn|cufft|curand|nccl|nvrtc|cusparse)", "Install CUDA's libraries, or the build for the CPU."),
        (r"multiarray|_ARRAY_API|NumPy 1", "It does not fit the installed numpy: upgrade both."),
        (r"[Gg]it executable", "Install git."),
        (r"SIGILL", "This build needs a newer processor than this one: take an older version."),
    )
)


def _imports(facts: Facts) -> Iterator[Trouble]:
    for name, package in facts.packages.items():
        if package.error:
            reinstall = f"Install it anew: pip install --force-reinstall --no-deps {name}=={package.version}"
            without = f"; {_WITHOUT[name]}" if name in _WITHOUT else ""
            yield Trouble(
                subject=name,
                message=f"{name} {package.version} cannot be imported: {package.error}{without}",
                remedy=next((advice for pattern, advice in _IMPORT_REMEDIES if pattern.search(package.error)), reinstall),
                stops=name not in _OPTIONAL,
            )


def _runtime(facts: Facts) -> Iterator[Trouble]:
    if facts.runtime_is_missing is not None:
        message, remedy = facts.runtime_is_missing
        yield Trouble(subject="onnxruntime", message=message, remedy=remedy, stops=True)
    elif facts.runtime is not None and "CPUExecutionProvider" not in facts.runtime.facts["providers"]:
        message = f"ONNX Runtime has no CPUExecutionProvider, but {', '.join(facts.runtime.facts['providers']) or 'none'}"
        yield Trouble(subject="onnxruntime", message=message, remedy="install onnx-ci[cpu]", stops=True)


@dataclass(frozen=True, kw_only=True)
class _Cuda:
    """What is known of CUDA here; texts are empty where nothing is."""

    torch: str
    built: str
    """The CUDA that torch is built for."""
    gpus: Sequence[str]
    error: str
    """Why torch can use none."""
    cudnn: object
    has_gpu: bool
    has_driver: bool
    driver_cuda: str
    """The newest CUDA that the driver knows."""
    visible: str | None
    """The choice of CUDA_VISIBLE_DEVICES."""
    asked: Sequence[str]
    """The GPUs that the settings ask for, by their numbers."""
    runtime: str
    """The version of ONNX Runtime; empty where there is none."""
    has_provider: bool
    runs: bool
    lacks: str
    """The library that ONNX Runtime's provider does not find."""
    runtime_cuda: str
    """The CUDA that ONNX Runtime is built for."""

    @classmethod
    def of(cls, facts: Facts, torch: Package) -> _Cuda:
        found, runtime = torch.facts, facts.runtime
        told = runtime.facts if runtime else {}
        return cls(
            torch=torch.version,
            built=found["cuda"] or "",
            gpus=found["gpus"],
            error=found.get("cuda_error", "it finds no GPU"),
            cudnn=found.get("cudnn", True),
            has_gpu=facts.has_nvidia_gpu,
            has_driver=facts.nvidia_driver,
            driver_cuda=found.get("driver_cuda", ""),
            visible=facts.visible_gpus,
            asked=[device.partition(":")[2] or "0" for device in facts.settings.devices if device != "cpu"],
            runtime=runtime.version if runtime else "",
            has_provider="CUDAExecutionProvider" in told.get("providers", ()),
            runs=told.get("runs_on_cuda", True),
            lacks=told.get("cuda_lacks", ""),
            runtime_cuda=told.get("cuda") or "",
        )

    @property
    def why(self) -> str:
        return "there is an NVIDIA GPU here" if self.has_gpu else "the settings ask for cuda"

    @property
    def gpu(self) -> str:
        return self.gpus[0]

    @property
    def beyond(self) -> str:
        """A GPU that the settings ask for and that is not there."""
        return next((f"cuda:{index}" for index in self.asked if int(index) >= len(self.gpus)), "")

    @property
    def from_pip(self) -> str:
        return f"pip install 'onnxruntime-gpu[cuda,cudnn]=={self.runtime}'"

    @property
    def fits(self) -> bool:
        """Whether torch and ONNX Runtime are built for one major version of CUDA, so that they share its libraries."""
        one, other = self.built.partition(".")[0], self.runtime_cuda.partition(".")[0]
        return not (one and other) or one == other


_CUDA: tuple[tuple[Callable[[_Cuda], object], str, str], ...] = (
    (
        lambda c: not c.built and (c.has_gpu or c.asked),
        "{c.why}, and torch {c.torch} is built for the CPU",
        "For cells on CUDA, install torch's build for it, and onnx-ci[cuda] in place of onnx-ci[cpu].",
    ),
    (lambda c: not c.built, "", ""),
    (
        lambda c: not c.gpus and c.visible is not None and c.has_driver,
        "torch can use no GPU, and CUDA_VISIBLE_DEVICES is {c.visible!r}: {c.error}",
        "Set it to the number of a GPU that nvidia-smi lists, or unset it.",
    ),
    (
        lambda c: not c.gpus and not c.has_gpu and not c.has_driver,
        "torch {c.torch} is built for CUDA {c.built}, and there is no NVIDIA GPU here",
        "Cells run on the CPU all the same; torch's build for the CPU is gigabytes smaller.",
    ),
    (
        lambda c: not c.gpus and not c.has_driver,
        "there is an NVIDIA GPU here, and its driver is not loaded; torch says: {c.error}",
        "Install NVIDIA's driver; a container needs --gpus all.",
    ),
    (
        lambda c: not c.gpus and c.driver_cuda,
        "torch {c.torch} is built for CUDA {c.built}, and the driver knows CUDA up to {c.driver_cuda}: {c.error}",
        "Update NVIDIA's driver to one for CUDA {c.built}, or install a torch for CUDA {c.driver_cuda}.",
    ),
    (
        lambda c: not c.gpus,
        "torch {c.torch} cannot use the NVIDIA GPU: {c.error}",
        "Update NVIDIA's driver to one for CUDA {c.built}, or install a torch for the driver's CUDA.",
    ),
    (
        lambda c: c.beyond,
        "the settings ask for {c.beyond}, and torch counts its GPUs from cuda:0 to cuda:{last}",
        "Ask for one that there is; CUDA_VISIBLE_DEVICES chooses which are counted.",
    ),
    (
        lambda c: not c.cudnn,
        "torch can use {c.gpu}, and finds no cuDNN, which convolutions need",
        "Install torch anew from the index that it came from: its wheels bring cuDNN along.",
    ),
    (lambda c: not c.runtime, "", ""),
    (
        lambda c: not c.has_provider,
        "torch can use {c.gpu}, and ONNX Runtime is built for the CPU, so cells on CUDA are skipped",
        "pip uninstall onnxruntime, then install onnx-ci[cuda]",
    ),
    (
        lambda c: not c.runs and not c.fits,
        "ONNX Runtime falls back to the CPU: it is built for CUDA {c.runtime_cuda}, and torch with its libraries for {c.built}",
        "Install a torch for CUDA {c.runtime_cuda}, or ONNX Runtime's own libraries beside it: {c.from_pip}",
    ),
    (
        lambda c: not c.runs and c.lacks,
        "torch can use {c.gpu}, and ONNX Runtime falls back to the CPU: it does not find {c.lacks}",
        "{c.from_pip}",
    ),
    (
        lambda c: not c.runs,
        "torch can use {c.gpu}, and ONNX Runtime falls back to the CPU",
        "Its CUDA provider does not find its libraries: {c.from_pip}",
    ),
)
"""What keeps cells from CUDA: when, what is said, what to do. The first that holds is told; one without words is none."""


def _cuda(facts: Facts) -> Iterator[Trouble]:
    """Why cells on CUDA cannot run, if somebody may want them."""
    torch = facts.package("torch")
    if torch is None:
        return
    cuda = _Cuda.of(facts, torch)
    message, remedy = next(((said, remedy) for holds, said, remedy in _CUDA if holds(cuda)), ("", ""))
    if message:
        said, advice = (text.format(c=cuda, last=len(cuda.gpus) - 1) for text in (message, remedy))
        yield Trouble(subject="cuda", message=said, remedy=advice, stops=bool(cuda.asked))


def _opsets(facts: Facts) -> Iterator[Trouble]:
    """Opsets that are asked for and that the checker or the runtime does not know."""
    opsets = facts.settings.opsets or DEFAULT_OPSETS
    asked = min(opsets) if OPEN_END in opsets else max(opsets)  # a range without an end is content with what there is
    for name, package in (("onnx", facts.package("onnx")), ("onnxruntime", facts.runtime)):
        highest = package.facts["opset"] if package else None
        if package and highest and asked > highest:
            message = f"opset {asked} is asked for, and {name} {package.version} knows them up to {highest}"
            yield Trouble(
                subject=name, message=message, remedy=f"pip install --upgrade {name}, or ask for lower ones", stops=True
            )


def _places(facts: Facts) -> Iterator[Trouble]:
    if facts.temporary is None:
        message = "there is no place for temporary files"
        yield Trouble(subject="disk", message=message, remedy="Make room, or name a place with TMPDIR.", stops=True)
    elif facts.free["temporary"] < SMALL_DISK:
        message = f"{gib(facts.free['temporary'])} are free for temporary files in {facts.temporary}: large models will not fit"
        yield Trouble(subject="disk", message=message, remedy="Make room, or name another place with TMPDIR.")
    if facts.cache_error:
        message = f"verdicts cannot be kept in {facts.settings.cache}: {facts.cache_error}; every run runs every cell"
        yield Trouble(subject="cache", message=message, remedy="Name another place with --cache, or --cache=off.")


def _memory(facts: Facts) -> Iterator[Trouble]:
    if facts.memory_limit and facts.memory_limit < SMALL_MEMORY:
        message = f"this process may have {gib(facts.memory_limit)} of memory: large models will not fit"
        yield Trouble(subject="memory", message=message, remedy="Give the container more, and run one cell at once: --jobs=1.")


def _isolation(facts: Facts) -> Iterator[Trouble]:
    if facts.fork_error:
        message = f"cells cannot have processes of their own: {facts.fork_error}"
        yield Trouble(subject="isolation", message=message, remedy="Run all in one process: --isolation=none.", stops=True)


_RULES: tuple[Callable[[Facts], Iterator[Trouble]], ...] = (
    _settings,
    _requirements,
    _imports,
    _runtime,
    _cuda,
    _opsets,
    _places,
    _memory,
    _isolation,
)
