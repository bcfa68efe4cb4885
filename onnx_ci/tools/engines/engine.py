"""What the engines that come as a Python package have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from onnx_ci.environment.versions import version_of
from onnx_ci.onnx_model.signature import Signature, read_signature
from onnx_ci.pipeline.run.runtime import ArraySession
from onnx_ci.text import listed


class Engine:
    """An engine that computes on the CPU. A subclass gives its name, its distribution and ``load``."""

    name: ClassVar[str]
    distribution: ClassVar[str]
    """What must be installed: the extra of onnx-ci with the name of the engine installs it."""
    is_deployed = True

    @property
    def versions(self) -> Mapping[str, str]:
        """The installed version of its distribution; none if it is missing."""
        version = version_of(self.distribution)
        return {} if version is None else {self.distribution: version}

    def missing_device(self, device: str) -> str | None:
        """Why it cannot be used on ``device``, or ``None`` if it can."""
        if not self.versions:
            return f"{self.distribution} is not installed; install onnx-ci[{self.name}]"
        return None if device == "cpu" else f"{self.name} computes on the CPU only"


def signature_of(path: Path) -> Signature:
    """The inputs and outputs of a file, by the names that it gives them, which an engine may change."""
    signature = read_signature(path)
    assert isinstance(signature, Signature)  # noqa: S101 (a file that cannot be read is not run)
    return signature


def session_of(names: Iterable[str], run_arrays: Callable[[dict[str, Any]], Iterable[Any]]) -> ArraySession:
    """A session on numpy arrays, which raises ``ValueError`` for other inputs than those with ``names``.

    Engines go on with what they last got for an input, or with zeros, if it is left out.
    """
    wanted = set(names)

    def run(feeds: dict[str, Any]) -> Iterable[Any]:
        if feeds.keys() != wanted:
            raise ValueError(
                f"the file has the inputs {listed(sorted(wanted))}, and is given {listed(sorted(feeds)) or 'none'}"
            )
        return run_arrays(feeds)

    return ArraySession(run)
