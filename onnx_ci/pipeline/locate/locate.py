"""Adds to findings about wrong values the places in the file and in the model's code that the values come from."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from onnx_ci.matrix.drift_limit import DriftLimit
from onnx_ci.onnx_model.precision import lowest_precision
from onnx_ci.onnx_model.signature import Signature, read_model
from onnx_ci.opsets import CUSTOM
from onnx_ci.pipeline.compare.attribution import is_of_other_runtime
from onnx_ci.pipeline.compare.equal_axes import EQUAL_AXES
from onnx_ci.pipeline.compare.runtime_run import FileRun, feeds_of
from onnx_ci.pipeline.export.error_lines import line_of_node
from onnx_ci.pipeline.export.exporter_errors import entry_for, remedy_of_wrong_operator
from onnx_ci.pipeline.inputs.probes import InputStatus, Probe, Probes
from onnx_ci.pipeline.locate.culprits import SourceSites, find_culprits, with_recipe
from onnx_ci.pipeline.locate.export_questions import ExportQuestion, QuestionedModel
from onnx_ci.pipeline.locate.frozen_lines import Replay
from onnx_ci.pipeline.locate.model_trace import TooLargeError, trace_model
from onnx_ci.pipeline.locate.single_nodes import NodeRunner
from onnx_ci.pipeline.model.call import input_tensors, with_inputs
from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.export_answers import FAST_PATH
from onnx_ci.pipeline.model.recipe_model import CallSignature, RecipeModel
from onnx_ci.pipeline.run.onnxruntime import OnnxRuntime, passes_that_change
from onnx_ci.pipeline.trace.lines import lines_of, where_they_part
from onnx_ci.pipeline.trace.recorder import Tracer
from onnx_ci.pipeline.trace.trace import Operator
from onnx_ci.processes.clock import CLOCK
from onnx_ci.results.records import AXES_OF_ONE, Culprit, Finding, FrozenKind, Severity, SourceLine
from onnx_ci.results.rules import REMEDIES
from onnx_ci.text import listed

_MOST_PROBES = 2
"""On how many inputs faults are searched for among the nodes: the first for each of two faults."""
_MOST_REPLAYED = 4
"""On how many inputs lines are replayed, which takes less time."""

_FAILED_NODE = re.compile("Name:'(.+?)'")
"""How ONNX Runtime names the node that cannot run."""

_ABOUT_SIZES = ("baked-shape", "static-axis")
_FROZEN = ("baked-shape", "baked-value")
_OF_TORCH = ("aten.", "prim", "quantized.", "torch")
"""How operators begin that torch and torchvision translate themselves."""


def located(
    findings: Sequence[Finding],
    path: Path,
    signature: Signature,
    model: RecipeModel,
    probes: Probes,
    *,
    exporter: str,
    max_drift: DriftLimit,
    seconds: float,
    warned: Collection[SourceLine] = (),
) -> tuple[list[Finding], str]:
    """The findings, each error about an input with its culprits if they are found; and why some are not, for the log.

    This thread may compute for ``seconds``, so that a busy machine finds no less. The exporter has warned about some lines.
    """
    # Values of the file can be told to be the model's if both compute the same each time, and in float32 or float64. A cast to
    # float16 in the file that the model does not have is a fault like any other. One that it has is in its reference's epsilon.
    file_model, is_precise = read_model(path), probes.example.reference.eps <= torch.finfo(torch.float32).eps
    is_in_float32 = not isinstance(file_model, Finding) and lowest_precision(file_model, as_a_whole=True) is None
    if not is_in_float32 or not is_precise or model.recipe.nondeterministic:
        return list(findings), ""
    names = dict.fromkeys(filter(None, map(_output_of, findings)))
    of_axes = {name: line for name in names if (line := _line_of_axes(name, signature, model, probes))}
    search = _Search(
        path=path,
        signature=signature,
        model=model,
        probes=probes,
        errors=[
            each
            for each in findings
            if each.severity is Severity.ERROR and each.probe and "axis" not in each.details
            if EQUAL_AXES not in each.details and not is_of_other_runtime(each) and _output_of(each) not in of_axes
        ],
        exporter=exporter,
        max_drift=max_drift,
        deadline=CLOCK.thread_time() + seconds,
    )
    questions, passes, causes = search.questions(), search.passes(), search.causes(warned)
    # A line that makes an output wrong on one input is the likeliest cause on another one, where it cannot be proven.
    proven_by_output = {output: culprits for (_, output), culprits in reversed(causes.items())}
    if len({*proven_by_output.values()}) == 1:
        proven_by_output.setdefault(None, next(iter(proven_by_output.values())))  # where the file fails as a whole

    def proven(probe: str | None, output: str | None) -> tuple[Culprit, ...]:
        """The lines that make an output wrong on an input: proven there, or on another input, if they are suspects there."""
        of_other, replay = proven_by_output.get(output, ()), search.replays.get(probe)
        is_likely = replay is None or any(each.source in replay.suspects for each in of_other)
        of_shape = replay.causes_of_shapes.get(output or "", ()) if replay is not None else ()
        return causes.get((probe, output)) or of_shape or (of_other if is_likely else ())

    places, parting_on = search.places(proven), functools.cache(search.parting)
    likely_questions = functools.cache(functools.partial(search.questions, explains_file=False))
    twice = _passed_twice(model.signature.input_names, input_tensors(model.pristine)) if exporter == "dynamo" else ()
    ones = _taken_for_one(model.signature, probes, {each.probe for each in search.errors}) if exporter == "dynamo" else []

    def with_remedy(finding: Finding) -> Finding:
        remedy = _remedy(finding, exporter, model)
        if twice and finding.rule == "baked-value":
            remedy = REMEDIES["passed-twice"].format(listed(map(repr, twice)))
        is_number = any(each.frozen is not None and each.frozen.kind is FrozenKind.NUMBER for each in finding.culprits)
        if exporter == CUSTOM and finding.rule in _ABOUT_SIZES and is_number and "Shape" not in signature.operators:
            remedy = REMEDIES["not-handed-on"]
        if not ones or finding.rule not in _ABOUT_SIZES:
            return dataclasses.replace(finding, remedy=remedy)
        first = REMEDIES["example-of-one"].format(listed(map(repr, ones)))
        return dataclasses.replace(finding, remedy=first + remedy, details={**finding.details, AXES_OF_ONE: ones})

    def with_places(finding: Finding) -> Finding:
        if finding.severity is not Severity.ERROR:
            return finding
        if line_of_axes := of_axes.get(_output_of(finding) or ""):
            return dataclasses.replace(finding, culprits=(line_of_axes[0],), remedy=line_of_axes[1])
        if finding.rule == "input-missing":
            missing = finding.details.get("missing", ())
            return with_remedy(dataclasses.replace(finding, culprits=search.of_missing_inputs(missing, warned)))
        if "axis" in finding.details:  # the file is wrong at other sizes of that axis
            computed = search.of_output(finding.output) if finding.probe and finding.output else ()  # only what it declares is
            name = finding.output or finding.details.get("output")
            if asked := next((question for (_, output), question in questions.items() if output == name), None):
                return _with_question(finding, asked)
            return with_remedy(dataclasses.replace(finding, culprits=computed or proven_by_output.get(name, ())))
        if passes and _is_of_optimizer(finding):
            remedy = REMEDIES["optimizer-passes"].format(", ".join(map(repr, passes)))
            return dataclasses.replace(finding, optimizer_passes=passes, remedy=remedy)
        question = questions.get((finding.probe, finding.output))
        if question is None and finding.probe is not None and (lines := proven(finding.probe, finding.output)):
            culprits = tuple(with_recipe(each, model.recipe) for each in lines)
            return with_remedy(dataclasses.replace(finding, culprits=culprits))
        if question is None and (likely := likely_questions()):  # one that is guilty on an input is likely to be on others
            key, others = (finding.probe, finding.output), () if finding.probe in places else likely.values()
            question = likely.get(key) or next(iter(others), None)
        if finding.rule in _FROZEN and question is None and (parting := parting_on(finding.probe)) is not None:
            return dataclasses.replace(finding, culprits=(parting,), remedy=REMEDIES["other-side"])
        if finding.probe in search.failing and finding.output is None and question is None:
            return with_remedy(dataclasses.replace(finding, culprits=(search.failing[finding.probe],)))
        replay = search.replays.get(finding.probe)
        frozen = {} if replay is None else replay.differences
        sites = places.get(finding.probe, SourceSites())
        culprits = tuple(
            dataclasses.replace(with_recipe(each, model.recipe), frozen=frozen.get(each.source) if each.source else None)
            for each in sites.culprits_of(finding.output)
        )
        with_culprits = dataclasses.replace(finding, culprits=culprits, steps=sites.steps)
        return with_remedy(with_culprits) if question is None else _with_question(with_culprits, question)

    return [with_places(each) for each in findings], "; ".join(search.problems)


@dataclass(frozen=True, kw_only=True)
class _Search:
    """The search for the faults of a file. What goes wrong in it is a problem for the log: the findings must not be lost."""

    path: Path
    signature: Signature
    model: RecipeModel
    probes: Probes
    errors: Sequence[Finding]
    exporter: str
    max_drift: DriftLimit
    deadline: float
    problems: list[str] = field(default_factory=list)
    replays: dict[str | None, Replay] = field(default_factory=dict)
    """By the name of the input, what running lines as on the example has shown there."""
    failing: dict[str | None, Culprit] = field(default_factory=dict)
    """By the name of the input, the node that cannot run there, with the line of the model that made it."""

    def causes(self, warned: Collection[SourceLine]) -> dict[tuple[str | None, str | None], tuple[Culprit, ...]]:
        """The lines that are proven to be the cause, by the names of the input and the output."""
        causes: dict[tuple[str | None, str | None], tuple[Culprit, ...]] = {}
        for probe in self._probes[:_MOST_REPLAYED]:
            with self._noting("no line is replayed"):
                of_probe = self._wrong_outputs(probe)
                wrong = [value.name for value in self.signature.outputs if {value.name, None} & of_probe]
                outputs: list[torch.Tensor] | None = None
                with contextlib.suppress(Exception):  # ONNX Runtime raises classes of its own
                    outputs = self._outputs(probe)
                failing = self._failing_node(probe) if outputs is None else None
                if failing is not None and failing.source is not None:
                    self.failing[probe.name] = failing
                replay = self._replay(probe, outputs, failing)
                proven = replay.causes(wrong, warned)
                causes |= {(probe.name, output): culprits for output, culprits in proven.items()}
                self.replays[probe.name] = replay
                if None in of_probe and proven:
                    causes[probe.name, None] = next(iter(proven.values()))
        return causes

    def of_missing_inputs(self, names: Collection[str], warned: Collection[SourceLine]) -> tuple[Culprit, ...]:
        """The lines that read inputs which the file does not have.

        The file goes on with the example's, or without what is written. So with another value of such an input alone, the model
        computes with this line as on the example, or without its write, what the file computes.
        """
        example, input_names = self.probes.example, self.model.signature.input_names
        culprits: dict[Culprit, None] = {}
        for position, name in enumerate(input_names):
            for probe in self.probes.all if name in names else ():
                if probe.inputs[position].shape != example.inputs[position].shape or probe.follows is not None:
                    continue
                mixed = (*example.inputs[:position], probe.inputs[position], *example.inputs[position + 1 :])
                with self._noting("the line that reads a missing input is not known"):
                    kept = tuple(each for each, of in zip(mixed, input_names, strict=True) if of not in names)
                    outputs = self._outputs(dataclasses.replace(probe, inputs=kept))
                    replay = self._replay(dataclasses.replace(probe, inputs=mixed), outputs)
                    causes = replay.causes([value.name for value in self.signature.outputs], warned)
                    culprits |= dict.fromkeys(each for of_output in causes.values() for each in of_output)
                    if causes:
                        break
        return tuple(culprits)

    def of_output(self, name: str | None) -> tuple[Culprit, ...]:
        """The line of the model that computes an output."""
        with self._noting(f"the line that computes {name!r} is not known"):
            trace = trace_model(self.model, self.probes.example, self.deadline)
            value = trace.outputs[[each.name for each in self.signature.outputs].index(name or "")] if trace else None
            operator = trace.values[value].operator if trace and value is not None else None
            if trace and operator is not None:
                place = trace.operators[operator].place
                return (Culprit(nodes=(), operators=(), module=place.module, source=place.source),)
        return ()

    def _replay(self, probe: Probe, outputs_of_file: Sequence[torch.Tensor] | None, fails_at: Culprit | None = None) -> Replay:
        return Replay(
            model=self.model,
            example=self.probes.example,
            probe=probe,
            outputs=[value.name for value in self.signature.outputs],
            outputs_of_file=outputs_of_file,
            fails_at=fails_at,
            max_drift=self.max_drift,
            deadline=self.deadline,
        )

    def _wrong_outputs(self, probe: Probe) -> set[str | None]:
        """The names of the outputs that are wrong on an input; ``None`` among them if the file fails as a whole."""
        return {each.output for each in self.errors if each.probe == probe.name}

    def _failing_node(self, probe: Probe) -> Culprit | None:
        """The node at which the file fails, with its line of the model, or only its module; ``None`` if neither is known."""
        try:
            OnnxRuntime(optimize=False).load(self.path, "cpu").run(feeds_of(self.signature, self.model.weights, probe))
        except Exception as error:  # ONNX Runtime raises classes of its own
            name = _FAILED_NODE.search(str(error))
            node = next((each for each in self._runner.nodes if name is not None and each.name == name[1]), None)
            line = None if node is None else line_of_node(node.proto)
            # TorchScript writes the module into the name: /layers.0/attention/Reshape
            module = "" if node is None else ".".join(node.name.split("/")[1:-1])
            if node is not None and (line is not None or module in dict(self.model.pristine.model.named_modules())):
                return Culprit(nodes=(node.title,), operators=(), module=module, source=line)
        return None

    def places(self, proven: Callable[[str | None, str | None], Collection[Culprit]]) -> dict[str | None, SourceSites]:
        """Where the file goes wrong on each input that is searched, by its name. What is proven is not searched for."""
        places: dict[str | None, SourceSites] = {}
        for probe in self._probes[:_MOST_PROBES]:
            if probe.name in self.failing or all(proven(probe.name, output) for output in self._wrong_outputs(probe)):
                continue
            with self._noting("the fault is not located"):
                trace = trace_model(self.model, probe, self.deadline)
                if trace is not None:
                    places[probe.name] = find_culprits(
                        self._runner,
                        trace,
                        feeds_of(self.signature, self.model.weights, probe),
                        has_failed=None in self._wrong_outputs(probe),
                        deadline=self.deadline,
                    )
        return places

    def questions(self, *, explains_file: bool = True) -> dict[tuple[str | None, str | None], ExportQuestion]:
        """The question whose answer makes an output wrong, by the names of the input and the output.

        The file computes the same then, unless it only has to be wrong, too, in its own way.
        """
        questions: dict[tuple[str | None, str | None], ExportQuestion] = {}
        for probe in self._probes[:_MOST_PROBES]:
            with self._noting("what the model asks in an export is not known"):
                model = QuestionedModel(
                    model=self.model,
                    example=self.probes.example,
                    probe=probe,
                    exporter=self.exporter,
                    outputs=[value.name for value in self.signature.outputs],
                    max_drift=self.max_drift,
                    deadline=self.deadline,
                )
                of_probe = self._wrong_outputs(probe)
                fails_as_a_whole = None in of_probe and not explains_file
                wrong = {each.name for each in self.signature.outputs if fails_as_a_whole or each.name in of_probe}
                guilty = model.guilty_questions(wrong, functools.partial(self._outputs, probe) if explains_file else None)
                questions |= {(probe.name, output): question for output, question in guilty.items()}
                if guilty and fails_as_a_whole:
                    questions[probe.name, None] = next(iter(guilty.values()))
        return questions

    def parting(self, name: str | None) -> Culprit | None:
        """The line after which an input goes another way than the example, as no replay does: an exception is caught."""
        probe = next((each for each in self._probes if each.name == name), None)
        if probe is None or CLOCK.thread_time() > self.deadline:
            return None
        calls = (with_inputs(self.model.fresh(), each.inputs) for each in (self.probes.example, probe))
        own, other = (lines_of(call, seed=self.model.recipe.seed, numbers_only=True) for call in calls)
        source, replay = where_they_part(own, other), self.replays.get(name)
        is_suspect = source is not None and replay is not None and source not in replay.suspects
        return Culprit(nodes=(), operators=(), module="", source=source) if is_suspect else None

    def passes(self) -> tuple[str, ...]:
        """The fewest passes of ONNX Runtime's optimizer without which it is right; none if it is wrong without any of them."""
        finding = next(filter(_is_of_optimizer, self.errors), None)
        guilty: list[str] = []
        with self._noting("the optimizer's passes are not told apart"):
            changing = [] if finding is None else passes_that_change(self.path)
            if finding is not None and changing and self._is_right_without(finding.probe, changing):
                guilty = changing
                for name in changing:
                    fewer = [other for other in guilty if other != name]
                    if fewer and CLOCK.thread_time() < self.deadline and self._is_right_without(finding.probe, fewer):
                        guilty = fewer
        return tuple(guilty)

    @contextlib.contextmanager
    def _noting(self, problem: str) -> Iterator[None]:
        try:
            yield
        except TooLargeError as error:
            self.problems.append(f"{problem}: {error}")
        except Exception as error:
            self.problems.append(f"{problem}: {type(error).__name__}: {error}")

    @functools.cached_property
    def _probes(self) -> list[Probe]:
        first_of_fault = {(each.rule, each.output): each.probe for each in reversed(self.errors)}
        names = {*first_of_fault.values()}
        return [each for each in self.probes.all if each.name in names and each.follows is None]

    @functools.cached_property
    def _runner(self) -> NodeRunner:
        return NodeRunner(self.path)

    def _outputs(self, probe: Probe) -> list[torch.Tensor]:
        return OnnxRuntime().load(self.path, "cpu").run(feeds_of(self.signature, self.model.weights, probe))

    def _is_right_without(self, probe: str | None, passes: Sequence[str]) -> bool:
        """Whether ONNX Runtime is right on an input if it skips passes of its optimizer."""
        probes = [each for each in self.probes.all if each.name == probe]
        run = FileRun(
            runtime=OnnxRuntime(disabled=passes),
            signature=self.signature,
            model=self.model,
            probes=probes,
            device="cpu",
            max_drift=self.max_drift,
        ).run(self.path)
        return bool(run.outputs) and not run.faults


def _is_of_optimizer(finding: Finding) -> bool:
    """Whether ONNX Runtime is right on the same file without its optimizer."""
    is_of_onnxruntime = finding.rule == "runtime-disagreement" and finding.details.get("runtime") == OnnxRuntime().name
    return is_of_onnxruntime and OnnxRuntime(optimize=False).name in finding.details.get("right", ())


def _output_of(finding: Finding) -> str | None:
    """The output whose shape an error is about."""
    is_about_shape = finding.severity is Severity.ERROR and finding.rule in ("shape-mismatch", "baked-shape", "static-axis")
    return (finding.output or finding.details.get("output")) if is_about_shape else None


def _line_of_axes(name: str, signature: Signature, model: RecipeModel, probes: Probes) -> tuple[Culprit, str] | None:
    """The line from which on an output has another number of axes on another input, and what to write there.

    ``None`` if it has as many on each. A file has one number of axes.
    """
    position = next((number for number, value in enumerate(signature.outputs) if value.name == name), None)
    legal = [each for each in probes.all if each.legality is InputStatus.LEGAL and each.follows is None]
    by_rank = {} if position is None else {each.reference.own[position].dim(): each for each in reversed(legal)}
    if len(by_rank) < 2:
        return None
    tracer = Tracer(Copies(model.pristine, model.fresh))
    traces = [tracer.trace(each.inputs) for each in itertools.islice(by_rank.values(), 2)]
    for both in zip(*(trace.of_kind(Operator) for trace in traces), strict=False):
        first, other = both
        if first.name != other.name or len(first.results) != len(other.results):
            return None  # what follows cannot be compared
        pairs = [*zip(traces, both, strict=True)]
        if len({tuple(len(trace.values[each].shape) for each in operator.results) for trace, operator in pairs}) > 1:
            culprit = Culprit(nodes=(), operators=(), module=first.place.module, source=first.place.source)
            if first.name != "squeeze":
                return culprit, REMEDIES["other-axes"]
            sizes = zip(*(trace.values[operator.operands[0]].shape for trace, operator in pairs), strict=True)
            ones = [] if "dim" in first.arguments else [axis for axis, of_both in enumerate(sizes) if {*of_both} == {1}]
            shown = ones[0] if len(ones) == 1 else tuple(ones)
            return culprit, REMEDIES["squeezed"].format(f"Write squeeze({shown}) there." if ones else "Leave it out.")
    return None


def _passed_twice(input_names: Sequence[str | None], tensors: Sequence[torch.Tensor]) -> tuple[str, ...]:
    """The inputs that are one tensor in the recipe's args, the first such tensor's."""
    names: dict[int, list[str]] = {}
    for position, (name, tensor) in enumerate(zip(input_names, tensors, strict=True)):
        names.setdefault(id(tensor), []).append(name or str(position))
    return next((tuple(each) for each in names.values() if len(each) > 1), ())


def _taken_for_one(signature: CallSignature, probes: Probes, failing: Collection[str | None]) -> list[str]:
    """The dynamic axes along which the example has size 1, unless the file is right where only these have another size."""
    ones = signature.axes_of_one(probes.example.inputs)

    def has_other_ones_only(probe: Probe) -> bool:
        inputs = zip(signature.input_names, probe.inputs, probes.example.inputs, strict=True)
        changed = {
            signature.axes.get(name or "", {}).get(axis)
            for name, tensor, of_example in inputs
            for axis, (size, other) in enumerate(zip(tensor.shape, of_example.shape, strict=True))
            if size != other
        }
        return bool(changed) and changed <= {*ones}

    tried = (each for each in probes.all if each.follows is None and has_other_ones_only(each))
    return ones if all(each.name in failing for each in tried) else []


def _remedy(finding: Finding, exporter: str, model: RecipeModel) -> str:
    """The remedy that fits the first culprit of a finding about an exporter's file, or that of its rule."""
    first = next((each for each in finding.culprits if each.frozen is not None), None)
    is_limited = any(not isinstance(each, tuple) for each in model.recipe.dynamic_sizes.values())
    some_sizes = REMEDIES["some-sizes"] if finding.rule == "baked-shape" and not is_limited else ""
    if first is not None and first.frozen is not None:
        line = first.source.text if first.source is not None else ""
        if entry := entry_for("frozen", " ".join(first.operators), line):
            return str(entry["remedy"]) + some_sizes
        name = _name_of_remedy(first.frozen.kind, first.operators, line, is_about_shape=finding.rule == "baked-shape")
        is_of_sizes = name == "frozen-condition" and _SIZE.search(line)
        return REMEDIES["condition-of-sizes" if is_of_sizes else name] + REMEDIES.get(f"{name}-{exporter}", "") + some_sizes
    if finding.rule == "baked-shape" and finding.culprits:
        layer = dict(model.pristine.model.named_modules()).get(finding.culprits[0].module)
        if type(layer).__module__.startswith("torch.nn.modules."):  # the culprit is a part of what it computes
            return REMEDIES["in-layer"] + some_sizes
    if known := remedy_of_wrong_operator(finding.culprits):
        return known
    if custom := [name for each in finding.culprits[:1] for name in each.operators if not name.startswith(_OF_TORCH)]:
        return REMEDIES["custom-operator"].format(custom[0])
    if finding.rule == "baked-value" and any(each.nodes for each in finding.culprits):
        return REMEDIES["in-node"]
    if finding.rule == "numeric-drift" and any(each.endswith(".running_mean'") for each in model.changed_by_running):
        return REMEDIES["batch-statistics"]
    return finding.remedy


_SIZE, _MINIMUM = re.compile(r"\.shape\b|\.size\(|\blen\("), re.compile(r"(?<![.\w])(?:min|max)\(")
_OF_CACHE = re.compile(r"\bself\.\w+ is None\b|\bnot in self\.|\bhasattr\(self\b|\bself\.\w+\.(?:shape|size|numel)\b")
"""How code asks for sizes, for the smaller of two, and whether what it keeps has the right one."""


def _name_of_remedy(kind: FrozenKind, operators: Sequence[str], line: str, *, is_about_shape: bool) -> str:
    if "tolist" in operators:
        return "frozen-list"
    if "range" in operators:
        return "frozen-loop"
    if kind is FrozenKind.CONSTANT and operators and not operators[0].startswith("torch."):
        return "frozen-by-numpy"
    if kind is FrozenKind.CONDITION and (special := _OF_CACHE.search(line) or _MINIMUM.search(line)):
        return "frozen-cache" if special.re is _OF_CACHE else "frozen-minimum"
    if kind in (FrozenKind.CONDITION, FrozenKind.BRANCH):
        return "frozen-shape" if is_about_shape else "frozen-condition"
    return "frozen-exit" if kind is FrozenKind.LOOP and line.startswith("if ") else f"frozen-{kind}"


def _with_question(finding: Finding, question: ExportQuestion) -> Finding:
    """The finding at the line where the model asks whether it is being exported, or at that where it uses the answer."""
    used = next((each for each in finding.culprits[:1] if each.source in question.lines), None)
    source, module = (question.source, question.module) if used is None else (used.source, used.module)
    culprits = (Culprit(nodes=(), operators=(question.function,), module=module, source=source),)
    steps = tuple(dataclasses.replace(each, source=source) if each.is_culprit else each for each in finding.steps)
    remedy = REMEDIES["fast-path"] if question.function == FAST_PATH else REMEDIES["asked"].format(question.function)
    details = {**finding.details, "asks": question.function}
    return dataclasses.replace(finding, culprits=culprits, steps=steps, remedy=remedy, details=details)
