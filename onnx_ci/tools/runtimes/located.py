"""The nodes at which runtimes compute the file of a cell wrong or refuse it, searched for in a process of its own for each."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from onnx_ci.config.settings import Settings
from onnx_ci.onnx_model.saved_inputs import file_name
from onnx_ci.onnx_model.signature import read_model
from onnx_ci.pipeline.compare.attribution import is_of_other_runtime
from onnx_ci.plugins import base_name, version_in_name
from onnx_ci.processes.limits import Limits
from onnx_ci.processes.run_in_child import run_in_child
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.processes.supervisor import LAST, Death, Send
from onnx_ci.results.records import CellResult, Finding, Severity
from onnx_ci.tools.runtimes.known_faults import matches

_SHARE = 0.5
"""The share of the time limit of a cell that the search of one runtime may take."""


def first_errors(result: CellResult) -> Mapping[str, Finding]:
    """The first error of each runtime but the installed ONNX Runtime, by its name."""
    errors: dict[str, Finding] = {}
    for each in result.findings:
        if each.severity is Severity.ERROR and is_of_other_runtime(each):
            errors.setdefault(str(each.details["runtime"]), each)
    return errors


def explain(result: CellResult, file: Path | str | None, inputs: Path, settings: Settings) -> list[str]:
    """Where the runtimes go wrong that compute something else than the model or refuse the file, in lines; maybe none.

    Args:
        result: the result of the cell.
        file: its file, if that was kept.
        inputs: the folder with the inputs on which it fails.
        settings: the limits and the isolation of processes.
    """
    lines = []
    for runtime, error in first_errors(result).items():
        if file is not None and (path := Path(file)).is_file():
            places = [*wrong_nodes(runtime, error, path, inputs, settings)]
            if not places and error.rule == "load-error":
                continue  # the message says why it refuses the whole file
            lines += ["", f"    in {runtime}, each node alone, with its right inputs:"]
            lines += [f"      {place}" for place in places or ["no node was found that goes wrong"]]
            lines += [f"      known: {each}" for each in matches(path, {base_name(runtime): version_in_name(runtime) or "0"})]
    return lines


def wrong_nodes(runtime: str, error: Finding, file: Path, inputs: Path, settings: Settings) -> Iterator[str]:
    """The nodes of a file at which a runtime goes wrong, each in a sentence, and the node at which its process ends."""
    saved = next(inputs.rglob(file_name(error.probe)), None) if error.probe is not None else None
    limits = Limits.of(settings)
    work = functools.partial(_send_faults, runtime, error.rule == "load-error", file, saved, limits.seconds * _SHARE)
    step = ""
    for event in run_in_child(work, limits, settings.isolation, warm_up=_warm_up):
        if isinstance(event, Death):
            yield f"{step}: the process {event.message}" if step else f"the process {event.message}"
        elif LAST in event:
            yield from event[LAST]
        else:
            step = event["step"]


def _warm_up() -> None:
    from onnx_ci.tools.runtimes import node_search  # noqa: F401


def _send_faults(name: str, is_refused: bool, file: Path, saved: Path | None, seconds: float, send: Send) -> None:
    import numpy as np

    from onnx_ci.pipeline.model.tensors import as_tensor
    from onnx_ci.pipeline.run.runtime import make_runtime
    from onnx_ci.tools.runtimes.node_search import NodeSearch, zeros_for

    model = read_model(file)
    if isinstance(model, Finding):
        send({LAST: []})
        return
    feeds = zeros_for(model)  # a file that is not loaded has no inputs on which it fails
    if saved is not None:
        with np.load(saved) as arrays:
            given = [as_tensor(arrays[key]) for key in arrays.files]
            feeds |= zip(feeds, given, strict=False) if len(given) == len(feeds) else ()
            feeds |= {key: as_tensor(arrays[key]) for key in arrays.files if key in feeds}
    with scratch_folder() as folder:
        runtime = make_runtime(name)
        search = NodeSearch(file, feeds, runtime, folder, seconds, announce=lambda step: send({"step": step}))
        faults = search.refused() if is_refused else search.faults()
        send({LAST: [*map(str, faults)]})
