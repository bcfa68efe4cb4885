"""Reports as JSON files, written atomically and validated when they are read."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from onnx_ci.errors import ConfigurationError, nearest_file
from onnx_ci.results.run_report import RunReport


def write_json(report: RunReport, path: Path) -> None:
    """Write the report to ``path``, as :func:`write_text` does."""
    write_text(as_text(report), path)


def as_text(report: RunReport) -> str:
    """The report as a JSON document."""
    return json.dumps(report.as_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_text(text: str, path: Path, what: str = "the report") -> None:
    """Write ``text`` to ``path``; an existing file is replaced only when the new one is complete and on the disk.

    Args:
        what: what the file is, for the message.

    Raises:
        ConfigurationError: ``path`` cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8", errors="replace")  # a device or a pipe must not be replaced
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            Path(name).chmod(0o666 & ~_umask())  # mkstemp makes files that only their owner can read
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink()
            raise
    except OSError as error:
        raise ConfigurationError(f"{what} {path} cannot be written: {error.strerror or error}; choose another path") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_reports(paths: Iterable[Path]) -> list[tuple[str, RunReport]]:
    """Every report in ``paths``, with the name of its file, in order.

    Args:
        paths: report files, or folders: all ``*.json`` below them, sorted, except hidden ones.

    Raises:
        ConfigurationError: a file does not exist, a folder contains none, or a file is not a report that this version of
            onnx-ci can read. The message names the file and the remedy.
    """
    return [(str(file), read_json(file)) for path in paths for file in _files(path)]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    below = [file for file in path.rglob("*.json") if file.is_file()]
    files = sorted(file for file in below if not any(part.startswith(".") for part in file.relative_to(path).parts))
    if not files:
        raise ConfigurationError(f"the folder {path} contains no report: there is no *.json in it; {_REMEDY}")
    return files


_REMEDY = "write one with onnx-ci run --report=PATH"


def read_json(path: Path) -> RunReport:
    """The report in the file ``path``.

    Raises:
        ConfigurationError: as for :func:`read_reports`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        meant = nearest_file(path) if isinstance(error, FileNotFoundError) else ""
        raise ConfigurationError(f"the report {path} cannot be read: {error.strerror or error}{meant}; {_REMEDY}") from None
    except ValueError:
        raise ConfigurationError(f"{path} is not a report of onnx-ci: it is not a text file; {_REMEDY}") from None
    try:
        data = json.loads(text, parse_constant=_refuse)
        json.dumps(data, ensure_ascii=False).encode()  # a lone surrogate, which JSON can escape, cannot be printed
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{path} is truncated or not JSON, so it is not a report of onnx-ci; {_REMEDY}") from None
    try:
        return RunReport.from_json(data)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not a report that this onnx-ci can read: {error}; {_REMEDY}") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)  # NaN and infinities are not JSON
