"""Special values of inputs: zeros, both signs, ties, constants of the model, extreme numbers, full and empty masks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from onnx_ci.collection.domains import Mask
from onnx_ci.pipeline.domains.input_domains import InputDomains
from onnx_ci.pipeline.domains.uses import InputUse
from onnx_ci.pipeline.inputs.probes import Inputs, InputStatus, Probe, Prober, is_float, is_integer
from onnx_ci.pipeline.model.module import code_of, unlike_others
from onnx_ci.pipeline.model.tensors import is_finite

LARGE = 10.0
"""The factor of the example's floating values in the probe of large values."""
SMALL = 1e-4
"""The factor in the probe of small values. Beside these, a constant such as ``1e-8`` counts, added before a square root."""
MAGNITUDES = (20.0, 100.0)
"""Where functions saturate or overflow: ``exp(-20)`` vanishes beside 1 in float32, and ``exp(100)`` is infinite."""


@dataclass(frozen=True, kw_only=True)
class Variation:
    """The example's inputs, with special values instead of some of them."""

    name: str
    inputs: Inputs
    legality: InputStatus = InputStatus.LEGAL
    is_edge: bool = True
    """Whether the values are edge cases: see :attr:`Probe.special`."""
    is_mixed: bool = False
    """Whether the elements have several kinds of values, so that one run shows what others show one by one."""
    is_small: bool = False
    """Whether the values are so small that an operator may round by more: ``exp(x) - 1`` is still a right ``expm1(x)``."""

    @property
    def has_own_noise(self) -> bool:
        """Whether a difference counts in units of the rounding there; otherwise, that is at least the example's."""
        return self.legality is InputStatus.LEGAL and not self.is_small


def special_probes(prober: Prober, special: Iterable[Variation]) -> list[Probe]:
    """Probes of those inputs with special values that the model accepts."""
    probes = []
    for variation in special:
        if probe := prober.probe(variation.name, variation.inputs, special=variation.is_edge, quick=True):
            floored = probe if variation.has_own_noise else probe.with_noise_of_at_least(prober.example)
            probes.append(replace(floored, legality=variation.legality))
    return probes


def variations(
    example: Inputs, domains: InputDomains, constants: Sequence[float] = (), uses: Sequence[InputUse] = ()
) -> Iterator[Variation]:
    """Special values by data type. Inputs stay within their domains, and also get the values at the borders of these.

    Outside of a declared domain, nothing is tried. Outside of an inferred one, a mismatch is only a warning. At the
    ``constants`` of a model, it may behave in another way than beside them.
    """

    def variation(name: str, changed: Inputs, legality: InputStatus = InputStatus.LEGAL, **kind: bool) -> Variation:
        inputs = domains.legal(changed, example)
        is_declared = all(inputs[index] is tensor or domains.is_declared(index) for index, tensor in enumerate(example))
        return Variation(name=name, inputs=inputs, legality=InputStatus.LEGAL if is_declared else legality, **kind)

    for name, legality, change in _CHANGES:
        yield variation(name, [change(tensor) for tensor in example], legality)
    small = [_only(is_float, lambda tensor: tensor * SMALL)(tensor) for tensor in example]
    yield variation("floats small", small, is_small=True)
    for name, inputs in _mixed(example, constants):
        yield variation(name, inputs, is_mixed=True)
    generator = torch.Generator().manual_seed(2000)
    numbers = [sign * magnitude for magnitude in MAGNITUDES for sign in (1, -1)]
    extreme = _changed_floats(example, lambda tensor: _chosen(tensor, [tensor, *numbers], generator))
    yield variation("floats extreme", extreme, InputStatus.EXTREME)
    # Floats of one shape and type equal the first of them, as for a distance that is zero.
    first: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}
    equal = [first.setdefault((each.shape, each.dtype), each) if is_float(each) else each for each in example]
    yield variation("floats equal", equal)
    yield from _masks(example, domains)
    for name, is_edge, inputs in _tested_values(example, uses):
        yield variation(name, inputs, is_edge=is_edge, is_mixed=is_edge)
    for name, inputs in domains.edges(example):
        yield Variation(name=name, inputs=inputs)


def constants_of(model: torch.nn.Module) -> list[float]:
    """Numbers of a model at which it may change its behaviour: thresholds and bounds, smallest first, without repetitions.

    They are attributes of its modules, small buffers, and literals in the ``forward`` of classes that are not PyTorch's.
    """
    constants: set[float] = set()
    for module in model.modules():
        attributes = vars(module)
        values = [each for value in attributes.values() for each in (value if isinstance(value, tuple) else (value,))]
        constants.update(value for value in values if type(value) is float)
        constants.update(value for name in _INTEGER_BOUNDS if type(value := attributes.get(name)) is int)
        for buffer in module.buffers(recurse=False):
            if unlike_others(buffer) is None and is_float(buffer) and buffer.device.type == "cpu" and buffer.numel() <= _FEW:
                constants.update(buffer.flatten().tolist())
        if (function := code_of(module)) is not None:
            literals = [literal for literal in function.__code__.co_consts if type(literal) in (float, int)]
            # The integers 0 and 1 are ties, which are tried anyway.
            constants.update(float(literal) for literal in literals if type(literal) is float or abs(literal) > 1)
    return sorted((constant for constant in constants if abs(constant) <= _FAR), key=abs)[:_FEW]


_INTEGER_BOUNDS = ("threshold", "value", "lambd")
"""Attributes of PyTorch's modules that are bounds, even where they are integers."""
_FEW = 16
_FAR = 1e4


Change = Callable[[torch.Tensor], torch.Tensor]


def _is_signed_integer(tensor: torch.Tensor) -> bool:
    return is_integer(tensor) and tensor.dtype.is_signed


def _only(kind: Callable[[torch.Tensor], bool], change: Change) -> Change:
    return lambda tensor: change(tensor) if kind(tensor) and tensor.numel() else tensor


_CHANGES: tuple[tuple[str, InputStatus, Change], ...] = (
    ("floats zero", InputStatus.DEGENERATE, _only(is_float, torch.zeros_like)),
    ("floats negated", InputStatus.LEGAL, _only(is_float, torch.neg)),
    ("floats large", InputStatus.LEGAL, _only(is_float, lambda tensor: tensor * LARGE)),
    (
        "integers repeated",
        InputStatus.LEGAL,
        _only(is_integer, lambda tensor: torch.full_like(tensor, int(tensor.flatten()[0]))),
    ),
    ("integers negative", InputStatus.LEGAL, _only(_is_signed_integer, lambda tensor: -1 - tensor)),
)


# Each element is chosen at random and independently, so that in inputs with enough elements every pair of choices meets.


def _chosen(tensor: torch.Tensor, choices: Sequence[torch.Tensor | float], generator: torch.Generator) -> torch.Tensor:
    """For each element one of ``choices``, which are numbers or tensors of the same shape."""
    numbers = torch.randint(0, len(choices), tensor.shape, generator=generator)
    values = [choice if isinstance(choice, torch.Tensor) else torch.full_like(tensor, choice) for choice in choices]
    return torch.stack(values).gather(0, numbers[None])[0]


def _changed_floats(inputs: Inputs, change: Change) -> list[torch.Tensor]:
    """The inputs with their floats changed; a tensor with infinities is a mask and kept."""
    return [
        change(tensor) if is_float(tensor) and tensor.numel() and bool(is_finite(tensor).all()) else tensor for tensor in inputs
    ]


def _mixed(example: Inputs, constants: Sequence[float]) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Both signs in each input; among floats, also zeros, ties and constants. Several rounds if few pairs can meet."""
    special = [0.0, *_TIES, *(sign * constant for constant in constants for sign in (1, -1))]
    is_small = max((tensor.numel() for tensor in example), default=0) < _ENOUGH
    for number in range(_ROUNDS if is_small else 1):
        generator = torch.Generator().manual_seed(1000 + number)

        def mixed(tensor: torch.Tensor, generator: torch.Generator = generator) -> torch.Tensor:
            values = torch.tensor(special, dtype=torch.float64).to(tensor.dtype)
            picked = values[torch.randint(0, len(special), tensor.shape, generator=generator)]
            return _chosen(tensor, [tensor, -tensor, picked], generator)

        ending = f" {number + 1}" if number else ""
        yield f"floats mixed{ending}", _changed_floats(example, mixed)
        signed = [_chosen(tensor, [tensor, -tensor], generator) if _is_signed_integer(tensor) else tensor for tensor in example]
        yield f"integers mixed{ending}", signed


_TIES = (0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.5, -2.5)
"""Where rounding, truncation and comparison with common bounds are decided."""
_ENOUGH = 32
_ROUNDS = 3


def _tested_values(example: Inputs, uses: Sequence[InputUse]) -> Iterator[tuple[str, bool, list[torch.Tensor]]]:
    """NaN and infinity in one, and in a quarter, of the elements that a model tests; whether in several of them."""
    generator = torch.Generator().manual_seed(3000)
    for value in dict.fromkeys(value for use in uses for value in use.tested):
        places = [use.tested[value].flatten().nonzero().flatten() if value in use.tested else _NOWHERE for use in uses]
        for label, share in _SHARES:
            one = [place[int(share * (len(place) - 1)) :][:1] for place in places]
            yield f"floats {value} {label}", False, [_with(value, *pair) for pair in zip(example, one, strict=True)]
        some = [place[torch.randint(0, 4, place.shape, generator=generator) == 0] for place in places]
        yield f"floats {value} mixed", True, [_with(value, *pair) for pair in zip(example, some, strict=True)]


_NOWHERE = torch.zeros(0, dtype=torch.int64)
_SHARES = (("first", 0.0), ("between", 0.5), ("last", 1.0))


def _with(value: float, tensor: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return tensor.flatten().index_fill(0, places, value).view(tensor.shape) if places.numel() else tensor


def _masks(example: Inputs, domains: InputDomains) -> Iterator[Variation]:
    """All masks as of padded rows, and with true or false everywhere or in their first row: in their domains, or degenerate."""
    masks = {index for index, domain in domains.items() if isinstance(domain, Mask)}
    padded = [_padded(tensor) if index in masks else tensor for index, tensor in enumerate(example)]
    yield Variation(name="masks of padded rows", inputs=domains.legal(padded, example), is_mixed=True)
    for name, value, is_row in (
        ("masks full", True, False),
        ("masks empty", False, False),
        ("first row true", True, True),
        ("first row false", False, True),
    ):
        changed = [*example]
        for index in masks:
            if example[index].dim() > 1 or not is_row:
                changed[index] = example[index].clone()
                (changed[index][:1] if is_row else changed[index]).fill_(value)
        legal = domains.legal(changed, example)
        if any(not torch.equal(legal[index], example[index]) for index in masks):
            yield Variation(name=name, inputs=legal)
        else:
            degenerate = [legal[index] if domains.is_declared(index) else tensor for index, tensor in enumerate(changed)]
            yield Variation(name=name, inputs=degenerate, legality=InputStatus.DEGENERATE)


def _padded(mask: torch.Tensor) -> torch.Tensor:
    """A mask whose rows begin as before and end with the other value, each second row from its middle on."""
    if not mask.dim() or not mask.numel():
        return mask
    first, length = mask.reshape(-1, mask.shape[-1])[:, :1] != 0, mask.shape[-1]
    padded, last = first.repeat(1, length), (len(first) - 1) % 2
    padded[last::2, (length + 1) // 2 :] = ~first[last::2]
    return padded.to(mask.dtype).view(mask.shape)
