"""Pickles the work of a process, which may consist of functions of a script or a notebook."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from types import FunctionType, ModuleType
from typing import IO, Any

import cloudpickle

from onnx_ci.owners import spec_of


class UnsendableError(OSError):
    """The work of a process cannot be sent to it. An ``OSError``, like every other reason why a process does not start."""


def pickled(value: object) -> bytes:
    """The work of a process as bytes. Raises :class:`UnsendableError`."""
    try:
        with io.BytesIO() as stream, contextlib.closing(_Pickler(stream)) as pickler:
            pickler.dump(value)
            return stream.getvalue()
    except Exception as error:  # whatever the objects of a recipe raise
        raise UnsendableError(f"what it is to do cannot be sent to it: {type(error).__name__}: {error}") from error


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # untyped
    """Pickles by value what a new process cannot import, such as a test module in pytest's ``importlib`` mode."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(stream)
        self._by_value: list[ModuleType] = []
        self._can_be_imported = functools.cache(_can_be_imported)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType)):
            module = sys.modules.get(str(obj.__module__))
            by_value = cloudpickle.list_registry_pickle_by_value()
            if module is not None and module.__name__ not in by_value and not self._can_be_imported(module):
                cloudpickle.register_pickle_by_value(module)
                self._by_value.append(module)
        return super().reducer_override(obj)

    def close(self) -> None:
        for module in self._by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _can_be_imported(module: ModuleType) -> bool:
    """Whether a new process can find the module."""
    if module.__name__ == "__main__" or getattr(module, "__file__", None) is None:
        return True  # cloudpickle knows what to do
    return spec_of(module.__name__) is not None
