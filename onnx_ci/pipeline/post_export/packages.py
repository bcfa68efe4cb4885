"""The packages of our stages, imported when a stage runs."""

from __future__ import annotations

import importlib
from typing import Any


class MissingPackageError(Exception):
    """The package of a stage is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed")
        self.package = package
        self.remedy = f"pip install onnx-ci[{extra}]"


def import_package(module: str, *, package: str, extra: str) -> Any:
    """Import a module that a distribution installs.

    Args:
        module: its name.
        package: the distribution.
        extra: the extra of onnx-ci that requires the distribution.

    Raises:
        MissingPackageError: the distribution is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.startswith(error.name):
            raise MissingPackageError(package, extra) from None
        raise
