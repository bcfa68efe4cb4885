"""What users write against is typed: every type they can reach has a public name."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import typing
from collections.abc import Iterator

import pytest

import onnx_ci

PUBLIC = {getattr(onnx_ci, name): name for name in onnx_ci.__all__ if inspect.isclass(getattr(onnx_ci, name))}


def types_in(hint: object) -> Iterator[type]:
    """The classes of onnx-ci that an annotation names, however deep."""
    if inspect.isclass(hint) and hint.__module__.startswith("onnx_ci"):
        yield hint
    for inner in typing.get_args(hint):
        yield from types_in(inner)


@pytest.mark.parametrize("record", PUBLIC, ids=PUBLIC.get)
def test_every_type_that_a_field_can_have_is_public(record):
    reachable = []
    if dataclasses.is_dataclass(record) or typing.is_typeddict(record):
        hints = typing.get_type_hints(record)
        reachable += [type for name, hint in hints.items() if not name.startswith("_") for type in types_in(hint)]
    for _, member in inspect.getmembers(record, lambda each: isinstance(each, property)):
        reachable += types_in(typing.get_type_hints(member.fget).get("return"))
    # A shard is also given as text; its class is how the settings hold it.
    assert {each.__name__ for each in reachable if each not in PUBLIC} <= {"Shard"}


def test_enumerations_have_a_public_name_for_every_value():
    for each in PUBLIC:
        if issubclass(each, enum.Enum):
            assert all(member.name.isupper() for member in each)
