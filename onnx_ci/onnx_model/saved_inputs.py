"""Inputs in files: ``.npz`` of numpy, and the folders ``test_data_set_0`` of ONNX's own tests. Does not import torch."""

from __future__ import annotations

import glob
import itertools
import os
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from onnx_ci.errors import ConfigurationError, did_you_mean, first_line

SUFFIX = ".npz"
_POSITION = re.compile(r"(?:arr_)?(\d+)")
"""The keys of arrays without a name: ``0`` or, as numpy calls them, ``arr_0``."""
_COMMENT = b"written by onnx-ci"
"""The comment of the archives that onnx-ci writes, with which such a file ends."""
_TENSOR_FILE = re.compile(r"input_(\d+)\.pb")


@dataclass(frozen=True, kw_only=True)
class ExpectedInput:
    """What an array must be."""

    name: str | None
    """The input's name, or ``None`` if it can only be given by position."""
    dtype: np.dtype
    dims: tuple[int | None, ...] | None
    """The fixed sizes, ``None`` for an axis of any size; no tuple if the rank is unknown."""

    def __str__(self) -> str:
        dims = "" if self.dims is None else f"[{', '.join('?' if size is None else str(size) for size in self.dims)}]"
        return f"{self.dtype}{dims}"


def find_inputs(folder: Path, patterns: Iterable[str]) -> dict[str, Path]:
    """The files and folders that match glob patterns, in a fixed order, by their paths relative to ``folder``.

    Raises:
        ConfigurationError: nothing matches one of them.
    """
    files: dict[str, Path] = {}
    for pattern in patterns:
        whole = os.path.normpath(folder / pattern)
        paths = [whole] if Path(whole).exists() else sorted(glob.glob(whole, recursive=True))  # noqa: PTH207 (pathlib refuses absolute ones)
        if not paths:
            raise ConfigurationError(f"inputs: there is no file {pattern} in {folder}")
        files |= {Path(os.path.relpath(path, folder)).as_posix(): Path(path) for path in paths}
    return files


def read_inputs(path: Path, expected: Sequence[ExpectedInput]) -> list[np.ndarray]:
    """The arrays in a file, in the order of the inputs. Pickled arrays are not loaded.

    Args:
        path: an ``.npz`` file, whose keys are names of inputs, or positions; or a folder with ``input_0.pb`` and so on.
        expected: what each input must be.

    Raises:
        ConfigurationError: the file cannot be read, or has too many, too few or other arrays; the message names the file, the
            array, and what is expected.
    """
    arrays = _read_folder(path) if path.is_dir() else _read_npz(path)
    places = {each.name or str(place): place for place, each in enumerate(expected)}
    by_place: dict[int, np.ndarray] = {}
    for key, array in arrays.items():
        position = _POSITION.fullmatch(key)
        place = places.get(key, int(position[1]) if position else len(expected))
        if place >= len(expected):
            raise ConfigurationError(f"{path} has an array {key!r}{did_you_mean(key, places)}; {_wanted(expected)}")
        if place in by_place:
            raise ConfigurationError(f"{path} has two arrays for input {place}; {_wanted(expected)}")
        by_place[place] = _checked(path, key, array, expected[place])
    for name, place in places.items():
        if place not in by_place:
            raise ConfigurationError(f"{path} has no array {name!r}; {_wanted(expected)}")
    return [by_place[place] for place in range(len(expected))]


def file_name(probe: str) -> str:
    """The name of the file for a probe: ``rows=4.npz``."""
    return re.sub(r"[^\w=,.()-]+", "_", probe.removesuffix(SUFFIX)) + SUFFIX


def write_inputs(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name as an ``.npz`` file that :func:`read_inputs` reads.

    A file of others at ``path`` is kept: the name of the new one gets a number.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    others = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
    path = next(each for each in itertools.chain([path], others) if not each.exists() or _is_written_by_us(each))
    with zipfile.ZipFile(path, "w") as archive:  # numpy.savez takes names as keywords, so it cannot write one named "file"
        archive.comment = _COMMENT
        for name, array in arrays.items():
            plain = array if array.dtype.isbuiltin == 1 else array.view(f"V{array.itemsize}")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, plain, allow_pickle=False)


def _is_written_by_us(path: Path) -> bool:
    if not path.is_file():  # but a folder or a pipe
        return False
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(_COMMENT)))
        return file.read() == _COMMENT


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ConfigurationError(f"{path} contains one array without a name; save it with numpy.savez")
            return {key: _loaded(path, key, archive) for key in archive.files}
    except ConfigurationError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise a dozen classes
        raise ConfigurationError(
            f"{path} cannot be read: {first_line(error)}; it must be a file of numpy.savez, or a folder with input_0.pb"
        ) from None


def _loaded(path: Path, key: str, archive: Mapping[str, np.ndarray]) -> np.ndarray:
    try:
        return archive[key]
    except Exception as error:  # as above
        is_pickled = "allow_pickle" in str(error)
        reason = "is pickled, and pickled arrays are never loaded" if is_pickled else f"cannot be read: {first_line(error)}"
        raise ConfigurationError(f"{path}: the array {key!r} {reason}") from None


def _read_folder(path: Path) -> dict[str, np.ndarray]:
    """The tensors in a folder, by position."""
    arrays = {}
    for file in sorted(path.iterdir()):
        if match := _TENSOR_FILE.fullmatch(file.name):
            try:
                arrays[match[1]] = onnx.numpy_helper.to_array(TensorProto.FromString(file.read_bytes()))
            except Exception as error:  # protobuf and onnx raise their own classes
                raise ConfigurationError(f"{file} cannot be read as a tensor: {first_line(error)}") from None
    if not arrays:
        raise ConfigurationError(f"{path} has no file input_0.pb, as the folders of ONNX's own tests have")
    return arrays


def _checked(path: Path, key: str, array: np.ndarray, expected: ExpectedInput) -> np.ndarray:
    if array.dtype.kind == "V" and array.itemsize == expected.dtype.itemsize and expected.dtype.isbuiltin != 1:
        array = array.view(expected.dtype)  # the file cannot name a type that numpy does not have, such as bfloat16
    is_shaped = expected.dims is None or (
        len(array.shape) == len(expected.dims)
        and all(fixed in (None, size) for size, fixed in zip(array.shape, expected.dims, strict=True))
    )
    if array.dtype != expected.dtype or not is_shaped:
        actual = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
        raise ConfigurationError(f"{path}: the array {key!r} is {actual} and should be {expected}")
    return array


def _wanted(expected: Sequence[ExpectedInput]) -> str:
    names = ", ".join(f"{each.name or place}: {each}" for place, each in enumerate(expected))
    return f"the inputs are {names or 'none'}"
