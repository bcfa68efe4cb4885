"""The nodes of a file at which a runtime goes wrong: each is a file of its own in that runtime, and gets its right inputs.

What is right is what ONNX Runtime computes without its optimizer and, where the runtime differs from that, what ONNX's
reference evaluator computes in float64. If each node is right by itself, the fewest that are wrong together are searched for.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch
from onnx import ValueInfoProto
from onnx.reference import ReferenceEvaluator
from onnx_ir import DataType
from onnx_ir.tensor_adapters import from_torch_dtype, to_torch_dtype

from onnx_ci.errors import first_line
from onnx_ci.pipeline.export.error_lines import line_of_node
from onnx_ci.pipeline.locate.single_nodes import FileNode, NodeError, NodeRunner
from onnx_ci.pipeline.model.tensors import as_array, as_tensor, largest_value
from onnx_ci.pipeline.run.runtime import Runtime
from onnx_ci.processes.clock import CLOCK
from onnx_ci.results.records import SourceLine
from onnx_ci.text import listed

_LIMIT = 64.0
"""How many times its rounding a node may be off. A sum in another order explains no more."""
_MOST_FAULTS = 3
"""How many nodes are named."""
_MOST_TOGETHER = 16
"""How many nodes may be wrong together."""

Values = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class WrongNodes:
    """A node, or several together, at which a runtime goes wrong."""

    titles: tuple[str, ...]
    """``AveragePool 'node_avg_pool2d'``, in the order of the file."""
    error: float = 0.0
    """The largest difference from what is right; infinite for another shape or type."""
    roundings: float = 0.0
    """That in units of the rounding of these nodes."""
    refusal: str = ""
    """Why the runtime refuses the node; empty if it computes something else."""
    line: SourceLine | None = None
    """The line of the model that made the last of them; ``None`` if the file does not tell."""

    def __str__(self) -> str:
        where = "" if self.line is None else f" ({self.line})"
        nodes = f"{listed(self.titles)}{where}"
        if self.refusal:
            return f"{nodes}: {self.refusal}"
        together = " together, and each is right by itself" if len(self.titles) > 1 else ""
        if self.error == float("inf"):
            return f"{nodes}: another shape, another type or other finite values{together}"
        return f"{nodes}: off by {self.error:.3g}, {self.roundings:.2g} times its rounding{together}"


class NodeSearch:
    """The search for the faults of a runtime in a file, on one input.

    Args:
        path: the file.
        feeds: its inputs by name.
        runtime: the runtime, which loads files and has nothing of this one.
        folder: where the files of nodes are written.
        seconds: how long it may take.
        announce: gets the title of each node before it runs, because it may end the process.
    """

    def __init__(
        self, path: Path, feeds: Values, runtime: Runtime, folder: Path, seconds: float, announce: Callable[[str], None]
    ) -> None:
        self._announce = announce
        self._runner, self._runtime, self._folder = NodeRunner(path), runtime, folder
        self._deadline = CLOCK.monotonic() + seconds
        self._values: dict[str, torch.Tensor] = {**self._runner.constants, **feeds}
        self._computed: set[str] = set(feeds)
        model = onnx.load(path, load_external_data=False)
        with contextlib.suppress(Exception):  # shapes are declared as far as they are known
            model = onnx.shape_inference.infer_shapes(model)
        graph = model.graph
        self._declared: dict[str, ValueInfoProto] = {
            each.name: each for each in (*graph.input, *graph.value_info, *graph.output)
        }
        self._numbers = itertools.count()

    def faults(self) -> list[WrongNodes]:
        """The first nodes that the runtime computes wrong; if there is none, the fewest that are wrong together.

        If there is none of them either, the first nodes that it refuses by themselves.
        """
        each_alone = [*self._each_alone()]
        wrong = [each for each in each_alone if not each.refusal]
        return wrong or [*filter(None, [self._together()])] or each_alone[:_MOST_FAULTS]

    def _each_alone(self) -> Iterator[WrongNodes]:
        """What is wrong with each node alone, until enough are wrong."""
        wrong = 0
        for node in self._runner.nodes:
            if wrong == _MOST_FAULTS or CLOCK.monotonic() > self._deadline:
                return
            right = self._right(node)
            if right is None or not any(tensor.numel() for tensor in right) or not self._depends_on_inputs(node):
                continue
            if (fault := self._fault([node], dict(zip(node.outputs, right, strict=True)))) is not None:
                wrong += not fault.refusal
                yield fault

    def refused(self) -> list[WrongNodes]:
        """The first nodes that the runtime refuses to load or to run; none if it refuses any file of this kind."""
        names = ("onnx-ci/x", "onnx-ci/y")  # those of no value in the file
        proto = onnx.helper.make_node("Identity", names[:1], names[1:])
        same = FileNode(position=-1, name=names[1], operator="Identity", inputs=names[:1], outputs=names[1:], proto=proto)
        self._values |= dict.fromkeys(names, torch.zeros(1))
        with contextlib.suppress(Exception):
            self._run([same], {names[0]: torch.zeros(1)}, names[1:])
            return [each for each in self._each_alone() if each.refusal][:_MOST_FAULTS]
        return []

    def _depends_on_inputs(self, node: FileNode) -> bool:
        return not self._computed.isdisjoint(node.inputs)

    def _right(self, node: FileNode) -> list[torch.Tensor] | None:
        """The right outputs of a node, which later nodes get; ``None`` if they are not known."""
        outputs: list[torch.Tensor] | None
        try:
            outputs = self._runner.run(node, self._values)
        except NodeError:
            outputs = self._by_definition(node)
        if outputs is None:
            return None
        self._values |= zip(node.outputs, outputs, strict=True)
        if self._depends_on_inputs(node):
            self._computed.update(node.outputs)
        return outputs

    def _by_definition(self, node: FileNode) -> list[torch.Tensor] | None:
        """What ONNX's reference evaluator computes for a node, in float64 where it can; ``None`` if it cannot."""
        inputs = {name: self._values[name] for name in node.inputs if name in self._values}
        dtypes = [self._values[name].dtype if name in self._values else None for name in node.outputs]
        declared = [
            onnx.helper.make_tensor_value_info(name, from_torch_dtype(each.dtype).value, None) for name, each in inputs.items()
        ]
        model = onnx.load_from_string(
            self._runner.file_of([node], declared, [ValueInfoProto(name=each) for each in node.outputs])
        )
        for is_double in (True, False):
            feeds = {
                name: as_array(each.double() if is_double and each.dtype == torch.float32 else each)
                for name, each in inputs.items()
            }
            with contextlib.suppress(Exception):  # it lacks operators, and raises anything
                outputs = [as_tensor(each) for each in ReferenceEvaluator(model).run(None, feeds)]
                return [each if dtype is None else each.to(dtype) for each, dtype in zip(outputs, dtypes, strict=True)]
        return None

    def _fault(self, nodes: Sequence[FileNode], right: Values) -> WrongNodes | None:
        """What is wrong with nodes that get their right inputs; ``None`` if nothing is."""
        titles = tuple(node.title for node in nodes)
        line = line_of_node(nodes[-1].proto)
        feeds = self._inputs_of(nodes)
        self._announce(listed(titles))
        try:
            outputs = self._run(nodes, feeds, list(right))
        except Exception as raised:  # each runtime raises its own classes
            return WrongNodes(titles=titles, refusal=first_line(raised), line=line)
        error, roundings = self._distance(nodes, feeds, outputs, right)
        if roundings <= _LIMIT:
            return None
        if len(nodes) == 1 and (defined := self._by_definition(nodes[0])) is not None:
            by_definition = dict(zip(right, defined, strict=True))
            error, roundings = self._distance(nodes, feeds, outputs, by_definition)
            if roundings <= _LIMIT:  # ONNX Runtime without its optimizer is wrong
                self._values |= by_definition
                return None
        return WrongNodes(titles=titles, error=error, roundings=roundings, line=line)

    def _inputs_of(self, nodes: Sequence[FileNode]) -> dict[str, torch.Tensor]:
        """What the nodes get from others and from the inputs of the file."""
        own = {name for node in nodes for name in node.outputs}
        needed = dict.fromkeys(name for node in nodes for name in node.inputs)
        constants = self._runner.constants
        return {name: self._values[name] for name in needed if name not in own and name not in constants}

    def _run(self, nodes: Sequence[FileNode], feeds: Values, names: Sequence[str]) -> list[torch.Tensor]:
        """What the runtime computes with the nodes as a file of their own, whose inputs have the axes of the whole file."""
        inputs = [self._declaration(name, tensor) for name, tensor in feeds.items()]
        outputs = [self._declaration(name, self._values[name]) for name in names]
        path = self._folder / f"{next(self._numbers)}.onnx"
        path.write_bytes(self._runner.file_of(nodes, inputs, outputs))
        return self._runtime.load(path, "cpu").run(feeds)

    def _declaration(self, name: str, tensor: torch.Tensor) -> ValueInfoProto:
        declared = self._declared.get(name)
        if declared is not None and declared.type.tensor_type.HasField("shape"):
            return declared
        made: ValueInfoProto = onnx.helper.make_tensor_value_info(
            name, from_torch_dtype(tensor.dtype).value, list(tensor.shape)
        )
        return made

    def _distance(
        self, nodes: Sequence[FileNode], feeds: Values, outputs: Sequence[torch.Tensor], right: Values
    ) -> tuple[float, float]:
        """The largest difference, and in units of the rounding of the nodes: how much their results move with their inputs."""
        worst = (0.0, 0.0)
        noises = self._noises(nodes, right)
        for name, output in zip(right, outputs, strict=True):
            wanted = right[name]
            if output.shape != wanted.shape or output.dtype != wanted.dtype:
                return float("inf"), float("inf")
            if not wanted.is_floating_point():
                error = float((output != wanted).any())
                worst = max(worst, (error, error * float("inf") if error else 0.0), key=lambda each: each[1])
                continue
            finite = wanted.isfinite()
            if not torch.equal(finite, output.isfinite()):
                return float("inf"), float("inf")
            if finite.any():
                error = float((output.double() - wanted.double())[finite].abs().max())
                worst = max(worst, (error, error / noises[name]), key=lambda each: each[1])
        return worst

    def _noises(self, nodes: Sequence[FileNode], right: Values) -> dict[str, float]:
        """For each output, how far it moves if each input is rounded up or down by one digit, and one digit of its own."""
        generator = torch.Generator().manual_seed(0)
        moved = dict(self._values)
        for name in dict.fromkeys(name for node in nodes for name in node.inputs):
            tensor = moved.get(name)
            if tensor is not None and tensor.is_floating_point():
                signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
                moved[name] = (tensor.double() * (1 + signs * torch.finfo(tensor.dtype).eps)).to(tensor.dtype)
        with contextlib.suppress(NodeError):
            for node in nodes:
                moved |= zip(node.outputs, self._runner.run(node, moved), strict=True)
        noises = {}
        for name, wanted in right.items():
            other = moved.get(name, wanted)
            change = largest_value(other.double() - wanted.double()) if other.shape == wanted.shape else 0.0
            eps = torch.finfo(wanted.dtype).eps if wanted.is_floating_point() else 0.0
            noises[name] = change + eps * largest_value(wanted) or 1e-30
        return noises

    def _together(self) -> WrongNodes | None:
        """The fewest nodes, the last ones before the first wrong result, that are wrong together."""
        nodes = [
            each
            for each in self._runner.nodes
            if all(name in self._values for name in each.outputs) and self._depends_on_inputs(each)
        ]

        @functools.cache
        def fault_up_to(end: int) -> WrongNodes | None:
            return self._fault_of_last(self._before(nodes[end]))

        low, high = -1, len(nodes) - 1
        if not nodes or fault_up_to(high) is None:
            ends = [place for place, node in enumerate(nodes) if not set(node.outputs).isdisjoint(self._runner.outputs)]
            high = next((place for place in ends if fault_up_to(place) is not None), -1)
        while high - low > 1 and CLOCK.monotonic() < self._deadline:
            middle = (low + high) // 2
            low, high = (low, middle) if fault_up_to(middle) is not None else (middle, high)
        if high < 0:
            return None
        before = self._before(nodes[high])
        for number in range(2, min(len(before), _MOST_TOGETHER) + 1):
            if (fault := self._fault_of_last(before[-number:])) is not None:
                return fault
        return None

    def _fault_of_last(self, nodes: Sequence[FileNode]) -> WrongNodes | None:
        fault = self._fault(nodes, {name: self._values[name] for name in nodes[-1].outputs})
        return None if fault is None or fault.refusal else fault

    def _before(self, last: FileNode) -> list[FileNode]:
        """A node and those that it depends on, in the order of the file."""
        makers, pending = self._runner.makers, [last]
        reached: dict[int, FileNode] = {}
        while pending:
            node = pending.pop()
            if node.position not in reached:
                reached[node.position] = node
                pending += filter(None, map(makers.get, node.inputs))
        return [reached[position] for position in sorted(reached)]


def zeros_for(model: onnx.ModelProto) -> dict[str, torch.Tensor]:
    """Zeros for each input of a model without a default, with 2 for sizes that are not declared."""
    defaults = {each.name for each in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        if value.name not in defaults and kind.elem_type:
            shape = [dim.dim_value or 2 for dim in kind.shape.dim]
            feeds[value.name] = torch.zeros(shape, dtype=to_torch_dtype(DataType(kind.elem_type)))
    return feeds
