"""Several files that compute together what one model does, such as a generator's prefill and decode.

The recipe's ``run_files`` is what runs them: the loop that the project itself has around its sessions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from onnx_ci.collection.keywords import RunFiles
from onnx_ci.errors import describe_exception, describe_place, first_line
from onnx_ci.onnx_model.files import files_in
from onnx_ci.onnx_model.signature import read_signature
from onnx_ci.pipeline.model.call import Call, filled
from onnx_ci.pipeline.model.running import flatten_outputs
from onnx_ci.pipeline.run.runtime import Session
from onnx_ci.results.records import Finding
from onnx_ci.text import count


class RunFilesError(Exception):
    """A file failed, the recipe's function raised, or it returned other outputs than the model."""


class OnnxFile:
    """One of the files, loaded by a runtime. Called with its inputs by name, it returns its outputs by name."""

    def __init__(self, path: Path, session: Session) -> None:
        signature = read_signature(path)
        if isinstance(signature, Finding):  # the contract reports it first
            raise RunFilesError(signature.message)
        self._name, self._session = path.stem, session
        self.inputs = tuple(value.name for value in signature.inputs)
        """The names of its inputs."""
        self.outputs = tuple(value.name for value in signature.outputs)
        """The names of its outputs."""

    def __call__(self, inputs: Mapping[str, torch.Tensor] | None = None, /, **more: torch.Tensor) -> dict[str, torch.Tensor]:
        """Run the file.

        Args:
            inputs: tensors by the names of the file's inputs.
            **more: further inputs, whose names are names in Python, too.

        Returns:
            The outputs by name, on the CPU.

        Raises:
            RunFilesError: the runtime fails, for instance because an input is missing.
        """
        feeds = {name: tensor.detach().cpu() for name, tensor in {**(inputs or {}), **more}.items()}
        try:
            return dict(zip(self.outputs, self._session.run(feeds), strict=True))
        except Exception as error:  # each runtime raises its own classes
            raise RunFilesError(f"{self._name} fails: {first_line(error)}") from error


class FilesTogether:
    """The files of a cell as one session, which runs them with the recipe's function.

    The inputs replace the tensors of the call.
    """

    def __init__(self, folder: Path, load: Callable[[Path], Session], run_files: RunFiles, call: Call, outputs: int) -> None:
        self._sessions = {path: load(path) for path in files_in(folder)}
        self._files = {path.stem: OnnxFile(path, session) for path, session in self._sessions.items()}
        self._run_files, self._call, self._outputs = run_files, call, outputs

    @property
    def provider(self) -> str:
        """The device that all files run on; the CPU if they run on several."""
        providers = {session.provider for session in self._sessions.values()}
        return providers.pop() if len(providers) == 1 else "cpu"

    @property
    def nodes_on_cpu(self) -> tuple[str, ...] | None:
        """The nodes of all files that ran on the CPU; ``None`` if that of one file is not known."""
        nodes = [session.nodes_on_cpu for session in self._sessions.values()]
        return None if None in nodes else tuple(itertools.chain.from_iterable(filter(None, nodes)))

    def run(self, inputs: Mapping[str, torch.Tensor], *, seed: int | None = None) -> list[torch.Tensor]:
        """What the recipe's function returns for ``inputs``, which are in the order of the model's. No file draws numbers.

        Raises:
            RunFilesError: a file failed, the function raised, or it returned another number of tensors than the model.
        """
        call = filled(self._call, [tensor.clone() for tensor in inputs.values()])  # the function may overwrite them
        try:
            with torch.no_grad():
                outputs = flatten_outputs(self._run_files(dict(self._files), *call.args, **call.kwargs))
        except RunFilesError as error:
            raise RunFilesError(f"{error}{describe_place(error)}") from error
        except Exception as error:  # code of the project can raise anything
            raise RunFilesError(f"run_files raised {describe_exception(error)}") from error
        if len(outputs) != self._outputs:
            raise RunFilesError(f"run_files returned {count(len(outputs), 'tensor')}, and the model returns {self._outputs}")
        return [*outputs]
