"""Import recipe files."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from onnx_ci.errors import RecipeError


def import_file(path: Path) -> ModuleType:
    """The module of the file ``path``, imported once.

    A file in a package is imported under its dotted name, so that its relative imports work; any other file can import
    modules in its folder, as a script can.
    """
    real = os.path.realpath(path)
    names = (path.name, Path(real).name)
    for module in list(sys.modules.values()):
        origin = getattr(module, "__file__", None)
        if not isinstance(origin, str) or not origin.endswith(names):
            continue  # thousands of modules: only of a few is the path resolved, which takes long
        if module.__name__ != "__main__" and os.path.realpath(origin) == real:
            return module
    package_root, parts = path.parent, [path.stem]
    while (package_root / "__init__.py").is_file():
        parts.insert(0, package_root.name)
        package_root = package_root.parent
    if str(package_root) not in sys.path:
        sys.path.insert(0, str(package_root))
    if len(parts) > 1:
        module = importlib.import_module(".".join(parts))
        if os.path.realpath(module.__file__ or "") != real:
            raise RecipeError(f"{'.'.join(parts)} is already imported from {module.__file__}; rename one of the two packages")
        return module
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    package = f"_onnx_ci_recipes_{digest}"
    spec = importlib.util.spec_from_file_location(f"{package}.{path.stem}", path)
    if spec is None or spec.loader is None:
        raise RecipeError("it is not a Python file; recipe files end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(package, ModuleType(package))  # pickle looks for functions by the name of their module
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def import_module_of(name: str, path: Path) -> ModuleType:
    """The module ``name`` of the file ``path``, by its name if that leads to the file, or else by the file.

    By its name, it is the same module to others that import it.
    """
    spec = None
    if name not in sys.modules:
        with contextlib.suppress(ImportError, ValueError):  # its parent cannot be imported
            spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == os.path.realpath(path):
        return importlib.import_module(name)
    return import_file(path)
