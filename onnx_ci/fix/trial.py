"""In the process of a recipe: one move tried, with everything that a run would do with the changed cell.

After a change of code, the file must pass the gate of the changed model, and must compute what the *unchanged* model computes.
Otherwise a change of the model's results would pass for a repair of its export.
"""

from __future__ import annotations

import functools
import gc
import linecache
import os
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

from onnx_ci.collection.recipe import Recipe
from onnx_ci.config.settings import Settings
from onnx_ci.engine.cell import CellContext, run_cell
from onnx_ci.engine.shared import Shared
from onnx_ci.fix.moves import Move
from onnx_ci.matrix.plan import CellPlan, with_recipe
from onnx_ci.processes.scratch import scratch_folder
from onnx_ci.processes.supervisor import LAST, Send
from onnx_ci.results.records import CellEvidence
from onnx_ci.results.verdict import broken_rules
from onnx_ci.stages.export.exporter import Artifact
from onnx_ci.stages.model.live_model import PrepareError
from onnx_ci.stages.prepare.prepare import Weights


def try_move(move: Move, planned: CellPlan, settings: Settings, recipe: Recipe, send: Send) -> None:
    """The main function of the process: send the evidence about the changed cell."""
    cell = with_recipe(move.cell(planned), move.recipe(recipe), settings)
    if not move.texts:
        evidence = run_cell(cell, CellContext(shared=Shared()))
        send({LAST: evidence.as_json()})
        return
    unchanged = CellContext(shared=Shared())
    try:
        # Everything that the file is compared with is computed now: it is the unchanged code that computes it.
        _ = unchanged.shared.prepared(cell, Weights.OWN, {}).separated
    except PrepareError as error:
        send({LAST: CellEvidence(cell=cell.cell, findings=(error.finding,)).as_json()})
        return
    for file, text in move.texts.items():
        replace_functions(file, text)
    with scratch_folder() as folder:
        evidence = run_cell(cell, CellContext(shared=Shared(), artifacts=folder))
        if evidence.artifact is not None and not broken_rules(evidence.findings):
            evidence = run_cell(cell, unchanged, artifact=Artifact(path=Path(evidence.artifact)))
    send({LAST: evidence.as_json()})


def replace_functions(file: str, text: str) -> None:
    """Let the functions of a file that this process has imported run changed code, for the rest of the process.

    Args:
        file: the absolute path of the file, which is not written.
        text: its changed text.
    """
    before, after = (
        _codes(compile(each, file, "exec", dont_inherit=True)) for each in (Path(file).read_bytes().decode(), text)
    )
    changed = dict(zip(before, after, strict=False))  # equal code has the same lines, too
    gc.unfreeze()  # otherwise what was there before a fork is not listed
    is_file = functools.cache(functools.partial(_is_same, file))
    for function in [each for each in gc.get_objects() if isinstance(each, FunctionType)]:
        code = changed.get(function.__code__)
        if code is not None and code.co_freevars == function.__code__.co_freevars and is_file(function.__code__.co_filename):
            function.__code__ = code.replace(co_filename=function.__code__.co_filename)
            # What reads the source of a function, as torch.jit does, reads what runs.
            linecache.cache[function.__code__.co_filename] = (len(text), None, text.splitlines(keepends=True), file)


def _is_same(file: str, other: str) -> bool:
    return os.path.realpath(file) == os.path.realpath(other)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of every function in ``code``."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
