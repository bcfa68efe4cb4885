"""The lines of code that messages name, and whose code it is: the user's, a library's, or that of the tools themselves."""

from __future__ import annotations

import contextlib
import dataclasses
import filecmp
import functools
import linecache
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import torch

from onnx_ci.config.settings import find_root
from onnx_ci.errors import working_directory
from onnx_ci.results.records import SourceLine

_OF_PACKAGES = frozenset({"site-packages", "dist-packages"})
"""Names of folders with installed packages. An environment can use such a folder of another one without listing it."""


def is_in_project(filename: str) -> bool:
    """Whether a file is the user's: it is known, and not in an installed package, or a copy of a file of the project."""
    file = project_file(filename)
    return bool(filename) and not filename.startswith("<") and not _is_installed(file)  # "<string>" is generated code


@functools.cache
def _is_installed(file: Path) -> bool:
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib", "scripts")}
    installed.add(Path(__file__).parents[2])
    return bool(_OF_PACKAGES & {*file.parts}) or any(file.is_relative_to(folder) for folder in installed)


def project_file(filename: str) -> Path:
    """The file of the project that an installed file is a copy of; other files as they are.

    ``pip install .`` copies the modules of the project from its root or from ``src``, and Python imports the copies.
    """
    return _project_file(filename, working_directory())


@functools.cache
def _project_file(filename: str, folder: Path) -> Path:
    path = Path(filename)
    names = [name for name in path.parts if name in _OF_PACKAGES]
    if names and not is_of_toolchain(filename):  # onnx-ci itself may be what is tested
        module = path.parts[len(path.parts) - path.parts[::-1].index(names[-1]) :]
        root = find_root(folder)
        for original in (root.joinpath("src", *module), root.joinpath(*module)):
            with contextlib.suppress(OSError):
                if filecmp.cmp(path, original, shallow=False):
                    return original
    return path


@functools.cache
def _toolchain() -> tuple[Path, ...]:
    """The folders of the packages that export and judge models."""
    origins = (find_spec(name) for name in ("torch", "onnx", "onnx_ir", "onnxscript"))
    folders = (Path(spec.origin).parent for spec in origins if spec is not None and spec.origin is not None)
    return (*folders, Path(__file__).parents[2])


@functools.cache
def is_of_toolchain(filename: str) -> bool:
    """Whether code is part of Python or of a package that exports and judges models, such as torch, or is in no file."""
    path = Path(filename)
    is_of_python = path.is_relative_to(sysconfig.get_path("stdlib")) and not _OF_PACKAGES & {*path.parts}
    return filename.startswith("<") or is_of_python or any(map(path.is_relative_to, _toolchain()))


def innermost(places: Iterable[tuple[str, int]]) -> SourceLine | None:
    """The innermost line of the user's code, with that of a library that it leads to; if there is none, that of the library.

    Args:
        places: files and lines, the innermost first.
    """
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
    parts = Path(filename).parts
    start = next((place for place, part in reversed([*enumerate(parts, 1)]) if part in _OF_PACKAGES), 0)
    return f"{Path(*parts[start:]).as_posix()}:{line}"


def source_line(filename: str, line: int) -> SourceLine:
    """A line of any code, its file relative to the working directory if it is below it."""
    return _source_line(filename, line, working_directory())


@functools.cache
def _source_line(filename: str, line: int, folder: Path) -> SourceLine:
    path = _project_file(filename, folder)
    shown = path.relative_to(folder) if path.is_relative_to(folder) else path
    return SourceLine(file=shown.as_posix(), line=line, text=linecache.getline(filename, line).strip())


class CallPlaces:
    """Where in a model an operator or a function of torch is called.

    Args:
        model: the model that runs while :meth:`now` is called.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules = {id(module): name for name, module in model.named_modules()}

    def now(self) -> tuple[str, SourceLine | None]:
        """The path of the innermost module that runs, and the innermost line."""
        module: str | None = None
        places: list[tuple[str, int]] = []
        for frame, line in traceback.walk_stack(sys._getframe(1)):
            if calls_module(frame):
                name = self._modules.get(id(frame.f_locals.get("self")))
                module = name if module is None else module
                if name == "":  # frames outside of it called the model
                    return module or "", innermost(places)
            else:
                places.append((frame.f_code.co_filename, line))
        return module or "", None


def calls_module(frame: FrameType) -> bool:
    """Whether a frame is a call of a module."""
    return frame.f_code is _CALL_MODULE


_CALL_MODULE = torch.nn.Module._call_impl.__code__
"""The code that calls each module. No public name shows in a stack which module a line runs in."""
