"""What models take and return, flattened in the exporters' order, with a readable name for every tensor.

A class that is registered as a pytree is flattened as ``torch.export`` flattens it. Mappings, dataclasses and key-value caches
that are not registered are flattened, too. Exporters do not support all of these classes: see :class:`Container`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

Path = tuple[str | int, ...]
"""The keys, names and positions that lead to a value: ``("past_key_values", 0, "key")``."""

_PLAIN = (torch.Tensor, type(None), str, bytes, int, float, complex, torch.dtype, torch.device, torch.layout, torch.Generator)
"""The values that are not containers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Container:
    """A value of another class than tuple, list and dict, in an argument or an output."""

    path: Path
    kind: type
    is_registered: bool
    """Whether its class is registered as a pytree, so that PyTorch can flatten and rebuild it."""
    has_keys: bool
    """Whether it is registered with names for its children."""
    has_tensors: bool
    """Whether :func:`named_leaves` finds tensors in it."""


def named_leaves(value: Any) -> list[tuple[Path, Any]]:
    """The values in a container, tensors and others, with their paths, in the order in which the exporters flatten it."""
    return list(_leaves(value))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in a container, in the order of :func:`named_leaves`."""
    return [leaf for _, leaf in _leaves(value) if isinstance(leaf, torch.Tensor)]


def name_of(path: Path) -> str:
    """The path as a name, such as ``past_key_values.0.key``."""
    return ".".join(map(str, path))


def children_of(value: Any) -> list[tuple[str | int, Any]]:
    """What a container holds directly, with its keys, names or positions; empty for any other value."""
    return _children(value) or []


def containers_in(value: Any, path: Path = ()) -> Iterator[Container]:
    """The containers in ``value``, itself included, whose classes an exporter may not support; outer ones first."""
    if isinstance(value, _PLAIN):
        return
    if type(value) not in (tuple, list, dict):
        is_registered = not pytree.tree_is_leaf(value)
        has_keys = is_registered and _registered_children(value)[1]
        has_tensors = bool(tensors_in(value))
        yield Container(path=path, kind=type(value), is_registered=is_registered, has_keys=has_keys, has_tensors=has_tensors)
    for key, child in children_of(value):
        yield from containers_in(child, (*path, key))


def _leaves(value: Any) -> Iterator[tuple[Path, Any]]:
    children = _children(value)
    if children is None:
        yield (), value
        return
    layers = _cache_layers(value)  # the tensors of a cache are named by layer, however its class is registered
    of_cache = _Names(_leaves(dict(layers)) if layers else ())
    for key, child in children:
        for path, leaf in _leaves(child):
            yield of_cache.next_of(leaf) or (key, *path), leaf


class _Names:
    """The names of objects. An object that is held several times has several, and each is returned once."""

    def __init__(self, named: Iterable[tuple[Path, Any]]) -> None:
        self._paths: dict[int, list[Path]] = {}
        for path, value in named:
            self._paths.setdefault(id(value), []).append(path)

    def next_of(self, value: Any) -> Path:
        """The next name of an object; empty if all of them were returned."""
        paths = self._paths.get(id(value))
        return paths.pop(0) if paths else ()


def _children(value: Any) -> list[tuple[str | int, Any]] | None:
    """What a container holds, with its keys, names or positions; ``None`` if it is not a container."""
    if isinstance(value, _PLAIN):
        return None
    if not pytree.tree_is_leaf(value):
        return _registered_children(value)[0]
    if isinstance(value, Mapping):
        return [(_key(key), child) for key, child in value.items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    if layers := _cache_layers(value):
        return layers
    members = getattr(value, "__dict__", {}).items()  # it may consist of caches, such as those of an encoder and a decoder
    return [(name.removesuffix("_cache"), member) for name, member in members if _cache_layers(member)] or None


def _registered_children(value: Any) -> tuple[list[tuple[str | int, Any]], bool]:
    """What a registered pytree holds, and whether with keys; without, children have those of their holders."""

    def is_child(node: Any) -> bool:
        return node is not value

    try:
        with_paths, _ = pytree.tree_flatten_with_path(value, is_leaf=is_child)
    except ValueError:  # it has no flatten_with_keys_fn
        members = value.items() if isinstance(value, Mapping) else getattr(value, "__dict__", {}).items()
        names = _Names(((_key(name),), child) for name, child in members)
        children = pytree.tree_leaves(value, is_leaf=is_child)
        return [((names.next_of(child) or (position,))[0], child) for position, child in enumerate(children)], False
    fields = ("key", "name", "idx")  # of torch's classes of keys
    entries = [(path[-1], child) for path, child in with_paths]
    return [(_key(next((getattr(each, f) for f in fields if hasattr(each, f)), each)), child) for each, child in entries], True


def _key(key: Any) -> str | int:
    return key if isinstance(key, int) else str(key)


_OF_LAYER = {"keys": "key", "values": "value"}
"""The attributes of the layers of transformers' caches, in the singular."""


def _cache_layers(value: Any) -> list[tuple[str | int, Any]]:
    """The tensors of a key-value cache, by layer; empty for any other object.

    transformers' hold a list of layers with ``keys`` and ``values``; earlier ones, and many others, two lists of tensors.
    """
    state = getattr(value, "__dict__", {})
    keys, values, layers = (state.get(name) for name in ("key_cache", "value_cache", "layers"))
    if isinstance(keys, list) and isinstance(values, list):
        pairs = zip(keys, values, strict=False)
        return [(index, {"key": key, "value": value_of_key}) for index, (key, value_of_key) in enumerate(pairs)]
    states = [getattr(layer, "__dict__", {}) for layer in layers] if isinstance(layers, list) else []
    if not any("keys" in each and "values" in each for each in states):
        return []
    return [
        (index, {_OF_LAYER.get(name, name): member for name, member in state.items() if tensors_in(member)})
        for index, state in enumerate(states)
    ]
