"""A model whose forward has containers and defaults, wrapped into one that takes and returns tensors only."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from onnx_ci.errors import RecipeError, did_you_mean
from onnx_ci.stages.model.containers import name_of, named_leaves, tensors_in
from onnx_ci.stages.model.live_model import signature_of

Inputs = str | Sequence[str] | Callable[..., Mapping[str, Any]]
Outputs = str | Sequence[str] | Mapping[str, str] | Callable[[Any], Any]

_VALUES = (type(None), str, int, float, complex)
"""What is left out of the outputs, because ONNX cannot hold it."""


def adapt(
    model: torch.nn.Module,
    *,
    inputs: Inputs | None = None,
    outputs: Outputs | None = None,
    fixed: Mapping[str, Any] | None = None,
) -> torch.nn.Module:
    """Wrap a model into one that takes and returns tensors only, as an ONNX file does.

    The wrapper has ``model`` as its submodule ``model``. Parameters of ``forward`` that are neither in ``inputs`` nor in
    ``fixed`` keep their defaults, and no exporter can turn these into inputs.

    Args:
        model: the model. With ``inputs``, it is called with keyword arguments.
        inputs: what the wrapper takes, in this order: one or several names of parameters of ``forward``; or a function that
            takes tensors and returns the keyword arguments of ``forward``, such as a cache that it makes from them. By default,
            the wrapper passes its arguments on as they are.
        outputs: what the wrapper returns, in this order: readable names such as ``logits`` and ``past_key_values.0.key``, where
            ``past_key_values`` means all tensors in it; such names with new ones, ``{"past_key_values": "present"}``; or a
            function of what the model returns. By default, it returns all tensors.
        fixed: values of other parameters of ``forward``, such as ``{"use_cache": False}``.

    Returns:
        A module that computes what ``model`` does. It returns a single tensor as it is, a tuple of tensors for a tuple or a
        list, and otherwise a dictionary of tensors by their readable names. Numbers, strings and ``None`` are left out.

    Raises:
        RecipeError: a name is not a parameter of ``forward``, or is given twice, or a fixed value contains tensors. The wrapper
            raises it if the model returns no tensor of a name, or an object of a class whose tensors are unknown.
    """
    fixed = dict(fixed or {})
    chosen = {name: name for name in _listed(outputs)} if isinstance(outputs, Sequence) else outputs
    names = () if inputs is None or callable(inputs) else _listed(inputs)
    _check_parameters(model, [*names, *fixed])
    for name, value in fixed.items():
        if tensors_in(value):
            raise RecipeError(f"adapt: the fixed value of {name!r} contains tensors; make them in a function for inputs")
    if inputs is None:
        return _Adapted(model, None, chosen, fixed)
    if callable(inputs):
        # The exporters must not find defaults here, either.
        taken = [each for each in inspect.signature(inputs).parameters.values() if each.default is inspect.Parameter.empty]
        return _class_taking(taken)(model, inputs, chosen, fixed)
    taken = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    return _class_taking(taken)(model, _ByName(names), chosen, fixed)


def _listed(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _check_parameters(model: torch.nn.Module, names: Sequence[str]) -> None:
    """Raise a :class:`RecipeError` unless the names are different parameters of forward."""
    signature = signature_of(model)
    known = {} if signature is None else signature.parameters
    takes_any = signature is None or any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values())
    for position, name in enumerate(names):
        if name in names[:position]:
            raise RecipeError(f"adapt: the parameter {name!r} is given twice")
        if name not in known and not takes_any:
            raise RecipeError(f"adapt: {type(model).__name__}.forward has no parameter {name!r}{did_you_mean(name, known)}")


class _ByName:
    """Makes keyword arguments of positional ones."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def __call__(self, *args: Any, **kwargs: Any) -> Mapping[str, Any]:
        return dict(zip(self._names, args, strict=False)) | kwargs


class _Adapted(torch.nn.Module):
    """What :func:`adapt` returns; ``inputs`` makes the model's keyword arguments from those of the wrapper."""

    def __init__(
        self,
        model: torch.nn.Module,
        inputs: Callable[..., Mapping[str, Any]] | None,
        outputs: Mapping[str, str] | Callable[[Any], Any] | None,
        fixed: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.model = model
        self._inputs, self._outputs, self._fixed = inputs, outputs, fixed

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns, as tensors: see :func:`adapt`."""
        if self._inputs is not None:
            args, kwargs = (), dict(self._inputs(*args, **kwargs))
        made = self.model(*args, **kwargs, **self._fixed)
        if callable(self._outputs):
            made = self._outputs(made)
        named = _distinct((name_of(path), leaf) for path, leaf in named_leaves(made) if not isinstance(leaf, _VALUES))
        if isinstance(self._outputs, Mapping):
            named = _distinct(_chosen(named, self._outputs))
        for name, leaf in named.items():
            if not isinstance(leaf, torch.Tensor):
                message = f"the output {name} is of the class {type(leaf).__name__}, whose tensors are unknown"
                raise RecipeError(f"adapt: {message}; choose outputs by name, or get its tensors in a function for outputs")
        if isinstance(made, torch.Tensor):
            return made
        return tuple(named.values()) if type(made) in (tuple, list) and not isinstance(self._outputs, Mapping) else named


def _chosen(named: Mapping[str, Any], outputs: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """The outputs of the given names, or inside of these, with their new names."""
    for old, new in outputs.items():
        found = [name for name in named if f"{name}.".startswith(f"{old}.")]
        if not found:
            raise RecipeError(f"adapt: the model returns no tensor {old!r}, but {', '.join(named)}{did_you_mean(old, named)}")
        for name in found:
            yield new + name.removeprefix(old), named[name]


def _distinct(outputs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The outputs by their names, none of which may be lost."""
    named: dict[str, Any] = {}
    for name, leaf in outputs:
        if name in named:
            raise RecipeError(f"adapt: two outputs have the name {name!r}")
        named[name] = leaf
    return named


def _class_taking(parameters: Sequence[inspect.Parameter]) -> type[_Adapted]:
    """A class whose forward has these parameters: the exporters, and checks of names, read them from its signature."""

    def forward(self: _Adapted, *args: Any, **kwargs: Any) -> Any:
        return _Adapted.forward(self, *args, **kwargs)

    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    forward.__signature__ = inspect.Signature([itself, *parameters])  # type: ignore[attr-defined]
    return type("Adapted", (_Adapted,), {"forward": forward})
