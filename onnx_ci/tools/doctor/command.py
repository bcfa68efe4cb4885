"""``onnx-ci doctor``: what is installed, as torch and pip describe it, and what prevents cells from running here."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.cli.common import options_of, style, with_exit_code
from onnx_ci.config.settings import Settings, find_root, read_settings
from onnx_ci.environment.packages import Package, inspect_packages
from onnx_ci.environment.versions import RUNTIME_DISTRIBUTIONS, lacking, missing_runtime
from onnx_ci.errors import EnvironmentLacksError, ExitCode
from onnx_ci.opsets import DEFAULT_OPSETS, OPEN_END, default_exporter
from onnx_ci.processes.limits import Limits
from onnx_ci.processes.run_in_child import run_in_child
from onnx_ci.processes.supervisor import LAST, Death, Send
from onnx_ci.results.records import Status

_SECONDS = 120


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Something that does not work."""

    subject: str
    """A package, ``cuda``, ``disk``, …"""
    message: str
    remedy: str
    stops: bool = True
    """Whether it prevents the run that the settings ask for."""


@click.command()
@options_of("opsets", "devices", "isolation", paths=False)
@with_exit_code
def doctor(**flags: str | None) -> NoReturn:
    r"""Show what is installed, what does not work here, and why.

    What `python -m torch.utils.collect_env` and `pip check` print comes first. Then each package is imported in its own
    process, so that a crash or a hang is reported, too. The exit code is 4 if a run with these settings cannot work.

    \b
    Examples:
      onnx-ci doctor
      onnx-ci doctor --devices=cuda    why cells cannot run on the GPU
    """
    settings, wrong_settings = read_settings(find_root(Path.cwd()), flags=flags)
    with ThreadPoolExecutor() as pool:
        facts = [pool.submit(_description_of_torch), pool.submit(_output_of, "-m", "pip", "check")]
        packages = inspect_packages()
    for fact in facts:
        click.echo(f"{fact.result()}\n")
    remedy = "onnx-ci config --check shows the line."
    troubles = [Trouble(subject="settings", message=str(error), remedy=remedy) for error in wrong_settings]
    troubles += [*troubles_with_packages(settings, packages), *troubles_with_machine(settings)]
    for trouble in sorted(troubles, key=lambda trouble: not trouble.stops):
        severity = style("error", Status.FAILED) if trouble.stops else style("note", Status.SKIPPED)
        click.echo(f"{severity} {trouble.subject}: {trouble.message}\n    remedy: {trouble.remedy}")
    works = not any(trouble.stops for trouble in troubles)
    click.echo(style("Cells can run here.", Status.PASSED) if works else style("Cells cannot run here.", Status.FAILED))
    sys.exit(ExitCode.PASSED if works else ExitCode.ENVIRONMENT)


def _description_of_torch() -> str:
    """What torch says about the environment. Its script is run as a file, which works even if torch cannot be imported."""
    try:
        script = importlib.metadata.distribution("torch").locate_file("torch/utils/collect_env.py")
    except importlib.metadata.PackageNotFoundError:
        return "torch is not installed"
    return _output_of(str(script))


def _output_of(*arguments: str) -> str:
    """What a Python program prints: its output, or else its errors."""
    try:
        process = subprocess.run(
            [sys.executable, "-P", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{' '.join(arguments)} did not end within {_SECONDS} s"
    return process.stdout.strip() or process.stderr.strip()


def troubles_with_packages(settings: Settings, packages: Mapping[str, Package]) -> Iterator[Trouble]:
    """Packages that are missing, cannot be imported, or cannot do what the settings ask for."""
    for name in ("torch", "onnx"):
        if name not in packages:
            yield Trouble(subject=name, message=f"{name} is not installed", remedy=f"pip install {name}")
    lacks = lacking("onnxscript")
    if lacks is not None:
        needs = "dynamo" in (settings.exporters or (default_exporter(max(settings.opsets or DEFAULT_OPSETS)),))
        yield Trouble(subject="onnxscript", message=f"{lacks[0]}; {_CONSEQUENCES['onnxscript']}", remedy=lacks[1], stops=needs)
    for name, package in packages.items():
        if package.error and not (lacks and name == "onnxscript"):
            yield _import_trouble(name, package)
    working = {name: package for name, package in packages.items() if not package.error}
    runtime = next((working[name] for name in RUNTIME_DISTRIBUTIONS if name in working), None)
    if runtime is not None and "CPUExecutionProvider" not in (providers := runtime.facts["providers"]):
        message = f"ONNX Runtime has no CPUExecutionProvider (available: {', '.join(providers) or 'none'})"
        yield Trouble(subject="onnxruntime", message=message, remedy="install onnx-ci[cpu]")
    indices = [int(device.partition(":")[2] or "0") for device in settings.devices if device != "cpu"]
    if indices and "torch" in working:
        for message, remedy in _reasons_against_cuda(working["torch"], runtime, max(indices)):
            yield Trouble(subject="cuda", message=message, remedy=remedy)
    opsets = settings.opsets or DEFAULT_OPSETS
    requested = min(opsets) if OPEN_END in opsets else max(opsets)  # a range without an end adapts to what is supported
    for name, supporting in (("onnx", working.get("onnx")), ("onnxruntime", runtime)):
        highest = supporting and supporting.facts["opset"]
        if supporting and highest and requested > highest:
            message = f"opset {requested} is requested, but {name} {supporting.version} supports opsets up to {highest}"
            yield Trouble(subject=name, message=message, remedy=f"pip install --upgrade {name}, or use lower opsets")


_CONSEQUENCES = {"torchvision": "recipes that import it do not work", "onnxscript": "the dynamo exporter does not work"}
"""What does not work without the packages that the default run does not need."""
_IMPORT_REMEDIES = {
    r"torchvision::nms does not exist|_C.*undefined symbol": "Install the torchvision that matches this torch, from the index "
    "that torch came from: PyPI's is built for CUDA. Recipes that only need its model definitions can use "
    "onnx_ci.recipes.models.torchvision_models.",
    r"No module named": "Install the missing package.",
    r"GLIBC|SIGILL": "This build needs a newer machine: use an older version.",
    r"lib(?:cudart|cublas|cudnn|cufft|curand|nccl|nvrtc|cusparse)": "Install the CUDA libraries, or the CPU build.",
    r"multiarray|_ARRAY_API|NumPy 1": "It is incompatible with the installed numpy: upgrade both.",
}
"""By a regular expression for the error."""


def _import_trouble(name: str, package: Package) -> Trouble:
    consequence = f"; {_CONSEQUENCES[name]}" if name in _CONSEQUENCES else ""
    message = f"{name} {package.version} cannot be imported: {package.error}{consequence}"
    reinstall = f"Reinstall it: pip install --force-reinstall --no-deps {name}=={package.version}"
    remedy = next((advice for pattern, advice in _IMPORT_REMEDIES.items() if re.search(pattern, package.error)), reinstall)
    return Trouble(subject=name, message=message, remedy=remedy, stops=name not in _CONSEQUENCES)


def _reasons_against_cuda(torch: Package, runtime: Package | None, highest: int) -> Iterator[tuple[str, str]]:
    """Why cells cannot run on the GPUs up to the index ``highest``, each with a remedy."""
    built, gpus = torch.facts["cuda"], torch.facts["gpus"]
    if not built:
        yield (
            f"the settings request cuda, but torch {torch.version} is built for the CPU",
            "Install a CUDA build of torch, and onnx-ci[cuda] instead of onnx-ci[cpu].",
        )
    elif not gpus:
        error = torch.facts.get("cuda_error", "it finds none")
        remedy = (
            f"The lines above show NVIDIA's driver, which must be one for CUDA {built}; a container needs --gpus all; "
            "CUDA_VISIBLE_DEVICES must be unset, or the number of a GPU that nvidia-smi lists."
        )
        yield f"torch {torch.version}, which is built for CUDA {built}, cannot use a GPU: {error}", remedy
    elif highest >= len(gpus):
        yield (
            f"the settings request cuda:{highest}, but torch sees only cuda:0 to cuda:{len(gpus) - 1}",
            "Choose an existing one; CUDA_VISIBLE_DEVICES determines which GPUs torch sees.",
        )
    elif runtime is not None and "CUDAExecutionProvider" not in runtime.facts["providers"]:
        yield (
            f"torch can use {gpus[0]}, but ONNX Runtime is built for the CPU",
            "pip uninstall onnxruntime, then install onnx-ci[cuda]",
        )
    elif runtime is not None and not runtime.facts.get("runs_on_cuda", True):
        own, lacks = runtime.facts.get("cuda", built), runtime.facts.get("cuda_lacks", "some of its libraries")
        has_own_cuda = own.partition(".")[0] != built.partition(".")[0]
        yield (
            f"torch can use {gpus[0]}, but ONNX Runtime falls back to the CPU: it does not find {lacks}"
            + (f"; it is built for CUDA {own}, and torch for {built}" if has_own_cuda else ""),
            (f"Install a torch for CUDA {own}, or separate libraries: " if has_own_cuda else "Install its libraries: ")
            + f"pip install 'onnxruntime-gpu[cuda,cudnn]=={runtime.version}'",
        )


def troubles_with_machine(settings: Settings) -> Iterator[Trouble]:
    """What the installation of ONNX Runtime, the folders and the processes of this machine do not allow."""
    if (missing := missing_runtime()) is not None:
        yield Trouble(subject="onnxruntime", message=missing[0], remedy=missing[1])
    try:
        tempfile.gettempdir()
    except OSError:
        message = "there is no writable folder for temporary files"
        yield Trouble(subject="disk", message=message, remedy="Free some space, or choose a folder with TMPDIR.")
        return
    if settings.isolation != "none" and (error := _start_error(settings.isolation)):
        message = f"cells cannot run in their own processes: {error}"
        yield Trouble(subject="isolation", message=message, remedy="Use a single process: --isolation=none.")


def _start_error(isolation: str) -> str:
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
