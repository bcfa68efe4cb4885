"""The nodes around a fault, with what the file and the model compute there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from onnx_ci.results.records import NodeStep, SourceLine
from onnx_ci.stages.locate.model_trace import ModelTrace
from onnx_ci.stages.locate.single_nodes import FileNode, NodeError, NodeRunner
from onnx_ci.stages.model.live_model import differences, has_noise

_BEFORE = 2
"""How many nodes before the fault are shown on each way to it."""
_MOST_BEFORE = 6
_FAULTY = 6
"""How many of the nodes at fault."""
_AFTER = 4
"""How many nodes after it, besides those that compute outputs."""


@dataclass(frozen=True, kw_only=True)
class Understood:
    """A file whose faults are known: what its nodes give once each fault is corrected, and what that is in the model."""

    runner: NodeRunner
    trace: ModelTrace
    values: Mapping[str, torch.Tensor]
    """What the file computes, by name, with the model's tensor in the place of each that should equal it."""
    pairs: Mapping[str, int]
    """The positions in the trace of the tensors that the file's values should equal."""
    faulty: Mapping[int, SourceLine | None]
    """The positions of the nodes at fault, each with the line that they should compute."""


def steps_around(file: Understood, deadline: float) -> tuple[NodeStep, ...]:
    """The nodes shortly before the faults, those at fault, and how the error grows behind them, in the order of the file."""
    if not file.faulty:
        return ()
    own = _own_values(file, deadline)
    nodes = (file.runner.nodes[position] for position in file.faulty)
    likeliest = sorted(nodes, key=lambda node: (node.only_moves, node.position))[:_FAULTY]
    shown = sorted({*_before(file, likeliest), *(node.position for node in likeliest), *_after(file, own)})
    places = {name: number for number, position in enumerate(shown) for name in file.runner.nodes[position].outputs}
    return tuple(_step(file, file.runner.nodes[position], own, places) for position in shown)


def _own_values(file: Understood, deadline: float) -> dict[str, torch.Tensor | None]:
    """What the nodes from the first fault on compute on what the file itself computes; ``None`` where one cannot run."""
    own: dict[str, torch.Tensor | None] = {}
    for node in file.runner.nodes[min(file.faulty) :]:
        if node.position not in file.faulty and own.keys().isdisjoint(node.inputs):
            continue
        given = {name: own.get(name, file.values.get(name)) for name in node.inputs}
        inputs = {name: tensor for name, tensor in given.items() if tensor is not None}
        made = None
        if len(inputs) == len(given) and time.thread_time() < deadline:
            try:
                made = file.runner.run(node, inputs)
            except NodeError:
                made = None
        own |= dict(zip(node.outputs, made, strict=True)) if made is not None else dict.fromkeys(node.outputs)
    return own


def _before(file: Understood, nodes: Iterable[FileNode]) -> list[int]:
    """The nodes whose results reach ``nodes`` and are right, the nearest first."""
    level, found = list(nodes), dict[int, FileNode]()
    for _ in range(_BEFORE):
        names = (name for node in level for name in node.inputs if name in file.pairs and name in file.runner.makers)
        level = [file.runner.makers[name] for name in names if file.runner.makers[name].position not in file.faulty]
        found |= {node.position: node for node in level}
    return [*found][:_MOST_BEFORE]


def _after(file: Understood, own: Mapping[str, object]) -> list[int]:
    """The next nodes that the fault reaches, and those that compute outputs."""
    reached = [
        node.position
        for node in file.runner.nodes[max(file.faulty) + 1 :]
        if not own.keys().isdisjoint(node.outputs) and node.position not in file.faulty
    ]
    ends = [position for position in reached if not set(file.runner.outputs).isdisjoint(file.runner.nodes[position].outputs)]
    return [*dict.fromkeys([*reached[:_AFTER], *ends[:_AFTER]])]


def _step(file: Understood, node: FileNode, own: Mapping[str, torch.Tensor | None], places: Mapping[str, int]) -> NodeStep:
    name = node.outputs[0] if node.outputs else ""
    made = own[name] if name in own else file.values.get(name)
    position = file.pairs.get(name)
    value = None if position is None else file.trace.values[position]
    operator = None if value is None or value.operator is None else file.trace.operators[value.operator]
    index, here, there, error = None, None, None, None
    if value is not None and made is not None and made.numel() == value.tensor.numel() > 0:
        apart = differences(made, value.tensor)
        at = int(apart.argmax())
        index = tuple(int(each) for each in torch.unravel_index(torch.tensor(at), made.shape))
        here, there, error = (float(each.flatten()[at]) for each in (made, value.tensor, apart))
    return NodeStep(
        node=node.title,
        inputs=tuple(dict.fromkeys(places[each] for each in node.inputs if each in places)),
        is_culprit=node.position in file.faulty,
        can_run=made is not None,
        operator="" if operator is None else operator.name,
        source=file.faulty.get(node.position) if operator is None else operator.source,
        shape=() if made is None else tuple(made.shape),
        index=index,
        file_value=here,
        model_value=there,
        error=error,
        noise=None if value is None else value.noise if has_noise(value.tensor) else 1.0,
    )
