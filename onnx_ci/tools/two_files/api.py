"""Comparing two files from Python: :func:`onnx_ci.compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

from onnx_ci.api import FileOptions, settings_of
from onnx_ci.environment.versions import require_runtime
from onnx_ci.errors import ConfigurationError
from onnx_ci.tools.two_files.compare import compare_files
from onnx_ci.tools.two_files.file_comparison import FileComparison


class CompareOptions(FileOptions, total=False):
    """The settings that affect a comparison of two files. Each takes the values that its flag or ``pyproject.toml`` takes."""

    save_inputs: str | Path


def compare(
    a: str | Path,
    b: str | Path,
    *,
    sizes: Mapping[str, int | Sequence[int]] | None = None,
    **options: Unpack[CompareOptions],
) -> FileComparison:
    """Compare any two ONNX files: their interfaces, and what ONNX Runtime computes with them on the same inputs.

    The inputs follow from the signature: several random ones, other sizes of dynamic axes, zeros, negated and larger numbers.
    One of the files is the reference. ONNX's reference evaluator runs it in float64 where it can, and the unit of the
    difference is the rounding of that file. If one file computes in a lower precision (float16, bfloat16, int8, int4), a
    difference that the rounding of that precision explains is a note.

    Args:
        a: the path of a file, with its external data in the same folder.
        b: the path of another file.
        sizes: sizes of dynamic axes by name: ``{"batch": 4}``, or several to try: ``{"batch": (4, 1)}``. An axis without a
            name is called ``input[axis]``. Default: onnx-ci chooses them.
        **options: settings, as for :func:`run`.

    Returns:
        The findings and the drift of each output. Files that differ are a result, not an exception.

    Raises:
        OnnxCiError: a file does not exist, a setting or size is invalid, or ONNX Runtime is not installed.
    """
    settings = settings_of(options, CompareOptions.__optional_keys__, "a comparison of files")
    require_runtime()
    sizes_by_axis = {axis: (size,) if isinstance(size, int) else tuple(size) for axis, size in (sizes or {}).items()}
    for axis, sizes_of_axis in sizes_by_axis.items():
        if not sizes_of_axis or not all(isinstance(size, int) and size >= 1 for size in sizes_of_axis):
            raise ConfigurationError(f"sizes[{axis!r}] must be sizes of at least 1, not {sizes_of_axis!r}")
    return compare_files(Path(a), Path(b), settings, sizes=sizes_by_axis)
