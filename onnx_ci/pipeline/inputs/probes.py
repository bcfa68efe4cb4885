"""Probes: the inputs on which a file and its model are compared. A model makes them, and rejects those that are not legal."""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch

from onnx_ci.pipeline.model.call import PrepareError
from onnx_ci.pipeline.model.copies import Copies
from onnx_ci.pipeline.model.running import run
from onnx_ci.pipeline.model.tensors import Outputs, is_float8
from onnx_ci.pipeline.reference.random_samples import Sample, random_reference, runs_needed, sample_of
from onnx_ci.pipeline.reference.reference import Reference, make_reference, proportional_reference, with_perturbation
from onnx_ci.pipeline.reference.runtime_rounding import with_runtime_rounding
from onnx_ci.results.records import InputDomain

Inputs = Sequence[torch.Tensor]
"""The tensors among the arguments of a call, flattened in the order of the graph's inputs."""

Following = Callable[[Inputs], Mapping[int, torch.Tensor]]
"""From inputs to those among them that a recipe computes from the others, by position, such as the mask of a cache."""

EXAMPLE = "example"
"""The name of the recipe's own input among the probes."""


class InputStatus(enum.Enum):
    """Whether a model may ever get an input."""

    LEGAL = enum.auto()
    """It may, as far as is known: what is wrong is an error."""
    EXTREME = enum.auto()
    """Numbers far larger than the example's: other values are a warning, NaN or infinity is an error."""
    DEGENERATE = enum.auto()
    """All zeros, a fully masked row, or a size at which all is NaN: what a model computes is often an accident: a warning."""


EXTREME_TOLERANCE = 64.0
"""How many times the limit a file may be off by on extreme inputs, where runtimes' approximations of ``exp`` show."""
LONG_TOLERANCE = 8.0
"""The same on long inputs, where positions multiply rounding errors."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One input on which the file and the model are compared."""

    name: str
    inputs: Outputs
    """On the CPU."""
    reference: Reference
    special: bool = False
    """Whether the values are edge cases, for which a mismatch of NaN or infinity is a note."""
    is_given: bool = False
    """Whether the recipe or the user gives the values: a file has to be right on them, whatever it was calibrated for."""
    legality: InputStatus = InputStatus.LEGAL
    """Whether the model may ever get the values."""
    is_long: bool = False
    """Whether an axis is far longer than in the example, to see whether code computes otherwise there."""
    refinements: tuple[Callable[[], Reference], ...] = ()
    """Functions that compute references with wider noise, called one after another as long as the file fails. Where the
    reference is a ``proportion``, the first measures it in float64."""
    follows: str | None = None
    """For a step of a sequence, the name of the probe of the step before."""
    fed: Mapping[int, int] = field(default_factory=dict)
    """For a step of a sequence, which inputs are outputs of the step before: positions of inputs to positions of outputs."""
    samples: tuple[tuple[Sample, ...], ...] = ()
    """For a random model, the outputs of several runs."""

    @property
    def has_ties(self) -> bool:
        """Whether values that usually differ are equal, so that the order of their indices is undefined."""
        return self.special and any(map(is_float, self.inputs))

    def with_eps(self, eps: float) -> Self:
        """The probe of a random model for a file that computes in a precision with this machine epsilon."""
        return replace(self, reference=replace(self.reference, eps=max(eps, self.reference.eps)))

    def with_noise_of_at_least(self, example: Probe) -> Self:
        """The same probe, whose noise is at least that of the example.

        Where all outputs vanish or saturate, PyTorch hardly rounds, and even a correct runtime would seem far off.
        """

        def refined(refine: Callable[[], Reference]) -> Reference:
            return refine().with_noise_of_at_least(example.reference)

        refinements = tuple(functools.partial(refined, refine) for refine in self.refinements)
        return replace(self, reference=self.reference.with_noise_of_at_least(example.reference), refinements=refinements)

    def fed_with(self, outputs: Inputs) -> Self:
        """The step as a file runs it: with the file's own ``outputs`` of the step before as inputs."""
        inputs = (outputs[self.fed[index]] if index in self.fed else tensor for index, tensor in enumerate(self.inputs))
        return replace(self, inputs=tuple(inputs))


@dataclass(frozen=True, kw_only=True)
class Probes:
    """All inputs on which a file and its model are compared."""

    all: tuple[Probe, ...]
    """The example first. A probe may try several kinds of special values in rows of their own: :attr:`one_kind_per_probe`."""
    one_kind_probes: Callable[[], tuple[Probe, ...]] | None
    """Makes the probes of :attr:`one_kind_per_probe`; ``None`` if these are such probes."""
    cpu_outputs: Outputs | None
    """For a GPU, the model's outputs for the example on the CPU in its own data type, if it can run there."""
    inputs: tuple[InputDomain, ...]
    """What the inputs are, and which values they are given."""
    left_out: tuple[str, ...] = ()
    """The names of the special values that are not tried, because the example is large."""

    @property
    def example(self) -> Probe:
        """The recipe's own input."""
        return self.all[0]

    @functools.cached_property
    def one_kind_per_probe(self) -> Probes:
        """The same with a probe for each kind of special value. A file that fails on a probe of several is judged on these."""
        return self if self.one_kind_probes is None else replace(self, all=self.one_kind_probes(), one_kind_probes=None)


class Prober(Protocol):
    """Makes probes of inputs."""

    example: Probe

    def probe(self, name: str, inputs: Inputs, *, special: bool = False, quick: bool = False) -> Probe | None:
        """The probe, or ``None`` if the inputs are rejected or equal the example.

        If it is ``quick``, noise in proportion to the example's is enough, unless the file fails by it.
        """


class ModelProber:
    """Runs copies of a model on inputs and makes probes of those that it accepts."""

    def __init__(self, copies: Copies, example: Probe) -> None:
        self._copies = copies
        self.example = example
        self.rejections: dict[str, str] = {}
        """What the model raised on inputs that it rejects, by the name of the probe."""

    def probe(self, name: str, inputs: Inputs, *, special: bool = False, quick: bool = False) -> Probe | None:
        """The probe, or ``None`` if the model rejects the inputs or they equal the example."""
        if all(map(is_same, inputs, self.example.inputs)):
            return None
        try:
            return self.required(name, inputs, special=special, quick=quick)
        except PrepareError as error:
            self.rejections[name] = str(error)
            return None

    def required(self, name: str, inputs: Inputs, *, special: bool = False, quick: bool = False) -> Probe:
        """The probe; a :class:`PrepareError` says that the model rejects the inputs."""
        self._copies.try_on_cpu(inputs)
        outputs = run(self._copies.running(inputs))
        proportion = proportional_reference(outputs, self.example.reference) if quick else None

        precise = functools.cache(functools.partial(make_reference, self._copies, outputs, inputs))

        @functools.cache
        def as_runtimes() -> Reference:
            like = precise()  # unlike the example, an input that is only tried may prove nothing
            return with_runtime_rounding(self._copies, like.undecided or like, inputs)

        perturbed = functools.cache(lambda: with_perturbation(self._copies, as_runtimes(), inputs))
        # A model may be ill-conditioned on special values, which it never gets.
        refinements = (*([precise] if proportion else ()), as_runtimes, *([perturbed] if special else ()))
        reference = proportion or precise()
        return Probe(name=name, inputs=tuple(inputs), reference=reference, special=special, refinements=refinements)


class RandomProber(ModelProber):
    """Runs a random model several times on each input, each time under another seed."""

    def __init__(self, copies: Copies, example: Probe) -> None:
        super().__init__(copies, example)
        self.example = replace(example, samples=self._samples(example.inputs, example.reference.own))

    def required(self, name: str, inputs: Inputs, *, special: bool = False, quick: bool = False) -> Probe:
        """The probe, as :meth:`ModelProber.required` makes it, except that its reference has no exact values."""
        self._copies.try_on_cpu(inputs)
        outputs = run(self._copies.running(inputs))
        return Probe(
            name=name,
            inputs=tuple(inputs),
            reference=random_reference(self._copies, outputs),
            special=special,
            samples=self._samples(inputs, outputs),
        )

    def _samples(self, inputs: Inputs, first: Outputs) -> tuple[tuple[Sample, ...], ...]:
        later = (run(self._copies.running(inputs), seed=seed) for seed in range(1, runs_needed(first)))
        return tuple(tuple(map(sample_of, outputs)) for outputs in itertools.chain([first], later))


def first_accepted(prober: Prober, name: str, values: Iterable[Inputs], *, quick: bool) -> Probe | None:
    """The probe of the first of the ``values`` that the model accepts."""
    return next(filter(None, (prober.probe(name, inputs, quick=quick) for inputs in values)), None)


def is_same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two inputs are equal."""
    return left.shape == right.shape and bool((left == right).all())


def is_float(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a floating type that torch can compute with."""
    return tensor.is_floating_point() and not is_float8(tensor)


def is_integer(tensor: torch.Tensor) -> bool:
    """Whether a tensor has an integer type; booleans are none."""
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool
