"""Sequences: a model run several times in a row, with outputs of each step as inputs of the next.

A key-value cache, the state of an RNN and the buffer of a streaming convolution are used in this way. Step 0 is the input of
an ordinary probe, and each later step is a probe, whose reference is the eager model run on its own outputs: its noise is
the rounding of all steps up to then.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from onnx_ci.collection.recipe import Recipe
from onnx_ci.errors import describe_exception, did_you_mean
from onnx_ci.results.records import Finding, Severity
from onnx_ci.results.rules import finding
from onnx_ci.stages.inputs.axes import DeclaredAxes
from onnx_ci.stages.inputs.domains import UNKNOWN, InputDomains
from onnx_ci.stages.inputs.probes import Probe, drawn_like
from onnx_ci.stages.model.containers import tensors_in
from onnx_ci.stages.model.copies import Copies
from onnx_ci.stages.model.live_model import (
    Call,
    Outputs,
    PrepareError,
    dtype_name,
    filled,
    input_tensors,
    recipe_error,
    run,
    seeded,
    with_inputs,
)
from onnx_ci.stages.reference.reference import Reference, make_reference
from onnx_ci.stages.reference.runtime_rounding import with_runtime_rounding

DEFAULT_STEPS = 8
"""How often a recipe with ``feedback`` is run in a row if it does not say."""

PREFILL = "prefill"
"""The name of the probe that takes the new inputs of all steps but the last in one call."""

_FIRST_SEED = 100
"""The seed of the values drawn for step 0; other probes are drawn with smaller ones."""


class Sequences:
    """Runs a recipe's model in sequences and makes probes of their steps. Inputs and outputs are known by position.

    Args:
        copies: the model.
        example: the recipe's own input.
        axes: the declared dynamic axes.
        domains: what is known about the inputs.

    Raises:
        PrepareError: ``feedback`` names a tensor that the model does not have.
    """

    def __init__(
        self,
        copies: Copies,
        recipe: Recipe,
        example: Probe,
        axes: DeclaredAxes,
        domains: InputDomains = UNKNOWN,
    ) -> None:
        self._copies, self._recipe, self._example, self._axes, self._domains = copies, recipe, example, axes, domains
        self._names = recipe.input_names
        self._steps = recipe.steps or DEFAULT_STEPS
        self._devices = [tensor.device for tensor in input_tensors(copies.pristine)]
        self._fed = {
            self._position(name, self._names, len(example.inputs)): self._position(
                output, recipe.output_names, len(example.reference.own)
            )
            for output, name in recipe.feedback.items()
        }

    @staticmethod
    def _position(name: str, names: Sequence[str], count: int) -> int:
        """The position of a tensor; more names than tensors can be declared."""
        position = names.index(name)
        if position >= count:
            message = f"feedback names {name!r}, but the model has only {count} such tensors: {', '.join(names[:count])}"
            raise recipe_error(message, "Declare one name for every tensor in args and for every tensor that forward returns.")
        return position

    def probes(self, single: Sequence[Probe]) -> tuple[list[Probe], list[Finding]]:
        """The steps from the example, from another size, and with all steps but the last in one call.

        Args:
            single: the probes of a single call.

        Returns:
            The probes, each after the one that it follows, and a note for each sequence that the model rejects.

        Raises:
            PrepareError: the model rejects the sequence from the example; the finding names the step.
        """
        made = self._after(self._example)
        notes = []
        resized = next((each for each in single if _shapes(each) != _shapes(self._example)), None)
        try:
            made += self._after(resized) if resized is not None else []
        except PrepareError as error:
            notes.append(_not_run(f"from {resized.name!r}" if resized else "", error))
        try:
            made += self._prefill()
        except PrepareError as error:
            notes.append(_not_run("in one call", error))
        return made, notes

    def following(self, inputs: Sequence[torch.Tensor]) -> Mapping[int, torch.Tensor]:
        """Those of the ``inputs`` of a first step that ``step_inputs`` computes from the others."""
        return self._given(0, inputs)

    def _after(self, start: Probe) -> list[Probe]:
        """The steps that follow ``start``."""
        prefix = "" if start is self._example else f"{start.name},"
        names = [start.name, *(f"{prefix}step={number}" for number in range(1, self._steps))]
        return self._probes(names, start.inputs, range(1, self._steps), like=start.inputs)[1:]

    def _prefill(self) -> list[Probe]:
        """All steps but the last in one call, and then the last; empty if the new inputs have no axis for it.

        This is the dynamic axis of new inputs that inputs which are fed back do not have. The others have the batch axis.
        """
        start, last = self._example.inputs, self._steps - 1
        of_fed = {name for place in self._axes.inputs.places if place.index in self._fed for name in place.size.names}
        following = self._given(0, start)
        places = {
            place.index: place
            for place in self._axes.inputs.places
            if place.index not in self._fed and place.index not in following
            if place.size.is_name and place.size.text not in of_fed
        }
        labels = {place.size.text for place in places.values()}
        if last < 2 or len(labels) != 1:
            return []
        new = [start, *(self._drawn(start, number) for number in range(1, last))]
        joined = [
            torch.cat([inputs[index] for inputs in new], places[index].axis) if index in places else tensor
            for index, tensor in enumerate(start)
        ]
        joined = self._fitted(joined, places, labels, kept=following)
        joined = [self._given(0, joined).get(index, tensor) for index, tensor in enumerate(joined)]
        return self._probes([PREFILL, f"{PREFILL},step={last}"], joined, [last], like=start)

    def _probes(
        self, names: Sequence[str], start: Sequence[torch.Tensor], numbers: Sequence[int], *, like: Sequence[torch.Tensor]
    ) -> list[Probe]:
        """A call with ``start`` and the steps ``numbers`` after it, whose new inputs are like those of ``like``."""
        call = self._copies.running()
        taken: list[Outputs] = [tuple(start)]
        own: list[Outputs] = []
        for number in (0, *numbers):
            if own:
                taken.append(self._inputs(number, own[-1], like))
            try:
                self._copies.try_on_cpu(taken[-1])
                own.append(run(with_inputs(call, taken[-1])))
            except PrepareError as error:
                raise recipe_error(f"in step {number}, {error.finding.message}", _STEP_REMEDY) from None
            if len(own[-1]) != len(own[0]):
                message = f"the model returns {len(own[0])} tensors in step 0 and {len(own[-1])} in step {number}"
                raise recipe_error(message, "Return the same tensors in every step.")
        references = self._references(taken, own)
        return [
            Probe(
                name=name,
                inputs=inputs,
                reference=reference,
                refinements=refinements,
                follows=names[place - 1] if place else None,
                fed=self._fed if place else {},
            )
            for place, (name, inputs, (reference, refinements)) in enumerate(zip(names, taken, references, strict=True))
        ]

    # --- the inputs of a step

    def _inputs(self, number: int, outputs: Outputs, like: Sequence[torch.Tensor]) -> Outputs:
        """The inputs of a step that follows one with ``outputs``; new ones are like those of ``like``."""
        known = list(like)
        for index, output in self._fed.items():
            what = f"in step {number}, feedback feeds output {self._recipe.output_names[output]!r}"
            self._check_fit(index, outputs[output], what, "return it from forward")
            known[index] = outputs[output]
        of_fed = {name for place in self._axes.inputs.places if place.index in self._fed for name in place.size.names}
        given = self._given(number, known)
        new = self._drawn(self._fitted(known, self._fed, of_fed), number)
        return tuple(
            given[index] if index in given else tensor if index in self._fed else new[index]
            for index, tensor in enumerate(known)
        )

    def _fitted(
        self,
        inputs: Sequence[torch.Tensor],
        leading: Collection[int],
        changed: Collection[str],
        kept: Collection[int] = (),
    ) -> list[torch.Tensor]:
        """The inputs, of which those that are not ``leading`` get the sizes that follow from those that are.

        Args:
            leading: positions of inputs.
            changed: the variables of their axes that have other sizes in other inputs.
            kept: positions of other inputs that keep their sizes.
        """
        axes = self._axes.inputs
        fitted = axes.fitted(inputs, {**axes.sizes_in(inputs), **axes.sizes_in(inputs, leading)}, changed) or inputs
        return [tensor if index in leading or index in kept else fitted[index] for index, tensor in enumerate(inputs)]

    def _drawn(self, like: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
        """New inputs for a step."""
        seed = _FIRST_SEED + number
        declared = self._domains.drawn(like, seed, only_declared=True)
        return [declared.get(index, drawn_like(tensor, seed=seed)) for index, tensor in enumerate(like)]

    def _given(self, number: int, known: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """The inputs that the recipe's ``step_inputs`` returns for a step."""
        function = self._recipe.step_inputs
        if function is None:
            return {}
        named = dict(zip(self._names, (tensor.clone() for tensor in known), strict=False))
        try:
            with seeded(self._recipe.seed + number):
                given: Any = function(number, named)
        except Exception as error:  # whatever it raises is reported
            raise recipe_error(f"step_inputs raised {describe_exception(error)} for step {number}", _GIVEN_REMEDY) from None
        if not isinstance(given, Mapping):
            message = f"step_inputs returned {type(given).__name__} for step {number} instead of a dictionary"
            raise recipe_error(message, _GIVEN_REMEDY)
        by_position = {}
        for name, tensor in given.items():
            if name not in named or not isinstance(tensor, torch.Tensor):
                what = f"is not an input{did_you_mean(name, named)}" if name not in named else f"is not a tensor but {tensor!r}"
                raise recipe_error(f"step_inputs returned {name!r} for step {number}, which {what}", _GIVEN_REMEDY)
            index = self._names.index(name)
            if index in self._fed:
                message = f"step_inputs returned {name!r} for step {number}, which is fed back"
                raise recipe_error(message, "Leave it out of feedback or of what step_inputs returns.")
            self._check_fit(index, tensor, f"in step {number}, step_inputs gives a tensor", "return it from step_inputs")
            by_position[index] = tensor.detach().cpu()
        return by_position

    def _axes_of(self, index: int) -> Mapping[int, str]:
        return self._axes.labels.get(self._names[index], {}) if index < len(self._names) else {}

    def _check_fit(self, index: int, tensor: torch.Tensor, what: str, remedy: str) -> None:
        """Check that an input can take ``tensor``: data type, rank, and sizes of axes that are not dynamic.

        Args:
            what: where the tensor comes from, the beginning of the message.
            remedy: what returns it, the beginning of the remedy.

        Raises:
            PrepareError: it cannot.
        """
        name, like = self._names[index], self._example.inputs[index]
        fixed = [axis for axis in range(like.dim()) if axis not in self._axes_of(index)]
        if tensor.dtype != like.dtype:
            differs, remedy = "their data types differ", f"{remedy.capitalize()} as {dtype_name(like)}."
        elif tensor.dim() != like.dim():
            differs, remedy = "their ranks differ", f"{remedy.capitalize()} with rank {like.dim()}."
        elif axes := [axis for axis in fixed if tensor.shape[axis] != like.shape[axis]]:
            axis = axes[0]
            differs = f"the sizes of axis {axis} differ, and it is not declared dynamic"
            remedy = (
                f'If it grows with the steps, declare it: dynamic_axes={{{name!r}: {{{axis}: "NAME"}}}}. '
                f"If not, {remedy} with size {like.shape[axis]}."
            )
        else:
            return
        raise recipe_error(f"{what} ({_typed(tensor)}) to input {name!r} ({_typed(like)}), but {differs}", remedy)

    # --- references

    def _references(
        self, taken: Sequence[Outputs], own: Sequence[Outputs]
    ) -> Iterator[tuple[Reference, tuple[Callable[[], Reference], ...]]]:
        """The reference of each step, and its refinements.

        Args:
            taken: the inputs of each step in the model's own type.
            own: the outputs of each step in the model's own type.
        """
        new = [
            tensor.to(self._devices[index])
            for step, inputs in enumerate(taken)
            for index, tensor in enumerate(inputs)
            if not step or index not in self._fed
        ]

        def unrolled(call: Call) -> Call:
            return Call(model=_Unrolled(call, self._fed, len(taken)), args=tuple(new), kwargs={})

        copies = Copies(unrolled(self._copies.pristine), lambda: unrolled(self._copies.fresh()), eps=self._copies.eps)
        whole = make_reference(copies, tuple(itertools.chain.from_iterable(own)))
        as_runtimes = functools.cache(functools.partial(with_runtime_rounding, copies, whole))
        count = len(own[0])
        for first in range(0, len(whole.own), count):
            of_step = slice(first, first + count)
            yield _part(whole, of_step), (functools.partial(lambda of_step: _part(as_runtimes(), of_step), of_step),)


def _part(whole: Reference, outputs: slice) -> Reference:
    """The reference of some of the outputs."""
    return dataclasses.replace(
        whole,
        own=whole.own[outputs],
        exact=whole.exact[outputs],
        noise=whole.noise[outputs],
        channels=whole.channels[outputs],
        stable=whole.stable[outputs],
    )


def _shapes(probe: Probe) -> list[torch.Size]:
    return [tensor.shape for tensor in probe.inputs]


def _not_run(how: str, error: PrepareError) -> Finding:
    message = f"the steps were not compared {how}: {error.finding.message}"
    remedy = "If the model should accept that, let step_inputs take all sizes from the inputs that it is called with."
    return finding("vacuous", message, remedy=remedy, severity=Severity.NOTE)


_STEP_REMEDY = (
    "Declare fewer steps, return inputs that depend on the step, such as a growing mask or a position, from step_inputs, or "
    "choose an example from whose values the inputs of later steps can be drawn."
)
_GIVEN_REMEDY = 'Return a dictionary of inputs: step_inputs=lambda step, inputs: {"position": inputs["position"] + step}.'


def _typed(tensor: torch.Tensor) -> str:
    """``float32[2, 4]``."""
    return f"{dtype_name(tensor)}{list(tensor.shape)}"


class _Unrolled(torch.nn.Module):
    """All steps of a sequence as one model, so that its reference is made like that of any other model.

    It takes all inputs of step 0 and then those of the other steps that are not fed back, and returns the outputs of all
    steps in one list.
    """

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
            made = call.model(*call.args, **call.kwargs)
            last = tensors_in(made)
            outputs += last
        return outputs
