"""The lines of code that messages name, and whose code it is: the user's, a library's, or that of the tools themselves."""

from __future__ import annotations

import contextlib
import dataclasses
import filecmp
import functools
import linecache
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

import torch

from onnx_ci.config.settings import find_root
from onnx_ci.errors import working_directory
from onnx_ci.owners import Owner, owner_of, package_folder
from onnx_ci.results.records import SourceLine


def is_in_project(filename: str) -> bool:
    """Whether a file is the user's: it is known, and not in an installed package, or a copy of a file of the project."""
    return bool(filename) and owner_of(str(project_file(filename))) is Owner.PROJECT


def project_file(filename: str) -> Path:
    """The file of the project, in its root or ``src``, that ``pip install .`` has copied; other files as they are."""
    return _project_file(filename, working_directory())


@functools.cache
def _project_file(filename: str, folder: Path) -> Path:
    path = Path(filename)
    installed = package_folder(filename)
    if installed is not None and not is_of_toolchain(filename):  # onnx-ci itself may be what is tested
        module = path.relative_to(installed)
        root = find_root(folder)
        for original in (root / "src" / module, root / module):
            with contextlib.suppress(OSError):
                if filecmp.cmp(path, original, shallow=False):
                    return original
    return path


def is_of_toolchain(filename: str) -> bool:
    """Whether code is part of Python or of a package that exports and judges models, such as torch, or is in no file."""
    return owner_of(filename) is Owner.TOOLCHAIN


def innermost(places: Iterable[tuple[str, int]]) -> SourceLine | None:
    """Of places, innermost first, the first of the user's code, with that of a library that it leads to; else a library's."""
    of_library = None
    for filename, line in places:
        if is_of_toolchain(filename):
            continue
        if is_in_project(filename):
            own = source_line(filename, line)
            return own if of_library is None else dataclasses.replace(own, library=_in_package(*of_library))
        of_library = of_library or (filename, line)
    return None if of_library is None else source_line(*of_library)


def _in_package(filename: str, line: int) -> str:
    """A line of an installed package, its file relative to the folder of the packages: ``einops/einops.py:410``."""
    folder = package_folder(filename)
    return f"{filename if folder is None else Path(filename).relative_to(folder).as_posix()}:{line}"


def source_line(filename: str, line: int) -> SourceLine:
    """A line of any code, its file relative to the working directory if it is below it."""
    path, folder = project_file(filename), working_directory()
    shown = path.relative_to(folder) if path.is_relative_to(folder) else path
    return SourceLine(file=shown.as_posix(), line=line, text=linecache.getline(filename, line).strip())


def calls_module(frame: FrameType) -> bool:
    """Whether a frame is a call of a module."""
    return frame.f_code is _CALL_MODULE


_CALL_MODULE = torch.nn.Module._call_impl.__code__
"""The code that calls each module. No public name shows in a stack which module a line runs in."""
