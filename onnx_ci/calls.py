"""A live model and the arguments of one call of it: built from a recipe, copied, flattened, run."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from onnx_ci import devices
from onnx_ci.errors import OnnxCiError, describe_exception
from onnx_ci.global_state import Changes, watched
from onnx_ci.recipe import Recipe
from onnx_ci.records import Finding
from onnx_ci.rules import finding

Outputs = tuple[torch.Tensor, ...]
"""A model's outputs, flattened; tensors alone, on the CPU."""


class SkippedByRecipeError(Exception):
    """A recipe skips itself, with ``pytest.skip`` or ``unittest.SkipTest``; the message is its reason."""


class PrepareError(Exception):
    """A recipe cannot be prepared; carries the finding that says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


@dataclass(frozen=True, kw_only=True)
class Call:
    """A model and the arguments of one call of it; ``kwargs`` in forward's own order, which the graph's inputs follow."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    left_changed: Changes = field(default_factory=Changes)
    """What building it changed for all code of the process."""


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch, random and numpy, and put back afterwards what they were."""
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    gpus = devices.gpus
    with torch.random.fork_rng(devices=range(gpus.count()) if gpus.in_use() else []):
        if gpus.count():
            torch.manual_seed(seed)
        else:  # that would write down the whole stack, for a CUDA to come: milliseconds, and memory, for each call
            torch.default_generator.manual_seed(seed)
        random.seed(seed)
        if numpy:
            numpy.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy:
                numpy.random.set_state(numpy_state)


class EveryOperator(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator that runs, in eager code."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Asked to keep torch.compile away from this class, torch would import all of it, which takes half a second.
        return False


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Run what a model compiles as plain code: torch.compile sees no mode, and torch.cond compiles even in eager code.

    Where nothing has imported torch.compile, nothing that ran compiles, and asking it would import it.
    """
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def recipe_error(message: str, remedy: str | None = None) -> PrepareError:
    """A ``recipe-error`` to raise: the recipe cannot be used."""
    return PrepareError(finding("recipe-error", message, remedy=remedy))


def build(recipe: Recipe, weights: str | None) -> Call:
    """Call the recipe's function under its seed and check what it returns.

    Raises:
        PrepareError: it raises, or returns something else than a model with arguments that fit.
    """
    options = {"weights": weights} if recipe.takes_weights else {}
    try:
        with seeded(recipe.seed):
            made = recipe.function(**options)
    except OnnxCiError as error:
        raise recipe_error(str(error), "Mend what the message names; the model was never built.") from None
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # whatever a recipe raises is its author's to read
        if devices.ran_out_of_memory(error):
            raise
        if type(error).__name__ in ("Skipped", "SkipTest"):
            raise SkippedByRecipeError(str(error) or "the recipe skips itself") from None
        raise recipe_error(f"the recipe raised {_describe(error)}") from None
    remedy = f"Return (model, args) or (model, args, kwargs) from {recipe.name}."
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        what = f"a tuple of {len(made)}" if isinstance(made, tuple) else type(made).__name__
        raise recipe_error(f"the recipe returned {what} instead of (model, args) or (model, args, kwargs)", remedy)
    model, args, kwargs = made if len(made) == 3 else (*made, {})
    if not isinstance(model, torch.nn.Module):
        what = f"the class {model.__name__}; call it to make a model" if isinstance(model, type) else type(model).__name__
        raise recipe_error(f"the recipe's model is no torch.nn.Module but {what}", remedy)
    if isinstance(args, torch.Tensor):
        args = (args,)
    if not isinstance(args, tuple):
        raise recipe_error(f"the recipe's args are a {type(args).__name__}, not a tuple", remedy)
    if not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
        raise recipe_error("the recipe's kwargs are no dict with names as keys", remedy)
    signature = signature_of(model)
    if signature is not None:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise recipe_error(
                f"the recipe's args do not fit {type(model).__name__}.forward{signature}: {error}",
                "Return the arguments of forward as a tuple: (model, (x,)), with nested tuples as forward takes them.",
            ) from None
        kwargs = {name: kwargs[name] for name in signature.parameters if name in kwargs} | kwargs
    model.train(recipe.training)
    call = Call(model=model, args=args, kwargs=kwargs)
    if any(is_lazy(parameter) for parameter in model.parameters()):
        run_tree(call, seed=recipe.seed)  # a lazy module draws its weights in its first run
    return call


def signature_of(model: torch.nn.Module) -> inspect.Signature | None:
    """The signature of ``forward``, or ``None`` where a scripted model does not tell."""
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):
        return None
    if isinstance(model, torch.jit.ScriptModule):  # a method that script_method compiled still counts self
        signature = signature.replace(parameters=[each for each in signature.parameters.values() if each.name != "self"])
    return signature


def _describe(error: BaseException) -> str:
    return describe_exception(error, not_from=[Path(torch.__file__).parent])


def move(call: Call, device: str) -> Call:
    """``call`` with its model and tensors on ``device``, wherever its recipe has put them."""
    if device == "cpu" and not _is_elsewhere(call):
        return call
    place = torch.device("cpu") if device == "cpu" else devices.gpus.place(device)
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(place), (call.args, call.kwargs))
    return Call(model=call.model.to(place), args=args, kwargs=kwargs)


def _is_elsewhere(call: Call) -> bool:
    """Whether the recipe itself has put tensors on a GPU or its like."""
    given = (leaf for leaf in pytree.tree_leaves((call.args, call.kwargs)) if isinstance(leaf, torch.Tensor))
    tensors = itertools.chain(call.model.parameters(), call.model.buffers(), given)
    return any(tensor.device.type not in ("cpu", "meta") for tensor in tensors)


def build_on(recipe: Recipe, device: str, weights: str | None) -> Call:
    """The recipe's model and arguments on ``device``. Raises as :func:`build` does."""
    with watched() as state:
        call = move(build(recipe, weights), device)
    return dataclasses.replace(call, left_changed=state.changes)


def arguments_of(call: Call) -> list[Any]:
    """The arguments in forward's own order."""
    return [*call.args, *call.kwargs.values()]


def bound_arguments(call: Call) -> dict[str, Any]:
    """The arguments by the names of forward's parameters, as ``torch.export`` counts them: a variadic one is one."""
    signature = signature_of(call.model)
    if signature is None:
        return {str(position): value for position, value in enumerate(arguments_of(call))}
    return dict(signature.bind(*call.args, **call.kwargs).arguments)


def flatten_inputs(call: Call) -> list[tuple[pytree.KeyPath, torch.Tensor]]:
    """The tensors among the arguments, in the order of the graph's inputs, each with its place in the tree of arguments."""
    leaves, _ = pytree.tree_flatten_with_path(arguments_of(call))
    return [(path, leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]


def flatten_outputs(made: Any) -> Outputs:
    """The tensors among what a model returned, copied, in the order of the graph's outputs."""
    return tuple(leaf.detach().cpu().clone() for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor))


def on_cpu(tensors: Sequence[torch.Tensor]) -> Outputs:
    """``tensors`` on the CPU, without their history."""
    return tuple(tensor.detach().cpu() for tensor in tensors)


def with_inputs(call: Call, tensors: Sequence[torch.Tensor]) -> Call:
    """``call`` with its tensor arguments, in their flattened order, replaced by ``tensors`` on the same devices."""
    rest = iter(tensors)
    arguments = pytree.tree_map_only(torch.Tensor, lambda old: next(rest).to(old.device), arguments_of(call))
    count = len(call.args)
    return Call(model=call.model, args=tuple(arguments[:count]), kwargs=dict(zip(call.kwargs, arguments[count:], strict=True)))


def run_tree(call: Call, *, seed: int = 0) -> Any:
    """What the model returns, as it returns it, with ``seed`` for whatever random numbers it draws.

    Raises:
        PrepareError: the model refuses its arguments. A GPU without room for them raises its own exception.
    """
    try:
        with torch.no_grad(), seeded(seed):
            return call.model(*call.args, **call.kwargs)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # the model's own complaint is the finding, SystemExit included
        if devices.ran_out_of_memory(error):
            raise
        raise recipe_error(f"the model raised {_describe(error)}") from None


def run(call: Call, *, seed: int = 0) -> Outputs:
    """The model's flattened outputs, on the CPU. Raises as :func:`run_tree` does."""
    return flatten_outputs(run_tree(call, seed=seed))


def dtype_name(tensor: torch.Tensor) -> str:
    """The tensor's data type in torch's words, such as ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")
