"""``onnx-ci show``: the graph of a file or a cell as text, or the difference between two."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

import click

from onnx_ci.cli.common import options_of, settings_from, with_colour, with_exit_code
from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.settings import Settings
from onnx_ci.errors import ConfigurationError, EnvironmentLacksError, ExitCode, OnnxCiError, RecipeError
from onnx_ci.processes.limits import Limits
from onnx_ci.processes.run_in_child import run_in_child
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.processes.supervisor import LAST, Death, Message, Send
from onnx_ci.results.records import Cell, Finding
from onnx_ci.text import one_line
from onnx_ci.tools.named_cells import NamedCell, cell_or_file

if TYPE_CHECKING:
    import onnx


_Source = Path | NamedCell
"""The source of a graph: a file, or the export of a cell."""


class _NoGraphError(OnnxCiError):
    """There is no graph to show: the export failed, or its process died."""

    exit_code = ExitCode.FAILED


@click.command(name="show")
@click.argument("graph", metavar="FILE|CELL")
@click.argument("other", metavar="[OTHER]", required=False)
@click.option("--all", "everything", is_flag=True, help="Show all of it, however long.")
@options_of("recipe-files", "packages", "isolation", "timeout", "memory-limit", paths=False)
@with_colour
@with_exit_code
def show_graph(graph: str, other: str | None, everything: bool, **flags: str | None) -> NoReturn:
    r"""Show the graph of a file or a cell, or how two differ.

    Weights are left out. A CELL is an id as shown by `onnx-ci list`, such as recipes/models/lstm.py::lstm::opset13-cpu, with or
    without the recipe file. It is exported first, at any opset. Differences are shown as a diff, in which corresponding values
    and nodes have the same name, however the exporter numbered them, and different weights have different digests. The exit
    code is 1 if there are differences. Only the first lines are shown of what is too long to read.

    \b
    Examples:
      onnx-ci show model.onnx
      onnx-ci show lstm::opset13-cpu
      onnx-ci show lstm::opset13-cpu lstm::opset17-cpu       what the opset changes
      onnx-ci show old.onnx resnet18::opset17-cpu            what today's export changes
    """
    settings = settings_from(flags)
    names = [graph] if other is None else [graph, other]
    models = _models([(name, cell_or_file(name, settings)) for name in names], settings)
    from onnx_ci.tools.show.diff import difference
    from onnx_ci.tools.show.printer import graph_lines

    if len(models) == 1:
        _print(graph_lines(models[0]), everything)
        sys.exit(ExitCode.PASSED)
    lines = difference(models[0], models[1], (names[0], names[1]))
    _print(lines, everything, {"+": "green", "-": "red", "@": "cyan"})
    if not lines:
        click.echo("the graphs are the same up to the names of their values")
    sys.exit(ExitCode.FAILED if lines else ExitCode.PASSED)


_MOST_LINES = 2000
_LONGEST_LINE = 1000


def _print(lines: Sequence[str], everything: bool, colours: Mapping[str, str] = MappingProxyType({})) -> None:
    """Print lines, or as many of them and as much of each as somebody may read; in colours, by the first character."""
    for line in lines if everything else lines[:_MOST_LINES]:
        shown = line if everything or len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} …"
        click.secho(one_line(shown), fg=colours.get(line[:1]))
    if not everything and len(lines) > _MOST_LINES:
        click.echo(f"… and {len(lines) - _MOST_LINES:,} more lines; for all of it, use --all")


def _models(sources: Sequence[tuple[str, _Source]], settings: Settings) -> list[onnx.ModelProto]:
    """The graphs of the sources, without weights.

    Each comes from a process of its own: exporters can crash, as can onnx on a damaged file, and one export can affect others.
    """
    import onnx

    with scratch_folder() as folder:
        paths = [folder / f"{index}.onnx" for index in range(len(sources))]
        for (name, source), path in zip(sources, paths, strict=True):
            _write_apart(name, source, path, settings, digests=len(sources) > 1)
        return [onnx.load(path, load_external_data=False) for path in paths]


def _write_apart(name: str, source: _Source, path: Path, settings: Settings, *, digests: bool) -> None:
    """Write the graph of a source to ``path``, in another process."""
    limits = Limits.of(settings)
    events: Iterator[Message | Death]
    if isinstance(source, NamedCell):
        cell = source.spec.cell
        export = functools.partial(_write_export, name, cell, path, digests)
        events = (event for _, event in source.recipes.run_all({"show": (cell.recipe, export)}, limits))
    else:
        copy = functools.partial(_write, functools.partial(_read, source, digests), path)
        events = run_in_child(copy, limits, settings.isolation)
    try:
        for event in events:
            if isinstance(event, Death):
                raise _NoGraphError(f"{name}: the process reading or exporting it {event.message}")
            if event[LAST]:
                message, code = event[LAST]
                click.echo(f"onnx-ci: {one_line(message)}", err=True)
                sys.exit(code)
    finally:
        if isinstance(source, NamedCell):
            source.recipes.close()


def _write_export(name: str, cell: Cell, path: Path, digests: bool, recipe: Recipe, send: Send) -> None:
    """Export a cell, and write its graph to ``path``; send the error if that fails."""
    _write(functools.partial(_exported, name, cell, digests, recipe), path, send)


def _write(model: Callable[[], onnx.ModelProto], path: Path, send: Send) -> None:
    """Write the graph that ``model`` returns to ``path``; send the error if that fails."""
    try:
        path.write_bytes(model().SerializeToString())
    except OnnxCiError as error:
        send({LAST: [str(error), error.exit_code]})
    else:
        send({LAST: []})


def _exported(name: str, cell: Cell, digests: bool, recipe: Recipe) -> onnx.ModelProto:
    """The graph of the export of a cell, without weights."""
    from onnx_ci import api
    from onnx_ci.pipeline.model.devices import missing_device
    from onnx_ci.processes.capture import captured

    if (missing := missing_device(cell.device)) is not None:
        raise EnvironmentLacksError(f"no {cell.device}: {missing}")
    if cell.graph_pass is not None:
        raise ConfigurationError(f"{name} is written by a pass: keep it (onnx-ci run --artifacts=FOLDER), and show the file")
    with scratch_folder() as scratch:
        path = scratch / "model.onnx"
        try:
            with captured():
                api.export(recipe, opset=cell.opset, exporter=cell.exporter, device=cell.device, path=path)
        except RecipeError as error:
            raise _NoGraphError(f"{name} cannot be exported: {error}") from None
        if path.is_dir():
            remedy = f"keep them (onnx-ci run --artifacts=FOLDER --select={name}), and show one of them"
            raise ConfigurationError(f"{name} has several files: {remedy}")
        return _read(path, digests)


def _read(path: Path, digests: bool) -> onnx.ModelProto:
    from onnx_ci.onnx_model.signature import read_model
    from onnx_ci.tools.show.printer import without_weights

    model = read_model(path)
    if isinstance(model, Finding):
        raise ConfigurationError(f"{path}: {model.message}. {model.remedy}")
    if not model.HasField("graph"):
        raise ConfigurationError(f"{path} contains no graph, so it is not an ONNX model")
    try:
        return without_weights(model, path.parent if digests else None)
    except Exception as error:  # onnx also raises its own classes
        raise ConfigurationError(
            f"the weights of {path} cannot be read: {str(error).rstrip('.')}; put a copy of them next to it"
        ) from None
