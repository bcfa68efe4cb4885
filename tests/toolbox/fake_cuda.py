"""A machine with GPUs, made of this one's CPU: torch's behind ``onnx_ci.pipeline.model.devices``, ONNX Runtime's behind its own names.

A recipe file that calls :func:`install_for_good` has its cells run on such a machine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch

from onnx_ci.pipeline.model import devices

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


@dataclass
class FakeCuda(devices.Gpus):
    """Torch's GPUs, which compute on the CPU, and what ONNX Runtime says of its sessions."""

    number: int = 2
    falls_back: bool = False
    """Whether sessions run on the CPU without a word."""
    without_kernels_for: tuple[str, ...] = ()
    """Types of nodes that the CUDA provider leaves to the CPU."""
    writes_profiles: bool = True
    error: Exception | None = None
    """What running a file on CUDA raises."""
    no_session: Exception | None = None
    """What the making of a session on CUDA raises, inside ONNX Runtime."""
    provider_error: Exception | None = None
    """What the CUDA provider raises as a file is run, inside ONNX Runtime."""
    options: list[dict[str, object]] = field(default_factory=list)
    """The options of each session's CUDA provider."""

    def unavailable_reason(self):
        return None

    def count(self):
        return self.number

    def in_use(self):
        return False

    def place(self, device):
        return torch.device("cpu")

    def describe(self, device):
        return {"gpu": "made of a CPU"}

    def install(self, monkeypatch):
        import onnxruntime  # here, because the one for CUDA is unusable in forks of a process that imported it

        cuda, real = self, onnxruntime.InferenceSession

        class Session(real):
            def __init__(self, path, sess_options=None, providers=(), **more):
                asked = dict((each, {}) if isinstance(each, str) else each for each in providers)
                self.options = asked.get(CUDA)
                if self.options is not None:
                    cuda.options.append(self.options)
                super().__init__(path, sess_options=sess_options, providers=[CPU], **more)

            def _create_inference_session(self, providers, *more):
                is_first, self.is_first = self.is_first, False
                self.is_on_cpu = self.options is None or cuda.falls_back or not is_first
                if self.options is not None and is_first and cuda.no_session is not None:
                    self._fallback_providers = [CPU]
                    raise cuda.no_session
                super()._create_inference_session(providers, *more)
                if self.options is not None and is_first and cuda.provider_error is not None:
                    self._sess = _Failing(self._sess, cuda.provider_error)

            is_first = True

            def get_providers(self):
                return [CPU] if self.is_on_cpu else [CUDA, CPU]

            def run_with_ort_values(self, names, feeds, *more):
                if self.options is not None and cuda.error is not None:
                    raise cuda.error
                if self.options is not None and self.options["use_tf32"] == "1":
                    feeds = {name: _in_tf32(value) for name, value in feeds.items()}
                return super().run_with_ort_values(names, feeds, *more)

            def end_profiling(self):
                file = Path(super().end_profiling())
                events = json.loads(file.read_text())
                for event in events:
                    which = event.get("args", {})
                    if "provider" in which and which["op_name"] not in cuda.without_kernels_for:
                        which["provider"] = CUDA
                file.write_text(json.dumps(events) if cuda.writes_profiles else "")
                return str(file)

        monkeypatch.setattr(devices, "gpus", self)
        monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
        return self


def in_tf32(tensor):
    """A float32 tensor with the mantissa of TensorFloat-32."""
    return (tensor.view(torch.int32) & ~0x1FFF).view(torch.float32)


def _in_tf32(value):
    import onnxruntime

    if value.data_type() != "tensor(float)":
        return value
    return onnxruntime.OrtValue.ortvalue_from_numpy(in_tf32(torch.tensor(value.numpy())).numpy())


class _Failing:
    """ONNX Runtime's inner session, with a provider that fails."""

    def __init__(self, session, error):
        self._session, self._error = session, error

    def __getattr__(self, name):
        return getattr(self._session, name)

    def run_with_ort_values(self, *more):
        raise self._error


class _ForGood:
    """As pytest's monkeypatch, without an end."""

    setattr = staticmethod(setattr)


def install_for_good():
    """Let this process run on such a machine, and all that are forked from it."""
    FakeCuda().install(_ForGood)
