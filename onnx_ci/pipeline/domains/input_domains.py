"""What is known about a recipe's inputs: the domains that it declares, and those that are inferred.

A domain is data, which :mod:`onnx_ci.collection.domains` defines. How its values are drawn, recognized and tried at its borders
is one function each in :mod:`onnx_ci.pipeline.domains.domain_values`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence

import torch

from onnx_ci.collection.axis_sizes import AxisSize, axis_size_in, solve
from onnx_ci.collection.domains import Domain, Drawn, Integers, Lengths
from onnx_ci.errors import did_you_mean
from onnx_ci.pipeline.domains.domain_values import DrawError, Sizes, contains, draw, edges
from onnx_ci.pipeline.domains.inferred_domains import inferred_domains
from onnx_ci.pipeline.domains.uses import InputUse
from onnx_ci.pipeline.model.call import recipe_error
from onnx_ci.pipeline.model.tensors import dtype_name
from onnx_ci.results.records import InputDomain


class InputDomains:
    """The domains of a recipe's inputs: those that it declares, by name, and those that can be inferred.

    ``axes`` has the names of axes, by the input's name and the axis; ``own_names`` are the model's own names for them,
    which are used where the recipe gives none. A domain of an unknown input, or one that excludes the example, is a
    :class:`PrepareError`.
    """

    def __init__(
        self,
        declared: Mapping[str, Domain],
        names: Sequence[str | None],
        axes: Mapping[str, Mapping[int, str]],
        example: Sequence[torch.Tensor],
        own_names: Sequence[str | None] = (),
        uses: Sequence[InputUse] = (),
    ) -> None:
        self._places = {
            f"{name}[{axis}]": (index, axis)
            for index, (name, tensor) in enumerate(zip(names, example, strict=True))
            for axis in range(tensor.dim())
        }
        self._axes: list[tuple[AxisSize, tuple[int, int]]] = []
        for index, name in enumerate(names):
            for axis, label in axes.get(name or "", {}).items():
                self._places.setdefault(label, (index, axis))
                self._axes.append((axis_size_in(name or "", label), (index, axis)))
        self._names = [name or own_name for name, own_name in itertools.zip_longest(names, own_names)]
        self._example = example
        self._inferred = inferred_domains(self._names, example, axes, uses)
        self._domains = {index: inferred.domain for index, inferred in self._inferred.items()}
        for name, domain in declared.items():
            self._declare(name, domain, names)

    def _declare(self, name: str, domain: Domain, names: Sequence[str | None]) -> None:
        if name not in names:
            inputs = [each for each in names if each]
            message = f"inputs names {name!r}, which is not an input{did_you_mean(name, inputs)}"
            raise recipe_error(message, f"The inputs are {', '.join(inputs) or 'without names: declare input_names'}.")
        if isinstance(domain, Lengths) and domain.of not in (sizes := self._sizes(self._example)):
            nearest = did_you_mean(domain.of, sizes)
            message = f"inputs[{name!r}] has the lengths of {domain.of!r}, which is not an axis{nearest}"
            raise recipe_error(message, f"The axes are {', '.join(sizes)}.")
        index = names.index(name)
        self._domains[index] = domain
        self._inferred.pop(index, None)
        if not isinstance(domain, Drawn) and not self.allows(index, self._example):
            values = self._example[index].double()
            ends = f", with values from {values.min():g} to {values.max():g}," if values.numel() else ""
            message = f"the example's {name!r}{ends} is outside of its declared domain {domain}"
            if isinstance(domain, Lengths):
                message += f", of which one is {self._sizes(self._example)[domain.of]}"
            elif isinstance(domain, Integers):
                message += f", which ends before {domain.high}"
            raise recipe_error(message, "Correct the example, or the domain in the recipe's inputs.")

    def __contains__(self, index: object) -> bool:
        return index in self._domains

    def items(self) -> Iterator[tuple[int, Domain]]:
        """The domains by position."""
        yield from self._domains.items()

    def is_declared(self, index: int) -> bool:
        """Whether the recipe declares the domain of an input."""
        return index in self._domains and index not in self._inferred

    def is_drawn(self, index: int) -> bool:
        """Whether random values of an input come from its domain; otherwise they are like the example's."""
        return self._inferred[index].is_drawn if index in self._inferred else index in self._domains

    def described(self) -> tuple[InputDomain, ...]:
        """What the inputs are and which values they can have, for people."""
        return tuple(
            InputDomain(
                name=self._names[index] or str(index),
                dtype=dtype_name(tensor),
                shape=tuple(tensor.shape),
                domain=str(self._domains[index]) if self.is_drawn(index) else None,
                reason=self._inferred[index].reason if index in self._inferred else "declared" if index in self else None,
            )
            for index, tensor in enumerate(self._example)
        )

    def drawn(self, inputs: Sequence[torch.Tensor], seed: int, *, only_declared: bool = False) -> dict[int, torch.Tensor]:
        """New values of the inputs whose domain is known, by position, in the shapes of ``inputs``."""
        sizes = self._sizes(inputs)
        generator = torch.Generator().manual_seed(seed)
        values = {}
        for index, domain in self._domains.items():
            if self.is_declared(index) or (self.is_drawn(index) and not only_declared):
                with self._reporting(index):
                    values[index] = draw(domain, inputs[index], sizes, generator).to(inputs[index].dtype)
        return values

    def allows(self, index: int, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether an input has a value of its domain. What a function could draw is unknown."""
        return contains(self._domains[index], inputs[index], self._sizes(inputs))

    def legal(self, changed: Sequence[torch.Tensor], example: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """``changed``, with the example's values of inputs that would leave their domain."""
        outside = {index for index in self._domains if not self.allows(index, changed)}
        return [example[index] if index in outside else tensor for index, tensor in enumerate(changed)]

    def edges(self, example: Sequence[torch.Tensor]) -> Iterator[tuple[str, list[torch.Tensor]]]:
        """Inputs at the borders of each declared domain, one input at a time, with a name."""
        sizes = self._sizes(example)
        for index, domain in self.items():
            if self.is_declared(index):
                with self._reporting(index):
                    borders = [*edges(domain, example[index], sizes)]
                for label, tensor in borders:
                    changed = tensor.to(example[index].dtype)
                    yield f"{self._names[index]} {label}", [*example[:index], changed, *example[index + 1 :]]

    @contextlib.contextmanager
    def _reporting(self, index: int) -> Iterator[None]:
        """Report an error of the recipe's function with the name of the input that it draws."""
        try:
            yield
        except DrawError as error:
            remedy = "Make the function return a tensor for every size of the dynamic axes: (sizes, generator) -> tensor."
            raise recipe_error(f"the function in inputs[{self._names[index]!r}] {error}", remedy) from None

    def _sizes(self, inputs: Sequence[torch.Tensor]) -> Sizes:
        variables = solve((size, inputs[index].shape[axis]) for size, (index, axis) in self._axes)
        return {**variables, **{label: inputs[index].shape[axis] for label, (index, axis) in self._places.items()}}


UNKNOWN = InputDomains({}, (), {}, ())
"""The domains of inputs about which nothing is known."""
