"""The values in the project's modules: a file alone does not show what its global names are set to."""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Iterable, Mapping

from onnx_ci.cache.import_closure import NotCacheableError, read_source
from onnx_ci.cache.object_digest import Digester
from onnx_ci.collection.recipe import Recipe
from onnx_ci.environment.libraries import is_installed, is_library, public_name

_SET_BY_IMPORT = frozenset(
    {"__name__", "__doc__", "__package__", "__loader__", "__spec__", "__path__", "__file__", "__cached__", "__builtins__",
     "__annotations__", "__conditional_annotations__", "__annotate__", "__warningregistry__"}
)  # fmt: skip


def module_values(sources: Mapping[str, str], files: Iterable[str] = ()) -> Digester:
    """Digest every value in the modules of ``sources``, including the attributes of their classes.

    Imported modules count only where code refers to them, because any file may import a submodule into its package. A value
    that cannot be read is left out if no code refers to its name.

    Args:
        sources: digests by the public name of a module, as :func:`onnx_ci.cache.import_closure.closure` returns them.
        files: other files whose code may refer to the values.

    Returns:
        The digest, with the modules and files that the values' code comes from.

    Raises:
        NotCacheableError: a value that code refers to cannot be read in full, or a file changed since this process started.
    """
    modules = {name: module for name, module in list(sys.modules.items()) if sources.get(public_name(name))}
    read = {file for file in files if not is_installed(file)}
    read.update(str(module.__file__) for module in modules.values())
    values = _ModuleValues(frozenset().union(*(read_source(file).names for file in read)))
    for name, module in sorted(modules.items()):
        values.digester.put("module", public_name(name))
        # A compiled module has no source that shows which names its code refers to.
        values.compiled = not _is_python(module)
        for key, value in sorted(vars(module).items()):
            if key not in _SET_BY_IMPORT:
                values.add(key, value, f"{public_name(name)}.{key}")
    return values.digester


class _ModuleValues:
    def __init__(self, names: frozenset[str]) -> None:
        self.digester = Digester()
        self.compiled = False
        self._names = names
        self._classes: set[type] = set()

    def add(self, name: str, value: object, where: str, *, used: bool = False) -> None:
        """Add the value of a name.

        Args:
            used: whether it is used even if no code refers to its name, as torch calls ``forward``.
        """
        used = used or name in self._names
        if isinstance(value, types.ModuleType) and not used:
            return
        if isinstance(value, Recipe):
            value = value.function  # its declaration affects only its own cells
        self.digester.put(name)
        if isinstance(value, type) and not issubclass(value, enum.Enum) and not is_library(value.__module__):
            self._add_class(value, where, used=used)
        elif used or self.compiled:
            self.digester.add(value, where)
        else:
            self._add_if_readable(value, where)

    def _add_class(self, value: type, where: str, *, used: bool) -> None:
        self.digester.put("class", public_name(value.__module__), value.__qualname__)
        self.digester.modules.add(value.__module__)
        if value in self._classes or not _is_python(sys.modules.get(value.__module__)):
            return
        self._classes.add(value)
        for base in value.__bases__:
            self.add(base.__name__, base, f"a base of {where}", used=used)
        for key, each in sorted(vars(value).items()):
            function = isinstance(each, types.FunctionType)
            if function or not (key.startswith("__") and key.endswith("__")):
                self.add(key, each, f"{where}.{key}", used=used and function)

    def _add_if_readable(self, value: object, where: str) -> None:
        alone = Digester()  # a value counts in full or not at all
        try:
            alone.add(value, where)
        except (NotCacheableError, RecursionError):
            self.digester.put("unread")
            return
        self.digester.put(alone.hexdigest())
        self.digester.modules |= alone.modules
        self.digester.files |= alone.files


def _is_python(module: types.ModuleType | None) -> bool:
    """Whether a module's classes are written in Python; assumed if its file is unknown."""
    file = getattr(module, "__file__", None)
    return file is None or str(file).endswith(".py")
