"""The nodes around a fault, with what the file and the model compute there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from onnx_ci.pipeline.locate.pairs import PairedFile
from onnx_ci.pipeline.locate.single_nodes import FileNode, NodeError
from onnx_ci.pipeline.model.tensors import differences, has_noise, index_at
from onnx_ci.processes.clock import CLOCK
from onnx_ci.results.records import NodeStep, SourceLine

_BEFORE = 2
"""How many nodes before the fault are shown on each way to it."""
_MOST_BEFORE = 6
_FAULTY = 6
"""How many of the nodes at fault."""
_AFTER = 4
"""How many nodes after it, besides those that compute outputs."""


_Faulty = Mapping[int, SourceLine | None]
"""The positions of the nodes at fault, each with the line that they should compute."""


def steps_around(file: PairedFile, faulty: _Faulty, deadline: float) -> tuple[NodeStep, ...]:
    """The nodes shortly before the faults, those at fault, and how the error grows behind them, in the order of the file.

    Each fault must be corrected in the file.
    """
    if not faulty:
        return ()
    wrong_values = _values_behind_faults(file, faulty, deadline)
    nodes = (file.runner.nodes[position] for position in faulty)
    likeliest = sorted(nodes, key=lambda node: (node.only_moves, node.position))[:_FAULTY]
    around = {*_before(file, faulty, likeliest), *_after(file, faulty, wrong_values)}
    shown = sorted({*around, *(node.position for node in likeliest)})
    return tuple(_step(file, faulty, file.runner.nodes[position], wrong_values) for position in shown)


def _values_behind_faults(file: PairedFile, faulty: _Faulty, deadline: float) -> dict[str, torch.Tensor | None]:
    """What the nodes from the first fault on compute if no fault is corrected; ``None`` where one cannot run."""
    computed: dict[str, torch.Tensor | None] = {}
    for node in file.runner.nodes[min(faulty) :]:
        if node.position not in faulty and computed.keys().isdisjoint(node.inputs):
            continue
        computed |= dict.fromkeys(node.outputs)
        operands = {name: computed.get(name, file.values.get(name)) for name in node.inputs}
        inputs = {name: tensor for name, tensor in operands.items() if tensor is not None}
        if len(inputs) == len(operands) and CLOCK.thread_time() < deadline:
            try:
                computed |= zip(node.outputs, file.runner.run(node, inputs), strict=True)
            except NodeError:
                continue
    return computed


def _before(file: PairedFile, faulty: _Faulty, nodes: Iterable[FileNode]) -> list[int]:
    """The nodes whose results reach ``nodes`` and are right, the nearest first."""
    level, before = list(nodes), dict[int, FileNode]()
    for _ in range(_BEFORE):
        names = (name for node in level for name in node.inputs if name in file.pairs and name in file.runner.makers)
        level = [file.runner.makers[name] for name in names if file.runner.makers[name].position not in faulty]
        before |= {node.position: node for node in level}
    return [*before][:_MOST_BEFORE]


def _after(file: PairedFile, faulty: _Faulty, wrong_values: Mapping[str, object]) -> list[int]:
    """The next nodes that the fault reaches, and those that compute outputs."""
    reached = [
        node.position
        for node in file.runner.nodes[max(faulty) + 1 :]
        if not wrong_values.keys().isdisjoint(node.outputs) and node.position not in faulty
    ]
    ends = [position for position in reached if not set(file.runner.outputs).isdisjoint(file.runner.nodes[position].outputs)]
    return [*dict.fromkeys([*reached[:_AFTER], *ends[:_AFTER]])]


def _step(file: PairedFile, faulty: _Faulty, node: FileNode, wrong_values: Mapping[str, torch.Tensor | None]) -> NodeStep:
    name = node.outputs[0] if node.outputs else ""
    computed = wrong_values[name] if name in wrong_values else file.values.get(name)
    position = file.pairs.get(name)
    value = None if position is None else file.trace.values[position]
    operator = None if value is None or value.operator is None else file.trace.operators[value.operator]
    index, file_value, model_value, error = None, None, None, None
    if value is not None and computed is not None and computed.numel() == value.tensor.numel() > 0:
        errors = differences(computed, value.tensor)
        worst = int(errors.argmax())
        index = index_at(worst, computed.shape)
        file_value, model_value, error = (float(each.flatten()[worst]) for each in (computed, value.tensor, errors))
    return NodeStep(
        node=node.title,
        is_culprit=node.position in faulty,
        can_run=computed is not None,
        source=faulty.get(node.position) if operator is None else operator.place.source,
        index=index,
        file_value=file_value,
        model_value=model_value,
        error=error,
        noise=None if value is None else value.noise if has_noise(value.tensor) else 1.0,
    )
