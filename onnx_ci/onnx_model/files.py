"""ONNX files written and copied, with their external data. Does not import torch."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import onnx

from onnx_ci.onnx_model.signature import read_signature
from onnx_ci.results.records import Finding


class NotAModelError(Exception):
    """A function of the project returned neither a model nor the path of one."""


def write_returned(returned: object, path: Path) -> None:
    """Write what a function of the project returned to ``path``: a ``ModelProto``, or the path of a file, which is copied.

    Raises:
        NotAModelError: the function returned something else, or a path without a file.
    """
    if isinstance(returned, onnx.ModelProto):
        save(returned, path)
    elif isinstance(returned, (str, os.PathLike)):
        if not Path(returned).is_file():
            raise NotAModelError(f"returned the path {os.fspath(returned)!r}, where there is no file")
        if Path(returned).resolve() != path.resolve():
            copy(Path(returned), path)
    else:
        raise NotAModelError(f"returned {'None' if returned is None else f'a {type(returned).__name__}'} instead of a model")


def files_in(path: Path) -> list[Path]:
    """The ONNX files in a folder, by name; or the file itself."""
    return sorted(path.glob("*.onnx")) if path.is_dir() else [path]


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write a model, with external data if it is above protobuf's limit of 2 GB."""
    try:
        onnx.save_model(model, path)
    except ValueError:
        onnx.save_model(model, path, save_as_external_data=True, location=f"{path.name}.data")


def digests_of(path: Path) -> dict[str, str]:
    """The SHA-256 of an ONNX file, or of each in a folder, and of its external data, by the path from the folder it is in.

    External data that is absent or outside that folder is left out. Raises ``OSError`` if a file cannot be read.
    """
    digests = {}
    for model in files_in(path):
        signature = read_signature(model)
        external = () if isinstance(signature, Finding) else signature.external_data
        for name in dict.fromkeys((model.name, *(each.location for each in external))):
            file = model.parent / name
            if file.is_file() and file.resolve().is_relative_to(model.parent.resolve()):
                with file.open("rb") as opened:
                    digests[name] = hashlib.file_digest(opened, "sha256").hexdigest()
    return digests


def has_external_data(path: Path) -> bool:
    """Whether the weights of the file are in other files."""
    signature = read_signature(path)
    return not isinstance(signature, Finding) and bool(signature.external_data)


def copy(source: Path, path: Path) -> None:
    """Copy an ONNX file and its external data."""
    path.unlink(missing_ok=True)
    shutil.copyfile(source, path)
    signature = read_signature(source)
    if isinstance(signature, Finding):
        return  # the contract reports what is wrong with the copy
    for location in {each.location for each in signature.external_data}:
        data = source.parent / location
        if data.is_file() and (target := path.parent / location).resolve() != data.resolve():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(data, target)
