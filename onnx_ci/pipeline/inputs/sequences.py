"""Sequences: a model run several times in a row, with outputs of each step as inputs of the next.

A key-value cache, the state of an RNN and the buffer of a streaming convolution are used in this way. Step 0 is an ordinary
probe. Each later step is a probe whose inputs are outputs of the step before: the file's own when the file runs, the model's
own in the reference. For its reference, a sequence is unrolled into one model, so that float64 and perturbation work as for
any other model. The noise of a step is the rounding of all steps up to it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from onnx_ci.collection.recipe import Recipe
from onnx_ci.errors import describe_exception, did_you_mean
from onnx_ci.pipeline.domains.axes import DeclaredAxes
from onnx_ci.pipeline.domains.input_domains import UNKNOWN, InputDomains
from onnx_ci.pipeline.inputs.probes import Probe
from onnx_ci.pipeline.inputs.random_values import drawn_like
from onnx_ci.pipeline.model.call import Call, PrepareError, filled, input_tensors, recipe_error, with_inputs
from onnx_ci.pipeline.model.containers import tensors_in
from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.running import run, seeded
from onnx_ci.pipeline.model.tensors import Outputs, dtype_name, same_shapes
from onnx_ci.pipeline.reference.reference import Reference, make_reference
from onnx_ci.pipeline.reference.runtime_rounding import with_runtime_rounding
from onnx_ci.results.records import Finding, Severity
from onnx_ci.results.rules import REMEDIES, finding

DEFAULT_STEPS = 8
"""How often a recipe with ``feedback`` is run in a row if it does not say."""
PREFILL = "prefill"
"""The name of the probe that takes the new inputs of all steps but the last in one call."""
_FIRST_SEED = 100
"""The seed of the values drawn for step 0; other probes are drawn with smaller ones."""


class Sequences:
    """Runs a recipe's model in sequences and makes probes of their steps. Inputs and outputs are identified by position."""

    def __init__(
        self, copies: Copies, recipe: Recipe, example: Probe, axes: DeclaredAxes, domains: InputDomains = UNKNOWN
    ) -> None:
        self._copies, self._recipe, self._example, self._axes, self._domains = copies, recipe, example, axes, domains
        self._names = recipe.input_names
        self._steps = recipe.steps or DEFAULT_STEPS
        self._devices = [tensor.device for tensor in input_tensors(copies.pristine)]
        self._fed = {}
        for output, name in recipe.feedback.items():
            index = self._position(name, self._names, len(example.inputs))
            self._fed[index] = self._position(output, recipe.output_names, len(example.reference.own))

    @staticmethod
    def _position(name: str, names: Sequence[str], count: int) -> int:
        """The position of a tensor; more names than tensors can be declared."""
        position = names.index(name)
        if position >= count:
            message = f"feedback names {name!r}, but the model has only {count} such tensors: {', '.join(names[:count])}"
            raise recipe_error(message, "Declare one name for every tensor in args and for every tensor that forward returns.")
        return position

    def probes(self, single: Sequence[Probe]) -> tuple[list[Probe], list[Finding]]:
        """The steps from the example, from another size, and with all but the last in one call; a note where they fail.

        If it rejects those from the example, a :class:`PrepareError` names the step.
        """
        probes = self._after(self._example)
        notes = []
        resized = next((probe for probe in single if not same_shapes(probe.inputs, self._example.inputs)), None)
        if resized is not None:
            try:
                probes += self._after(resized)
            except PrepareError as error:
                notes.append(_not_run(f"from {resized.name!r}", error))
        try:
            probes += self._prefill()
        except PrepareError as error:
            notes.append(_not_run("in one call", error))
        return probes, notes

    def following(self, inputs: Sequence[torch.Tensor]) -> Mapping[int, torch.Tensor]:
        """Those of the ``inputs`` of a first step that ``step_inputs`` computes from the others."""
        return self._computed(0, inputs)

    def _after(self, start: Probe) -> list[Probe]:
        prefix = "" if start is self._example else f"{start.name},"
        names = [start.name, *(f"{prefix}step={number}" for number in range(1, self._steps))]
        return self._probes(names, start.inputs, range(1, self._steps), like=start.inputs)[1:]

    def _prefill(self) -> list[Probe]:
        """All steps but the last in one call, and then the last; empty if not one axis is that of new inputs alone."""
        start, last = self._example.inputs, self._steps - 1
        computed = self._computed(0, start)
        places = {
            place.index: place
            for place in self._axes.inputs.places
            if place.index not in self._fed and place.index not in computed
            if place.size.is_name and place.size.text not in self._fed_sizes
        }
        labels = {place.size.text for place in places.values()}
        if last < 2 or len(labels) != 1:
            return []
        steps = [start, *(self._drawn(start, number) for number in range(1, last))]
        joined = [
            torch.cat([inputs[index] for inputs in steps], places[index].axis) if index in places else tensor
            for index, tensor in enumerate(start)
        ]
        fitted = self._fitted(joined, places, labels, kept=computed)
        computed_for_all = self._computed(0, fitted)
        inputs = [computed_for_all.get(index, tensor) for index, tensor in enumerate(fitted)]
        return self._probes([PREFILL, f"{PREFILL},step={last}"], inputs, [last], like=start)

    def _probes(
        self, names: Sequence[str], start: Sequence[torch.Tensor], numbers: Sequence[int], *, like: Sequence[torch.Tensor]
    ) -> list[Probe]:
        """Probes of a call with ``start`` and of the steps ``numbers`` after it; new inputs are like those of ``like``."""
        inputs, outputs = self._run(start, numbers, like)
        new = [
            tensor.to(self._devices[index])
            for step, tensors in enumerate(inputs)
            for index, tensor in enumerate(tensors)
            if not step or index not in self._fed
        ]

        def unrolled(call: Call) -> Call:
            return Call(model=_Unrolled(call, self._fed, len(inputs)), args=tuple(new), kwargs={})

        copies = Copies(unrolled(self._copies.pristine), lambda: unrolled(self._copies.fresh()), eps=self._copies.eps)
        whole = make_reference(copies, tuple(itertools.chain.from_iterable(outputs)))

        as_runtimes = functools.cache(functools.partial(with_runtime_rounding, copies, whole))

        def of_step(reference: Reference, step: int) -> Reference:
            part = slice(step * len(outputs[0]), (step + 1) * len(outputs[0]))
            parts = {name: getattr(reference, name)[part] for name in ("own", "exact", "noise", "channels", "stable")}
            return replace(reference, **parts, undecided=None)

        return [
            Probe(
                name=name,
                inputs=inputs[step],
                reference=of_step(whole, step),
                refinements=(functools.partial(lambda step: of_step(as_runtimes(), step), step),),
                follows=names[step - 1] if step else None,
                fed=self._fed if step else {},
            )
            for step, name in enumerate(names)
        ]

    def _run(
        self, start: Sequence[torch.Tensor], numbers: Sequence[int], like: Sequence[torch.Tensor]
    ) -> tuple[list[Outputs], list[Outputs]]:
        """The inputs and the outputs of each step, in the model's own data type."""
        call = self._copies.running()
        inputs: list[Outputs] = [tuple(start)]
        outputs: list[Outputs] = []
        for number in (0, *numbers):
            if outputs:
                inputs.append(self._inputs(number, outputs[-1], like))
            try:
                self._copies.try_on_cpu(inputs[-1])
                outputs.append(run(with_inputs(call, inputs[-1])))
            except PrepareError as error:
                raise recipe_error(f"in step {number}, {error.finding.message}", REMEDIES["same-in-each-step"]) from None
            if len(outputs[-1]) != len(outputs[0]):
                message = f"the model returns {len(outputs[0])} tensors in step 0 and {len(outputs[-1])} in step {number}"
                raise recipe_error(message, "Return the same tensors in every step.")
        return inputs, outputs

    def _inputs(self, number: int, outputs: Outputs, like: Sequence[torch.Tensor]) -> Outputs:
        """The inputs of a step that follows one with ``outputs``; new ones are like those of ``like``."""
        inputs = list(like)
        for index, output in self._fed.items():
            source = f"in step {number}, feedback feeds output {self._recipe.output_names[output]!r}"
            self._check_fit(index, outputs[output], source, function="forward")
            inputs[index] = outputs[output]
        computed = self._computed(number, inputs)
        drawn = self._drawn(self._fitted(inputs, self._fed, self._fed_sizes), number)
        return tuple(
            computed[index] if index in computed else tensor if index in self._fed else drawn[index]
            for index, tensor in enumerate(inputs)
        )

    @functools.cached_property
    def _fed_sizes(self) -> set[str]:
        """The variables in the sizes of inputs that are fed back."""
        return {name for place in self._axes.inputs.places if place.index in self._fed for name in place.size.names}

    def _fitted(
        self, inputs: Sequence[torch.Tensor], leading: Collection[int], changed: Collection[str], kept: Collection[int] = ()
    ) -> list[torch.Tensor]:
        """The inputs, with sizes of ``changed`` variables derived from the ``leading`` ones, except for ``kept`` ones."""
        axes = self._axes.inputs
        fitted = axes.fitted(inputs, {**axes.sizes_in(inputs), **axes.sizes_in(inputs, leading)}, changed) or inputs
        return [tensor if index in leading or index in kept else fitted[index] for index, tensor in enumerate(inputs)]

    def _drawn(self, like: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
        seed = _FIRST_SEED + number
        declared = self._domains.drawn(like, seed, only_declared=True)
        return [declared.get(index, drawn_like(tensor, seed=seed)) for index, tensor in enumerate(like)]

    def _computed(self, number: int, inputs: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """The inputs that the recipe's ``step_inputs`` returns for a step."""
        function = self._recipe.step_inputs
        if function is None:
            return {}
        by_name = dict(zip(self._names, (tensor.clone() for tensor in inputs), strict=False))
        try:
            with seeded(self._recipe.seed + number):
                returned: Any = function(number, by_name)
        except Exception as error:  # whatever it raises is reported
            message = f"step_inputs raised {describe_exception(error)} for step {number}"
            raise recipe_error(message, REMEDIES["return-inputs"]) from None
        if not isinstance(returned, Mapping):
            message = f"step_inputs returned {type(returned).__name__} for step {number} instead of a dictionary"
            raise recipe_error(message, REMEDIES["return-inputs"])
        computed = {}
        for name, tensor in returned.items():
            if name not in by_name or not isinstance(tensor, torch.Tensor):
                is_input = name in by_name
                what = f"is not a tensor but {tensor!r}" if is_input else f"is not an input{did_you_mean(name, by_name)}"
                raise recipe_error(f"step_inputs returned {name!r} for step {number}, which {what}", REMEDIES["return-inputs"])
            index = self._names.index(name)
            if index in self._fed:
                message = f"step_inputs returned {name!r} for step {number}, which is fed back"
                raise recipe_error(message, "Leave it out of feedback or of what step_inputs returns.")
            self._check_fit(index, tensor, f"in step {number}, step_inputs gives a tensor", function="step_inputs")
            computed[index] = tensor.detach().cpu()
        return computed

    def _check_fit(self, index: int, tensor: torch.Tensor, source: str, *, function: str) -> None:
        """Check that an input can take what a function returns: data type, rank, and sizes of axes that are not dynamic."""
        name, like = self._names[index], self._example.inputs[index]
        dynamic = self._axes.labels.get(name, {})
        if tensor.dtype != like.dtype:
            reason, remedy = "their data types differ", f"Return it from {function} as {dtype_name(like)}."
        elif tensor.dim() != like.dim():
            reason, remedy = "their ranks differ", f"Return it from {function} with rank {like.dim()}."
        elif axes := [a for a in range(like.dim()) if a not in dynamic and tensor.shape[a] != like.shape[a]]:
            axis = axes[0]
            reason = f"the sizes of axis {axis} differ, and it is not declared dynamic"
            remedy = REMEDIES["grows-in-steps"].format(name, axis, function, like.shape[axis])
        else:
            return
        raise recipe_error(f"{source} ({_typed(tensor)}) to input {name!r} ({_typed(like)}), but {reason}", remedy)


def _not_run(how: str, error: PrepareError) -> Finding:
    message = f"the steps were not compared {how}: {error.finding.message}"
    return finding("vacuous", message, remedy=REMEDIES["sizes-of-steps"], severity=Severity.NOTE)


def _typed(tensor: torch.Tensor) -> str:
    """``float32[2, 4]``."""
    return f"{dtype_name(tensor)}{list(tensor.shape)}"


class _Unrolled(torch.nn.Module):
    """All steps as one model, which takes the inputs that are not fed back and returns the outputs of all steps in one list."""

    def __init__(self, call: Call, fed: Mapping[int, int], steps: int) -> None:
        super().__init__()
        self.call, self.fed, self.steps = call, fed, steps
        self.model = call.model

    def forward(self, *new: torch.Tensor) -> list[torch.Tensor]:
        first, rest = new[: len(input_tensors(self.call))], iter(new)
        outputs: list[torch.Tensor] = []
        last: list[torch.Tensor] = []
        for _ in range(self.steps):
            inputs = [
                # In float64 the model may return the coarser type of a cast; copied because it may change its inputs.
                last[self.fed[index]].to(tensor.dtype, copy=True) if last and index in self.fed else next(rest)
                for index, tensor in enumerate(first)
            ]
            call = filled(self.call, inputs)
            last = tensors_in(call.model(*call.args, **call.kwargs))
            outputs += last
        return outputs
