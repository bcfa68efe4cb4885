"""The mark of a file with probe weights, which onnx-ci keeps only to show a fault, and which must not be deployed."""

from __future__ import annotations

from pathlib import Path

import onnx

SUFFIX = ".probe-weights"
"""What the name of a marked file ends with, before ``.onnx``."""

_KEY, _VALUE = "onnx-ci.weights", "probe"


def mark_probe_weights(path: Path) -> Path:
    """Mark the ONNX file at ``path`` in its metadata and in its name, and return its new path.

    Its external data keeps its name. The weights are not read: appending a message to another one in protobuf's wire format
    merges both.
    """
    mark = onnx.StringStringEntryProto(key=_KEY, value=_VALUE)
    with path.open("ab") as file:
        file.write(onnx.ModelProto(metadata_props=[mark]).SerializeToString())
    return path.rename(path.with_name(f"{path.stem}{SUFFIX}{path.suffix}"))


def is_marked(model: onnx.ModelProto) -> bool:
    """Whether the metadata of ``model`` says that it has probe weights."""
    return any((entry.key, entry.value) == (_KEY, _VALUE) for entry in model.metadata_props)
