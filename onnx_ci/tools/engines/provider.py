"""The installed ONNX Runtime with one of its execution providers, such as ``onnxruntime:openvino``."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from onnx_ci.environment.packages import inspect_packages
from onnx_ci.environment.versions import RUNTIME_DISTRIBUTIONS
from onnx_ci.errors import EnvironmentLacksError
from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime, OnnxRuntimeSession
from onnx_ci.pipeline.run.runtime import BrokenRuntimeError
from onnx_ci.text import listed

if TYPE_CHECKING:
    import torch

_SUFFIX = "ExecutionProvider"
_WHEELS = {
    "cann": "onnxruntime-cann",
    "coreml": "onnxruntime on macOS",
    "cuda": "onnxruntime-gpu",
    "dml": "onnxruntime-directml on Windows",
    "migraphx": "onnxruntime-migraphx",
    "openvino": "onnxruntime-openvino",
    "qnn": "onnxruntime-qnn",
    "rocm": "onnxruntime-rocm",
    "tensorrt": "onnxruntime-gpu",
    "webgpu": "onnxruntime-webgpu",
    "xnnpack": "a build of your own",
}
"""What to install for a provider, in lower case."""


class OnnxRuntimeWithProvider:
    """ONNX Runtime with a provider, and with the CPU for the nodes that this does not take.

    Args:
        short: the provider's name without its ending, in any case: ``openvino`` for ``OpenVINOExecutionProvider``. A subclass
            can have it as the attribute of that name.

    Attributes:
        options: the provider's options, by name. Default: none; a subclass can have others.
    """

    is_deployed = True
    name = ""
    short: ClassVar[str] = ""
    options: Mapping[str, str] = MappingProxyType({})

    def __init__(self, short: str = "") -> None:
        self._short = short or self.short
        self.name = self.name or f"onnxruntime:{self._short}"

    @staticmethod
    def install(short: str) -> None:
        """Check that the installed ONNX Runtime has a provider.

        Raises:
            EnvironmentLacksError: it has not; the message names those that it has, and what to install.
        """
        packages = inspect_packages(RUNTIME_DISTRIBUTIONS)
        _provider(short, [each for package in packages.values() for each in package.facts.get("providers", ())])

    def missing_device(self, device: str) -> str | None:
        """Why it cannot be used for cells of ``device``: the provider chooses its own, so these are on the CPU."""
        return None if device == "cpu" else f"{self.name} runs the files of cells on the CPU; use onnxruntime on {device}"

    def load(self, path: Path, device: str) -> ProviderSession:
        """Load the file. Raises ONNX Runtime's own exceptions, and ``RuntimeError`` if the provider does not work here."""
        import onnxruntime

        provider = _provider(self._short, onnxruntime.get_available_providers())
        options = OnnxRuntime().session_options()
        folder = Path(tempfile.mkdtemp(prefix="onnx-ci-profile-"))
        options.enable_profiling, options.profile_file_prefix = True, str(folder / "run")
        try:
            providers = [(provider, dict(self.options)), "CPUExecutionProvider"]
            session = onnxruntime.InferenceSession(path, sess_options=options, providers=providers, enable_fallback=0)
            if provider not in session.get_providers():
                raise RuntimeError(f"{provider} does not work here, and ONNX Runtime uses {listed(session.get_providers())}")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return ProviderSession(session, profile=folder, wanted=provider)


class ProviderSession(OnnxRuntimeSession):
    """A session with a provider. A run in which that takes no node is an error: it would prove nothing about the provider."""

    provider = "cpu"

    def __init__(self, session: object, *, profile: Path, wanted: str) -> None:
        super().__init__(session, profile=profile)
        self._wanted = wanted

    def run(self, inputs: Mapping[str, torch.Tensor], *, seed: int | None = None) -> list[torch.Tensor]:
        """See :meth:`OnnxRuntimeSession.run`."""
        outputs = super().run(inputs, seed=seed)
        if self.nodes_on_cpu and self._wanted not in self.providers_at_work:
            raise BrokenRuntimeError("provider-mismatch", f"ran no node with {self._wanted}, and all on the CPU")
        return outputs


def _provider(short: str, available: Iterable[str]) -> str:
    """The provider whose short name is ``short``. Raises ``EnvironmentLacksError`` if it is not available."""
    by_name = {each.removesuffix(_SUFFIX).lower(): each for each in available}
    if short.lower() in by_name:
        return by_name[short.lower()]
    wheel = _WHEELS.get(short.lower())
    install = "" if wheel is None else f"; install {wheel} in its place"
    raise EnvironmentLacksError(f"the installed ONNX Runtime has no provider {short!r}, but {listed(by_name)}{install}")
