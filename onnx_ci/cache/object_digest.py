"""A digest for any value that a model or a declaration consists of, the same in every process.

A value whose content cannot be read in full has no digest and raises an error.
"""

from __future__ import annotations

import collections
import contextvars
import enum
import functools
import hashlib
import io
import logging
import re
import sys
import threading
import types
import weakref
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any, TypeVar

import torch

from onnx_ci.cache.import_closure import NotCacheableError
from onnx_ci.environment.libraries import is_installed, is_library, is_library_file, public_name

MANGLED = re.compile(rb"___torch_mangle_\d+\.?|_onnx_ci_recipes_[0-9a-f]{8}\.?")
"""Parts of TorchScript's names that depend on what else ran in the process."""

_HEAP_TYPE = 1 << 9
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_OWNERS = ("PyCapsule", "pybind11_detail_function_record")
_PLAIN_BASES = (object, dict, list, tuple, set, frozenset, str, int, float, bytes)
_CONTAINERS: Mapping[type, Callable[[Any], Iterable[Any]]] = {
    dict: dict.items, list: list.__iter__, tuple: tuple.__iter__, collections.deque: collections.deque.__iter__,
}  # fmt: skip
_SCALARS: Mapping[type, Callable[[Any], Any]] = {
    str: str.__str__, int: int.__int__, float: float.__float__, bytes: bytes.hex,
}  # fmt: skip
_SETS = (set, frozenset)
_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_DESCRIBED_BY_REPR = (
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
    types.GenericAlias, types.UnionType, TypeVar, range, slice, complex,
)  # fmt: skip
"""Types whose ``repr`` describes a value completely."""
_IGNORED_CLASS_ATTRIBUTES = frozenset(
    {"__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "__firstlineno__", "__static_attributes__",
     "__annotations_cache__", "__annotate__", "__annotate_func__", "__annotations__", "__slotnames__", "_abc_impl",
     "_autograd_function_id"}  # a counter of all classes in the process
)  # fmt: skip
_MADE_FROM_SETS: Mapping[str, str] = {"diffusers.configuration_utils": "_use_default_values"}
"""The names of lists whose order differs between processes, by the module of the class that has one."""
_OWN_HASH = "its own hash"
_LEAST_HASH = 2**32
"""Smaller numbers are not taken for a hash, which may take long to compute."""


class Digester:
    """Computes one digest of all values added to it, in order.

    It also records where their code comes from: ``modules`` and ``files``.
    """

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.files: set[str] = set()
        self._hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._kept: list[object] = []  # objects known by their id must outlive this digest

    def hexdigest(self) -> str:
        """The digest of everything added so far."""
        return self._hash.hexdigest()

    def put(self, *texts: str) -> None:
        """Add plain texts."""
        for text in texts:
            data = text.encode("utf-8", "surrogatepass")
            self._hash.update(len(data).to_bytes(8, "big"))
            self._hash.update(data)

    def add(self, value: Any, where: str = "value") -> None:
        """Add a value.

        Args:
            value: anything.
            where: its name in messages.

        Raises:
            NotCacheableError: its content cannot be read in full; the message names the place.
        """
        kind = type(value)
        if value is None or value is Ellipsis or value is NotImplemented or kind in (bool, int, float):
            self.put(kind.__name__, repr(value))
        elif kind is str:
            self.put("str", value)
        elif kind in (bytes, bytearray):
            self.put(kind.__name__, bytes(value).hex())
        elif kind in _DESCRIBED_BY_REPR:
            self.put(kind.__name__, repr(value))
        elif kind is tuple or kind is torch.Size:
            self.put(kind.__name__, str(len(value)))
            for index, item in enumerate(value):
                self.add(item, f"{where}[{index}]")
        elif kind in _SETS:
            self._add_set(value, where)
        elif isinstance(value, PurePath):
            self.put("path", value.as_posix())
        elif not self._known(value):
            self._add_once(value, kind, where)

    def _known(self, value: object) -> bool:
        """Whether the same object was added before; if so, adds its position, which keeps sharing and cycles."""
        if id(value) in self._seen:
            self.put("again", str(self._seen[id(value)]))
            return True
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        return False

    def _add_once(self, value: Any, kind: type, where: str) -> None:
        if isinstance(value, torch.Tensor):
            self._add_tensor(value, where)
        elif isinstance(value, type):
            self._add_class(value, where)
        elif isinstance(value, enum.Enum):
            self.add(kind, where)
            self.put("member", str(value._name_))
            self.add(value._value_, where)
        elif isinstance(value, torch.jit.ScriptModule | torch.jit.ScriptFunction):
            self._add_script(value)
        elif isinstance(value, torch.nn.Module):
            self._add_module(value, where)
        elif isinstance(value, types.FunctionType):
            self._add_function(value, where)
        elif isinstance(value, types.ModuleType):
            self.modules.add(value.__name__)
            self.put("module", public_name(value.__name__))
        elif isinstance(value, types.CodeType):
            self._add_code(value, where)
        elif kind.__module__ == "numpy" and hasattr(value, "tobytes") and hasattr(value, "dtype"):
            self._add_array(value, where)
        elif not self._add_wrapper(value, kind, where):
            self._add_object(value, kind, where)

    # --- containers and wrappers --------------------------------------------------------------------------------------

    def _add_set(self, value: Iterable[Any], where: str) -> None:
        """Members by their own digests, sorted: their order differs between processes."""
        digests = []
        for member in value:
            alone = Digester()
            alone.add(member, f"a member of {where}")
            digests.append(alone.hexdigest())
            self.modules |= alone.modules
            self.files |= alone.files
        self.put("set", str(len(digests)), *sorted(digests))

    def _add_items(self, items: Iterable[Any], where: str) -> None:
        for count, item in enumerate(items):
            self.put("item", str(count))
            self.add(item, f"{where}[{count}]")
        self.put("end")

    def _add_attributes(self, attributes: Mapping[str, Any], where: str) -> None:
        for name in sorted(attributes, key=str):
            self.put("attribute", str(name))
            self.add(attributes[name], f"{where}.{name}")
        self.put("end")

    def _add_wrapper(self, value: Any, kind: type, where: str) -> bool:
        """Add a value of a type, usually written in C, that wraps other values. Returns whether it was one of them."""
        parts: tuple[Any, ...]
        if isinstance(value, functools.partial):
            parts = (value.func, value.args, value.keywords, vars(value))
        elif kind is types.MethodType:
            parts = (value.__func__, value.__self__)
        elif kind in (types.BuiltinFunctionType, types.MethodWrapperType):
            owner = value.__self__
            self.put(value.__qualname__)
            # Such an owner holds machine code, which the file of its compiled module identifies.
            of_module = owner is None or isinstance(owner, types.ModuleType) or type(owner).__name__.startswith(_OWNERS)
            parts = (value.__module__,) if of_module else (value.__module__, owner)
            if isinstance(value.__module__, str):
                self.modules.add(value.__module__)
        elif kind.__name__ == "cython_function_or_method":
            self.modules.add(str(value.__module__))
            parts = (str(value.__module__), value.__qualname__, value.__defaults__, value.__kwdefaults__)
        elif kind in (types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType,
                      types.GetSetDescriptorType, types.MemberDescriptorType):  # fmt: skip
            parts = (value.__objclass__.__qualname__, value.__name__)
        elif kind in (staticmethod, classmethod):
            parts = (value.__func__,)
        elif isinstance(value, property):
            parts = (value.fget, value.fset, value.fdel)
        elif kind is types.MappingProxyType:
            parts = (dict(value),)
        elif kind is types.SimpleNamespace:
            parts = (vars(value),)
        elif kind is weakref.ref:
            parts = (value(),)
        elif kind is re.Pattern:
            parts = (value.pattern, value.flags)
        elif kind is torch.Generator:
            parts = (str(value.device), value.get_state())
        elif kind in (torch.finfo, torch.iinfo):
            parts = (value.dtype,)
        elif isinstance(value, torch.utils.hooks.RemovableHandle):
            parts = ()  # its number counts all hooks in the process
        elif isinstance(value, logging.Logger | logging.Handler):
            parts = (value.name,)
        elif isinstance(value, torch.library.Library):  # files that create one count as operators
            parts = (value.ns, value.kind)
        elif isinstance(value, contextvars.ContextVar):
            try:
                parts = (value.name, value.get())
            except LookupError:
                parts = (value.name,)
        elif kind.__module__ == "typing":
            parts = (repr(value),)
        elif kind in _LOCKS:
            parts = ()
        elif kind.__name__ == "_lru_cache_wrapper":
            parts = (value.__wrapped__,)
        elif kind.__module__.startswith("onnxscript.") and hasattr(value, "source") and hasattr(value, "function"):
            parts = (value.name, value.source, value.function)
        elif kind.__module__ == "numpy.dtypes" or (kind.__module__ == "numpy" and kind.__name__ in ("dtype", "ufunc")):
            parts = (repr(value),)
        elif kind.__name__ == "_tuplegetter":  # a field of a named tuple
            parts = value.__reduce__()[1]
        else:
            return False
        self.put("wrapper", kind.__name__)
        for part in parts:
            self.add(part, where)
        return True

    # --- objects, classes and functions -------------------------------------------------------------------------------

    def _add_object(self, value: Any, kind: type, where: str) -> None:
        if not _is_readable(kind):
            raise NotCacheableError(f"{where} is a {kind.__module__}.{kind.__qualname__}, whose content cannot be read")
        self.put("object")
        self.add(kind, where)
        for base, read in _CONTAINERS.items():
            if isinstance(value, base):
                items = read(value)
                if base is dict and kind.__module__ in _MADE_FROM_SETS:
                    items = [(key, _ordered(kind, key, each)) for key, each in items]
                self._add_items(items, where)
        if isinstance(value, collections.defaultdict):
            self.add(value.default_factory, where)
        if isinstance(value, _SETS):
            self._add_set(value, where)
        for plain, read in _SCALARS.items():
            if isinstance(value, plain):
                self.add(read(value), where)
        state = dict(getattr(value, "__dict__", {}))
        for base in kind.__mro__:
            slots = base.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else tuple(slots):
                own = f"_{base.__name__.lstrip('_')}{slot}" if slot.startswith("__") and not slot.endswith("__") else slot
                if own not in ("__dict__", "__weakref__") and hasattr(value, own):
                    state[f"{base.__qualname__}.{own}"] = getattr(value, own)
        for name, each in state.items():
            state[name] = _OWN_HASH if _is_hash_of(value, each) else _ordered(kind, name, each)
        self._add_attributes(state, where)

    def _add_class(self, value: type, where: str) -> None:
        self.put("class", public_name(value.__module__), value.__qualname__)
        if value.__module__ == "builtins":
            return
        self.modules.add(value.__module__)
        if is_library(value.__module__) and _named(value.__module__, value.__qualname__) is value:
            for base in value.__mro__ if issubclass(value, torch.nn.Module) else ():
                self._add_patches(base, where)
            return
        for base in value.__bases__:
            self.add(base, where)
        if issubclass(value, enum.Enum):
            self._add_items([(name, member.value) for name, member in value.__members__.items()], where)
            functions = {name: each for name, each in vars(value).items() if isinstance(each, types.FunctionType)}
            self._add_attributes(functions, where)
            return
        self._add_attributes({name: each for name, each in vars(value).items() if name not in _IGNORED_CLASS_ATTRIBUTES}, where)

    def _add_patches(self, value: type, where: str) -> None:
        """Add functions that replace an installed class's own."""
        for name, each in vars(value).items():
            if isinstance(each, types.FunctionType) and not _is_of_library(each):
                self.put("patched", name)
                self.add(each, f"{where}.{name}")

    def _add_function(self, value: types.FunctionType, where: str) -> None:
        module = str(value.__module__)
        self.put("function", public_name(module), value.__qualname__)
        if _is_of_library(value) and is_library(module) and _named(module, value.__qualname__) is value:
            return
        file = value.__code__.co_filename
        exists = Path(file).is_file()
        if exists and not is_installed(file):
            self.files.add(file)
            self.modules.add(module)
        self.add(value.__code__, where)
        self.add(value.__defaults__, f"a default of {where}")
        self.add(value.__kwdefaults__, f"a default of {where}")
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:
                self.put("empty cell")
                continue
            self.add(content, f"{name} in {where}")
        self._add_attributes(vars(value), where)
        if not exists:  # there is no module whose globals are digested
            names = sorted(_names_in(value.__code__) & value.__globals__.keys())
            self._add_attributes({name: value.__globals__[name] for name in names}, where)

    def _add_code(self, value: types.CodeType, where: str) -> None:
        """Bytecode without line numbers and file name."""
        self.put("code", value.co_name, value.co_code.hex(), value.co_exceptiontable.hex())
        self.add((value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags), where)
        self.add((value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars), where)
        self.add(value.co_consts, f"a constant of {where}")

    # --- models and tensors -------------------------------------------------------------------------------------------

    def _add_module(self, value: torch.nn.Module, where: str) -> None:
        """A module without the content of its registered tensors, which :func:`add_weights` adds."""
        self.put("nn.Module")
        self.add(type(value), where)
        rest = dict(vars(value))
        for registry in ("_parameters", "_buffers"):
            registered = rest.pop(registry, {})
            self._add_items([(name, tensor is None) for name, tensor in registered.items()], where)
        if isinstance(value, torch.fx.GraphModule):
            written = rest.pop("_graph").python_code("self")
            self.put(written.src)
            self._add_attributes(written.globals, where)
        children = rest.pop("_modules", {})
        for name in [name for name in rest if "hooks" in name and isinstance(rest[name], dict)]:
            hooks = rest.pop(name)
            self.put(name)  # the keys count all hooks in the process; only their order matters
            self._add_items(list(hooks.values()), f"{where}.{name}")
        self._add_attributes(rest, where)
        for name, child in children.items():
            self.put("child", name)
            self.add(child, f"{where}.{name}")
        self.put("end")

    def add_weights(self, model: torch.nn.Module) -> None:
        """Add every parameter and buffer: name, kind, content, and which of them are the same tensor."""
        for kind, registered in (
            ("parameter", model.named_parameters(remove_duplicate=False)),
            ("buffer", model.named_buffers(remove_duplicate=False)),
        ):
            for name, tensor in registered:
                self.put(kind, name)
                self.add(tensor, name)

    def _add_tensor(self, value: torch.Tensor, where: str) -> None:
        kind = type(value)
        if (
            kind not in _TENSORS
            or value.layout is not torch.strided
            or (value.is_quantized and value.dim() and _by_axis(value))
        ):
            raise NotCacheableError(f"{where} is a {kind.__qualname__} ({value.layout}), whose content cannot be read")
        self.put("tensor", kind.__name__, str(value.dtype), str(tuple(value.shape)), str(value.stride()), value.device.type)
        self.put(str(value.requires_grad), str(value.is_conj()), str(value.is_neg()))
        self._add_attributes(vars(value), where)
        if value.is_meta:
            return
        storage = value.untyped_storage().data_ptr()
        self.put(str(self._storages.setdefault(storage, len(self._storages))), str(value.storage_offset()))
        plain = value.detach()
        if plain.is_quantized:
            self.put(str(plain.qscheme()), repr(plain.q_scale()), repr(plain.q_zero_point()))
            plain = plain.int_repr()
        dense = plain.resolve_conj().resolve_neg().cpu().contiguous()
        self._hash.update(dense.reshape(-1).view(torch.uint8).numpy().data)

    def _add_array(self, value: Any, where: str) -> None:
        if value.dtype.hasobject:
            raise NotCacheableError(f"{where} is an array of objects, whose content cannot be read")
        self.put("array", type(value).__name__, repr(value.dtype), str(value.shape))
        self._hash.update(value.tobytes())

    def _add_script(self, value: Any) -> None:
        """What TorchScript saves, without the locations of its source."""
        self.put("script", str(getattr(value, "training", None)))
        with zipfile.ZipFile(io.BytesIO(value.save_to_buffer())) as saved:
            for name in sorted(saved.namelist()):
                if name.endswith(".debug_pkl") or "/.data/" in name:
                    continue
                self._hash.update(MANGLED.sub(b"", name.encode()))
                self._hash.update(MANGLED.sub(b"", saved.read(name)))


def _is_of_library(function: types.FunctionType) -> bool:
    file = function.__code__.co_filename
    if file.startswith("<"):  # generated, as dataclasses do
        return is_library(str(function.__module__))
    return is_library_file(file)


def _named(module: str, name: str) -> Any:
    """The value of a dotted name in a module, or ``None``."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _names_in(code: types.CodeType) -> set[str]:
    nested = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*(_names_in(each) for each in nested))


def _by_axis(tensor: torch.Tensor) -> bool:
    return tensor.qscheme() not in (torch.per_tensor_affine, torch.per_tensor_symmetric)


def _ordered(owner: type, name: object, value: Any) -> Any:
    """``value``, or its members in order if it is a list that a library makes from a set."""
    return sorted(value) if type(value) is list and _MADE_FROM_SETS.get(owner.__module__) == name else value


def _is_hash_of(value: Any, number: Any) -> bool:
    """Whether a number is the hash of ``value``, which can differ between processes and adds nothing to its content."""
    if type(number) is not int or abs(number) < _LEAST_HASH:
        return False
    try:
        return hash(value) == number
    except Exception:  # whatever the class raises
        return False


@functools.lru_cache(maxsize=4096)
def _is_readable(kind: type) -> bool:
    """Whether Python can read everything that an instance consists of: no part of it is hidden in a type written in C."""
    for base in kind.__mro__:
        if base in _PLAIN_BASES or base in (*_CONTAINERS, collections.OrderedDict, collections.defaultdict):
            continue
        if issubclass(base, BaseException) or not base.__flags__ & _HEAP_TYPE:
            return False
        if type(base).__module__.startswith(("pybind11", "nanobind")):
            return False
        for name, each in vars(base).items():
            if isinstance(each, types.WrapperDescriptorType | types.MethodDescriptorType) and each.__objclass__ is base:
                return False
            if isinstance(each, types.GetSetDescriptorType) and name not in ("__dict__", "__weakref__"):
                return False
        slots = base.__dict__.get("__slots__", ())
        room = 8 * (2 + (1 if isinstance(slots, str) else len(tuple(slots))))
        if base.__basicsize__ > max(each.__basicsize__ for each in base.__bases__) + room:
            return False
    return True
