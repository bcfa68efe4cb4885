"""The inputs on which file and model are compared: the recipe's example, and others that reveal a wrong export.

Inputs that the eager model rejects are not used. Probes are drawn with fixed seeds.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch

from onnx_ci.stages.inputs.domains import UNKNOWN, InputDomains
from onnx_ci.stages.inputs.special_values import Legality, Variation, is_float, is_integer
from onnx_ci.stages.model.copies import Copies
from onnx_ci.stages.model.live_model import Outputs, PrepareError, is_finite, run
from onnx_ci.stages.reference.random_samples import Sample, runs_needed, sample_of
from onnx_ci.stages.reference.reference import (
    Reference,
    make_reference,
    proportional_reference,
    random_reference,
    with_perturbation,
)
from onnx_ci.stages.reference.runtime_rounding import with_runtime_rounding

EXAMPLE = "example"
"""The name of the recipe's own input among the probes."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One input on which the file and the model are compared."""

    name: str
    inputs: Outputs
    """The tensors among the arguments, flattened in the order of the graph's inputs, on the CPU."""
    reference: Reference
    special: bool = False
    """Whether the values are edge cases, for which a mismatch of NaN or infinity is a note."""
    legality: Legality = Legality.LEGAL
    """Whether the model may ever get the values."""
    has_ties: bool = False
    """Whether values that usually differ are equal, so that the order of their indices is undefined."""
    refinements: tuple[Callable[[], Reference], ...] = ()
    """Functions that compute other references, each used if the file fails by those before it. Where the reference is a
    ``proportion``, the first measures it in float64."""
    follows: str | None = None
    """For a step of a sequence, the name of the probe of the step before."""
    fed: Mapping[int, int] = field(default_factory=dict)
    """For a step of a sequence, which inputs are outputs of the step before: positions of inputs to positions of outputs."""
    samples: tuple[tuple[Sample, ...], ...] = ()
    """For a random model, the outputs of several runs."""

    def with_eps(self, eps: float) -> Self:
        """The probe of a random model for a file that computes in a precision with this machine epsilon."""
        return replace(self, reference=replace(self.reference, eps=max(eps, self.reference.eps)))

    def with_noise_of(self, other: Probe) -> Self:
        """The same, except that the noise is at least that of ``other``.

        Where all outputs vanish or saturate, PyTorch hardly rounds, and even a correct runtime would seem far off.
        """

        def floored(refine: Callable[[], Reference]) -> Reference:
            return refine().with_noise_of_at_least(other.reference)

        refinements = tuple(functools.partial(floored, refine) for refine in self.refinements)
        return replace(self, reference=self.reference.with_noise_of_at_least(other.reference), refinements=refinements)

    def fed_with(self, outputs: Sequence[torch.Tensor]) -> Self:
        """The step as a file runs it: with the file's own ``outputs`` of the step before as inputs."""
        inputs = (outputs[self.fed[index]] if index in self.fed else tensor for index, tensor in enumerate(self.inputs))
        return replace(self, inputs=tuple(inputs))


class Prober(Protocol):
    """Makes probes of inputs."""

    example: Probe

    def probe(self, name: str, inputs: Sequence[torch.Tensor], *, special: bool = False, quick: bool = False) -> Probe | None:
        """The probe, or ``None`` if the inputs are rejected or equal the example.

        Args:
            special: see :attr:`Probe.special`.
            quick: whether noise in proportion to the example's is enough, unless the file fails by it.
        """


class ModelProber:
    """Runs copies of a model on inputs and makes probes of those that it accepts."""

    def __init__(self, copies: Copies, example: Probe) -> None:
        self._copies = copies
        self.example = example

    def probe(self, name: str, inputs: Sequence[torch.Tensor], *, special: bool = False, quick: bool = False) -> Probe | None:
        """The probe, or ``None`` if the model rejects the inputs or they equal the example."""
        if all(map(is_same, inputs, self.example.inputs)):
            return None
        try:
            return self.required(name, inputs, special=special, quick=quick)
        except PrepareError:
            return None

    def required(self, name: str, inputs: Sequence[torch.Tensor], *, special: bool = False, quick: bool = False) -> Probe:
        """The probe; the arguments are those of :meth:`probe`.

        Raises:
            PrepareError: the model rejects the inputs.
        """
        self._copies.try_on_cpu(inputs)
        own = run(self._copies.running(inputs))
        proportion = proportional_reference(own, self.example.reference) if quick else None

        @functools.cache
        def precise() -> Reference:
            return make_reference(self._copies, own, inputs)

        @functools.cache
        def as_runtimes() -> Reference:
            return with_runtime_rounding(self._copies, precise(), inputs)

        def perturbed() -> Reference:
            return with_perturbation(self._copies, as_runtimes(), inputs)

        return Probe(
            name=name,
            inputs=tuple(inputs),
            reference=proportion or precise(),
            special=special,
            has_ties=special and any(map(is_float, inputs)),
            # A model may be ill-conditioned on values that it never gets.
            refinements=(*([precise] if proportion else []), as_runtimes, *([functools.cache(perturbed)] if special else [])),
        )


class RandomProber(ModelProber):
    """Runs a random model several times on each input, each time under another seed."""

    def __init__(self, copies: Copies, example: Probe) -> None:
        super().__init__(copies, example)
        self.example = replace(example, samples=self._samples(example.inputs, example.reference.own))

    def required(self, name: str, inputs: Sequence[torch.Tensor], *, special: bool = False, quick: bool = False) -> Probe:
        """The probe, as :meth:`ModelProber.required` makes it, except that its reference has no exact values."""
        self._copies.try_on_cpu(inputs)
        own = run(self._copies.running(inputs))
        return Probe(
            name=name,
            inputs=tuple(inputs),
            reference=random_reference(self._copies, own),
            special=special,
            has_ties=special and any(map(is_float, inputs)),
            samples=self._samples(inputs, own),
        )

    def _samples(self, inputs: Sequence[torch.Tensor], first: Outputs) -> tuple[tuple[Sample, ...], ...]:
        """The outputs of enough runs, of which ``first`` are those of the first one."""
        others = (run(self._copies.running(inputs), seed=seed) for seed in range(1, runs_needed(first)))
        return tuple(tuple(map(sample_of, outputs)) for outputs in itertools.chain([first], others))


def is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two inputs are equal."""
    return one.shape == other.shape and bool((one == other).all())


# --- values -----------------------------------------------------------------------------------------------------------


def fresh_probes(prober: Prober, domains: InputDomains = UNKNOWN) -> list[Probe]:
    """Random inputs like the example: all inputs at once, or one at a time if the model rejects that."""
    inputs = prober.example.inputs
    for fresh in _attempts(inputs, domains):
        if probe := prober.probe("fresh", fresh):
            return [probe]
    probes = []
    for index in range(len(inputs)):
        for fresh in _attempts(inputs, domains):
            changed = [fresh[index] if i == index else tensor for i, tensor in enumerate(inputs)]
            if probe := prober.probe(f"fresh input {index}", changed):
                probes.append(probe)
                break
    return probes


def _attempts(like: Sequence[torch.Tensor], domains: InputDomains) -> Iterator[list[torch.Tensor]]:
    """New values of all inputs, in the order of trying: an inferred domain may be too large."""
    has_inferred = any(not domains.is_declared(index) for index, _ in domains.items())
    for only_declared in (False, True) if has_inferred else (False,):
        for attempt in range(len(_STEPS)):
            yield random_inputs(like, domains, attempt, only_declared=only_declared)


def random_inputs(
    like: Sequence[torch.Tensor], domains: InputDomains, attempt: int = 0, *, only_declared: bool = False
) -> list[torch.Tensor]:
    """New values of all inputs in the shapes of ``like``: of their domains, or like theirs."""
    known = domains.drawn(like, seed=1 + attempt, only_declared=only_declared)
    return [known.get(index, random_like(tensor, attempt)) for index, tensor in enumerate(like)]


# How a constant integer is changed, in the order of trying: a count or size may only accept neighbours or multiples.
_STEPS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda tensor: tensor + 1,
    lambda tensor: tensor - 1,
    lambda tensor: tensor * 2,
    lambda tensor: tensor * 3,
    lambda tensor: tensor // 2,
)


def random_like(tensor: torch.Tensor, attempt: int = 0) -> torch.Tensor:
    """A tensor of the same shape and type with other values: :func:`drawn_like`, or step ``attempt`` of a constant integer."""
    if is_integer(tensor) and tensor.numel() and bool((tensor == tensor.flatten()[0]).all()):
        return _STEPS[attempt](tensor)
    return drawn_like(tensor, seed=1 + attempt)


def drawn_like(tensor: torch.Tensor, *, seed: int) -> torch.Tensor:
    """A tensor of the same shape and type with values drawn like those of ``tensor``.

    Floats are drawn near those of ``tensor``, with the same signs; a tensor with infinities is a mask and returned
    unchanged. Integers are drawn from the range of ``tensor``. Masks, boolean or of zeros and ones, are shuffled along their
    last axis, so that no row becomes empty or full.
    """
    generator = torch.Generator().manual_seed(seed)
    if not tensor.numel() or tensor.is_complex():
        return tensor
    if tensor.is_floating_point():
        if not bool(is_finite(tensor).all()):
            return tensor
        picked = tensor.flatten()[torch.randint(0, tensor.numel(), tensor.shape, generator=generator)]
        factor = torch.exp(0.25 * torch.randn(tensor.shape, generator=generator, dtype=torch.float32))
        wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
        return (picked.to(wide) * factor).to(tensor.dtype)
    low, high = int(tensor.min()), int(tensor.max())
    if tensor.dtype == torch.bool or (low, high) == (0, 1):
        return tensor[..., torch.randperm(tensor.shape[-1], generator=generator)] if tensor.dim() else tensor
    return torch.randint(low, high + 1, tensor.shape, generator=generator).to(tensor.dtype)


def special_probes(prober: Prober, variations: Iterable[Variation]) -> list[Probe]:
    """Probes of inputs with special values."""
    probes = []
    for each in variations:
        if probe := prober.probe(each.name, each.inputs, special=True, quick=True):
            is_legal = each.legality is Legality.LEGAL
            probes.append(probe if is_legal else replace(probe.with_noise_of(prober.example), legality=each.legality))
    return probes
