"""The inputs on which file and model are compared: the recipe's example, and others that reveal a wrong export.

Inputs that the eager model rejects are not used. Probes are drawn with fixed seeds.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch

from onnx_ci.stages.prepare.copies import Copies
from onnx_ci.stages.prepare.domains import UNDECLARED, InputDomains
from onnx_ci.stages.prepare.live_model import Outputs, PrepareError, is_finite, is_float8, run
from onnx_ci.stages.prepare.random_samples import Sample, runs_needed, sample_of
from onnx_ci.stages.prepare.reference import Reference, make_reference, proportional_reference, random_reference
from onnx_ci.stages.prepare.runtime_rounding import with_runtime_rounding

EXAMPLE = "example"
"""The name of the recipe's own input among the probes."""

LARGE = 10.0
"""The factor of the example's floating values in the probe of large values."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One input on which the file and the model are compared."""

    name: str
    inputs: Outputs
    """The tensors among the arguments, flattened in the order of the graph's inputs, on the CPU."""
    reference: Reference
    special: bool = False
    """Whether the values are edge cases, for which a mismatch of NaN or infinity is a note."""
    is_edge: bool = False
    """Whether the values are degenerate, so that the model may never get them, and a mismatch is a warning."""
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

        return Probe(
            name=name,
            inputs=tuple(inputs),
            reference=proportion or precise(),
            special=special,
            has_ties=special and any(map(is_float, inputs)),
            refinements=(precise, as_runtimes) if proportion else (as_runtimes,),
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


def fresh_probes(prober: Prober, domains: InputDomains = UNDECLARED) -> list[Probe]:
    """Random inputs like the example: all inputs at once, or one at a time if the model rejects that."""
    inputs = prober.example.inputs
    for attempt in range(len(_STEPS)):
        if probe := prober.probe("fresh", random_inputs(inputs, domains, attempt)):
            return [probe]
    probes = []
    for index in range(len(inputs)):
        for attempt in range(len(_STEPS)):
            fresh = random_inputs(inputs, domains, attempt)
            changed = [fresh[index] if i == index else tensor for i, tensor in enumerate(inputs)]
            if probe := prober.probe(f"fresh input {index}", changed):
                probes.append(probe)
                break
    return probes


def random_inputs(like: Sequence[torch.Tensor], domains: InputDomains, attempt: int = 0) -> list[torch.Tensor]:
    """New values of all inputs in the shapes of ``like``: of their declared domains, or like theirs."""
    declared = domains.drawn(like, seed=1 + attempt)
    return [declared.get(index, random_like(tensor, attempt)) for index, tensor in enumerate(like)]


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
    if _is_integer(tensor) and tensor.numel() and bool((tensor == tensor.flatten()[0]).all()):
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
        factor = torch.exp(0.25 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
        return (picked.double() * factor).to(tensor.dtype)
    low, high = int(tensor.min()), int(tensor.max())
    if tensor.dtype == torch.bool or (low, high) == (0, 1):
        return tensor[..., torch.randperm(tensor.shape[-1], generator=generator)] if tensor.dim() else tensor
    return torch.randint(low, high + 1, tensor.shape, generator=generator).to(tensor.dtype)


def special_probes(prober: Prober, domains: InputDomains = UNDECLARED) -> list[Probe]:
    """Inputs chosen by data type: zero, negated, large and equal floats; repeated and negative integers; full and empty masks.

    Declared inputs stay within their domains, and also get the values at its borders.
    """
    probes, example = [], prober.example.inputs
    for name, change in _SPECIAL:
        changed = domains.legal([change(tensor) for tensor in example], example)
        if probe := prober.probe(name, changed, special=True, quick=True):
            may_be_illegal = any(changed[i] is not tensor and i not in domains for i, tensor in enumerate(example))
            probes.append(replace(probe, is_edge=name in _EDGES and may_be_illegal))
    if probe := prober.probe("floats equal", domains.legal(_equal_floats(example), example), special=True, quick=True):
        probes.append(probe)
    for name, changed in domains.edges(example):
        if probe := prober.probe(name, changed, special=True, quick=True):
            probes.append(probe)
    return probes


def _equal_floats(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The inputs, with floats of one shape and type equal to the first of them, as for a distance that is zero."""
    first: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}
    return [first.setdefault((each.shape, each.dtype), each) if is_float(each) else each for each in inputs]


def _only(
    kind: Callable[[torch.Tensor], bool], change: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: change(tensor) if kind(tensor) and tensor.numel() else tensor


def is_float(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a floating type that torch can compute with."""
    return tensor.is_floating_point() and not is_float8(tensor)


def _is_integer(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool


def _is_mask(tensor: torch.Tensor) -> bool:
    """Whether a tensor is boolean, or holds zeros and ones as integers."""
    if tensor.dtype == torch.bool:
        return True
    return _is_integer(tensor) and tensor.numel() > 1 and {int(tensor.min()), int(tensor.max())} <= {0, 1}


def _first_row(value: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.clone()
        changed[:1] = value
        return changed

    return _only(lambda tensor: _is_mask(tensor) and tensor.dim() > 1, change)


_SPECIAL: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    ("floats zero", _only(is_float, torch.zeros_like)),
    ("floats negated", _only(is_float, torch.neg)),
    ("floats large", _only(is_float, lambda tensor: tensor * LARGE)),
    ("integers repeated", _only(_is_integer, lambda tensor: torch.full_like(tensor, int(tensor.flatten()[0])))),
    ("integers negative", _only(lambda tensor: _is_integer(tensor) and tensor.dtype.is_signed, lambda tensor: -1 - tensor)),
    ("masks full", _only(_is_mask, torch.ones_like)),
    ("masks empty", _only(_is_mask, torch.zeros_like)),
    ("first row true", _first_row(True)),
    ("first row false", _first_row(False)),
)
_EDGES = frozenset({"floats zero", "masks empty", "first row false"})
