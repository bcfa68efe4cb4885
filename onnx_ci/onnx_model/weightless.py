"""An ONNX file without its weights: small enough to parse, check and load quickly.

Almost all of a file is the raw data of its initializers. In its *skeleton*, each large initializer is external data that points
into the original file, as the ONNX standard defines it. The weights are neither parsed nor copied.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from onnx_ci.onnx_model.signature import bytes_of

INLINE_BYTES = 64 * 1024
"""Initializers up to this size stay in the skeleton: shape inference needs the values of shapes, scales and axes."""

PROTOBUF_LIMIT = 2**31
"""The limit of a protobuf message in bytes. A larger file cannot be read, and a skeleton must not hide that."""

# Field numbers of onnx.proto; they never change, by the rules of protobuf.
_MODEL_GRAPH = 7
_GRAPH_INITIALIZER = 5
_TENSOR_RAW_DATA = 9

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


@contextlib.contextmanager
def skeleton(path: Path) -> Iterator[Path]:
    """A skeleton of the ONNX file at ``path``, in the same folder while the block runs; ``path`` itself if that is small.

    A folder of files is its own skeleton. So is a file that is not a valid protobuf message: its reader reports what is wrong.
    """
    skeleton_path = path.with_name(f"{path.name}.skeleton")
    try:
        text = _skeleton_of(path)
    except (ValueError, IndexError, DecodeError):
        text = None
    if text is None:
        yield path
        return
    try:
        skeleton_path.write_bytes(text)
        yield skeleton_path
    finally:
        skeleton_path.unlink(missing_ok=True)


def _skeleton_of(path: Path) -> bytes | None:
    """The skeleton's bytes, or ``None`` if no initializer is large.

    Raises:
        ValueError, IndexError, DecodeError: the file is damaged.
    """
    if path.is_dir() or not INLINE_BYTES < path.stat().st_size < PROTOBUF_LIMIT:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        moved = False
        model = bytearray()
        for number, start, body, end in _fields(data, 0, len(data)):
            if number != _MODEL_GRAPH:
                model += data[start:end]
                continue
            graph = bytearray()
            for field, first, inside, last in _fields(data, body, end):
                tensor = _with_external_data(data, inside, last, path.name) if field == _GRAPH_INITIALIZER else None
                moved |= tensor is not None
                graph += data[first:last] if tensor is None else _delimited(_GRAPH_INITIALIZER, tensor)
            model += _delimited(_MODEL_GRAPH, graph)
    return bytes(model) if moved else None


def _with_external_data(data: mmap.mmap, start: int, end: int, location: str) -> bytes | None:
    """The TensorProto between two offsets with its raw data made external, or ``None`` if it stays unchanged."""
    if end - start <= INLINE_BYTES:
        return None
    rest = bytearray()
    raw = None
    for number, first, body, last in _fields(data, start, end):
        if number == _TENSOR_RAW_DATA:
            raw = body, last - body
        else:
            rest += data[first:last]
    if raw is None:
        return None
    offset, length = raw
    tensor = onnx.TensorProto.FromString(bytes(rest))
    if tensor.external_data or length != bytes_of(tensor):
        return None  # it is external already, or invalid, which its reader reports
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return bytes(tensor.SerializeToString())


# --- protobuf's wire format (protobuf.dev/programming-guides/encoding) ----------------------------------------------


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message between two offsets: number, and the offsets of the field, its content and the next field."""
    position = start
    while position < end:
        first = position
        key, position = _varint(data, position)
        kind = key & 7
        if kind == _LENGTH_DELIMITED:
            length, position = _varint(data, position)
        elif kind == _VARINT:
            length = _varint(data, position)[1] - position
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind} at {first}")
        if position + length > end:
            raise ValueError(f"the field at {first} is cut off")
        yield key >> 3, first, position, position + length
        position += length


def _varint(data: mmap.mmap, position: int) -> tuple[int, int]:
    """A varint, and the offset after it."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def _delimited(number: int, content: bytes | bytearray) -> bytes:
    """A length-delimited field."""
    return _encoded(number << 3 | _LENGTH_DELIMITED) + _encoded(len(content)) + content


def _encoded(value: int) -> bytes:
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)
