"""Which operators of a model an exporter cannot write: all of them at once, where an export stops at the first.

Each exporter is listened to while it exports for real, so what is listed is what it refuses, in its own words.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import torch

from onnx_ci.calls import PrepareError, SkippedByRecipeError
from onnx_ci.capture import ESCAPES, captured
from onnx_ci.config import STAGES, Settings
from onnx_ci.errors import EnvironmentLacksError, first_line
from onnx_ci.exporting import export, refusal
from onnx_ci.isolation import preload
from onnx_ci.matrix import PlannedCell
from onnx_ci.onnx_file import opset_of
from onnx_ci.opsets import DEFAULT_OPSETS
from onnx_ci.prepare import prepare
from onnx_ci.processes import LAST, Death, Send, limits_of, run_apart
from onnx_ci.records import Cell, from_json, to_json


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What an exporter says of a model at one opset."""

    cell: Cell
    refused: Mapping[str, str] = field(default_factory=dict)
    """The operators that it cannot write, in the order in which they come, each with its words."""
    failure: str = ""
    """What else keeps it from writing the file that was asked for."""

    @property
    def is_fine(self) -> bool:
        """Whether the file was written."""
        return not self.refused and not self.failure


def known_opsets() -> tuple[int, ...]:
    """The opsets from the lowest that is looked at by default to the newest that torch's exporters and onnx know."""
    from torch.onnx import _constants

    return tuple(range(DEFAULT_OPSETS[0], min(_constants.ONNX_MAX_OPSET, onnx.defs.onnx_opset_version()) + 1))


def unconvertible(cells: Iterable[PlannedCell], settings: Settings, *, jobs: int) -> Iterator[Listing]:
    """A listing for each cell, in any order: each from a process of its own, unless the settings turn that off.

    Raises:
        EnvironmentLacksError: no process could be started.
    """
    by_id = {planned.cell.id: planned for planned in cells}
    if settings.isolation == "none":
        yield from (_listing(planned, settings) for planned in by_id.values())
        return
    for exporter in {planned.cell.exporter for planned in by_id.values()}:
        preload(exporter)
    works = {id: functools.partial(_tell, planned, settings) for id, planned in by_id.items()}
    try:
        for id, event in run_apart(works, limits_of(settings.timeout, settings.memory_limit), jobs=jobs):
            if isinstance(event, Death):
                yield Listing(cell=by_id[id].cell, failure=f"the exporter's process {event.message}")
            else:
                yield from_json(Listing, event[LAST])
    except OSError as error:
        raise EnvironmentLacksError(f"no process could be started: {error}; use --isolation=none") from None


def _tell(planned: PlannedCell, settings: Settings, send: Send) -> None:
    torch.set_num_threads(1)
    send({LAST: to_json(_listing(planned, settings))})


def _listing(planned: PlannedCell, settings: Settings) -> Listing:
    """Export, and listen."""
    cell, recipe = planned.cell, planned.recipe
    refused: dict[str, str] = {}
    with captured(), tempfile.TemporaryDirectory(prefix="onnx-ci-", ignore_cleanup_errors=True) as scratch:
        try:
            prepared = prepare(recipe, cell.device, weights=settings.weights_for(recipe.name), without=STAGES)
        except (PrepareError, SkippedByRecipeError) as error:
            return Listing(cell=cell, failure=first_line(error))
        path = Path(scratch, "model.onnx")
        with _LISTENING[cell.exporter](refused):
            exported = export(prepared, cell, path)
        if refused:
            return Listing(cell=cell, refused=refused)  # what the export ended with is only the first of them
        if exported.artifact is None:
            return Listing(cell=cell, failure=exported.findings[0].message)
        written = opset_of(path)
        return Listing(cell=cell, failure="" if written == cell.opset else f"it writes opset {written} instead")


# --- listening ------------------------------------------------------------------------------------------------------
# torch has no public way to hear of more than the first operator, so these two functions stand in for one of each exporter's
# own. Where a release of torch has no such function, there is an AttributeError: tests/test_commands_ops.py shows it.


@contextlib.contextmanager
def _replaced(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def _listening_to_torchscript(refused: dict[str, str]) -> Iterator[None]:
    """Note each node that has no symbolic function, or whose symbolic function raises, and let the export go on."""
    from torch.onnx._internal.torchscript_exporter import utils

    from_refused: set[str] = set()
    """Values that were computed from what was refused: less is known of them than of others."""

    def make(original: Any) -> Callable[..., Any]:
        def run_symbolic_function(graph: Any, block: Any, node: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
            given = [value for value in inputs if isinstance(value, torch._C.Value)]
            is_downstream = any(_kind(value.node()) in refused or value.debugName() in from_refused for value in given)
            try:
                made = original(graph, block, node, inputs, *rest, **more)
            except Exception as error:  # whatever a symbolic function raises
                if refusal(error) == "unsupported-opset":
                    raise  # which has nothing to do with this operator, and would be said of each
                if refusal(error) or not is_downstream:
                    has_none = type(error).__name__ == "UnsupportedOperatorError"
                    doubt = " (perhaps because of one before it)" if is_downstream and not has_none else ""
                    refused.setdefault(_kind(node), _said(error) + doubt)
                return None  # the node stays as it is
            if is_downstream:
                values = made if isinstance(made, Sequence) else [made]
                from_refused.update(value.debugName() for value in values if isinstance(value, torch._C.Value))
            return made

        return run_symbolic_function

    with _replaced(utils, "_run_symbolic_function", make):
        yield


@contextlib.contextmanager
def _listening_to_dynamo(refused: dict[str, str]) -> Iterator[None]:
    """Ask the exporter's registry for each operator that is left after decomposition."""
    from torch.onnx._internal.exporter import _core, _dispatching

    def make(original: Any) -> Callable[..., Any]:
        def translate(program: Any, *, registry: Any, **more: Any) -> Any:
            graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
            for node in (node for graph in graphs for node in graph.nodes if node.op == "call_function"):
                if node.target is operator.getitem or _core._is_onnx_op(node.target):
                    continue  # the exporter writes these itself
                function, message = _dispatching.dispatch(node, registry)
                if function is None:
                    refused.setdefault(str(node.target), message)
            return original(program, registry=registry, **more)

        return translate

    with _replaced(_core, "_exported_program_to_onnx_program", make):
        yield


def _kind(node: Any) -> str:
    """``aten::add``, also for ``add_``, which is exported as ``add`` is; ``aten::__xor__`` is no such name."""
    kind: str = node.kind()
    return kind if kind.endswith("__") else kind.removesuffix("_")


_LISTENING = {"torchscript": _listening_to_torchscript, "dynamo": _listening_to_dynamo}


def _said(error: BaseException) -> str:
    """The first sentence of what a symbolic function raised, without the node that it speaks of."""
    first = ESCAPES.sub("", first_line(error)).partition("[Caused by the value")[0].strip()
    return re.split(r"(?<=[.!]) ", first, maxsplit=1)[0].rstrip(".")
