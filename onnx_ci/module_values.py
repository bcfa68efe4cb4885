"""What the project's modules hold: a file does not tell what its names were set to, at its import or since."""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Iterable, Mapping

from onnx_ci.content import Digester
from onnx_ci.recipe import Recipe
from onnx_ci.sources import NotCacheableError, is_installed, is_library, public_name, read_source

_OF_THE_IMPORT = frozenset(
    {"__name__", "__doc__", "__package__", "__loader__", "__spec__", "__path__", "__file__", "__cached__", "__builtins__",
     "__annotations__", "__conditional_annotations__", "__annotate__", "__warningregistry__"}
)  # fmt: skip


def module_values(sources: Mapping[str, str], files: Iterable[str] = ()) -> Digester:
    """Take in every value that the modules of ``sources`` hold, their classes' attributes included.

    What a module imported is taken in where code refers to it: any file may import a submodule into its package. A value
    that cannot be read is left out if no code refers to its name.

    Args:
        sources: digests by the public name of a module, as :func:`onnx_ci.sources.closure` gives them.
        files: further files whose code may refer to the values.

    Returns:
        The digest, with the modules and files from which the values' code comes.

    Raises:
        NotCacheableError: a value to which code refers cannot be read in full, or a file changed since this process began.
    """
    modules = {name: module for name, module in list(sys.modules.items()) if sources.get(public_name(name))}
    read = {file for file in files if not is_installed(file)}
    read.update(str(module.__file__) for module in modules.values())
    held = _Held(frozenset().union(*(read_source(file).names for file in read)))
    for name, module in sorted(modules.items()):
        held.digester.put("module", public_name(name))
        # Of a module that was compiled no text tells which names its code refers to.
        held.compiled = not _is_python(module)
        for key, value in sorted(vars(module).items()):
            if key not in _OF_THE_IMPORT:
                held.take(key, value, f"{public_name(name)}.{key}")
    return held.digester


class _Held:
    def __init__(self, names: frozenset[str]) -> None:
        self.digester = Digester()
        self.compiled = False
        self._names = names
        self._classes: set[type] = set()

    def take(self, name: str, value: object, where: str, *, used: bool = False) -> None:
        """Take in what stands under a name.

        Args:
            used: whether code refers to it although none may name it, as torch calls ``forward``.
        """
        used = used or name in self._names
        if isinstance(value, types.ModuleType) and not used:
            return
        if isinstance(value, Recipe):
            value = value.function  # what it declares matters to its own cells only
        self.digester.put(name)
        if isinstance(value, type) and not issubclass(value, enum.Enum) and not is_library(value.__module__):
            self._take_class(value, where, used=used)
        elif used or self.compiled:
            self.digester.add(value, where)
        else:
            self._take_if_readable(value, where)

    def _take_class(self, value: type, where: str, *, used: bool) -> None:
        self.digester.put("class", public_name(value.__module__), value.__qualname__)
        self.digester.modules.add(value.__module__)
        if value in self._classes or not _is_python(sys.modules.get(value.__module__)):
            return
        self._classes.add(value)
        for base in value.__bases__:
            self.take(base.__name__, base, f"a base of {where}", used=used)
        for key, each in sorted(vars(value).items()):
            function = isinstance(each, types.FunctionType)
            if function or not (key.startswith("__") and key.endswith("__")):
                self.take(key, each, f"{where}.{key}", used=used and function)

    def _take_if_readable(self, value: object, where: str) -> None:
        alone = Digester()  # half of a value must not count
        try:
            alone.add(value, where)
        except (NotCacheableError, RecursionError):
            self.digester.put("unread")
            return
        self.digester.put(alone.hexdigest())
        self.digester.modules |= alone.modules
        self.digester.files |= alone.files


def _is_python(module: types.ModuleType | None) -> bool:
    """Whether a module's classes are written in Python, as are those of none that is known."""
    file = getattr(module, "__file__", None)
    return file is None or str(file).endswith(".py")
