"""``onnx-ci show``: the graph of a file, or of a cell, as people read it; and what differs between two."""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from onnx_ci.commands.common import find_quietly, options_of, recipe_named, settle, with_colour, with_exit_code
from onnx_ci.config import Settings
from onnx_ci.errors import ConfigurationError, EnvironmentLacksError, ExitCode, OnnxCiError, RecipeError, did_you_mean
from onnx_ci.matrix import PlannedCell
from onnx_ci.processes import LAST, Death, Send, limits_of, run_apart
from onnx_ci.records import Cell, Finding
from onnx_ci.report.text import one_line

if TYPE_CHECKING:
    import onnx


_Source = Path | PlannedCell
"""Where a graph comes from: a file, or the export of a cell."""


class _NoGraphError(OnnxCiError):
    """There is no graph to show: the export fails, or the process that was to make it died."""

    exit_code = ExitCode.FAILED


@click.command(name="show")
@click.argument("graph", metavar="FILE|CELL")
@click.argument("other", metavar="[OTHER]", required=False)
@options_of("recipe-files", "packages", "isolation", "timeout", "memory-limit", paths=False)
@with_colour
@with_exit_code
def show_graph(graph: str, other: str | None, **flags: str | None) -> NoReturn:
    r"""Show the graph of a file or a cell, or what differs in two.

    Weights are left out. A CELL is an id as `onnx-ci list` shows it, such as recipes/lstm.py::lstm::opset13-cpu, or without
    the file; it is exported for the purpose, at any opset. A difference is told as a diff. Values and nodes that correspond
    have one name in it, however the exporter has numbered them, and other weights show as other digests; the exit code is 1
    if there is one.

    \b
    Examples:
      onnx-ci show model.onnx
      onnx-ci show lstm::opset13-cpu
      onnx-ci show lstm::opset13-cpu lstm::opset17-cpu       what the opset changes
      onnx-ci show old.onnx resnet18::opset17-cpu            what today's export changes
    """
    settings = settle(flags)
    names = [name for name in (graph, other) if name is not None]
    models = _models([(name, _source(name, settings)) for name in names], settings)
    from onnx_ci.graph_text import difference, graph_lines

    if len(models) == 1:
        for line in graph_lines(models[0]):
            click.echo(one_line(line))
        sys.exit(ExitCode.PASSED)
    lines = difference(models[0], models[1], (names[0], names[1]))
    for line in lines:
        click.secho(one_line(line), fg={"+": "green", "-": "red", "@": "cyan"}.get(line[:1]))
    if not lines:
        click.echo("the graphs are the same, whatever their values are called")
    sys.exit(ExitCode.FAILED if lines else ExitCode.PASSED)


def _source(name: str, settings: Settings) -> _Source:
    """What a word of the command line means.

    Raises:
        ConfigurationError: there is no such file, no such recipe, or it is no cell's id.
    """
    if "::" not in name:
        return _existing(Path(name))
    has_file = name.count("::") > 1
    cell = Cell.from_id(name if has_file else f"-::{name}")
    if cell is None:
        raise ConfigurationError(
            f"{name!r} names no cell: a cell is FILE::RECIPE::opset13-cpu or RECIPE::opset13-cpu; onnx-ci list shows their ids"
        )
    file = settings.root / cell.source
    paths = (file if file.exists() else Path(cell.source),) if has_file else ()
    return PlannedCell(cell=cell, recipe=recipe_named(cell.recipe, find_quietly(settings, paths)).recipe)


def _existing(path: Path) -> Path:
    if path.is_file():
        return path
    if path.is_dir():
        raise ConfigurationError(f"{path} is a directory; name a file in it")
    if str(path).isidentifier():
        raise ConfigurationError(f"there is no file {path}; a cell of a recipe has its label, too: {path}::opset13-cpu")
    siblings = [sibling.name for sibling in path.parent.iterdir()] if path.parent.is_dir() else []
    raise ConfigurationError(f"there is no file {path}{did_you_mean(path.name, siblings)}")


def _models(sources: Sequence[tuple[str, _Source]], settings: Settings) -> list[onnx.ModelProto]:
    """The graphs of the sources, without weights.

    Each is made in a process of its own, unless that is off: exporters may crash, and so may onnx on a damaged file, and
    what one export leaves behind can change the next.
    """
    digests = len(sources) > 1
    if settings.isolation == "none":
        return [_model(name, source, digests=digests) for name, source in sources]
    import onnx

    for _, source in sources:
        if isinstance(source, PlannedCell):
            from onnx_ci.isolation import preload

            preload(source.cell.exporter)
    with tempfile.TemporaryDirectory(prefix="onnx-ci-") as folder:
        paths = [Path(folder, f"{index}.onnx") for index in range(len(sources))]
        works = {
            path: functools.partial(_make, name, source, path, digests)
            for (name, source), path in zip(sources, paths, strict=True)
        }
        try:
            for path, event in run_apart(works, limits_of(settings.timeout, settings.memory_limit)):
                if isinstance(event, Death):
                    name, _ = sources[paths.index(path)]
                    raise _NoGraphError(f"{name}: the process that was to read or export it {event.message}")
                if event[LAST]:
                    said, code = event[LAST]
                    click.echo(f"onnx-ci: {one_line(said)}", err=True)
                    sys.exit(code)
        except OSError as error:
            raise EnvironmentLacksError(f"no process could be started: {error}; use --isolation=none") from None
        return [onnx.load(path, load_external_data=False) for path in paths]


def _make(name: str, source: _Source, path: Path, digests: bool, send: Send) -> None:
    """Write the graph of a source to ``path``, and tell what keeps it from that, if anything does."""
    try:
        path.write_bytes(_model(name, source, digests=digests).SerializeToString())
    except OnnxCiError as error:
        send({LAST: [str(error), error.exit_code]})
    else:
        send({LAST: []})


def _model(name: str, source: _Source, *, digests: bool) -> onnx.ModelProto:
    """The graph of a source, without weights."""
    if isinstance(source, Path):
        return _read(source, digests=digests)
    from onnx_ci import api
    from onnx_ci.capture import captured
    from onnx_ci.devices import missing_device

    cell = source.cell
    if (missing := missing_device(cell.device)) is not None:
        raise EnvironmentLacksError(f"no {cell.device}: {missing}")
    with tempfile.TemporaryDirectory(prefix="onnx-ci-", ignore_cleanup_errors=True) as scratch:
        path = Path(scratch, "model.onnx")
        try:
            with captured():
                api.export(source.recipe, opset=cell.opset, exporter=cell.exporter, device=cell.device, path=path)
        except RecipeError as error:
            raise _NoGraphError(f"{name} cannot be exported: {error}") from None
        return _read(path, digests=digests)


def _read(path: Path, *, digests: bool) -> onnx.ModelProto:
    from onnx_ci.graph_text import without_weights
    from onnx_ci.onnx_file import read_model

    model = read_model(path)
    if isinstance(model, Finding):
        raise ConfigurationError(f"{path}: {model.message}. {model.remedy}")
    if not model.HasField("graph"):
        raise ConfigurationError(f"{path} holds no graph, so it is no ONNX model")
    try:
        return without_weights(model, path.parent if digests else None)
    except Exception as error:  # onnx raises its own classes, too
        raise ConfigurationError(
            f"the weights of {path} cannot be read: {str(error).rstrip('.')}; put them beside it"
        ) from None
