"""``onnx_ci.adapt``: a model that takes and returns containers, wrapped into one that takes and returns tensors only."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from onnx_ci.errors import RecipeError, did_you_mean
from onnx_ci.pipeline.model.containers import containers_in, name_of, named_leaves
from onnx_ci.pipeline.model.module import Values, as_model, signature_of, with_parameters

Inputs = str | Sequence[str] | Callable[..., Mapping[str, Any]]
Outputs = str | Sequence[str] | Mapping[str, str] | Callable[[Any], Any]

_VALUES = (type(None), str, int, float, complex)
"""What is left out of the outputs, because ONNX has no such outputs."""


def adapt(
    model: torch.nn.Module | Callable[..., Any],
    *,
    inputs: Inputs | None = None,
    outputs: Outputs | None = None,
    fixed: Mapping[str, Any] | None = None,
) -> torch.nn.Module:
    """Wrap a model into one that takes and returns tensors only, as an ONNX file does.

    The wrapper has ``model`` as its submodule ``model``. Parameters of ``forward`` that are neither in ``inputs`` nor in
    ``fixed`` keep their defaults, and no exporter can turn these into inputs.

    Args:
        model: the model, or a function. With ``inputs``, it is called with keyword arguments.
        inputs: what the wrapper takes, in this order: one or several names of parameters of ``forward``; or a function that
            takes tensors and returns the keyword arguments of ``forward``, such as a cache that it makes from them. By default,
            the wrapper passes its arguments on as they are.
        outputs: what the wrapper returns, in this order: readable names such as ``logits`` and ``past_key_values.0.key``, where
            ``past_key_values`` means all tensors in it; such names with new ones, ``{"past_key_values": "present"}``; or a
            function of what the model returns. By default, it returns all tensors.
        fixed: values of other parameters of ``forward``, such as ``{"use_cache": False}``. Tensors are buffers of the wrapper.

    Returns:
        A module that computes what ``model`` does. It returns a single tensor as it is, a tuple of tensors for a tuple or a
        list, and otherwise a dictionary of tensors by their readable names. Numbers, strings and ``None`` are left out.

    Raises:
        RecipeError: a name is not a parameter of ``forward``, or is given twice; a fixed value has tensors in an object of a
            class that PyTorch cannot flatten; or the model is none. The wrapper raises it if the model returns no tensor of a
            name, or an object of a class whose tensors are unknown.
    """
    if not isinstance(model, torch.nn.Module):
        if (as_module := as_model(model)) is None:
            raise RecipeError(f"adapt: the model is not a torch.nn.Module but {type(model).__name__}")
        model, _ = as_module
    fixed = dict(fixed or {})
    new_names = {name: name for name in _listed(outputs)} if isinstance(outputs, Sequence) else outputs
    input_names = () if inputs is None or callable(inputs) else _listed(inputs)
    _check_parameters(model, [*input_names, *fixed])
    for name, value in fixed.items():
        for container in containers_in(value):
            if container.has_tensors and not container.is_registered:
                kind = container.kind.__name__
                message = (
                    f"the fixed value of {name!r} has tensors in an object of the class {kind}, where PyTorch cannot find them"
                )
                raise RecipeError(f"adapt: {message}; make the {kind} in a function for inputs, or register it as a pytree")
    if inputs is None:
        return _Adapted(model, None, new_names, fixed)
    if callable(inputs):
        # The exporters must not find defaults here, either.
        empty = inspect.Parameter.empty
        parameters = [each for each in inspect.signature(inputs).parameters.values() if each.default is empty]
        return with_parameters(_Adapted, parameters)(model, inputs, new_names, fixed)
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in input_names]
    return with_parameters(_Adapted, parameters)(model, _ByName(input_names), new_names, fixed)


def _listed(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _check_parameters(model: torch.nn.Module, names: Sequence[str]) -> None:
    """Raise a :class:`RecipeError` unless the names are different parameters of forward."""
    signature = signature_of(model)
    parameters = {} if signature is None else signature.parameters
    takes_any = signature is None or any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    for position, name in enumerate(names):
        if name in names[:position]:
            raise RecipeError(f"adapt: the parameter {name!r} is given twice")
        if name not in parameters and not takes_any:
            message = f"adapt: {type(model).__name__}.forward has no parameter {name!r}"
            raise RecipeError(message + did_you_mean(name, parameters))


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
        self.fixed = Values(dict(fixed))
        self._inputs, self._outputs = inputs, outputs

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns, as tensors: see :func:`adapt`."""
        if self._inputs is not None:
            args, kwargs = (), dict(self._inputs(*args, **kwargs))
        result = self.model(*args, **kwargs, **self.fixed.get())
        if callable(self._outputs):
            result = self._outputs(result)
        every = _distinct((name_of(path), leaf) for path, leaf in named_leaves(result) if not isinstance(leaf, _VALUES))
        named = _distinct(_chosen(every, self._outputs)) if isinstance(self._outputs, Mapping) else every
        for name, leaf in named.items():
            if not isinstance(leaf, torch.Tensor):
                message = f"the output {name} is of the class {type(leaf).__name__}, whose tensors are unknown"
                raise RecipeError(f"adapt: {message}; choose outputs by name, or get its tensors in a function for outputs")
        if isinstance(result, torch.Tensor):
            return result
        return tuple(named.values()) if type(result) in (tuple, list) and not isinstance(self._outputs, Mapping) else named


def _chosen(named: Mapping[str, Any], outputs: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """The outputs that have a chosen name, or are inside of one that has it, with their new names."""
    for old, new in outputs.items():
        names = [name for name in named if f"{name}.".startswith(f"{old}.")]
        if not names:
            raise RecipeError(f"adapt: the model returns no tensor {old!r}, but {', '.join(named)}{did_you_mean(old, named)}")
        for name in names:
            yield new + name.removeprefix(old), named[name]


def _distinct(outputs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The outputs by their names. If two had one name, an output would be lost."""
    named: dict[str, Any] = {}
    for name, leaf in outputs:
        if name in named:
            raise RecipeError(f"adapt: two outputs have the name {name!r}")
        named[name] = leaf
    return named
