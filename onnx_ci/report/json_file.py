"""The report as a JSON file, whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from onnx_ci.errors import ConfigurationError
from onnx_ci.records import RunReport


def write_json(report: RunReport, path: Path) -> None:
    """Write the report to ``path``; what was there before stays until the new file is complete.

    Raises:
        ConfigurationError: ``path`` cannot be written.
    """
    text = json.dumps(report.as_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            Path(name).chmod(0o666 & ~_umask())  # mkstemp makes files that only their owner can read
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink()
            raise
    except OSError as error:
        raise ConfigurationError(f"the report {path} cannot be written: {error.strerror or error}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
