"""Another version of ONNX Runtime than the installed one. Its sessions run on the CPU, each in a process of its own."""

from __future__ import annotations

import pickle
import subprocess
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from onnx_ci.errors import EnvironmentLacksError
from onnx_ci.processes.supervisor import how_it_ended
from onnx_ci.tools.versions import pip
from onnx_ci.tools.versions.overlay import environment_with, folder_of, overlay_of
from onnx_ci.tools.versions.pip import ImpossibleError, Wheel

if TYPE_CHECKING:
    import torch

_FIRST_FOR_NUMPY_2 = Version("1.19")
_LAST_NUMPY_1 = Wheel(version="1.26.4")
_MAIN = "onnx_ci.tools.versions.other_version_main"


class OtherOnnxRuntime:
    """A version of ONNX Runtime.

    Raises:
        EnvironmentLacksError: it is not installed.
    """

    is_deployed = True

    def __init__(self, version: str) -> None:
        self._folder = folder_of(wheels_of(version))
        if not self._folder.is_dir():
            where = self._folder.parent
            raise EnvironmentLacksError(f"onnxruntime {version} is not in {where}; a run with --runtimes installs it")
        self.name = f"onnxruntime@{version}"

    @staticmethod
    def install(version: str) -> None:
        """Install a version, unless it is kept from an earlier run.

        Raises:
            ConfigurationError: it does not exist, has no wheel for this Python, or cannot be downloaded or written.
        """
        try:
            overlay_of(wheels_of(version))
        except ImpossibleError as error:
            raise ImpossibleError(pip.missing(f"onnxruntime=={version}") or str(error)) from None

    def missing_device(self, device: str) -> str | None:
        """Why it cannot use ``device``, or ``None`` if it can."""
        if device == "cpu":
            return None
        return f"{self.name} runs on the CPU only; use onnxruntime, the installed version, on {device}"

    def load(self, path: Path, device: str) -> OtherSession:
        """Load the file at ``path``.

        Raises:
            RuntimeError: it cannot be loaded, in the words of ONNX Runtime.
        """
        return OtherSession(self._folder, path)


class OtherSession:
    """A session in a process of its own."""

    provider = "cpu"
    nodes_on_cpu = None

    def __init__(self, folder: Path, path: Path) -> None:
        import torch

        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _MAIN, str(path), str(torch.get_num_threads())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment_with(folder),
        )
        self._questions: Any = self._process.stdin
        self._answers: Any = self._process.stdout
        weakref.finalize(self, _end, self._process)
        self._answer()

    def run(self, inputs: Mapping[str, torch.Tensor], *, seed: int | None = None) -> list[torch.Tensor]:
        """The graph's outputs, in the graph's order, for ``inputs`` by name.

        Raises:
            RuntimeError: the file cannot be run, in the words of ONNX Runtime.
        """
        try:
            pickle.dump(({name: _sent(tensor) for name, tensor in inputs.items()}, seed), self._questions)
            self._questions.flush()
        except BrokenPipeError:
            pass  # the process is dead, which the answer says
        return [_received(*value) for value in self._answer()]

    def _answer(self) -> Any:
        """What the process answers."""
        try:
            error, answer = pickle.load(self._answers)  # noqa: S301 (our own process)
        except (EOFError, pickle.UnpicklingError):
            raise RuntimeError(f"its process {how_it_ended(self._process.wait())}") from None
        if error is not None:
            raise RuntimeError(error)
        return answer


def wheels_of(version: str) -> dict[str, Wheel]:
    """What a version imports. Its other requirements are for its tools, such as the quantizer."""
    numpy = {"numpy": _LAST_NUMPY_1} if Version(version) < _FIRST_FOR_NUMPY_2 else {}
    return {"onnxruntime": Wheel(version=version), **numpy}


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def _sent(tensor: torch.Tensor) -> tuple[str, int, tuple[int, ...], bytes]:
    """The name of a type of numpy, ONNX's number of the element type, the shape and the contents."""
    from onnx_ir.tensor_adapters import from_torch_dtype

    from onnx_ci.pipeline.model.tensors import as_array

    array = as_array(tensor)
    of_numpy = array.dtype.str if array.dtype.isbuiltin == 1 else f"uint{8 * array.itemsize}"
    return of_numpy, from_torch_dtype(tensor.dtype).value, tuple(array.shape), array.tobytes()


def _received(element_type: int, shape: tuple[int, ...], contents: bytes) -> torch.Tensor:
    """The inverse, of the element type, the shape and the contents."""
    import torch
    from onnx_ir import DataType
    from onnx_ir.tensor_adapters import to_torch_dtype

    dtype = to_torch_dtype(DataType(element_type))
    return torch.frombuffer(bytearray(contents), dtype=dtype).reshape(shape) if contents else torch.empty(shape, dtype=dtype)
