"""``onnx-ci compare``: two files, their interfaces and what they compute."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from onnx_ci.cli.common import options_of, settings_from, style, with_colour, with_exit_code
from onnx_ci.environment.versions import require_runtime, require_torch
from onnx_ci.errors import ConfigurationError, ExitCode
from onnx_ci.report.findings import finding_lines
from onnx_ci.results.records import Status
from onnx_ci.results.verdict import broken_rules
from onnx_ci.text import count, one_line


@click.command()
@click.argument("a", metavar="A.onnx", type=click.Path(path_type=Path))
@click.argument("b", metavar="B.onnx", type=click.Path(path_type=Path))
@click.option(
    "--size", "sizes", multiple=True, metavar="AXIS=N[,N…]", help="The sizes of a dynamic axis. Default: chosen. Repeatable."
)
@options_of("max-drift", "rules", "inputs", "save-inputs", "isolation", "timeout", "memory-limit", paths=False)
@with_colour
@with_exit_code
def compare(a: Path, b: Path, sizes: tuple[str, ...], **flags: str | None) -> NoReturn:
    r"""Compare two ONNX files and what they compute.

    ONNX Runtime runs both on inputs that follow from the signature: random numbers, several sizes of the dynamic axes, zeros,
    negated and larger numbers. Drift is the difference in units of the rounding of one of the files, which ONNX's reference
    evaluator measures in float64 if it can. If a file computes in float16, bfloat16, int8 or int4, a difference that the
    rounding of that precision explains is a note. The exit code is 1 if there are differences. To compare graphs, use
    `onnx-ci show`.

    \b
    Examples:
      onnx-ci compare before.onnx after.onnx
      onnx-ci compare model.onnx optimized.onnx --size batch=4 --size length=16,100
      onnx-ci compare model.onnx float16.onnx --rules=dtype-mismatch=note
      onnx-ci compare before.onnx after.onnx --inputs=test_data_set_0,images.npz
    """
    settings = settings_from(flags)
    sizes_by_axis: dict[str, tuple[int, ...]] = {}
    for axis, numbers in map(_sizes_of_axis, sizes):
        sizes_by_axis[axis] = (*sizes_by_axis.get(axis, ()), *numbers)
    require_torch()
    require_runtime()
    from onnx_ci.tools.two_files.compare import compare_files

    result = compare_files(a, b, settings, sizes=sizes_by_axis)
    is_unknown = broken_rules(result.findings) == {"vacuous"}
    word = "not compared" if is_unknown else "same" if result.status is Status.PASSED else "different"
    about = ""
    if (worst := result.worst) is not None and not is_unknown:
        inputs = {output.probe for output in result.outputs if output.is_decisive}
        about = f" (drift {worst.drift:.3g} on {count(len(inputs), 'input')})"
    elif result.status is Status.FAILED and not is_unknown:
        about = " (no numbers were compared)"
    click.echo(one_line(f"{a} and {b}: ") + style(word, result.status) + about)
    for line in (*finding_lines(result.findings), *result.log.splitlines()):
        click.echo(f"    {one_line(line)}")
    if result.left_out:
        click.echo(one_line(f"    left out, because both files reject them: {'; '.join(result.left_out)}"))
    sys.exit(ExitCode.PASSED if result.status is Status.PASSED else ExitCode.FAILED)


def _sizes_of_axis(word: str) -> tuple[str, tuple[int, ...]]:
    """``batch=4,1`` as a name and sizes."""
    axis, _, text = word.rpartition("=")
    sizes = tuple(int(number) for number in text.split(",") if number.strip().isdecimal())
    if not axis or len(sizes) != text.count(",") + 1 or 0 in sizes:
        raise ConfigurationError(f"--size: must be AXIS=SIZE, such as batch=4, or AXIS=SIZE,SIZE, not {word!r}")
    return axis, sizes
